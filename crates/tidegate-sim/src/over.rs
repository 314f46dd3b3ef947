//! The independent check of over-admission: the most that any interval holds beyond what one bucket allows.

use tidegate_core::Quota;

/// Follows allowed calls in time order and remembers the interval that holds most beyond `B + r·t`.
///
/// It shares no code with the limiters. Every call either begins the worst interval that ends with it, or continues the one
/// of the call before: what that holds, less what was earned since, and its own cost.
///
/// ```
/// use tidegate_sim::Over;
///
/// let mut over = Over::new("10/s burst 2".parse()?);
/// for (time, cost) in [(0, 1), (0, 1), (100_000_000, 2)] {
///     over.add(time, cost);
/// }
/// // Two, and one more in 100 ms: the fourth is too many.
/// assert_eq!(over.most(), 1);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Over {
    quota: Quota,
    /// The most cost less what was earned, of all intervals that end with the last call: in `1/per` tokens.
    excess: u128,
    last: u64,
    most: u128,
}

impl Over {
    /// A check against one bucket of `quota`.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { quota, excess: 0, last: 0, most: 0 }
    }

    /// Adds a call that was allowed. Times must not go back.
    pub fn add(&mut self, time: u64, cost: u64) {
        let earned = u128::from(self.quota.count()) * u128::from(time.saturating_sub(self.last));
        let spent = u128::from(cost) * u128::from(self.quota.per_ns().get());
        self.excess = self.excess.saturating_sub(earned).saturating_add(spent);
        self.most = self.most.max(self.excess);
        self.last = time;
    }

    /// The tokens beyond `B + r·t` in the worst interval, rounded up; 0 if no interval holds more.
    #[must_use]
    pub fn most(&self) -> u128 {
        let per = u128::from(self.quota.per_ns().get());
        self.most.saturating_sub(u128::from(self.quota.burst()) * per).div_ceil(per)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_the_interval_that_counting_all_of_them_finds(
            count in 1_u64..30, per in 1_u64..30, burst in 1_u64..10,
            calls in proptest::collection::vec((0_u64..6, 0_u64..4), 0..60),
        ) {
            let quota = Quota::new(count, std::time::Duration::from_nanos(per)).unwrap();
            let quota = quota.with_burst(burst).unwrap();
            let (count, per) = (quota.count(), quota.per_ns().get());
            let mut now = 0;
            let calls: Vec<(u64, u64)> = calls.into_iter().map(|(gap, cost)| { now += gap; (now, cost) }).collect();
            let mut over = Over::new(quota);
            calls.iter().for_each(|&(time, cost)| over.add(time, cost));
            let mut most = 0;
            for from in 0..calls.len() {
                for to in from..calls.len() {
                    let cost: u64 = calls[from..=to].iter().map(|(_, cost)| cost).sum();
                    let allowed = quota.burst() * per + count * (calls[to].0 - calls[from].0);
                    most = most.max((cost * per).saturating_sub(allowed).div_ceil(per));
                }
            }
            prop_assert_eq!(over.most(), u128::from(most));
        }
    }
}
