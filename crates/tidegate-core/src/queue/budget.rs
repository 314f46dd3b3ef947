//! The limiter of a line, and what each call in flight took from it, so that it can be taken back.
//!
//! **Why the later charges are kept.** What a refund is worth depends on what came after (see
//! [`TokenBucket::refund`](crate::algorithm::TokenBucket::refund)). So while a charge is open, the later ones are kept
//! in a tree ([`Runs`]) that joins them in O(log n). Those that have ended stay in it until it is full; then each is
//! joined to the open one before it, so the tree is as large as what is open. At an instant when the bucket is full,
//! everything before is forgotten: a refund of it could give nothing back.

use alloc::collections::BTreeMap;
use core::num::NonZeroU128;
use core::time::Duration;

use super::runs::Runs;
use crate::algorithm::TokenBucket;
use crate::algorithm::token_bucket::{Since, Tat};
use crate::arithmetic::duration;
use crate::{Algorithm, Decision, State, Step};

/// A limiter, its state, and the open charges.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    algorithm: Algorithm,
    state: State,
    /// By number, which is the order in which they were made.
    open: BTreeMap<u64, Charge>,
    /// The charges of a token bucket since it was full last and the first open one was made.
    runs: Runs,
    /// How often the bucket was full when a charge was made.
    times_full: u64,
}

#[derive(Debug, Clone, Copy)]
struct Charge {
    at: u64,
    cost: u64,
    /// Where it is in the runs.
    place: usize,
    /// Charges after it that have been joined to it there.
    joined: Since,
    /// In which of the times between two full buckets it was made: the place holds for that.
    times_full: u64,
}

impl Budget {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            state: algorithm.fresh(),
            open: BTreeMap::new(),
            runs: Runs::default(),
            times_full: 0,
        }
    }

    pub(super) fn look(&self, now: u64, cost: u64) -> Decision {
        self.algorithm.look(&self.state, now, cost)
    }

    /// Charges `cost` and keeps the charge open under `number`, which is above all before it.
    pub(super) fn charge(&mut self, now: u64, number: u64, cost: u64) {
        let place = self.take(now, cost);
        let charge = Charge { at: now, cost, place, joined: Since::default(), times_full: self.times_full };
        self.open.insert(number, charge);
    }

    /// Keeps an open charge that is made elsewhere: it changes nothing here, and cannot be taken back.
    pub(super) fn note(&mut self, now: u64, number: u64, cost: u64) {
        let nowhere =
            Charge { at: now, cost, place: 0, joined: Since::default(), times_full: self.times_full };
        self.open.insert(number, nowhere);
    }

    /// What `actual` is above the open charge of that number; 0 if there is none.
    pub(super) fn excess(&self, number: u64, actual: u64) -> u64 {
        self.open.get(&number).map_or(0, |charge| actual.saturating_sub(charge.cost))
    }

    /// The cost, or the capacity if that is less.
    pub(super) fn at_most_full(&self, cost: u64) -> u64 {
        match self.look(0, cost) {
            Decision::Never { capacity } => capacity,
            _ => cost,
        }
    }

    /// A token bucket becomes one that at `at` is full again `reset_after` later.
    pub(super) fn set(&mut self, at: u64, reset_after: Duration) {
        if let Algorithm::TokenBucket(bucket) = &self.algorithm {
            self.state = State::from_token_bucket(at, bucket.full_after(at, reset_after));
        }
    }

    /// Ends an open charge as it is. `false` if there is none of that number.
    pub(super) fn close(&mut self, number: u64) -> bool {
        let ended = self.open.remove(&number).is_some();
        if self.open.is_empty() {
            self.runs.clear();
        }
        ended
    }

    /// Ends an open charge as one of `actual`. `false` if there is none of that number.
    pub(super) fn settle(&mut self, now: u64, number: u64, actual: u64) -> bool {
        let Some(&charge) = self.open.get(&number) else {
            return false;
        };
        match charge.cost.checked_sub(actual) {
            Some(0) => {}
            // Its tokens came back anyway: the bucket was full after it.
            Some(_) if charge.times_full != self.times_full => {}
            Some(back) => {
                let since = charge.joined.then(self.runs.after(charge.place));
                self.algorithm.refund(&mut self.state, charge.at, back, since);
                if let Some((bucket, _)) = self.bucket() {
                    let left = Charge { cost: actual, ..charge }.run(&bucket);
                    self.runs.set(charge.place, left);
                }
            }
            None => {
                self.take(now, actual.saturating_sub(charge.cost));
            }
        }
        self.close(number)
    }

    /// The least wait from `now` until `cost` can be charged after `ahead` of others; see
    /// [`Refusal`](super::Refusal) for when it is exact.
    pub(super) fn wait_at_least(&self, now: u64, ahead: u128, cost: u64) -> Duration {
        let alone = self.look(now, cost).retry_after().unwrap_or_default();
        let total = ahead.saturating_add(u128::from(cost));
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => match self.state.tat() {
                Some(tat) => bucket.time_for_all(tat, now, total),
                None => alone,
            },
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) => {
                alone.max(self.windows_needed(now, total))
            }
            _ => alone,
        }
    }

    /// How long a window that admits `N` per `W` needs at least for `total`.
    fn windows_needed(&self, now: u64, total: u128) -> Duration {
        let (count, window) = match &self.algorithm {
            Algorithm::FixedWindow(limiter) => limiter.count_and_window(),
            Algorithm::SlidingWindow(limiter) => limiter.count_and_window(),
            Algorithm::SlidingLog(limiter) => limiter.count_and_window(),
            _ => return Duration::ZERO,
        };
        let n = NonZeroU128::new(u128::from(count)).unwrap_or(NonZeroU128::MIN);
        let w = u128::from(window.get());
        let to_boundary = w.saturating_sub(u128::from(now % window));
        if let Algorithm::SlidingLog(_) = &self.algorithm {
            // Each `N` that start are followed by `N` more one window later, at the soonest.
            let windows = total.saturating_sub(1) / n;
            let rest = u64::try_from(total.saturating_sub(windows.saturating_mul(n.get()))).unwrap_or(count);
            let first = self.look(now, rest).retry_after().unwrap_or_default();
            return first.saturating_add(duration(windows.saturating_mul(w)));
        }
        // What this window still has, then `N` at each boundary. The older count of a sliding window fades, so all
        // of `N` may still be there.
        let here = match &self.algorithm {
            Algorithm::FixedWindow(_) => u128::from(self.look(now, 0).remaining()),
            _ => n.get(),
        };
        match total.saturating_sub(here).div_ceil(n.get()).checked_sub(1) {
            None => Duration::ZERO,
            Some(more) => duration(to_boundary.saturating_add(more.saturating_mul(w))),
        }
    }

    /// Takes `cost`, and tells its place in the runs.
    fn take(&mut self, now: u64, cost: u64) -> usize {
        let mut place = 0;
        if let Some((bucket, tat)) = self.bucket() {
            if bucket.deficit(tat, now) == 0 {
                // A full bucket remembers nothing.
                self.times_full = self.times_full.wrapping_add(1);
                self.runs.clear();
            }
            if self.runs.is_full() {
                self.join_what_ended(&bucket);
            }
            let mut alone = Since::default();
            alone.charge(&bucket, now, cost);
            place = self.runs.push(alone);
        }
        if cost > 0 {
            self.algorithm.charge(&mut self.state, now, cost);
        }
        place
    }

    /// Makes room in the runs: what has ended is joined to the open charge before it, or forgotten if there is none.
    fn join_what_ended(&mut self, bucket: &TokenBucket) {
        let mut end = self.runs.len();
        let mut count: usize = 0;
        let mut first = u64::MAX;
        // The newest first: what follows each is what lies between it and the one after it.
        for (&number, charge) in self.open.iter_mut().rev() {
            if charge.times_full != self.times_full {
                break;
            }
            for place in charge.place.saturating_add(1)..end {
                charge.joined = charge.joined.then(self.runs.at(place));
            }
            end = charge.place;
            first = number;
            count = count.saturating_add(1);
        }
        self.runs.restart(count);
        for (_, charge) in self.open.range_mut(first..) {
            charge.place = self.runs.push(charge.run(bucket));
        }
    }

    fn bucket(&self) -> Option<(TokenBucket, Tat)> {
        match (&self.algorithm, self.state.tat()) {
            (Algorithm::TokenBucket(bucket), Some(tat)) => Some((*bucket, tat)),
            _ => None,
        }
    }
}

impl Charge {
    /// This charge and what was joined to it.
    fn run(&self, bucket: &TokenBucket) -> Since {
        let mut alone = Since::default();
        alone.charge(bucket, self.at, self.cost);
        alone.then(self.joined)
    }
}
