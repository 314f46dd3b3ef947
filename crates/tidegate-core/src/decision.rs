//! What a limiter answers.

use core::time::Duration;

/// The answer to one call: allowed, rejected until an exact time from now, or never.
///
/// A rejection is not an error, and it changes no state.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::Decision;
///
/// let decision = Decision::Rejected {
///     retry_after: Duration::from_millis(1300),
///     remaining: 0,
///     reset_after: Duration::from_secs(5),
/// };
/// assert!(!decision.is_allowed());
/// // The whole-second form is rounded up, so it still keeps the promise.
/// assert_eq!(decision.retry_after_seconds(), Some(2));
/// ```
#[must_use = "a call that was rejected must not run"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The call may run, and its cost was charged.
    Allowed {
        /// How long the call has to wait before it starts. Zero for every algorithm but the leaky bucket, which
        /// gives a start time instead of a refusal.
        start_after: Duration,
        /// Whole tokens left after this call, rounded down.
        remaining: u64,
        /// Time until the limiter is as good as new if nobody calls, rounded up to a nanosecond.
        reset_after: Duration,
    },
    /// The call must not run now.
    Rejected {
        /// The exact wait, rounded up to a nanosecond: alone, a call at `now + retry_after` is allowed, and one
        /// nanosecond earlier it is not. [`Duration::MAX`] if it is longer than that, as only a debt can make it.
        retry_after: Duration,
        /// Whole tokens there now, rounded down: fewer than the cost.
        remaining: u64,
        /// Time until the limiter is as good as new if nobody calls, rounded up to a nanosecond.
        reset_after: Duration,
    },
    /// The cost is above the capacity: no wait can help.
    Never {
        /// The largest cost that can ever be allowed.
        capacity: u64,
    },
}

impl Decision {
    /// Whether the call may run.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }

    /// The exact wait of a rejection; `None` when the call is allowed or can never be.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rejected { retry_after, .. } => Some(*retry_after),
            Self::Allowed { .. } | Self::Never { .. } => None,
        }
    }

    /// The wait of a rejection in whole seconds, rounded up and at least 1, as HTTP's `Retry-After` wants it.
    #[must_use]
    pub const fn retry_after_seconds(&self) -> Option<u64> {
        match self.retry_after() {
            Some(wait) => {
                let up = wait.as_secs().saturating_add((wait.subsec_nanos() > 0) as u64);
                Some(if up == 0 { 1 } else { up })
            }
            None => None,
        }
    }

    /// How long an allowed call waits before it starts; zero otherwise.
    #[must_use]
    pub const fn start_after(&self) -> Duration {
        match self {
            Self::Allowed { start_after, .. } => *start_after,
            Self::Rejected { .. } | Self::Never { .. } => Duration::ZERO,
        }
    }

    /// Whole tokens left, rounded down; 0 for a call that can never be allowed.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        match self {
            Self::Allowed { remaining, .. } | Self::Rejected { remaining, .. } => *remaining,
            Self::Never { .. } => 0,
        }
    }

    /// The same decision seen `lag` earlier: every time in it is that much longer.
    pub(crate) fn seen_earlier(self, lag: Duration) -> Self {
        match self {
            Self::Allowed { start_after, remaining, reset_after } => Self::Allowed {
                // A call that may start at once needs no wait, whatever the clock says.
                start_after: if start_after.is_zero() {
                    start_after
                } else {
                    start_after.saturating_add(lag)
                },
                remaining,
                reset_after: if reset_after.is_zero() {
                    reset_after
                } else {
                    reset_after.saturating_add(lag)
                },
            },
            Self::Rejected { retry_after, remaining, reset_after } => Self::Rejected {
                retry_after: retry_after.saturating_add(lag),
                remaining,
                reset_after: reset_after.saturating_add(lag),
            },
            Self::Never { capacity } => Self::Never { capacity },
        }
    }
}
