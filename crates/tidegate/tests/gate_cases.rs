//! How waiting, streams and budgets failed elsewhere: each case with what is right.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the tests of shared gates use all of it")]
mod fake;
mod task;

use std::task::Poll;

use fake::{builders, gates};
use task::{SECOND, Task, builder, gate, joined, taken};
use tidegate::{Gate, Permit, Refused, Reservation};

#[test]
fn gate_wakes_one_of_a_thousand_for_one_place() {
    for (clock, gate) in gates("1/s") {
        let _first = taken(&gate, 1);
        let mut tasks: Vec<_> = (0..1000).map(|_| joined(&gate, 1)).collect();
        for served in 0..1000 {
            clock.advance(SECOND);
            assert!(tasks[served].granted().is_some());
            assert_eq!(tasks.iter().map(Task::wakes).sum::<usize>(), served + 1);
        }
    }
}

#[test]
fn gate_is_shared_by_its_clones() {
    let (_clock, gate) = gate("5/s");
    let granted = (0..1500).filter(|_| gate.clone().try_acquire(1).is_ok()).count();
    assert_eq!(granted, 5);
}

#[test]
fn gate_that_is_closed_for_hours_refuses_at_once_who_waits_for_minutes() {
    for (_clock, builder) in builders("10/s") {
        let gate = builder.max_wait(120 * SECOND).build().unwrap();
        let early = joined_or_refused(&gate);
        assert!(early.is_ok());
        gate.close_for(3 * 3600 * SECOND);
        let refused = Refused::Deadline { max_wait: 120 * SECOND, wait: 3 * 3600 * SECOND };
        assert_eq!(joined_or_refused(&gate).unwrap_err(), refused);
    }
}

/// A call of cost 1 that is decided at once.
fn joined_or_refused(gate: &Gate) -> Result<Permit, Refused> {
    let gate = gate.clone();
    match Task::new(async move { gate.acquire(1).await }).poll() {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn gate_holds_retries_to_the_same_pace() {
    // One a second; every second job fails and comes again after a second. No two start within one.
    for (clock, gate) in gates("1/s") {
        let mut jobs: Vec<_> = (0..8).map(|job| (job, None::<Task>, 0)).collect();
        let mut starts = Vec::new();
        for tick in 0..200 {
            for (job, task, retry_at) in &mut jobs {
                if *retry_at > tick {
                    continue;
                }
                let task = task.get_or_insert_with(|| {
                    let gate = gate.clone();
                    Task::new(async move { gate.acquire(1).await })
                });
                if let Poll::Ready(Ok(_)) = task.poll() {
                    starts.push(tick);
                    *task = Task::new(std::future::pending());
                    let fails = *job % 2 == 0 && *retry_at == 0;
                    *retry_at = if fails { tick + 10 } else { u64::MAX };
                    if fails {
                        let gate = gate.clone();
                        *task = Task::new(async move { gate.acquire(1).await });
                    }
                }
            }
            clock.advance(SECOND / 10);
        }
        assert_eq!(starts.len(), 8 + 4);
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{starts:?}");
    }
}

#[test]
fn gate_place_lasts_as_long_as_the_stream_that_holds_the_reservation() {
    struct Stream {
        used: u64,
        reservation: Option<Reservation>,
    }
    impl Drop for Stream {
        fn drop(&mut self) {
            if let Some(reservation) = self.reservation.take() {
                reservation.settle(self.used);
            }
        }
    }
    let (_clock, builder) = builder("1000/min");
    let gate = builder.max_in_flight(2.try_into().unwrap()).build().unwrap();
    let stream = || Stream { used: 0, reservation: Some(gate.try_reserve(300).unwrap()) };
    let (mut first, second) = (stream(), stream());
    assert!(gate.try_acquire(1).is_err(), "both places are taken");
    // The handler has returned, and the stream goes on.
    first.used += 250;
    assert!(gate.try_acquire(1).is_err());
    drop(first);
    assert_eq!((gate.status().level, gate.status().in_flight), (450, 1));
    // A client that goes away before the first token.
    drop(second);
    assert_eq!((gate.status().level, gate.status().in_flight), (750, 0));
}

#[test]
fn gate_cost_of_zero_is_still_a_check() {
    let (clock, gate) = gate("10/s");
    gate.try_reserve(10).unwrap().settle(15);
    assert!(gate.try_acquire(0).is_err(), "the bucket owes 5");
    clock.advance(SECOND / 2);
    assert!(gate.try_acquire(0).is_ok());
    gate.close_for(SECOND);
    assert!(gate.try_acquire(0).is_err());
}

#[test]
fn gate_waits_for_requests_and_llm_tokens_together() {
    let (clock, builder) = builder("60/min");
    let gate = builder.also("600/min burst 1000".parse().unwrap()).build().unwrap();
    let first = gate.call(1).also(1000).try_reserve().unwrap();
    let second = gate.clone();
    let mut second = Task::new(async move { second.call(1).also(300).acquire().await });
    assert!(second.poll().is_pending());
    clock.advance(29 * SECOND);
    // All requests are back, and none is taken by the call that waits for 10 more tokens.
    assert_eq!((gate.level(0), gate.level(1), second.wakes()), (60, 290, 0));
    // The first call took 990 and not 1000, so the second starts at once.
    first.settle_each([1, 990]);
    assert!(second.granted().is_some());
    assert_eq!((gate.level(0), gate.level(1)), (59, 0));
    for (call, limit) in [(gate.call(1).also(1001), 1), (gate.call(0).also(0).also(1), 2)] {
        assert!(
            matches!(call.try_acquire().unwrap_err(), Refused::Never { limit: named, .. } if named == limit)
        );
    }
    let call = gate.call(0).also(0).also(0).also(0).also(7);
    assert_eq!(call.try_acquire().unwrap_err(), Refused::Never { limit: 4, cost: 7, capacity: 0 });
}

#[test]
fn gate_clock_that_is_moved_to_its_end_comes_back() {
    for (clock, gate) in gates("1/s") {
        clock.set(u64::MAX - 1);
        let _first = taken(&gate, 1);
        // The next token would come a second after the end of time.
        let mut second = joined(&gate, 1);
        clock.advance(std::time::Duration::MAX);
        assert_eq!(clock.now_ns(), u64::MAX);
        assert!(second.poll().is_pending());
    }
}

#[test]
fn gate_keeps_nothing_of_those_who_stopped_waiting_for_its_end() {
    struct Count;
    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {}
    }
    for (_clock, gate) in gates("1/s") {
        let permit = taken(&gate, 1);
        let wakers: Vec<_> = (0..100).map(|_| std::sync::Arc::new(Count)).collect();
        for waker in &wakers {
            let waker = waker.clone().into();
            let mut context = std::task::Context::from_waker(&waker);
            let mut drained = std::pin::pin!(gate.drained());
            assert!(drained.as_mut().poll(&mut context).is_pending());
            assert!(drained.as_mut().poll(&mut context).is_pending());
        }
        assert!(wakers.iter().all(|waker| std::sync::Arc::strong_count(waker) == 1), "a waker is still kept");
        drop(permit);
    }
}
