//! The lock of a gate: that of the standard library, or under `--cfg loom` the one whose interleavings are tried out.

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

use std::sync::LockResult;
use std::sync::PoisonError;

/// The guard, whoever panicked before: no state of a gate is half changed when code of others runs.
pub(super) fn whole<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
