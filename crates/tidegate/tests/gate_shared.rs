//! Gates whose tokens others share: a fake in memory answers, the clock is moved by hand, futures are polled by hand.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the tests of both kinds of gates use all of it")]
mod fake;
#[expect(dead_code, reason = "the tests of gates with tokens of their own use all of it")]
mod task;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fake::{AWAY, Fake};
use task::{SECOND, Task, builder, joined, taken};
use tidegate::clock::ManualClock;
use tidegate::gate::{Builder, Drain, GateError, Unsuitable};
use tidegate::shared::{Made, OnFailure};
use tidegate::{Gate, Kind, Refused};

const MS: Duration = Duration::from_millis(1);

fn sharing(quota: &str, on_failure: OnFailure) -> (ManualClock, Fake, Builder) {
    let (clock, builder) = builder(quota);
    let fake = Fake::new(&clock);
    (clock, fake.clone(), builder.shared(Arc::new(fake), "calls", "api", on_failure))
}

fn shared(quota: &str) -> (ManualClock, Fake, Gate) {
    let (clock, fake, builder) = sharing(quota, OnFailure::Closed);
    (clock, fake, builder.build().unwrap())
}

/// A call that has been polled once.
fn asked(gate: &Gate, cost: u64) -> Task {
    let gate = gate.clone();
    let mut task = Task::new(async move { gate.acquire(cost).await });
    let _ = task.poll().map(|_| panic!("it is decided"));
    task
}

fn within(gate: &Gate, cost: u64, max_wait: Duration) -> Task {
    let gate = gate.clone();
    Task::new(async move { gate.acquire_within(cost, max_wait).await })
}

fn refused(task: &mut Task) -> Refused {
    match task.poll() {
        Poll::Ready(Err(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

fn at(instants: &[(Duration, u64)]) -> Vec<(u64, u64)> {
    instants.iter().map(|(at, cost)| (u64::try_from(at.as_nanos()).unwrap(), *cost)).collect()
}

#[test]
fn calls_are_granted_in_order_at_the_instants_that_the_buckets_told_and_nobody_asks_in_between() {
    let (clock, fake, gate) = shared("1/s burst 2");
    let first = taken(&gate, 1);
    assert_eq!(first.made(), Some(Made::Exact));
    // Another process takes the second.
    fake.take("calls", "api", "1/s burst 2", 1);
    let mut tasks: Vec<_> = (0..3).map(|_| joined(&gate, 1)).collect();
    for served in 0..3 {
        clock.advance(SECOND - Duration::from_nanos(1));
        assert_eq!(tasks[served].wakes(), 0);
        clock.advance(Duration::from_nanos(1));
        let wakes: Vec<_> = tasks.iter().map(Task::wakes).collect();
        assert_eq!(wakes, (0..3).map(|task| usize::from(task <= served)).collect::<Vec<_>>());
        assert!(tasks[served].granted().is_some());
    }
    // One that found out, and then one for each grant.
    let zero = Duration::ZERO;
    let expected = [(zero, 1), (zero, 1), (SECOND, 1), (2 * SECOND, 1), (3 * SECOND, 1)];
    assert_eq!(fake.asked(), at(&expected));
}

#[test]
fn a_rejected_head_keeps_its_turn_and_comes_back_when_it_was_told() {
    let (clock, fake, gate) = shared("1/s burst 5");
    fake.take("calls", "api", "1/s burst 5", 4);
    let mut large = asked(&gate, 3);
    let mut small = asked(&gate, 1);
    clock.advance(2 * SECOND - Duration::from_nanos(1));
    assert_eq!((large.wakes(), small.wakes()), (0, 0), "the small one leaves the token to the large one");
    clock.advance(Duration::from_nanos(1));
    assert_eq!((large.wakes(), small.wakes()), (1, 0));
    let _large = large.granted().unwrap();
    clock.advance(SECOND);
    assert!(small.granted().is_some());
    // When the large one of these leaves, the small one is not held up by what it was told.
    let large = asked(&gate, 5);
    let mut small = asked(&gate, 1);
    clock.advance(SECOND);
    drop(large);
    assert!(small.granted().is_some());
}

#[test]
fn many_that_wait_are_asked_about_together_and_alone_after_a_rejection() {
    let (clock, fake, gate) = shared("10/s burst 10");
    fake.hold();
    let mut tasks: Vec<_> = (0..6).map(|_| asked(&gate, 1)).collect();
    assert_eq!(fake.asked(), at(&[(Duration::ZERO, 1)]));
    fake.answer();
    assert!(tasks.remove(0).granted().is_some());
    // The other five, of which others leave two.
    assert_eq!(fake.asked()[1..], at(&[(Duration::ZERO, 5)]));
    fake.take("calls", "api", "10/s burst 10", 7);
    fake.answer();
    assert_eq!(fake.asked()[2..], at(&[(Duration::ZERO, 1)]));
    fake.answer();
    assert!(tasks.remove(0).granted().is_some());
    fake.answer();
    assert!(tasks.remove(0).granted().is_some());
    assert_eq!(fake.asked().len(), 4);
    clock.advance(SECOND / 10);
    fake.answer();
    assert!(tasks.remove(0).granted().is_some());
    assert_eq!(tasks.iter().map(Task::wakes).sum::<usize>(), 0);
}

#[test]
fn who_leaves_while_he_is_asked_about_passes_his_charge_on_to_the_next_of_equal_cost() {
    for (next_cost, charged) in [(2, vec![2]), (3, vec![2, 3])] {
        let (_clock, fake, gate) = shared("1/s burst 5");
        fake.hold();
        let leaves = asked(&gate, 2);
        let mut next = asked(&gate, next_cost);
        drop(leaves);
        assert_eq!(gate.status().waiting, 1);
        fake.answer();
        if next_cost == 3 {
            // The charge of the other is lost, and one is asked for it itself.
            assert_eq!(next.wakes(), 0);
            fake.answer();
        }
        assert_eq!(next.granted().unwrap().cost().of(0), next_cost);
        let costs: Vec<_> = fake.charged().into_iter().map(|(_, cost)| cost).collect();
        assert_eq!(costs, charged);
        assert_eq!((gate.status().waiting, gate.status().in_flight), (0, 0));
    }
}

#[test]
fn a_deadline_holds_while_the_buckets_are_asked() {
    let (clock, fake, gate) = shared("1/s burst 5");
    fake.hold();
    let mut hasty = within(&gate, 1, 10 * MS);
    assert!(hasty.poll().is_pending());
    clock.advance(10 * MS);
    // At its last instant an answer would still do.
    assert_eq!(hasty.wakes(), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(hasty.wakes(), 1);
    let Refused::Deadline { max_wait, .. } = refused(&mut hasty) else { panic!() };
    assert_eq!(max_wait, 10 * MS);
    // Its charge is not kept for who comes later.
    fake.answer();
    let mut later = asked(&gate, 1);
    assert_eq!(fake.asked().len(), 2);
    fake.answer();
    assert!(later.granted().is_some());
}

#[test]
fn a_rejection_refuses_at_once_who_cannot_be_in_time_and_says_the_wait() {
    let (_clock, fake, gate) = shared("1 per 5s");
    fake.take("calls", "api", "1 per 5s", 1);
    let expected = Refused::Deadline { max_wait: 3 * SECOND, wait: 5 * SECOND };
    assert_eq!(refused(&mut within(&gate, 1, 3 * SECOND)), expected);
    // The next is not even asked about.
    assert_eq!(refused(&mut within(&gate, 1, 3 * SECOND)), expected);
    assert_eq!(fake.asked().len(), 1);
    // Nor is one that does not wait at all.
    assert_eq!(gate.try_acquire(1).unwrap_err().wait(), Some(5 * SECOND));
    assert_eq!(gate.status().waiting, 0);
}

#[test]
fn a_cost_above_the_burst_is_never_granted() {
    let (_clock, fake, gate) = shared("1/s burst 5");
    assert_eq!(refused(&mut within(&gate, 6, SECOND)), Refused::Never { limit: 0, cost: 6, capacity: 5 });
    assert_eq!(fake.asked(), []);
}

#[test]
fn without_the_buckets_an_open_gate_grants_all_within_its_places() {
    let (_clock, fake, builder) = sharing("1/s burst 1", OnFailure::Open);
    let gate = builder.max_in_flight(3.try_into().unwrap()).build().unwrap();
    fake.set_away(true);
    let permits: Vec<_> = (0..3).map(|_| taken(&gate, 1)).collect();
    assert!(permits.iter().all(|permit| permit.made() == Some(Made::Open)));
    let mut fourth = asked(&gate, 1);
    drop(permits);
    assert!(fourth.granted().is_some());
}

#[test]
fn without_the_buckets_a_closed_gate_waits_and_asks_again_when_it_was_told() {
    let (clock, fake, gate) = shared("10/s burst 5");
    fake.set_away(true);
    let mut patient = asked(&gate, 1);
    let mut hasty = within(&gate, 1, SECOND);
    assert!(hasty.poll().is_pending());
    clock.advance(SECOND);
    let Refused::Deadline { max_wait, wait } = refused(&mut hasty) else { panic!() };
    assert!(wait >= AWAY && max_wait == SECOND, "{wait:?}");
    clock.advance(AWAY - SECOND);
    fake.set_away(false);
    assert_eq!(patient.wakes(), 0);
    clock.advance(AWAY);
    assert_eq!(patient.granted().unwrap().made(), Some(Made::Exact));
    assert_eq!(fake.asked(), at(&[(Duration::ZERO, 1), (AWAY, 1), (2 * AWAY, 1)]));
}

#[test]
fn without_the_buckets_a_gate_waits_for_the_share_of_its_machine() {
    let machines = 5.try_into().unwrap();
    let (clock, fake, builder) = sharing("10/s burst 20", OnFailure::Local { machines, keys: 1 });
    let gate = builder.build().unwrap();
    fake.set_away(true);
    // A fifth of the burst is 4, of the rate 2 a second.
    let permits: Vec<_> = (0..4).map(|_| taken(&gate, 1)).collect();
    assert!(permits.iter().all(|permit| permit.made() == Some(Made::Local)));
    let mut fifth = asked(&gate, 1);
    let mut above = asked(&gate, 5);
    clock.advance(SECOND / 2 - Duration::from_nanos(1));
    assert_eq!(fifth.wakes(), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(fifth.granted().unwrap().made(), Some(Made::Local));
    // The other is above the share, and not above the quota.
    clock.advance(AWAY);
    assert_eq!(above.wakes(), 0);
    fake.set_away(false);
    clock.advance(AWAY);
    assert_eq!(above.granted().unwrap().made(), Some(Made::Exact));
}

#[test]
fn a_gate_is_drained_while_the_buckets_are_asked() {
    for drain in [Drain::Serve, Drain::Refuse] {
        let (_clock, fake, gate) = shared("1/s burst 5");
        fake.hold();
        let mut first = asked(&gate, 1);
        let mut second = asked(&gate, 1);
        gate.drain(drain);
        assert_eq!(refused(&mut within(&gate, 1, SECOND)), Refused::Draining);
        if drain == Drain::Serve {
            fake.answer();
            fake.answer();
            assert!(first.granted().is_some() && second.granted().is_some());
        } else {
            assert_eq!([refused(&mut first), refused(&mut second)], [Refused::Draining; 2]);
            fake.answer();
            assert_eq!(fake.asked().len(), 1);
        }
        let mut drained = Box::pin(gate.drained());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(drained.as_mut().poll(&mut context).is_ready());
    }
}

#[test]
fn a_hint_that_comes_while_the_buckets_are_asked_holds() {
    let (clock, fake, gate) = shared("1/s burst 5");
    fake.hold();
    let mut call = asked(&gate, 1);
    gate.close_for(SECOND);
    fake.answer();
    assert_eq!(call.wakes(), 0);
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(fake.asked().len(), 1);
    clock.advance(Duration::from_nanos(1));
    fake.answer();
    assert!(call.granted().is_some());
}

#[test]
fn a_full_gate_asks_nothing_until_a_place_is_free() {
    let (clock, fake, builder) = sharing("1/s burst 5", OnFailure::Closed);
    let gate = builder.max_in_flight(1.try_into().unwrap()).build().unwrap();
    let first = taken(&gate, 1);
    let mut second = asked(&gate, 1);
    clock.advance(10 * SECOND);
    assert_eq!(fake.asked().len(), 1);
    drop(first);
    assert!(second.granted().is_some());
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() {
    let (clock, fake, builder) = sharing("10/s burst 10", OnFailure::Closed);
    let gate = builder.also("100/s burst 100".parse().unwrap()).build().unwrap();
    fake.take("calls-1", "api", "100/s burst 100", 60);
    let call = gate.clone();
    let mut call = Task::new(async move { call.call(1).also(50).acquire().await });
    assert!(call.poll().is_pending());
    assert_eq!((gate.level(0), gate.level(1)), (10, 40));
    clock.advance(SECOND / 10);
    assert!(call.granted().is_some());
    assert_eq!((gate.level(0), gate.level(1)), (9, 0));
}

#[test]
fn what_was_spent_beyond_an_estimate_is_charged_before_the_next_call() {
    let (clock, fake, gate) = shared("1/s burst 5");
    let call = gate.clone();
    let mut reserved = Box::pin(async move { call.reserve(2).await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(Ok(reservation)) = reserved.as_mut().poll(&mut context) else { panic!() };
    assert_eq!(reservation.made(), Some(Made::Exact));
    // Ten more, which are two buckets full.
    reservation.settle(12);
    let mut next = asked(&gate, 1);
    clock.advance(8 * SECOND - Duration::from_nanos(1));
    assert_eq!(next.wakes(), 0);
    clock.advance(Duration::from_nanos(1));
    assert!(next.granted().is_some());
    assert_eq!(fake.charged(), at(&[(Duration::ZERO, 2), (2 * SECOND, 5), (7 * SECOND, 5), (8 * SECOND, 1)]));
    // Less than the estimate comes back to nobody.
    taken_back(&clock, &gate);
}

fn taken_back(clock: &ManualClock, gate: &Gate) {
    clock.advance(10 * SECOND);
    taken(gate, 3).cancel();
    assert_eq!((gate.level(0), gate.status().in_flight), (2, 0));
}

#[test]
fn a_port_that_panics_or_answers_nonsense_is_one_that_does_not_answer() {
    #[derive(Debug)]
    struct Bad(std::sync::atomic::AtomicUsize);
    impl tidegate::shared::SharedBuckets for Bad {
        fn accepts(&self, _: &str, _: &tidegate::Algorithm) -> Result<(), tidegate::shared::Unsuited> {
            Ok(())
        }
        fn spans_keys(&self) -> bool {
            true
        }
        fn decide(&self, _: tidegate::shared::SharedCall) -> tidegate::shared::Deciding {
            match self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => panic!("a mistake of the port, as this test wants it"),
                1 => Box::pin(async { panic!("a mistake of the port, as this test wants it") }),
                2 => {
                    let nothing = tidegate::shared::SharedAnswer { each: Vec::new(), made: Made::Exact };
                    Box::pin(async { Ok(nothing) })
                }
                _ => {
                    let told = tidegate::shared::Told {
                        decision: tidegate::Decision::Allowed {
                            start_after: Duration::ZERO,
                            remaining: 0,
                            reset_after: Duration::ZERO,
                        },
                        left: None,
                    };
                    let each = vec![Some(told)];
                    Box::pin(async { Ok(tidegate::shared::SharedAnswer { each, made: Made::Leased }) })
                }
            }
        }
    }
    let (clock, builder) = builder("1/s");
    let bad = Arc::new(Bad(0.into()));
    let gate = builder.shared(bad, "calls", "api", OnFailure::Closed).build().unwrap();
    let mut call = asked(&gate, 1);
    clock.advance(3 * SECOND - Duration::from_nanos(1));
    assert_eq!(call.wakes(), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(call.granted().unwrap().made(), Some(Made::Leased));
}

#[test]
fn what_cannot_be_shared_is_an_error_of_the_builder() {
    let error = |builder: Builder| builder.build().unwrap_err();
    let sharing = || sharing("1 per 30000w burst 5", OnFailure::Closed);
    let (_clock, fake, builder) = sharing();
    assert_eq!(
        error(builder.algorithm(Kind::SlidingLog)).to_string(),
        "a shared gate has token buckets, and `sliding-log` is another algorithm; use `token-bucket`"
    );
    let (_clock, _fake, builder) = sharing();
    let named = builder.shared(Arc::new(fake.clone()), "a:b", "api", OnFailure::Closed);
    assert_eq!(error(named).to_string(), "`a:b` cannot be part of a key");
    let (_clock, _fake, builder) = sharing();
    let local = OnFailure::Local { machines: 1000.try_into().unwrap(), keys: 1 };
    assert!(matches!(error(builder.shared(Arc::new(fake), "calls", "api", local)), GateError::Share(_)));
    let (_clock, _fake, builder) = sharing();
    let five = (0..4).fold(builder, |builder, _| builder.also("1/s".parse().unwrap()));
    assert_eq!(error(five), GateError::Unsuitable(Unsuitable::Count { limits: 5 }));
}
