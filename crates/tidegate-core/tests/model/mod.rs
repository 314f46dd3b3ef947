//! The reference: each algorithm written from the definition at the head of its file, in exact rational numbers.
//!
//! It is slow and has no trick: a bucket is a level, a log is a list. What it shares with the code under test is the
//! definitions and the types of the answer, and nothing else. All rounding is in one place, [`Model::look`].

mod buckets;
pub(crate) mod choices;
mod exact;
pub(crate) mod inputs;
mod windows;

use std::time::Duration;

use num_rational::{BigRational, Ratio};
use tidegate_core::algorithm::LeakyBucket;
use tidegate_core::{Algorithm, Decision, Kind, Quota};

pub(crate) use exact::Exact;

/// Fractions without a bound, for any input.
pub(crate) type Big = BigRational;
/// Fractions of machine numbers, for small worlds of which there are many.
pub(crate) type Small = Ratio<i64>;

/// An exact answer: times in nanoseconds from the instant that was asked about.
#[derive(Debug, Clone)]
pub(crate) enum Verdict<Q> {
    Allowed { start_after: Q, remaining: Q, reset_after: Q },
    Rejected { retry_after: Q, remaining: Q, reset_after: Q },
    Never { capacity: u64 },
}

/// One algorithm as its definition reads. Time never goes back here.
pub(crate) trait Definition<Q> {
    fn look(&self, now: &Q, cost: &Q) -> Verdict<Q>;
    fn charge(&mut self, now: &Q, cost: &Q);
    fn copy(&self) -> Box<dyn Definition<Q>>;
}

/// A definition, and the clamp of time that [`Algorithm`] promises: an earlier `now` counts as the last charge's.
pub(crate) struct Model<Q> {
    definition: Box<dyn Definition<Q>>,
    latest: u64,
}

impl<Q> Clone for Model<Q> {
    fn clone(&self) -> Self {
        Self { definition: self.definition.copy(), latest: self.latest }
    }
}

/// What is under test, as data: the reference and the code are both built from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) quota: Quota,
    /// For the leaky bucket: the cost that may wait, and the longest wait.
    pub(crate) queue: u64,
    pub(crate) max_wait: Option<Duration>,
}

impl Subject {
    pub(crate) fn new(kind: Kind, quota: Quota) -> Self {
        Self { kind, quota, queue: 0, max_wait: None }
    }

    pub(crate) fn queued(quota: Quota, queue: u64, max_wait: Option<Duration>) -> Self {
        Self { kind: Kind::LeakyBucket, quota, queue, max_wait }
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        if self.kind != Kind::LeakyBucket {
            return Algorithm::new(self.kind, self.quota);
        }
        let bucket = LeakyBucket::new(self.quota, self.queue);
        Algorithm::LeakyBucket(match self.max_wait {
            Some(max_wait) => bucket.with_max_wait(max_wait),
            None => bucket,
        })
    }

    pub(crate) fn model<Q: Exact + 'static>(&self) -> Model<Q> {
        let definition: Box<dyn Definition<Q>> = match self.kind {
            Kind::Unlimited => Box::new(Unlimited),
            Kind::FixedWindow => Box::new(windows::FixedWindow::new(self.quota)),
            Kind::SlidingWindow => Box::new(windows::SlidingWindow::new(self.quota)),
            Kind::SlidingLog => Box::new(windows::SlidingLog::new(self.quota)),
            Kind::TokenBucket => Box::new(buckets::TokenBucket::new(self.quota)),
            Kind::LeakyBucket => Box::new(buckets::LeakyBucket::new(self.quota, self.queue, self.max_wait)),
            kind => panic!("no reference for {kind}"),
        };
        Model { definition, latest: 0 }
    }

    /// The largest `remaining` there can be: everything that can be accepted at one instant.
    pub(crate) fn capacity(&self) -> u64 {
        match self.kind {
            Kind::Unlimited => u64::MAX,
            Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog => self.quota.count(),
            _ => self.quota.burst().saturating_add(self.queue),
        }
    }

    /// The largest cost that is ever allowed.
    pub(crate) fn largest_cost(&self) -> u64 {
        if self.kind == Kind::LeakyBucket { self.quota.burst() } else { self.capacity() }
    }
}

impl<Q: Exact> Model<Q> {
    /// The exact answer, rounded against the caller: waits up to a nanosecond, what remains down to a token.
    pub(crate) fn look(&self, now: u64, cost: u64) -> Decision {
        let time = now.max(self.latest);
        let lag = u128::from(time - now);
        // What is true already stays true; a wait is told in the caller's own time.
        let wait = |wait: &Q| match wait.up() {
            0 => Duration::ZERO,
            ns => duration(ns.saturating_add(lag)),
        };
        let tokens = |tokens: &Q| u64::try_from(tokens.down()).unwrap_or(u64::MAX);
        match self.definition.look(&Q::whole(time), &Q::whole(cost)) {
            Verdict::Allowed { start_after, remaining, reset_after } => Decision::Allowed {
                start_after: wait(&start_after),
                remaining: tokens(&remaining),
                reset_after: wait(&reset_after),
            },
            Verdict::Rejected { retry_after, remaining, reset_after } => Decision::Rejected {
                retry_after: wait(&retry_after),
                remaining: tokens(&remaining),
                reset_after: wait(&reset_after),
            },
            Verdict::Never { capacity } => Decision::Never { capacity },
        }
    }

    /// Charges without asking. A cost of 0 is no charge.
    pub(crate) fn charge(&mut self, now: u64, cost: u64) {
        if cost > 0 {
            self.latest = now.max(self.latest);
            self.definition.charge(&Q::whole(self.latest), &Q::whole(cost));
        }
    }

    pub(crate) fn step(&mut self, now: u64, cost: u64) -> Decision {
        let decision = self.look(now, cost);
        if decision.is_allowed() {
            self.charge(now, cost);
        }
        decision
    }
}

fn duration(ns: u128) -> Duration {
    if ns > Duration::MAX.as_nanos() { Duration::MAX } else { Duration::from_nanos_u128(ns) }
}

struct Unlimited;

impl<Q: Exact> Definition<Q> for Unlimited {
    fn look(&self, _now: &Q, _cost: &Q) -> Verdict<Q> {
        Verdict::Allowed { start_after: Q::zero(), remaining: Q::whole(u64::MAX), reset_after: Q::zero() }
    }

    fn charge(&mut self, _now: &Q, _cost: &Q) {}

    fn copy(&self) -> Box<dyn Definition<Q>> {
        Box::new(Self)
    }
}
