//! A set of the flat table: its cache lines, and the sequence lock that keeps what is read of them together.
//!
//! The layout and the protocol are described at the head of `flat.rs`.

use std::hint::select_unpredictable;

use crate::limiter::shim::{AtomicU64, Ordering, fence, pause};

/// Slots in a set: with the word about the set, the keys fill a cache line.
pub(in crate::limiter) const SLOTS: usize = 7;

pub(super) const TIER_BITS: u32 = 8;

/// Bits of a version.
pub(super) const LOCKED: u64 = 1;
pub(super) const EPOCH: u64 = 2;
pub(super) const COUNT: u64 = 4;

/// A cache line: a word about the set, and a word for each slot, at the slot's own number, from 1 on.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Line(pub(super) [AtomicU64; 1 + SLOTS]);

impl Line {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Lines 0 and 1 of a set.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) keys: Line,
    pub(super) full_at: Line,
}

/// The set of one key.
pub(super) struct Set<'a> {
    pub(super) pair: &'a Pair,
    pub(super) more: &'a [Line],
}

/// A locked set: nobody else decides in it.
pub(super) struct Locked<'a> {
    pub(super) set: Set<'a>,
    /// The version it had, and with a changed epoch the one it will have.
    pub(super) version: u64,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.set.version().store(self.version.wrapping_add(COUNT), Ordering::Release);
    }
}

impl<'a> Set<'a> {
    #[inline]
    pub(super) fn version(&self) -> &AtomicU64 {
        &self.pair.full_at.0[0]
    }

    /// When a slot was last given to another key.
    #[inline]
    pub(super) fn given(&self) -> &AtomicU64 {
        &self.pair.keys.0[0]
    }

    #[inline]
    pub(super) fn key(&self, slot: usize) -> u64 {
        self.pair.keys.0[slot].load(Ordering::Relaxed)
    }

    /// The unit-times of a limit.
    #[inline]
    pub(super) fn line(&self, limit: usize) -> &Line {
        if limit == 0 { &self.pair.full_at } else { &self.more[limit - 1] }
    }

    #[inline]
    pub(super) fn full_at(&self, slot: usize, limit: usize) -> u64 {
        self.line(limit).0[slot].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_full_at(&self, slot: usize, limit: usize, value: u64) {
        self.line(limit).0[slot].store(value, Ordering::Relaxed);
    }

    /// The slot of the key word `want`, all bits of it.
    #[inline]
    pub(super) fn find(&self, want: u64) -> Option<usize> {
        let mut found = 0;
        for slot in 1..=SLOTS {
            found = select_unpredictable(self.key(slot) == want, slot, found);
        }
        // No more than there are: with that said, nobody checks it again.
        (found > 0).then_some(found & SLOTS)
    }

    /// Locks the set if its version is still `version`: then all that was read since is what is there now.
    #[inline]
    pub(super) fn lock_at(self, version: u64) -> Result<Locked<'a>, Self> {
        match self.version().compare_exchange(
            version,
            version.wrapping_add(1),
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                // Whoever sees a store that follows sees the lock too.
                fence(Ordering::Release);
                Ok(Locked { set: self, version })
            }
            Err(_) => Err(self),
        }
    }

    /// Whether the version is still `version`: then all that was read since belongs together.
    #[inline]
    pub(super) fn is_still(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.version().load(Ordering::Relaxed) == version
    }

    pub(super) fn lock(mut self) -> Locked<'a> {
        let mut tries = 0;
        loop {
            let version = self.version().load(Ordering::Relaxed);
            if version & LOCKED == 0 {
                match self.lock_at(version) {
                    Ok(locked) => return locked,
                    Err(set) => self = set,
                }
            }
            pause(&mut tries);
        }
    }
}

#[inline]
pub(super) fn key_word(hash: u64, tier: u8) -> u64 {
    hash << TIER_BITS | u64::from(tier)
}

#[inline]
pub(super) fn tier_of(key: u64) -> u8 {
    key.to_le_bytes()[0]
}
