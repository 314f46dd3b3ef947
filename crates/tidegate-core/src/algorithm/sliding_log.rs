//! The sliding log: remember each allowed call, and never allow more than `N` in any window.
//!
//! **Definition.** A call of cost `c` at `t` is allowed iff the cost allowed in the half-open window `(t - W, t]`,
//! plus `c`, is at most `N`. `N` and `W` are the count and the period of the quota as written; its burst plays no part.
//!
//! **Promise.** Never more than `N` in any window of length `W`, wherever it starts: the strict limit. Worst case: `N`,
//! and all `N` may come in one instant. In a closed interval of length `t`, `N·(floor(t/W) + 1)`.
//!
//! **State.** The time and cost of each allowed call in view, at most `N` entries (16 bytes each; calls at one instant
//! share one), and at most `2N + 1` in debt. This is the price: choose the token bucket unless strictness is worth it.
//!
//! **Debt.** More than `2N` in view counts as `2N + 1`: so the oldest is forgotten where so much follows it. What can
//! still be taken back was allowed, so it is at most `N` of that; with or without it more than `N` stay, and nothing is
//! allowed before as much has left. A cap at `N + 1` would not do: with `N = 2`, two allowed and then a debt of two
//! would count as three, and without the first two as one instead of two.
//!
//! **Worked example.** `1 per 10s`: a call at 0 passes. At 9.999999999 s it is refused with 1 ns to wait; at exactly
//! 10 s it passes, since the window `(0, 10]` no longer holds the first.
//!
//! **Not promised.** Smoothness: after a burst of `N`, nothing passes until the first of them leaves the window.
//!
//! **Source.** Folklore; the half-open window is what makes "at most `N` per `W`" and "a wait of exactly `W`" agree.

use alloc::collections::VecDeque;
use core::num::NonZeroU64;
use core::time::Duration;

use crate::arithmetic::duration;
use crate::{Decision, Quota, Step};

/// A sliding log for one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingLog {
    /// `N`.
    count: u64,
    /// `W` in nanoseconds.
    window: NonZeroU64,
}

/// Allowed calls in time order: those in view, and older ones until the next call that is allowed.
///
/// An entry holds a running total instead of its own cost, so that the cost in view is one subtraction and a look is
/// a binary search, however many entries have left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// The running total after the last entry. It wraps; only differences are used, and they are less than 2⁶⁴.
    total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// The running total before this entry.
    before: u64,
}

impl Log {
    /// How many entries are held; calls at one instant share one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// `now`, or the last entry's time if the clock went back behind it.
    #[inline]
    fn not_before_last(&self, now: u64) -> u64 {
        self.entries.back().map_or(now, |last| last.at.max(now))
    }

    /// The cost of the entries from `index` on.
    #[inline]
    fn cost_from(&self, index: usize) -> u64 {
        self.entries.get(index).map_or(0, |entry| self.total.wrapping_sub(entry.before))
    }
}

impl SlidingLog {
    /// The log that `quota` describes: its count per its period.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { count: quota.count(), window: quota.per_ns() }
    }

    /// `N` and `W`.
    pub(crate) const fn count_and_window(&self) -> (u64, NonZeroU64) {
        (self.count, self.window)
    }

    /// When an entry leaves the window.
    #[inline]
    fn leaves(&self, entry: &Entry) -> u128 {
        u128::from(entry.at).saturating_add(u128::from(self.window.get()))
    }

    /// How many entries at the front are no longer in view.
    #[inline]
    fn expired(&self, log: &Log, now: u64) -> usize {
        let now = u128::from(log.not_before_last(now));
        match log.entries.front() {
            Some(first) if self.leaves(first) <= now => {
                log.entries.partition_point(|entry| self.leaves(entry) <= now)
            }
            _ => 0,
        }
    }

    /// Takes `cost` of a charge made at `charged_at` back, if its entry is still there. The charge must have been
    /// allowed: a debt may be remembered as less than it was. The work grows with the number of later entries.
    pub fn refund(&self, log: &mut Log, charged_at: u64, cost: u64) {
        let index = log.entries.partition_point(|entry| entry.at < charged_at);
        if log.entries.get(index).is_none_or(|entry| entry.at != charged_at) {
            return;
        }
        let held = log.cost_from(index).wrapping_sub(log.cost_from(index.saturating_add(1)));
        let cost = cost.min(held);
        for later in log.entries.iter_mut().skip(index.saturating_add(1)) {
            later.before = later.before.wrapping_sub(cost);
        }
        log.total = log.total.wrapping_sub(cost);
        if cost == held {
            log.entries.remove(index);
        }
    }

    /// When what is in view has fallen to `keep` or less.
    fn falls_to(&self, log: &Log, keep: u64) -> u128 {
        let last_to_leave = log
            .entries
            .partition_point(|entry| log.total.wrapping_sub(entry.before) > keep)
            .saturating_sub(1);
        log.entries.get(last_to_leave).map_or(0, |entry| self.leaves(entry))
    }
}

impl Step for SlidingLog {
    type State = Log;

    fn fresh(&self) -> Log {
        Log::default()
    }

    #[inline]
    fn look(&self, state: &Log, now: u64, cost: u64) -> Decision {
        let used = state.cost_from(self.expired(state, now));
        let until = |instant: u128| duration(instant.saturating_sub(u128::from(now)));
        let last_leaves =
            || if used == 0 { 0 } else { state.entries.back().map_or(0, |last| self.leaves(last)) };
        match self.count.checked_sub(used).and_then(|free| free.checked_sub(cost)) {
            Some(remaining) => {
                let call = Entry { at: state.not_before_last(now), before: 0 };
                let reset_at = if cost > 0 { self.leaves(&call) } else { last_leaves() };
                Decision::Allowed { start_after: Duration::ZERO, remaining, reset_after: until(reset_at) }
            }
            None => match self.count.checked_sub(cost) {
                None => Decision::Never { capacity: self.count },
                Some(keep) => Decision::Rejected {
                    retry_after: until(self.falls_to(state, keep)),
                    remaining: self.count.saturating_sub(used),
                    reset_after: until(last_leaves()),
                },
            },
        }
    }

    #[inline]
    fn charge(&self, state: &mut Log, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let at = state.not_before_last(now);
        state.entries.drain(..self.expired(state, now));
        if state.entries.back().is_none_or(|last| last.at != at) {
            state.entries.push_back(Entry { at, before: state.total });
        }
        // No entry needs more than what counts as the most, and none that so much follows is needed at all; of the
        // first that is left, only what is missing to it is. So the total of all is `2N + 1`, which fits into 64 bits.
        let most = self.count.saturating_mul(2).saturating_add(1);
        let last = state.cost_from(state.entries.len().saturating_sub(1));
        let cost = cost.min(most.saturating_sub(last));
        let before = most.saturating_sub(cost);
        while state.entries.len() > 1 && state.cost_from(1) >= before {
            state.entries.pop_front();
        }
        let total = state.total;
        if let Some(first) =
            state.entries.front_mut().filter(|first| total.wrapping_sub(first.before) > before)
        {
            first.before = total.wrapping_sub(before);
        }
        state.total = state.total.wrapping_add(cost);
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        let window = core::num::NonZeroU128::from(self.window);
        Some((span.as_nanos() / window).saturating_add(1).saturating_mul(u128::from(self.count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::tests::{Row, check_table, check_table_from};

    const S: u64 = 1_000_000_000;

    #[test]
    fn sliding_log_window_is_open_at_its_old_end() {
        check_table(
            &SlidingLog::new("1 per 10s".parse().unwrap()),
            &[
                Row::allowed(0, 1, 0),
                Row::rejected(10 * S - 1, 1, 1),
                Row::allowed(10 * S, 1, 0),
                Row::never(10 * S, 2, 1),
            ],
        );
    }

    #[test]
    fn sliding_log_waits_until_enough_has_left() {
        check_table(
            &SlidingLog::new("5 per 10s".parse().unwrap()),
            &[
                Row::allowed(0, 2, 3),
                Row::allowed(S, 1, 2),
                Row::allowed(2 * S, 2, 0),
                Row::rejected(3 * S, 1, 7 * S),
                Row::rejected(3 * S, 2, 7 * S),
                Row::rejected(3 * S, 3, 8 * S),
                Row::rejected(3 * S, 5, 9 * S),
                // The first has left: two are free.
                Row::allowed(10 * S, 2, 0),
            ],
        );
    }

    #[test]
    fn sliding_log_remembers_the_latest_of_many_huge_debts() {
        let log = SlidingLog::new("5 per 10s".parse().unwrap());
        let mut state = log.fresh();
        log.charge(&mut state, 0, u64::MAX);
        log.charge(&mut state, S, u64::MAX);
        check_table_from(&log, state, &[Row::rejected(2 * S, 1, 9 * S), Row::rejected(10 * S, 0, S)]);
    }

    #[test]
    fn sliding_log_holds_no_more_than_its_bound_in_debt() {
        let log = SlidingLog::new("5 per 10s".parse().unwrap());
        let mut state = log.fresh();
        for now in 0..100 {
            log.charge(&mut state, now, 1);
        }
        assert_eq!(state.len(), 11);
        // Six would have to leave the window but for five; the sixth last was charged at 94.
        check_table_from(&log, state, &[Row::rejected(99, 0, 10 * S - 5), Row::rejected(99, 5, 10 * S)]);
    }

    #[test]
    fn sliding_log_refund_in_debt_leaves_all_of_the_debt() {
        // Two were allowed, and a debt of two was made at the same instant: without the first two, two are there.
        let log = SlidingLog::new("2 per 10s".parse().unwrap());
        let mut state = log.fresh();
        log.charge(&mut state, 0, 2);
        log.charge(&mut state, 0, 2);
        log.refund(&mut state, 0, 2);
        check_table_from(&log, state, &[Row::rejected(0, 1, 10 * S), Row::rejected(10 * S - 1, 1, 1)]);
    }

    #[test]
    fn sliding_log_refund_in_debt_leaves_the_older_calls() {
        // One at 0, two at 1 s, and a debt of two at 2 s. Without those of 1 s, three are there until 10 s.
        let log = SlidingLog::new("3 per 10s".parse().unwrap());
        let mut state = log.fresh();
        for (now, cost) in [(0, 1), (S, 2), (2 * S, 2)] {
            log.charge(&mut state, now, cost);
        }
        log.refund(&mut state, S, 2);
        check_table_from(&log, state, &[Row::rejected(2 * S, 1, 8 * S), Row::allowed(10 * S, 1, 0)]);
    }

    #[test]
    fn sliding_log_of_the_largest_count_holds_the_largest_debts() {
        let quota = Quota::new(i64::MAX as u64, Duration::from_secs(10)).unwrap();
        let log = SlidingLog::new(quota);
        let mut state = log.fresh();
        log.charge(&mut state, 0, i64::MAX as u64);
        log.charge(&mut state, S, u64::MAX - 1);
        log.charge(&mut state, 2 * S, 1);
        log.refund(&mut state, 0, i64::MAX as u64);
        check_table_from(
            &log,
            state,
            &[Row::rejected(2 * S, 0, 9 * S), Row::allowed(11 * S, 1, i64::MAX as u64 - 2)],
        );
    }

    #[test]
    fn sliding_log_holds_one_entry_per_instant_and_forgets_what_left() {
        let log = SlidingLog::new("1000 per 10s".parse().unwrap());
        let mut state = log.fresh();
        for now in [0, 0, 0, S, S, 10 * S] {
            (state, _) = log.step(state, now, 1);
        }
        assert_eq!(state.len(), 2);
    }
}
