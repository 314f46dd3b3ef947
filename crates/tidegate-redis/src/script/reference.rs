//! The same integers in Rust: what the script must answer, and what it must leave behind. For the tests.

use std::collections::HashMap;

use super::{Call, Level, Verdict};
use crate::units::Units;

/// What is stored of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) level: u64,
    pub(crate) time_us: u64,
    pub(crate) capacity: u64,
    pub(crate) rate: u64,
}

impl Stored {
    const fn is_under(&self, units: &Units) -> bool {
        self.capacity == units.capacity() && self.rate == units.rate()
    }
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { level, time_us, capacity, rate } = self;
        write!(f, "{level} {time_us} {capacity} {rate}")
    }
}

/// All buckets.
pub(crate) type Keys = HashMap<Box<[u8]>, Stored>;

/// Decides one call at `now` and charges it. A bucket of another quota is under the call's from then on.
pub(crate) fn decide(keys: &mut Keys, now_us: u64, call: &Call) -> Verdict {
    let read: Vec<Stored> =
        call.takes.iter().map(|take| at(keys.get(&take.key), &take.bucket, now_us)).collect();
    let pairs = || call.takes.iter().zip(&read);
    let allowed = pairs().all(|(take, bucket)| take.shadow || bucket.level >= take.cost);
    let levels = pairs().map(|(_, bucket)| Level { units: bucket.level, lag: bucket.time_us - now_us });
    let verdict = Verdict { allowed, levels: levels.collect() };
    for (take, bucket) in call.takes.iter().zip(read) {
        let is_charged = allowed && call.charge && take.cost > 0 && bucket.level >= take.cost;
        let is_moved = keys.get(&take.key).is_some_and(|stored| !stored.is_under(&take.bucket));
        if is_charged || is_moved {
            let cost = if is_charged { take.cost } else { 0 };
            keys.insert(take.key.clone(), Stored { level: bucket.level - cost, ..bucket });
        }
    }
    verdict
}

/// The bucket at a time that is not before its last charge.
fn at(stored: Option<&Stored>, units: &Units, now_us: u64) -> Stored {
    let (capacity, rate) = (units.capacity(), units.rate());
    let Some(stored) = stored else { return Stored { level: capacity, time_us: now_us, capacity, rate } };
    let passed = u128::from(now_us.saturating_sub(stored.time_us));
    let level = u128::from(stored.level) + passed * u128::from(stored.rate);
    let level = level.min(u128::from(stored.capacity)) * u128::from(capacity) / u128::from(stored.capacity);
    let level = u64::try_from(level).expect("a level is at most the capacity");
    Stored { level, time_us: stored.time_us.max(now_us), capacity, rate }
}
