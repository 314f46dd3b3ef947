//! What a call takes from each limit of a line.

/// The most limits that a line can have. One more is 8 bytes for every call that waits and 16 for every key.
pub const MAX_LIMITS: usize = 4;

/// The tokens that a call takes from each limit of a line, in the order of the limits; 0 from those that are not named.
///
/// ```
/// use tidegate_core::queue::Cost;
///
/// assert_eq!(Cost::from(1), Cost::from([1, 0]));
/// // One request, and 4096 bytes.
/// assert_eq!(Cost::from([1, 4096]).of(1), 4096);
/// assert_eq!(Cost::from([1, 4096]).with(1, 300), Cost::from([1, 300]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cost {
    of: [u64; MAX_LIMITS],
}

impl Cost {
    /// What it takes from the limit with this index.
    #[must_use]
    pub fn of(&self, limit: usize) -> u64 {
        self.of.get(limit).copied().unwrap_or(0)
    }

    /// The same, but for what it takes from one limit; an index that no line has changes nothing.
    #[must_use]
    pub fn with(mut self, limit: usize, cost: u64) -> Self {
        if let Some(of) = self.of.get_mut(limit) {
            *of = cost;
        }
        self
    }

    /// Both together.
    pub(super) fn plus(mut self, other: Self) -> Self {
        self.of.iter_mut().zip(other.of).for_each(|(sum, cost)| *sum = sum.saturating_add(cost));
        self
    }

    /// What is left without `other`.
    pub(super) fn minus(mut self, other: Self) -> Self {
        self.of.iter_mut().zip(other.of).for_each(|(left, cost)| *left = left.saturating_sub(cost));
        self
    }

    /// The index of each limit, and what is taken from it.
    pub(super) fn each(self) -> impl Iterator<Item = (usize, u64)> {
        self.of.into_iter().enumerate()
    }
}

impl From<u64> for Cost {
    /// A cost in the first limit.
    fn from(cost: u64) -> Self {
        Self::from([cost])
    }
}

impl<const N: usize> From<[u64; N]> for Cost {
    /// A cost in each limit; more than [`MAX_LIMITS`] do not compile.
    fn from(costs: [u64; N]) -> Self {
        const { assert!(N <= MAX_LIMITS, "a line has at most MAX_LIMITS limits") };
        let mut of = [0; MAX_LIMITS];
        of.iter_mut().zip(costs).for_each(|(of, cost)| *of = cost);
        Self { of }
    }
}

/// A sum of costs. It does not overflow: 2⁶⁴ calls would have to wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    of: [u128; MAX_LIMITS],
}

impl Sum {
    pub(super) fn of(&self, limit: usize) -> u128 {
        self.of.get(limit).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, cost: Cost) {
        self.of.iter_mut().zip(cost.of).for_each(|(sum, cost)| *sum = sum.saturating_add(u128::from(cost)));
    }

    pub(super) fn subtract(&mut self, cost: Cost) {
        self.of.iter_mut().zip(cost.of).for_each(|(sum, cost)| *sum = sum.saturating_sub(u128::from(cost)));
    }

    pub(super) fn add_sum(&mut self, other: Self) {
        self.of.iter_mut().zip(other.of).for_each(|(sum, other)| *sum = sum.saturating_add(other));
    }
}
