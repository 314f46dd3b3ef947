//! The core's token bucket in 64 bits, for tables and atomics.
//!
//! Definition and recurrence are those of `tidegate_core::algorithm::token_bucket`; what is here is the proof that nothing
//! overflows: a bucket exists only if the unit-time of the whole clock range, and two full capacities above it, fit. One is
//! what the state can be above the time, the other what a call that is rejected can ask for: its wait is computed from both.

use std::time::Duration;

use tidegate_core::Decision;
use tidegate_core::algorithm::TokenBucket;

/// How far the clock of a limiter may go from where it stands when a quota is put in force, in nanoseconds: 30 years. A
/// quota whose unit-time does not fit 64 bits for as long takes a wider state.
pub(crate) const CLOCK_RANGE_NS: u64 = 30 * 365 * 86_400 * 1_000_000_000;

/// A token bucket whose state is one 64-bit number: the unit-time at which it is full again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NarrowBucket {
    pub(crate) token: u64,
    pub(crate) unit: u64,
    pub(crate) capacity: u64,
    pub(crate) now_max: u64,
    pub(crate) burst: u64,
}

/// What a look found: what would be missing from the bucket after the call, and before it, in units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) now: u64,
    pub(crate) deficit: u64,
    pub(crate) needed: u64,
}

impl NarrowBucket {
    /// The bucket in `unit`s, a multiple of its own, on a clock that stands at `now_ns`.
    pub(crate) fn of(bucket: &TokenBucket, unit: u64, now_ns: u64) -> Option<Self> {
        Self::new(bucket.token_units().get(), bucket.rate_units().get(), bucket.burst(), unit, now_ns)
    }

    /// The smallest numbers for `token / rate` units per token and nanosecond, in `unit`s (a multiple of `rate`), on a
    /// clock that stands at `now_ns`.
    pub(crate) fn new(token: u64, rate: u64, burst: u64, unit: u64, now_ns: u64) -> Option<Self> {
        let token = token.checked_mul(unit / rate)?;
        let capacity = token.checked_mul(burst)?;
        // The state is at most a full capacity above the unit-time of now, and a call that can be allowed asks for at most
        // one more.
        let now_max = u64::MAX.checked_sub(capacity.checked_mul(2)?)? / unit;
        (now_max >= now_ns.checked_add(CLOCK_RANGE_NS)?).then_some(Self {
            token,
            unit,
            capacity,
            now_max,
            burst,
        })
    }

    #[inline]
    pub(crate) fn look(&self, full_at: u64, now_ns: u64, cost: u64) -> Look {
        // It wraps only for numbers of two quotas, read while one takes the place of the other and then thrown away.
        let now = now_ns.min(self.now_max).wrapping_mul(self.unit);
        let deficit = full_at.saturating_sub(now);
        Look { now, deficit, needed: deficit.saturating_add(cost.saturating_mul(self.token)) }
    }

    #[inline]
    pub(crate) fn allows(&self, look: Look) -> bool {
        look.needed <= self.capacity
    }

    /// Whole tokens that are there before the call.
    #[inline]
    pub(crate) fn level(&self, look: Look) -> u64 {
        self.tokens(self.capacity.saturating_sub(look.deficit))
    }

    /// The decision in words; what the caller does not read is not computed, as this is inlined.
    #[inline]
    pub(crate) fn decision(&self, look: Look, cost: u64) -> Decision {
        if self.allows(look) {
            Decision::Allowed {
                start_after: Duration::ZERO,
                remaining: self.tokens(self.capacity - look.needed),
                reset_after: self.time_for(look.needed),
            }
        } else if cost > self.burst {
            Decision::Never { capacity: self.burst }
        } else {
            Decision::Rejected {
                retry_after: self.time_for(look.needed - self.capacity),
                remaining: self.level(look),
                reset_after: self.time_for(look.deficit),
            }
        }
    }

    /// `units` as whole tokens, rounded down.
    ///
    /// No token is of 0 units. A division that cannot panic is left out where nobody reads what it gives.
    #[inline]
    fn tokens(&self, units: u64) -> u64 {
        units.checked_div(self.token).unwrap_or(0)
    }

    /// Nanoseconds until `units` have come in, rounded up. A nanosecond brings one unit under almost every quota.
    #[inline]
    pub(crate) fn ns_for(&self, units: u64) -> u64 {
        if self.unit <= 1 { units } else { units.div_ceil(self.unit) }
    }

    #[inline]
    pub(crate) fn time_for(&self, units: u64) -> Duration {
        Duration::from_nanos(self.ns_for(units))
    }

    /// The state under `to` of a bucket that this one describes, at `now_ns`: as full in proportion as it was. One that is
    /// full keeps the time at which it became so, since the clock may go back behind that.
    ///
    /// When the clock has gone back so far that more than a burst is missing, it was charged later than `now_ns`: then
    /// the earliest time at which it can have been is taken.
    pub(crate) fn carry_over(&self, full_at: u64, now_ns: u64, to: &Self) -> u64 {
        let now_ns = now_ns.max(full_at.saturating_sub(self.capacity).div_ceil(self.unit));
        let deficit = self.look(full_at, now_ns, 0).deficit.min(self.capacity);
        if deficit == 0 {
            return full_at.div_ceil(self.unit).min(to.now_max) * to.unit;
        }
        let scaled = (u128::from(deficit) * u128::from(to.capacity)).div_ceil(u128::from(self.capacity));
        // At most the new capacity, which is a `u64`, above a time that leaves room for it.
        let scaled = u64::try_from(scaled).unwrap_or(to.capacity).min(to.capacity);
        now_ns.min(to.now_max) * to.unit + scaled
    }
}

/// A decision as a call out of line gives it back.
///
/// A [`Decision`] in memory that such a call wrote has all its fields, and where it meets the one that was made in line,
/// so would that: a caller who reads only whether a call is allowed would pay for three divisions. This has another
/// layout, from which a decision is made again in line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    kind: PartsKind,
    tokens: u64,
    wait: Duration,
    reset_after: Duration,
}

#[derive(Debug, Clone, Copy)]
enum PartsKind {
    Allowed,
    Rejected,
    Never,
}

impl From<Decision> for Parts {
    fn from(decision: Decision) -> Self {
        let (kind, wait, tokens, reset_after) = match decision {
            Decision::Allowed { start_after, remaining, reset_after } => {
                (PartsKind::Allowed, start_after, remaining, reset_after)
            }
            Decision::Rejected { retry_after, remaining, reset_after } => {
                (PartsKind::Rejected, retry_after, remaining, reset_after)
            }
            Decision::Never { capacity } => (PartsKind::Never, Duration::ZERO, capacity, Duration::ZERO),
        };
        Self { kind, tokens, wait, reset_after }
    }
}

impl Parts {
    #[inline(always)]
    pub(crate) const fn decision(self) -> Decision {
        let Self { tokens, wait, reset_after, .. } = self;
        match self.kind {
            PartsKind::Allowed => Decision::Allowed { start_after: wait, remaining: tokens, reset_after },
            PartsKind::Rejected => Decision::Rejected { retry_after: wait, remaining: tokens, reset_after },
            PartsKind::Never => Decision::Never { capacity: tokens },
        }
    }
}
