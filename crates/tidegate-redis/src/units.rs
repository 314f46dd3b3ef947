//! The integers of a bucket as the server counts them: whole microseconds, and units that fit into a double.
//!
//! **Definition.** With a rate of `N/P` tokens per microsecond in lowest terms, a token is `P` units and a microsecond
//! brings `N` units. The capacity is `B·P` units, the level `l` is between 0 and that, and a call of cost `c` is allowed iff
//! `c·P <= l`. A quota is kept in nanoseconds, so `N/P` is its count times 1000 over its nanoseconds: exact for every quota.
//!
//! **Bound.** Lua counts in doubles, which are exact below 2^53. Every number of the script is at most the capacity, a time in
//! microseconds (2^53 µs are the year 2255) or compared where it may be rounded only upwards; so `B·P < 2^53` is all that
//! has to be asked, and [`Units::new`] asks it. A rate above the capacity fills the bucket in a microsecond, as does one equal
//! to it, so `N` is at most `B·P` as well. `1/day burst 104249` is the longest burst at that rate; `1000/s` has `P = 1000`.
//!
//! **Time.** The server's clock is read in whole microseconds. Given those, decisions are those of
//! [`TokenBucket`](tidegate::algorithm::TokenBucket), with the waits rounded up to a microsecond instead of a nanosecond.
//!
//! **Worked example.** `3/s burst 3` is `N/P = 3/1,000,000`: 3,000,000 units. Three calls leave 0; the fourth needs
//! `ceil(1,000,000 / 3) = 333,334 µs`.

use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::{Algorithm, Decision};

/// Above this a double is not every integer.
const EXACT: u128 = 1 << 53;

/// The integers of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Units {
    /// `P`: units in a token.
    token: u64,
    /// `N`: units that a microsecond brings, at most `capacity`.
    rate: u64,
    /// `B·P`.
    capacity: u64,
    /// `B`, in tokens.
    burst: u64,
}

/// Why an algorithm cannot be kept on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It is no token bucket.
    Kind,
    /// The capacity in units is 2^53 or more.
    TooFine,
}

impl Units {
    pub(crate) fn new(algorithm: &Algorithm) -> Result<Self, Unfit> {
        let Algorithm::TokenBucket(bucket) = algorithm else { return Err(Unfit::Kind) };
        Self::of(bucket)
    }

    fn of(bucket: &TokenBucket) -> Result<Self, Unfit> {
        // Both are in lowest terms already, so only the thousand nanoseconds of a microsecond can be shared.
        let (a, b) = (bucket.token_units().get(), bucket.rate_units().get());
        let shared = gcd(1000, a);
        let token = a / shared;
        let capacity = u128::from(bucket.burst()) * u128::from(token);
        if capacity >= EXACT {
            return Err(Unfit::TooFine);
        }
        let capacity = u64::try_from(capacity).map_err(|_| Unfit::TooFine)?;
        let rate = u128::from(b) * u128::from(1000 / shared);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).min(capacity);
        Ok(Self { token, rate, capacity, burst: bucket.burst() })
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Units in a token.
    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    pub(crate) const fn rate(&self) -> u64 {
        self.rate
    }

    /// `cost` in units; one more than the capacity for a cost that can never be allowed, whatever it is.
    pub(crate) fn cost(&self, cost: u64) -> u64 {
        if cost > self.burst { self.capacity + 1 } else { cost * self.token }
    }

    /// The decision for a call of `units` at a `level` that was read before the call was charged.
    ///
    /// `lag` is how far the clock stands behind the last charge, in microseconds; no unit comes in that time.
    pub(crate) fn decision(&self, level: u64, lag: u64, units: u64) -> Decision {
        if units > self.capacity {
            return Decision::Never { capacity: self.burst };
        }
        match level.checked_sub(units) {
            Some(left) => Decision::Allowed {
                start_after: Duration::ZERO,
                remaining: self.tokens(left),
                reset_after: self.time_for(self.capacity.saturating_sub(left), lag),
            },
            None => Decision::Rejected {
                retry_after: self.time_for(units - level, lag),
                remaining: self.tokens(level),
                reset_after: self.time_for(self.capacity.saturating_sub(level), lag),
            },
        }
    }

    /// Units as whole tokens, rounded down.
    pub(crate) const fn tokens(&self, units: u64) -> u64 {
        units / self.token
    }

    /// How long `units` take to come, rounded up to a microsecond.
    fn time_for(&self, units: u64, lag: u64) -> Duration {
        match units {
            0 => Duration::ZERO,
            _ => Duration::from_micros(units.div_ceil(self.rate).saturating_add(lag)),
        }
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{Kind, Quota};

    fn units(quota: &str) -> Result<Units, Unfit> {
        let quota: Quota = quota.parse().unwrap();
        Units::new(&Algorithm::new(Kind::TokenBucket, quota))
    }

    #[test]
    fn a_rate_is_in_lowest_terms_for_a_microsecond() {
        for (quota, token, rate, capacity) in [
            ("3/s", 1_000_000, 3, 3_000_000),
            ("10/s burst 20", 100_000, 1, 2_000_000),
            ("1000/s", 1000, 1, 1_000_000),
            ("1 per 7ns", 7, 7, 7), // 1000/7 in truth: full within a microsecond either way
            ("1 per 7ns burst 1000", 7, 1000, 7000),
            ("5/us", 1, 5, 5),
            ("1/day burst 104249", 86_400_000_000, 1, 104_249 * 86_400_000_000),
        ] {
            let burst = quota.parse::<Quota>().unwrap().burst();
            assert_eq!(units(quota), Ok(Units { token, rate, capacity, burst }), "{quota}");
        }
    }

    #[test]
    fn a_capacity_that_a_double_cannot_count_is_refused() {
        assert_eq!(units("1/day burst 104250"), Err(Unfit::TooFine));
        assert_eq!(units("9223372036854775807/s"), Err(Unfit::TooFine));
        assert!(units("9007199254740991/us").is_ok());
        assert_eq!(units("9007199254740992/us"), Err(Unfit::TooFine));
    }

    #[test]
    fn the_worked_example_holds() {
        let units = units("3/s").unwrap();
        assert_eq!(units.decision(0, 0, units.cost(1)).retry_after(), Some(Duration::from_micros(333_334)));
        assert_eq!(units.decision(999_999, 0, units.cost(1)).retry_after(), Some(Duration::from_micros(1)));
        assert!(units.decision(1_000_000, 0, units.cost(1)).is_allowed());
        assert_eq!(units.decision(0, 0, units.cost(4)), Decision::Never { capacity: 3 });
        // The clock stands two microseconds behind.
        assert_eq!(units.decision(0, 2, units.cost(1)).retry_after(), Some(Duration::from_micros(333_336)));
    }
}
