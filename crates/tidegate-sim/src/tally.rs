//! What a simulation counted.

use std::time::Duration;

use tidegate_core::Mode;

use crate::Arrivals;

/// The result of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were allowed.
    pub allowed: u64,
    /// Calls that were not, for whatever reason.
    pub rejected: u64,
    /// Of the rejected, those whose cost is above a capacity: waiting cannot help them.
    pub never: u64,
    /// Of the rejected, those that the limits allowed and that found no place in flight.
    pub shed: u64,
    /// The cost of the allowed calls.
    pub allowed_cost: u128,
    /// The cost of the rejected calls.
    pub rejected_cost: u128,
    /// The most cost that started in any half-open window of [`Settings::worst_window`](crate::Settings).
    pub worst: u128,
    /// The time of the last call in that window.
    pub worst_at: u64,
    /// The index, in time order, of the first call that was rejected on arrival.
    pub first_rejected: Option<usize>,
    /// How long allowed calls waited; `None` if none waited.
    pub waits: Option<Waits>,
    /// The most calls that ran at once; `None` without a service time.
    pub peak_in_flight: Option<u64>,
    /// The most that any interval holds beyond one bucket of [`Settings::one_bucket`](crate::Settings), rounded up to
    /// whole tokens; `None` if that was not asked. With keys, of the key where it is most.
    pub over: Option<u128>,
    /// What leases did; `None` where there are none.
    pub leases: Option<LeaseTally>,
    /// For each limit, what it refused.
    pub limits: Vec<LimitTally>,
    /// For each key, in the order of [`Keys::names`](crate::Keys::names), if that was asked for.
    pub by_key: Vec<KeyTally>,
    /// Counts over time, if that was asked for.
    pub timeline: Option<Timeline>,
}

/// What leases did in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseTally {
    /// Calls to the store: asks, and returns that were sent alone.
    pub store_calls: u64,
    /// Tokens that were given back and that the bucket took.
    pub returned: u128,
    /// Tokens that were charged to the bucket and neither spent nor taken back.
    pub lost: u128,
    /// Answers of the store that were lost.
    pub lost_answers: u64,
    /// How often a worker crashed.
    pub crashes: u64,
    /// Of the rejected calls, those that waited for an answer that did not come, or in a worker that crashed.
    pub unanswered: u64,
}

/// What one limit of a run refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitTally {
    /// The limit.
    pub name: Box<str>,
    /// Whether it refuses.
    pub mode: Mode,
    /// Enforced: the calls it bound. Shadow: the calls that it would have refused.
    pub refused: u64,
}

/// What one key got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyTally {
    /// Calls that were allowed.
    pub allowed: u64,
    /// Calls that were not.
    pub rejected: u64,
}

impl KeyTally {
    pub(crate) fn add(&mut self, allowed: bool) {
        if allowed {
            self.allowed += 1;
        } else {
            self.rejected += 1;
        }
    }

    /// Counts a call as rejected that was counted as allowed.
    pub(crate) fn shed(&mut self) {
        self.allowed -= 1;
        self.rejected += 1;
    }
}

/// How long allowed calls waited, calls that did not wait included. Exact: nearest-rank percentiles of all waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Half waited at most this long.
    pub p50: Duration,
    /// 99 of 100 waited at most this long.
    pub p99: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl Waits {
    /// The percentiles of `allowed` calls, of which those that waited are in `waits`.
    pub(crate) fn of(allowed: u64, mut waits: Vec<u64>) -> Option<Self> {
        let max = waits.iter().copied().max()?;
        waits.sort_unstable();
        let without = allowed.saturating_sub(waits.len() as u64);
        let percentile = |percent: u128| {
            let rank = (u128::from(allowed) * percent).div_ceil(100);
            // The calls that did not wait come first.
            let index =
                rank.checked_sub(u128::from(without) + 1).and_then(|index| usize::try_from(index).ok());
            Duration::from_nanos(index.and_then(|index| waits.get(index)).copied().unwrap_or(0))
        };
        Some(Self { p50: percentile(50), p99: percentile(99), max: Duration::from_nanos(max) })
    }
}

/// Counts over time, in bins of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// When the first bin starts.
    pub start: u64,
    /// Length of a bin in nanoseconds, at least 1.
    pub bin: u64,
    /// The bins, in time order.
    pub bins: Vec<Bin>,
    /// How many bins have begun.
    opened: usize,
}

/// One bin of a [`Timeline`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bin {
    /// Calls that were allowed.
    pub allowed: u64,
    /// Calls that were not.
    pub rejected: u64,
    /// The fewest tokens there were in this bin, at its start or after a call. `None` when there is no one state to
    /// speak of: with a state for each key or worker, or with several limits.
    pub level: Option<u64>,
}

impl Timeline {
    pub(crate) fn new(arrivals: &Arrivals, bins: usize) -> Self {
        let bin = (arrivals.span() / bins.max(1) as u64).saturating_add(1);
        Self {
            start: arrivals.times.first().copied().unwrap_or(0),
            bin,
            bins: vec![Bin::default(); bins.max(1)],
            opened: 0,
        }
    }

    /// Notes the level at the start of each bin up to `now` that has not been opened yet.
    pub(crate) fn open(&mut self, now: u64, level_at: impl Fn(u64) -> Option<u64>) {
        let last = self.index(now).min(self.bins.len().saturating_sub(1));
        while self.opened <= last {
            let at = self.start.saturating_add(self.bin.saturating_mul(self.opened as u64));
            if let Some(bin) = self.bins.get_mut(self.opened) {
                bin.level = level_at(at);
            }
            self.opened += 1;
        }
    }

    /// Counts a call, after which `level` tokens are left.
    pub(crate) fn add(&mut self, now: u64, allowed: bool, level: u64) {
        let index = self.index(now);
        let Some(bin) = self.bins.get_mut(index) else { return };
        if allowed {
            bin.allowed += 1;
        } else {
            bin.rejected += 1;
        }
        bin.level = bin.level.map(|old| old.min(level));
    }

    /// Counts a call as rejected that came at `time` and was counted as allowed.
    pub(crate) fn shed(&mut self, time: u64) {
        let index = self.index(time);
        let Some(bin) = self.bins.get_mut(index) else { return };
        bin.allowed -= 1;
        bin.rejected += 1;
    }

    fn index(&self, now: u64) -> usize {
        usize::try_from((now - self.start) / self.bin).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_nearest_rank_percentiles() {
        assert_eq!(Waits::of(3, Vec::new()), None);
        let ms = Duration::from_millis;
        let waits = Waits::of(100, (1..=100).map(|n| n * 1_000_000).collect()).unwrap();
        assert_eq!(waits, Waits { p50: ms(50), p99: ms(99), max: ms(100) });
        let half = Waits::of(4, vec![9_000_000, 7_000_000]).unwrap();
        assert_eq!(half, Waits { p50: ms(0), p99: ms(9), max: ms(9) });
        let one = Waits::of(1, vec![7_000_000]).unwrap();
        assert_eq!(one, Waits { p50: ms(7), p99: ms(7), max: ms(7) });
    }

    #[test]
    fn a_timeline_holds_the_first_and_the_last_call() {
        for span in [0, 1, 9, 10, 11, 1_000_003] {
            let arrivals = Arrivals { times: vec![5, 5 + span], ..Arrivals::default() };
            let mut timeline = Timeline::new(&arrivals, 10);
            timeline.add(5, true, 3);
            timeline.add(5 + span, false, 1);
            assert_eq!(timeline.bins.iter().map(|bin| bin.allowed + bin.rejected).sum::<u64>(), 2, "{span}");
        }
    }
}
