//! Time for a gate: the boot clock, or one that a test moves by hand.

use crate::clock::ManualClock;

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
