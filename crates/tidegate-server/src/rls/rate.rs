//! A quota as Envoy shows it: requests in a second, a minute, an hour, a day or a week.

use tidegate::Quota;

use super::proto::{RateLimitUnit, rate_limit_response};

/// The units by length, in seconds. Months and years have 30 and 365 days, as Envoy counts them.
const UNITS: [(RateLimitUnit, u64); 7] = [
    (RateLimitUnit::Second, 1),
    (RateLimitUnit::Minute, 60),
    (RateLimitUnit::Hour, 3_600),
    (RateLimitUnit::Day, 86_400),
    (RateLimitUnit::Week, 604_800),
    (RateLimitUnit::Month, 2_592_000),
    (RateLimitUnit::Year, 31_536_000),
];

/// How many requests in which unit: the smallest in which they are a whole number, up to a week. `1 per 10s` is 6 a minute.
///
/// A quota that is no whole number in any of them, `1 per 11s` for example, is rounded down in the smallest in which that is
/// not 0. What is above 4,294,967,295 a second is shown as that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    requests: u32,
    unit: RateLimitUnit,
}

impl Rate {
    /// The rate of a quota, without its burst.
    #[must_use]
    pub fn of(quota: Quota) -> Self {
        let per_ns = u128::from(quota.per_ns().get());
        // Below 2^64 times 2^55.
        let in_unit = |seconds: u64| u128::from(quota.count()) * u128::from(seconds) * 1_000_000_000;
        let whole = UNITS[..5].iter().find(|(_, seconds)| in_unit(*seconds).is_multiple_of(per_ns));
        let rounded = || UNITS.iter().find(|(_, seconds)| in_unit(*seconds) >= per_ns);
        match whole.or_else(rounded) {
            Some((unit, seconds)) => {
                let requests = in_unit(*seconds) / per_ns;
                Self { requests: u32::try_from(requests).unwrap_or(u32::MAX), unit: *unit }
            }
            // Less than one a year.
            None => Self { requests: 1, unit: RateLimitUnit::Unknown },
        }
    }

    pub(super) fn named(self, name: &str) -> rate_limit_response::RateLimit {
        rate_limit_response::RateLimit {
            name: name.to_owned(),
            requests_per_unit: self.requests,
            unit: self.unit.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_whole_number_in_the_smallest_unit_that_has_one() {
        for (quota, requests, unit) in [
            ("10/s burst 20", 10, RateLimitUnit::Second),
            ("2/min", 2, RateLimitUnit::Minute),
            ("120/min", 2, RateLimitUnit::Second),
            ("1 per 10s", 6, RateLimitUnit::Minute),
            ("1 per 500ms", 2, RateLimitUnit::Second),
            ("5000/hour", 5000, RateLimitUnit::Hour),
            ("100/day", 100, RateLimitUnit::Day),
            ("1 per 7d", 1, RateLimitUnit::Week),
            // Of those that no unit fits: 5.45 a minute, 3.04 a month and 1.01 a year.
            ("1 per 11s", 5, RateLimitUnit::Minute),
            ("7 per 69d", 3, RateLimitUnit::Month),
            ("1 per 361d", 1, RateLimitUnit::Year),
            ("1 per 366d", 1, RateLimitUnit::Unknown),
            ("5000000000/s", u32::MAX, RateLimitUnit::Second),
        ] {
            assert_eq!(Rate::of(quota.parse().unwrap()), Rate { requests, unit }, "{quota}");
        }
    }
}
