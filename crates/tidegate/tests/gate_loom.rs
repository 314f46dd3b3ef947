//! Every interleaving of a grant with the drop of the future that it is for, and of two that end at once:
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate --release --test gate_loom`.

#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::thread;
use tidegate::clock::ManualClock;
use tidegate::shared::{Deciding, Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, Told, Unsuited};
use tidegate::{Algorithm, Decision};
use tidegate::{Gate, Permit, Refused};

type Waiting = Pin<Box<dyn Future<Output = Result<Permit, Refused>> + Send>>;

fn poll(call: &mut Waiting) -> Poll<Permit> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap)
}

fn joined(gate: &Gate) -> Waiting {
    let gate = gate.clone();
    let mut call: Waiting = Box::pin(async move { gate.acquire(1).await });
    assert!(poll(&mut call).is_pending());
    call
}

/// A gate whose only token is spent and whose only place is free.
fn gate() -> (ManualClock, Gate) {
    let clock = ManualClock::new();
    let quota = "1/s burst 1".parse().unwrap();
    let gate = Gate::builder(quota).max_in_flight(1.try_into().unwrap()).clock(&clock).build().unwrap();
    drop(gate.try_acquire(1).unwrap());
    (clock, gate)
}

#[test]
fn gate_granted_or_dropped_and_the_next_one_served() {
    loom::model(|| {
        let (clock, gate) = gate();
        let dropped = joined(&gate);
        let mut next = joined(&gate);
        let other = thread::spawn(move || drop(dropped));
        clock.advance(Duration::from_secs(1));
        other.join().unwrap();
        // Whether the first left before its grant or after, its token and place are the next one's now.
        assert!(poll(&mut next).is_ready());
        assert_eq!((gate.status().level, gate.status().waiting, gate.status().in_flight), (0, 0, 0));
    });
}

#[test]
fn gate_granted_and_collected_or_taken_back() {
    loom::model(|| {
        let (clock, gate) = gate();
        let mut call = joined(&gate);
        clock.advance(Duration::from_secs(1));
        // The caller comes at the instant at which its grant lapses.
        let other = thread::spawn(move || match poll(&mut call) {
            Poll::Ready(permit) => drop(permit),
            Poll::Pending => panic!("its token is there, taken back or not"),
        });
        clock.advance(Duration::from_secs(5));
        other.join().unwrap();
        // One was spent, whichever way it went. Taken back, it may have been spent later: the bucket is full or not.
        assert_eq!((gate.status().waiting, gate.status().in_flight), (0, 0));
    });
}

#[test]
fn gate_two_ends_at_once_free_two_places() {
    loom::model(|| {
        let clock = ManualClock::new();
        let quota = "1/s burst 9".parse().unwrap();
        let gate = Gate::builder(quota).max_in_flight(2.try_into().unwrap()).clock(&clock).build().unwrap();
        let (first, second) = (gate.try_acquire(1).unwrap(), gate.try_acquire(1).unwrap());
        let mut next = [joined(&gate), joined(&gate)];
        let other = thread::spawn(move || first.cancel());
        drop(second);
        other.join().unwrap();
        let permits: Vec<_> = next.iter_mut().map(poll).collect();
        assert!(permits.iter().all(Poll::is_ready));
        assert_eq!((gate.status().level, gate.status().in_flight), (6, 2));
    });
}

/// Buckets that allow everything, once they may answer.
#[derive(Debug, Default, Clone)]
struct Slow(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Slow {
    fn answer(&self) {
        let wakers = {
            let mut inner = self.0.lock().unwrap();
            inner.0 = true;
            std::mem::take(&mut inner.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl SharedBuckets for Slow {
    fn accepts(&self, _: &str, _: &Algorithm) -> Result<(), Unsuited> {
        Ok(())
    }

    fn spans_keys(&self) -> bool {
        true
    }

    fn decide(&self, _: SharedCall) -> Deciding {
        let slow = self.clone();
        Box::pin(std::future::poll_fn(move |context| {
            let mut inner = slow.0.lock().unwrap();
            if !inner.0 {
                inner.1.push(context.waker().clone());
                return Poll::Pending;
            }
            let (start_after, reset_after) = (Duration::ZERO, Duration::from_millis(1));
            let decision = Decision::Allowed { start_after, remaining: 7, reset_after };
            let each = vec![Some(Told { decision, left: None })];
            Poll::Ready(Ok(SharedAnswer { each, made: Made::Exact }))
        }))
    }
}

#[test]
fn gate_answered_while_who_is_asked_about_goes_and_another_serves() {
    loom::model(|| {
        let clock = ManualClock::new();
        let slow = Slow::default();
        let builder = Gate::builder("1000/s burst 9".parse().unwrap()).clock(&clock);
        let buckets = Arc::new(slow.clone());
        let gate = builder.shared(buckets, "calls", "api", OnFailure::Closed).build().unwrap();
        let dropped = joined(&gate);
        let mut next = joined(&gate);
        let other = thread::spawn(move || drop(dropped));
        // Whoever sees that the answer is there takes it: the one that leaves, or who moves the clock.
        slow.answer();
        clock.advance(Duration::ZERO);
        other.join().unwrap();
        clock.advance(Duration::ZERO);
        let permit = match poll(&mut next) {
            Poll::Ready(permit) => permit,
            Poll::Pending => panic!("the charge of the first, or one of its own"),
        };
        assert_eq!((gate.status().waiting, gate.status().in_flight), (0, 1));
        drop(permit);
    });
}
