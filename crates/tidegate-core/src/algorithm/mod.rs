//! The limiters: each a pure step from state, time and cost to a decision and a new state.
//!
//! | name | never more than | state |
//! | --- | --- | --- |
//! | [`token-bucket`](token_bucket) | `B + r·t` in any `t` | one number |
//! | [`leaky-bucket`](leaky_bucket) | `B + r·t` starts in any `t` | one number |
//! | [`fixed-window`](fixed_window) | `N` in an aligned window, `2N` across a boundary | two numbers |
//! | [`sliding-window`](sliding_window) | `N` by estimate, under `2N` in truth | three numbers |
//! | [`sliding-log`](sliding_log) | `N` in any window | up to `N` entries |
//! | [`unlimited`] (`none`) | anything | none |

mod any;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;
pub mod unlimited;
mod unwatched;

pub use any::{Algorithm, Kind, State, UnknownKind};
pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use unlimited::Unlimited;
pub use unwatched::Charged;

use core::fmt::Debug;
use core::time::Duration;

use crate::Decision;

/// One step of a limiter.
///
/// `now` is in nanoseconds since any fixed origin. It is expected not to go back; when it does, no algorithm creates
/// capacity, and [`Algorithm`], which remembers the last charge, does not punish either.
pub trait Step {
    /// What the limiter remembers; [`Self::fresh`] makes the first one.
    type State: Clone + Debug + PartialEq + Eq;

    /// The state of a limiter that was never called: everything is available.
    fn fresh(&self) -> Self::State;

    /// The decision for a call of `cost` at `now`, without charging it.
    ///
    /// Cost 0 is decided like any other cost and charges nothing.
    fn look(&self, state: &Self::State, now: u64, cost: u64) -> Decision;

    /// Charges `cost` at `now` without asking. After [`Self::look`] allowed it the bound holds; without, the limiter
    /// goes into debt, and later calls wait until it is paid. A cost of 0 changes nothing.
    fn charge(&self, state: &mut Self::State, now: u64, cost: u64);

    /// The most cost that can be allowed (for the leaky bucket: started) in any closed interval of length `span`;
    /// `None` when there is no bound.
    fn bound(&self, span: Duration) -> Option<u128>;

    /// Looks, and charges if that allowed it. A rejected call gets its state back as it was.
    #[inline]
    fn step(&self, mut state: Self::State, now: u64, cost: u64) -> (Self::State, Decision) {
        let decision = self.look(&state, now, cost);
        if decision.is_allowed() {
            self.charge(&mut state, now, cost);
        }
        (state, decision)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    //! The table form that each algorithm's tests use: a row is a time, a cost and what must come back.

    use super::*;

    /// What one call must be answered.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Row {
        now: u64,
        cost: u64,
        expected: Expected,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Expected {
        Allowed { start_after: u64, remaining: u64 },
        Rejected { retry_after: u64 },
        Never { capacity: u64 },
    }

    impl Row {
        /// At `now`, `cost` is allowed at once and leaves `remaining`.
        pub(crate) fn allowed(now: u64, cost: u64, remaining: u64) -> Self {
            Self::starts(now, cost, 0, remaining)
        }

        /// At `now`, `cost` is allowed, starts after a wait and leaves `remaining`.
        pub(crate) fn starts(now: u64, cost: u64, start_after: u64, remaining: u64) -> Self {
            Self { now, cost, expected: Expected::Allowed { start_after, remaining } }
        }

        /// At `now`, `cost` is rejected and has to wait.
        pub(crate) fn rejected(now: u64, cost: u64, retry_after: u64) -> Self {
            Self { now, cost, expected: Expected::Rejected { retry_after } }
        }

        /// At `now`, `cost` is above `capacity`.
        pub(crate) fn never(now: u64, cost: u64, capacity: u64) -> Self {
            Self { now, cost, expected: Expected::Never { capacity } }
        }
    }

    fn ns(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos()).unwrap()
    }

    /// Runs the rows in order from a fresh state; a rejected row must leave the state as it was.
    pub(crate) fn check_table<A: Step>(algorithm: &A, rows: &[Row]) {
        check_table_from(algorithm, algorithm.fresh(), rows);
    }

    /// Runs the rows in order from `state`.
    pub(crate) fn check_table_from<A: Step>(algorithm: &A, mut state: A::State, rows: &[Row]) {
        for row in rows {
            let (next, decision) = algorithm.step(state.clone(), row.now, row.cost);
            let got = match decision {
                Decision::Allowed { start_after, remaining, .. } => {
                    Expected::Allowed { start_after: ns(start_after), remaining }
                }
                Decision::Rejected { retry_after, .. } => Expected::Rejected { retry_after: ns(retry_after) },
                Decision::Never { capacity } => Expected::Never { capacity },
            };
            assert_eq!(got, row.expected, "{row:?}");
            if !decision.is_allowed() || row.cost == 0 {
                assert_eq!(next, state, "{row:?} changed the state");
            }
            state = next;
        }
    }
}
