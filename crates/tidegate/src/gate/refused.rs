//! Why a gate does not grant a call.

use std::io;
use std::time::Duration;

use tidegate_core::queue::Refusal;

/// Why a call was not granted. Nothing was charged, and it waits no more.
///
/// A `wait` counts from when the call joined. It is the least that would have been needed if those ahead had stayed:
/// exact for one token bucket with one key and no limit in flight.
///
/// ```
/// use tidegate::Gate;
///
/// let gate = Gate::new("1 per 5s".parse()?);
/// let _first = gate.try_acquire(1)?;
/// assert_eq!(
///     gate.try_acquire(1).unwrap_err().to_string().split_once("at least ").unwrap().0,
///     "not granted within 0ns, as it would have had to wait ",
/// );
/// assert_eq!(
///     gate.try_acquire(9).unwrap_err().to_string(),
///     "cost 9 exceeds the capacity 1 of the gate, so it can never be granted; raise the burst or lower the cost",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The cost is above the capacity: no wait can help.
    #[error(
        "cost {cost} exceeds the capacity {capacity} of {}, so it can never be granted; raise the burst or lower the cost",
        which(*limit)
    )]
    Never {
        /// The index of the limit: 0 is the gate's own, 1 the first of [`Builder::also`](super::Builder::also).
        limit: usize,
        /// The cost that was asked for.
        cost: u64,
        /// The largest cost that can ever be granted; 0 for a limit that the gate does not have.
        capacity: u64,
    },
    /// As many calls wait as may.
    #[error(
        "{max_waiting} calls wait already, and at most {max_waiting} may; this one would have had to wait at least {wait:?}; make fewer calls or raise `max_waiting`"
    )]
    QueueFull {
        /// How many calls may wait.
        max_waiting: usize,
        /// The wait that would have been needed.
        wait: Duration,
    },
    /// It could not be granted within the time that it may wait. This is said as soon as it is certain.
    ///
    /// If `wait` is not above `max_wait`, what was missing is something that no time can be named for: its turn among
    /// keys and priorities, or a place in flight.
    #[error(
        "not granted within {max_wait:?}, as {}; allow a longer wait or make fewer calls",
        why_late(*max_wait, *wait)
    )]
    Deadline {
        /// How long the call was willing to wait.
        max_wait: Duration,
        /// The wait that would have been needed.
        wait: Duration,
    },
    /// The gate is drained.
    #[error("the gate is being drained and takes no new calls")]
    Draining,
    /// The call has to wait, and the thread that would wake it could not be started.
    #[error(
        "the thread that serves the waiting line could not be started: {kind}; free some threads and call again"
    )]
    NoTimer {
        /// What the system said.
        kind: io::ErrorKind,
    },
}

impl Refused {
    /// The wait that would have been needed, if a wait can help and is known.
    #[must_use]
    pub const fn wait(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { wait, .. } | Self::Deadline { wait, .. } => Some(*wait),
            Self::Never { .. } | Self::Draining | Self::NoTimer { .. } => None,
        }
    }

    /// Whether the same call may be granted later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::QueueFull { .. } | Self::Deadline { .. } | Self::NoTimer { .. })
    }

    /// `waited` is how long the call waited before it was refused.
    pub(super) fn new(refusal: Refusal, waited: Duration, max_wait: Option<Duration>) -> Self {
        match refusal {
            Refusal::Never { limit, cost, capacity } => Self::Never { limit, cost, capacity },
            Refusal::QueueFull { max_waiting, wait } => {
                Self::QueueFull { max_waiting, wait: waited.saturating_add(wait) }
            }
            Refusal::Deadline { wait } => {
                Self::Deadline { max_wait: max_wait.unwrap_or_default(), wait: waited.saturating_add(wait) }
            }
            // A refusal that this version does not know can only be one to go away for.
            _ => Self::Draining,
        }
    }
}

fn which(limit: usize) -> String {
    match limit {
        0 => "the gate".to_owned(),
        also => format!("the gate's further limit {also}"),
    }
}

fn why_late(max_wait: Duration, wait: Duration) -> String {
    if wait > max_wait {
        format!("it would have had to wait at least {wait:?}")
    } else {
        "neither its turn nor a place in flight came in time".to_owned()
    }
}
