//! Arrivals through limiters in virtual time: who is allowed, who is rejected, who waits.
//!
//! Nothing here decides: decisions come from `tidegate-core`, the same code that a server runs. This keeps a state for
//! each key and each worker, counts, and checks with a log of its own ([`WorstWindow`]) what was allowed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU64;
use std::time::Duration;

use thiserror::Error;
use tidegate_core::{Algorithm, Decision, InFlight, Limit, Mode, Policy, Quota, State, Step};

use crate::tally::{KeyTally, LimitTally, Tally, Timeline, Waits};
use crate::{Arrivals, Over, WorstWindow};

/// A limit in a simulation.
#[derive(Debug, Clone)]
pub struct SimLimit {
    /// The limit.
    pub limit: Limit,
    /// Whether each key has its own state, or all share one.
    pub per_key: bool,
    /// How many calls may run at once, in each state. Only an enforced limit counts them.
    pub max_in_flight: Option<NonZeroU64>,
    /// Keys with another quota, by their name, and the algorithm with that quota.
    pub overrides: HashMap<Box<str>, Algorithm>,
}

/// How several workers share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// Each worker has the whole limit for itself: the allowance is multiplied by the workers.
    Copied,
    /// Each worker has its part of the limit: the bound holds, and what one does not use another cannot have.
    Split,
    /// All workers use one state: as one worker.
    Shared,
    /// Each worker takes chunks out of one bucket and spends them without asking: see
    /// [`simulate_leased`](crate::simulate_leased).
    Leased,
}

impl Share {
    /// The ways that every limiter can be shared, in the order of the tables; [`Self::Leased`] is for token buckets.
    pub const ALL: [Self; 3] = [Self::Copied, Self::Split, Self::Shared];

    /// The name as written in flags and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Split => "split",
            Self::Shared => "shared",
            Self::Leased => "leased",
        }
    }
}

/// What a run does beside deciding.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The half-open window of [`Tally::worst`].
    pub worst_window: Duration,
    /// How long an allowed call runs; `None` if that is not simulated.
    pub service_time: Option<Duration>,
    /// How many calls may run at once, over all keys and workers. A call whose turn comes when no place is free is
    /// shed: it counts as rejected.
    pub max_in_flight: Option<NonZeroU64>,
    /// Whether to count for each key.
    pub by_key: bool,
    /// How many bins the timeline has; 0 for no timeline.
    pub bins: usize,
    /// The bucket that [`Tally::over`] compares with, for all calls or for each key.
    pub one_bucket: Option<OneBucket>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worst_window: Duration::from_secs(1),
            service_time: None,
            max_in_flight: None,
            by_key: false,
            bins: 0,
            one_bucket: None,
        }
    }
}

/// One bucket to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneBucket {
    /// Its quota.
    pub quota: Quota,
    /// Whether each key has one.
    pub per_key: bool,
}

/// Why a limit cannot be shared among workers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// There are more workers than tokens.
    #[error(
        "{what} {tokens} cannot be split among {workers} workers, each needs at least 1; use fewer workers, a larger {what}, or share it"
    )]
    TooFew {
        /// Which number is too small, `burst` or `count`.
        what: &'static str,
        /// How many tokens there are.
        tokens: u64,
        /// How many workers there are.
        workers: usize,
    },
    /// The part of a worker is no quota.
    #[error("the limit cannot be split among {workers} workers")]
    Quota {
        /// How many workers there are.
        workers: usize,
        /// Why not.
        #[source]
        source: tidegate_core::QuotaError,
    },
}

/// The quota of worker `worker` (from 0) of `workers`, for a limiter with a bucket or with a window.
///
/// A bucket's rate is divided exactly, its burst into whole tokens; a window's count into whole tokens. The first
/// workers get what is left over, so that the parts add up to the whole.
///
/// # Errors
///
/// A burst or count with less than a token for each worker.
pub fn split(quota: Quota, windowed: bool, worker: usize, workers: usize) -> Result<Quota, SplitError> {
    let n = workers.max(1) as u64;
    let quota_error = |source| SplitError::Quota { workers, source };
    let too_few = |what, tokens| SplitError::TooFew { what, tokens, workers };
    if windowed {
        match part(quota.count(), worker, workers) {
            0 => Err(too_few("count", quota.count())),
            count => Quota::new(count, quota.per()).map_err(quota_error),
        }
    } else {
        match part(quota.burst(), worker, workers) {
            0 => Err(too_few("burst", quota.burst())),
            burst => {
                let per = quota.per().saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
                Quota::new(quota.count(), per).and_then(|quota| quota.with_burst(burst)).map_err(quota_error)
            }
        }
    }
}

/// The part of worker `worker` (from 0) of `workers` in `whole` tokens: the first workers get what is left over.
#[must_use]
pub fn part(whole: u64, worker: usize, workers: usize) -> u64 {
    let n = workers.max(1) as u64;
    whole / n + u64::from((worker as u64) < whole % n)
}

/// The limits of each worker: one entry for a state that all share, else one for each worker.
///
/// A policy of another worker must have the same limits in number, name and mode.
#[derive(Debug, Clone)]
pub struct Workers {
    /// The limits of each worker; arrival `i` goes to worker `i mod n` (round robin).
    pub limits: Vec<Vec<SimLimit>>,
}

impl Workers {
    /// One worker, or several that share one state.
    #[must_use]
    pub fn one(limits: Vec<SimLimit>) -> Self {
        Self { limits: vec![limits] }
    }
}

/// Runs `arrivals` through `workers`. `progress` hears now and then how many arrivals are done.
///
/// ```
/// use tidegate_core::{Algorithm, Kind, Limit, Mode};
/// use tidegate_sim::{Arrivals, Settings, SimLimit, Workers, simulate};
///
/// let arrivals = Arrivals { times: vec![0, 0, 0, 500_000_000], ..Arrivals::default() };
/// let bucket = Algorithm::new(Kind::TokenBucket, "2/s".parse()?);
/// let limit = Limit { name: "two".into(), algorithm: bucket, mode: Mode::Enforce };
/// let workers = Workers::one(vec![SimLimit { limit, per_key: false, max_in_flight: None, overrides: Default::default() }]);
/// let tally = simulate(&arrivals, &workers, &Settings::default(), &mut |_| {});
/// assert_eq!((tally.allowed, tally.rejected, tally.first_rejected), (3, 1, Some(2)));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[must_use]
pub fn simulate(
    arrivals: &Arrivals,
    workers: &Workers,
    settings: &Settings,
    progress: &mut dyn FnMut(usize),
) -> Tally {
    let mut deciders: Vec<Decider> =
        workers.limits.iter().map(|limits| Decider::new(limits.clone(), arrivals)).collect();
    let mut run = Run::new(arrivals, workers, settings);
    let n = deciders.len().max(1);
    let mut worker = 0;
    for (index, now) in arrivals.times.iter().copied().enumerate() {
        if let Some(decider) = deciders.get_mut(worker) {
            run.step(decider, index, now);
        }
        worker = if worker + 1 == n { 0 } else { worker + 1 };
        if index % (1 << 18) == 0 {
            progress(index);
        }
    }
    run.finish(&deciders)
}

/// The limits and states of one worker.
#[derive(Debug)]
struct Decider {
    policy: Policy,
    /// For each limit, whether each key has a state, and the states.
    states: Vec<(bool, Vec<State>)>,
    /// For each limit, the algorithms of the keys that have another quota.
    overrides: Vec<HashMap<usize, Algorithm>>,
    /// The decisions of the limits about the call at hand.
    looks: Vec<Decision>,
    /// For each limit, the calls that it bound (enforced) or would have refused (shadow).
    refused: Vec<u64>,
}

impl Decider {
    fn new(limits: Vec<SimLimit>, arrivals: &Arrivals) -> Self {
        let keys = arrivals.keys.as_ref().map_or(1, |keys| keys.names.len());
        let states = limits
            .iter()
            .map(|sim| (sim.per_key, vec![sim.limit.algorithm.fresh(); if sim.per_key { keys } else { 1 }]))
            .collect();
        let names = arrivals.keys.iter().flat_map(|keys| keys.names.iter().map(|name| &**name).enumerate());
        let of = |sim: &SimLimit| {
            let other = |(key, name): (usize, _)| Some((key, *sim.overrides.get(name)?));
            if sim.overrides.is_empty() { HashMap::new() } else { names.clone().filter_map(other).collect() }
        };
        let overrides = limits.iter().map(of).collect();
        let refused = vec![0; limits.len()];
        let policy = Policy::new(limits.into_iter().map(|sim| sim.limit).collect());
        Self { policy, states, overrides, looks: Vec::new(), refused }
    }

    #[inline]
    fn look(&mut self, key: usize, now: u64, cost: u64) -> Decision {
        self.looks.clear();
        let limits = self.policy.limits().iter().zip(&self.overrides).zip(&self.states);
        for ((limit, overrides), (per_key, states)) in limits {
            let state = &states[if *per_key { key } else { 0 }];
            self.looks.push(algorithm(limit, overrides, key).look(state, now, cost));
        }
        if let ([only], [limit]) = (self.looks.as_slice(), self.policy.limits())
            && limit.mode == Mode::Enforce
        {
            self.refused[0] += u64::from(!only.is_allowed());
            return *only;
        }
        let answer = self.policy.combine(|index| self.looks[index]);
        for (index, limit) in self.policy.limits().iter().enumerate() {
            let refused = match limit.mode {
                Mode::Enforce => answer.limit == Some(index) && !answer.decision.is_allowed(),
                Mode::Shadow => !self.looks[index].is_allowed(),
            };
            self.refused[index] += u64::from(refused);
        }
        answer.decision
    }

    /// The tokens left at `now`, where there is one limit with one state.
    fn level(&self, now: u64) -> Option<u64> {
        match (self.policy.limits(), self.states.as_slice()) {
            ([limit], [(false, states)]) => Some(limit.algorithm.look(states.first()?, now, 0).remaining()),
            _ => None,
        }
    }

    /// Charges a call that [`Self::look`] allowed: each enforced limit, and each shadow limit that allowed it too.
    #[inline]
    fn charge(&mut self, key: usize, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let limits = self.policy.limits().iter().zip(&self.overrides).zip(&mut self.states).zip(&self.looks);
        for (((limit, overrides), (per_key, states)), look) in limits {
            if limit.mode == Mode::Enforce || look.is_allowed() {
                algorithm(limit, overrides, key).charge(
                    &mut states[if *per_key { key } else { 0 }],
                    now,
                    cost,
                );
            }
        }
    }
}

/// The algorithm of a key in a limit.
#[inline]
fn algorithm<'a>(limit: &'a Limit, overrides: &'a HashMap<usize, Algorithm>, key: usize) -> &'a Algorithm {
    let other = if overrides.is_empty() { None } else { overrides.get(&key) };
    other.unwrap_or(&limit.algorithm)
}

/// What a run has counted so far.
struct Run<'a> {
    arrivals: &'a Arrivals,
    settings: &'a Settings,
    tally: Tally,
    worst: WorstWindow,
    /// What is beyond the bucket that is compared with, for each key or for all; empty if none is.
    over: Vec<Over>,
    /// Calls that start later than they came, earliest first: start and index. Those that start together do so in the
    /// order in which they came.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// The waits of the allowed calls that did wait.
    waits: Vec<u64>,
    /// When running calls end, earliest first, and their keys. An end may be later than the clock can say.
    ends: BinaryHeap<Reverse<(u128, usize)>>,
    /// For each limit on calls in flight, whether each key has a count, and the counts.
    places: Vec<(bool, Vec<InFlight>)>,
    peak: usize,
    timeline: Option<Timeline>,
    one_worker: bool,
    by_key: Vec<KeyTally>,
}

impl<'a> Run<'a> {
    fn new(arrivals: &'a Arrivals, workers: &Workers, settings: &'a Settings) -> Self {
        let keys = arrivals.keys.as_ref().map_or(1, |keys| keys.names.len());
        let of_limits = workers.limits.first().into_iter().flatten().filter_map(|sim| {
            let max = sim.max_in_flight.filter(|_| sim.limit.mode == Mode::Enforce)?;
            Some((sim.per_key, vec![InFlight::new(max); if sim.per_key { keys } else { 1 }]))
        });
        let of_all = settings.max_in_flight.map(|max| (false, vec![InFlight::new(max)]));
        let window = u64::try_from(settings.worst_window.as_nanos()).unwrap_or(u64::MAX);
        Self {
            arrivals,
            settings,
            tally: Tally::default(),
            worst: WorstWindow::new(window),
            over: settings
                .one_bucket
                .map_or_else(Vec::new, |one| vec![Over::new(one.quota); if one.per_key { keys } else { 1 }]),
            waiting: BinaryHeap::new(),
            waits: Vec::new(),
            ends: BinaryHeap::new(),
            places: of_limits.chain(of_all).collect(),
            peak: 0,
            timeline: (settings.bins > 0).then(|| Timeline::new(arrivals, settings.bins)),
            one_worker: workers.limits.len() == 1,
            by_key: if settings.by_key { vec![KeyTally::default(); keys] } else { Vec::new() },
        }
    }

    #[inline]
    fn step(&mut self, decider: &mut Decider, index: usize, now: u64) {
        let key = self.arrivals.key(index);
        let cost = self.arrivals.cost(index);
        if !self.waiting.is_empty() {
            self.start_until(now);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.open(now, |at| if self.one_worker { decider.level(at) } else { None });
        }
        let decision = decider.look(key, now, cost);
        let mut allowed = decision.is_allowed();
        if allowed {
            let wait = decision.start_after();
            if wait.is_zero() {
                // The place and the tokens are taken together: without a place nothing is charged.
                allowed = self.start(now, cost, key);
            } else {
                self.wait(index, now, wait);
            }
        }
        if allowed {
            decider.charge(key, now, cost);
            self.tally.allowed += 1;
            self.tally.allowed_cost += u128::from(cost);
        } else {
            self.tally.rejected += 1;
            self.tally.rejected_cost += u128::from(cost);
            self.tally.never += u64::from(matches!(decision, Decision::Never { .. }));
            self.tally.shed += u64::from(decision.is_allowed());
            if self.tally.first_rejected.is_none() {
                self.tally.first_rejected = Some(index);
            }
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.add(now, allowed, decision.remaining());
        }
        if let Some(tally) = self.by_key.get_mut(key) {
            tally.add(allowed);
        }
    }

    /// Lets a call that came at `now` start after `wait`.
    fn wait(&mut self, index: usize, now: u64, wait: Duration) {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        match now.checked_add(wait) {
            Some(start) => self.waiting.push(Reverse((start, index))),
            // Its turn comes after the clock has ended: it is allowed, and is in no window and takes no place.
            None => self.waits.push(wait),
        }
    }

    /// Starts the waiting calls whose turn has come by `now`.
    fn start_until(&mut self, now: u64) {
        while let Some(Reverse((at, index))) = self.waiting.peek().copied()
            && at <= now
        {
            self.waiting.pop();
            let (time, cost, key) =
                (self.arrivals.times[index], self.arrivals.cost(index), self.arrivals.key(index));
            if self.start(at, cost, key) {
                self.waits.push(at - time);
            } else {
                self.shed(time, cost, key);
            }
        }
    }

    /// Takes back that a call was allowed: when its turn came, there was no place for it.
    fn shed(&mut self, time: u64, cost: u64, key: usize) {
        self.tally.allowed -= 1;
        self.tally.allowed_cost -= u128::from(cost);
        self.tally.rejected += 1;
        self.tally.rejected_cost += u128::from(cost);
        self.tally.shed += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.shed(time);
        }
        if let Some(tally) = self.by_key.get_mut(key) {
            tally.shed();
        }
    }

    /// Starts a call, if there is a place for it everywhere.
    #[inline]
    fn start(&mut self, at: u64, cost: u64, key: usize) -> bool {
        if let Some(service) = self.settings.service_time {
            while let Some(Reverse((end, key))) = self.ends.peek().copied()
                && end <= u128::from(at)
            {
                self.ends.pop();
                for (per_key, counts) in &mut self.places {
                    counts[if *per_key { key } else { 0 }].leave();
                }
            }
            let free = |(per_key, counts): &(bool, Vec<InFlight>)| {
                let count = &counts[if *per_key { key } else { 0 }];
                count.running() < count.max()
            };
            if !self.places.iter().all(free) {
                return false;
            }
            for (per_key, counts) in &mut self.places {
                let _entered = counts[if *per_key { key } else { 0 }].try_enter();
            }
            self.ends.push(Reverse((u128::from(at).saturating_add(service.as_nanos()), key)));
            self.peak = self.peak.max(self.ends.len());
        }
        self.worst.add(at, cost);
        if let Some(last) = self.over.len().checked_sub(1) {
            self.over[key.min(last)].add(at, cost);
        }
        true
    }

    fn finish(mut self, deciders: &[Decider]) -> Tally {
        self.start_until(u64::MAX);
        let mut tally = self.tally;
        tally.worst = self.worst.most();
        tally.worst_at = self.worst.most_at();
        tally.over = self.over.iter().map(Over::most).max();
        tally.waits = Waits::of(tally.allowed, self.waits);
        tally.peak_in_flight = self.settings.service_time.map(|_| self.peak as u64);
        tally.timeline = self.timeline;
        tally.by_key = self.by_key;
        let Some(first) = deciders.first() else { return tally };
        tally.limits = first
            .policy
            .limits()
            .iter()
            .enumerate()
            .map(|(index, limit)| LimitTally {
                name: limit.name.clone(),
                mode: limit.mode,
                refused: deciders.iter().map(|decider| decider.refused[index]).sum(),
            })
            .collect();
        tally
    }
}
