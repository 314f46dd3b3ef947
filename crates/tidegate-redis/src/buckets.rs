//! The buckets of a store behind the port of `tidegate`, for those who have limits of many keys themselves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::shared::{
    Deciding, Made, SharedAnswer, SharedBuckets, SharedCall, SharedTake, Told, Unanswered, Unsuited,
};
use tidegate::{Algorithm, Decision, Mode};
use tokio::runtime::Handle;

use crate::asking::Known;
use crate::error::Error;
use crate::limiter::{bucket_key, fitting, part_of_a_key};
use crate::script::{Call, Take, Verdict};
use crate::store::{Inner, Store};
use crate::units::Units;

/// The token buckets of one name on a store, as [`SharedBuckets`]: for a [`Gate`](tidegate::Gate) or the layer of
/// `tidegate-http`, say.
///
/// Those of a key are `{tidegate:NAME:KEY}:LIMIT`, as with a [`SharedLimiter`](crate::SharedLimiter) of the name. On one server
/// a call may have buckets of several keys; in a cluster it may not.
#[derive(Clone)]
pub struct StoreBuckets {
    store: Arc<Inner>,
    name: Arc<str>,
}

impl Store {
    /// The buckets of `name`. Every process that gives this name to the same store shares them.
    ///
    /// # Errors
    ///
    /// A name that cannot be part of a key.
    pub fn buckets(&self, name: &str) -> Result<StoreBuckets, Error> {
        part_of_a_key(name)?;
        Ok(StoreBuckets { store: Arc::clone(&self.inner), name: name.into() })
    }
}

impl SharedBuckets for StoreBuckets {
    fn accepts(&self, limit: &str, algorithm: &Algorithm) -> Result<(), Unsuited> {
        let unsuited = |error: Error| Unsuited(error.to_string().into());
        part_of_a_key(limit).map_err(unsuited)?;
        fitting(limit, algorithm).map(|_| ()).map_err(unsuited)
    }

    fn spans_keys(&self) -> bool {
        !self.store.servers.is_cluster()
    }

    fn decide(&self, call: SharedCall) -> Deciding {
        let takes: Option<Vec<Take>> = call.takes.iter().map(|take| self.take(take)).collect();
        let store = Arc::clone(&self.store);
        let runtime = self.store.servers.runtime.clone();
        let decided = async move {
            let until_next_try = |takes: &[Take]| {
                let bucket = takes.first().map_or(&[][..], |take| &take.key);
                let retry_after = store.servers.until_next_try(bucket).max(store.deadline);
                Unanswered { retry_after }
            };
            let Some(takes) = takes else { return Err(until_next_try(&[])) };
            let call = Arc::new(Call { charge: call.charge, takes });
            match store.ask(&call).await {
                Ok(Known::Never) => Ok(never(&call)),
                Ok(Known::Remembered(limit, decision)) => {
                    let only =
                        |index: usize| (index == limit).then(|| Told { decision, left: left(&decision) });
                    let each = (0..call.takes.len()).map(only).collect();
                    Ok(SharedAnswer { each, made: Made::Remembered })
                }
                Ok(Known::Told(verdict, sent)) => {
                    let each: Vec<_> = told(&call, &verdict).collect();
                    for (take, told) in call.takes.iter().zip(&each).filter(|(take, _)| !take.shadow) {
                        store.remember(take, &told.decision, sent);
                    }
                    let each = each.into_iter().map(Some).collect();
                    Ok(SharedAnswer { each, made: Made::Exact })
                }
                Err(fault) => {
                    store.counters().fault(&fault);
                    Err(until_next_try(&call.takes))
                }
            }
        };
        if Handle::try_current().is_ok() {
            return Box::pin(decided);
        }
        // Whoever has no runtime waits for one that has: the deadline is kept by its timer.
        let task = runtime.spawn(decided);
        Box::pin(async move { task.await.unwrap_or(Err(Unanswered { retry_after: Duration::ZERO })) })
    }
}

impl StoreBuckets {
    /// `None` if the limit was not accepted.
    fn take(&self, take: &SharedTake) -> Option<Take> {
        let bucket = Units::new(&take.algorithm).ok()?;
        Some(Take {
            key: bucket_key(&self.name, &take.key, &take.limit),
            bucket,
            cost: bucket.cost(take.cost),
            shadow: take.mode == Mode::Shadow,
        })
    }
}

/// What is known of the buckets that can never hold what the call costs.
fn never(call: &Call) -> SharedAnswer {
    let of = |take: &Take| {
        let is_never = take.cost > take.bucket.capacity();
        is_never.then(|| Told { decision: take.full(), left: None })
    };
    SharedAnswer { each: call.takes.iter().map(of).collect(), made: Made::Exact }
}

/// What is left after a rejection.
const fn left(decision: &Decision) -> Option<Decision> {
    match *decision {
        Decision::Rejected { remaining, reset_after, .. } => {
            Some(Decision::Allowed { start_after: Duration::ZERO, remaining, reset_after })
        }
        _ => None,
    }
}

/// What each bucket says, and what is left in it.
fn told<'a>(call: &'a Call, verdict: &'a Verdict) -> impl Iterator<Item = Told> + use<'a> {
    let is_charged = verdict.allowed && call.charge;
    call.takes.iter().zip(&verdict.levels).map(move |(take, level)| {
        let left = if is_charged { level.units.checked_sub(take.cost) } else { None };
        Told {
            decision: take.bucket.decision(level.units, level.lag, take.cost),
            left: Some(take.bucket.decision(left.unwrap_or(level.units), level.lag, 0)),
        }
    })
}

impl fmt::Debug for StoreBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuckets").field("store", &self.store).field("name", &self.name).finish()
    }
}
