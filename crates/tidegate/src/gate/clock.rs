//! Time for a gate: the boot clock, or one that a test moves by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::shared::Shared;

/// Where a gate's time comes from.
#[derive(Debug, Clone)]
pub(super) enum Time {
    Boot(BootClock),
    Manual(ManualClock),
}

impl Time {
    pub(super) fn now_ns(&self) -> u64 {
        match self {
            Self::Boot(clock) => clock.now_ns(),
            Self::Manual(clock) => clock.now_ns(),
        }
    }
}

/// Nanoseconds since it was made, the time that the machine was suspended included: tokens come back and a server's
/// hint runs out while a laptop sleeps. (Not on systems without such a clock: there it is the standard library's.)
#[derive(Debug, Clone)]
pub(super) struct BootClock {
    #[cfg(target_os = "linux")]
    origin: u64,
    #[cfg(not(target_os = "linux"))]
    origin: std::time::Instant,
}

#[cfg(target_os = "linux")]
impl BootClock {
    pub(super) fn new() -> Self {
        Self { origin: Self::since_boot() }
    }

    pub(super) fn now_ns(&self) -> u64 {
        Self::since_boot().saturating_sub(self.origin)
    }

    fn since_boot() -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (seconds, ns) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        // The kernel does not count below zero, and a u64 lasts for 584 years.
        seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(ns.unwrap_or(0))
    }
}

#[cfg(not(target_os = "linux"))]
impl BootClock {
    pub(super) fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that stands still until it is told to go on, for tests that wait without sleeping.
///
/// Clones are the same clock. A gate that was built with one is served when the clock moves: [`Self::advance`] stops
/// at each instant at which something is due in one of its gates, grants it, and wakes whoever waited for it.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Gate, ManualClock};
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

#[derive(Debug, Default)]
struct Inner {
    now: AtomicU64,
    gates: Mutex<Vec<Weak<Shared>>>,
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
            match next.filter(|next| *next <= until) {
                Some(next) => self.inner.now.fetch_max(next, Ordering::SeqCst),
                None if now < until => self.inner.now.fetch_max(until, Ordering::SeqCst),
                None => return,
            };
        }
    }

    pub(super) fn add(&self, gate: &Arc<Shared>) {
        let mut gates = self.inner.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(gate));
    }

    fn gates(&self) -> Vec<Arc<Shared>> {
        let gates = self.inner.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.iter().filter_map(Weak::upgrade).collect()
    }
}
