//! The port to buckets that many processes share, such as those of `tidegate-redis` on a server.
//!
//! Whoever decides calls by tables of its own can be given [`SharedBuckets`] in their place: a [`Gate`](crate::Gate), the layer of `tidegate-http`,
//! and what you write. What the port says of a call is what each bucket says; which limit binds follows from
//! [`Policy::combine`](crate::Policy::combine), as everywhere. What to do without an answer is for the asker, who has
//! chosen an [`OnFailure`].

use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::algorithm::TokenBucket;

use crate::{Algorithm, Decision, Mode, Quota, QuotaError};

/// Buckets that many processes share.
pub trait SharedBuckets: fmt::Debug + Send + Sync {
    /// Whether a limit of this name and algorithm can have such buckets.
    ///
    /// # Errors
    ///
    /// One that cannot.
    fn accepts(&self, limit: &str, algorithm: &Algorithm) -> Result<(), Unsuited>;

    /// Whether a call can be decided in buckets of several keys at once; if not, all its takes have one key.
    fn spans_keys(&self) -> bool;

    /// Decides a call, and charges it in all of its buckets or in none.
    ///
    /// It answers in bounded time, with an error if need be. The limits were accepted, and no bucket is there twice.
    ///
    /// # Cancel safety
    ///
    /// A call whose future is dropped before it is ready may have been charged or not.
    fn decide(&self, call: SharedCall) -> Deciding;
}

/// The answer to come.
pub type Deciding = Pin<Box<dyn Future<Output = Result<SharedAnswer, Unanswered>> + Send>>;

/// One call: what it takes from which buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedCall {
    /// From each bucket.
    pub takes: Vec<SharedTake>,
    /// Whether it is charged if it is allowed, or only looked at.
    pub charge: bool,
}

/// What a call takes from one bucket: that of a key in a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedTake {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// Whose bucket it is.
    pub key: Box<[u8]>,
    /// The quota that the key has now. A bucket that was charged under another one is as full in proportion.
    pub algorithm: Algorithm,
    /// In tokens.
    pub cost: u64,
    /// Whether the bucket refuses, or only says that it would.
    pub mode: Mode,
}

/// What the buckets say to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedAnswer {
    /// Of each take; `None` where the bucket was not asked, since another was known to refuse the call.
    pub each: Vec<Option<Told>>,
    /// How it was decided.
    pub made: Made,
}

/// What one bucket says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// What holds for the call in this bucket alone.
    pub decision: Decision,
    /// What a call of cost 0 is told after it, whether it was charged or not; `None` if that is not known.
    pub left: Option<Decision>,
}

/// Nothing is known about a call: it may have been charged or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// When there will be another try to reach the buckets, for those who are told to come back.
    pub retry_after: Duration,
}

/// Why a limit cannot have shared buckets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsuited(pub Box<str>);

/// How a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Made {
    /// On the one state that all share, or by the quota alone (a cost that can never be allowed).
    Exact,
    /// From a rejection a moment ago, which holds for this call too: a rejection.
    Remembered,
    /// From tokens that this process had taken out of the bucket before: an allowed call.
    Leased,
    /// By the local bucket of [`OnFailure::Local`].
    Local,
    /// Allowed without the shared state, as [`OnFailure::Open`] says.
    Open,
    /// Rejected without the shared state, as [`OnFailure::Closed`] says.
    Closed,
}

impl Made {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Exact, Self::Remembered, Self::Leased, Self::Local, Self::Open, Self::Closed];

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

/// What is answered when the shared buckets do not answer in time, or cannot. There is no default: a wrong one costs money
/// or an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Every call is allowed. For limits that protect a service which would rather be loaded than away.
    Open,
    /// Every call is rejected, until there is another try to reach the buckets. For budgets that cost money.
    Closed,
    /// Each machine goes on with a bucket of its own, of a share of the rate and of the burst, which is full when it is
    /// first used. For as long as the shared ones are away, `n` machines together allow at most the quota, and once their
    /// bursts.
    Local {
        /// How many machines there are at most: each has the share `1/machines`, rounded down, and a burst of at least 1.
        machines: NonZeroU32,
        /// For how many keys that have a debt there is room, as in [`Limiter::new`](crate::Limiter::new).
        keys: usize,
    },
}

/// The share of one of so many machines: `1/machines` of the rate, and of the burst rounded down, but at least 1.
///
/// # Errors
///
/// A share that is too slow to be a quota.
///
/// ```
/// use tidegate::shared::share;
/// use tidegate::{Quota, algorithm::TokenBucket};
///
/// let whole = TokenBucket::new("7/s burst 7".parse()?);
/// assert_eq!(share(&whole, 3.try_into().unwrap())?, "7 per 3s burst 2".parse()?);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub fn share(bucket: &TokenBucket, machines: NonZeroU32) -> Result<Quota, QuotaError> {
    let token: NonZeroU64 = bucket.token_units();
    let per = Duration::from_nanos(token.get()).checked_mul(machines.get()).unwrap_or(Duration::MAX);
    let burst = (bucket.burst() / u64::from(machines.get())).max(1);
    Quota::new(bucket.rate_units().get(), per)?.with_burst(burst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(quota: &str, machines: u32) -> Result<Quota, QuotaError> {
        share(&TokenBucket::new(quota.parse().unwrap()), machines.try_into().unwrap())
    }

    #[test]
    fn a_share_is_of_rate_and_burst() {
        for (quota, machines, expected) in [
            ("100/s burst 50", 4, "25/s burst 12"),
            ("100/s burst 50", 1, "100/s burst 50"),
            ("1/s burst 2", 8, "1 per 8s burst 1"),
            ("7/s burst 7", 3, "7 per 3s burst 2"),
        ] {
            let expected = TokenBucket::new(expected.parse().unwrap());
            assert_eq!(TokenBucket::new(shared(quota, machines).unwrap()), expected, "{quota} / {machines}");
        }
    }

    #[test]
    fn a_share_that_is_too_slow_is_an_error() {
        assert!(shared("1 per 30000w", 1000).is_err());
    }
}
