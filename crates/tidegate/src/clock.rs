//! Time for a limiter: nanoseconds since its clock was made.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// Counts nanoseconds since it was made, or since the Unix epoch, or follows a [`ManualClock`].
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
    Counter { clock: quanta::Clock, origin: u64, at_origin: u64 },
    Manual(ManualClock),
}

impl Clock {
    /// A clock that starts at 0 now.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(0)
    }

    /// A clock that counts from the Unix epoch, by what the wall clock says now; when that is set later, this one goes
    /// on as before. With it, fixed and sliding windows begin with the minutes and hours of the wall clock (UTC).
    ///
    /// ```
    /// use tidegate::clock::Clock;
    ///
    /// assert!(Clock::unix().now_ns() > 1_700_000_000_000_000_000);
    /// ```
    #[must_use]
    pub fn unix() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(u64::try_from(since_epoch.as_nanos()).unwrap_or(0))
    }

    fn starting_at(at_origin: u64) -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self(Source::Counter { clock, origin, at_origin })
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match &self.0 {
            Source::Counter { clock, origin, at_origin } => {
                at_origin + clock.delta_as_nanos(*origin, clock.raw())
            }
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

impl From<&ManualClock> for Clock {
    fn from(clock: &ManualClock) -> Self {
        clock.clone().into()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}

/// A clock that stands still until it is told to go on: for the tests of those who use a limiter or a gate.
///
/// Clones are the same clock. A gate that was built with one is served when the clock moves: [`Self::advance`] stops
/// at each instant at which something is due in one of its gates, grants it, and wakes whoever waited for it.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate::clock::ManualClock;
/// use tidegate::{Gate, Limiter, Quota};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder("2/s burst 1".parse::<Quota>()?).clock(&clock).build()?;
/// assert!(limiter.check("ann").is_allowed());
/// assert!(!limiter.check("ann").is_allowed());
/// clock.advance(Duration::from_millis(500));
/// assert!(limiter.check("ann").is_allowed());
///
/// let clock = ManualClock::new();
/// let gate = Gate::builder("1/s burst 1".parse()?).clock(&clock).build()?;
/// assert!(gate.try_acquire(1).is_ok());
/// assert!(gate.try_acquire(1).is_err());
/// clock.advance(Duration::from_secs(1));
/// assert!(gate.try_acquire(1).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    inner: Arc<Inner>,
}

/// What a clock that is moved by hand has to move along.
pub(crate) trait Driven: fmt::Debug + Send + Sync {
    /// Does what is due.
    fn serve(&self);

    /// When something is due next if nobody calls.
    fn next_event(&self) -> Option<u64>;
}

#[derive(Debug, Default)]
struct Inner {
    now: AtomicU64,
    gates: Mutex<Vec<Weak<dyn Driven>>>,
}

impl ManualClock {
    /// A clock that stands at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where it stands, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.inner.now.load(Ordering::SeqCst)
    }

    /// Moves it on and serves its gates at each instant in between at which something is due.
    ///
    /// Whoever is woken runs when its executor or thread comes to it, which is not waited for.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let until = self.now_ns().saturating_add(by);
        let gates = self.gates();
        loop {
            let now = self.now_ns();
            gates.iter().for_each(|gate| gate.serve());
            let next = gates.iter().filter_map(|gate| gate.next_event()).min();
            if now == u64::MAX {
                // What is due later than the clock can say seems due now.
                return;
            }
            match next.filter(|next| *next <= until) {
                Some(next) => self.inner.now.fetch_max(next, Ordering::SeqCst),
                None if now < until => self.inner.now.fetch_max(until, Ordering::SeqCst),
                None => return,
            };
        }
    }

    /// Stands at `now_ns` from now on, to try what a clock fault does; it may go back. Gates are not served.
    pub fn set(&self, now_ns: u64) {
        self.inner.now.store(now_ns, Ordering::SeqCst);
    }

    pub(crate) fn add(&self, gate: Weak<dyn Driven>) {
        let mut gates = self.inner.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(gate);
    }

    fn gates(&self) -> Vec<Arc<dyn Driven>> {
        let gates = self.inner.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.iter().filter_map(Weak::upgrade).collect()
    }
}
