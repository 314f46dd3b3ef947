//! Counters that threads write without waiting for each other, and that are added up when somebody reads.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most parts. A server with more threads than that has some of them share; each part costs as much memory as the
/// first.
const PARTS_MAX: usize = 16;

/// One value for each of a few threads.
///
/// A thread always writes the same part. Its lock is free unless somebody reads or there are more threads than parts, and
/// no cache line goes from core to core.
pub(super) struct Sharded<T> {
    parts: Box<[Part<T>]>,
}

/// Two cache lines of 64 bytes, since processors fetch pairs of them.
#[repr(align(128))]
struct Part<T>(Mutex<T>);

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: usize = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

impl<T: Default> Sharded<T> {
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_parts(threads.next_power_of_two().min(PARTS_MAX))
    }

    fn with_parts(parts: usize) -> Self {
        Self { parts: (0..parts).map(|_| Part(Mutex::new(T::default()))).collect() }
    }
}

impl<T> Sharded<T> {
    /// Writes into the part of this thread.
    pub(super) fn write(&self, write: impl FnOnce(&mut T)) {
        // A thread that ends has no number any more.
        let thread = THREAD.try_with(|thread| *thread).unwrap_or(0);
        if let Some(part) = self.parts.get(thread % self.parts.len().max(1)) {
            write(&mut part.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Reads all parts, one after the other.
    pub(super) fn read(&self, mut read: impl FnMut(&T)) {
        for part in &self.parts {
            read(&part.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("parts", &self.parts.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_threads_write_is_lost() {
        for parts in [1, 4] {
            let sharded = Sharded::<u64>::with_parts(parts);
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| (0..1000).for_each(|_| sharded.write(|count| *count += 1)));
                }
            });
            let mut sum = 0;
            sharded.read(|count| sum += count);
            assert_eq!(sum, 6000);
        }
    }
}
