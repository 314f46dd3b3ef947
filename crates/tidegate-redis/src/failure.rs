//! What to answer when the store does not.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::shared::{OnFailure, share};
use tidegate::{Algorithm, Decision, Kind, Limit, Limiter, Policy};

use crate::Error;

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
                let limits = policy.limits().iter().map(|limit| share_of(limit, machines));
                Ok(Self::Local(Box::new(Limiter::new(Policy::new(limits.collect::<Result<_, _>>()?), keys))))
            }
        }
    }
}

/// The share of one machine.
fn share_of(limit: &Limit, machines: NonZeroU32) -> Result<Limit, Error> {
    let Algorithm::TokenBucket(bucket) = &limit.algorithm else {
        return Err(Error::NotTokenBucket { limit: limit.name.clone(), kind: limit.algorithm.kind() });
    };
    let quota =
        share(bucket, machines).map_err(|source| Error::Share { limit: limit.name.clone(), source })?;
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

    #[test]
    fn a_share_that_is_too_slow_is_an_error() {
        let algorithm = Algorithm::new(Kind::TokenBucket, "1 per 30000w".parse().unwrap());
        let limit = Limit { name: "requests".into(), algorithm, mode: Mode::Enforce };
        let text = share_of(&limit, 1000.try_into().unwrap()).unwrap_err().to_string();
        assert!(text.starts_with("the share of one machine of the limit `requests` is no quota: "), "{text}");
    }
}
