//! Decisions that are asked for by the names of limits and keys, without a request: for servers that decide for others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::shared::{Made, OnFailure, SharedCall, Told, Unanswered};
use tidegate::{Decision, Mode, Receipt};

use super::desk::{Ask, Charges, Desk, Few, Verdict};
use super::key::Key;
use super::limit::Entry;
use super::observe::How;
use super::respond::Stamp;
use super::sharing::Sharing;
use super::{Outcome, RateLimit, Shared};
use crate::fields::{RETRY_AFTER_MS, whole_ms, whole_seconds};

/// What is asked of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    /// Whose tokens they are.
    pub key: Key<'a>,
    /// How many.
    pub cost: u64,
}

/// Why nothing was decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// There is no limit of that name.
    #[error("there is no limit `{limit}`; there are {there_are}")]
    NoSuchLimit {
        /// The name.
        limit: Box<str>,
        /// Those that there are.
        there_are: Box<str>,
    },
    /// A key of a limit is there twice; or a limit is, where what it is charged is to be kept.
    #[error("the limit `{limit}` is there twice for one key; add up what is asked of it")]
    Twice {
        /// The name.
        limit: Box<str>,
    },
    /// Nothing is asked.
    #[error("no limit is named; name one at least")]
    Nothing,
}

/// What was decided, from [`RateLimit::check`].
#[derive(Debug)]
pub struct Checked {
    desk: Arc<Desk>,
    verdict: Verdict,
    each: Vec<CheckedLimit>,
    made: Option<Made>,
    outcome: Outcome,
}

/// What was decided in one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedLimit {
    /// Its name.
    pub name: Arc<str>,
    /// Whose limit it is.
    pub key: Key<'static>,
    /// What the call costs in it.
    pub cost: u64,
    /// What holds for the call in this limit alone; `None` if it was not asked.
    pub decision: Option<Decision>,
    /// What a call of cost 0 is told after it; `None` if that is not known.
    pub left: Option<Decision>,
    /// The largest cost that can be allowed, with the quota of this key; `None` if it limits nothing.
    pub capacity: Option<u64>,
}

/// What a call was charged, to be settled or given back. Dropped, it stays charged. It takes about 100 bytes for each limit that
/// the call names, and does not hold its key.
#[derive(Debug)]
pub struct Charged {
    shared: Arc<Shared>,
    each: Box<[ChargedIn]>,
}

/// What a call was charged in one limit.
#[derive(Debug)]
struct ChargedIn {
    limit: Arc<str>,
    /// Of the limit when it was charged.
    era: Weak<()>,
    cost: u64,
    /// `None` if nothing was charged, as the limit is in shadow and would have refused.
    receipt: Option<Receipt>,
}

impl RateLimit {
    /// Decides a call in the limits that it names, and charges it in all of them or in none; or only looks, if it is not to
    /// be charged. A limit can be named for several keys.
    ///
    /// It is counted and told to the observer as a request is. It has no place in flight.
    ///
    /// ```
    /// use tidegate_http::layer::{Key, Take};
    /// use tidegate_http::{KeyBy, RateLimit, RequestLimit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limit = RequestLimit::new("per-account", "1/s").key(KeyBy::header("x-account"));
    /// let limits = RateLimit::builder().limit(limit).build().unwrap();
    /// let take = || [Take { limit: "per-account", key: Key::from("ann"), cost: 1 }];
    /// assert!(limits.check(&take(), true).await.unwrap().is_allowed());
    /// let rejected = limits.check(&take(), true).await.unwrap();
    /// assert_eq!(rejected.refused_by(), Some("per-account"));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A name that no limit has, a key that is there twice in a limit, and no name at all. Then nothing is charged.
    pub async fn check(&self, takes: &[Take<'_>], charge: bool) -> Result<Checked, CheckError> {
        let desk = self.shared.desk.load_full();
        match &desk.sharing {
            None => desk.decide_here(takes, charge, false),
            // In a box: where nobody is waited for there is no need for the room that it takes.
            Some(sharing) => Box::pin(desk.decide_there(sharing, takes, charge)).await,
        }
    }

    /// Decides a call as [`Self::check`] does, and keeps what it was charged, so that it can be given back.
    ///
    /// Where others share the buckets nothing can be given back, and there is none.
    ///
    /// # Errors
    ///
    /// As [`Self::check`], and a limit that is there twice.
    pub async fn reserve(&self, takes: &[Take<'_>]) -> Result<(Checked, Option<Charged>), CheckError> {
        let again = takes.iter().enumerate().find(|(at, take)| {
            let before = &takes[..*at];
            before.iter().any(|other| other.limit == take.limit)
        });
        if let Some((_, take)) = again {
            return Err(CheckError::Twice { limit: take.limit.into() });
        }
        let desk = self.shared.desk.load_full();
        if let Some(sharing) = &desk.sharing {
            return Ok((desk.decide_there(sharing, takes, true).await?, None));
        }
        let mut checked = desk.decide_here(takes, true, true)?;
        let mut charges = std::mem::take(&mut checked.verdict.charges);
        if !checked.is_allowed() {
            return Ok((checked, None));
        }
        let charged_in = |limit: &CheckedLimit| {
            let index = desk.limits.iter().position(|entry| entry.name == limit.name)?;
            let of_limit = charges.iter().position(|(charged, _)| *charged == index);
            Some(ChargedIn {
                limit: Arc::clone(&limit.name),
                era: desk.limits[index].era(),
                cost: limit.cost,
                receipt: of_limit.map(|at| charges.swap_remove(at).1),
            })
        };
        let each = checked.each.iter().filter_map(charged_in).collect();
        Ok((checked, Some(Charged { shared: Arc::clone(&self.shared), each })))
    }

    /// Whether what is charged can be given back: if others share the buckets it cannot.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.shared.desk.load().sharing.is_none()
    }
}

impl Desk {
    /// The tables of this process decide a call. `keep` keeps what takes its charges back, in the verdict.
    fn decide_here(
        self: &Arc<Self>,
        takes: &[Take<'_>],
        charge: bool,
        keep: bool,
    ) -> Result<Checked, CheckError> {
        let asked = self.named(takes)?;
        let began = self.observer.is_some().then(|| self.now_ns());
        let (each, charges, now) = self.by_tables(&asked, charge, keep);
        let (asks, foremost) = self.foremost(&asked, &each);
        let peek = |limit: usize, cost| Some(self.limits[limit].peek(&asks[limit], cost, now));
        let mut verdict = self.told(&asks, &foremost, peek);
        verdict.charges = charges;
        self.note(&asks, &verdict, began, Some(How { made: None, each: &foremost }));
        Ok(self.checked(asked, &each, verdict, None))
    }

    /// The buckets that others share decide it, or what stands in for them.
    async fn decide_there(
        self: &Arc<Self>,
        sharing: &Sharing,
        takes: &[Take<'_>],
        charge: bool,
    ) -> Result<Checked, CheckError> {
        let asked = self.named(takes)?;
        let began = self.observer.is_some().then(|| self.now_ns());
        let call = asked.iter().map(|(limit, ask)| self.limits[*limit].take(ask)).collect();
        let answer = sharing.buckets.decide(SharedCall { takes: call, charge }).await;
        let each = match (&answer, sharing.on_failure) {
            (Ok(answer), _) => Few::from_slice(&answer.each),
            (Err(Unanswered { retry_after }), OnFailure::Local { .. }) => {
                self.by_own_share(&asked, charge, *retry_after)
            }
            (Err(_), _) => Few::from_elem(None, asked.len()),
        };
        let (asks, foremost) = self.foremost(&asked, &each);
        let (verdict, made) = match (answer, sharing.on_failure) {
            (Ok(answer), _) => (self.told(&asks, &foremost, |_, _| None), answer.made),
            (Err(_), OnFailure::Local { .. }) => (self.told_of_share(&asks, &foremost), Made::Local),
            (Err(Unanswered { retry_after }), on_failure) => self.without(&asks, on_failure, retry_after),
        };
        self.note(&asks, &verdict, began, Some(How { made: Some(made), each: &foremost }));
        Ok(self.checked(asked, &each, verdict, Some(made)))
    }

    fn checked(
        self: &Arc<Self>,
        asked: Few<(usize, Ask<'_>)>,
        each: &[Option<Told>],
        verdict: Verdict,
        made: Option<Made>,
    ) -> Checked {
        let limits = asked.into_iter().enumerate().map(|(at, (limit, ask))| {
            let entry = &self.limits[limit];
            let told = each.get(at).copied().flatten();
            CheckedLimit {
                name: Arc::clone(&entry.name),
                cost: ask.cost,
                decision: told.map(|told| told.decision),
                left: told.and_then(|told| told.left),
                capacity: entry.quota(ask.tier).shape.as_ref().map(|shape| shape.capacity),
                key: ask.key.into_owned(),
            }
        });
        let (outcome, each) = (verdict.outcome(), limits.collect());
        Checked { desk: Arc::clone(self), verdict, each, made, outcome }
    }
}

impl Desk {
    /// What is asked of which limits, in the order of the takes.
    fn named<'a>(&self, takes: &'a [Take<'_>]) -> Result<Few<(usize, Ask<'a>)>, CheckError> {
        let mut asked: Few<(usize, Ask<'a>)> = Few::with_capacity(takes.len());
        for take in takes {
            let Some(limit) = self.limits.iter().position(|entry| *entry.name == *take.limit) else {
                let names: Vec<_> = self.limits.iter().map(|entry| format!("`{}`", entry.name)).collect();
                let (limit, there_are) = (take.limit.into(), names.join(", ").into());
                return Err(CheckError::NoSuchLimit { limit, there_are });
            };
            if asked.iter().any(|(other, ask)| *other == limit && ask.key == take.key) {
                return Err(CheckError::Twice { limit: take.limit.into() });
            }
            let tier = self.limits[limit].place_of(&take.key);
            asked.push((limit, Ask { key: take.key.borrowed(), tier, cost: take.cost }));
        }
        if asked.is_empty() { Err(CheckError::Nothing) } else { Ok(asked) }
    }

    /// What is asked of all limits and what they say: of those with several keys the one that binds, and of those that are not
    /// named nothing.
    fn foremost<'a>(
        &self,
        asked: &[(usize, Ask<'a>)],
        each: &[Option<Told>],
    ) -> (Few<Ask<'a>>, Few<Option<Told>>) {
        let nothing = |_| Ask { key: Key::everyone(), tier: 0, cost: 0 };
        let mut asks: Few<Ask<'a>> = self.limits.iter().map(nothing).collect();
        let mut foremost: Few<Option<Told>> = Few::from_elem(None, self.limits.len());
        let mut is_named = Few::from_elem(false, self.limits.len());
        for ((limit, ask), told) in asked.iter().zip(each) {
            let binds = |told: &Told| told.decision;
            let is_first = !std::mem::replace(&mut is_named[*limit], true);
            let before = foremost[*limit].as_ref().map(binds);
            if is_first || told.as_ref().is_some_and(|told| binds_more(&binds(told), before.as_ref())) {
                (asks[*limit], foremost[*limit]) = (ask.clone(), *told);
            }
        }
        (asks, foremost)
    }

    /// What the tables of this process say, and what was charged, and when.
    fn by_tables(
        &self,
        asked: &[(usize, Ask<'_>)],
        charge: bool,
        keep: bool,
    ) -> (Few<Option<Told>>, Charges, u64) {
        let is_allowed = |decisions: &[Decision]| {
            let mut each = asked.iter().zip(decisions);
            each.all(|((limit, _), decision)| {
                self.limits[*limit].mode == Mode::Shadow || decision.is_allowed()
            })
        };
        // Whoever charges several limits does it under this lock.
        let running = self.places.lock();
        let now = self.now_ns();
        let each = |decide: fn(&Entry, &Ask<'_>, u64) -> Decision| -> Few<Decision> {
            asked.iter().map(|(limit, ask)| decide(&self.limits[*limit], ask, now)).collect()
        };
        // One alone is charged by its table or not; of several, each has to allow the call before one is charged.
        let looks =
            (!charge || asked.len() > 1).then(|| each(|entry, ask, now| entry.peek(ask, ask.cost, now)));
        let (decisions, is_charged, charges) = match looks {
            Some(looks) if !charge || !is_allowed(&looks) => {
                asked.iter().for_each(|(limit, ask)| self.limits[*limit].carry_over(ask, now));
                (looks, false, Charges::new())
            }
            _ => {
                let decisions = each(Entry::check);
                let is_charged = is_allowed(&decisions);
                let mut charges = Charges::new();
                if keep || !is_charged {
                    charges.extend(asked.iter().zip(&decisions).filter_map(|((limit, ask), decision)| {
                        Some((*limit, self.limits[*limit].receipt(ask, now, decision)?))
                    }));
                }
                // Requests that a single limit decides are charged without the lock.
                if !is_charged {
                    self.take_back(std::mem::take(&mut charges));
                }
                (decisions, is_charged, charges)
            }
        };
        let each = asked.iter().zip(decisions).map(|((limit, ask), decision)| {
            let left = Some(self.limits[*limit].left(ask, &decision, is_charged, now));
            Some(Told { decision, left })
        });
        let each = each.collect();
        drop(running);
        (each, charges, now)
    }

    /// What the tables of this process say, which have its share of buckets that do not answer. What would be left of the whole
    /// is not known.
    fn by_own_share(
        &self,
        asked: &[(usize, Ask<'_>)],
        charge: bool,
        retry_after: Duration,
    ) -> Few<Option<Told>> {
        let (mut each, _, _) = self.by_tables(asked, charge, false);
        for ((limit, ask), told) in asked.iter().zip(&mut each) {
            let Some(told) = told else { continue };
            told.left = None;
            // Above the share, but not above the quota: the shared buckets will be able to.
            if matches!(told.decision, Decision::Never { .. }) && !self.limits[*limit].is_above_quota(ask) {
                told.decision = Decision::Rejected { retry_after, remaining: 0, reset_after: retry_after };
            }
        }
        each
    }

    fn told_of_share(&self, asks: &[Ask<'_>], each: &[Option<Told>]) -> Verdict {
        let verdict = self.told(asks, each, |_, _| None);
        Verdict { shown: self.unknown(asks), ..verdict }
    }
}

/// Whether a decision in a limit binds a call more than that of another key.
fn binds_more(decision: &Decision, before: Option<&Decision>) -> bool {
    let rank = |decision: &Decision| match decision {
        Decision::Never { .. } => (2, Duration::MAX, 0),
        Decision::Rejected { retry_after, .. } => (1, *retry_after, 0),
        Decision::Allowed { start_after, remaining, .. } => (0, *start_after, u64::MAX - remaining),
    };
    before.is_none_or(|before| rank(decision) > rank(before))
}

impl Checked {
    /// Whether the call may run, at once or after [`Self::start_after`].
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.outcome.is_allowed()
    }

    /// What became of the call.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// When an allowed call may run: later than now only if a leaky bucket has queued it.
    #[must_use]
    pub const fn start_after(&self) -> Duration {
        self.verdict.answer.decision.start_after()
    }

    /// After how long a rejected call would be allowed if nobody else came; `None` if it is not rejected, or no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict.unanswered().or_else(|| self.verdict.answer.decision.retry_after())
    }

    /// The limit that refused: the one with the longest wait.
    #[must_use]
    pub fn refused_by(&self) -> Option<&str> {
        let limit = self.verdict.answer.limit.filter(|_| !self.is_allowed())?;
        Some(&self.desk.limits[limit].name)
    }

    /// The first limit in shadow that would have refused.
    #[must_use]
    pub fn shadow(&self) -> Option<&str> {
        Some(&self.desk.limits[self.verdict.answer.shadow?].name)
    }

    /// The limits that the call names, in its order.
    #[must_use]
    pub fn limits(&self) -> &[CheckedLimit] {
        &self.each
    }

    /// How it was decided, if others share the buckets.
    #[must_use]
    pub const fn made(&self) -> Option<Made> {
        self.made
    }

    /// Adds what a response says of it: `RateLimit`, `RateLimit-Policy`, and when it is rejected `Retry-After` and
    /// `retry-after-ms`.
    pub fn fields(&self, headers: &mut HeaderMap) {
        self.stamp().apply_to(headers);
        for (name, value) in self.waits().into_iter().flatten() {
            headers.insert(name, value);
        }
    }

    /// As [`Self::fields`], for a response that has no map of them.
    ///
    /// ```
    /// use tidegate_http::layer::{Key, Take};
    /// use tidegate_http::{RateLimit, RequestLimit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limits = RateLimit::builder().limit(RequestLimit::new("calls", "1/s burst 3")).build().unwrap();
    /// let take = [Take { limit: "calls", key: Key::everyone(), cost: 1 }];
    /// let mut lines = Vec::new();
    /// limits.check(&take, true).await.unwrap().each_field(|name, value| lines.push(format!("{name}: {value:?}")));
    /// assert_eq!(lines[1], r#"ratelimit: "\"calls\";r=2;t=1""#);
    /// # }
    /// ```
    pub fn each_field(&self, mut add: impl FnMut(HeaderName, HeaderValue)) {
        self.stamp().each_field(&mut add);
        self.waits().into_iter().flatten().for_each(|(name, value)| add(name, value));
    }

    fn stamp(&self) -> Stamp {
        let named = |entry: &Entry| self.each.iter().any(|each| Arc::ptr_eq(&each.name, &entry.name));
        self.desk.stamp_named(&self.verdict, named)
    }

    /// How long a rejected call has to wait, in two units.
    fn waits(&self) -> Option<[(HeaderName, HeaderValue); 2]> {
        let wait = self.retry_after()?;
        Some([(RETRY_AFTER, whole_seconds(wait).into()), (RETRY_AFTER_MS, whole_ms(wait).into())])
    }
}

impl Charged {
    /// The limits that the call names, in its order.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.each.iter().map(|charged| &*charged.limit)
    }

    /// Gives all of it back: never more than if the call had not come. Nothing in a limit whose quotas have changed since, and
    /// nothing in leaky buckets.
    pub fn give_back(self) {
        let desk = self.shared.desk.load_full();
        for ChargedIn { limit, era, receipt, .. } in self.each {
            let entry = desk.limit(&limit).filter(|entry| entry.is_of_era(&era));
            if let (Some(entry), Some(receipt)) = (entry, receipt) {
                entry.refund(receipt);
            }
        }
    }

    /// Charges what the call has really cost in place of what it was charged, `cost` in the limit of that name; or as much of
    /// it as is there. Says how much could not be charged in all limits together.
    ///
    /// In a limit whose quotas have changed since, what it was charged stays, and what is above that is not charged.
    pub fn settle(self, cost: impl Fn(&str) -> u64) -> u64 {
        let desk = self.shared.desk.load_full();
        // Whoever is charged in several limits does not expect others in between.
        let running = desk.places.lock();
        let mut missing = 0_u64;
        for ChargedIn { limit, era, cost: charged, receipt } in self.each {
            let wanted = cost(&limit);
            let is_charged = receipt.is_some();
            let entry = desk.limit(&limit).filter(|entry| entry.is_of_era(&era));
            let more = match (entry, receipt) {
                (Some(entry), Some(receipt)) => entry.settle(receipt, wanted),
                _ if is_charged => wanted.saturating_sub(charged),
                // A limit in shadow that would have refused lets the call cost what it likes.
                _ => 0,
            };
            missing = missing.saturating_add(more);
        }
        drop(running);
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyBy, RequestLimit};
    use tidegate::clock::ManualClock;

    fn limits(clock: &ManualClock) -> RateLimit {
        let account = KeyBy::header("x-account");
        let limit = |name, quota: &str| RequestLimit::new(name, quota).key(account.clone());
        let builder =
            RateLimit::builder().limit(limit("calls", "1/s burst 3")).limit(limit("bytes", "10/s burst 100"));
        builder.clock(clock.clone()).build().unwrap()
    }

    fn take<'a>(limit: &'a str, key: &'a str, cost: u64) -> Take<'a> {
        Take { limit, key: Key::from(key), cost }
    }

    /// What is left in both limits.
    fn left(limits: &RateLimit, key: &'static str) -> [u64; 2] {
        ["calls", "bytes"].map(|limit| limits.level(limit, &Key::from(key)).unwrap().remaining())
    }

    #[tokio::test]
    async fn limits_that_are_named_are_charged_together_or_not_at_all() {
        let limits = limits(&ManualClock::new());
        let both = |bytes| [take("bytes", "ann", bytes), take("calls", "ann", 1)];
        let checked = limits.check(&both(70), true).await.unwrap();
        assert!(checked.is_allowed() && checked.retry_after().is_none());
        let names: Vec<_> = checked.limits().iter().map(|limit| (&*limit.name, limit.capacity)).collect();
        assert_eq!(names, [("bytes", Some(100)), ("calls", Some(3))]);
        assert_eq!(left(&limits, "ann"), [2, 30]);
        let checked = limits.check(&both(70), true).await.unwrap();
        assert_eq!(
            (checked.refused_by(), checked.retry_after()),
            (Some("bytes"), Some(Duration::from_secs(4)))
        );
        assert_eq!(left(&limits, "ann"), [2, 30]);
        let mut headers = HeaderMap::new();
        checked.fields(&mut headers);
        assert_eq!(headers["ratelimit"], "\"bytes\";r=30;t=4, \"calls\";r=2;t=1");
        assert_eq!(headers["retry-after"], "4");
        let never = limits.check(&both(101), true).await.unwrap();
        assert_eq!((never.outcome(), never.retry_after()), (Outcome::Never, None));
        // One of them alone, and only looked at.
        let one = [take("calls", "ann", 2)];
        assert!(limits.check(&one, false).await.unwrap().is_allowed());
        assert_eq!(left(&limits, "ann"), [2, 30]);
        let mut headers = HeaderMap::new();
        limits.check(&one, true).await.unwrap().fields(&mut headers);
        assert_eq!(headers["ratelimit"], "\"calls\";r=0;t=1");
        assert_eq!(headers["ratelimit-policy"], "\"calls\";q=3;w=3");
        assert_eq!(left(&limits, "ann"), [0, 30]);
        assert_eq!((limits.counts().allowed, limits.counts().rejected), (3, 2));
    }

    #[tokio::test]
    async fn what_cannot_be_asked_is_said_and_charges_nothing() {
        let limits = limits(&ManualClock::new());
        let error =
            limits.check(&[take("calls", "ann", 1), take("pages", "ann", 1)], true).await.unwrap_err();
        assert_eq!(error.to_string(), "there is no limit `pages`; there are `calls`, `bytes`");
        let twice = CheckError::Twice { limit: "calls".into() };
        let one_key = [take("calls", "ann", 1), take("calls", "ann", 1)];
        assert_eq!(limits.check(&one_key, true).await.unwrap_err(), twice);
        let two_keys = [take("calls", "ann", 1), take("calls", "bob", 1)];
        assert_eq!(limits.reserve(&two_keys).await.unwrap_err(), twice);
        assert_eq!(limits.check(&[], true).await.unwrap_err(), CheckError::Nothing);
        assert_eq!(left(&limits, "ann"), [3, 100]);
    }

    #[tokio::test]
    async fn several_keys_of_a_limit_are_charged_together_or_not_at_all() {
        let limits = limits(&ManualClock::new());
        let both = |ann, bob| [take("calls", "ann", ann), take("bytes", "ann", 1), take("calls", "bob", bob)];
        assert!(limits.check(&both(1, 2), true).await.unwrap().is_allowed());
        let after = || [left(&limits, "ann"), left(&limits, "bob")];
        assert_eq!(after(), [[2, 99], [1, 100]]);
        // Whichever of them refuses, and where it stands.
        for (ann, bob, wait, remaining) in [(1, 2, 1, [2, 1]), (3, 1, 1, [2, 1]), (3, 3, 2, [2, 1])] {
            let checked = limits.check(&both(ann, bob), true).await.unwrap();
            assert_eq!(checked.refused_by(), Some("calls"));
            assert_eq!(checked.retry_after(), Some(Duration::from_secs(wait)));
            let each = checked.limits().iter().filter(|limit| &*limit.name == "calls");
            let each: Vec<_> = each.map(|limit| limit.left.unwrap().remaining()).collect();
            assert_eq!(each, remaining);
            assert_eq!(after(), [[2, 99], [1, 100]]);
        }
        let checked = limits.check(&both(2, 1), true).await.unwrap();
        let mut headers = HeaderMap::new();
        checked.fields(&mut headers);
        assert_eq!(headers["ratelimit"], "\"calls\";r=0;t=1, \"bytes\";r=98;t=1");
        assert_eq!(after(), [[0, 98], [0, 100]]);
    }

    #[tokio::test]
    async fn what_was_reserved_is_settled_or_given_back() {
        let clock = ManualClock::new();
        let limits = limits(&clock);
        let takes = [take("calls", "ann", 1), take("bytes", "ann", 60)];
        for (costs, missing, after) in [
            // Less than it was thought to be, more, and more than is there.
            (Some([1, 20]), 0, [2, 80]),
            (Some([1, 90]), 0, [2, 10]),
            (Some([2, 130]), 30, [1, 0]),
            (Some([0, 0]), 0, [3, 100]),
            (None, 0, [3, 100]),
        ] {
            clock.advance(Duration::from_secs(1000));
            let (checked, charged) = limits.reserve(&takes).await.unwrap();
            assert!(checked.is_allowed());
            assert_eq!(left(&limits, "ann"), [2, 40]);
            let charged = charged.unwrap();
            match costs {
                Some([calls, bytes]) => {
                    let told = charged.settle(|limit| if limit == "calls" { calls } else { bytes });
                    assert_eq!(told, missing, "{costs:?}");
                }
                None => charged.give_back(),
            }
            assert_eq!(left(&limits, "ann"), after, "{costs:?}");
        }
        clock.advance(Duration::from_secs(1000));
        let _all = limits.check(&[take("calls", "ann", 3)], true).await.unwrap();
        let (checked, charged) = limits.reserve(&takes).await.unwrap();
        assert!(!checked.is_allowed() && charged.is_none());
    }
}
