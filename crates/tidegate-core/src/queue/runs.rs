//! A sequence of charges that can be changed, and joined from any of them to the end in O(log n).
//!
//! A binary tree in an array: the leaves are the charges in order, a node is its two children joined. (Known as the
//! iterative segment tree; here only whole tails are asked for.)

use alloc::vec::Vec;

use crate::algorithm::token_bucket::Since;

/// The fewest leaves of a tree. Twice as many make a short sequence one level deeper, and full half as often.
const LEAVES: usize = 4;

#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    /// Node `i` has the children `2i` and `2i + 1`; the second half is the leaves. Node 0 is unused.
    nodes: Vec<Since>,
    len: usize,
}

impl Runs {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == self.leaves()
    }

    /// Forgets everything. The work is paid for by what was pushed.
    pub(super) fn clear(&mut self) {
        for place in 0..self.len {
            let mut node = place.wrapping_add(self.leaves());
            // Above a node that is empty already everything is.
            while let Some(run) = self.nodes.get_mut(node).filter(|run| **run != Since::default()) {
                *run = Since::default();
                node /= 2;
            }
        }
        self.len = 0;
    }

    /// Forgets everything and makes room for twice `needed`.
    pub(super) fn restart(&mut self, needed: usize) {
        let leaves = needed.saturating_mul(2).next_power_of_two().max(LEAVES);
        self.nodes.clear();
        self.nodes.resize(leaves.saturating_mul(2), Since::default());
        self.len = 0;
    }

    /// Adds a charge at the end, where there must be room, and tells its place.
    pub(super) fn push(&mut self, run: Since) -> usize {
        let place = self.len;
        self.len = place.saturating_add(1);
        self.set(place, run);
        place
    }

    pub(super) fn set(&mut self, place: usize, run: Since) {
        let mut node = place.saturating_add(self.leaves());
        if let Some(leaf) = self.nodes.get_mut(node) {
            *leaf = run;
        }
        while node > 1 {
            node /= 2;
            let left = self.node(node.wrapping_mul(2));
            let joined = left.then(self.node(node.wrapping_mul(2).wrapping_add(1)));
            if let Some(node) = self.nodes.get_mut(node) {
                *node = joined;
            }
        }
    }

    /// The charge at `place`.
    pub(super) fn at(&self, place: usize) -> Since {
        self.node(place.saturating_add(self.leaves()))
    }

    /// Everything after `place`, joined.
    pub(super) fn after(&self, place: usize) -> Since {
        let mut node = place.saturating_add(self.leaves());
        let mut joined = Since::default();
        while node > 1 {
            // What a left child does not hold of the tail, its right neighbour does.
            if node.is_multiple_of(2) {
                joined = joined.then(self.node(node.wrapping_add(1)));
            }
            node /= 2;
        }
        joined
    }

    fn leaves(&self) -> usize {
        self.nodes.len() / 2
    }

    fn node(&self, node: usize) -> Since {
        self.nodes.get(node).copied().unwrap_or_default()
    }
}
