//! A call on its way through a gate: what it asks for, and the future that waits.

use std::hash::{BuildHasher, Hash};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tidegate_core::queue::{Call, Cost, MAX_LIMITS, Ticket};

use super::permit::Held;
use super::shared::{Asked, Outcome};
use super::{Gate, Permit, Refused, Reservation};

/// A call with more to say than its cost, from [`Gate::call`].
///
/// ```
/// use std::time::Duration;
/// use tidegate::Gate;
///
/// let gate = Gate::new("10/s".parse()?);
/// let permit = gate.call(2).key("ann").priority(1).within(Duration::from_secs(3)).acquire_blocking()?;
/// assert_eq!(permit.cost().of(0), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a call is granted by one of its `acquire` or `reserve` methods"]
#[derive(Debug, Clone, Copy)]
pub struct GateCall<'a> {
    gate: &'a Gate,
    costs: [u64; MAX_LIMITS],
    /// For how many limits a cost was named.
    named: usize,
    /// The cost in the first limit that no gate can have.
    surplus: u64,
    key: u64,
    priority: u8,
    max_wait: Option<Duration>,
}

impl<'a> GateCall<'a> {
    pub(super) fn new(gate: &'a Gate, cost: u64) -> Self {
        let call = Self {
            gate,
            costs: [0; MAX_LIMITS],
            named: 0,
            surplus: 0,
            key: 0,
            priority: 0,
            max_wait: gate.max_wait,
        };
        call.also(cost)
    }

    /// What it costs in the next limit of the gate, in the order in which
    /// [`Builder::also`](super::Builder::also) named them. A cost above 0 in a limit that the gate does not have is
    /// refused as [`Refused::Never`].
    pub fn also(mut self, cost: u64) -> Self {
        match self.costs.get_mut(self.named) {
            Some(of) => *of = cost,
            None => self.surplus = self.surplus.saturating_add(cost),
        }
        Self { named: self.named + 1, ..self }
    }

    /// Whose call it is: keys that wait are served in turn, one call each. The key is hashed to 64 bits with a secret
    /// seed; two keys with one hash, 1 in 2⁶⁴, share a turn. Without this, the call is nobody's, which is a key too.
    pub fn key(self, key: &(impl Hash + ?Sized)) -> Self {
        Self { key: self.gate.seed.hash_one(key), ..self }
    }

    /// Higher ones are granted first, strictly: while they keep coming, lower ones wait. 0 without this.
    pub fn priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    /// The longest wait, from when the call joins. If it is certain to take longer, the call is refused at once.
    pub fn within(self, max_wait: Duration) -> Self {
        Self { max_wait: Some(max_wait), ..self }
    }

    /// Waits for its turn.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    ///
    /// # Cancel safety
    ///
    /// As [`Gate::acquire`].
    pub async fn acquire(self) -> Result<Permit, Refused> {
        self.wait().await.map(Permit::new)
    }

    /// Waits for its turn, with a cost that is an estimate.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    ///
    /// # Cancel safety
    ///
    /// As [`Gate::acquire`].
    pub async fn reserve(self) -> Result<Reservation, Refused> {
        self.wait().await.map(Reservation::new)
    }

    /// Waits for its turn and blocks the thread meanwhile.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn acquire_blocking(self) -> Result<Permit, Refused> {
        block_on(self.wait()).map(Permit::new)
    }

    /// Waits for its turn, with a cost that is an estimate, and blocks the thread meanwhile.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn reserve_blocking(self) -> Result<Reservation, Refused> {
        block_on(self.wait()).map(Reservation::new)
    }

    /// Does not wait: it is granted now, or refused with the wait that would have been needed.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn try_acquire(self) -> Result<Permit, Refused> {
        self.now().map(Permit::new)
    }

    /// Does not wait, with a cost that is an estimate.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn try_reserve(self) -> Result<Reservation, Refused> {
        self.now().map(Reservation::new)
    }

    fn wait(self) -> Waiting<'a> {
        Waiting { call: self, joined_at: None, ticket: None }
    }

    fn now(self) -> Result<Held, Refused> {
        let mut call = self.within(Duration::ZERO).wait();
        match call.join(Waker::noop()) {
            Poll::Ready(result) => result,
            // A call that may not wait never does.
            Poll::Pending => Err(Refused::Deadline { max_wait: Duration::ZERO, wait: Duration::ZERO }),
        }
    }
}

/// The wait of one call. It joins when it is polled first, and leaves when it is dropped.
#[derive(Debug)]
struct Waiting<'a> {
    call: GateCall<'a>,
    /// When it joined first.
    joined_at: Option<u64>,
    ticket: Option<Ticket>,
}

impl Waiting<'_> {
    fn join(&mut self, waker: &Waker) -> Poll<Result<Held, Refused>> {
        let GateCall { gate, costs, surplus, key, priority, max_wait, named: _ } = self.call;
        if surplus > 0 {
            return Poll::Ready(Err(Refused::Never { limit: MAX_LIMITS, cost: surplus, capacity: 0 }));
        }
        let cost = Cost::from(costs);
        let shared = gate.shared();
        let now = shared.time.now_ns();
        let joined_at = *self.joined_at.get_or_insert(now);
        let deadline = max_wait.and_then(|wait| joined_at.checked_add(nanoseconds(wait)));
        match shared.join(now, Call { cost, key, priority, deadline }, waker) {
            Asked::Granted(receipt) => Poll::Ready(Ok(Held::new(Arc::clone(shared), receipt, cost, None))),
            Asked::Waiting(ticket) => {
                self.ticket = Some(ticket);
                // With a clock that is moved by hand, shared buckets may have answered already.
                if shared.sharing.is_some() { self.collect(ticket, waker) } else { Poll::Pending }
            }
            Asked::Refused(refusal) => {
                Poll::Ready(Err(Refused::new(refusal, since(joined_at, now), max_wait)))
            }
            Asked::NoTimer(kind) => Poll::Ready(Err(Refused::NoTimer { kind })),
        }
    }

    /// What came of the wait.
    fn collect(&mut self, ticket: Ticket, waker: &Waker) -> Poll<Result<Held, Refused>> {
        let shared = self.call.gate.shared();
        let Poll::Ready(outcome) = shared.collect(ticket, waker) else {
            return Poll::Pending;
        };
        self.ticket = None;
        match outcome {
            Outcome::Granted(receipt, made) => {
                let held = Held::new(Arc::clone(shared), receipt, self.call.costs.into(), made);
                Poll::Ready(Ok(held))
            }
            Outcome::Refused { refusal, at } => {
                let waited = since(self.joined_at.unwrap_or(at), at);
                Poll::Ready(Err(Refused::new(refusal, waited, self.call.max_wait)))
            }
            // It came too late for its grant and queues again; its deadline stays.
            Outcome::Lapsed => self.join(waker),
        }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Held, Refused>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.ticket {
            Some(ticket) => self.collect(ticket, context.waker()),
            None => self.join(context.waker()),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.call.gate.shared().give_up(ticket);
        }
    }
}

fn since(start: u64, now: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(start))
}

/// A wait as nanoseconds; more than 584 years stays that long.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Wakes a thread that blocks.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}
