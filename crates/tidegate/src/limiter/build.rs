//! How a limiter is put together, and how its quotas change.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Mutex;

use foldhash::quality::RandomState;
use thiserror::Error;
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Algorithm, Kind, Mode, Policy};

use super::flat::{self, Flat};
use super::refund::Refunds;
use super::sets::{self, Sets};
use super::{Limiter, Table, Tier, WhenFull};
use crate::clock::Clock;
use crate::narrow::NarrowBucket;

/// The most tiers: a tier is 8 bits of a slot.
const TIERS_MAX: usize = 256;

/// How much room a limiter has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capacity {
    /// Room for so many keys that have a debt at one time. A table has some more slots than that, since keys do not
    /// spread evenly: 20 bytes for each key and token bucket.
    Keys(usize),
    /// A table of at most so many bytes, and at least one set.
    Bytes(usize),
}

impl From<usize> for Capacity {
    /// So many keys.
    fn from(keys: usize) -> Self {
        Self::Keys(keys)
    }
}

/// Why a limiter cannot be built or changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimiterError {
    /// A policy without a limit.
    #[error("a limiter needs at least one limit; use the algorithm `none` to limit nothing")]
    NoLimit,
    /// The limits of a tier are others than those of the first.
    #[error(
        "tier `{tier}` has other limits than the first; give each tier the same limits in number, order, name and mode"
    )]
    TierDiffers {
        /// The name of the tier.
        tier: Box<str>,
    },
    /// Two tiers have one name.
    #[error("two tiers are named `{tier}`; give each a name of its own")]
    TierTwice {
        /// The name.
        tier: Box<str>,
    },
    /// More tiers than a slot can tell apart.
    #[error("{tiers} tiers are too many; a limiter has at most 256")]
    TooManyTiers {
        /// How many there are.
        tiers: usize,
    },
    /// A tier that was not declared.
    #[error("there is no tier `{tier}`; declare it before it is given to a key")]
    NoTier {
        /// The name.
        tier: Box<str>,
    },
    /// A limit that does not exist.
    #[error("there is no limit {limit} in tier {tier}; this limiter has {limits} limits and {tiers} tiers")]
    NoLimitHere {
        /// The index of the limit.
        limit: usize,
        /// The index of the tier.
        tier: usize,
        /// How many limits there are.
        limits: usize,
        /// How many tiers there are.
        tiers: usize,
    },
    /// A limit whose state is not one number of 64 bits, for a table of those.
    #[error("this {kind} does not fit the 64-bit state of this limiter; build a new limiter with it")]
    DoesNotFit {
        /// What kind of algorithm it is.
        kind: Kind,
    },
}

/// A limiter under construction, from [`Limiter::builder`].
#[derive(Debug)]
pub struct LimiterBuilder {
    /// The first is that of every key that has no other.
    tiers: Vec<(Box<str>, Policy)>,
    capacity: Capacity,
    when_full: WhenFull,
    clock: Clock,
    hasher: RandomState,
    overrides: Vec<(u64, Box<str>)>,
}

impl LimiterBuilder {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            tiers: vec![("default".into(), policy)],
            capacity: Capacity::Keys(65_536),
            when_full: WhenFull::default(),
            clock: Clock::new(),
            hasher: RandomState::default(),
            overrides: Vec::new(),
        }
    }

    /// How much room there is; 65,536 keys when it is not said.
    #[must_use]
    pub fn capacity(self, capacity: impl Into<Capacity>) -> Self {
        Self { capacity: capacity.into(), ..self }
    }

    /// What happens to a newcomer when its set is full.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Where the time comes from, a [`ManualClock`](crate::clock::ManualClock) for example.
    #[must_use]
    pub fn clock(self, clock: impl Into<Clock>) -> Self {
        Self { clock: clock.into(), ..self }
    }

    /// Another tier: the same limits with other numbers, for [`Limiter::check_in`] or [`Self::key_tier`].
    ///
    /// ```
    /// use tidegate::{Limiter, Quota};
    ///
    /// let quota = |text: &str| text.parse::<Quota>();
    /// let limiter =
    ///     Limiter::builder(quota("1/s")?).tier("gold", quota("1/s burst 50")?).key_tier("ann", "gold").build()?;
    /// assert_eq!(limiter.check("ann").remaining(), 49);
    /// assert_eq!(limiter.check("bob").remaining(), 0);
    /// let gold = limiter.tier("gold").unwrap();
    /// assert_eq!(limiter.check_in(gold, "eve", 1).remaining(), 49);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tier(mut self, name: &str, policy: impl Into<Policy>) -> Self {
        self.tiers.push((name.into(), policy.into()));
        self
    }

    /// Puts one key into a tier.
    #[must_use]
    pub fn key_tier(mut self, key: &(impl Hash + ?Sized), tier: &str) -> Self {
        self.overrides.push((self.hasher.hash_one(key), tier.into()));
        self
    }

    /// The limiter.
    ///
    /// # Errors
    ///
    /// A policy without limits, tiers with other limits than the first, a tier that was not declared.
    ///
    /// # Panics
    ///
    /// When the memory for the table cannot be had.
    pub fn build(self) -> Result<Limiter, LimiterError> {
        self.check()?;
        let tier = |name: &str| self.tiers.iter().position(|(tier, _)| tier.as_ref() == name);
        let mut overrides = HashMap::default();
        for (hash, name) in &self.overrides {
            let index = tier(name).and_then(|index| u8::try_from(index).ok());
            let index = index.ok_or_else(|| LimiterError::NoTier { tier: name.clone() })?;
            overrides.insert(*hash, Tier(index));
        }
        Ok(Limiter { overrides, ..self.build_without_tiers() })
    }

    fn check(&self) -> Result<(), LimiterError> {
        let shape = |policy: &Policy| -> Vec<(Box<str>, Mode)> {
            policy.limits().iter().map(|limit| (limit.name.clone(), limit.mode)).collect()
        };
        let first = shape(&self.tiers[0].1);
        if first.is_empty() {
            return Err(LimiterError::NoLimit);
        }
        if self.tiers.len() > TIERS_MAX {
            return Err(LimiterError::TooManyTiers { tiers: self.tiers.len() });
        }
        for (index, (name, policy)) in self.tiers.iter().enumerate() {
            if shape(policy) != first {
                return Err(LimiterError::TierDiffers { tier: name.clone() });
            }
            if self.tiers[..index].iter().any(|(other, _)| other == name) {
                return Err(LimiterError::TierTwice { tier: name.clone() });
            }
        }
        Ok(())
    }

    /// The limiter without overrides; the tiers have been checked, or there is one.
    pub(super) fn build_without_tiers(&self) -> Limiter {
        let policies: Vec<Policy> = self.tiers.iter().map(|(_, policy)| policy.clone()).collect();
        let limits = policies[0].limits().len();
        let table = match buckets(&policies, self.clock.now_ns()) {
            Some(buckets) => {
                let sets = self.sets(Flat::set_bytes(limits), flat::SLOTS);
                let one = limits == 1 && policies[0].limits()[0].mode == Mode::Enforce;
                let table = Flat::new(policies, &buckets, sets, self.when_full);
                if one { Table::One(table) } else { Table::Many(table) }
            }
            None => {
                let sets = self.sets(Sets::set_bytes(limits), sets::SLOTS);
                Table::Sets(Sets::new(policies, sets, self.when_full))
            }
        };
        Limiter {
            table,
            limits,
            hasher: self.hasher.clone(),
            clock: self.clock.clone(),
            tiers: self.tiers.iter().map(|(name, _)| name.clone()).collect(),
            overrides: HashMap::default(),
            refunds: Mutex::default(),
        }
    }

    /// How many sets there are. Of slots there are 35/32 of the keys, which makes 20 bytes a key in the flat table: with
    /// as many slots as keys one set in two would be full when all keys have a debt.
    fn sets(&self, set_bytes: usize, slots: usize) -> usize {
        let sets = match self.capacity {
            Capacity::Keys(keys) => (keys.saturating_mul(35) / 32).div_ceil(slots),
            Capacity::Bytes(bytes) => bytes / set_bytes,
        };
        sets.max(1)
    }
}

/// The numbers of all buckets, if every limit is a token bucket whose state fits 64 bits.
fn buckets(policies: &[Policy], now_ns: u64) -> Option<Vec<NarrowBucket>> {
    let limits = policies[0].limits().len();
    if limits == 0 || limits > flat::LIMITS_MAX {
        return None;
    }
    let mut buckets = Vec::new();
    for policy in policies {
        for (limit, named) in policy.limits().iter().enumerate() {
            let unit = unit(policies.iter().map(|policy| &policy.limits()[limit].algorithm))?;
            buckets.push(NarrowBucket::of(token_bucket(&named.algorithm)?, unit, now_ns)?);
        }
    }
    Some(buckets)
}

const fn token_bucket(algorithm: &Algorithm) -> Option<&TokenBucket> {
    match algorithm {
        Algorithm::TokenBucket(bucket) => Some(bucket),
        _ => None,
    }
}

/// The least common multiple of the units that the buckets bring in a nanosecond: what all can count in.
fn unit<'a>(algorithms: impl Iterator<Item = &'a Algorithm>) -> Option<u64> {
    let mut unit = 1_u64;
    for algorithm in algorithms {
        let rate = token_bucket(algorithm)?.rate_units().get();
        unit = (unit / gcd(unit, rate)).checked_mul(rate)?;
    }
    Some(unit)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Changes a limit in these tiers; see [`Limiter::set_quota`] and [`Limiter::set_algorithms`]. `change` is told which of them.
pub(super) fn set(
    limiter: &Limiter,
    tiers: &[Tier],
    limit: usize,
    mut change: impl FnMut(usize, &Algorithm) -> Algorithm,
) -> Result<(), LimiterError> {
    let (count, limits) = (limiter.tiers.len(), limiter.limits);
    let indexes = tiers.iter().map(|tier| usize::from(tier.0));
    let wrong = indexes.clone().find(|&index| limit >= limits || index >= count);
    if let Some(tier) = wrong {
        return Err(LimiterError::NoLimitHere { limit, tier, limits, tiers: count });
    }
    // No refund comes in between.
    let mut refunds = Refunds::lock(&limiter.refunds);
    let now_ns = limiter.now_ns();
    let mut kind = Kind::TokenBucket;
    let change = |policies: &mut [Policy]| {
        for (which, index) in indexes.enumerate() {
            let mut limits = policies[index].limits().to_vec();
            limits[limit].algorithm = change(which, &limits[limit].algorithm);
            if kind == Kind::TokenBucket {
                kind = limits[limit].algorithm.kind();
            }
            policies[index] = Policy::new(limits);
        }
    };
    let fits = match &limiter.table {
        Table::One(table) | Table::Many(table) => table.change(now_ns, |policies| {
            change(policies);
            buckets(policies, now_ns)
        }),
        Table::Sets(table) => {
            table.change(now_ns, change);
            true
        }
    };
    refunds.changed(limiter.now_ns());
    if fits { Ok(()) } else { Err(LimiterError::DoesNotFit { kind }) }
}
