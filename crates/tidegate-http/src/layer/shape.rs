//! What the response fields say of a limit: its size, and how its numbers are rounded.

use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::{Algorithm, Decision, Kind, Step};

use super::desk::Shown;
use crate::fields::whole_seconds;

/// The size of a limit, and how to tell when there is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// `q`: the largest cost that can be allowed.
    pub(super) capacity: u64,
    /// `w`: the whole seconds in which that comes, rounded up and at least 1, so that `q/w` is not above the rate.
    pub(super) window_seconds: u64,
    refill: Refill,
    /// The most that is shown as left.
    shown_max: u64,
}

/// How tokens come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refill {
    /// One after the other: a token is `.0` units, a nanosecond brings `.1`.
    Steady(u64, u64),
    /// In windows: many at once.
    Windows,
}

impl Shape {
    /// `None` for an algorithm that limits nothing.
    pub(super) fn of(algorithm: &Algorithm, shown_max: Option<u64>) -> Option<Self> {
        if algorithm.kind() == Kind::Unlimited {
            return None;
        }
        let fresh = algorithm.fresh();
        let capacity = algorithm.look(&fresh, 0, 0).remaining();
        let Decision::Allowed { reset_after, .. } = algorithm.look(&fresh, 0, capacity) else { return None };
        let steady =
            |bucket: &TokenBucket| Refill::Steady(bucket.token_units().get(), bucket.rate_units().get());
        let (fill, refill) = match algorithm {
            Algorithm::TokenBucket(bucket) => (reset_after, steady(bucket)),
            // In a sliding window the calls of one window weigh until the end of the next.
            Algorithm::SlidingWindow(_) => (reset_after / 2, Refill::Windows),
            _ => (reset_after, Refill::Windows),
        };
        let window_seconds = whole_seconds(fill);
        Some(Self { capacity, window_seconds, refill, shown_max: shown_max.unwrap_or(u64::MAX) })
    }

    /// The numbers after a decision; `peek` decides another cost at the same time without charging it.
    ///
    /// In a window, what is left at its end could be spent beside all of the next one. A client that divides `r` by `t`
    /// must not be told that: what is shown is at most the part of the quota that the part of the window is.
    pub(super) fn shown(&self, decision: &Decision, peek: impl Fn(u64) -> Decision) -> Shown {
        let (wait, reset_after) = match decision {
            Decision::Rejected { retry_after, reset_after, .. } => (Some(*retry_after), *reset_after),
            Decision::Allowed { remaining, reset_after, .. } if *remaining < self.capacity => {
                (self.next(*remaining, *reset_after, peek), *reset_after)
            }
            Decision::Allowed { reset_after, .. } => (None, *reset_after),
            Decision::Never { .. } => (None, Duration::ZERO),
        };
        let seconds = wait.map(whole_seconds);
        let mut remaining = decision.remaining().min(self.shown_max);
        if let (Refill::Windows, Some(seconds)) = (self.refill, seconds) {
            let part = u128::from(self.capacity) * u128::from(seconds);
            let part = part.div_ceil(u128::from(self.window_seconds));
            remaining = remaining.min(u64::try_from(part).unwrap_or(u64::MAX));
        }
        let reset_seconds = if reset_after.is_zero() { 0 } else { whole_seconds(reset_after) };
        Shown { is_known: true, tier: 0, remaining, seconds, reset_seconds }
    }

    /// The time until there is one more than `remaining`.
    fn next(
        &self,
        remaining: u64,
        reset_after: Duration,
        peek: impl Fn(u64) -> Decision,
    ) -> Option<Duration> {
        match self.refill {
            // The bucket is full after `reset_after`, and the tokens after the next one take their time of that. Both are
            // rounded against the caller, a nanosecond at most.
            Refill::Steady(token, rate) => {
                let after = u128::from(self.capacity.saturating_sub(remaining).saturating_sub(1))
                    * u128::from(token)
                    / u128::from(rate);
                let wait = reset_after.as_nanos().saturating_sub(after);
                Some(Duration::from_nanos_u128(wait))
            }
            Refill::Windows => match peek(remaining.saturating_add(1)) {
                Decision::Rejected { retry_after, .. } => Some(retry_after),
                // The next window has begun meanwhile.
                Decision::Allowed { .. } => Some(Duration::ZERO),
                Decision::Never { .. } => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kind: Kind, quota: &str) -> (Algorithm, Shape) {
        let algorithm = Algorithm::new(kind, quota.parse().unwrap());
        (algorithm, Shape::of(&algorithm, None).unwrap())
    }

    #[test]
    fn q_over_w_is_not_above_the_rate() {
        for (kind, quota, capacity, seconds) in [
            (Kind::TokenBucket, "10/s burst 20", 20, 2),
            (Kind::TokenBucket, "3/s burst 10", 10, 4),
            (Kind::TokenBucket, "1000/s burst 5", 5, 1),
            (Kind::LeakyBucket, "10/s burst 20", 20, 2),
            (Kind::FixedWindow, "100/min", 100, 60),
            (Kind::SlidingWindow, "100/min", 100, 60),
            (Kind::SlidingLog, "100/min", 100, 60),
        ] {
            let shape = shape(kind, quota).1;
            assert_eq!((shape.capacity, shape.window_seconds), (capacity, seconds), "{kind} {quota}");
        }
        assert_eq!(Shape::of(&Algorithm::new(Kind::Unlimited, "1/s".parse().unwrap()), None), None);
    }

    #[test]
    fn t_is_when_there_is_more() {
        let second = 1_000_000_000;
        for (kind, quota, now, cost, remaining, seconds) in [
            // A token in 100 ms, in 5 s, in 4.5 s.
            (Kind::TokenBucket, "10/s burst 20", 0, 1, 19, Some(1)),
            (Kind::TokenBucket, "1 per 5s burst 3", 0, 2, 1, Some(5)),
            (Kind::TokenBucket, "10/s burst 20", 0, 0, 20, None),
            (Kind::TokenBucket, "10000 per 1000s", 0, 1, 9999, Some(1)),
            // Ten seconds before the end of the window there is a hundredth of its quota to show.
            (Kind::FixedWindow, "10000 per 1000s", 990 * second, 1, 100, Some(10)),
            (Kind::FixedWindow, "10000 per 1000s", 0, 1, 9999, Some(1000)),
            (Kind::SlidingLog, "5/min", 0, 2, 3, Some(60)),
        ] {
            let (algorithm, shape) = shape(kind, quota);
            let (state, decision) = algorithm.step(algorithm.fresh(), now, cost);
            let shown = shape.shown(&decision, |cost| algorithm.look(&state, now, cost));
            assert_eq!((shown.remaining, shown.seconds), (remaining, seconds), "{kind} {quota} {cost}");
        }
    }

    #[test]
    fn t_of_a_bucket_is_true_to_the_nanosecond() {
        for quota in ["3/s burst 10", "7 per 11s burst 5", "10/s burst 20", "1 per 5s burst 3"] {
            let (algorithm, shape) = shape(Kind::TokenBucket, quota);
            let mut state = algorithm.fresh();
            for now in (0..40).map(|step| step * 123_456_789) {
                let decision;
                (state, decision) = algorithm.step(state, now, 1);
                let Decision::Allowed { remaining, reset_after, .. } = decision else { continue };
                let told = shape.next(remaining, reset_after, |_| decision).unwrap();
                let exact = algorithm.look(&state, now, remaining + 1).retry_after().unwrap();
                let late = told.checked_sub(exact).unwrap();
                assert!(late.as_nanos() <= 1, "{quota} at {now}: {told:?} for {exact:?}");
            }
        }
    }
}
