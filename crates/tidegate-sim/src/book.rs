//! Counts calls that start, or are refused, some time after they came: what callers in a line and workers that lease have
//! in common.

use std::time::Duration;

use crate::tally::{KeyTally, Tally, Timeline, Waits};
use crate::worst::WorstWindow;
use crate::{Arrivals, Settings};

/// A tally that is being made.
pub(crate) struct Book<'a> {
    arrivals: &'a Arrivals,
    pub(crate) tally: Tally,
    worst: WorstWindow,
    waits: Vec<u64>,
}

impl<'a> Book<'a> {
    pub(crate) fn new(arrivals: &'a Arrivals, settings: &Settings) -> Self {
        let by_key =
            if settings.by_key { vec![KeyTally::default(); arrivals.key_count()] } else { Vec::new() };
        let timeline = (settings.bins > 0).then(|| Timeline::new(arrivals, settings.bins));
        Self {
            arrivals,
            tally: Tally { by_key, timeline, ..Tally::default() },
            worst: WorstWindow::new(nanoseconds(settings.worst_window)),
            waits: Vec::new(),
        }
    }

    /// The call starts at `now`.
    pub(crate) fn allow(&mut self, index: usize, now: u64) {
        let cost = self.arrivals.cost(index);
        let wait = now - self.arrivals.times[index];
        if wait > 0 {
            self.waits.push(wait);
        }
        self.worst.add(now, cost);
        self.tally.allowed += 1;
        self.tally.allowed_cost += u128::from(cost);
        self.count(index, true);
    }

    /// The call is refused; `never` if its cost is above the capacity.
    pub(crate) fn reject(&mut self, index: usize, never: bool) {
        self.tally.rejected += 1;
        self.tally.rejected_cost += u128::from(self.arrivals.cost(index));
        self.tally.never += u64::from(never);
        let first = self.tally.first_rejected.unwrap_or(index);
        self.tally.first_rejected = Some(first.min(index));
        self.count(index, false);
    }

    fn count(&mut self, index: usize, allowed: bool) {
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.add(self.arrivals.times[index], allowed, 0);
        }
        if let Some(tally) = self.tally.by_key.get_mut(self.arrivals.key(index)) {
            tally.add(allowed);
        }
    }

    /// All calls are counted.
    pub(crate) fn finish(self) -> Tally {
        let (worst, worst_at) = (self.worst.most(), self.worst.most_at());
        let waits = Waits::of(self.tally.allowed, self.waits);
        Tally { worst, worst_at, waits, ..self.tally }
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
