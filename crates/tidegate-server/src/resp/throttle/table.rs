//! The buckets: as many as the operator chose, for any number of keys and quotas.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::algorithm::token_bucket::Tat;
use tidegate_core::{Decision, Quota, Step as _};

use super::{Answer, KEY_MAX, Terms, ThrottleError};

/// Keys of a set. With the lock and the set's clock they take seven or eight cache lines, of which a call touches three or
/// four; with fewer keys a set, more sets would be full while others have room.
const SLOTS: usize = 7;

/// A bucket for each of many keys, whose quota comes with each call, in memory that is fixed when the table is made.
///
/// Keys are not stored, but a hash of 64 bits under a secret seed: among a million keys, two share a bucket with a
/// probability of 3 in 10⁸. A key whose bucket is full needs no slot. When all slots of a set are taken by keys with a debt
/// and another one comes, the key that is full again soonest is forgotten, which gives it back its debt; [`Self::evicted`]
/// counts that. Nobody is rejected for want of room.
///
/// Time does not go back for a set of keys: a call that brings an earlier time than one before it is decided at the later
/// one. So a clock that goes back, and threads that read it in another order than they come here, create nothing.
#[derive(Debug)]
pub struct Table {
    sets: Box<[Mutex<Set>]>,
    hasher: RandomState,
    evicted: AtomicU64,
}

#[derive(Debug)]
struct Set {
    /// The latest time of a call.
    now_ns: u64,
    /// The hash of each slot's key; 0 for a slot that was never used.
    keys: [u64; SLOTS],
    /// When each bucket is full again, rounded up to a nanosecond: which slot is free can be seen without the quotas.
    full_at_ns: [u64; SLOTS],
    /// The same exactly, in the units of the quota.
    states: [Tat; SLOTS],
    quotas: [Option<Quota>; SLOTS],
}

impl Table {
    /// A table with room for `keys` keys that have a debt at one time, and for at least one.
    ///
    /// # Panics
    ///
    /// When the memory cannot be had.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        // Some more slots than keys, since keys do not spread evenly: as in the library's limiter.
        let sets = (keys.saturating_mul(35) / 32).div_ceil(SLOTS).max(1);
        let set = || Set {
            now_ns: 0,
            keys: [0; SLOTS],
            full_at_ns: [0; SLOTS],
            states: [Tat::default(); SLOTS],
            quotas: [None; SLOTS],
        };
        Self {
            sets: (0..sets).map(|_| Mutex::new(set())).collect(),
            hasher: RandomState::default(),
            evicted: AtomicU64::new(0),
        }
    }

    /// The bytes of the table. It never grows.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// For how many keys there is room.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.sets.len() * SLOTS
    }

    /// How often a key was forgotten before its bucket was full.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Decides whether `quantity` tokens can be taken for `key` under `terms` at `now_ns`, and takes them if so.
    ///
    /// # Errors
    ///
    /// A key that is too long, a quantity below 0.
    #[inline]
    pub fn decide(
        &self,
        key: &[u8],
        terms: &Terms,
        quantity: i64,
        now_ns: u64,
    ) -> Result<Answer, ThrottleError> {
        if key.len() > KEY_MAX {
            return Err(ThrottleError::KeyTooLong);
        }
        let quantity = u64::try_from(quantity).map_err(|_| ThrottleError::NegativeQuantity)?;
        let Some((quota, bucket)) = &terms.bucket else { return Ok(Answer::without_tokens(quantity)) };
        // 0 is a slot that was never used.
        let hash = self.hasher.hash_one(key).max(1);
        let mut set = self.set(hash);
        let (answer, evicted) = set.decide(hash, *quota, bucket, quantity, now_ns);
        drop(set);
        if evicted {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }

    #[inline]
    fn set(&self, hash: u64) -> MutexGuard<'_, Set> {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sets, which is a usize")]
        let index = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        // A set is whole wherever its holder might panic.
        self.sets[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Set {
    /// The answer, and whether another key was forgotten for it.
    #[inline]
    fn decide(
        &mut self,
        hash: u64,
        quota: Quota,
        bucket: &TokenBucket,
        quantity: u64,
        now_ns: u64,
    ) -> (Answer, bool) {
        let at_ns = self.now_ns.max(now_ns);
        self.now_ns = at_ns;
        let slot = self.keys.iter().position(|&key| key == hash);
        let mut state = match slot {
            Some(slot) if self.quotas[slot] == Some(quota) => self.states[slot],
            Some(slot) => self.carry_over(slot, bucket, at_ns),
            None => bucket.fresh(),
        };
        let decision = bucket.look(&state, at_ns, quantity);
        let answer = answer(bucket, decision, state, at_ns, now_ns);
        let keeps = match decision {
            Decision::Allowed { .. } => {
                bucket.charge(&mut state, at_ns, quantity);
                quantity > 0
            }
            // The wait that was told is under this quota.
            Decision::Rejected { .. } => slot.is_some_and(|slot| self.quotas[slot] != Some(quota)),
            Decision::Never { .. } => false,
        };
        if !keeps {
            return (answer, false);
        }
        let (slot, evicted) = match slot {
            Some(slot) => (slot, false),
            None => self.room(at_ns),
        };
        self.keys[slot] = hash;
        self.states[slot] = state;
        self.quotas[slot] = Some(quota);
        self.full_at_ns[slot] = now_ns.saturating_add(answer.reset_after_ns);
        (answer, evicted)
    }

    /// The state of a slot's bucket under the numbers of another, as full in proportion.
    #[cold]
    fn carry_over(&self, slot: usize, to: &TokenBucket, at_ns: u64) -> Tat {
        match self.quotas[slot] {
            Some(quota) => to.carry_over(&TokenBucket::new(quota), self.states[slot], at_ns),
            None => to.fresh(),
        }
    }

    /// A slot for a newcomer, and whether somebody with a debt is forgotten for it: the one that is full again soonest.
    #[cold]
    fn room(&self, at_ns: u64) -> (usize, bool) {
        let soonest = (0..SLOTS).min_by_key(|&slot| self.full_at_ns[slot]).unwrap_or(0);
        (soonest, self.full_at_ns[soonest] > at_ns)
    }
}

/// The decision at `at_ns` as the caller sees it, whose clock says `now_ns`, which may be earlier.
#[inline]
fn answer(bucket: &TokenBucket, decision: Decision, state: Tat, at_ns: u64, now_ns: u64) -> Answer {
    let lag_ns = at_ns - now_ns;
    // Below 2⁶⁴: a fill takes less than half of that, and clocks do not run for the rest.
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let seen = |time: Duration| if time.is_zero() { 0 } else { ns(time).saturating_add(lag_ns) };
    let capacity = bucket.burst();
    match decision {
        Decision::Allowed { remaining, reset_after, .. } => Answer {
            rejected: false,
            capacity,
            remaining,
            retry_after_ns: None,
            reset_after_ns: seen(reset_after),
        },
        Decision::Rejected { retry_after, remaining, reset_after } => Answer {
            rejected: true,
            capacity,
            remaining,
            retry_after_ns: Some(seen(retry_after)),
            reset_after_ns: seen(reset_after),
        },
        // What is there is told all the same: to ask for nothing is always allowed.
        Decision::Never { .. } => Answer {
            rejected: true,
            retry_after_ns: None,
            ..answer(bucket, bucket.look(&state, at_ns, 0), state, at_ns, now_ns)
        },
    }
}
