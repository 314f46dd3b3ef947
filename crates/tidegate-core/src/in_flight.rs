//! How many calls run at once.
//!
//! A rate bounds how many calls *start* in a time; it does not bound how many run together, since that is rate times
//! service time (Little's law, 1961): at 10/s and 30 s a call, 300 run at once. So this is a count of its own.

use core::num::NonZeroU64;

/// A bounded count of running calls.
///
/// ```
/// use std::num::NonZeroU64;
/// use tidegate_core::InFlight;
///
/// let mut calls = InFlight::new(NonZeroU64::new(2).unwrap());
/// assert!(calls.try_enter());
/// assert!(calls.try_enter());
/// assert!(!calls.try_enter()); // full: nothing changed
/// calls.leave();
/// assert!(calls.try_enter());
/// assert_eq!(calls.running(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    max: NonZeroU64,
    running: u64,
}

impl InFlight {
    /// A count that allows `max` calls at once.
    #[must_use]
    pub const fn new(max: NonZeroU64) -> Self {
        Self { max, running: 0 }
    }

    /// Takes a place if there is one. `false` leaves the count as it was.
    #[must_use = "a call that got no place must not run"]
    pub const fn try_enter(&mut self) -> bool {
        let free = self.has_place();
        if free {
            self.running = self.running.saturating_add(1);
        }
        free
    }

    /// Sets how many calls may run at once. When more run already they stay, and nobody enters until enough have left.
    pub const fn set_max(&mut self, max: NonZeroU64) {
        self.max = max;
    }

    /// Whether [`Self::try_enter`] would find a place.
    #[must_use]
    pub const fn has_place(&self) -> bool {
        self.running < self.max.get()
    }

    /// Gives a place back. Leaving when nothing runs does nothing, so a place is never counted twice as free.
    pub const fn leave(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// How many more may run.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.max.get().saturating_sub(self.running)
    }

    /// How many calls run now; at most [`Self::max`], unless that was set lower meanwhile.
    #[must_use]
    pub const fn running(&self) -> u64 {
        self.running
    }

    /// How many calls may run at once.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max.get()
    }
}
