//! Time for a limiter: nanoseconds since the limiter was made, from the clock that never goes back.

use std::time::Instant;

/// Counts nanoseconds since it was made.
///
/// It reads [`Instant`], so setting the wall clock changes nothing. On Linux and macOS that clock stands still while
/// the machine is suspended.
///
/// ```
/// use tidegate::clock::Clock;
///
/// let clock = Clock::new();
/// let earlier = clock.now_ns();
/// assert!(clock.now_ns() >= earlier);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at 0 now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// Nanoseconds since the clock was made. It stops at `u64::MAX`, after 584 years.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
