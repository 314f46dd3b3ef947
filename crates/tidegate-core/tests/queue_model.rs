//! The waiting line against a slow model, on random and on all small worlds.
//!
//! The model keeps the whole history of charges, each with what it costs by now, and replays it from a fresh limiter
//! for every question. So "as if it had never been charged" is what it does, not what it computes. Its line is a list
//! that it searches.

use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::queue::{Call, Cost, Drain, Event, Joined, Line, Receipt, Refusal, Ticket};
use tidegate_core::{Algorithm, Decision, Kind, Quota, Step};

/// What can happen to a line. Numbers choose among what is there.
#[derive(Debug, Clone, Copy)]
enum Op {
    Advance(u64),
    /// Costs, key, priority, and how long it may wait.
    Join([u64; 2], u64, u8, Option<u64>),
    Cancel(usize),
    Release(usize),
    CancelGranted(usize),
    Settle(usize, [u64; 2]),
    Close(u64),
    MaxInFlight(u64),
}

#[derive(Debug, Clone, Copy)]
struct Charged {
    at: u64,
    cost: [u64; 2],
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    ticket: Ticket,
    call: Call,
}

struct World {
    limits: Vec<Algorithm>,
    line: Line,
    now: u64,
    history: Vec<Charged>,
    /// In flight: the receipt and its place in the history.
    held: Vec<(Receipt, usize)>,
    waiting: Vec<Waiter>,
    /// Keys with somebody waiting, per priority, the next one first.
    rotation: Vec<(u8, u64)>,
    closed_until: u64,
    max_in_flight: u64,
    /// Joined and waited; granted; refused or cancelled afterwards.
    counts: [usize; 3],
    /// Places in the history that are charges for a debt, which no grant was for.
    debts: Vec<usize>,
}

impl World {
    fn new(limits: Vec<Algorithm>) -> Self {
        Self {
            line: Line::with_limits(&limits, 5).unwrap(),
            limits,
            now: 0,
            history: Vec::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            rotation: Vec::new(),
            closed_until: 0,
            max_in_flight: u64::MAX,
            counts: [0; 3],
            debts: Vec::new(),
        }
    }

    /// The decision of each limit.
    fn looks(&self, now: u64, cost: [u64; 2]) -> Vec<Decision> {
        let replay = |(limit, algorithm): (usize, &Algorithm)| {
            let mut state = algorithm.fresh();
            for charged in self.history.iter().filter(|charged| charged.cost[limit] > 0) {
                algorithm.charge(&mut state, charged.at, charged.cost[limit]);
            }
            algorithm.look(&state, now, cost[limit])
        };
        self.limits.iter().enumerate().map(replay).collect()
    }

    fn can_grant(&self, cost: [u64; 2]) -> bool {
        self.now >= self.closed_until
            && (self.held.len() as u64) < self.max_in_flight
            && self.looks(self.now, cost).iter().all(Decision::is_allowed)
    }

    fn head(&self) -> Option<Waiter> {
        let highest = self.waiting.iter().map(|waiter| waiter.call.priority).max()?;
        let (_, key) = self.rotation.iter().find(|(priority, _)| *priority == highest)?;
        let is_head = |waiter: &&Waiter| waiter.call.priority == highest && waiter.call.key == *key;
        self.waiting.iter().find(is_head).copied()
    }

    fn remove(&mut self, waiter: Waiter, served: bool) {
        self.waiting.retain(|other| other.ticket != waiter.ticket);
        let place = (waiter.call.priority, waiter.call.key);
        let others = self.waiting.iter().any(|other| (other.call.priority, other.call.key) == place);
        if served || !others {
            self.rotation.retain(|other| *other != place);
        }
        if served && others {
            self.rotation.push(place);
        }
    }

    fn grant(&mut self, receipt: Receipt, cost: [u64; 2]) {
        self.held.push((receipt, self.history.len()));
        self.history.push(Charged { at: self.now, cost });
    }

    fn join(&mut self, cost: [u64; 2], key: u64, priority: u8, within: Option<u64>) {
        let deadline = within.map(|within| self.now + within);
        let call = Call { cost: self.used(cost), key, priority, deadline };
        let free = self.waiting.iter().all(|waiter| waiter.call.priority < priority) && self.can_grant(cost);
        match self.line.join(self.now, call) {
            Joined::Granted(receipt) => {
                assert!(free, "granted although it had to wait");
                self.grant(receipt, cost);
            }
            Joined::Waiting(ticket) => {
                assert!(!free, "it waits although it could go");
                assert!(self.waiting.len() < 5);
                self.counts[0] += 1;
                if !self.rotation.contains(&(priority, key)) {
                    self.rotation.push((priority, key));
                }
                self.waiting.push(Waiter { ticket, call });
            }
            Joined::Refused(Refusal::Never { limit, capacity, .. }) => {
                assert_eq!(self.looks(self.now, cost)[limit], Decision::Never { capacity });
            }
            Joined::Refused(Refusal::QueueFull { .. }) => assert!(!free && self.waiting.len() == 5),
            Joined::Refused(Refusal::Deadline { wait }) => {
                assert!(!free);
                let within = Duration::from_nanos(within.unwrap());
                assert!(wait > within || within.is_zero());
                self.check_wait(call, wait);
            }
            Joined::Refused(other) => panic!("{other:?}"),
        }
    }

    /// The wait that was named is not above the one that there would have been, and for a bucket and one key it is
    /// that one, to a nanosecond for each waiting call that takes a whole burst.
    fn check_wait(&self, call: Call, wait: Duration) {
        let mut line = self.line.clone();
        let calls = self.waiting.iter().map(|waiter| waiter.call).collect::<Vec<_>>();
        if calls.iter().any(|call| call.deadline.is_some()) || self.waiting.len() == 5 {
            return;
        }
        line.set_max_in_flight(NonZeroU64::MAX);
        let Joined::Waiting(ticket) = line.join(self.now, Call { deadline: None, ..call }) else { return };
        let mut now = self.now;
        let real = loop {
            match line.poll(now) {
                Some(Event::Granted(got, _)) if got == ticket => break now - self.now,
                Some(_) => {}
                None => now = line.next_event(now).unwrap(),
            }
        };
        let (wait, slack) = (wait.as_nanos(), calls.len() as u64);
        assert!(wait <= u128::from(real), "{wait} named, {real} real");
        if self.limits.len() == 1
            && self.limits[0].kind() == Kind::TokenBucket
            && calls.iter().all(|other| other.key == call.key)
        {
            let higher = calls.iter().any(|other| other.priority != call.priority);
            assert!(higher || wait + u128::from(slack) >= u128::from(real), "{wait} named, {real} real");
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Advance(by) => self.advance(self.now + by),
            Op::Join(cost, key, priority, within) => self.join(cost, key, priority, within),
            Op::Cancel(which) if !self.waiting.is_empty() => {
                let waiter = self.waiting[which % self.waiting.len()];
                assert!(self.line.cancel(waiter.ticket));
                assert!(!self.line.cancel(waiter.ticket));
                self.remove(waiter, false);
                self.counts[2] += 1;
            }
            Op::Release(which) => self.end(which, None),
            Op::CancelGranted(which) => self.end(which, Some([0; 2])),
            Op::Settle(which, actual) => self.end(which, Some(actual)),
            Op::Close(by) => {
                self.closed_until = self.closed_until.max(self.now + by);
                self.line.close_until(self.now + by);
            }
            Op::MaxInFlight(max) => {
                self.max_in_flight = max;
                self.line.set_max_in_flight(NonZeroU64::new(max).unwrap());
            }
            Op::Cancel(_) => {}
        }
        self.poll();
    }

    fn end(&mut self, which: usize, actual: Option<[u64; 2]>) {
        if self.held.is_empty() {
            return;
        }
        let (receipt, place) = self.held.remove(which % self.held.len());
        let Some(actual) = actual else {
            assert!(self.line.release(receipt));
            assert!(!self.line.release(receipt));
            return;
        };
        assert!(self.line.settle(self.now, receipt, self.used(actual)));
        assert!(!self.line.cancel_granted(self.now, receipt));
        let reserved = self.history[place].cost;
        self.debts.push(self.history.len());
        self.history.push(Charged {
            at: self.now,
            cost: [0, 1].map(|limit| actual[limit].saturating_sub(reserved[limit])),
        });
        self.history[place].cost = [0, 1].map(|limit| actual[limit].min(reserved[limit]));
    }

    /// The costs of the limits that there are.
    fn used(&self, cost: [u64; 2]) -> Cost {
        match self.limits.len() {
            1 => cost[0].into(),
            _ => cost.into(),
        }
    }

    /// Time passes; the driver comes at every instant that the line names.
    fn advance(&mut self, until: u64) {
        while let Some(next) = self.line.next_event(self.now).filter(|next| *next <= until) {
            assert!(next > self.now, "what is due was polled");
            // Nothing happens one nanosecond before.
            assert_eq!(self.line.clone().poll(next - 1), None);
            self.now = next;
            assert_ne!(self.poll(), 0, "an event was announced");
        }
        self.now = until;
        assert_eq!(self.poll(), 0, "nothing was announced");
    }

    fn poll(&mut self) -> usize {
        let mut events = 0;
        while let Some(event) = self.line.poll(self.now) {
            events += 1;
            let (Event::Granted(ticket, _) | Event::Refused(ticket, _)) = event;
            let waiter = *self.waiting.iter().find(|waiter| waiter.ticket == ticket).expect("it waits");
            match event {
                Event::Granted(_, receipt) => {
                    assert_eq!(self.head().unwrap().ticket, ticket, "out of turn");
                    assert!(self.can_grant(costs(waiter)), "before its time");
                    assert!(waiter.call.deadline.is_none_or(|deadline| self.now <= deadline), "too late");
                    self.remove(waiter, true);
                    self.grant(receipt, costs(waiter));
                    self.counts[1] += 1;
                }
                Event::Refused(_, Refusal::Deadline { .. }) => {
                    let deadline = waiter.call.deadline.expect("it has one");
                    assert!(deadline <= self.now || deadline < self.closed_until);
                    self.remove(waiter, false);
                    self.counts[2] += 1;
                }
                Event::Refused(_, other) => panic!("{other:?}"),
            }
        }
        assert!(!self.head().is_some_and(|head| self.can_grant(costs(head))), "the head could go");
        let status = self.line.status(self.now);
        for (limit, look) in self.looks(self.now, [0; 2]).iter().enumerate() {
            assert_eq!(self.line.level(self.now, limit), look.remaining());
        }
        assert_eq!(status.waiting, self.waiting.len());
        assert_eq!(status.in_flight, self.held.len() as u64);
        events
    }

    /// Calls end, and then everybody has been served, once.
    fn finish(mut self) {
        self.apply(Op::MaxInFlight(1));
        for _ in 0..1000 {
            if self.waiting.is_empty() {
                break;
            }
            self.apply(Op::Release(0));
            if let Some(next) = self.line.next_event(self.now) {
                self.advance(next);
            }
        }
        assert!(self.waiting.is_empty(), "somebody was left waiting");
        let [waited, granted, left] = self.counts;
        assert_eq!(waited, granted + left);
        self.line.drain(Drain::Serve);
        assert_eq!(self.line.join(self.now, Call::default()), Joined::Refused(Refusal::Draining));
        self.check_bound();
    }

    /// In any interval, what was granted and not taken back is at most what the algorithm promises.
    fn check_bound(&self) {
        let grants = self.history.iter().enumerate().filter(|(place, _)| !self.debts.contains(place));
        let grants = grants.map(|(_, charged)| *charged).collect::<Vec<_>>();
        for (limit, algorithm) in self.limits.iter().enumerate() {
            for (first, start) in grants.iter().enumerate() {
                let mut sum = 0;
                for end in &grants[first..] {
                    sum += u128::from(end.cost[limit]);
                    let bound = algorithm.bound(Duration::from_nanos(end.at - start.at)).unwrap();
                    assert!(sum <= bound, "{sum} in {start:?}..{end:?}, at most {bound}");
                }
            }
        }
    }
}

fn costs(waiter: Waiter) -> [u64; 2] {
    [0, 1].map(|limit| waiter.call.cost.of(limit))
}

fn op() -> impl Strategy<Value = Op> {
    let within = prop_oneof![2 => Just(None), 1 => (0u64..40).prop_map(Some)];
    prop_oneof![
        4 => (0u64..20).prop_map(Op::Advance),
        6 => ([0u64..7, 0u64..4], 0u64..3, 0u8..2, within).prop_map(|(c, k, p, w)| Op::Join(c, k, p, w)),
        1 => any::<usize>().prop_map(Op::Cancel),
        2 => any::<usize>().prop_map(Op::Release),
        2 => any::<usize>().prop_map(Op::CancelGranted),
        2 => (any::<usize>(), [0u64..10, 0u64..6]).prop_map(|(which, actual)| Op::Settle(which, actual)),
        1 => (0u64..30).prop_map(Op::Close),
        1 => (1u64..4).prop_map(Op::MaxInFlight),
    ]
}

fn limit() -> impl Strategy<Value = Algorithm> {
    let kind = prop_oneof![
        3 => Just(Kind::TokenBucket),
        1 => Just(Kind::FixedWindow),
        1 => Just(Kind::SlidingWindow),
        1 => Just(Kind::SlidingLog),
    ];
    (kind, 1u64..5, 1u64..13, 1u64..7).prop_map(|(kind, count, per, burst)| {
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap();
        Algorithm::new(kind, quota)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queue_agrees_with_a_history_that_is_replayed(
        limits in prop::collection::vec(limit(), 1..3), ops in prop::collection::vec(op(), 1..100),
    ) {
        let mut world = World::new(limits);
        ops.into_iter().for_each(|op| world.apply(op));
        world.finish();
    }
}

#[test]
fn queue_agrees_with_the_model_on_every_small_world() {
    const OPS: [Op; 9] = [
        Op::Advance(1),
        Op::Advance(4),
        Op::Join([1, 0], 0, 0, None),
        Op::Join([2, 0], 1, 0, None),
        Op::Join([2, 0], 0, 1, Some(3)),
        Op::Cancel(0),
        Op::CancelGranted(0),
        Op::Settle(1, [1, 0]),
        Op::Release(0),
    ];
    const LENGTH: u32 = 5;
    let quota: Quota = "1 per 2ns burst 2".parse().unwrap();
    for number in 0..OPS.len().pow(LENGTH) {
        let mut world = World::new(vec![Algorithm::new(Kind::TokenBucket, quota)]);
        // Start from an empty bucket, so that the five steps are not spent on that.
        world.apply(Op::Join([2, 0], 0, 0, None));
        let mut rest = number;
        for _ in 0..LENGTH {
            world.apply(OPS[rest % OPS.len()]);
            rest /= OPS.len();
        }
        world.finish();
    }
}
