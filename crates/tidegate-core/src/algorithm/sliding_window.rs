//! The sliding window counter: two fixed windows, the older one weighted by how much of it is still in view.
//!
//! **Definition.** At `e` nanoseconds into the current aligned window, the estimate is
//! `previous·(W - e)/W + current`. A call of cost `c` is allowed iff `estimate + c <= N`. `N` and `W` are the count and
//! the period of the quota as written.
//!
//! **Promise.** The *estimate* stays at or below `N`, and so does each aligned window. The estimate supposes that
//! the older window was used evenly. Worst case, when it was not: under `2N` in a window (`N` at the very end of one
//! window, then `N - 1` more by the end of the next, as the weight falls); in a closed interval of length `t < W` at most
//! `N + floor(N·(t - 1)/W)`, with `t` in nanoseconds, and in a longer one `N·(ceil(t/W) + 1)`, as for the fixed window
//! (proof of the first: with `x <= N` in the old window, the calls at offset `e <= t - 1` of the next are at most
//! `N - x·(W - e)/W`, and `x + N - x·(W - e)/W` is largest for `x = N`). What it gains over the fixed window is that the second `N` comes
//! slowly, not at once: at the boundary itself nothing more passes.
//!
//! **State.** The number of the current window and two counts.
//!
//! **Worked example.** `10/s`: ten calls at 0.999 s. At 1.000 s the estimate is 10, nothing passes. At 1.1 s it is
//! 9, one call passes; the next waits until 1.2 s.
//!
//! **Not promised.** Strictness: that takes the [sliding log](super::sliding_log), at the price of an entry a call.
//! Nor the whole rate: what a window used is in view until its last instant, so under demand that never ends each
//! window but the first allows `N - 1`, and with `N = 1` only every other window allows one.
//!
//! **Source.** The counter that Cloudflare described in 2017 (*How we built rate limiting capable of scaling to
//! millions of domains*); here in integers: the comparison is multiplied by `W`.

use core::num::NonZeroU64;
use core::time::Duration;

use crate::arithmetic::{div_down, duration, narrow, product};
use crate::{Decision, Quota, Step};

/// A sliding window counter for one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// `N`.
    count: u64,
    /// `W` in nanoseconds.
    window: NonZeroU64,
}

/// The number of the window that was charged last, its count, and the count of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TwoCounts {
    window: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    /// The counter that `quota` describes: its count per its period.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { count: quota.count(), window: quota.per_ns() }
    }

    /// `N` and `W`.
    pub(crate) const fn count_and_window(&self) -> (u64, NonZeroU64) {
        (self.count, self.window)
    }

    /// The state with the window of `now` current. An earlier window never comes back.
    #[inline]
    fn at(&self, state: TwoCounts, now: u64) -> TwoCounts {
        let window = now / self.window;
        match window.checked_sub(state.window) {
            None | Some(0) => state,
            Some(1) => TwoCounts { window, previous: state.current, current: 0 },
            Some(_) => TwoCounts { window, previous: 0, current: 0 },
        }
    }

    /// Takes `cost` of a charge made at `charged_at` back, from the window it was made in if that is still in view.
    pub fn refund(&self, state: &mut TwoCounts, charged_at: u64, cost: u64) {
        match state.window.checked_sub(charged_at / self.window) {
            Some(0) => state.current = state.current.saturating_sub(cost),
            Some(1) => state.previous = state.previous.saturating_sub(cost),
            _ => {}
        }
    }

    /// When the window of `state` starts.
    #[inline]
    fn start(&self, state: TwoCounts) -> u128 {
        product(state.window, self.window.get())
    }

    /// Earliest offset into a window at which `counted` in the window before leaves `free` of the count:
    /// `counted·(W - e) <= free·W`.
    fn offset(&self, counted: u64, free: u64) -> u128 {
        let w = u128::from(self.window.get());
        match NonZeroU64::new(counted) {
            None => 0,
            Some(counted) => w.saturating_sub(div_down(product(free, self.window.get()), counted)),
        }
    }

    /// The first instant at which a call of `cost`, which does not fit now but could, will fit.
    fn fits_at(&self, state: TwoCounts, cost: u64) -> u128 {
        let w = u128::from(self.window.get());
        let free = self.count.saturating_sub(cost);
        match free.checked_sub(state.current) {
            // In this window, as the weight of the one before falls.
            Some(free) => self.start(state).saturating_add(self.offset(state.previous, free)),
            // In the next one, where what is current now has the falling weight.
            None => self.start(state).saturating_add(w).saturating_add(self.offset(state.current, free)),
        }
    }

    /// Nanoseconds until neither count is in view.
    fn reset_after(&self, state: TwoCounts, now: u64) -> Duration {
        let w = u128::from(self.window.get());
        let end = if state.current > 0 {
            self.start(state).saturating_add(w.saturating_mul(2))
        } else if state.previous > 0 {
            self.start(state).saturating_add(w)
        } else {
            return Duration::ZERO;
        };
        duration(end.saturating_sub(u128::from(now)))
    }

    /// `previous·(W - e) + current·W`: the estimate, in tokens times nanoseconds.
    #[inline]
    fn estimate(&self, state: TwoCounts, now: u64) -> u128 {
        let elapsed = u128::from(now).saturating_sub(self.start(state));
        let left = narrow(u128::from(self.window.get()).saturating_sub(elapsed));
        product(state.previous, left).saturating_add(product(state.current, self.window.get()))
    }
}

impl Step for SlidingWindow {
    type State = TwoCounts;

    fn fresh(&self) -> TwoCounts {
        TwoCounts::default()
    }

    #[inline]
    fn look(&self, state: &TwoCounts, now: u64, cost: u64) -> Decision {
        let state = self.at(*state, now);
        let estimate = self.estimate(state, now);
        let needed = estimate.saturating_add(product(cost, self.window.get()));
        let full = product(self.count, self.window.get());
        let tokens = |free: u128| narrow(div_down(free, self.window));
        if needed <= full {
            let after = TwoCounts { current: state.current.saturating_add(cost), ..state };
            Decision::Allowed {
                start_after: Duration::ZERO,
                remaining: tokens(full.saturating_sub(needed)),
                reset_after: self.reset_after(after, now),
            }
        } else if cost > self.count {
            Decision::Never { capacity: self.count }
        } else {
            Decision::Rejected {
                retry_after: duration(self.fits_at(state, cost).saturating_sub(u128::from(now))),
                remaining: tokens(full.saturating_sub(estimate)),
                reset_after: self.reset_after(state, now),
            }
        }
    }

    #[inline]
    fn charge(&self, state: &mut TwoCounts, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        *state = self.at(*state, now);
        state.current = state.current.saturating_add(cost);
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        let (span, window) = (span.as_nanos(), u128::from(self.window.get()));
        let count = u128::from(self.count);
        Some(if span < window {
            // Below a window, so the product fits.
            let slowly = count.saturating_mul(span.saturating_sub(1)).checked_div(window).unwrap_or(0);
            count.saturating_add(slowly)
        } else {
            span.div_ceil(window).saturating_add(1).saturating_mul(count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::tests::{Row, check_table};

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    #[test]
    fn sliding_window_follows_the_worked_example() {
        check_table(
            &SlidingWindow::new("10/s".parse().unwrap()),
            &[
                Row::allowed(999 * MS, 10, 0),
                Row::rejected(S, 1, 100 * MS),
                Row::rejected(1100 * MS - 1, 1, 1),
                Row::allowed(1100 * MS, 1, 0),
                Row::rejected(1100 * MS, 1, 100 * MS),
                Row::never(1100 * MS, 11, 10),
            ],
        );
    }

    #[test]
    fn sliding_window_waits_into_the_next_window_when_the_current_one_is_full() {
        check_table(
            &SlidingWindow::new("10/s".parse().unwrap()),
            &[
                Row::allowed(0, 10, 0),
                // At 1.3 s the weight of the ten is 0.7.
                Row::rejected(500 * MS, 3, 800 * MS),
                Row::rejected(500 * MS, 10, 1500 * MS),
                Row::rejected(1300 * MS - 1, 3, 1),
                Row::allowed(1300 * MS, 3, 0),
            ],
        );
    }

    #[test]
    fn sliding_window_in_debt_refuses_cost_0_too() {
        let window = SlidingWindow::new("10/s".parse().unwrap());
        let mut state = window.fresh();
        window.charge(&mut state, 0, 20);
        // At 1.5 s the weight of the twenty is 10.
        assert_eq!(window.look(&state, 0, 0).retry_after(), Some(Duration::from_millis(1500)));
        assert!(window.look(&state, 1500 * MS, 0).is_allowed());
        assert!(!window.look(&state, 1500 * MS, 1).is_allowed());
    }

    #[test]
    fn sliding_window_reaches_its_worst_case() {
        // N at the last instant of a window, and N - 1 more before the next one ends.
        let window = SlidingWindow::new("10/s".parse().unwrap());
        let (mut state, _) = window.step(window.fresh(), S - 1, 10);
        let mut allowed = 10;
        for now in (S..2 * S - 1).step_by(100_000) {
            let (next, decision) = window.step(state, now, 1);
            state = next;
            allowed += u64::from(decision.is_allowed());
        }
        assert_eq!(allowed, 19);
    }
}
