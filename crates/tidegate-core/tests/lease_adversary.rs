//! Workers that do everything the protocol of leases lets them do to be allowed too much: they hoard, give back early,
//! spend at the same instant, sleep past the time to live, crash, and ask over a network that delays and loses answers.
//!
//! What was allowed is checked by a log that shares no code with the leases, in every interval.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::lease::{Ask, Borrower, Lease, Lender, Lent, Loan, Returned, Terms};
use tidegate_core::{Decision, Quota};

const MS: u64 = 1_000_000;

/// What was allowed, and the check of it.
#[derive(Debug, Default)]
struct Log(Vec<(u64, u64)>);

impl Log {
    /// The most that any closed interval holds beyond `B + r·t`, as a number of `1/per` tokens.
    fn most_over(&self, quota: Quota) -> i128 {
        let (count, per) = (i128::from(quota.count()), i128::from(quota.per_ns().get()));
        let mut most = i128::MIN;
        for (from, &(start, _)) in self.0.iter().enumerate() {
            let mut cost = 0;
            for &(end, spent) in &self.0[from..] {
                cost += i128::from(spent);
                let earned = count * i128::from(end - start);
                most = most.max((cost - i128::from(quota.burst())) * per - earned);
            }
        }
        most
    }

    /// Whether every interval holds at most `min(r·τ, W·q)` more.
    fn keeps(&self, quota: Quota, ttl: u64, workers: usize, most_held: u64) -> bool {
        let (count, per) = (i128::from(quota.count()), i128::from(quota.per_ns().get()));
        self.most_over(quota) <= (count * i128::from(ttl)).min(workers as i128 * i128::from(most_held) * per)
    }
}

/// One step of a run.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A call of this cost: a `Borrower` spends or asks; a hoarder spends.
    Call(u64),
    /// A hoarder asks for all that it may hold, as waiting calls, which no guard holds back.
    Hoard,
    /// Gives back the older lease, whenever that was.
    GiveBack,
    /// Spends all at once, as all others do that spend at this instant.
    SpendAll,
    /// Forgets everything.
    Crash,
    /// The next answer to this worker is lost.
    Lose,
}

/// One worker: the real one, or one that hoards as far as the protocol lets it.
#[derive(Debug)]
struct Worker {
    borrower: Option<Borrower>,
    /// What the hoarder holds, oldest first.
    leases: VecDeque<(Lease, u64)>,
    /// When an answer is due, on the world's clock; when the ask was sent, on the worker's; and the answer.
    answers: Vec<(u64, u64, Result<Loan, Decision>)>,
    lose: bool,
    /// How far this worker's clock is ahead.
    ahead: u64,
    /// Calls that wait for an answer.
    waiting: VecDeque<u64>,
}

struct World {
    lender: Lender,
    /// One bucket; in a run that is to fail, one for each worker.
    buckets: Vec<Lent>,
    workers: Vec<Worker>,
    /// Returns under way: when they arrive, whose, and what.
    returns: Vec<(u64, usize, Returned)>,
    delay: u64,
    log: Log,
    lent_tokens: u64,
    returned_tokens: u64,
    /// How often tokens could be lost, and the most that may be lost each time.
    losses: u64,
    most_held: u64,
}

impl World {
    fn new(quota: Quota, terms: Terms, workers: usize, hoarders: usize, delay: u64) -> Self {
        let lender = Lender::new(quota, terms);
        let worker = |index| Worker {
            borrower: (index >= hoarders).then(Borrower::default),
            leases: VecDeque::new(),
            answers: Vec::new(),
            lose: false,
            ahead: 17 * MS * index as u64,
            waiting: VecDeque::new(),
        };
        Self {
            lender,
            buckets: vec![lender.fresh()],
            workers: (0..workers).map(worker).collect(),
            returns: Vec::new(),
            delay,
            log: Log::default(),
            lent_tokens: 0,
            returned_tokens: 0,
            losses: 0,
            most_held: terms.chunk(),
        }
    }

    fn send(&mut self, worker: usize, now: u64, ask: Ask) {
        // It reaches the bucket at once and is answered after the delay: the worst case for the time to live.
        if let Some(returned) = ask.returned {
            self.take_back(worker, now, returned);
        }
        let bucket = worker % self.buckets.len();
        let answer = self.lender.lend(&mut self.buckets[bucket], now, Ask { returned: None, ..ask });
        if let Ok(loan) = answer {
            self.lent_tokens += loan.tokens;
        }
        let worker = &mut self.workers[worker];
        if std::mem::take(&mut worker.lose) {
            self.losses += 1;
            if let Some(borrower) = &mut worker.borrower {
                borrower.give_up();
            }
        } else {
            worker.answers.push((now + self.delay, now + worker.ahead, answer));
        }
    }

    fn take_back(&mut self, worker: usize, now: u64, returned: Returned) {
        let bucket = worker % self.buckets.len();
        self.returned_tokens += self.lender.take_back(&mut self.buckets[bucket], now, returned);
        self.losses += 1;
    }

    fn held(&self, worker: usize, now: u64) -> u64 {
        let local = now + self.workers[worker].ahead;
        let leases = self.workers[worker].leases.iter();
        leases.filter(|(lease, _)| { *lease }.spend(local, 1)).map(|(lease, _)| lease.left()).sum()
    }

    /// Lets arrive what is due.
    fn arrive(&mut self, now: u64) {
        let terms = *self.lender.terms();
        let (due, later): (Vec<_>, _) = self.returns.drain(..).partition(|(at, ..)| *at <= now);
        self.returns = later;
        for (_, worker, returned) in due {
            self.take_back(worker, now, returned);
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            let local = now + worker.ahead;
            let (due, later): (Vec<_>, _) = worker.answers.drain(..).partition(|(at, ..)| *at <= now);
            worker.answers = later;
            for (_, asked_at, answer) in due {
                let worker = &mut self.workers[index];
                if let Some(borrower) = &mut worker.borrower {
                    borrower.answer(&terms, local, asked_at, answer);
                    self.losses += 1;
                    self.serve(index, now, answer.is_err());
                } else if let Ok(loan) = answer {
                    let mut lease = Lease::default();
                    lease.renew(&terms, asked_at, loan.tokens);
                    worker.leases.push_back((lease, loan.lent_at));
                    self.losses += 1;
                }
            }
        }
    }

    /// Spends on the calls of a `Borrower` that wait; a refusal refuses the first.
    fn serve(&mut self, index: usize, now: u64, refused: bool) {
        let worker = &mut self.workers[index];
        let local = now + worker.ahead;
        if refused {
            worker.waiting.pop_front();
        }
        let Some(borrower) = &mut worker.borrower else { return };
        while let Some(&cost) = worker.waiting.front()
            && borrower.spend(local, cost)
        {
            self.log.0.push((now, cost));
            worker.waiting.pop_front();
        }
    }

    fn act(&mut self, index: usize, now: u64, act: Act) {
        let terms = *self.lender.terms();
        let held = self.held(index, now);
        let worker = &mut self.workers[index];
        let local = now + worker.ahead;
        match act {
            Act::Lose => worker.lose = true,
            Act::Crash => {
                self.losses += 3;
                worker.leases.clear();
                worker.answers.clear();
                worker.waiting.clear();
                worker.borrower = worker.borrower.map(|_| Borrower::default());
            }
            Act::Call(cost) => {
                if let Some(borrower) = &mut worker.borrower {
                    self.most_held = self.most_held.max(cost);
                    worker.waiting.push_back(cost);
                    if worker.waiting.len() == 1 && borrower.spend(local, cost) {
                        worker.waiting.pop_back();
                        self.log.0.push((now, cost));
                    }
                    let first = worker.waiting.front().copied().unwrap_or(0);
                    let all = worker.waiting.iter().sum();
                    let wants = first > 0 || borrower.wants_more(local);
                    if wants && let Some(ask) = borrower.ask(&terms, local, first, all) {
                        self.send(index, now, ask);
                    }
                } else if let Some((lease, _)) =
                    worker.leases.iter_mut().find(|(lease, _)| { *lease }.spend(local, cost))
                {
                    assert!(lease.spend(local, cost));
                    self.log.0.push((now, cost));
                }
            }
            Act::Hoard => {
                if let Some(borrower) = &mut worker.borrower {
                    if let Some(ask) = borrower.ask(&terms, local, 0, 0) {
                        self.send(index, now, ask);
                    }
                } else if worker.answers.is_empty() && held < terms.chunk() {
                    self.send(
                        index,
                        now,
                        Ask { first: 1, waiting: terms.chunk() - held, chunk: 0, returned: None },
                    );
                }
            }
            Act::GiveBack => {
                let returned = match &mut worker.borrower {
                    Some(borrower) => borrower.give_back(local),
                    // Even what is too old to be spent.
                    None => worker
                        .leases
                        .pop_front()
                        .map(|(lease, lent_at)| Returned { tokens: lease.left(), lent_at }),
                };
                self.returns.extend(returned.map(|returned| (now + self.delay, index, returned)));
            }
            Act::SpendAll => {
                for (lease, _) in &mut worker.leases {
                    let left = lease.left();
                    if left > 0 && lease.spend(local, left) {
                        self.log.0.push((now, left));
                    }
                }
                if let Some(borrower) = &mut worker.borrower {
                    let left = borrower.held(local);
                    if left > 0 && borrower.spend(local, left) {
                        self.log.0.push((now, left));
                    }
                }
            }
        }
    }
}

/// What the workers do: the gap before, in twentieths of a time to live (less a nanosecond), which worker (or all of them,
/// at the same instant), and what.
type Plan = Vec<(u64, Option<usize>, Act)>;

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1_u64..6).prop_map(Act::Call),
        6 => Just(Act::Hoard),
        3 => Just(Act::GiveBack),
        3 => Just(Act::SpendAll),
        1 => Just(Act::Crash),
        1 => Just(Act::Lose),
    ]
}

fn plans() -> impl Strategy<Value = Plan> {
    let gap = prop_oneof![6 => Just(0), 3 => 1_u64..20, 2 => Just(20), 1 => 20_u64..60];
    let who = prop_oneof![2 => (0_usize..8).prop_map(Some), 1 => Just(None)];
    proptest::collection::vec((gap, who, acts()), 20..160)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_adversary_is_allowed_more_than_the_overshoot_in_any_interval(
        rate in 20_u64..2000, burst in 1_u64..300, overshoot in 1_u64..200,
        workers in 1_usize..8, hoarders in 0_usize..8, delay in 0_u64..10 * MS, plan in plans(),
    ) {
        let quota = Quota::new(rate, Duration::from_secs(1)).unwrap().with_burst(burst).unwrap();
        let Some(terms) = Terms::within(quota, overshoot) else {
            // Too short for a network.
            prop_assert!(u128::from(overshoot) * 1000 < 20 * u128::from(rate));
            return Ok(());
        };
        let mut world = World::new(quota, terms, workers, hoarders.min(workers), delay);
        let ttl = u64::try_from(terms.ttl().as_nanos()).unwrap();
        let mut now = 0;
        for (gap, who, act) in plan {
            now += (gap * ttl / 20).saturating_sub(1);
            world.arrive(now);
            match who {
                Some(worker) => world.act(worker % workers, now, act),
                None => (0..workers).for_each(|worker| world.act(worker, now, act)),
            }
        }
        prop_assert!(
            world.log.keeps(quota, ttl, workers, world.most_held),
            "{} beyond the bucket, in units of 1/{} token", world.log.most_over(quota), quota.per_ns()
        );
        // The user's own words: at most so many too many, where no call costs more than a lease.
        let most = i128::from(overshoot) * i128::from(quota.per_ns().get());
        prop_assert!(world.log.most_over(quota) <= most);
        // No token is spent that was not lent, and each event loses at most what a worker may hold.
        let spent: u64 = world.log.0.iter().map(|(_, cost)| cost).sum();
        prop_assert!(spent + world.returned_tokens <= world.lent_tokens);
        let held: u64 = world.workers.len() as u64 * 2 * world.most_held;
        let lost = world.lent_tokens - spent - world.returned_tokens;
        prop_assert!(lost <= world.losses * world.most_held + held, "{lost} by {} events", world.losses);
    }

    #[test]
    fn a_return_just_before_it_is_too_old_brings_no_token_twice(
        rate in 100_u64..2000, burst in 20_u64..200, overshoot in 40_u64..200, workers in 6_usize..24,
        early in 1_usize..4, gaps in proptest::collection::vec(0_u64..7, 6),
    ) {
        let quota = Quota::new(rate, Duration::from_secs(1)).unwrap().with_burst(burst).unwrap();
        let Some(terms) = Terms::within(quota, overshoot) else { return Ok(()) };
        let ttl = u64::try_from(terms.ttl().as_nanos()).unwrap();
        let mut world = World::new(quota, terms, workers, workers, 0);
        // Some take early and give back late, the others take before and after that, and all spend at one instant.
        let steps: [(std::ops::Range<usize>, &[Act]); 6] = [
            (0..early, &[Act::Hoard]),
            (early..workers / 2, &[Act::Hoard]),
            (0..early, &[Act::GiveBack]),
            (0..workers, &[Act::Hoard]),
            (0..workers, &[Act::Hoard]),
            (0..workers, &[Act::SpendAll, Act::Hoard, Act::SpendAll]),
        ];
        let mut now = 0;
        for (gap, (who, acts)) in gaps.into_iter().zip(steps) {
            now += (gap * ttl / 6).saturating_sub(u64::from(gap == 6));
            for act in acts {
                for worker in who.clone() {
                    world.act(worker, now, *act);
                    world.arrive(now);
                }
            }
        }
        prop_assert!(world.log.keeps(quota, ttl, workers, terms.chunk()));
    }
}

/// A quota, terms and a world of hoarders: `τ` is 40 ms, and each may hold 20.
fn forty(workers: usize) -> (Quota, World) {
    let quota: Quota = "1000/s burst 100".parse().unwrap();
    let terms = Terms::within(quota, 40).unwrap();
    assert_eq!((terms.ttl(), terms.chunk()), (Duration::from_millis(40), 20));
    (quota, World::new(quota, terms, workers, workers, 0))
}

#[test]
fn hoarders_reach_the_overshoot_and_an_early_return_brings_no_token_twice() {
    let (quota, mut world) = forty(9);
    // The first takes 20 at 0, which are refilled at 20 ms. Five others take all that is there at 39 ms.
    world.act(0, 0, Act::Hoard);
    world.arrive(39 * MS);
    for worker in 1..6 {
        world.act(worker, 39 * MS, Act::Hoard);
    }
    // The first gives its 20 back in time. Had they never been lent, the bucket would have been full without them.
    world.act(0, 39 * MS, Act::GiveBack);
    world.arrive(39 * MS);
    assert_eq!((world.returned_tokens, world.lent_tokens), (0, 120));
    // What comes until the first of the leases is too old, others take, and then all is spent at one instant.
    for (worker, at) in [(6, 59), (7, 78)] {
        world.arrive(at * MS);
        world.act(worker, at * MS, Act::Hoard);
    }
    world.arrive(78 * MS);
    for worker in 0..9 {
        world.act(worker, 78 * MS, Act::SpendAll);
    }
    let spent: u64 = world.log.0.iter().map(|(_, cost)| cost).sum();
    // 100, and 39 of the 40 that are promised as the most. With the 20 they would have been 59.
    assert_eq!(spent, 139);
    assert!(world.log.keeps(quota, 40 * MS, 9, 20));
    world.log.0.push((78 * MS, 20));
    assert!(
        !world.log.keeps(quota, 40 * MS, 9, 20),
        "the check sees what a return that brings tokens twice does"
    );
}

#[test]
fn the_check_sees_workers_that_have_a_bucket_each() {
    let (quota, mut world) = forty(4);
    world.buckets = vec![world.lender.fresh(); 4];
    for round in 0..20 {
        let now = round * 10 * MS;
        for worker in 0..4 {
            world.act(worker, now, Act::Hoard);
            world.arrive(now);
            world.act(worker, now, Act::SpendAll);
        }
    }
    assert!(!world.log.keeps(quota, 40 * MS, 4, 20));
}

#[test]
fn what_the_bucket_had_room_for_all_the_time_comes_back() {
    let quota: Quota = "1000/s burst 100".parse().unwrap();
    let lender = Lender::new(quota, Terms::within(quota, 40).unwrap());
    let mut lent = lender.fresh();
    let ask = |waiting| Ask { first: 1, waiting, ..Ask::default() };
    // Empty at 0: after two times to live nobody remembers that it was full.
    lender.lend(&mut lent, 0, ask(100)).unwrap();
    for at in [40, 80] {
        lender.lend(&mut lent, at * MS, ask(40)).unwrap();
    }
    let loan = lender.lend(&mut lent, 120 * MS, ask(40)).unwrap();
    let returned = |tokens| Returned { tokens, lent_at: loan.lent_at };
    assert_eq!(lender.take_back(&mut lent, 130 * MS, returned(20)), 20);
    assert_eq!(lender.level(&lent, 130 * MS), 30);
    // At the end of the time to live it is taken back, later it is not.
    assert_eq!(lender.take_back(&mut lent, 160 * MS, returned(7)), 7);
    assert_eq!(lender.take_back(&mut lent, 160 * MS + 1, returned(7)), 0);
    assert_eq!(lender.take_back(&mut lent, 119 * MS, returned(7)), 0, "a clock that went back knows no age");
}

#[test]
fn a_worker_that_sleeps_past_the_time_to_live_has_nothing() {
    let quota: Quota = "1000/s".parse().unwrap();
    let terms = Terms::within(quota, 50).unwrap();
    let lender = Lender::new(quota, terms);
    let (mut lent, mut worker) = (lender.fresh(), Borrower::default());
    let ask = worker.ask(&terms, 5, 1, 1).unwrap();
    assert_eq!(worker.ask(&terms, 6, 1, 1), None, "one ask at a time");
    let answer = lender.lend(&mut lent, 900, ask);
    worker.answer(&terms, 7, 5, answer);
    assert!({ worker }.spend(50 * MS + 4, 1));
    assert!(!worker.spend(50 * MS + 5, 1), "the time counts from before the ask");
    assert_eq!(worker.give_back(50 * MS + 5), None);

    // An answer that comes so late, or to an ask that was given up, is lost.
    let late = Borrower::default();
    for gives_up in [false, true] {
        let mut worker = late;
        let ask = worker.ask(&terms, 0, 1, 1).unwrap();
        let answer = lender.lend(&mut lent, 0, ask);
        if gives_up {
            worker.give_up();
        }
        worker.answer(&terms, if gives_up { 1 } else { 50 * MS }, 0, answer);
        assert_eq!(worker.held(1), 0);
    }
}

#[test]
fn a_refusal_is_remembered_for_as_long_as_it_holds() {
    let quota: Quota = "1000/s burst 100".parse().unwrap();
    let terms = Terms::within(quota, 40).unwrap();
    let lender = Lender::new(quota, terms);
    let (mut lent, mut worker) = (lender.fresh(), Borrower::default());
    lender.lend(&mut lent, 0, Ask { first: 98, waiting: 98, ..Ask::default() }).unwrap();
    let ask = worker.ask(&terms, 0, 5, 5).unwrap();
    worker.answer(&terms, 0, 0, lender.lend(&mut lent, 0, ask));
    assert_eq!(worker.refusal(MS, 5), Some(Duration::from_millis(2)));
    assert_eq!((worker.refusal(MS, 2), worker.refusal(3 * MS, 5)), (None, None), "a smaller call may pass");
    let ask = worker.ask(&terms, 3 * MS, 5, 5).unwrap();
    worker.answer(&terms, 3 * MS, 3 * MS, lender.lend(&mut lent, 3 * MS, ask));
    assert!(worker.spend(3 * MS, 5));
}

#[test]
fn chunks_follow_the_pace_and_idle_workers_take_none() {
    let quota: Quota = "100000/s".parse().unwrap();
    let terms = Terms::within(quota, 10_000).unwrap();
    let lender = Lender::new(quota, terms);
    for (gap, most_asks) in [(100_000, 40), (1_000_000, 40), (200 * MS, 5)] {
        let (mut lent, mut worker, mut asks) = (lender.fresh(), Borrower::default(), 0);
        let (mut lent_tokens, mut spent) = (0, 0);
        for now in (0..1_000 * MS).step_by(usize::try_from(gap).unwrap()) {
            let wants = if worker.spend(now, 1) { worker.wants_more(now).then_some(0) } else { Some(1) };
            if let Some(waiting) = wants {
                asks += 1;
                let ask = worker.ask(&terms, now, waiting, waiting).unwrap();
                let answer = lender.lend(&mut lent, now, ask);
                lent_tokens += answer.map_or(0, |loan| loan.tokens);
                worker.answer(&terms, now, now, answer);
                assert!(waiting == 0 || worker.spend(now, 1));
            }
            spent += 1;
        }
        assert!(asks <= most_asks, "a call each {gap} ns: {asks} asks");
        let left = worker.held(1_000 * MS - gap);
        // A worker that knows nothing yet takes one for a start.
        assert!(
            lent_tokens - spent - left <= lent_tokens / 10 + 1,
            "{gap}: {lent_tokens} lent, {spent} spent"
        );
    }
}
