//! Workers that lease from one shared bucket, over a network that takes time and loses answers.
//!
//! The decisions are those of `tidegate_core::lease`: a [`Lender`] for each key in the store, and a [`Borrower`] for each
//! worker and key. This moves their messages in virtual time, and counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use tidegate_core::lease::{Ask, Borrower, Lender, Lent, Loan, Returned, Terms};
use tidegate_core::{Decision, Quota};

use crate::book::{Book, nanoseconds as ns};
use crate::simulate::Settings;
use crate::tally::{LeaseTally, Tally};
use crate::{Arrivals, Over};

/// How long a worker waits for an answer, if that is less than the time to live: as long as a call to a store may take.
/// Longer would keep the calls that wait in the dark, shorter would lose the tokens of slow answers.
const ANSWER_WITHIN: u64 = 50_000_000;

/// Workers that share one bucket by leases, and what goes wrong between them.
#[derive(Debug, Clone, Copy)]
pub struct Leased {
    /// The quota of the shared bucket, or of each key's.
    pub quota: Quota,
    /// The terms, from [`Terms::within`].
    pub terms: Terms,
    /// How many workers; arrival `i` goes to worker `i mod n` (round robin).
    pub workers: usize,
    /// How long a call to the store takes, there and back; half of it is the way there.
    pub delay: Duration,
    /// How many of a million answers are lost. The store has done what it was asked by then.
    pub lost_per_million: u32,
    /// After how long, again and again, one worker crashes and comes back at once, with nothing.
    pub crash_every: Option<Duration>,
    /// The seed of what is random: which answers are lost and which worker crashes.
    pub seed: u64,
}

impl Leased {
    /// The most that the workers promise to allow beyond one bucket, where no call costs more than `most_cost`.
    #[must_use]
    pub fn promised(&self, most_cost: u64) -> u64 {
        self.terms.overshoot(self.quota, self.workers as u64, most_cost)
    }

    /// When a worker gives an answer up.
    fn answer_within(&self) -> u64 {
        let ttl = ns(self.terms.ttl());
        ANSWER_WITHIN.max(ns(self.delay).saturating_mul(2)).min(ttl)
    }
}

/// Runs `arrivals` through workers that lease. A call that a lease cannot pay waits for the store, and starts when the
/// answer comes; if none comes, it is rejected. `progress` hears now and then how many are done.
///
/// Service times and calls in flight are not simulated.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::lease::Terms;
/// use tidegate_sim::{Arrivals, Leased, Settings, simulate_leased};
///
/// // Four workers, 100 calls a second each, of a bucket for 1000 a second.
/// let arrivals = Arrivals { times: (0..4000).map(|n| n * 2_500_000).collect(), ..Arrivals::default() };
/// let quota = "1000/s".parse()?;
/// let leased = Leased {
///     quota,
///     terms: Terms::within(quota, 100).expect("100 ms"),
///     workers: 4,
///     delay: Duration::from_millis(1),
///     lost_per_million: 0,
///     crash_every: None,
///     seed: 1,
/// };
/// let tally = simulate_leased(&arrivals, &leased, &Settings::default(), &mut |_| {});
/// assert_eq!(tally.allowed, 4000);
/// assert!(tally.leases.is_some_and(|leases| leases.store_calls < 1200), "one call in four goes to the store");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[must_use]
pub fn simulate_leased(
    arrivals: &Arrivals,
    leased: &Leased,
    settings: &Settings,
    progress: &mut dyn FnMut(usize),
) -> Tally {
    let mut run = Run::new(arrivals, leased, settings);
    for (index, now) in arrivals.times.iter().copied().enumerate() {
        run.events_until(now);
        run.arrive(index, now);
        if index % (1 << 18) == 0 {
            progress(index);
        }
    }
    run.finish()
}

/// One lease: whose it is, and since which crash of the worker. What a crashed worker sent is answered to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    worker: usize,
    life: u64,
    key: usize,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// An ask reaches the store.
    Asked(Owner, u64, Ask),
    /// Its answer reaches the worker.
    Answered(Owner, u64, Ask, Result<Loan, Decision>),
    /// The worker gives the answer up.
    TooLate(Owner, u64),
    /// What is left of a lease is to be given back.
    Idle(Owner),
    /// What was given back reaches the store.
    Returned(Owner, Returned),
    /// A worker crashes.
    Crash,
}

/// An event at its time; those of one time in the order in which they were made.
#[derive(Debug)]
struct At(u64, u64, Event);

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What a worker has of one key.
#[derive(Debug, Default)]
struct Desk {
    borrower: Borrower,
    /// The arrivals that wait for the store, and their cost.
    waiting: VecDeque<usize>,
    waiting_cost: u64,
    /// When the ask under way was sent, and how many of those who wait it is for.
    asked: Option<(u64, usize)>,
    /// Whether an `Idle` is among the events.
    watched: bool,
}

#[derive(Debug, Default)]
struct Worker {
    life: u64,
    desks: BTreeMap<usize, Desk>,
}

struct Run<'a> {
    arrivals: &'a Arrivals,
    leased: &'a Leased,
    lender: Lender,
    buckets: Vec<Lent>,
    workers: Vec<Worker>,
    events: BinaryHeap<Reverse<At>>,
    made: u64,
    random: Pcg64,
    next_worker: usize,
    book: Book<'a>,
    leases: LeaseTally,
    /// Tokens charged to the buckets.
    lent: u128,
    /// For each key what was allowed beyond its bucket.
    over: Vec<Over>,
}

impl<'a> Run<'a> {
    fn new(arrivals: &'a Arrivals, leased: &'a Leased, settings: &Settings) -> Self {
        let keys = arrivals.key_count();
        let lender = Lender::new(leased.quota, leased.terms);
        let mut run = Self {
            arrivals,
            leased,
            lender,
            buckets: vec![lender.fresh(); keys],
            workers: (0..leased.workers.max(1)).map(|_| Worker::default()).collect(),
            events: BinaryHeap::new(),
            made: 0,
            random: Pcg64::seed_from_u64(leased.seed),
            next_worker: 0,
            book: Book::new(arrivals, settings),
            leases: LeaseTally::default(),
            lent: 0,
            over: vec![Over::new(leased.quota); keys],
        };
        run.crash_next(arrivals.times.first().copied().unwrap_or(0));
        run
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.push(Reverse(At(time, self.made, event)));
        self.made += 1;
    }

    /// Lets everything happen that is due by `now`, each at its own instant.
    fn events_until(&mut self, now: u64) {
        while self.events.peek().is_some_and(|Reverse(At(time, ..))| *time <= now) {
            if let Some(Reverse(At(time, _, event))) = self.events.pop() {
                self.happen(time, event);
            }
        }
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Asked(owner, asked_at, ask) => {
                if let Some(returned) = ask.returned {
                    self.take_back(owner, now, returned);
                }
                let ask = Ask { returned: None, ..ask };
                let answer = self.lender.lend(&mut self.buckets[owner.key], now, ask);
                self.lent += answer.as_ref().map_or(0, |loan| u128::from(loan.tokens));
                if self.random.random_range(0..1_000_000) < self.leased.lost_per_million {
                    self.leases.lost_answers += 1;
                } else {
                    let back = ns(self.leased.delay).div_ceil(2);
                    self.at(now.saturating_add(back), Event::Answered(owner, asked_at, ask, answer));
                }
            }
            Event::Answered(owner, asked_at, ask, answer) => {
                self.answered(owner, now, asked_at, ask, answer);
            }
            Event::TooLate(owner, asked_at) => {
                let Some(desk) = self.desk(owner) else { return };
                if desk.asked.is_some_and(|(at, _)| at == asked_at) {
                    desk.asked = None;
                    desk.borrower.give_up();
                    self.leases.unanswered += self.reject_waiting(owner);
                }
            }
            Event::Idle(owner) => self.idle(owner, now),
            Event::Returned(owner, returned) => self.take_back(owner, now, returned),
            Event::Crash => self.crash(now),
        }
    }

    /// The desk of a worker that has not crashed since.
    fn desk(&mut self, owner: Owner) -> Option<&mut Desk> {
        let worker = &mut self.workers[owner.worker];
        if worker.life == owner.life { worker.desks.get_mut(&owner.key) } else { None }
    }

    fn arrive(&mut self, index: usize, now: u64) {
        let worker = self.next_worker;
        self.next_worker = if worker + 1 == self.workers.len() { 0 } else { worker + 1 };
        let (key, cost) = (self.arrivals.key(index), self.arrivals.cost(index));
        let owner = Owner { worker, life: self.workers[worker].life, key };
        let desk = self.workers[worker].desks.entry(key).or_default();
        if desk.waiting.is_empty() {
            if desk.borrower.spend(now, cost) {
                self.allow(index, now);
                self.ask(owner, now);
                return;
            }
            if desk.borrower.refusal(now, cost).is_some() {
                self.book.reject(index, false);
                return;
            }
        }
        desk.waiting.push_back(index);
        desk.waiting_cost = desk.waiting_cost.saturating_add(cost);
        self.ask(owner, now);
    }

    /// Asks the store if somebody waits, or if it is time to.
    fn ask(&mut self, owner: Owner, now: u64) {
        let (arrivals, leased) = (self.arrivals, self.leased);
        let Some(desk) = self.desk(owner) else { return };
        let first = desk.waiting.front().map_or(0, |index| arrivals.cost(*index));
        if first == 0 && !desk.borrower.wants_more(now) {
            return;
        }
        let held = desk.borrower.held(now);
        let Some(ask) = desk.borrower.ask(&leased.terms, now, first, desk.waiting_cost) else { return };
        let mut room = held.saturating_add(ask.waiting);
        let fits = |index: &&usize| {
            let left = room.checked_sub(arrivals.cost(**index));
            room = left.unwrap_or(0);
            left.is_some()
        };
        desk.asked = Some((now, desk.waiting.iter().take_while(fits).count()));
        self.leases.store_calls += 1;
        self.at(now.saturating_add(ns(leased.delay) / 2), Event::Asked(owner, now, ask));
        self.at(now.saturating_add(leased.answer_within()), Event::TooLate(owner, now));
    }

    fn answered(&mut self, owner: Owner, now: u64, asked_at: u64, ask: Ask, answer: Result<Loan, Decision>) {
        let leased = self.leased;
        let Some(desk) = self.desk(owner) else { return };
        let Some((_, asked)) = desk.asked.filter(|(at, _)| *at == asked_at) else { return };
        desk.asked = None;
        desk.borrower.answer(&leased.terms, now, asked_at, answer);
        // Where the bucket had less than what waited, it is empty: who was asked for and cannot be paid is rejected.
        let short = answer.map_or(true, |loan| loan.tokens < ask.waiting);
        let never = matches!(answer, Err(Decision::Never { .. }));
        for nth in 0..if short { asked.max(1) } else { 0 } {
            let Some(index) = self.next_waiting(owner) else { break };
            let cost = self.arrivals.cost(index);
            if self.desk(owner).is_some_and(|desk| desk.borrower.spend(now, cost)) {
                self.allow(index, now);
            } else {
                self.book.reject(index, never && nth == 0);
            }
        }
        self.serve(owner, now);
        self.watch(owner, now);
    }

    /// Decides the calls that wait, as far as is known without the store, and asks for the rest.
    fn serve(&mut self, owner: Owner, now: u64) {
        loop {
            let arrivals = self.arrivals;
            let Some(desk) = self.desk(owner) else { return };
            let Some(&index) = desk.waiting.front() else { break };
            let cost = arrivals.cost(index);
            if desk.borrower.spend(now, cost) {
                self.next_waiting(owner);
                self.allow(index, now);
            } else if desk.borrower.refusal(now, cost).is_some() {
                self.next_waiting(owner);
                self.book.reject(index, false);
            } else {
                break;
            }
        }
        self.ask(owner, now);
    }

    fn next_waiting(&mut self, owner: Owner) -> Option<usize> {
        let arrivals = self.arrivals;
        let desk = self.desk(owner)?;
        let index = desk.waiting.pop_front()?;
        desk.waiting_cost = desk.waiting_cost.saturating_sub(arrivals.cost(index));
        Some(index)
    }

    fn reject_waiting(&mut self, owner: Owner) -> u64 {
        let mut rejected = 0;
        while let Some(index) = self.next_waiting(owner) {
            self.book.reject(index, false);
            rejected += 1;
        }
        rejected
    }

    /// Sees to it that what is not spent is given back in time.
    fn watch(&mut self, owner: Owner, now: u64) {
        let terms = self.leased.terms;
        let Some(desk) = self.desk(owner) else { return };
        if desk.watched {
            return;
        }
        if let Some(at) = desk.borrower.return_at(&terms) {
            desk.watched = true;
            self.at(at.max(now), Event::Idle(owner));
        }
    }

    fn idle(&mut self, owner: Owner, now: u64) {
        let terms = self.leased.terms;
        let Some(desk) = self.desk(owner) else { return };
        desk.watched = false;
        if desk.borrower.return_at(&terms).is_some_and(|at| at <= now)
            && let Some(returned) = desk.borrower.give_back(now)
        {
            self.leases.store_calls += 1;
            let there = now.saturating_add(ns(self.leased.delay) / 2);
            self.at(there, Event::Returned(owner, returned));
        }
        self.watch(owner, now);
    }

    fn take_back(&mut self, owner: Owner, now: u64, returned: Returned) {
        let taken = self.lender.take_back(&mut self.buckets[owner.key], now, returned);
        self.leases.returned += u128::from(taken);
    }

    fn crash(&mut self, now: u64) {
        self.leases.crashes += 1;
        let worker = self.random.random_range(0..self.workers.len());
        let life = self.workers[worker].life;
        let keys: Vec<usize> = self.workers[worker].desks.keys().copied().collect();
        for key in keys {
            self.leases.unanswered += self.reject_waiting(Owner { worker, life, key });
        }
        self.workers[worker] = Worker { life: life + 1, desks: BTreeMap::new() };
        self.crash_next(now);
    }

    /// The next crash, if anybody still calls then.
    fn crash_next(&mut self, now: u64) {
        let last = self.arrivals.times.last().copied().unwrap_or(0);
        if let Some(next) = self.leased.crash_every.and_then(|every| now.checked_add(ns(every)))
            && next <= last
        {
            self.at(next, Event::Crash);
        }
    }

    fn allow(&mut self, index: usize, now: u64) {
        self.over[self.arrivals.key(index)].add(now, self.arrivals.cost(index));
        self.book.allow(index, now);
    }

    fn finish(mut self) -> Tally {
        self.events_until(u64::MAX);
        let mut tally = self.book.finish();
        tally.over = self.over.iter().map(Over::most).max();
        self.leases.lost = self.lent - self.leases.returned - tally.allowed_cost;
        tally.leases = Some(self.leases);
        tally
    }
}
