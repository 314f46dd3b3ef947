//! The atomics and locks of the flat table, so that a model checker can put its own in their place: `tests/loom_flat.rs`.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard};

/// How often a thread looks again before it lets another run: a set is locked for some tens of nanoseconds, unless its
/// holder was interrupted.
#[cfg(not(loom))]
const LOOKS: u32 = 64;

/// Waits a moment before looking again.
#[cfg(not(loom))]
pub(super) fn pause(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(LOOKS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Waits a moment before looking again.
#[cfg(loom)]
pub(super) fn pause(_tries: &mut u32) {
    loom::thread::yield_now();
}
