//! The independent check: the most that was allowed in any window, from a log of what was allowed.
//!
//! It shares no code with the limiters. A limiter promises a bound; this counts.

use std::collections::VecDeque;

/// Follows allowed calls in time order and remembers the worst window.
///
/// ```
/// use tidegate_sim::WorstWindow;
///
/// let mut worst = WorstWindow::new(1_000_000_000);
/// for (time, cost) in [(0, 1), (500_000_000, 1), (1_000_000_000, 1)] {
///     worst.add(time, cost);
/// }
/// // The windows are half-open: the first and the last are not in one second.
/// assert_eq!(worst.most(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct WorstWindow {
    window: u64,
    /// Time and cost of what is in the window that ends at the last call; equal times share an entry.
    recent: VecDeque<(u64, u128)>,
    in_window: u128,
    most: u128,
    most_at: u64,
}

impl WorstWindow {
    /// A check for half-open windows of `window` nanoseconds.
    #[must_use]
    pub const fn new(window: u64) -> Self {
        Self { window, recent: VecDeque::new(), in_window: 0, most: 0, most_at: 0 }
    }

    /// Adds a call that was allowed. Times must not go back.
    pub fn add(&mut self, time: u64, cost: u64) {
        while let Some((old, cost)) = self.recent.front()
            && time - old >= self.window
        {
            self.in_window -= cost;
            self.recent.pop_front();
        }
        match self.recent.back_mut() {
            Some((last, sum)) if *last == time => *sum += u128::from(cost),
            _ => self.recent.push_back((time, u128::from(cost))),
        }
        self.in_window += u128::from(cost);
        if self.in_window > self.most {
            self.most = self.in_window;
            self.most_at = time;
        }
    }

    /// The most cost in any window.
    #[must_use]
    pub const fn most(&self) -> u128 {
        self.most
    }

    /// The time of the last call in the worst window.
    #[must_use]
    pub const fn most_at(&self) -> u64 {
        self.most_at
    }
}
