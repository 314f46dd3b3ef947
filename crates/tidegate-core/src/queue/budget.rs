//! The limiter of a line, and what each call in flight took from it, so that it can be taken back.
//!
//! **Why the later charges are kept.** What a refund is worth depends on what came after (see
//! [`TokenBucket::refund`](crate::algorithm::TokenBucket::refund)). So each open charge keeps the run of charges
//! between it and the next open one, as one value. A charge adds to the last run, an end joins two runs, and only a
//! refund walks along them. At an instant when the bucket is full, everything before is forgotten: a refund of it
//! could give nothing back.

use alloc::collections::BTreeMap;
use core::num::NonZeroU128;
use core::ops::Bound::{Excluded, Unbounded};
use core::time::Duration;

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
    /// How often the bucket was full when a charge was made.
    times_full: u64,
}

#[derive(Debug, Clone, Copy)]
struct Charge {
    at: u64,
    cost: u64,
    /// The charges after this one and before the next open one.
    run: Since,
    times_full: u64,
}

impl Budget {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, state: algorithm.fresh(), open: BTreeMap::new(), times_full: 0 }
    }

    pub(super) fn look(&self, now: u64, cost: u64) -> Decision {
        self.algorithm.look(&self.state, now, cost)
    }

    /// Charges `cost` and keeps the charge open under `number`, which is above all before it.
    pub(super) fn charge(&mut self, now: u64, number: u64, cost: u64) {
        self.note_full(now);
        self.take(now, cost);
        let charge = Charge { at: now, cost, run: Since::default(), times_full: self.times_full };
        self.open.insert(number, charge);
    }

    /// Ends an open charge as it is. `false` if there is none of that number.
    pub(super) fn close(&mut self, number: u64) -> bool {
        let Some(charge) = self.open.remove(&number) else {
            return false;
        };
        if let Some((bucket, _)) = self.bucket()
            && let Some((_, before)) = self.open.range_mut(..number).next_back()
        {
            before.run = before.run.then(charge.alone(&bucket)).then(charge.run);
        }
        true
    }

    /// Ends an open charge as one of `actual`. `false` if there is none of that number.
    pub(super) fn settle(&mut self, now: u64, number: u64, actual: u64) -> bool {
        let Some(charge) = self.open.get_mut(&number) else {
            return false;
        };
        let (reserved, at, run, times_full) = (charge.cost, charge.at, charge.run, charge.times_full);
        charge.cost = reserved.min(actual);
        if let Some(back) = reserved.checked_sub(actual) {
            if back > 0 && times_full == self.times_full {
                let since = self.since(number, run);
                self.algorithm.refund(&mut self.state, at, back, since);
            }
        } else {
            self.charge_closed(now, actual.saturating_sub(reserved));
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

    /// Charges what nobody can take back.
    fn charge_closed(&mut self, now: u64, cost: u64) {
        self.note_full(now);
        if let Some((bucket, _)) = self.bucket()
            && let Some(mut last) = self.open.last_entry()
        {
            last.get_mut().run.charge(&bucket, now, cost);
        }
        self.take(now, cost);
    }

    /// A full bucket remembers nothing.
    fn note_full(&mut self, now: u64) {
        if self.bucket().is_some_and(|(bucket, tat)| bucket.deficit(tat, now) == 0) {
            self.times_full = self.times_full.wrapping_add(1);
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        if cost > 0 {
            self.algorithm.charge(&mut self.state, now, cost);
        }
    }

    /// All charges after the open one of `number`, whose own run is `run`.
    fn since(&self, number: u64, run: Since) -> Since {
        let Some((bucket, _)) = self.bucket() else {
            return run;
        };
        let later = self.open.range((Excluded(number), Unbounded));
        later.fold(run, |since, (_, charge)| since.then(charge.alone(&bucket)).then(charge.run))
    }

    fn bucket(&self) -> Option<(TokenBucket, Tat)> {
        match (&self.algorithm, self.state.tat()) {
            (Algorithm::TokenBucket(bucket), Some(tat)) => Some((*bucket, tat)),
            _ => None,
        }
    }
}

impl Charge {
    /// This charge as a run of one.
    fn alone(&self, bucket: &TokenBucket) -> Since {
        let mut run = Since::default();
        run.charge(bucket, self.at, self.cost);
        run
    }
}
