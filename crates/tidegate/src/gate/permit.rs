//! What a caller holds: a permit, or a reservation that is settled later.

use std::sync::Arc;

use tidegate_core::queue::{Cost, Receipt};

use super::shared::Shared;
use crate::shared::Made;

/// A place in flight, with the tokens that were charged for it.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    receipt: Receipt,
    cost: Cost,
    made: Option<Made>,
}

impl Held {
    pub(super) fn new(shared: Arc<Shared>, receipt: Receipt, cost: Cost, made: Option<Made>) -> Self {
        Self { shared, receipt, cost, made }
    }

    fn settle(&self, actual: Cost) {
        self.shared.change(|line, now| line.settle(now, self.receipt, actual));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // After a settlement the receipt is spent, and this finds nothing to release.
        self.shared.change(|line, _| line.release(self.receipt));
    }
}

/// The right to make one call, and a place in flight while it runs.
///
/// Dropping it frees the place; its tokens stay spent. A permit that is never dropped keeps its place.
#[must_use = "the place in flight is given back when the permit is dropped"]
#[derive(Debug)]
pub struct Permit {
    held: Held,
}

impl Permit {
    pub(super) fn new(held: Held) -> Self {
        Self { held }
    }

    /// What it cost: in the first limit, `of(0)`, and in each of the others.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.held.cost
    }

    /// How the shared buckets decided; `None` if the gate has its tokens to itself.
    #[must_use]
    pub fn made(&self) -> Option<Made> {
        self.held.made
    }

    /// Gives the permit back unused: the place is free, and the tokens are there as if it had not been granted. (What
    /// shared buckets were charged stays spent.)
    ///
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::clock::ManualClock;
    ///
    /// let gate = Gate::builder("1 per 10s".parse()?).clock(&ManualClock::new()).build()?;
    /// let permit = gate.try_acquire(1)?;
    /// assert_eq!(gate.status().level, 0);
    /// permit.cancel();
    /// assert_eq!(gate.status().level, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(self) {
        self.held.settle(Cost::default());
    }
}

/// A place in flight and an estimate that was charged for a call whose cost is known only afterwards.
///
/// Dropping it frees the place and leaves the estimate charged.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Gate;
/// use tidegate::clock::ManualClock;
///
/// let clock = ManualClock::new();
/// let gate = Gate::builder("10/s burst 1000".parse()?).clock(&clock).build()?;
/// // 1000 estimated, 300 used: 700 are back.
/// gate.try_reserve(1000)?.settle(300);
/// assert_eq!(gate.status().level, 700);
/// // 700 estimated, 720 used: the refill pays the 20, in two seconds.
/// gate.try_reserve(700)?.settle(720);
/// assert_eq!(gate.try_acquire(1).unwrap_err().wait(), Some(Duration::from_millis(2100)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a reservation that is dropped leaves its estimate charged"]
#[derive(Debug)]
pub struct Reservation {
    held: Held,
}

impl Reservation {
    pub(super) fn new(held: Held) -> Self {
        Self { held }
    }

    /// What was estimated and charged: in the first limit, `of(0)`, and in each of the others.
    #[must_use]
    pub fn estimate(&self) -> Cost {
        self.held.cost
    }

    /// How the shared buckets decided; `None` if the gate has its tokens to itself.
    #[must_use]
    pub fn made(&self) -> Option<Made> {
        self.held.made
    }

    /// Says what the call cost, and frees its place.
    ///
    /// If that is less than the estimate, the rest is back as if it had not been charged. If it is more, the
    /// difference is charged now; what is not there is paid by the refill to come, before anybody else is granted.
    ///
    /// Shared buckets take nothing back. What was above the estimate is asked of them before the next call is.
    ///
    /// With several limits, this is the cost in the first one, and the estimates of the others stay: see
    /// [`Self::settle_each`].
    pub fn settle(self, actual: u64) {
        self.held.settle(self.held.cost.with(0, actual));
    }

    /// As [`Self::settle`], for each limit of the gate.
    ///
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::clock::ManualClock;
    ///
    /// // Requests, and LLM tokens.
    /// let gate = Gate::builder("60/min".parse()?).also("90000/min".parse()?).clock(&ManualClock::new()).build()?;
    /// let reservation = gate.call(1).also(2000).reserve_blocking()?;
    /// assert_eq!((gate.level(0), gate.level(1)), (59, 88_000));
    /// reservation.settle_each([1, 350]);
    /// assert_eq!((gate.level(0), gate.level(1)), (59, 89_650));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_each(self, actual: impl Into<Cost>) {
        self.held.settle(actual.into());
    }

    /// Gives all of it back, for a call that was not made; like settling 0.
    pub fn cancel(self) {
        self.held.settle(Cost::default());
    }
}
