//! A sequence of arrivals in time order, kept in columns so that a request costs 8 to 20 bytes.

/// Arrivals in time order.
///
/// Equal times keep the order in which they were read. `times[i]`, the cost and the key of index `i` belong together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Nanoseconds since the origin of the source: the Unix epoch for a trace with dates, zero for a pattern.
    pub times: Vec<u64>,
    /// What each arrival costs.
    pub costs: Costs,
    /// Which key each arrival belongs to; `None` when all share one bucket.
    pub keys: Option<Keys>,
}

/// What arrivals cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Costs {
    /// Every arrival costs 1; nothing is stored.
    #[default]
    One,
    /// One cost per arrival.
    Each(Vec<u64>),
}

/// The key column: a number per arrival, and the text of each number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// For each arrival, an index into `names`.
    pub ids: Vec<u32>,
    /// The text of each key, in order of first appearance in the source.
    pub names: Vec<Box<str>>,
}

impl Arrivals {
    /// How many arrivals there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The cost of arrival `index`.
    ///
    /// # Panics
    ///
    /// Panics if `index` is not below [`Self::len`] and costs are stored.
    #[must_use]
    pub fn cost(&self, index: usize) -> u64 {
        match &self.costs {
            Costs::One => 1,
            Costs::Each(costs) => costs[index],
        }
    }

    /// The number of the key of arrival `index`; 0 without keys.
    #[inline]
    pub(crate) fn key(&self, index: usize) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.ids[index] as usize)
    }

    /// How many keys there are; 1 without keys.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.as_ref().map_or(1, |keys| keys.names.len())
    }

    /// Nanoseconds from the first to the last arrival; 0 when there are fewer than two.
    #[must_use]
    pub fn span(&self) -> u64 {
        match (self.times.first(), self.times.last()) {
            (Some(first), Some(last)) => last.saturating_sub(*first),
            _ => 0,
        }
    }
}
