//! Futures that are polled by hand, and gates with a clock that is moved by hand.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::Builder;
use tidegate::{Gate, Permit, Refused};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A future with a waker that counts.
pub(crate) struct Task {
    pub(crate) future: Pin<Box<dyn Future<Output = Result<Permit, Refused>> + Send>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Task {
    pub(crate) fn new(future: impl Future<Output = Result<Permit, Refused>> + Send + 'static) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default() }
    }

    pub(crate) fn poll(&mut self) -> Poll<Result<Permit, Refused>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    pub(crate) fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }

    pub(crate) fn granted(&mut self) -> Option<Permit> {
        match self.poll() {
            Poll::Ready(result) => Some(result.unwrap()),
            Poll::Pending => None,
        }
    }
}

pub(crate) fn builder(quota: &str) -> (ManualClock, Builder) {
    let clock = ManualClock::new();
    let builder = Gate::builder(quota.parse().unwrap()).clock(&clock);
    (clock, builder)
}

/// A call that is granted when it is polled first, whether the gate asks for it or not.
pub(crate) fn taken(gate: &Gate, cost: u64) -> Permit {
    try_taken(gate, cost).unwrap()
}

/// The same, if it is. If not, it leaves the line.
pub(crate) fn try_taken(gate: &Gate, cost: u64) -> Option<Permit> {
    let gate = gate.clone();
    let mut call = Task::new(async move { gate.acquire(cost).await });
    call.granted()
}

pub(crate) fn gate(quota: &str) -> (ManualClock, Gate) {
    let (clock, builder) = builder(quota);
    (clock, builder.build().unwrap())
}

/// A call of `cost` that has joined the line.
pub(crate) fn joined(gate: &Gate, cost: u64) -> Task {
    let gate = gate.clone();
    let mut task = Task::new(async move { gate.acquire(cost).await });
    assert!(task.poll().is_pending());
    task
}
