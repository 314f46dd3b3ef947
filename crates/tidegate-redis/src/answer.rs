//! What a shared limiter answers: the decision, and how it was made.

use tidegate::Decision;
use tidegate::shared::Made;

/// The answer of a [`SharedLimiter`](crate::SharedLimiter).
#[must_use = "a call that was rejected must not run"]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// What holds for the call. Waits are rounded up to a microsecond of the store's clock, and count from its decision:
    /// the time that the reply took is not taken off.
    pub decision: Decision,
    /// The limit that `decision` speaks of, as an index into the policy's limits: the one that rejected with the largest
    /// wait (the first, if they are the same microsecond), or the one with the fewest tokens left.
    pub limit: Option<usize>,
    /// The first limit in shadow that would have rejected the call, as far as it is known: where the store was not asked, and
    /// no local bucket, only a cost that can never be allowed is.
    pub shadow: Option<usize>,
    /// Whole tokens that are in each bucket after the decision, in the order of the policy; empty if the store was not asked.
    pub remaining: Vec<u64>,
    /// How it was made.
    pub made: Made,
}

impl Answer {
    /// Whether the call may run.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }
}
