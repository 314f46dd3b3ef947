//! The waiting line: worked cases, one after the other, in numbers.

use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_core::queue::{Call, Drain, Event, Joined, Line, Receipt, Refusal, Ticket};
use tidegate_core::{Algorithm, Kind};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn line(kind: Kind, quota: &str) -> Line {
    Line::new(Algorithm::new(kind, quota.parse().unwrap()), 1000).unwrap()
}

fn bucket(quota: &str) -> Line {
    line(Kind::TokenBucket, quota)
}

fn cost(cost: u64) -> Call {
    Call { cost: cost.into(), ..Call::default() }
}

fn granted(joined: Joined) -> Receipt {
    match joined {
        Joined::Granted(receipt) => receipt,
        other => panic!("{other:?}"),
    }
}

fn waiting(joined: Joined) -> Ticket {
    match joined {
        Joined::Waiting(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn refused(joined: Joined) -> Refusal {
    match joined {
        Joined::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Everything that happens by `until`, with its time, when the driver is never late.
fn run(line: &mut Line, mut now: u64, until: u64) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    loop {
        while let Some(event) = line.poll(now) {
            events.push((now, event));
        }
        match line.next_event(now) {
            Some(next) if next <= until => {
                assert!(next > now, "what is due was polled");
                now = next;
            }
            _ => return events,
        }
    }
}

/// When each ticket was granted; panics if one was refused.
fn grant_times(events: &[(u64, Event)]) -> Vec<(u64, Ticket)> {
    events
        .iter()
        .map(|(now, event)| match event {
            Event::Granted(ticket, _) => (*now, *ticket),
            Event::Refused(..) => panic!("{event:?}"),
        })
        .collect()
}

/// Ten calls at 0 for `3 per 3s`: the second at which each starts.
fn ten_for_three_per_three(kind: Kind) -> Vec<u64> {
    let mut line = line(kind, "3 per 3s");
    let mut starts = Vec::new();
    for _ in 0..10 {
        if let Joined::Granted(_) = line.join(0, cost(1)) {
            starts.push(0);
        }
    }
    starts.extend(grant_times(&run(&mut line, 0, 100 * S)).iter().map(|(now, _)| now / S));
    starts
}

#[test]
fn queue_three_per_three_seconds_with_ten_waiters() {
    let grouped = [0, 0, 0, 3, 3, 3, 6, 6, 6, 9];
    assert_eq!(ten_for_three_per_three(Kind::FixedWindow), grouped);
    assert_eq!(ten_for_three_per_three(Kind::SlidingLog), grouped);
    // A bucket of three refills one each second, and does not wait until it is full.
    assert_eq!(ten_for_three_per_three(Kind::TokenBucket), [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
    // The counter with two windows estimates, as the older one fades; these are the whole seconds, the eighth
    // starts at 7.5 s.
    assert_eq!(ten_for_three_per_three(Kind::SlidingWindow), [0, 0, 0, 4, 5, 6, 7, 9, 10, 12]);
}

#[test]
fn queue_token_bucket_starts_three_at_a_time_when_a_call_costs_three() {
    let mut line = bucket("3 per 3s");
    let _ = granted(line.join(0, cost(3)));
    let tickets: Vec<_> = (0..3).map(|_| waiting(line.join(0, cost(3)))).collect();
    let expected: Vec<_> = [3 * S, 6 * S, 9 * S].into_iter().zip(tickets).collect();
    assert_eq!(grant_times(&run(&mut line, 0, 100 * S)), expected);
}

#[test]
fn queue_waits_exactly_what_is_missing() {
    // Capacity 10, 10/s, level 5, cost 6.
    let mut line = bucket("10/s burst 10");
    let _ = granted(line.join(0, cost(5)));
    assert_eq!(line.status(0).level, 5);
    let ticket = waiting(line.join(0, cost(6)));
    assert_eq!(line.next_event(0), Some(100 * MS));
    assert_eq!(line.poll(100 * MS - 1), None);
    assert!(matches!(line.poll(100 * MS), Some(Event::Granted(got, _)) if got == ticket));
    assert_eq!(line.poll(100 * MS), None);
    assert_eq!(line.next_event(100 * MS), None);
}

#[test]
fn queue_refuses_at_once_what_cannot_be_in_time() {
    // A permit is due in 5 s, and the caller gives it 3.
    let mut line = bucket("1 per 5s");
    let _ = granted(line.join(0, cost(1)));
    let call = Call { deadline: Some(3 * S), ..cost(1) };
    let wait = Duration::from_secs(5);
    assert_eq!(refused(line.join(0, call)), Refusal::Deadline { wait });
    assert_eq!(line.status(0).waiting, 0);
    // With 5 s it waits, and with those ahead counted the next one is told 10 s.
    let _ = waiting(line.join(0, Call { deadline: Some(5 * S), ..cost(1) }));
    let wait = Duration::from_secs(10);
    assert_eq!(
        refused(line.join(0, Call { deadline: Some(10 * S - 1), ..cost(1) })),
        Refusal::Deadline { wait }
    );
}

#[test]
fn queue_serves_a_large_call_within_capacity_over_rate_of_its_turn() {
    let mut line = bucket("10/s burst 10");
    let _ = granted(line.join(0, cost(10)));
    let small = waiting(line.join(0, cost(1)));
    let large = waiting(line.join(0, cost(10)));
    let mut now = 0;
    let mut served = Vec::new();
    // A stream of small calls, twenty a second, for three seconds.
    while now < 3 * S {
        let _ = waiting(line.join(now, cost(1)));
        let next = now + 50 * MS;
        served.extend(grant_times(&run(&mut line, now, next - 1)));
        now = next;
    }
    assert_eq!(served[0], (100 * MS, small));
    assert_eq!(served[1], (1100 * MS, large), "capacity / rate after it became the head");
    assert_eq!(served[2].0, 1200 * MS);
}

#[test]
fn queue_full_in_flight_uses_up_no_tokens() {
    let mut line = bucket("1/s burst 5");
    line.set_max_in_flight(NonZeroU64::new(1).unwrap());
    let first = granted(line.join(0, cost(1)));
    let ticket = waiting(line.join(0, cost(1)));
    // Only a place is missing, so no time can tell when.
    assert_eq!(line.next_event(0), None);
    assert_eq!(line.poll(10 * S), None);
    assert_eq!(line.status(10 * S).level, 5);
    assert!(line.release(first));
    assert!(!line.release(first), "a place is given back once");
    assert!(matches!(line.poll(10 * S), Some(Event::Granted(got, _)) if got == ticket));
    assert_eq!(line.status(10 * S).level, 4);
    assert_eq!(line.status(10 * S).in_flight, 1);
}

#[test]
fn queue_says_never_and_full_at_once() {
    let mut line = Line::new(Algorithm::new(Kind::TokenBucket, "1/s burst 5".parse().unwrap()), 1).unwrap();
    assert_eq!(refused(line.join(0, cost(6))), Refusal::Never { limit: 0, cost: 6, capacity: 5 });
    let _ = granted(line.join(0, cost(5)));
    let _ = waiting(line.join(0, cost(2)));
    let wait = Duration::from_secs(5);
    assert_eq!(refused(line.join(0, cost(3))), Refusal::QueueFull { max_waiting: 1, wait });
}

#[test]
fn queue_moves_up_when_the_head_the_middle_or_the_tail_leaves() {
    for leaves in 0..3 {
        let mut line = bucket("1/s burst 1");
        let _ = granted(line.join(0, cost(1)));
        let mut tickets: Vec<_> = (0..3).map(|_| waiting(line.join(0, cost(1)))).collect();
        let left = tickets.remove(leaves);
        assert!(line.cancel(left));
        assert!(!line.cancel(left));
        let expected = [(S, tickets[0]), (2 * S, tickets[1])];
        assert_eq!(grant_times(&run(&mut line, 0, 100 * S)), expected, "{leaves}");
    }
}

#[test]
fn queue_gives_a_grant_back_at_its_very_instant() {
    let mut line = bucket("1/s burst 1");
    let _ = granted(line.join(0, cost(1)));
    let first = waiting(line.join(0, cost(1)));
    let second = waiting(line.join(0, cost(1)));
    let Some(Event::Granted(got, receipt)) = line.poll(S) else { panic!() };
    assert_eq!(got, first);
    assert!(!line.cancel(first), "it waits no more");
    assert!(line.cancel_granted(S, receipt));
    assert!(!line.cancel_granted(S, receipt));
    assert!(matches!(line.poll(S), Some(Event::Granted(got, _)) if got == second));
    assert_eq!(line.poll(S), None);
}

#[test]
fn queue_takes_keys_in_turn() {
    let mut line = bucket("1/s burst 1");
    let _ = granted(line.join(0, cost(1)));
    let key = |key| Call { key, ..cost(1) };
    let ann: Vec<_> = (0..3).map(|_| waiting(line.join(0, key(1)))).collect();
    let bob: Vec<_> = (0..2).map(|_| waiting(line.join(0, key(2)))).collect();
    let cat = waiting(line.join(0, key(3)));
    let order: Vec<_> =
        grant_times(&run(&mut line, 0, 100 * S)).into_iter().map(|(_, ticket)| ticket).collect();
    assert_eq!(order, [ann[0], bob[0], cat, ann[1], bob[1], ann[2]]);
}

#[test]
fn queue_serves_a_higher_priority_first_even_if_the_lower_starves() {
    let mut line = bucket("1/s burst 1");
    let _ = granted(line.join(0, cost(1)));
    let low = waiting(line.join(0, cost(1)));
    let mut now = 0;
    // As long as there is an urgent call at every second, the ordinary one waits.
    for _ in 0..5 {
        let urgent = waiting(line.join(now, Call { priority: 1, ..cost(1) }));
        now += S;
        assert!(matches!(line.poll(now), Some(Event::Granted(got, _)) if got == urgent));
        assert_eq!(line.poll(now), None);
    }
    assert_eq!(grant_times(&run(&mut line, now, 100 * S)), [(6 * S, low)]);
}

#[test]
fn queue_hint_only_lengthens_and_refuses_whom_it_makes_late() {
    let mut line = bucket("10/s burst 10");
    line.close_until(5 * S);
    line.close_until(2 * S);
    assert_eq!(line.status(0).closed_until, Some(5 * S));
    let patient = waiting(line.join(0, Call { deadline: Some(8 * S), ..cost(1) }));
    let other = waiting(line.join(0, cost(1)));
    let wait = Duration::from_secs(5);
    let hasty = Call { deadline: Some(5 * S - 1), ..cost(1) };
    assert_eq!(refused(line.join(0, hasty)), Refusal::Deadline { wait });
    // The server says ten seconds: who can wait eight only is told now, not in eight seconds.
    line.close_until(10 * S);
    assert_eq!(line.next_event(S), Some(S));
    let wait = Duration::from_secs(9);
    assert_eq!(line.poll(S), Some(Event::Refused(patient, Refusal::Deadline { wait })));
    assert_eq!(grant_times(&run(&mut line, S, 100 * S)), [(10 * S, other)]);
    assert_eq!(line.status(10 * S).closed_until, None);
}

#[test]
fn queue_grants_at_the_deadline_and_not_after_it() {
    let mut line = bucket("1/s burst 1");
    let _ = granted(line.join(0, cost(1)));
    let ticket = waiting(line.join(0, Call { deadline: Some(S), ..cost(1) }));
    let mut late = line.clone();
    assert_eq!(grant_times(&run(&mut line, 0, 100 * S)), [(S, ticket)]);
    // A driver that is late.
    let wait = Duration::ZERO;
    assert_eq!(late.poll(S + 1), Some(Event::Refused(ticket, Refusal::Deadline { wait })));
    // One that waits for a place is told at the deadline.
    line.set_max_in_flight(NonZeroU64::new(1).unwrap());
    let ticket = waiting(line.join(5 * S, Call { deadline: Some(7 * S), ..cost(1) }));
    assert_eq!(line.next_event(5 * S), Some(7 * S));
    assert_eq!(line.poll(7 * S), Some(Event::Refused(ticket, Refusal::Deadline { wait })));
}

#[test]
fn queue_settles_estimates() {
    // 1000 reserved, 300 used: 700 are back.
    let mut line = bucket("10/s burst 1000");
    let reserved = granted(line.join(0, cost(1000)));
    assert_eq!(line.status(0).level, 0);
    assert!(line.settle(0, reserved, 300.into()));
    assert!(!line.settle(0, reserved, 0.into()), "once");
    assert_eq!(line.status(0).level, 700);

    // 1000 reserved, 1500 used: nothing is granted until the refill has paid the 500.
    let mut line = bucket("10/s burst 1000");
    let reserved = granted(line.join(0, cost(1000)));
    assert!(line.settle(S, reserved, 1500.into()));
    let ticket = waiting(line.join(S, cost(0)));
    let after = waiting(line.join(S, cost(1)));
    // 10 came in the first second, 490 are missing.
    assert_eq!(grant_times(&run(&mut line, S, 100 * S)), [(50 * S, ticket), (50 * S + 100 * MS, after)]);

    // Ended without settling: the estimate stays.
    let mut line = bucket("10/s burst 1000");
    let reserved = granted(line.join(0, cost(1000)));
    assert!(line.release(reserved));
    assert_eq!(line.status(0).level, 0);
    assert_eq!(line.status(0).in_flight, 0);
}

#[test]
fn queue_refund_belongs_to_the_window_it_was_reserved_in() {
    let mut line = line(Kind::FixedWindow, "1000/min");
    let reserved = granted(line.join(59 * S, cost(1000)));
    // The next minute: others use 900; the refund of the old minute must not erase that.
    let _ = granted(line.join(61 * S, cost(900)));
    assert!(line.cancel_granted(80 * S, reserved));
    assert_eq!(line.status(80 * S).level, 100);
}

#[test]
fn queue_refund_of_a_sliding_log_leaves_the_debt_of_others() {
    // Two are granted at 0; a call that reserved nothing turns out to have taken two more. The first is undone: the
    // two of the other are there until 10 s, so nobody is granted before.
    let mut line = line(Kind::SlidingLog, "2 per 10s");
    let first = granted(line.join(0, cost(2)));
    let second = granted(line.join(0, cost(0)));
    assert!(line.settle(0, second, 2.into()));
    assert!(line.cancel_granted(0, first));
    assert_eq!(line.level(0, 0), 0);
    let third = waiting(line.join(0, cost(1)));
    assert_eq!(grant_times(&run(&mut line, 0, 20 * S)), [(10 * S, third)]);
}

#[test]
fn queue_cancels_in_any_order_and_the_next_call_starts_at_once() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut line = bucket("1/s burst 1");
        // The first is granted, the others would be at 1 and 2 s.
        let first = granted(line.join(0, cost(1)));
        let tickets = [waiting(line.join(0, cost(1))), waiting(line.join(0, cost(1)))];
        let mut receipts = vec![first];
        for place in order {
            if place == 0 {
                receipts.iter().for_each(|receipt| assert!(line.cancel_granted(0, *receipt)));
            } else {
                // If the head was given back before, the next one has been granted meanwhile.
                match line.cancel(tickets[place - 1]) {
                    true => {}
                    false => assert!(line.cancel_granted(0, receipts.pop().unwrap())),
                }
            }
            while let Some(event) = line.poll(0) {
                let Event::Granted(_, receipt) = event else { panic!() };
                receipts = vec![receipt];
            }
        }
        let _ = granted(line.join(0, cost(1)));
    }
}

#[test]
fn queue_drains() {
    let mut line = bucket("1/s burst 1");
    let _ = granted(line.join(0, cost(1)));
    let tickets: Vec<_> = (0..3).map(|_| waiting(line.join(0, cost(1)))).collect();
    line.drain(Drain::Serve);
    assert_eq!(refused(line.join(0, cost(1))), Refusal::Draining);
    assert_eq!(grant_times(&run(&mut line, 0, S)), [(S, tickets[0])]);
    line.drain(Drain::Refuse);
    assert_eq!(line.next_event(S), Some(S));
    let rest = run(&mut line, S, 100 * S);
    assert_eq!(
        rest,
        [
            (S, Event::Refused(tickets[1], Refusal::Draining)),
            (S, Event::Refused(tickets[2], Refusal::Draining))
        ]
    );
    assert!(line.status(S).draining);
}

#[test]
fn queue_time_going_back_creates_nothing() {
    let mut line = bucket("1/s burst 1");
    let _ = granted(line.join(10 * S, cost(1)));
    let ticket = waiting(line.join(3 * S, cost(1)));
    assert_eq!(line.next_event(0), Some(11 * S));
    assert_eq!(line.poll(11 * S - 1), None);
    assert!(matches!(line.poll(11 * S), Some(Event::Granted(got, _)) if got == ticket));
}

#[test]
fn queue_waits_for_all_limits_and_charges_all_or_none() {
    // Ten requests a second, and 100 tokens a second with 1000 at most.
    let limits = ["10/s burst 10", "100/s burst 1000"];
    let limits = limits.map(|quota| Algorithm::new(Kind::TokenBucket, quota.parse().unwrap()));
    let mut line = Line::with_limits(&limits, 10).unwrap();
    let call = |cost: [u64; 2]| Call { cost: cost.into(), ..Call::default() };
    let reserved = granted(line.join(0, call([1, 1000])));
    let waits = waiting(line.join(0, call([1, 300])));
    let last = waiting(line.join(0, call([10, 0])));
    // While the second limit is waited for, nothing is taken from the first.
    assert_eq!((line.level(0, 0), line.level(0, 1), line.level(0, 2)), (9, 0, 0));
    assert_eq!(line.next_event(0), Some(3 * S));
    // The first call took 800 and not 1000: in 1 s there is enough.
    assert!(line.settle(0, reserved, [1, 800].into()));
    let events = run(&mut line, 0, 100 * S);
    assert_eq!(grant_times(&events), [(S, waits), (S + 100 * MS, last)]);
    // What can never be names its limit.
    let never = Refusal::Never { limit: 1, cost: 1001, capacity: 1000 };
    assert_eq!(refused(line.join(2 * S, call([1, 1001]))), never);
    let not_there = Call { cost: [1, 1, 1].into(), ..Call::default() };
    assert_eq!(refused(line.join(2 * S, not_there)), Refusal::Never { limit: 2, cost: 1, capacity: 0 });
}

#[test]
fn queue_has_one_to_four_limits() {
    assert_eq!(
        Line::with_limits(&[], 10).unwrap_err().to_string(),
        "a waiting line has 1 to 4 limits, not 0; join some into one",
    );
}

#[test]
fn queue_refuses_an_algorithm_with_a_queue_of_its_own() {
    let leaky = Algorithm::new(Kind::LeakyBucket, "1/s".parse().unwrap());
    assert_eq!(
        Line::new(leaky, 10).unwrap_err().to_string(),
        "the algorithm `leaky-bucket` has a queue of its own and cannot be waited for in a line; use `token-bucket`",
    );
}

#[test]
fn queue_asks_in_the_order_in_which_it_would_grant() {
    let mut own = bucket("1/s burst 1000");
    own.close_until(1);
    let mut asking = bucket("1/s burst 1000").asking();
    let mut expected = Vec::new();
    // Keys of 7 and priorities of 3 in every combination, with some twice.
    for number in 0..50_u64 {
        let call = Call { key: number * number % 7, priority: (number % 3) as u8, ..cost(number % 5) };
        expected.push(waiting(own.join(0, call)));
        assert_eq!(Joined::Waiting(expected[expected.len() - 1]), asking.join(0, call));
    }
    expected.clear();
    while let Some(event) = own.poll(1) {
        let Event::Granted(ticket, _) = event else { panic!("{event:?}") };
        expected.push(ticket);
    }
    assert!(asking.ask(1).is_some());
    let asked: Vec<_> = asking.asked().iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(asked, expected);
    // And grants in that order.
    let granted = asking.granted(1, asked.len()).into_iter().map(|event| match event {
        Event::Granted(ticket, _) => ticket,
        Event::Refused(..) => panic!("{event:?}"),
    });
    assert_eq!(granted.collect::<Vec<_>>(), expected);
    assert_eq!(asking.status(1).in_flight, 50);
}

#[test]
fn queue_asks_for_no_more_than_has_places_and_is_known_to_be_there() {
    let mut line = bucket("1/s burst 5").asking();
    line.set_max_in_flight(NonZeroU64::new(3).unwrap());
    let tickets: Vec<_> = (0..5).map(|_| waiting(line.join(0, cost(2)))).collect();
    // Three have places, and tokens are there for two.
    assert_eq!((line.ask(0), line.asked().len()), (Some(4.into()), 2));
    assert_eq!((line.ask(0), line.next_event(0)), (None, None), "one question at a time");
    // The limit of another is lower than what was known.
    assert_eq!(line.rejected(0, 3 * S), None);
    assert_eq!(line.ask(0), Some(2.into()));
    assert_eq!(line.rejected(0, 2 * S), None);
    assert_eq!((line.ask(2 * S - 1), line.next_event(0)), (None, Some(2 * S)));
    // The head leaves; what it was told holds for the next, which costs as much.
    assert!(line.cancel(tickets[0]));
    assert_eq!(line.next_event(0), Some(2 * S));
    assert_eq!(line.ask(2 * S), Some(2.into()));
    line.told(0, 2 * S, Duration::from_secs(5));
    let events = line.granted(2 * S, 1);
    assert!(matches!(events[..], [Event::Granted(ticket, _)] if ticket == tickets[1]), "{events:?}");
    // Nothing is left, so the next is two seconds later.
    assert_eq!((line.level(2 * S, 0), line.next_event(2 * S)), (0, Some(4 * S)));
}

#[test]
fn queue_that_asks_refuses_at_the_last_instant_that_could_still_bring_an_answer() {
    let mut line = bucket("1/s burst 5").asking();
    let call = Call { deadline: Some(3 * S), ..cost(1) };
    let ticket = waiting(line.join(0, call));
    assert_eq!(line.ask(0), Some(1.into()));
    assert_eq!((line.next_event(0), line.poll(3 * S)), (Some(3 * S + 1), None));
    let wait = Duration::ZERO;
    assert_eq!(line.poll(3 * S + 1), Some(Event::Refused(ticket, Refusal::Deadline { wait })));
    // Nobody is there for the charge.
    assert_eq!(line.granted(3 * S + 1, 1), []);
    // A rejection that is over only after a deadline refuses at once.
    let late = waiting(line.join(4 * S, Call { deadline: Some(5 * S), ..cost(1) }));
    assert_eq!(line.ask(4 * S), Some(1.into()));
    let wait = Duration::from_secs(2);
    assert_eq!(line.rejected(4 * S, 6 * S), Some(Event::Refused(late, Refusal::Deadline { wait })));
    assert!(line.is_idle());
}
