//! What a shared limiter answers: the decision, and how it was made.

use tidegate::Decision;

/// How a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Made {
    /// By the store, on the one state that all share, or by the quota alone (a cost that can never be allowed).
    Exact,
    /// From a rejection by the store a moment ago, which holds for this call too: a rejection.
    Remembered,
    /// From tokens that this process had taken out of the bucket before: an allowed call.
    Leased,
    /// By the local bucket of [`OnFailure::Local`](crate::OnFailure::Local).
    Local,
    /// Allowed without the store, as [`OnFailure::Open`](crate::OnFailure::Open) says.
    Open,
    /// Rejected without the store, as [`OnFailure::Closed`](crate::OnFailure::Closed) says.
    Closed,
}

impl Made {
    /// The word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Remembered => "remembered",
            Self::Leased => "leased",
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

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
