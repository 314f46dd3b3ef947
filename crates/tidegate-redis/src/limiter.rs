//! The limiter that many machines share.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Algorithm, Decision, Mode, Policy, PolicyDecision};

use crate::answer::Answer;
use crate::asking::Known;
use crate::error::Error;
use crate::failure::{Fallback, rejected};
use crate::fault::Fault;
use crate::script::{Call, Take, Verdict};
use crate::store::Inner;
use crate::units::{Unfit, Units};
use crate::{Made, OnFailure};

/// One limit, or several, for each of many keys, shared by all processes that name the same store and the same limiter.
///
/// Only token buckets: the other algorithms have no script yet, and a policy with one of them is an [`Error`].
///
/// Each decision is one script on the server, for all limits of the key: they are all charged, or none. It always comes
/// back before the deadline of the [`Store`](crate::Store), if only from [`OnFailure`]; it is never an error.
///
/// # Keys
///
/// A bucket is the key `{tidegate:LIMITER:KEY}:LIMIT`. What stands in the braces decides where a cluster keeps it, so that the
/// limits of a key are in one place. The memory is the server's: about 150 bytes for each bucket that is not full.
///
/// # Cancel safety
///
/// A decision that is dropped before it is ready may have been charged or not, as one whose reply is lost.
#[derive(Debug)]
pub struct SharedLimiter {
    store: Arc<Inner>,
    name: Box<str>,
    policy: Policy,
    /// For each limit of the policy.
    buckets: Vec<Units>,
    fallback: Fallback,
}

impl SharedLimiter {
    pub(crate) fn new(
        store: Arc<Inner>,
        name: &str,
        policy: Policy,
        on_failure: OnFailure,
    ) -> Result<Self, Error> {
        let buckets = check(name, &policy)?;
        let fallback = Fallback::new(on_failure, &policy)?;
        store.register(name, &policy)?;
        Ok(Self { store, name: name.into(), policy, buckets, fallback })
    }

    /// The policy, whose limits the answers name.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn buckets(&self) -> &[Units] {
        &self.buckets
    }

    /// Decides a call of cost 1 in every limit of `key`, and charges it if it is allowed.
    pub async fn check(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Answer {
        self.check_with(key, |_| 1).await
    }

    /// Decides a call of `cost` in every limit of `key`, and charges it if it is allowed. Cost 0 asks without charging.
    pub async fn check_n(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: u64) -> Answer {
        self.check_with(key, |_| cost).await
    }

    /// Decides a call whose cost in limit `i` is `cost(i)`, such as 1 request and 4096 bytes, and charges it if it is allowed.
    pub async fn check_with(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: impl Fn(usize) -> u64) -> Answer {
        self.decide(key.as_ref(), self.costs(cost), true).await
    }

    /// The decision for a call of `cost` in every limit of `key`, without charging it.
    pub async fn peek(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: u64) -> Answer {
        self.peek_with(key, |_| cost).await
    }

    /// The decision for a call whose cost in limit `i` is `cost(i)`, without charging it.
    pub async fn peek_with(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: impl Fn(usize) -> u64) -> Answer {
        self.decide(key.as_ref(), self.costs(cost), false).await
    }

    /// Each cost is asked once, and before anything else happens.
    fn costs(&self, cost: impl Fn(usize) -> u64) -> Vec<u64> {
        (0..self.buckets.len()).map(cost).collect()
    }

    async fn decide(&self, key: &[u8], costs: Vec<u64>, charge: bool) -> Answer {
        let call = Arc::new(Call { charge, takes: self.takes(key, &costs) });
        match self.store.ask(&call).await {
            Ok(Known::Never) => {
                let full = |index: usize| match call.takes.get(index) {
                    Some(take) => take.full(),
                    None => rejected(Duration::ZERO),
                };
                answer(self.policy.combine(full), Vec::new(), Made::Exact)
            }
            Ok(Known::Remembered(limit, decision)) => Answer {
                decision,
                limit: Some(limit),
                shadow: None,
                remaining: Vec::new(),
                made: Made::Remembered,
            },
            Ok(Known::Told(verdict, sent)) => {
                let answer = exact(&self.policy, &call.takes, &verdict, charge);
                if let Some(limit) = answer.limit
                    && let Some(take) = call.takes.get(limit)
                {
                    self.store.remember(take, &answer.decision, sent);
                }
                answer
            }
            Err(fault) => self.without_store(&fault, &call, key, &costs),
        }
    }

    fn takes(&self, key: &[u8], costs: &[u64]) -> Vec<Take> {
        let take = |((limit, bucket), cost): ((&tidegate::Limit, &Units), &u64)| Take {
            key: bucket_key(&self.name, key, &limit.name),
            bucket: *bucket,
            cost: bucket.cost(*cost),
            shadow: limit.mode == Mode::Shadow,
        };
        self.policy.limits().iter().zip(&self.buckets).zip(costs).map(take).collect()
    }

    /// The answer to a call of `cost` for want of the store.
    pub(crate) fn without(&self, fault: &Fault, key: &[u8], cost: u64) -> Answer {
        let costs = self.costs(|_| cost);
        let call = Call { charge: true, takes: self.takes(key, &costs) };
        self.without_store(fault, &call, key, &costs)
    }

    fn without_store(&self, fault: &Fault, call: &Call, key: &[u8], costs: &[u64]) -> Answer {
        let counters = self.store.counters();
        counters.fault(fault);
        let until_next_try = || {
            let bucket = call.takes.first().map_or(&[][..], |take| &take.key);
            self.store.servers.until_next_try(bucket).max(self.store.deadline)
        };
        let alone = |decision| PolicyDecision { decision, limit: None, shadow: None };
        match &self.fallback {
            Fallback::Open => {
                counters.open.one();
                let decision = Decision::Allowed {
                    start_after: Duration::ZERO,
                    remaining: 0,
                    reset_after: Duration::ZERO,
                };
                answer(alone(decision), Vec::new(), Made::Open)
            }
            Fallback::Closed => {
                counters.closed.one();
                answer(alone(rejected(until_next_try())), Vec::new(), Made::Closed)
            }
            Fallback::Local(limiter) => {
                counters.local.one();
                let cost = |limit: usize| costs.get(limit).copied().unwrap_or(0);
                let mut local =
                    if call.charge { limiter.check_with(key, cost) } else { limiter.peek_with(key, cost) };
                // Above the share, but not above the quota: the store will be able to.
                if matches!(local.decision, Decision::Never { .. }) {
                    local.decision = rejected(until_next_try());
                }
                answer(local, Vec::new(), Made::Local)
            }
        }
    }
}

/// The answer that follows from what the store said.
pub(crate) fn exact(policy: &Policy, takes: &[Take], verdict: &Verdict, charge: bool) -> Answer {
    let read = || takes.iter().zip(&verdict.levels);
    let mut decisions = read().map(|(take, level)| take.bucket.decision(level.units, level.lag, take.cost));
    let combined = policy.combine(|_| decisions.next().unwrap_or(rejected(Duration::ZERO)));
    debug_assert_eq!(combined.decision.is_allowed(), verdict.allowed, "script and units disagree");
    let remaining = read().map(|(take, level)| {
        let left = if verdict.allowed && charge { level.units.checked_sub(take.cost) } else { None };
        take.bucket.tokens(left.unwrap_or(level.units))
    });
    answer(combined, remaining.collect(), Made::Exact)
}

fn answer(combined: PolicyDecision, remaining: Vec<u64>, made: Made) -> Answer {
    let PolicyDecision { decision, limit, shadow } = combined;
    Answer { decision, limit, shadow, remaining, made }
}

/// The units of each limit, if all limits and names can be kept.
fn check(name: &str, policy: &Policy) -> Result<Vec<Units>, Error> {
    part_of_a_key(name)?;
    if policy.limits().is_empty() {
        return Err(Error::NoLimit);
    }
    let mut buckets = Vec::with_capacity(policy.limits().len());
    for (index, limit) in policy.limits().iter().enumerate() {
        part_of_a_key(&limit.name)?;
        if policy.limits().iter().take(index).any(|other| other.name == limit.name) {
            return Err(Error::SameName { limit: limit.name.clone() });
        }
        buckets.push(fitting(&limit.name, &limit.algorithm)?);
    }
    Ok(buckets)
}

/// The units of one limit.
pub(crate) fn fitting(limit: &str, algorithm: &Algorithm) -> Result<Units, Error> {
    Units::new(algorithm).map_err(|unfit| match unfit {
        Unfit::Kind => Error::NotTokenBucket { limit: limit.into(), kind: algorithm.kind() },
        Unfit::TooFine => Error::TooFine { limit: limit.into() },
    })
}

pub(crate) fn part_of_a_key(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.contains([':', '{', '}']) {
        return Err(Error::Name { name: name.into() });
    }
    Ok(())
}

/// No two buckets have one key, whatever bytes `key` holds: the limiter's name ends at the second colon, and the limit's
/// name starts after the last `}:`.
pub(crate) fn bucket_key(limiter: &str, key: &[u8], limit: &str) -> Box<[u8]> {
    let mut text = Vec::with_capacity(limiter.len() + key.len() + limit.len() + 13);
    for part in [b"{tidegate:", limiter.as_bytes(), b":", key, b"}:", limit.as_bytes()] {
        text.extend_from_slice(part);
    }
    text.into()
}
