//! The gate: what a caller of a service with a quota holds, so that it calls as fast as the quota lets it.
//!
//! A [`Gate`] is one budget (of one limit, or several that are decided together), a limit in flight, a bounded waiting line, and the server's word. Calls are granted in
//! order at the exact instant; how the line orders them is told at [`tidegate_core::queue`]. This module adds the
//! clock, the one timer, and the waking.
//!
//! **Time** goes on while the machine is suspended (`CLOCK_BOOTTIME` on Linux): after a night, the bucket is full.
//!
//! **Executors.** The futures belong to none: they run under any, on any thread, and callers without one use the
//! `_blocking` methods. A gate starts one thread of its own, when a call first has to wait.
//!
//! **A future that is forgotten** (leaked, or never polled again) stays in the line, is granted in its turn, and if
//! nobody collects the grant within [`Builder::collect_within`] it is taken back as if it had not been made. If the
//! future is polled later after all, it joins the line anew, at its end. So it delays the others once, at most by that.
//! A *permit* that is forgotten keeps its place in flight: nothing can tell it from a call that runs.
//!
//! **Tokens of many machines.** With [`Builder::shared`] the tokens are in buckets that other processes charge too, and the gate
//! keeps all else: its order, places in flight, bounds, deadlines and hints are those of this process. A call is granted when
//! the shared buckets have charged it. So all gates on them together are charged at most `B + r·t` in any interval, and a grant is
//! later than its charge by the way back of the answer.
//!
//! - The gate's thread asks, one question at a time, for as many of the first calls as are known to fit, at most
//!   [64](tidegate_core::queue::MAX_ASKED): so at most 64 grants a trip. After a rejection it comes back when it was told, for the
//!   head alone. It does not ask for what it knows to be refused.
//! - The head keeps its turn while it is asked about. If it goes away, is refused at its deadline, or the gate is closed
//!   meanwhile, its charge goes to the new head if that costs as much and may go, and is lost otherwise. So is a
//!   grant that nobody collects. A call loses one charge at most.
//! - Nothing goes back: [`Permit::cancel`] frees the place only, and a reservation that took more than its estimate is charged for the
//!   rest before the next call.
//! - A call that does not wait at all, such as [`Gate::try_acquire`] or [`Gate::acquire_within`] with 0, is refused: the
//!   answer takes a trip. Give it the time of one. [`Gate::level`] and `wait` are as of the last answer: others may have taken more.
//! - Between processes there is no order. When the bucket is empty, who was rejected comes back before the one that was
//!   granted then; a gate that is farther away gets less, and one whose calls cost more may get nothing for as long as others take
//!   each token that comes.
//!
//! **How late** a grant is depends on the system's timer and scheduler, tens of microseconds on an idle Linux machine.
//! It is never early.

mod asking;
mod build;
mod call;
mod clock;
mod permit;
mod refused;
mod shared;
mod sync;
mod timer;

use std::fmt;
use std::hash::RandomState;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Quota;

pub use self::build::{Builder, GateError};
pub use self::call::GateCall;
pub use self::permit::{Permit, Reservation};
pub use self::refused::Refused;
use self::shared::{Idle, Shared};
pub use tidegate_core::queue::{Cost, Drain, Status, Unsuitable};

/// One budget for calls, with a waiting line. Clones are the same gate.
///
/// ```
/// use tidegate::Gate;
///
/// // Ten calls a second, and at most four at once.
/// let gate = Gate::builder("10/s".parse()?).max_in_flight(4.try_into()?).build()?;
/// {
///     let _permit = gate.acquire_blocking(1)?;
///     // The call runs here. With an executor: `gate.acquire(1).await?`.
///     assert_eq!(gate.status().in_flight, 1);
/// }
/// assert_eq!(gate.status().in_flight, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gate {
    life: Arc<Life>,
    seed: RandomState,
    max_wait: Option<Duration>,
}

/// While this lives, the timer does.
#[derive(Debug)]
struct Life {
    shared: Arc<Shared>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Gate {
    /// A gate for `quota` with a token bucket, up to 1024 waiting calls, and no limit in flight.
    ///
    /// # Panics
    ///
    /// Never: a line takes a token bucket.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a line refuses the leaky bucket only")]
    pub fn new(quota: Quota) -> Self {
        Self::builder(quota).build().expect("a line takes a token bucket")
    }

    /// A gate for `quota` where more can be said.
    pub fn builder(quota: Quota) -> Builder {
        Builder::new(quota)
    }

    /// A call of `cost`, to say more about it: whose it is, how urgent, how long it may wait.
    pub fn call(&self, cost: u64) -> GateCall<'_> {
        GateCall::new(self, cost)
    }

    /// Waits for its turn, for `cost` tokens and for a place in flight, which it gets together.
    ///
    /// Cost 0 is decided like any other and takes no tokens. The call joins the line when the future is polled first.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let gate = tidegate::Gate::new("3 per 50ms burst 1".parse()?);
    /// let _first = gate.acquire(1).await?;
    /// let _second = gate.acquire(1).await?; // 16,666,667 ns after the first
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// At once: [`Refused::Never`], [`Refused::QueueFull`], [`Refused::Draining`], and [`Refused::Deadline`] if the
    /// wait is certain to be longer than it may be. Later: `Deadline` at the latest when the time is over, and
    /// `Draining`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the call out of the line, and those behind it move up. If it was granted at that very
    /// instant and the permit not yet returned, tokens and place are back as if it had not been. What is lost is the
    /// place in the line: asking again starts at its end.
    pub async fn acquire(&self, cost: u64) -> Result<Permit, Refused> {
        self.call(cost).acquire().await
    }

    /// As [`Self::acquire`], but for `max_wait` at most.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_within(&self, cost: u64, max_wait: Duration) -> Result<Permit, Refused> {
        self.call(cost).within(max_wait).acquire().await
    }

    /// As [`Self::acquire`], for a call whose cost is an estimate until it is settled.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Self::acquire`].
    pub async fn reserve(&self, estimate: u64) -> Result<Reservation, Refused> {
        self.call(estimate).reserve().await
    }

    /// As [`Self::acquire`], and blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub fn acquire_blocking(&self, cost: u64) -> Result<Permit, Refused> {
        self.call(cost).acquire_blocking()
    }

    /// As [`Self::acquire_within`], and blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub fn acquire_within_blocking(&self, cost: u64, max_wait: Duration) -> Result<Permit, Refused> {
        self.call(cost).within(max_wait).acquire_blocking()
    }

    /// As [`Self::reserve`], and blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub fn reserve_blocking(&self, estimate: u64) -> Result<Reservation, Refused> {
        self.call(estimate).reserve_blocking()
    }

    /// Grants a call now or refuses it, with the wait that would have been needed. It does not pass those who wait. A gate
    /// with [shared](Builder::shared) buckets refuses it, as they would have to be asked.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub fn try_acquire(&self, cost: u64) -> Result<Permit, Refused> {
        self.call(cost).try_acquire()
    }

    /// As [`Self::try_acquire`], for a call whose cost is an estimate.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub fn try_reserve(&self, estimate: u64) -> Result<Reservation, Refused> {
        self.call(estimate).try_reserve()
    }

    /// Grants nothing for `wait` from now: a server said so. It only lengthens; a shorter hint than one that holds
    /// changes nothing. Calls that can no longer be in time are refused at once.
    pub fn close_for(&self, wait: Duration) {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.shared().change(|line, now| line.close_until(now.saturating_add(wait)));
    }

    /// As [`Self::close_for`], until an instant on the clock of [`Self::now_ns`].
    pub fn close_until(&self, instant_ns: u64) {
        self.shared().change(|line, _| line.close_until(instant_ns));
    }

    /// The gate's time, in nanoseconds since it was built or, with a [`ManualClock`](crate::clock::ManualClock), that clock's.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.shared().time.now_ns()
    }

    /// How many calls may be in flight from now on. When more are already they stay.
    pub fn set_max_in_flight(&self, max: NonZeroU64) {
        self.shared().change(|line, _| line.set_max_in_flight(max));
    }

    /// Takes no new calls from now on; those that wait are served or refused. [`Self::drained`] waits until none is
    /// left.
    ///
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::gate::Drain;
    ///
    /// let gate = Gate::new("10/s".parse()?);
    /// let permit = gate.acquire_blocking(1)?;
    /// gate.drain(Drain::Serve);
    /// assert!(gate.try_acquire(1).is_err());
    /// std::thread::spawn(move || drop(permit));
    /// gate.drained_blocking();
    /// assert_eq!(gate.status().in_flight, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, drain: Drain) {
        self.shared().change(|line, _| line.drain(drain));
    }

    /// Waits until nobody waits and nobody is in flight. Without [`Self::drain`], new calls may come meanwhile and
    /// after it.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, so it can be dropped and asked again.
    pub async fn drained(&self) {
        Idle::new(self.shared()).await;
    }

    /// As [`Self::drained`], and blocks the thread.
    pub fn drained_blocking(&self) {
        call::block_on(self.drained());
    }

    /// How the gate stands; the level of shared buckets is that of the last answer.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared().change(|line, now| line.status(now))
    }

    /// Whole tokens now in the limit with this index, 0 for the first; 0 in one that is not there.
    #[must_use]
    pub fn level(&self, limit: usize) -> u64 {
        self.shared().change(|line, now| line.level(now, limit))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.life.shared
    }
}

impl fmt::Debug for Gate {
    /// Without its status, as asking for that serves those who wait.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("max_wait", &self.max_wait).finish_non_exhaustive()
    }
}
