//! One limit of a layer: its limiter, the quotas of its keys, and what the fields say of each.

use std::collections::{HashMap, HashSet};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderValue;
use tidegate::clock::Clock;
use tidegate::shared::{SharedTake, share};
use tidegate::{
    Algorithm, Capacity, Decision, Kind, Limit, Limiter, Mode, Policy, Receipt, Step, Tier, WhenFull,
};

use super::build::{RateLimitError, RequestLimit};
use super::desk::{Ask, CostFn, Shown};
use super::key::{Key, KeyBy, RequestHead};
use super::shape::Shape;
use crate::fields::{PolicyItem, quoted, write_policy};

/// How many different quotas a limit has room for at least, that later ones fit without a new table: 2 KiB a limit. Half
/// as many would make a reload forget debts more often; twice as many would help few.
const TIERS_MIN: usize = 32;

/// The most different quotas of a limit: those that a limiter can tell apart.
const TIERS_MAX: usize = 256;

/// One limit.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    /// The name as the fields have it.
    pub(super) quoted: Box<str>,
    pub(super) mode: Mode,
    by: KeyBy,
    cost: Option<CostFn>,
    limiter: Arc<Limiter>,
    capacity: Capacity,
    when_full: WhenFull,
    clock: Clock,
    /// What that clock is ahead of the layer's.
    ahead_ns: u64,
    /// What is in the table.
    table: Table,
    /// The quota of those that have no other, then room for others; some are not in use.
    tiers: Vec<TierQuota>,
    /// Whose quota is another, and which.
    overrides: HashMap<Key<'static>, usize>,
    /// Is another one when the quota of a key changes: a charge from before may be worn off already.
    era: Arc<()>,
}

/// One quota of a limit.
#[derive(Debug, Clone)]
pub(super) struct TierQuota {
    tier: Tier,
    pub(super) algorithm: Algorithm,
    /// What the table has instead.
    in_table: Algorithm,
    /// The quota or the name of the algorithm, for people.
    pub(super) label: Box<str>,
    /// What the fields say of it; `None` if it limits nothing.
    pub(super) shape: Option<Shape>,
    /// What `RateLimit-Policy` says of it, written.
    pub(super) policy: Option<HeaderValue>,
}

/// What the table of a limit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// It decides.
    Decides,
    /// It decides for so many keys while the buckets that others share do not answer, by the share of one of so many
    /// machines.
    Share { machines: NonZeroU32, keys: usize },
    /// Nothing: others decide, and nobody if they do not answer.
    Idle,
}

impl Table {
    fn algorithm(self, limit: &str, algorithm: &Algorithm) -> Result<Algorithm, RateLimitError> {
        let (Self::Share { machines, .. }, Algorithm::TokenBucket(bucket)) = (self, algorithm) else {
            return Ok(*algorithm);
        };
        let quota = share(bucket, machines)
            .map_err(|source| RateLimitError::Share { limit: limit.into(), source })?;
        Ok(algorithm.with_quota(quota))
    }

    fn capacity(self, wanted: Capacity) -> Capacity {
        match self {
            Self::Decides => wanted,
            Self::Share { keys, .. } => Capacity::Keys(keys),
            Self::Idle => Capacity::Keys(1),
        }
    }
}

/// What is to be changed in a limiter that is used already.
pub(super) type Change = (usize, Algorithm);

impl Entry {
    /// The limit that is asked for, with the limiter of `previous` if that can be changed into it; the changes are made
    /// by [`Self::change`].
    pub(super) fn new(
        limit: RequestLimit,
        previous: Option<&Self>,
        table: Table,
        clock: &LayerClock,
    ) -> Result<(Self, Vec<Change>), RateLimitError> {
        let name = limit.name;
        let quota = |source| RateLimitError::Quota { limit: name.clone(), source };
        let (algorithm, label) = limit.algorithm.map_err(quota)?;
        let first = (algorithm, label);
        let mut wanted: Vec<(Algorithm, Box<str>)> = vec![first];
        let mut of_key = HashMap::new();
        for (key, quota) in limit.overrides {
            let other = (algorithm.with_quota(quota), quota.to_string().into());
            let index = wanted.iter().position(|(known, _)| *known == other.0).unwrap_or(wanted.len());
            if index == wanted.len() {
                wanted.push(other);
            }
            if of_key.contains_key(&key) {
                return Err(RateLimitError::KeyTwice { limit: name, key: key.to_string().into() });
            }
            of_key.insert(key, index);
        }
        if wanted.len() > TIERS_MAX {
            return Err(RateLimitError::TooManyQuotas { limit: name, quotas: wanted.len() });
        }
        let in_table: Vec<Algorithm> = wanted
            .iter()
            .map(|(algorithm, _)| table.algorithm(&name, algorithm))
            .collect::<Result<_, _>>()?;
        let capacity = table.capacity(limit.capacity);

        let is_same = |old: &&Self| {
            old.by.is(&limit.by)
                && old.tiers[0].algorithm.kind() == algorithm.kind()
                && (old.table, old.capacity, old.when_full) == (table, capacity, limit.when_full)
        };
        let kept = previous.filter(is_same).and_then(|old| Some((old, old.places_for(&wanted)?)));
        let places = match &kept {
            Some((_, places)) => places.clone(),
            None => (0..wanted.len()).collect(),
        };
        let (mut tiers, limiter, (clock, ahead_ns)) = match &kept {
            Some((old, _)) => {
                (old.tiers.clone(), Arc::clone(&old.limiter), (old.clock.clone(), old.ahead_ns))
            }
            None => {
                let room = wanted.len().clamp(TIERS_MIN, TIERS_MAX);
                let all = in_table.iter().chain(std::iter::repeat(&in_table[0])).take(room);
                let algorithms: Vec<Algorithm> = all.copied().collect();
                let (clock, ahead_ns) = clock.of(&algorithm);
                let limiter = limiter(&name, &algorithms, capacity, limit.when_full, &clock)
                    .map_err(|source| RateLimitError::Limiter { limit: name.clone(), source })?;
                (tiers(&limiter, algorithms), Arc::new(limiter), (clock, ahead_ns))
            }
        };
        let overrides: HashMap<_, _> = of_key.into_iter().map(|(key, index)| (key, places[index])).collect();
        let era = kept.filter(|(old, _)| old.overrides == overrides).map(|(old, _)| Arc::clone(&old.era));
        let mut changes = Vec::new();
        for (((algorithm, label), in_table), &place) in wanted.into_iter().zip(in_table).zip(&places) {
            let tier = &mut tiers[place];
            if tier.in_table != in_table {
                changes.push((place, in_table));
            }
            let shape = Shape::of(&algorithm, limit.shown_max);
            let policy = |shape: &Shape| {
                let window_seconds = NonZeroU64::new(shape.window_seconds);
                let item = PolicyItem::new(&name, shape.capacity);
                write_policy(&[PolicyItem { window_seconds, unit: limit.unit.clone(), ..item }])
            };
            let policy = shape.as_ref().map(policy).transpose()?;
            *tier = TierQuota { tier: tier.tier, algorithm, in_table, label, shape, policy };
        }
        let entry = Self {
            quoted: quoted(&name)?,
            name: Arc::from(name),
            mode: limit.mode,
            by: limit.by,
            cost: limit.cost,
            limiter,
            capacity,
            table,
            when_full: limit.when_full,
            clock,
            ahead_ns,
            tiers,
            overrides,
            era: era.filter(|_| changes.is_empty()).unwrap_or_default(),
        };
        Ok((entry, changes))
    }

    /// In which tier each quota goes: the one that it has, or one that is not in use. `None` if there are too few.
    fn places_for(&self, wanted: &[(Algorithm, Box<str>)]) -> Option<Vec<usize>> {
        let mut free: Vec<bool> = self.tiers.iter().map(|_| true).collect();
        free[0] = false;
        let has = |(algorithm, _): &(Algorithm, Box<str>)| {
            self.tiers[1..].iter().position(|tier| tier.algorithm == *algorithm).map(|index| index + 1)
        };
        let kept: Vec<Option<usize>> = std::iter::once(Some(0)).chain(wanted[1..].iter().map(has)).collect();
        kept.iter().flatten().for_each(|&place| free[place] = false);
        let used = |place: &usize| self.overrides.values().any(|tier| tier == place);
        // A tier that nobody has first: the others' keys may come once more before all know of the change.
        let mut order: Vec<usize> = (1..self.tiers.len()).filter(|&place| free[place]).collect();
        order.sort_by_key(used);
        let mut order = order.into_iter();
        kept.into_iter().map(|place| place.or_else(|| order.next())).collect()
    }

    /// Makes the changes in the limiter, and says whether its keys have what they had: if the new quotas do not fit its
    /// table, there is a new one, where all start anew.
    pub(super) fn change(&mut self, changes: &[Change]) -> bool {
        if changes.is_empty() || self.set(changes) {
            return true;
        }
        // Quotas that nobody has any more have to fit the table too, so they go. A key that had one is as full as it was.
        let in_use: HashSet<usize> = self.overrides.values().copied().chain([0]).collect();
        let (main, in_table) = (self.tiers[0].algorithm, self.tiers[0].in_table);
        let mut all = changes.to_vec();
        for place in (0..self.tiers.len()).filter(|place| !in_use.contains(place)) {
            (self.tiers[place].algorithm, self.tiers[place].in_table) = (main, in_table);
            all.push((place, in_table));
        }
        if self.set(&all) {
            return true;
        }
        let algorithms: Vec<Algorithm> = self.tiers.iter().map(|tier| tier.in_table).collect();
        // It differs from the old one in numbers only, so that it can be built as that could.
        if let Ok(new) = limiter(&self.name, &algorithms, self.capacity, self.when_full, &self.clock) {
            self.limiter = Arc::new(new);
        }
        false
    }

    /// All together: one after the other, a new quota would have to fit beside an old one that goes as well.
    fn set(&self, changes: &[Change]) -> bool {
        let changes: Vec<_> =
            changes.iter().map(|(place, algorithm)| (self.tiers[*place].tier, *algorithm)).collect();
        self.limiter.set_algorithms(0, &changes).is_ok()
    }

    /// Whether both count in one table.
    pub(super) fn shares_table(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.limiter, &other.limiter)
    }

    pub(super) fn ask<'a>(&self, head: RequestHead<'a>) -> Ask<'a> {
        let key = self.by.of(head).unwrap_or(Key::everyone());
        let tier = self.place_of(&key);
        Ask { key, tier, cost: self.cost.as_ref().map_or(1, |cost| cost(head)) }
    }

    /// What a request takes from a bucket that others share.
    pub(super) fn take(&self, ask: &Ask<'_>) -> SharedTake {
        SharedTake {
            limit: Arc::clone(&self.name),
            key: ask.key.name().into(),
            algorithm: self.tiers[ask.tier].algorithm,
            cost: ask.cost,
            mode: self.mode,
        }
    }

    /// Which quota a key has, as an index for [`Self::quota`].
    pub(super) fn place_of(&self, key: &Key<'_>) -> usize {
        if self.overrides.is_empty() { 0 } else { self.overrides.get(key).copied().unwrap_or(0) }
    }

    pub(super) fn quota(&self, place: usize) -> &TierQuota {
        &self.tiers[place]
    }

    /// Decides and charges.
    pub(super) fn check(&self, ask: &Ask<'_>, now: u64) -> Decision {
        let tier = self.tiers[ask.tier].tier;
        self.limiter.check_in_at(tier, &ask.key, ask.cost, now.saturating_add(self.ahead_ns))
    }

    /// Decides another cost and charges nothing.
    pub(super) fn peek(&self, ask: &Ask<'_>, cost: u64, now: u64) -> Decision {
        let tier = self.tiers[ask.tier].tier;
        self.limiter.peek_in_at(tier, &ask.key, cost, now.saturating_add(self.ahead_ns))
    }

    /// A key that had another quota when it was charged last is counted by its own from now on. A look does not do that, and
    /// the wait that it tells is only true if the key fills at the rate of its quota meanwhile.
    pub(super) fn carry_over(&self, ask: &Ask<'_>, now: u64) {
        let _nothing = self.check(&Ask { key: ask.key.borrowed(), tier: ask.tier, cost: 0 }, now);
    }

    /// Whose quotas they are: as long as it is the same, no key has had another.
    pub(super) fn era(&self) -> Weak<()> {
        Arc::downgrade(&self.era)
    }

    pub(super) fn is_of_era(&self, era: &Weak<()>) -> bool {
        std::ptr::eq(era.as_ptr(), Arc::as_ptr(&self.era))
    }

    /// What a call of cost 0 is told after this decision, by which the call was charged or not.
    ///
    /// A token bucket has said that already, if each key has its own; windows, queues and buckets in common are asked.
    pub(super) fn left(&self, ask: &Ask<'_>, decision: &Decision, is_charged: bool, now: u64) -> Decision {
        let is_bucket = self.tiers[ask.tier].algorithm.kind() == Kind::TokenBucket;
        match *decision {
            Decision::Allowed { .. } if !is_charged => self.peek(ask, 0, now),
            Decision::Allowed { remaining, reset_after, .. }
            | Decision::Rejected { remaining, reset_after, .. }
                if is_bucket && self.when_full == WhenFull::Evict =>
            {
                Decision::Allowed { start_after: Duration::ZERO, remaining, reset_after }
            }
            _ => self.peek(ask, 0, now),
        }
    }

    /// What takes a charge back.
    pub(super) fn receipt(&self, ask: &Ask<'_>, now: u64, decision: &Decision) -> Option<Receipt> {
        let (tier, now) = (self.tiers[ask.tier].tier, now.saturating_add(self.ahead_ns));
        self.limiter.receipt_in(tier, &ask.key, ask.cost, now, decision)
    }

    pub(super) fn refund(&self, receipt: Receipt) {
        self.limiter.refund(receipt);
    }

    /// Makes what was charged another cost, and says how much of it was not there.
    pub(super) fn settle(&self, receipt: Receipt, cost: u64) -> u64 {
        self.limiter.settle(receipt, cost)
    }

    /// The numbers to show after a decision.
    pub(super) fn shown(&self, ask: &Ask<'_>, decision: &Decision, now: u64) -> Shown {
        self.shown_by(ask, decision, |cost| self.peek(ask, cost, now))
    }

    /// As [`Self::shown`], where `peek` decides another cost at the same time.
    pub(super) fn shown_by(
        &self,
        ask: &Ask<'_>,
        decision: &Decision,
        peek: impl Fn(u64) -> Decision,
    ) -> Shown {
        let shape = self.tiers[ask.tier].shape.as_ref();
        let shown = shape.map(|shape| shape.shown(decision, peek));
        Shown { tier: ask.tier, ..shown.unwrap_or_default() }
    }

    /// Whether a request costs more than a full bucket of the quota holds.
    pub(super) fn is_above_quota(&self, ask: &Ask<'_>) -> bool {
        let algorithm = &self.tiers[ask.tier].algorithm;
        matches!(algorithm.look(&algorithm.fresh(), 0, ask.cost), Decision::Never { .. })
    }

    /// The kind of key that it has.
    pub(super) const fn by(&self) -> &KeyBy {
        &self.by
    }

    /// The algorithms that its keys have.
    pub(super) fn algorithms(&self) -> impl Iterator<Item = &Algorithm> {
        let in_use = std::iter::once(&0).chain(self.overrides.values());
        in_use.map(|place| &self.tiers[*place].algorithm)
    }

    pub(super) fn bytes(&self) -> usize {
        self.limiter.bytes()
    }

    pub(super) fn stats(&self) -> tidegate::Stats {
        self.limiter.stats()
    }

    pub(super) fn as_limit(&self) -> Limit {
        let (name, algorithm) = ((*self.name).into(), self.tiers[0].algorithm);
        Limit { name, algorithm, mode: self.mode }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("quota", &self.tiers[0].label)
            .field("key", &self.by)
            .field("overrides", &self.overrides.len())
            .finish_non_exhaustive()
    }
}

/// What time it is for a layer.
#[derive(Debug, Clone)]
pub(super) struct LayerClock {
    pub(super) clock: Clock,
    /// Whether it was given, for tests for example. Then all limits have it.
    pub(super) is_given: bool,
}

impl LayerClock {
    pub(super) fn new(given: Option<Clock>) -> Self {
        Self { is_given: given.is_some(), clock: given.unwrap_or_default() }
    }

    /// The clock of a limit, and what it is ahead of this one. Buckets do not ask what time it is; windows begin with that
    /// of the wall clock.
    fn of(&self, algorithm: &Algorithm) -> (Clock, u64) {
        let has_windows = matches!(algorithm.kind(), Kind::FixedWindow | Kind::SlidingWindow);
        if !has_windows || self.is_given {
            return (self.clock.clone(), 0);
        }
        let unix = Clock::unix();
        let ahead = unix.now_ns().saturating_sub(self.clock.now_ns());
        (unix, ahead)
    }
}

/// A limiter with a tier for each algorithm. The mode is kept in the layer and not here, where one limit is decided only.
fn limiter(
    name: &str,
    algorithms: &[Algorithm],
    capacity: Capacity,
    when_full: WhenFull,
    clock: &Clock,
) -> Result<Limiter, tidegate::LimiterError> {
    let policy = |algorithm: &Algorithm| {
        Policy::new(vec![Limit { name: name.into(), algorithm: *algorithm, mode: Mode::Enforce }])
    };
    let mut builder = Limiter::builder(policy(&algorithms[0]));
    for (index, algorithm) in algorithms.iter().enumerate().skip(1) {
        builder = builder.tier(&index.to_string(), policy(algorithm));
    }
    builder.capacity(capacity).when_full(when_full).clock(clock.clone()).build()
}

fn tiers(limiter: &Limiter, algorithms: Vec<Algorithm>) -> Vec<TierQuota> {
    let tier = |index: usize| limiter.tier(&index.to_string()).unwrap_or_default();
    let quota = |(index, algorithm)| TierQuota {
        tier: tier(index),
        algorithm,
        in_table: algorithm,
        label: Box::default(),
        shape: None,
        policy: None,
    };
    algorithms.into_iter().enumerate().map(quota).collect()
}
