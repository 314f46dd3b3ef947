//! The fixed window: a count that starts again at each boundary of the time axis.
//!
//! **Definition.** Window number `k = floor(t / W)`. A call of cost `c` is allowed iff `used + c <= N`, where `used`
//! is what window `k` has already allowed. `N` and `W` are the count and the period of the quota as written: `60/min`
//! and `1/s` differ here. The burst of the quota plays no part.
//!
//! **Promise.** At most `N` in each aligned window. Worst case: `2N` in an instant that straddles a boundary (`N` at
//! the last nanosecond of a window, `N` at the first of the next); in a closed interval of length `t`,
//! `N·(ceil(t/W) + 1)`.
//!
//! **State.** The window number and what it has used.
//!
//! **Worked example.** `10/s`: ten calls at 0.999 s and ten at 1.000 s all pass, twenty in a millisecond. The
//! twenty-first waits for 2 s, the next boundary, whoever used the window up.
//!
//! **Not promised.** Anything about a window that is not aligned. The wait is to the boundary, so everybody who was
//! refused comes back at the same instant.
//!
//! **Source.** Folklore: a counter per clock minute is what most API gateways and `INCR` recipes do. Windows
//! here are aligned to the time axis, not to the first call, so that all who share a clock share the windows.

use core::num::NonZeroU64;
use core::time::Duration;

use crate::arithmetic::{duration, product};
use crate::{Decision, Quota, Step};

/// A fixed window for one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindow {
    /// `N`.
    count: u64,
    /// `W` in nanoseconds.
    window: NonZeroU64,
}

/// The number of the window that was charged last, and what it has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    window: u64,
    cost: u64,
}

impl FixedWindow {
    /// The window that `quota` describes: its count per its period.
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
    fn at(&self, state: Used, now: u64) -> Used {
        let window = now / self.window;
        if window > state.window { Used { window, cost: 0 } } else { state }
    }

    /// Takes `cost` of a charge made at `charged_at` back. It belongs to the window it was made in: when that is over,
    /// nothing changes.
    pub fn refund(&self, state: &mut Used, charged_at: u64, cost: u64) {
        if charged_at / self.window == state.window {
            state.cost = state.cost.saturating_sub(cost);
        }
    }
}

impl Step for FixedWindow {
    type State = Used;

    fn fresh(&self) -> Used {
        Used::default()
    }

    #[inline]
    fn look(&self, state: &Used, now: u64, cost: u64) -> Decision {
        let used = self.at(*state, now);
        let remaining = self.count.saturating_sub(used.cost);
        let end = product(used.window, self.window.get()).saturating_add(u128::from(self.window.get()));
        let to_end = duration(end.saturating_sub(u128::from(now)));
        let full_after = |cost: u64| if cost == 0 { Duration::ZERO } else { to_end };
        let after = used.cost.saturating_add(cost);
        if after <= self.count {
            Decision::Allowed {
                start_after: Duration::ZERO,
                remaining: self.count.saturating_sub(after),
                reset_after: full_after(after),
            }
        } else if cost > self.count {
            Decision::Never { capacity: self.count }
        } else {
            Decision::Rejected { retry_after: to_end, remaining, reset_after: full_after(used.cost) }
        }
    }

    #[inline]
    fn charge(&self, state: &mut Used, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        *state = self.at(*state, now);
        state.cost = state.cost.saturating_add(cost);
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        let windows = span.as_nanos().div_ceil(u128::from(self.window.get())).saturating_add(1);
        Some(windows.saturating_mul(u128::from(self.count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::tests::{Row, check_table};

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    #[test]
    fn fixed_window_lets_twice_the_count_straddle_a_boundary() {
        check_table(
            &FixedWindow::new("10/s".parse().unwrap()),
            &[
                Row::allowed(999 * MS, 10, 0),
                Row::rejected(999 * MS, 1, MS),
                Row::rejected(S - 1, 1, 1),
                Row::allowed(S, 10, 0),
                Row::rejected(S, 1, S),
                Row::never(S, 11, 10),
                Row::allowed(S, 0, 0),
            ],
        );
    }

    #[test]
    fn fixed_window_is_aligned_to_the_time_axis_not_to_the_first_call() {
        check_table(
            &FixedWindow::new("60/min".parse().unwrap()),
            &[Row::allowed(59 * S, 60, 0), Row::allowed(60 * S, 60, 0), Row::rejected(90 * S, 1, 30 * S)],
        );
    }

    #[test]
    fn fixed_window_refund_stays_in_its_own_window() {
        let minute = FixedWindow::new("10/min".parse().unwrap());
        let mut state = minute.fresh();
        minute.charge(&mut state, 59 * S, 8);
        minute.charge(&mut state, 59 * S, 1);
        minute.refund(&mut state, 59 * S, 8);
        assert_eq!(minute.look(&state, 59 * S, 0).remaining(), 9);
        // In the next minute others use six. What comes back from the old one must not erase that.
        minute.charge(&mut state, 61 * S, 6);
        minute.refund(&mut state, 59 * S, 1);
        assert_eq!(minute.look(&state, 61 * S, 0).remaining(), 4);
    }

    #[test]
    fn fixed_window_never_reopens_a_window_that_is_over() {
        check_table(
            &FixedWindow::new("2/s".parse().unwrap()),
            &[
                Row::allowed(500 * MS, 1, 1),
                Row::allowed(1500 * MS, 1, 1),
                // The clock went back into window 0: window 1 goes on, and the wait is to its end.
                Row::allowed(700 * MS, 1, 0),
                Row::rejected(700 * MS, 1, 1300 * MS),
            ],
        );
    }
}
