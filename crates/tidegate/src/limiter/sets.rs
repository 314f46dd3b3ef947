//! The table of sets: for any algorithm, and for quotas whose state needs more than 64 bits.
//!
//! A set is a lock around [`SLOTS`] slots. A slot is a fingerprint, the whole hash of its key, and a state of the core for
//! each limit. Nothing is kept for a key beyond its slot (but by the sliding log, whose state is a list; a newcomer
//! allocates for the moment), and the table never grows, rehashes or sweeps. What is said in `flat.rs` of free slots, of newcomers in a full set and of time holds here too.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tidegate_core::algorithm::Charged;
use tidegate_core::{Algorithm, Decision, Mode, Policy, PolicyDecision, State, Step};

use super::WhenFull;
use super::flat::{Counters, reject_newcomer, seen_earlier};
use super::shim::Ordering;

/// Slots in a set. Twice as many would halve the evictions at the same load and double the time that a key that is
/// not there takes; with 8, all fingerprints of a set are one cache line.
pub(super) const SLOTS: usize = 8;

/// The table.
#[derive(Debug)]
pub(super) struct Sets {
    sets: Box<[Mutex<Set>]>,
    /// The policy of each tier.
    policies: RwLock<Vec<Policy>>,
    limits: usize,
    when_full: WhenFull,
    /// For [`WhenFull::Share`]: the state of all newcomers of each tier that found no slot.
    overflow: Mutex<Box<[Box<[State]>]>>,
    pub(super) counters: Counters,
}

/// One lock's worth of the table.
#[derive(Debug)]
struct Set {
    /// Apart from the states, so that finding a key reads one cache line.
    fingerprints: [u64; SLOTS],
    tiers: [u8; SLOTS],
    /// For each slot, a state for each limit.
    states: Box<[State]>,
    /// When a slot was last given to another key.
    reused_at: u64,
}

/// A call as a set sees it.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    hash: u64,
    tier: u8,
    now: u64,
    costs: &'a [u64],
    charge: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A step leaves a set whole wherever it might panic, so a poisoned lock is taken all the same.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long until a state is as good as new.
fn reset_after(algorithm: &Algorithm, state: &State, now: u64) -> Duration {
    match algorithm.look(state, now, 0) {
        Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. } => reset_after,
        // Cost 0 is above no capacity.
        Decision::Never { .. } => Duration::ZERO,
    }
}

fn decide(policy: &Policy, states: &[State], now: u64, costs: &[u64]) -> PolicyDecision {
    policy.combine(|limit| policy.limits()[limit].algorithm.look(&states[limit], now, costs[limit]))
}

/// Charges a call that was allowed: each enforced limit, and each shadow limit that allows it itself.
fn charge(policy: &Policy, states: &mut [State], now: u64, costs: &[u64]) {
    for ((limit, state), &cost) in policy.limits().iter().zip(states).zip(costs) {
        let charged = limit.mode == Mode::Enforce || limit.algorithm.look(state, now, cost).is_allowed();
        if charged && cost > 0 {
            limit.algorithm.charge(state, now, cost);
        }
    }
}

fn fresh(policy: &Policy) -> Box<[State]> {
    policy.limits().iter().map(|limit| limit.algorithm.fresh()).collect()
}

fn carry_over(from: &Policy, to: &Policy, states: &mut [State], now: u64) {
    for ((from, to), state) in from.limits().iter().zip(to.limits()).zip(states) {
        *state = from.algorithm.carry_over(state, now, &to.algorithm);
    }
}

impl Sets {
    /// A table of `sets` sets for the policies of the tiers, which have the same limits in number, name and mode.
    pub(super) fn new(policies: Vec<Policy>, sets: usize, when_full: WhenFull) -> Self {
        let states = policies.first().map(fresh).unwrap_or_default();
        let set = || Set {
            fingerprints: [0; SLOTS],
            tiers: [0; SLOTS],
            states: states.iter().cycle().take(states.len() * SLOTS).cloned().collect(),
            reused_at: 0,
        };
        Self {
            sets: (0..sets).map(|_| Mutex::new(set())).collect(),
            limits: states.len(),
            overflow: Mutex::new(policies.iter().map(fresh).collect()),
            policies: RwLock::new(policies),
            when_full,
            counters: Counters::default(),
        }
    }

    /// Bytes of a set.
    pub(super) const fn set_bytes(limits: usize) -> usize {
        size_of::<Mutex<Set>>() + SLOTS * limits * size_of::<State>()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sets.len() * Self::set_bytes(self.limits)
    }

    pub(super) fn slots(&self) -> usize {
        self.sets.len() * SLOTS
    }

    pub(super) fn policy(&self, tier: usize) -> Policy {
        self.read()[tier].clone()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Policy>> {
        self.policies.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides for all limits of the key's tier: all are charged, or none. `charge` false only looks.
    pub(super) fn decide(
        &self,
        hash: u64,
        tier: u8,
        now: u64,
        costs: &[u64],
        charge: bool,
    ) -> PolicyDecision {
        let policies = self.read();
        let call = Call { hash, tier, now, costs, charge };
        let result = lock(&self.sets[self.index(hash)]).step(self, &policies, call);
        result.unwrap_or_else(|(wait, alone)| {
            self.without_slot(&policies[usize::from(tier)], call, wait, alone)
        })
    }

    /// A newcomer in a full set, where nobody is evicted.
    fn without_slot(
        &self,
        policy: &Policy,
        call: Call<'_>,
        wait: Duration,
        alone: PolicyDecision,
    ) -> PolicyDecision {
        if self.when_full == WhenFull::Reject {
            return reject_newcomer(policy, call.charge.then_some(&self.counters), wait, alone);
        }
        let mut overflow = lock(&self.overflow);
        let states = &mut overflow[usize::from(call.tier)];
        let answer = decide(policy, states, call.now, call.costs);
        if !call.charge {
            return answer;
        }
        self.counters.shared.fetch_add(1, Ordering::Relaxed);
        if answer.decision.is_allowed() {
            charge(policy, states, call.now, call.costs);
        }
        answer
    }

    /// Takes a charge of the only limit back, at the time that `now` reads under the lock; says that time and the units.
    /// `None` if nothing comes back.
    pub(super) fn refund(
        &self,
        hash: u64,
        tier: u8,
        charged: &Charged,
        now: impl FnOnce() -> u64,
    ) -> Option<(u64, u128)> {
        let policies = self.read();
        let limit =
            policies[usize::from(tier)].limits().first().filter(|limit| limit.mode == Mode::Enforce)?;
        let mut set = lock(&self.sets[self.index(hash)]);
        let slot = set.fingerprints.iter().position(|&held| held == hash)?;
        // When a slot was given away after the call, it may have been that of this key, and its debt is forgotten with it.
        let has_room = set.fingerprints.contains(&0);
        let is_kept = set.reused_at < charged.at || (set.reused_at == 0 && has_room);
        if set.tiers[slot] != tier || !is_kept {
            return None;
        }
        let now = now();
        let units = limit.algorithm.refund_unwatched(&mut set.states[slot * self.limits], charged, now)?;
        Some((now, units))
    }

    fn index(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sets, which is a usize")]
        let index = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        index
    }

    /// Puts new policies in force; each limiter stays as full in proportion as it was. Decisions wait meanwhile.
    pub(super) fn change(&self, now: u64, change: impl FnOnce(&mut [Policy])) {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        let old = policies.clone();
        change(&mut policies);
        for set in &self.sets {
            let mut set = lock(set);
            for slot in 0..SLOTS {
                let tier = usize::from(set.tiers[slot]);
                let states = set.states_of(slot, self.limits);
                carry_over(&old[tier], &policies[tier], states, now);
            }
        }
        for ((states, old), new) in lock(&self.overflow).iter_mut().zip(&old).zip(policies.iter()) {
            carry_over(old, new, states, now);
        }
    }

    /// How many slots hold a limiter that is not as good as new.
    pub(super) fn busy(&self, now: u64) -> usize {
        let policies = self.read();
        self.sets
            .iter()
            .map(|set| {
                let mut set = lock(set);
                (0..SLOTS).filter(|&slot| !set.reset_after(&policies, slot, now).is_zero()).count()
            })
            .sum()
    }
}

impl Set {
    fn states_of(&mut self, slot: usize, limits: usize) -> &mut [State] {
        &mut self.states[slot * limits..][..limits]
    }

    fn reset_after(&mut self, policies: &[Policy], slot: usize, now: u64) -> Duration {
        let policy = &policies[usize::from(self.tiers[slot])];
        let states = self.states_of(slot, policy.limits().len());
        let resets = policy
            .limits()
            .iter()
            .zip(states)
            .map(|(limit, state)| reset_after(&limit.algorithm, state, now));
        resets.max().unwrap_or(Duration::ZERO)
    }

    /// The decision; or for a newcomer that gets no slot, how long until one is free, and the decision it would get.
    fn step(
        &mut self,
        table: &Sets,
        policies: &[Policy],
        call: Call<'_>,
    ) -> Result<PolicyDecision, (Duration, PolicyDecision)> {
        let policy = &policies[usize::from(call.tier)];
        let Some(slot) = self.fingerprints.iter().position(|&held| held == call.hash) else {
            return self.step_newcomer(table, policies, call);
        };
        let old_tier = usize::from(self.tiers[slot]);
        let states = self.states_of(slot, table.limits);
        if old_tier != usize::from(call.tier) {
            if !call.charge {
                let mut states: Box<[State]> = (&*states).into();
                carry_over(&policies[old_tier], policy, &mut states, call.now);
                return Ok(decide(policy, &states, call.now, call.costs));
            }
            carry_over(&policies[old_tier], policy, states, call.now);
            self.tiers[slot] = call.tier;
        }
        let states = self.states_of(slot, table.limits);
        let answer = decide(policy, states, call.now, call.costs);
        if call.charge && answer.decision.is_allowed() {
            charge(policy, states, call.now, call.costs);
        }
        Ok(answer)
    }

    /// A key without a slot. It gets one only if the call leaves something to remember.
    fn step_newcomer(
        &mut self,
        table: &Sets,
        policies: &[Policy],
        call: Call<'_>,
    ) -> Result<PolicyDecision, (Duration, PolicyDecision)> {
        let policy = &policies[usize::from(call.tier)];
        let time = call.now.max(self.reused_at);
        let mut states = fresh(policy);
        let answer = seen_earlier(decide(policy, &states, time, call.costs), time - call.now);
        if !answer.decision.is_allowed() {
            return Ok(answer);
        }
        charge(policy, &mut states, time, call.costs);
        if states.iter().zip(policy.limits()).all(|(state, limit)| *state == limit.algorithm.fresh()) {
            return Ok(answer);
        }
        let room = self.room(table, policies, time);
        let late = Duration::from_nanos(time - call.now);
        let slot = room.map_err(|wait| (wait.saturating_add(late), answer))?;
        if call.charge {
            self.give(table, policies, slot, time);
            self.fingerprints[slot] = call.hash;
            self.tiers[slot] = call.tier;
            self.states_of(slot, table.limits).clone_from_slice(&states);
        }
        Ok(answer)
    }

    /// A free slot, or else what the rule says; without one, how long until one is free.
    fn room(&mut self, table: &Sets, policies: &[Policy], now: u64) -> Result<usize, Duration> {
        let mut soonest = 0;
        let mut least = Duration::MAX;
        for slot in 0..SLOTS {
            let reset_after = self.reset_after(policies, slot, now);
            if reset_after.is_zero() {
                return Ok(slot);
            }
            if reset_after < least {
                (soonest, least) = (slot, reset_after);
            }
        }
        if table.when_full == WhenFull::Evict { Ok(soonest) } else { Err(least) }
    }

    /// Notes that the slot that was found for a newcomer is taken from whoever had it.
    fn give(&mut self, table: &Sets, policies: &[Policy], slot: usize, now: u64) {
        // A slot that was never used stands for no key that could come back.
        if self.fingerprints[slot] == 0 {
            return;
        }
        self.reused_at = self.reused_at.max(now);
        if self.reset_after(policies, slot, now).is_zero() {
            return;
        }
        let policy = &policies[usize::from(self.tiers[slot])];
        let states = self.states_of(slot, table.limits);
        let forgotten = policy.limits().iter().zip(states).map(|(limit, state)| {
            let full = limit.algorithm.look(&limit.algorithm.fresh(), now, 0).remaining();
            full.saturating_sub(limit.algorithm.look(state, now, 0).remaining())
        });
        table.counters.evicted.fetch_add(1, Ordering::Relaxed);
        table.counters.forgotten.fetch_add(forgotten.max().unwrap_or(0), Ordering::Relaxed);
    }
}
