//! The least that a limiter must do, as code: no product, but what the products are measured by.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;

/// Nanoseconds since it was made: the time-stamp counter, read the way that all fast peers read it.
pub(crate) struct Clock {
    clock: quanta::Clock,
    origin: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self { clock, origin }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.origin, self.clock.raw())
    }
}

/// A bucket in one word, the time at which it is full again: load, compare, compare-and-swap.
#[repr(align(128))]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn allows(&self, now_ns: u64, token_ns: u64, burst_ns: u64) -> bool {
        allows(&self.0, now_ns, token_ns, burst_ns)
    }
}

#[inline]
fn allows(full_at: &AtomicU64, now_ns: u64, token_ns: u64, burst_ns: u64) -> bool {
    let mut seen = full_at.load(Ordering::Relaxed);
    loop {
        let next = seen.max(now_ns) + token_ns;
        if next > now_ns + burst_ns {
            return false;
        }
        match full_at.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(changed) => seen = changed,
        }
    }
}

/// Fingerprints of 64 bits and a word each, in one array with open addressing. It forgets nobody, and is stuck when it is
/// full; a key whose fingerprint is that of another shares its bucket.
pub(crate) struct FlatTable {
    slots: Box<[Slot]>,
    hasher: RandomState,
    clock: Clock,
    token_ns: u64,
    burst_ns: u64,
}

#[repr(align(16))]
struct Slot {
    fingerprint: AtomicU64,
    full_at: AtomicU64,
}

impl FlatTable {
    /// A table of two slots or more for each of `keys`.
    pub(crate) fn new(keys: usize, token_ns: u64, burst_ns: u64) -> Self {
        let slot = || Slot { fingerprint: AtomicU64::new(0), full_at: AtomicU64::new(0) };
        Self {
            slots: (0..(2 * keys).next_power_of_two()).map(|_| slot()).collect(),
            hasher: RandomState::default(),
            clock: Clock::new(),
            token_ns,
            burst_ns,
        }
    }

    #[inline]
    pub(crate) fn check(&self, key: &(impl Hash + ?Sized)) -> bool {
        self.check_at(key, self.clock.now_ns())
    }

    #[inline]
    pub(crate) fn check_at(&self, key: &(impl Hash + ?Sized), now_ns: u64) -> bool {
        let fingerprint = self.hasher.hash_one(key);
        let mask = self.slots.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "it is masked")]
        let mut at = fingerprint as usize & mask;
        loop {
            let slot = &self.slots[at];
            let held = slot.fingerprint.load(Ordering::Acquire);
            if held == fingerprint || held == 0 && slot.take(fingerprint) {
                return allows(&slot.full_at, now_ns, self.token_ns, self.burst_ns);
            }
            at = (at + 1) & mask;
        }
    }
}

impl Slot {
    #[cold]
    fn take(&self, fingerprint: u64) -> bool {
        match self.fingerprint.compare_exchange(0, fingerprint, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(held) => held == fingerprint,
        }
    }
}
