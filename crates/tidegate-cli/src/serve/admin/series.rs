//! The last minute, second by second.

use std::collections::VecDeque;

/// How many seconds are kept.
pub(super) const SECONDS: usize = 60;

/// What came in each of the last seconds, from totals that are read once a second.
#[derive(Debug, Default)]
pub(super) struct Series {
    last: Tally,
    seconds: VecDeque<Tally>,
}

/// How many were allowed, and how many were not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) rejected: u64,
}

impl Series {
    /// Ends a second, at whose end the totals were these.
    pub(super) fn end_second(&mut self, total: Tally) {
        let second = Tally {
            allowed: total.allowed.saturating_sub(self.last.allowed),
            rejected: total.rejected.saturating_sub(self.last.rejected),
        };
        self.last = total;
        if self.seconds.len() == SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back(second);
    }

    /// The seconds that have ended, the latest last.
    pub(super) fn seconds(&self) -> impl Iterator<Item = Tally> {
        self.seconds.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_the_differences_of_totals() {
        let mut series = Series::default();
        for (allowed, rejected) in [(5, 0), (5, 2), (9, 2)] {
            series.end_second(Tally { allowed, rejected });
        }
        let seconds: Vec<_> = series.seconds().map(|second| (second.allowed, second.rejected)).collect();
        assert_eq!(seconds, [(5, 0), (0, 2), (4, 0)]);
    }

    #[test]
    fn a_minute_is_kept() {
        let mut series = Series::default();
        for second in 1..=100 {
            series.end_second(Tally { allowed: second * second, rejected: 0 });
        }
        assert_eq!(series.seconds().count(), SECONDS);
        assert_eq!(series.seconds().last(), Some(Tally { allowed: 199, rejected: 0 }));
    }
}
