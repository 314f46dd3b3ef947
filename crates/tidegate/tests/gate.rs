//! The gate with a clock that is moved by hand and futures that are polled by hand: every interleaving that matters,
//! without an executor and without a sleep.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the tests of shared gates use all of it")]
mod fake;
mod task;

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fake::{builders, gates};
use task::{SECOND, Task, builder, gate, joined, taken, try_taken};
use tidegate::gate::Drain;
use tidegate::{Kind, Refused};

#[test]
fn gate_grants_in_order_with_one_wake_each() {
    for (clock, gate) in gates("1/s") {
        let _first = taken(&gate, 1);
        let mut tasks: Vec<_> = (0..3).map(|_| joined(&gate, 1)).collect();
        for served in 0..3 {
            clock.advance(SECOND - Duration::from_nanos(1));
            assert_eq!(tasks[served].wakes(), 0);
            clock.advance(Duration::from_nanos(1));
            let wakes: Vec<_> = tasks.iter().map(Task::wakes).collect();
            assert_eq!(wakes, (0..3).map(|task| usize::from(task <= served)).collect::<Vec<_>>());
            assert!(tasks[served].granted().is_some());
        }
    }
}

#[test]
fn gate_joins_when_polled_first_and_not_before() {
    let (_clock, gate) = gate("1/s");
    let future = gate.acquire(1);
    assert_eq!(gate.status().level, 1);
    drop(future);
    assert_eq!(gate.status().level, 1);
}

#[test]
fn gate_moves_up_when_the_head_the_middle_or_the_tail_is_dropped() {
    for dropped in 0..3 {
        let (clock, gate) = gate("1/s");
        let _first = gate.try_acquire(1).unwrap();
        let mut tasks: Vec<_> = (0..3).map(|_| joined(&gate, 1)).collect();
        drop(tasks.remove(dropped));
        assert_eq!(gate.status().waiting, 2);
        for task in &mut tasks {
            clock.advance(SECOND);
            assert!(task.granted().is_some(), "{dropped}");
        }
    }
}

#[test]
fn gate_passes_on_what_was_granted_at_the_instant_of_the_drop() {
    let (clock, gate) = gate("1/s");
    let first = gate.try_acquire(1).unwrap();
    gate.set_max_in_flight(1.try_into().unwrap());
    let head = joined(&gate, 1);
    let mut next = joined(&gate, 1);
    drop(first);
    clock.advance(SECOND);
    assert_eq!((head.wakes(), next.wakes()), (1, 0));
    // Granted and woken, but the permit was never seen: token and place go to the next at once.
    drop(head);
    assert_eq!(next.wakes(), 1);
    let permit = next.granted().unwrap();
    assert_eq!((gate.status().level, gate.status().in_flight), (0, 1));
    permit.cancel();
    assert_eq!((gate.status().level, gate.status().in_flight), (1, 0));
}

#[test]
fn gate_large_head_that_leaves_lets_the_small_ones_go_at_once() {
    for (clock, gate) in gates("1/s burst 10") {
        let _first = taken(&gate, 8);
        let large = joined(&gate, 10);
        let mut small = [joined(&gate, 1), joined(&gate, 1), joined(&gate, 1)];
        drop(large);
        let granted: Vec<_> = small.iter_mut().map(Task::granted).collect();
        assert_eq!(granted.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        clock.advance(SECOND);
        assert!(small[2].granted().is_some());
    }
}

#[test]
fn gate_forgotten_waiter_does_not_stop_the_others() {
    for (clock, builder) in builders("1/s") {
        let gate = builder.max_in_flight(1.try_into().unwrap()).build().unwrap();
        let first = taken(&gate, 1);
        std::mem::forget(joined(&gate, 1));
        let mut next = joined(&gate, 1);
        drop(first);
        // It is granted at 1 s, holds the only place, and nobody collects it for 5 s.
        clock.advance(6 * SECOND - Duration::from_nanos(1));
        assert_eq!((gate.status().in_flight, next.wakes()), (1, 0));
        clock.advance(Duration::from_nanos(1));
        let permit = next.granted().unwrap();
        drop(permit);
        assert_eq!((gate.status().in_flight, gate.status().waiting), (0, 0));
    }
}

#[test]
fn gate_waiter_that_comes_late_for_its_grant_queues_again() {
    let (clock, builder) = builder("1/s");
    let gate = builder.collect_within(2 * SECOND).build().unwrap();
    let _first = gate.try_acquire(1).unwrap();
    let mut late = joined(&gate, 1);
    let mut next = joined(&gate, 1);
    clock.advance(3 * SECOND);
    assert_eq!((late.wakes(), next.wakes()), (1, 1));
    let _next = next.granted().unwrap();
    // Its grant of 1 s was taken back at 3 s, so a token is there when it comes.
    assert_eq!(gate.status().level, 1);
    assert!(late.granted().is_some());
    assert_eq!(gate.status().level, 0);
}

#[test]
fn gate_refuses_at_once_and_says_the_wait() {
    for (clock, gate) in gates("1 per 5s") {
        let _first = taken(&gate, 1);
        let (wait, max_wait) = (5 * SECOND, 3 * SECOND);
        let hasty = gate.clone();
        let mut hasty = Task::new(async move { hasty.acquire_within(1, max_wait).await });
        assert_eq!(hasty.poll().map(Result::unwrap_err), Poll::Ready(Refused::Deadline { max_wait, wait }));
        assert_eq!(
            gate.acquire_within_blocking(1, max_wait).unwrap_err(),
            Refused::Deadline { max_wait, wait }
        );
        assert_eq!(gate.status().waiting, 0);

        // In time, until the server says otherwise after a second.
        let patient = gate.clone();
        let mut patient = Task::new(async move { patient.acquire_within(1, 5 * SECOND).await });
        assert!(patient.poll().is_pending());
        clock.advance(SECOND);
        gate.close_for(30 * SECOND);
        assert_eq!(patient.wakes(), 1);
        let refused = Refused::Deadline { max_wait: 5 * SECOND, wait: 31 * SECOND };
        assert_eq!(patient.poll().map(Result::unwrap_err), Poll::Ready(refused));
    }
}

#[test]
fn gate_hint_only_lengthens() {
    for (clock, gate) in gates("10/s") {
        gate.close_for(3 * SECOND);
        gate.close_for(SECOND);
        gate.close_until(2_000_000_000);
        let mut task = joined(&gate, 1);
        clock.advance(3 * SECOND - Duration::from_nanos(1));
        assert_eq!(task.wakes(), 0);
        clock.advance(Duration::from_nanos(1));
        assert!(task.granted().is_some());
    }
}

#[test]
fn gate_full_in_flight_uses_up_no_tokens() {
    for (clock, builder) in builders("1/s burst 5") {
        let gate = builder.max_in_flight(1.try_into().unwrap()).build().unwrap();
        let first = taken(&gate, 1);
        let mut next = joined(&gate, 1);
        clock.advance(10 * SECOND);
        assert_eq!(gate.status().level, 5);
        drop(first);
        assert_eq!(next.wakes(), 1);
        let _next = next.granted().unwrap();
        assert_eq!(gate.status().level, 4);
        gate.set_max_in_flight(2.try_into().unwrap());
        assert!(try_taken(&gate, 1).is_some());
    }
}

#[test]
fn gate_window_starts_three_at_a_time_and_a_bucket_one_by_one() {
    for (kind, expected) in [
        (Kind::FixedWindow, [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]),
        (Kind::TokenBucket, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]),
    ] {
        let (clock, builder) = builder("3 per 3s");
        let gate = builder.algorithm(kind).build().unwrap();
        let mut tasks = Vec::new();
        let mut starts = Vec::new();
        for _ in 0..10 {
            let gate = gate.clone();
            let mut task = Task::new(async move { gate.acquire(1).await });
            match task.granted() {
                Some(_) => starts.push(0),
                None => tasks.push(task),
            }
        }
        for second in 1..10 {
            clock.advance(SECOND);
            tasks.retain_mut(|task| match task.granted() {
                Some(_) => {
                    starts.push(second);
                    false
                }
                None => true,
            });
        }
        assert_eq!(starts, expected, "{kind}");
    }
}

#[test]
fn gate_keys_in_turn_and_priorities_first() {
    for (clock, gate) in gates("1/s") {
        let _first = taken(&gate, 1);
        let call = |key: &'static str, priority: u8| {
            let gate = gate.clone();
            let mut task = Task::new(async move { gate.call(1).key(key).priority(priority).acquire().await });
            assert!(task.poll().is_pending());
            task
        };
        let mut tasks = [call("ann", 0), call("ann", 0), call("bob", 0), call("cat", 9)];
        for expected in [3, 0, 2, 1] {
            clock.advance(SECOND);
            let woken: Vec<_> = (0..4).filter(|task| tasks[*task].wakes() == 1).collect();
            assert!(woken.contains(&expected), "{woken:?}");
            assert!(tasks[expected].granted().is_some());
        }
    }
}

#[test]
fn gate_drains() {
    for (clock, gate) in gates("1/s") {
        let first = taken(&gate, 1);
        let (mut served, mut refused) = (joined(&gate, 1), joined(&gate, 1));
        gate.drain(Drain::Serve);
        assert_eq!(gate.try_acquire(1).unwrap_err(), Refused::Draining);
        clock.advance(SECOND);
        assert!(served.granted().is_some());
        let all = gate.clone();
        let mut drained = Box::pin(async move { all.drained().await });
        assert!(drained.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        gate.drain(Drain::Refuse);
        assert!(
            drained.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
            "the first still runs"
        );
        drop(first);
        assert!(drained.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(refused.poll().map(Result::unwrap_err), Poll::Ready(Refused::Draining));
    }
}

#[test]
fn gate_waker_that_panics_leaves_nobody_asleep() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("an executor's mistake, as this test wants it");
        }
    }
    for (clock, gate) in gates("1/s") {
        let _first = taken(&gate, 1);
        let mut bad = joined(&gate, 1);
        let waker = Waker::from(Arc::new(Panics));
        assert!(bad.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let mut good = joined(&gate, 1);
        clock.advance(2 * SECOND);
        assert!(good.granted().is_some());
        assert!(bad.granted().is_some());
    }
}

#[test]
fn gate_task_that_is_dropped_by_its_own_waker_does_not_lock_up() {
    // The last handle of a task is its waker; dropping the waker drops the future, which leaves the gate.
    struct Owns(#[expect(dead_code, reason = "held, never read")] std::sync::Mutex<Option<Task>>);
    impl Wake for Owns {
        fn wake(self: Arc<Self>) {}
    }
    for (clock, gate) in gates("1/s") {
        let _first = taken(&gate, 1);
        let mut task = joined(&gate, 1);
        let inner = joined(&gate, 1);
        let waker = Waker::from(Arc::new(Owns(std::sync::Mutex::new(Some(inner)))));
        assert!(task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert_eq!(gate.status().waiting, 2);
        // A new waker replaces the old one, whose drop gives the inner call up.
        assert!(task.poll().is_pending());
        assert_eq!(gate.status().waiting, 1);
        clock.advance(SECOND);
        assert!(task.granted().is_some());
    }
}

#[test]
fn gate_error_texts() {
    let seconds = Duration::from_secs;
    let texts = [
        Refused::Never { limit: 0, cost: 9, capacity: 5 },
        Refused::Never { limit: 1, cost: 9, capacity: 5 },
        Refused::QueueFull { max_waiting: 100, wait: Duration::from_millis(1500) },
        Refused::Deadline { max_wait: seconds(3), wait: seconds(5) },
        Refused::Deadline { max_wait: seconds(3), wait: seconds(3) },
        Refused::Draining,
        Refused::NoTimer { kind: std::io::ErrorKind::WouldBlock },
    ]
    .map(|refused| (refused.to_string(), refused.wait(), refused.is_transient()));
    let expected = [
        (
            "cost 9 exceeds the capacity 5 of the gate, so it can never be granted; raise the burst or lower the cost",
            None,
            false,
        ),
        (
            "cost 9 exceeds the capacity 5 of the gate's further limit 1, so it can never be granted; raise the burst or lower the cost",
            None,
            false,
        ),
        (
            "100 calls wait already, and at most 100 may; this one would have had to wait at least 1.5s; make fewer calls or raise `max_waiting`",
            Some(Duration::from_millis(1500)),
            true,
        ),
        (
            "not granted within 3s, as it would have had to wait at least 5s; allow a longer wait or make fewer calls",
            Some(seconds(5)),
            true,
        ),
        (
            "not granted within 3s, as neither its turn nor a place in flight came in time; allow a longer wait or make fewer calls",
            Some(seconds(3)),
            true,
        ),
        ("the gate is being drained and takes no new calls", None, false),
        (
            "the thread that serves the waiting line could not be started: operation would block; free some threads and call again",
            None,
            true,
        ),
    ]
    .map(|(text, wait, transient)| (text.to_owned(), wait, transient));
    assert_eq!(texts, expected);
}
