//! The flat table: one 64-bit word of state for each limit of a key, and a lock for newcomers alone.
//!
//! **Layout.** A set is `1 + limits` cache lines for [`SLOTS`] keys. The first holds a word about the set and a
//! fingerprint word for each slot; the others hold, for each limit, the unit-time at which each slot's bucket is full
//! again (the core's token bucket, whose state is that one number). The first of these also holds the version.
//!
//! ```text
//! line 0:  given    key 1   key 2   ...  key 7        key word: 56 bits of the hash, 8 bits tier
//! line 1:  version  full 1  full 2  ...  full 7
//! line 2:  -        full 1  full 2  ...  full 7       (second limit, in an array of its own)
//! ```
//!
//! Lines 0 and 1 are a pair that processors fetch together, and neither address depends on what the other holds, so a
//! look-up in a table that is larger than the caches waits for memory once. Keys are compared without a branch: a wrong
//! guess at the slot would throw away the look-ups that follow, whose waits for memory overlap this one's. Only while
//! almost every key is in the first slot of its set is that guess made.
//!
//! **Protocol.** The version is a sequence lock: bit 0 is set while somebody writes, bit 1 says which of two sets of
//! numbers holds (they change with the quota), the rest counts. A decision reads the version, then keys and state, and
//! decides. A rejection is valid if the version is still the same, and writes nothing. An allowed call locks with one
//! compare-and-swap, which at the same time proves that nothing has changed since it was read, stores the new state, and
//! unlocks with a count more. So of N callers at one instant exactly the burst is allowed. A newcomer, a key that changes
//! its tier and a caller that lost a race wait for the lock of their set, which is held for some tens of nanoseconds, or
//! for as long as its holder is interrupted.
//!
//! **A slot is free when its buckets are full**, for a full bucket equals an absent one. Nothing is removed, swept or
//! rehashed. `given` is the time at which a slot was last given to another key: a key that is not found is treated as not
//! calling before that, so that a clock that goes back brings nothing back.
//!
//! **Time** that goes back makes a bucket look emptier than it is, since the state is one number: it creates nothing, and
//! can reject a call until the time is what it was. A limiter's own clock does not go back.

mod refund;
mod set;

use std::sync::PoisonError;
use std::time::Duration;

use tidegate_core::{Decision, Mode, Policy, PolicyDecision};

pub(super) use self::set::SLOTS;
use self::set::{EPOCH, LOCKED, Line, Locked, Pair, Set, TIER_BITS, key_word, tier_of};
use super::WhenFull;
use super::shim::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::narrow::{Look, NarrowBucket, Parts};

/// The most limits that a key can have here: what is looked at is kept in an array on the stack.
pub(super) const LIMITS_MAX: usize = 8;

/// In how many sets one has used a slot beyond its first when the table becomes crowded. With 32, one key in eight is not in
/// the first slot then, and guessing that a key is there begins to cost what it saves.
const CROWDED: u64 = 32;

/// The numbers of one limit of one tier. They are atomic because a quota can change while callers decide.
#[repr(align(64))]
#[derive(Debug)]
struct Numbers {
    /// Units in a token.
    token: AtomicU64,
    /// Units that a nanosecond brings.
    unit: AtomicU64,
    /// Units in a full bucket.
    capacity: AtomicU64,
    /// The latest time whose unit-time fits; after it, time stands still.
    now_max: AtomicU64,
    /// The largest cost that can be allowed.
    burst: AtomicU64,
}

impl Numbers {
    fn new(bucket: NarrowBucket) -> Self {
        Self {
            token: AtomicU64::new(bucket.token),
            unit: AtomicU64::new(bucket.unit),
            capacity: AtomicU64::new(bucket.capacity),
            now_max: AtomicU64::new(bucket.now_max),
            burst: AtomicU64::new(bucket.burst),
        }
    }

    #[inline]
    fn read(&self) -> NarrowBucket {
        NarrowBucket {
            token: self.token.load(Ordering::Relaxed),
            unit: self.unit.load(Ordering::Relaxed),
            capacity: self.capacity.load(Ordering::Relaxed),
            now_max: self.now_max.load(Ordering::Relaxed),
            burst: self.burst.load(Ordering::Relaxed),
        }
    }

    fn write(&self, bucket: NarrowBucket) {
        self.token.store(bucket.token, Ordering::Relaxed);
        self.unit.store(bucket.unit, Ordering::Relaxed);
        self.capacity.store(bucket.capacity, Ordering::Relaxed);
        self.now_max.store(bucket.now_max, Ordering::Relaxed);
        self.burst.store(bucket.burst, Ordering::Relaxed);
    }
}

/// What happened because sets were full.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) evicted: AtomicU64,
    pub(super) forgotten: AtomicU64,
    pub(super) shared: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// The table.
#[derive(Debug)]
pub(super) struct Flat {
    sets: Box<[Pair]>,
    /// For each set, a line for each limit but the first.
    more: Box<[Line]>,
    /// For each epoch (two), tier and limit.
    numbers: Box<[Numbers]>,
    tiers: usize,
    limits: usize,
    /// Counts down the slots beyond the first of their sets that come into use; at 0 the table is [crowded](Self::crowded).
    room: AtomicU64,
    /// Names and modes of the limits; for their quotas ask `policies`.
    shape: Policy,
    when_full: WhenFull,
    overflow: Mutex<Overflow>,
    pub(super) counters: Counters,
    /// The policy of each tier with the quotas of today; locked while they change.
    policies: Mutex<Vec<Policy>>,
}

/// For [`WhenFull::Share`]: what all newcomers of a tier that found no slot have in common.
#[derive(Debug)]
struct Overflow {
    /// For each tier, the unit-time at which each limit's bucket is full again.
    full_at: Box<[[u64; LIMITS_MAX]]>,
    /// Which numbers its units are those of, as in a version.
    epoch: u64,
}

impl Flat {
    /// A table of `sets` sets. `buckets` holds the numbers of each tier and limit, in that order.
    pub(super) fn new(
        policies: Vec<Policy>,
        buckets: &[NarrowBucket],
        sets: usize,
        when_full: WhenFull,
    ) -> Self {
        let shape = policies[0].clone();
        let limits = shape.limits().len();
        let epochs = [buckets, buckets].concat();
        let tiers = buckets.len() / limits.max(1);
        Self {
            sets: (0..sets).map(|_| Pair { keys: Line::new(), full_at: Line::new() }).collect(),
            more: (0..sets * limits.saturating_sub(1)).map(|_| Line::new()).collect(),
            limits,
            room: AtomicU64::new(sets as u64 / CROWDED),
            numbers: epochs.into_iter().map(Numbers::new).collect(),
            tiers,
            shape,
            when_full,
            overflow: Mutex::new(Overflow { full_at: vec![[0; LIMITS_MAX]; tiers].into(), epoch: 0 }),
            counters: Counters::default(),
            policies: Mutex::new(policies),
        }
    }

    /// Bytes of a set.
    pub(super) const fn set_bytes(limits: usize) -> usize {
        (1 + limits) * size_of::<Line>()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.sets) + size_of_val(&*self.more)
    }

    pub(super) const fn slots(&self) -> usize {
        self.sets.len() * SLOTS
    }

    /// The policy of a tier as it is now.
    pub(super) fn policy(&self, tier: usize) -> Policy {
        lock(&self.policies)[tier].clone()
    }

    /// The set that the high bits of `hash` pick.
    #[inline]
    fn index(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sets, which is a usize")]
        let index = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        index
    }

    #[inline]
    fn set(&self, hash: u64) -> Set<'_> {
        self.set_at(self.index(hash))
    }

    #[inline]
    fn set_at(&self, index: usize) -> Set<'_> {
        let more = self.limits - 1;
        Set { pair: &self.sets[index], more: &self.more[index * more..][..more] }
    }

    #[inline]
    fn bucket(&self, version: u64, tier: u8, limit: usize) -> NarrowBucket {
        let epoch = usize::from(version & EPOCH != 0);
        self.numbers[(epoch * self.tiers + usize::from(tier)) * self.limits + limit].read()
    }

    /// Whether many keys are not in the first slot of their sets. Until then processors guess right that a key is there, and
    /// comparing it with the rest can be left out: 3 of 15 ns.
    #[inline]
    fn crowded(&self) -> bool {
        self.room.load(Ordering::Relaxed) == 0
    }

    /// Decides for a policy of one enforced limit.
    ///
    /// Inlined always, so that what is not read of the decision is not computed; all that is seldom is out of line.
    #[inline(always)]
    pub(super) fn decide_one(&self, hash: u64, tier: u8, now_ns: u64, cost: u64) -> Decision {
        match self.decide_one_held(hash, tier, now_ns, cost) {
            Some((bucket, look)) => bucket.decision(look, cost),
            None => self.decide_one_slowly(hash, tier, now_ns, cost).decision(),
        }
    }

    /// Decides for a key that has a slot; `None` if it has none, or somebody else decides in its set.
    #[inline(always)]
    fn decide_one_held(&self, hash: u64, tier: u8, now_ns: u64, cost: u64) -> Option<(NarrowBucket, Look)> {
        let set = Set { pair: &self.sets[self.index(hash)], more: &[] };
        let version = set.version().load(Ordering::Acquire);
        let want = key_word(hash, tier);
        let slot = if !self.crowded() && set.key(1) == want { 1 } else { set.find(want)? };
        if version & LOCKED != 0 {
            return None;
        }
        let epoch = usize::from(version & EPOCH != 0);
        let bucket = self.numbers[epoch * self.tiers + usize::from(tier)].read();
        let look = bucket.look(set.full_at(slot, 0), now_ns, cost);
        if !bucket.allows(look) || cost == 0 {
            return set.is_still(version).then_some((bucket, look));
        }
        let locked = set.lock_at(version).ok()?;
        locked.set.set_full_at(slot, 0, look.now + look.needed);
        Some((bucket, look))
    }

    #[cold]
    #[inline(never)]
    fn decide_one_slowly(&self, hash: u64, tier: u8, now_ns: u64, cost: u64) -> Parts {
        self.decide_slowly(hash, tier, now_ns, &[cost], true).decision.into()
    }

    /// Decides for all limits: all are charged, or none. `charge` false only looks.
    pub(super) fn decide(
        &self,
        hash: u64,
        tier: u8,
        now_ns: u64,
        costs: &[u64],
        charge: bool,
    ) -> PolicyDecision {
        let set = self.set(hash);
        let version = set.version().load(Ordering::Acquire);
        if version & LOCKED == 0
            && let Some(slot) = set.find(key_word(hash, tier))
        {
            let answer = self.look(version, tier, now_ns, costs, |limit| set.full_at(slot, limit));
            if !charge || !answer.decision.is_allowed() {
                if set.is_still(version) {
                    return answer;
                }
            } else if let Ok(locked) = set.lock_at(version) {
                self.charge(
                    version,
                    tier,
                    now_ns,
                    costs,
                    |limit| locked.set.full_at(slot, limit),
                    |limit, value| {
                        locked.set.set_full_at(slot, limit, value);
                    },
                );
                return answer;
            }
        }
        self.decide_slowly(hash, tier, now_ns, costs, charge)
    }

    /// The decision of all limits from their states, under the numbers of `version`'s epoch.
    fn look(
        &self,
        version: u64,
        tier: u8,
        now_ns: u64,
        costs: &[u64],
        full_at: impl Fn(usize) -> u64,
    ) -> PolicyDecision {
        self.shape.combine(|limit| {
            let bucket = self.bucket(version, tier, limit);
            bucket.decision(bucket.look(full_at(limit), now_ns, costs[limit]), costs[limit])
        })
    }

    /// Charges a call that was allowed: each enforced limit, and each shadow limit that allows it itself.
    fn charge(
        &self,
        version: u64,
        tier: u8,
        now_ns: u64,
        costs: &[u64],
        full_at: impl Fn(usize) -> u64,
        mut store: impl FnMut(usize, u64),
    ) {
        for (limit, (named, &cost)) in self.shape.limits().iter().zip(costs).enumerate() {
            let bucket = self.bucket(version, tier, limit);
            let look = bucket.look(full_at(limit), now_ns, cost);
            if cost > 0 && (named.mode == Mode::Enforce || bucket.allows(look)) {
                store(limit, look.now.saturating_add(look.needed));
            }
        }
    }

    /// Decides with the set locked: for a key without a slot, a key that changed its tier, and after a lost race.
    #[cold]
    #[inline(never)]
    fn decide_slowly(&self, hash: u64, tier: u8, now_ns: u64, costs: &[u64], charge: bool) -> PolicyDecision {
        let locked = self.set(hash).lock();
        let version = locked.version;
        let want = key_word(hash, tier);
        let limits = self.limits;
        let held = (1..=SLOTS).find(|&slot| locked.set.key(slot) >> TIER_BITS == want >> TIER_BITS);
        let mut full_at = [0; LIMITS_MAX];
        // A key that is not here may be one that was forgotten when its slot was given away, which was right only from
        // then on.
        let time =
            if held.is_some() { now_ns } else { now_ns.max(locked.set.given().load(Ordering::Relaxed)) };
        if let Some(slot) = held {
            let old_tier = tier_of(locked.set.key(slot));
            for (limit, full_at) in full_at.iter_mut().enumerate().take(limits) {
                *full_at = locked.set.full_at(slot, limit);
                if old_tier != tier {
                    let from = self.bucket(version, old_tier, limit);
                    *full_at = from.carry_over(*full_at, now_ns, &self.bucket(version, tier, limit));
                }
            }
        }
        let answer =
            seen_earlier(self.look(version, tier, time, costs, |limit| full_at[limit]), time - now_ns);
        let allowed = answer.decision.is_allowed();
        if allowed {
            let before = full_at;
            self.charge(
                version,
                tier,
                time,
                costs,
                |limit| before[limit],
                |limit, value| full_at[limit] = value,
            );
        }
        let slot = match held {
            Some(slot) if allowed || locked.set.key(slot) != want => slot,
            None if allowed && full_at != [0; LIMITS_MAX] => match self.room(&locked, time) {
                Ok(slot) => slot,
                Err(wait) => {
                    drop(locked);
                    let wait = wait.saturating_add(Duration::from_nanos(time - now_ns));
                    return self.without_slot(tier, now_ns, costs, charge, wait, answer);
                }
            },
            // Nothing to remember.
            _ => return answer,
        };
        if !charge {
            return answer;
        }
        if held.is_none() {
            self.give(&locked, slot, time);
        }
        locked.set.pair.keys.0[slot].store(want, Ordering::Relaxed);
        for (limit, value) in full_at.iter().enumerate().take(limits) {
            locked.set.set_full_at(slot, limit, *value);
        }
        answer
    }

    /// A slot for a newcomer: a free one, or else what the rule says; without one, how long until one is free.
    fn room(&self, locked: &Locked<'_>, now_ns: u64) -> Result<usize, Duration> {
        let mut soonest = 0;
        let mut least = u64::MAX;
        for slot in 1..=SLOTS {
            let reset = self.reset_ns(locked, slot, now_ns);
            if reset == 0 {
                return Ok(slot);
            }
            if reset < least {
                (soonest, least) = (slot, reset);
            }
        }
        if self.when_full == WhenFull::Evict { Ok(soonest) } else { Err(Duration::from_nanos(least)) }
    }

    /// Notes that the slot that was found for a newcomer is taken from whoever had it.
    fn give(&self, locked: &Locked<'_>, slot: usize, now_ns: u64) {
        // A slot that was never used stands for no key that could come back.
        if locked.set.key(slot) == 0 {
            let room = self.room.load(Ordering::Relaxed);
            if slot > 1 && room > 0 {
                // Two at one time may count as one: it is a matter of speed only.
                self.room.store(room - 1, Ordering::Relaxed);
            }
            return;
        }
        let given = locked.set.given().load(Ordering::Relaxed).max(now_ns);
        locked.set.given().store(given, Ordering::Relaxed);
        if self.reset_ns(locked, slot, now_ns) == 0 {
            return;
        }
        let tier = tier_of(locked.set.key(slot));
        let tokens = (0..self.limits).map(|limit| {
            let bucket = self.bucket(locked.version, tier, limit);
            bucket.look(locked.set.full_at(slot, limit), now_ns, 0).deficit.div_ceil(bucket.token)
        });
        self.counters.evicted.fetch_add(1, Ordering::Relaxed);
        self.counters.forgotten.fetch_add(tokens.max().unwrap_or(0), Ordering::Relaxed);
    }

    /// Nanoseconds until all buckets of a slot are full.
    fn reset_ns(&self, locked: &Locked<'_>, slot: usize, now_ns: u64) -> u64 {
        let tier = tier_of(locked.set.key(slot));
        (0..self.limits)
            .map(|limit| {
                let bucket = self.bucket(locked.version, tier, limit);
                bucket.ns_for(bucket.look(locked.set.full_at(slot, limit), now_ns, 0).deficit)
            })
            .max()
            .unwrap_or(0)
    }

    /// A newcomer in a full set, where nobody is evicted. With a slot it would be answered `alone`.
    fn without_slot(
        &self,
        tier: u8,
        now_ns: u64,
        costs: &[u64],
        charge: bool,
        wait: Duration,
        alone: PolicyDecision,
    ) -> PolicyDecision {
        if self.when_full == WhenFull::Reject {
            return reject_newcomer(&self.shape, charge.then_some(&self.counters), wait, alone);
        }
        let mut overflow = lock(&self.overflow);
        let epoch = overflow.epoch;
        let full_at = &mut overflow.full_at[usize::from(tier)];
        let before = *full_at;
        let answer = self.look(epoch, tier, now_ns, costs, |limit| before[limit]);
        if !charge {
            return answer;
        }
        self.counters.shared.fetch_add(1, Ordering::Relaxed);
        if answer.decision.is_allowed() {
            self.charge(
                epoch,
                tier,
                now_ns,
                costs,
                |limit| before[limit],
                |limit, value| full_at[limit] = value,
            );
        }
        answer
    }

    /// Puts new quotas in force, set by set; each bucket stays as full in proportion as it was. `change` changes the
    /// policies of the tiers and says the numbers of their buckets; `false` if there are none: then nothing changed.
    pub(super) fn change(
        &self,
        now_ns: u64,
        change: impl FnOnce(&mut [Policy]) -> Option<Vec<NarrowBucket>>,
    ) -> bool {
        let mut policies = lock(&self.policies);
        let mut changed = policies.clone();
        let Some(new) = change(&mut changed) else { return false };
        let mut overflow = lock(&self.overflow);
        let half = self.numbers.len() / 2;
        let start = if overflow.epoch == 0 { 0 } else { half };
        let old: Vec<NarrowBucket> = self.numbers[start..][..half].iter().map(Numbers::read).collect();
        // No set is in the other epoch. Who read its numbers before finds the version of his set changed: what this thread
        // knows, among it the change before, comes before the stores.
        fence(Ordering::Release);
        for (numbers, bucket) in self.numbers[half - start..].iter().zip(&new) {
            numbers.write(*bucket);
        }
        let carry_over = |tier: usize, limit: usize, full_at: u64| {
            let (from, to) = (&old[tier * self.limits + limit], &new[tier * self.limits + limit]);
            from.carry_over(full_at, now_ns, to)
        };
        for (tier, full_at) in overflow.full_at.iter_mut().enumerate() {
            for (limit, full_at) in full_at.iter_mut().enumerate().take(self.limits) {
                *full_at = carry_over(tier, limit, *full_at);
            }
        }
        overflow.epoch ^= EPOCH;
        drop(overflow);
        for index in 0..self.sets.len() {
            let mut locked = self.set_at(index).lock();
            for slot in 1..=SLOTS {
                let tier = usize::from(tier_of(locked.set.key(slot)));
                for limit in 0..self.limits {
                    let value = carry_over(tier, limit, locked.set.full_at(slot, limit));
                    locked.set.set_full_at(slot, limit, value);
                }
            }
            locked.version ^= EPOCH;
        }
        *policies = changed;
        true
    }

    /// How many slots hold a bucket that is not full.
    pub(super) fn busy(&self, now_ns: u64) -> usize {
        (0..self.sets.len())
            .map(|index| {
                let locked = self.set_at(index).lock();
                (1..=SLOTS).filter(|&slot| self.reset_ns(&locked, slot, now_ns) > 0).count()
            })
            .sum()
    }
}

/// What a newcomer is answered that finds no slot, where newcomers are rejected; without `counters` nobody counts it.
/// Shadow limits reject nobody.
pub(super) fn reject_newcomer(
    policy: &Policy,
    counters: Option<&Counters>,
    wait: Duration,
    alone: PolicyDecision,
) -> PolicyDecision {
    if policy.limits().iter().all(|limit| limit.mode == Mode::Shadow) {
        return alone;
    }
    if let Some(counters) = counters {
        counters.refused.fetch_add(1, Ordering::Relaxed);
    }
    let decision = Decision::Rejected { retry_after: wait, remaining: 0, reset_after: wait };
    PolicyDecision { decision, limit: None, shadow: None }
}

/// What a lock protects is whole wherever its holder might panic, so a poisoned one is taken all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer about `lag` later, in the time of a caller whose clock is that much behind.
pub(super) fn seen_earlier(answer: PolicyDecision, lag_ns: u64) -> PolicyDecision {
    let lag = Duration::from_nanos(lag_ns);
    let later = |time: Duration| if time.is_zero() { time } else { time.saturating_add(lag) };
    let decision = match answer.decision {
        Decision::Allowed { start_after, remaining, reset_after } => {
            Decision::Allowed { start_after, remaining, reset_after: later(reset_after) }
        }
        Decision::Rejected { retry_after, remaining, reset_after } => {
            Decision::Rejected { retry_after: later(retry_after), remaining, reset_after: later(reset_after) }
        }
        never @ Decision::Never { .. } => never,
    };
    PolicyDecision { decision, ..answer }
}
