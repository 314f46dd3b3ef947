//! Which keys are called, drawn beforehand so that drawing is not measured.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Draws in a sequence, a power of two; then it begins again.
const DRAWS: usize = 1 << 22;

/// The seed of every sequence.
pub(crate) const SEED: u64 = 42;

/// A sequence of calls, with each key in the forms in which callers have it.
pub(crate) struct Keys {
    pub(crate) ids: Vec<u64>,
    /// One after the other in memory, as the key of a request that has just been read is near.
    text: String,
    pub(crate) owned: Vec<String>,
}

/// Characters of a key as text.
const WIDTH: usize = 13;

fn text_of(id: u64) -> String {
    format!("user:{id:08}")
}

impl Keys {
    /// Each of `keys` keys as likely as another.
    pub(crate) fn uniform(keys: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(SEED);
        Self::new(|| random.random_range(0..keys))
    }

    /// The key of rank `r` as likely as `1/r`; where it is in any order has nothing to do with its rank.
    pub(crate) fn zipf(keys: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(SEED);
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Self::new(|| {
            let draw = random.random_range(0.0..sum);
            let rank = sums.partition_point(|&sum| sum <= draw) as u64;
            // A multiplier without a factor in common with the number of keys, a power of ten.
            rank * 611_953 % keys
        })
    }

    fn new(mut draw: impl FnMut() -> u64) -> Self {
        let ids: Vec<u64> = (0..DRAWS).map(|_| draw()).collect();
        let owned: Vec<String> = ids.iter().map(|&id| text_of(id)).collect();
        Self { text: owned.concat(), owned, ids }
    }

    #[inline]
    pub(crate) fn text(&self, call: usize) -> &str {
        let at = call % DRAWS * WIDTH;
        &self.text[at..at + WIDTH]
    }

    #[inline]
    pub(crate) fn owned(&self, call: usize) -> &String {
        &self.owned[call % DRAWS]
    }

    #[inline]
    pub(crate) fn id(&self, call: usize) -> u64 {
        self.ids[call % DRAWS]
    }

    /// Each of `keys` keys once, as a number and as text.
    pub(crate) fn all(keys: u64) -> impl Iterator<Item = (u64, String)> {
        (0..keys).map(|id| (id, text_of(id)))
    }
}
