//! What to answer when the store does not.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::{Algorithm, Decision, Kind, Limit, Limiter, Policy, Quota};

use crate::Error;

/// What a limiter answers when the store does not answer in time, or cannot. There is no default: a wrong one costs money
/// or an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Every call is allowed. For limits that protect a service which would rather be loaded than away.
    Open,
    /// Every call is rejected, until the store will be tried again. For budgets that cost money.
    Closed,
    /// Each machine goes on with a bucket of its own, of a share of the rate and of the burst, which is full when it is
    /// first used. For as long as the store is away, `n` machines together allow at most the quota, and once their bursts.
    Local {
        /// How many machines there are at most: each has the share `1/machines`, rounded down, and a burst of at least 1.
        machines: NonZeroU32,
        /// For how many keys that have a debt there is room, as in [`Limiter::new`](tidegate::Limiter::new).
        keys: usize,
    },
}

/// An [`OnFailure`] with what it needs.
#[derive(Debug)]
pub(crate) enum Fallback {
    Open,
    Closed,
    Local(Box<Limiter>),
}

impl Fallback {
    pub(crate) fn new(on_failure: OnFailure, policy: &Policy) -> Result<Self, Error> {
        match on_failure {
            OnFailure::Open => Ok(Self::Open),
            OnFailure::Closed => Ok(Self::Closed),
            OnFailure::Local { machines, keys } => {
                let limits = policy.limits().iter().map(|limit| share(limit, machines.get()));
                Ok(Self::Local(Box::new(Limiter::new(Policy::new(limits.collect::<Result<_, _>>()?), keys))))
            }
        }
    }
}

/// The share of one machine.
fn share(limit: &Limit, machines: u32) -> Result<Limit, Error> {
    let Algorithm::TokenBucket(bucket) = &limit.algorithm else {
        return Err(Error::NotTokenBucket { limit: limit.name.clone(), kind: limit.algorithm.kind() });
    };
    let per = Duration::from_nanos(bucket.token_units().get()).checked_mul(machines).unwrap_or(Duration::MAX);
    let burst = (bucket.burst() / u64::from(machines)).max(1);
    let quota = Quota::new(bucket.rate_units().get(), per)
        .and_then(|quota| quota.with_burst(burst))
        .map_err(|source| Error::Share { limit: limit.name.clone(), source })?;
    let algorithm = Algorithm::new(Kind::TokenBucket, quota);
    Ok(Limit { name: limit.name.clone(), algorithm, mode: limit.mode })
}

/// A rejection that says nothing but when to come back.
pub(crate) fn rejected(retry_after: Duration) -> Decision {
    Decision::Rejected { retry_after, remaining: 0, reset_after: retry_after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Mode;

    fn shared(quota: &str, machines: u32) -> Result<Limit, Error> {
        let algorithm = Algorithm::new(Kind::TokenBucket, quota.parse().unwrap());
        share(&Limit { name: "requests".into(), algorithm, mode: Mode::Enforce }, machines)
    }

    #[test]
    fn a_share_is_of_rate_and_burst() {
        for (quota, machines, expected) in [
            ("100/s burst 50", 4, "25/s burst 12"),
            ("100/s burst 50", 1, "100/s burst 50"),
            ("1/s burst 2", 8, "1 per 8s burst 1"),
            ("7/s burst 7", 3, "7 per 3s burst 2"),
        ] {
            let expected = Algorithm::new(Kind::TokenBucket, expected.parse().unwrap());
            assert_eq!(shared(quota, machines).unwrap().algorithm, expected, "{quota} / {machines}");
        }
    }

    #[test]
    fn a_share_that_is_too_slow_is_an_error() {
        let text = shared("1 per 30000w", 1000).unwrap_err().to_string();
        assert!(text.starts_with("the share of one machine of the limit `requests` is no quota: "), "{text}");
    }
}
