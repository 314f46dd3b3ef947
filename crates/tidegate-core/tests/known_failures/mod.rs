//! Faults that real rate limiters had, as inputs: the comment says what went wrong there, the test what is right.

mod boundaries;
mod clocks;
mod counting;
mod extremes;
mod rounding;
mod several_limits;
mod waiting;

use std::time::Duration;

use tidegate_core::algorithm::{LeakyBucket, SlidingLog, TokenBucket};
use tidegate_core::{Algorithm, Decision, Kind, Limit, Mode, Policy, Quota, QuotaError, Step};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const DAY: u64 = 86_400 * S;
const YEAR: u64 = 365 * DAY;

/// All but `none`, which refuses nothing.
const LIMITING: [Kind; 5] =
    [Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog, Kind::TokenBucket, Kind::LeakyBucket];

fn quota(text: &str) -> Quota {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn ms(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

/// A limiter and its state, called one time after the other.
struct Caller<A: Step> {
    algorithm: A,
    state: A::State,
}

impl<A: Step> Caller<A> {
    fn new(algorithm: A) -> Self {
        Self { state: algorithm.fresh(), algorithm }
    }

    fn call(&mut self, now: u64, cost: u64) -> Decision {
        let (next, decision) = self.algorithm.step(self.state.clone(), now, cost);
        self.state = next;
        decision
    }

    /// Unit calls at `now` until one is refused: how many were allowed, and the wait of the refused one.
    fn until_refused(&mut self, now: u64) -> (u64, Option<Duration>) {
        let mut allowed = 0;
        loop {
            let decision = self.call(now, 1);
            if !decision.is_allowed() {
                return (allowed, decision.retry_after());
            }
            allowed += 1;
        }
    }
}

fn bucket(text: &str) -> Caller<Algorithm> {
    Caller::new(Algorithm::new(Kind::TokenBucket, quota(text)))
}

fn policy(limits: &[(&str, Kind, &str)]) -> Policy {
    let limit = |(name, kind, text): &(&str, Kind, &str)| Limit {
        name: (*name).into(),
        algorithm: Algorithm::new(*kind, quota(text)),
        mode: Mode::Enforce,
    };
    Policy::new(limits.iter().map(limit).collect())
}
