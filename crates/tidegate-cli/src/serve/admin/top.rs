//! Who comes most often, in bounded memory: Space-Saving.
//!
//! For each name with a place, `count - error <= true count <= count`. A name without a place came at most as often as the
//! least `count` when all [`PLACES`] are taken, and never when not. So whoever makes more than 1/64 of all calls has a place.
//!
//! State: up to 64 places of (name, count, error). A name that has a place: `count + 1`. A new name takes a free place with
//! (1, 0), and when there is none the place with the least count `m`, with (m + 1, m).
//!
//! With two places, the names a a b c: `a 2 ±0`, `b 1 ±0`, and then c takes b's place as `c 2 ±1`.
//!
//! Names are told apart by a hash of 64 bits with a secret seed. Two of them are taken for one with a chance of 1 in 2⁵³
//! for the names of a whole sketch.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005;
//! sketches are added as in Agarwal et al., "Mergeable Summaries", PODS 2012.

use std::collections::HashMap;

/// How many names have a place. Twice as many would find names that make half as much of the calls, and take twice as
/// long to look through: 64 hashes are 8 cache lines.
pub(super) const PLACES: usize = 64;

/// Counts names of the type `N`.
#[derive(Debug, Clone)]
pub(super) struct Top<N> {
    /// By themselves, as they are looked through for each call.
    hashes: [u64; PLACES],
    counts: [u64; PLACES],
    errors: [u64; PLACES],
    /// As many as there are places taken.
    names: Vec<N>,
}

/// A name with the bounds of its true count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted<N> {
    pub(super) name: N,
    pub(super) at_least: u64,
    pub(super) at_most: u64,
}

impl<N> Default for Top<N> {
    fn default() -> Self {
        Self { hashes: [0; PLACES], counts: [0; PLACES], errors: [0; PLACES], names: Vec::new() }
    }
}

impl<N> Top<N> {
    /// Counts a name, which is made only when it takes a place.
    pub(super) fn add(&mut self, hash: u64, name: impl FnOnce() -> N) {
        let taken = self.names.len();
        if let Some(place) = self.hashes[..taken].iter().position(|other| *other == hash) {
            self.counts[place] += 1;
            return;
        }
        if taken < PLACES {
            self.names.push(name());
            (self.hashes[taken], self.counts[taken], self.errors[taken]) = (hash, 1, 0);
            return;
        }
        let least = self.least();
        if let Some(place) = self.counts.iter().position(|count| *count == least) {
            self.names[place] = name();
            (self.hashes[place], self.counts[place], self.errors[place]) = (hash, least + 1, least);
        }
    }

    /// The most that a name without a place can have come.
    fn least(&self) -> u64 {
        if self.names.len() < PLACES { 0 } else { self.counts.iter().copied().min().unwrap_or(0) }
    }
}

impl<N: Clone> Top<N> {
    /// The `most` names of several sketches together that are known to have come most often.
    pub(super) fn of_all(sketches: &[Self], most: usize) -> Vec<Counted<N>> {
        let elsewhere: u64 = sketches.iter().map(Self::least).sum();
        let mut all: HashMap<u64, Counted<N>> = HashMap::new();
        for sketch in sketches {
            let least = sketch.least();
            for (place, name) in sketch.names.iter().enumerate() {
                let (count, error) = (sketch.counts[place], sketch.errors[place]);
                let counted = all.entry(sketch.hashes[place]).or_insert_with(|| Counted {
                    name: name.clone(),
                    at_least: 0,
                    // What it can have come in sketches that do not have it, this one not yet taken out.
                    at_most: elsewhere,
                });
                counted.at_least += count - error;
                counted.at_most = counted.at_most - least + count;
            }
        }
        let mut all: Vec<(u64, Counted<N>)> = all.into_iter().collect();
        all.sort_unstable_by_key(|(hash, counted)| {
            (std::cmp::Reverse((counted.at_least, counted.at_most)), *hash)
        });
        all.truncate(most);
        all.into_iter().map(|(_, counted)| counted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sketch(names: &[u64]) -> Top<u64> {
        let mut top = Top::default();
        names.iter().for_each(|name| top.add(*name, || *name));
        top
    }

    #[test]
    fn few_names_are_counted_exactly() {
        let top = Top::of_all(&[sketch(&[7, 7, 8, 7]), sketch(&[8, 8, 8])], 10);
        let counted = |name, count| Counted { name, at_least: count, at_most: count };
        assert_eq!(top, [counted(8, 4), counted(7, 3)]);
        assert_eq!(Top::of_all(&[sketch(&[7, 8, 8])], 1), [counted(8, 2)]);
        assert_eq!(Top::<u64>::of_all(&[], 10), []);
    }

    #[test]
    fn a_new_name_takes_the_place_of_the_least() {
        let mut names: Vec<u64> = (0..PLACES as u64).flat_map(|name| [name, name]).collect();
        names.extend([3, 1000]);
        let top = Top::of_all(&[sketch(&names)], PLACES);
        assert_eq!(top[0], Counted { name: 3, at_least: 3, at_most: 3 });
        assert_eq!(top[PLACES - 1], Counted { name: 1000, at_least: 1, at_most: 3 });
    }

    proptest! {
        // Few names come often and many once: the shape of real traffic, and of an attack.
        #[test]
        fn the_true_count_is_within_the_bounds(
            parts in prop::collection::vec(
                prop::collection::vec(prop_oneof![0_u64..20, 0_u64..2000], 0..600),
                1..4,
            ),
        ) {
            let sketches: Vec<Top<u64>> = parts.iter().map(|names| sketch(names)).collect();
            let mut truth: HashMap<u64, u64> = HashMap::new();
            for name in parts.iter().flatten() {
                *truth.entry(*name).or_default() += 1;
            }
            let all = Top::of_all(&sketches, usize::MAX);
            for counted in &all {
                let count = truth[&counted.name];
                prop_assert!(counted.at_least <= count && count <= counted.at_most, "{counted:?} {count}");
            }
            let without: u64 = sketches.iter().map(Top::least).sum();
            for (name, count) in truth {
                prop_assert!(count <= without || all.iter().any(|counted| counted.name == name));
            }
            prop_assert!(all.is_sorted_by_key(|counted| std::cmp::Reverse(counted.at_least)));
            // Nothing is counted twice, and no place is lost.
            for (sketch, names) in sketches.iter().zip(&parts) {
                prop_assert_eq!(sketch.counts.iter().sum::<u64>(), names.len() as u64);
            }
        }
    }
}
