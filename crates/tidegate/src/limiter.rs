//! The keyed limiter: a table of fixed size, without the keys.
//!
//! A key is hashed with a secret seed. The hash picks a set and, whole, is the fingerprint that stands for the key in
//! that set. A set is a lock around [`SLOTS`] slots of fingerprint and state; nothing is ever allocated for a key
//! (but by the sliding log, whose state is a list), and the table never grows, rehashes or sweeps.
//!
//! **A slot is free when its limiter is as good as new**, since then forgetting it changes no decision: a full bucket
//! equals an absent one. So nothing has to be removed, and a slot that was never used is no special case.
//!
//! **When no slot is free** the one nearest to as-good-as-new is evicted: what is forgotten is the smallest debt in the
//! set. Nobody within a limit is rejected for want of space, and the counter [`Stats::evicted`] shows that it happened.
//!
//! **Collisions.** Two keys share a limit iff all 64 bits of their hashes agree: among `n` keys that are held at one
//! time the chance is about `n²/2⁶⁵`, which is 1 in 8 billion for 65,536 keys and 1 in 32,000 for 32 million.
//!
//! **Time.** A set's clock does not go back. For a key that is there, its state sees to that ([`Algorithm`]); for one
//! that is not, the set remembers when it last gave a free slot away, as the key may be the one that was forgotten, and
//! forgetting it was right only from then on.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Algorithm, Decision, State, Step};

use crate::clock::Clock;

/// Slots in a set. Twice as many would halve the evictions at the same load and double the time that a key that is
/// not there takes; with 8, all fingerprints of a set are 64 bytes, one cache line.
const SLOTS: usize = 8;

/// One limit for each of many keys, shared by threads.
///
/// A key is anything that can be hashed: `&str` and the equal `String` are the same key. Keys are not stored. The
/// memory is taken when the limiter is made and never grows; [`Self::bytes`] says how much it is. The sliding log is the
/// exception: its state is a list of the calls in its window.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Algorithm, Kind, Limiter};
///
/// let limiter = Limiter::new(Algorithm::new(Kind::TokenBucket, "2/s burst 1".parse()?), 1000);
/// assert!(limiter.check_at("ann", 0, 1).is_allowed());
/// assert!(limiter.check_at("bob", 0, 1).is_allowed());
/// assert_eq!(limiter.check_at("ann", 0, 1).retry_after(), Some(Duration::from_millis(500)));
/// assert!(limiter.check_at("ann", 500_000_000, 1).is_allowed());
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub struct Limiter {
    algorithm: Algorithm,
    sets: Box<[Mutex<Set>]>,
    seed: RandomState,
    clock: Clock,
}

/// How full a limiter's table is, from [`Limiter::stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// How many keys can be held at one time.
    pub slots: usize,
    /// How many of them are held now: their limiters are not as good as new.
    pub busy: usize,
    /// How often a key was forgotten before its limiter was as good as new. Each is at most one burst that was allowed
    /// too much to one key; more slots make it less.
    pub evicted: u64,
}

/// One lock's worth of the table.
struct Set {
    /// Apart from the states, so that finding a key reads one cache line.
    fingerprints: [u64; SLOTS],
    states: [State; SLOTS],
    /// When a free slot was last given to another key.
    reused_at: u64,
    evicted: u64,
}

impl Limiter {
    /// A limiter with room for at least `keys` keys at one time, all of them as good as new.
    ///
    /// `keys` is rounded up to 8 times a power of two; 0 makes the smallest table, of 8.
    ///
    /// # Panics
    ///
    /// When that many slots are more than the address space holds.
    #[must_use]
    pub fn new(algorithm: Algorithm, keys: usize) -> Self {
        let sets = keys.div_ceil(SLOTS).next_power_of_two();
        Self {
            algorithm,
            sets: (0..sets).map(|_| Mutex::new(Set::new(&algorithm))).collect(),
            seed: RandomState::new(),
            clock: Clock::new(),
        }
    }

    /// Decides a call of cost 1 for `key` now.
    #[inline]
    pub fn check(&self, key: &(impl Hash + ?Sized)) -> Decision {
        self.check_n(key, 1)
    }

    /// Decides a call of `cost` for `key` now. Cost 0 asks without charging.
    ///
    /// ```
    /// # use tidegate::{Algorithm, Decision, Kind, Limiter};
    /// let limiter = Limiter::new(Algorithm::new(Kind::TokenBucket, "10/s burst 20".parse()?), 1000);
    /// assert_eq!(limiter.check_n("ann", 15).remaining(), 5);
    /// assert_eq!(limiter.check_n("ann", 21), Decision::Never { capacity: 20 });
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[inline]
    pub fn check_n(&self, key: &(impl Hash + ?Sized), cost: u64) -> Decision {
        self.check_at(key, self.clock.now_ns(), cost)
    }

    /// Decides a call of `cost` for `key` at `now_ns`, in nanoseconds since an origin that the caller picks.
    ///
    /// Use either this or the forms that read the clock, or take the time from [`Self::now_ns`]: one limiter has one
    /// origin. A time that goes back creates nothing and does not punish.
    #[inline]
    pub fn check_at(&self, key: &(impl Hash + ?Sized), now_ns: u64, cost: u64) -> Decision {
        let hash = self.seed.hash_one(key);
        self.set(hash).step(&self.algorithm, hash, now_ns, cost)
    }

    /// The time on the limiter's own clock, for [`Self::check_at`]: several decisions for one reading.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// What each key is limited by.
    #[must_use]
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The memory of the table in bytes. A sliding log takes more: 16 bytes for each call that a key has in its window.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// How full the table is now. It walks the whole table, one lock after the other.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats_at(self.clock.now_ns())
    }

    /// How full the table is at `now_ns`, for those who use [`Self::check_at`].
    #[must_use]
    pub fn stats_at(&self, now_ns: u64) -> Stats {
        let mut stats = Stats { slots: self.sets.len() * SLOTS, ..Stats::default() };
        for set in &self.sets {
            let set = lock(set);
            stats.busy += set.states.iter().filter(|state| busy(&self.algorithm, state, now_ns)).count();
            stats.evicted += set.evicted;
        }
        stats
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits pick the set")]
    fn set(&self, hash: u64) -> MutexGuard<'_, Set> {
        // The number of sets is a power of two.
        lock(&self.sets[hash as usize & (self.sets.len() - 1)])
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("algorithm", &self.algorithm)
            .field("slots", &(self.sets.len() * SLOTS))
            .finish_non_exhaustive()
    }
}

/// A step leaves a set whole wherever it might panic, so a poisoned lock is taken all the same.
#[inline]
fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the limiter in a slot is not as good as new.
fn busy(algorithm: &Algorithm, state: &State, now: u64) -> bool {
    !reset_after(algorithm, state, now).is_zero()
}

fn reset_after(algorithm: &Algorithm, state: &State, now: u64) -> Duration {
    match algorithm.look(state, now, 0) {
        Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. } => reset_after,
        // Cost 0 is above no capacity.
        Decision::Never { .. } => Duration::ZERO,
    }
}

impl Set {
    fn new(algorithm: &Algorithm) -> Self {
        Self {
            fingerprints: [0; SLOTS],
            states: std::array::from_fn(|_| algorithm.fresh()),
            reused_at: 0,
            evicted: 0,
        }
    }

    #[inline]
    fn step(&mut self, algorithm: &Algorithm, fingerprint: u64, now: u64, cost: u64) -> Decision {
        let Some(slot) = self.fingerprints.iter().position(|&held| held == fingerprint) else {
            return self.step_newcomer(algorithm, fingerprint, now, cost);
        };
        let state = &mut self.states[slot];
        let decision = algorithm.look(state, now, cost);
        if decision.is_allowed() && cost > 0 {
            algorithm.charge(state, now, cost);
        }
        decision
    }

    /// A key without a slot. It gets one only if the call leaves something to remember.
    fn step_newcomer(&mut self, algorithm: &Algorithm, fingerprint: u64, now: u64, cost: u64) -> Decision {
        let time = now.max(self.reused_at);
        let mut state = algorithm.fresh();
        let decision = algorithm.look(&state, time, cost);
        let Decision::Allowed { start_after, remaining, reset_after } = decision else {
            return decision;
        };
        if cost == 0 || reset_after.is_zero() {
            return decision;
        }
        algorithm.charge(&mut state, time, cost);
        let slot = self.make_room(algorithm, time);
        self.fingerprints[slot] = fingerprint;
        self.states[slot] = state;
        let lag = Duration::from_nanos(time - now);
        Decision::Allowed { start_after, remaining, reset_after: reset_after.saturating_add(lag) }
    }

    /// A free slot, or else the one that is free soonest, whose key is forgotten.
    fn make_room(&mut self, algorithm: &Algorithm, now: u64) -> usize {
        let mut soonest = 0;
        let mut least = Duration::MAX;
        for (slot, state) in self.states.iter().enumerate() {
            let reset_after = reset_after(algorithm, state, now);
            if reset_after.is_zero() {
                // A slot that was never used stands for no key that could come back.
                if *state != algorithm.fresh() {
                    self.reused_at = now;
                }
                return slot;
            }
            if reset_after < least {
                (soonest, least) = (slot, reset_after);
            }
        }
        self.evicted += 1;
        soonest
    }
}
