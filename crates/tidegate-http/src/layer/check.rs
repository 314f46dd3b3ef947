//! Decisions that are asked for by the names of limits and keys, without a request: for servers that decide for others.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use tidegate::Decision;
use tidegate::shared::{Made, SharedCall, Told, Unanswered};

use super::desk::{Ask, Charges, Desk, Verdict};
use super::key::Key;
use super::observe::How;
use super::{ChargedBy, Outcome, RateLimit};
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
    /// A limit is there twice.
    #[error("the limit `{limit}` is there twice; ask for two keys of a limit one after the other")]
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

/// What a call was charged, to be settled or given back. Dropped, it stays charged.
#[derive(Debug)]
pub struct Charged {
    by: ChargedBy,
    asks: Vec<Ask<'static>>,
    charges: Charges,
}

impl RateLimit {
    /// Decides a call in the limits that it names, and charges it in all of them or in none; or only looks, if it is not to
    /// be charged.
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
    /// A name that no limit has, or that is there twice, and no name at all. Then nothing is charged.
    pub async fn check(&self, takes: &[Take<'_>], charge: bool) -> Result<Checked, CheckError> {
        Ok(self.decide(takes, charge).await?.0)
    }

    /// Decides a call as [`Self::check`] does, and keeps what it was charged, so that it can be given back.
    ///
    /// Where others share the buckets nothing can be given back, and there is none.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub async fn reserve(&self, takes: &[Take<'_>]) -> Result<(Checked, Option<Charged>), CheckError> {
        let (checked, charges) = self.decide(takes, true).await?;
        let is_kept = checked.is_allowed() && checked.desk.sharing.is_none();
        let charged = || {
            // The names were found a moment ago.
            let asks = checked.desk.asks(takes).map(|(asks, _)| asks).unwrap_or_default();
            Charged { by: ChargedBy::new(&self.shared, &checked.desk), asks, charges }
        };
        let charged = is_kept.then(charged);
        Ok((checked, charged))
    }

    /// Whether what is charged can be given back: if others share the buckets it cannot.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.shared.desk.load().sharing.is_none()
    }

    async fn decide(&self, takes: &[Take<'_>], charge: bool) -> Result<(Checked, Charges), CheckError> {
        let desk = self.shared.desk.load_full();
        let (asks, asked) = desk.asks(takes)?;
        let began = desk.observer.is_some().then(|| desk.now_ns());
        let mut charges = Charges::new();
        let (verdict, made, each) = match &desk.sharing {
            None => {
                let (each, now);
                (each, charges, now) = desk.by_tables(&asks, &asked, charge);
                let peek = |limit: usize, cost| Some(desk.limits[limit].peek(&asks[limit], cost, now));
                (desk.told(&asks, &each, peek), None, each)
            }
            Some(sharing) => {
                let takes = asked.iter().map(|limit| desk.limits[*limit].take(&asks[*limit])).collect();
                match sharing.buckets.decide(SharedCall { takes, charge }).await {
                    Ok(answer) => {
                        let mut each = vec![None; asks.len()];
                        for (limit, told) in asked.iter().zip(answer.each) {
                            each[*limit] = told;
                        }
                        (desk.told(&asks, &each, |_, _| None), Some(answer.made), each)
                    }
                    Err(Unanswered { retry_after }) => {
                        let (verdict, made) = desk.without(&asks, sharing.on_failure, retry_after);
                        (verdict, Some(made), Vec::new())
                    }
                }
            }
        };
        desk.note(&asks, &verdict, began, Some(How { made, each: &each }));
        let limits = asked.iter().map(|limit| {
            let (entry, ask) = (&desk.limits[*limit], &asks[*limit]);
            let told = each.get(*limit).copied().flatten();
            CheckedLimit {
                name: Arc::clone(&entry.name),
                key: ask.key.clone(),
                cost: ask.cost,
                decision: told.map(|told| told.decision),
                left: told.and_then(|told| told.left),
                capacity: entry.quota(ask.tier).shape.as_ref().map(|shape| shape.capacity),
            }
        });
        let (outcome, each) = (verdict.outcome(), limits.collect());
        Ok((Checked { desk: Arc::clone(&desk), verdict, each, made, outcome }, charges))
    }
}

impl Desk {
    /// What is asked of all limits, of those that are not named nothing; and which are named.
    fn asks(&self, takes: &[Take<'_>]) -> Result<(Vec<Ask<'static>>, Vec<usize>), CheckError> {
        let nothing = |_| Ask { key: Key::everyone(), tier: 0, cost: 0 };
        let mut asks: Vec<Ask<'static>> = self.limits.iter().map(nothing).collect();
        let mut asked = Vec::with_capacity(takes.len());
        for take in takes {
            let Some(limit) = self.limits.iter().position(|entry| *entry.name == *take.limit) else {
                let names: Vec<_> = self.limits.iter().map(|entry| format!("`{}`", entry.name)).collect();
                let (limit, there_are) = (take.limit.into(), names.join(", ").into());
                return Err(CheckError::NoSuchLimit { limit, there_are });
            };
            if asked.contains(&limit) {
                return Err(CheckError::Twice { limit: take.limit.into() });
            }
            let key = take.key.clone().into_owned();
            asks[limit] = Ask { tier: self.limits[limit].place_of(&key), key, cost: take.cost };
            asked.push(limit);
        }
        if asked.is_empty() { Err(CheckError::Nothing) } else { Ok((asks, asked)) }
    }

    /// What the tables of this process say, when, and what was charged.
    fn by_tables(
        &self,
        asks: &[Ask<'_>],
        asked: &[usize],
        charge: bool,
    ) -> (Vec<Option<Told>>, Charges, u64) {
        // Whoever charges several limits does it under this lock.
        let running = self.places.lock();
        let now = self.now_ns();
        let mut decisions = vec![super::sharing::UNKNOWN; asks.len()];
        for &limit in asked {
            decisions[limit] = self.limits[limit].peek(&asks[limit], asks[limit].cost, now);
        }
        let is_charged = charge && self.combine(&decisions).decision.is_allowed();
        let mut charges = Charges::new();
        if is_charged {
            for &limit in asked {
                let (entry, ask) = (&self.limits[limit], &asks[limit]);
                decisions[limit] = entry.check(ask, now);
                charges.extend(entry.receipt(ask, now, &decisions[limit]).map(|receipt| (limit, receipt)));
            }
        }
        let mut each = vec![None; asks.len()];
        for &limit in asked {
            let left = Some(self.limits[limit].peek(&asks[limit], 0, now));
            each[limit] = Some(Told { decision: decisions[limit], left });
        }
        drop(running);
        (each, charges, now)
    }
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
        let named = |limit: usize| self.each.iter().any(|each| *each.name == *self.desk.limits[limit].name);
        self.desk.stamp_named(&self.verdict, named).apply_to(headers);
        if let Some(wait) = self.retry_after() {
            headers.insert(RETRY_AFTER, whole_seconds(wait).into());
            headers.insert(RETRY_AFTER_MS, whole_ms(wait).into());
        }
    }
}

impl Charged {
    /// Gives all of it back: never more than if the call had not come. Nothing if the limits were replaced since, and nothing in
    /// leaky buckets.
    pub fn give_back(self) {
        let Some(desk) = self.by.in_force() else { return };
        desk.take_back(self.charges);
    }

    /// Charges what the call has really cost in place of what it was charged, `cost` in the limit of that name; or as much of
    /// it as is there. Says how much could not be charged in all limits together.
    ///
    /// If the limits were replaced since, what it was charged stays.
    pub fn settle(self, cost: impl Fn(&str) -> u64) -> u64 {
        let Some(desk) = self.by.in_force() else { return 0 };
        // Nobody takes in between what is given back.
        let running = desk.places.lock();
        let now = desk.now_ns();
        let mut missing = 0_u64;
        for (limit, receipt) in self.charges {
            let (Some(entry), Some(ask)) = (desk.limits.get(limit), self.asks.get(limit)) else { continue };
            entry.refund(receipt);
            let wanted = cost(&entry.name);
            let there = entry.peek(ask, 0, now).remaining();
            let paid = wanted.min(there);
            let _charged = entry.check(&Ask { key: ask.key.clone(), tier: ask.tier, cost: paid }, now);
            missing = missing.saturating_add(wanted - paid);
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
        let twice =
            limits.check(&[take("calls", "ann", 1), take("calls", "bob", 1)], true).await.unwrap_err();
        assert_eq!(twice, CheckError::Twice { limit: "calls".into() });
        assert_eq!(limits.check(&[], true).await.unwrap_err(), CheckError::Nothing);
        assert_eq!(left(&limits, "ann"), [3, 100]);
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
