//! Where all clones of a layer decide: one state for all limits, and a lock for what must happen together.
//!
//! A single limit is decided by its limiter alone, without this lock. With several limits or places in flight, an
//! allowed request looks at all of them and is charged in all of them under one lock, so it is charged in all or in none
//! whatever their keys. A request that a quota refuses changes nothing and never takes the lock; but a key whose quota is another
//! one than when it was charged is counted by that from then on, or the wait that it is told would not be true.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;
use tidegate::{Decision, Policy, PolicyDecision, Receipt};

use super::key::{Key, KeyBy, RequestHead, Who};
use super::limit::{Entry, LayerClock};
use super::observe::{How, Observed, ObserverFn, Outcome};
use super::places::{Full, Permit, Places};
use super::sharing::Sharing;

pub(super) type CostFn = Arc<dyn for<'a> Fn(RequestHead<'a>) -> u64 + Send + Sync>;
pub(super) type ExemptFn = Arc<dyn for<'a> Fn(RequestHead<'a>) -> bool + Send + Sync>;

/// What all clones of a layer and its services share.
pub(super) struct Desk {
    pub(super) limits: Box<[Entry]>,
    /// The names and modes of the limits, to make one answer of theirs.
    pub(super) policy: Policy,
    pub(super) clock: LayerClock,
    pub(super) who: Who,
    pub(super) places: Arc<Places>,
    pub(super) max_in_flight: Option<NonZeroU64>,
    pub(super) per_key: Option<PerKey>,
    pub(super) exempt: Option<ExemptFn>,
    pub(super) preflights_count: bool,
    /// The field `RateLimit-Policy`, if the fields are sent.
    pub(super) policy_field: Option<HeaderValue>,
    pub(super) legacy_fields: bool,
    pub(super) observer: Option<ObserverFn>,
    /// Who decides in the place of the tables.
    pub(super) sharing: Option<Sharing>,
    /// Whether requests that nobody served are taken back.
    pub(super) takes_back: bool,
    pub(super) counters: Arc<Counters>,
}

/// The limit in flight of each key.
pub(super) struct PerKey {
    pub(super) by: KeyBy,
    pub(super) max: NonZeroU64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) allowed: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) shed: AtomicU64,
    pub(super) shadow: AtomicU64,
    pub(super) without_peer: AtomicU64,
    pub(super) not_served: AtomicU64,
    /// Requests that wait for their turn now.
    pub(super) waiting: AtomicU64,
}

impl Counters {
    fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Allowed | Outcome::Queued(_) => &self.allowed,
            Outcome::Rejected | Outcome::Never | Outcome::KeyFull => &self.rejected,
            Outcome::Shed | Outcome::Unanswered => &self.shed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// One for each limit: most layers and calls have one, for which nothing is allocated. More would have to be moved with it.
pub(super) type Few<T> = SmallVec<[T; 1]>;

/// What one request asks of one limit.
#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    pub(super) key: Key<'a>,
    /// Which of the limit's quotas its key has.
    pub(super) tier: usize,
    pub(super) cost: u64,
}

impl Ask<'_> {
    pub(super) fn into_owned(self) -> Ask<'static> {
        Ask { key: self.key.into_owned(), tier: self.tier, cost: self.cost }
    }
}

/// What was decided about one request.
pub(super) enum Decided {
    /// The only limit allows it: most requests of most servers, so it is kept short.
    Alone(Alone),
    Verdict(Verdict),
}

/// What goes with a request that the only limit allows.
pub(super) struct Alone {
    /// How long it has to wait.
    pub(super) wait: Duration,
    /// The numbers of the limit, if they are shown.
    pub(super) shown: Option<Shown>,
    pub(super) permit: Option<Permit>,
    pub(super) charges: Charges,
}

/// What a request was charged in limits by their index, to be taken back if nobody serves it.
pub(super) type Charges = Vec<(usize, Receipt)>;

/// The answer to one request.
#[derive(Debug)]
pub(super) struct Verdict {
    /// What is to be said of each limit.
    pub(super) shown: Few<Shown>,
    /// The decision of all limits.
    pub(super) answer: PolicyDecision,
    /// The cost in the limit that the answer speaks of.
    pub(super) cost: u64,
    /// Which of that limit's quotas its key has.
    pub(super) tier: usize,
    /// What each limit decided, unless all allow the request and nobody asks.
    pub(super) decisions: Few<Decision>,
    /// Why there is no place in flight, if the limits allow the request.
    pub(super) full: Option<Full>,
    /// The places that the key has left.
    pub(super) free: Option<u64>,
    pub(super) permit: Option<Permit>,
    pub(super) charges: Charges,
}

/// The numbers of one limit after a request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shown {
    /// Whether there is something to show: not of a limit that limits nothing, nor of one that was not asked.
    pub(super) is_known: bool,
    /// Which of the limit's quotas they are of.
    pub(super) tier: usize,
    pub(super) remaining: u64,
    /// Whole seconds until there is more; `None` when nothing is missing.
    pub(super) seconds: Option<u64>,
    /// Whole seconds until all is there.
    pub(super) reset_seconds: u64,
}

impl Verdict {
    pub(super) const fn is_allowed(&self) -> bool {
        self.answer.decision.is_allowed() && self.full.is_none()
    }

    /// When the shared buckets will be tried again, if that is why it is refused.
    pub(super) const fn unanswered(&self) -> Option<Duration> {
        match self.full {
            Some(Full::Unanswered(wait)) => Some(wait),
            _ => None,
        }
    }

    pub(super) const fn outcome(&self) -> Outcome {
        match (self.full, self.answer.decision) {
            (Some(Full::Server), _) => Outcome::Shed,
            (Some(Full::Unanswered(_)), _) => Outcome::Unanswered,
            (Some(Full::Key), _) => Outcome::KeyFull,
            (None, Decision::Allowed { start_after, .. }) => started(start_after),
            (None, Decision::Rejected { .. }) => Outcome::Rejected,
            (None, Decision::Never { .. }) => Outcome::Never,
        }
    }
}

const fn started(after: Duration) -> Outcome {
    if after.is_zero() { Outcome::Allowed } else { Outcome::Queued(after) }
}

impl Desk {
    /// The limit of that name.
    pub(super) fn limit(&self, name: &str) -> Option<&Entry> {
        self.limits.iter().find(|entry| &*entry.name == name)
    }

    pub(super) fn decide(&self, head: RequestHead<'_>) -> Decided {
        let asked = self.observer.is_some().then(|| self.now_ns());
        match &*self.limits {
            [entry] if !self.has_places() => self.alone(entry, &entry.ask(head), asked),
            limits => {
                let asks: Few<Ask<'_>> = limits.iter().map(|entry| entry.ask(head)).collect();
                self.decided(&asks, self.together(&asks, self.place_key(head)), asked)
            }
        }
    }

    /// Whose places a request needs, if keys have places.
    pub(super) fn place_key(&self, head: RequestHead<'_>) -> Option<u64> {
        let per_key = self.per_key.as_ref()?;
        Some(self.places.hash(&per_key.by.of(head).unwrap_or(Key::everyone())))
    }

    /// Counts a decision, and tells who wants to know of it.
    fn decided(&self, asks: &[Ask<'_>], verdict: Verdict, asked: Option<u64>) -> Decided {
        self.note(asks, &verdict, asked, None);
        Decided::Verdict(verdict)
    }

    /// Counts a decision, and tells who wants to know of it, and if others decided, how.
    pub(super) fn note(&self, asks: &[Ask<'_>], verdict: &Verdict, asked: Option<u64>, how: Option<How<'_>>) {
        let outcome = verdict.outcome();
        self.counters.count(outcome);
        let (limit, shadow) = (verdict.answer.limit, verdict.answer.shadow);
        if shadow.is_some() {
            self.counters.shadow.fetch_add(1, Ordering::Relaxed);
        }
        self.tell(asks, &verdict.decisions, outcome, (limit, shadow), asked, how);
    }

    fn tell(
        &self,
        asks: &[Ask<'_>],
        decisions: &[Decision],
        outcome: Outcome,
        limits: (Option<usize>, Option<usize>),
        asked: Option<u64>,
        how: Option<How<'_>>,
    ) {
        let (Some(observer), Some(asked)) = (&self.observer, asked) else { return };
        let took = Duration::from_nanos(self.now_ns().saturating_sub(asked));
        observer(&Observed::new(self, asks, decisions, outcome, limits, took, how));
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.clock.now_ns()
    }

    pub(super) const fn counts_in_flight(&self) -> bool {
        self.has_places() || self.observer.is_some()
    }

    const fn has_places(&self) -> bool {
        self.max_in_flight.is_some() || self.per_key.is_some()
    }

    /// One limit: its limiter looks and charges in one step.
    fn alone(&self, entry: &Entry, ask: &Ask<'_>, asked: Option<u64>) -> Decided {
        let now = self.now_ns();
        let decision = entry.check(ask, now);
        let asks = std::slice::from_ref(ask);
        let Decision::Allowed { start_after, .. } = decision else {
            return self.decided(asks, self.verdict(asks, &[decision], now), asked);
        };
        let shown = self.shows().then(|| entry.shown(ask, &decision, now));
        let outcome = started(start_after);
        self.counters.count(outcome);
        self.tell(asks, &[decision], outcome, (Some(0), None), asked, None);
        let permit = self.counts_in_flight().then(|| {
            let entered = self.places.lock().enter(None);
            Permit::new(Arc::clone(&self.places), entered)
        });
        let charges = self.charges(asks, &[decision], now);
        Decided::Alone(Alone { wait: start_after, shown, permit, charges })
    }

    /// Whether responses carry fields about the limits.
    pub(super) const fn shows(&self) -> bool {
        self.policy_field.is_some() || self.legacy_fields
    }

    /// Several limits, or places: all are looked at, then all are charged, or none.
    fn together(&self, asks: &[Ask<'_>], key: Option<u64>) -> Verdict {
        let now = self.now_ns();
        let looks = self.look(asks, now);
        if !self.combine(&looks).decision.is_allowed() {
            return self.refused(asks, &looks, now);
        }

        let mut running = self.places.lock();
        let now = self.now_ns();
        let looks = self.look(asks, now);
        if !self.combine(&looks).decision.is_allowed() {
            drop(running);
            return self.refused(asks, &looks, now);
        }
        if let Err(full) = running.look(key) {
            let free = key.map(|key| running.free(key));
            drop(running);
            return Verdict { full: Some(full), free, ..self.not_charged(asks, &looks, now) };
        }
        // Nobody else charges these limiters, so what was allowed a moment ago at the same time is allowed still, unless
        // the limits are replaced just now.
        let charged: Few<Decision> =
            self.limits.iter().zip(asks).map(|(entry, ask)| entry.check(ask, now)).collect();
        if !self.combine(&charged).decision.is_allowed() {
            drop(running);
            self.take_back(self.receipts(asks, &charged, now));
            return self.verdict(asks, &charged, now);
        }
        let counts = self.counts_in_flight();
        let entered = if counts { running.enter(key) } else { None };
        let free = key.map(|key| running.free(key));
        drop(running);
        let permit = counts.then(|| Permit::new(Arc::clone(&self.places), entered));
        let charges = self.charges(asks, &charged, now);
        Verdict { permit, free, charges, ..self.verdict(asks, &charged, now) }
    }

    /// The verdict for a request that was only looked at.
    fn refused(&self, asks: &[Ask<'_>], looks: &[Decision], now: u64) -> Verdict {
        self.carry_over(asks, now);
        self.verdict(asks, looks, now)
    }

    /// Has the keys counted by the quotas that they have, where nothing is charged.
    pub(super) fn carry_over(&self, asks: &[Ask<'_>], now: u64) {
        for (entry, ask) in self.limits.iter().zip(asks) {
            entry.carry_over(ask, now);
        }
    }

    fn charges(&self, asks: &[Ask<'_>], decisions: &[Decision], now: u64) -> Charges {
        if self.takes_back { self.receipts(asks, decisions, now) } else { Charges::new() }
    }

    fn receipts(&self, asks: &[Ask<'_>], decisions: &[Decision], now: u64) -> Charges {
        let charged = self.limits.iter().zip(asks).zip(decisions).enumerate();
        let receipt = |(limit, ((entry, ask), decision)): (usize, ((&Entry, &Ask<'_>), &Decision))| {
            Some((limit, entry.receipt(ask, now, decision)?))
        };
        charged.filter_map(receipt).collect()
    }

    /// Takes back what a request was charged that nobody has served.
    pub(super) fn not_served(&self, charges: Charges) {
        self.counters.not_served.fetch_add(1, Ordering::Relaxed);
        self.take_back(charges);
    }

    pub(super) fn take_back(&self, charges: Charges) {
        for (limit, receipt) in charges {
            self.limits[limit].refund(receipt);
        }
    }

    pub(super) fn look(&self, asks: &[Ask<'_>], now: u64) -> Few<Decision> {
        self.limits.iter().zip(asks).map(|(entry, ask)| entry.peek(ask, ask.cost, now)).collect()
    }

    pub(super) fn combine(&self, decisions: &[Decision]) -> PolicyDecision {
        self.policy.combine(|limit| decisions[limit])
    }

    /// The verdict from the decisions of the limits, which have charged the request if all allow it.
    pub(super) fn verdict(&self, asks: &[Ask<'_>], decisions: &[Decision], now: u64) -> Verdict {
        let answer = self.combine(decisions);
        self.seen(answer, asks, decisions, answer.decision.is_allowed(), now)
    }

    /// The verdict for a request that no limit has charged.
    fn not_charged(&self, asks: &[Ask<'_>], decisions: &[Decision], now: u64) -> Verdict {
        self.seen(self.combine(decisions), asks, decisions, false, now)
    }

    fn seen(
        &self,
        answer: PolicyDecision,
        asks: &[Ask<'_>],
        decisions: &[Decision],
        charged: bool,
        now: u64,
    ) -> Verdict {
        let mut verdict = Verdict::of(answer, asks);
        if !answer.decision.is_allowed() || self.observer.is_some() {
            verdict.decisions = Few::from_slice(decisions);
        }
        if !self.shows() {
            return verdict;
        }
        // What is left after a request that was not charged is not what the decision said would be.
        let left =
            self.limits.iter().zip(asks).zip(decisions).map(|((entry, ask), decision)| match decision {
                Decision::Rejected { .. } => *decision,
                Decision::Allowed { .. } if charged => *decision,
                Decision::Allowed { .. } | Decision::Never { .. } => entry.peek(ask, 0, now),
            });
        let shown = left.zip(self.limits.iter().zip(asks));
        verdict.shown = shown.map(|(left, (entry, ask))| entry.shown(ask, &left, now)).collect();
        verdict
    }
}

impl Verdict {
    pub(super) fn of(answer: PolicyDecision, asks: &[Ask<'_>]) -> Self {
        Self {
            shown: Few::new(),
            answer,
            cost: answer.limit.map_or(0, |limit| asks[limit].cost),
            tier: answer.limit.map_or(0, |limit| asks[limit].tier),
            decisions: Few::new(),
            full: None,
            free: None,
            permit: None,
            charges: Charges::new(),
        }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("limits", &self.limits)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_in_flight_per_key", &self.per_key.as_ref().map(|per_key| per_key.max))
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
