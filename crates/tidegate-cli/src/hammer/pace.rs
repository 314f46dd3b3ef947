//! When each request is meant to start, whether or not the earlier ones were answered.

use std::time::Duration;

use tidegate::Quota;

/// Requests at even distances: `count` in each `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    count: u64,
    per_ns: u64,
}

impl Pace {
    /// One request each `interval`; 0 starts all at once.
    pub(crate) fn each(interval: Duration) -> Self {
        Self { count: 1, per_ns: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Requests at the rate of `quota`; its burst plays no part.
    pub(crate) const fn rate(quota: &Quota) -> Self {
        Self { count: quota.count(), per_ns: quota.per_ns().get() }
    }

    /// The start of request `index` after that of request 0, rounded down to a nanosecond; never rounded twice.
    pub(crate) fn start(&self, index: u64) -> Duration {
        let ns = u128::from(index) * u128::from(self.per_ns) / u128::from(self.count);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// How many requests start before `duration` is over; `None` when that is without end.
    pub(crate) fn requests_in(&self, duration: Duration) -> Option<u64> {
        if self.per_ns == 0 {
            return None;
        }
        let count =
            duration.as_nanos().saturating_mul(u128::from(self.count)).div_ceil(u128::from(self.per_ns));
        Some(u64::try_from(count).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_exact_and_do_not_drift() {
        let third = Pace::rate(&"3/s".parse().unwrap());
        assert_eq!(third.start(1), Duration::from_nanos(333_333_333));
        assert_eq!(third.start(3_000_000), Duration::from_secs(1_000_000));
        assert_eq!(Pace::each(Duration::from_millis(15)).start(39), Duration::from_millis(585));
        assert_eq!(Pace::each(Duration::ZERO).start(39), Duration::ZERO);
    }

    #[test]
    fn a_duration_holds_the_requests_that_start_in_it() {
        let pace = Pace::each(Duration::from_millis(15));
        for (ms, requests) in [(0, 0), (1, 1), (15, 1), (16, 2), (600, 40)] {
            assert_eq!(pace.requests_in(Duration::from_millis(ms)), Some(requests), "{ms} ms");
        }
        assert_eq!(Pace::each(Duration::ZERO).requests_in(Duration::from_secs(1)), None);
    }
}
