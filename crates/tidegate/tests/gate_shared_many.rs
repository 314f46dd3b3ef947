//! Several gates on one bucket that is some way off: together they obey its quota, and none waits for ever.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the tests of one gate use all of it")]
mod task;

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use task::Task;
use tidegate::clock::ManualClock;
use tidegate::shared::{
    Deciding, Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, Told, Unanswered, Unsuited,
};
use tidegate::{Algorithm, Gate, State, Step as _};

const SEED: u64 = 7;
const US: u64 = 1_000;
const STEP: Duration = Duration::from_micros(100);

/// The bucket, and who is on the way to it or back.
#[derive(Debug, Default)]
struct World {
    state: Option<State>,
    charged: Vec<(u64, u64)>,
    asked: usize,
    under_way: Vec<(u64, Waker)>,
}

/// The way of one gate to the bucket: a half of the trip, in nanoseconds, and up to as much again.
#[derive(Debug)]
struct Way {
    clock: ManualClock,
    world: Arc<Mutex<World>>,
    half_trip: u64,
    random: Mutex<Pcg32>,
    /// How many of 16 answers are lost.
    lost: u32,
}

impl SharedBuckets for Way {
    fn accepts(&self, _: &str, _: &Algorithm) -> Result<(), Unsuited> {
        Ok(())
    }

    fn spans_keys(&self) -> bool {
        true
    }

    fn decide(&self, call: SharedCall) -> Deciding {
        let (clock, world) = (self.clock.clone(), Arc::clone(&self.world));
        let mut random = self.random.lock().unwrap();
        let mut half = || self.half_trip + u64::from(random.next_u32()) % self.half_trip;
        let there = clock.now_ns() + half();
        let back = there + half();
        let is_lost = random.next_u32() % 16 < self.lost;
        world.lock().unwrap().asked += 1;
        let mut told = None;
        Box::pin(std::future::poll_fn(move |context| {
            let now = clock.now_ns();
            let mut world = world.lock().unwrap();
            if told.is_none() && now >= there {
                let take = &call.takes[0];
                let state = world.state.take().unwrap_or_else(|| take.algorithm.fresh());
                let (state, decision) = take.algorithm.step(state, now, take.cost);
                if decision.is_allowed() {
                    world.charged.push((now, take.cost));
                }
                told = Some(Told { decision, left: Some(take.algorithm.look(&state, now, 0)) });
                world.state = Some(state);
            }
            if now < back {
                let next = if told.is_none() { there } else { back };
                world.under_way.push((next, context.waker().clone()));
                return Poll::Pending;
            }
            if is_lost {
                return Poll::Ready(Err(Unanswered { retry_after: Duration::from_millis(3) }));
            }
            Poll::Ready(Ok(SharedAnswer { each: vec![told], made: Made::Exact }))
        }))
    }
}

/// What came of a run of gates that always have three calls of a cost waiting: when each granted, what was charged, and how many
/// questions there were.
struct Run {
    granted: Vec<Vec<u64>>,
    charged: Vec<(u64, u64)>,
    asked: usize,
}

/// `gates`: the half trip in microseconds, the cost of a call, and how many of 16 answers are lost.
fn run(quota: &str, gates: &[(u64, u64, u32)], span: Duration) -> Run {
    let clock = ManualClock::new();
    let world = Arc::new(Mutex::new(World::default()));
    let gates = gates.iter().zip(SEED..).map(|(&(half_trip, cost, lost), seed)| {
        let random = Mutex::new(Pcg32::seed_from_u64(seed));
        let way =
            Way { clock: clock.clone(), world: Arc::clone(&world), half_trip: half_trip * US, random, lost };
        let builder = Gate::builder(quota.parse().unwrap()).clock(&clock);
        let gate = builder.shared(Arc::new(way), "calls", "api", OnFailure::Closed).build().unwrap();
        (gate, cost)
    });
    let gates: Vec<_> = gates.collect();
    let ask = |gate: &Gate, cost: u64| {
        let gate = gate.clone();
        let mut task = Task::new(async move { gate.acquire(cost).await });
        assert!(task.poll().is_pending());
        task
    };
    let mut tasks: Vec<Vec<_>> =
        gates.iter().map(|(gate, cost)| (0..3).map(|_| ask(gate, *cost)).collect()).collect();
    let mut granted = vec![Vec::new(); gates.len()];
    while clock.now_ns() < u64::try_from(span.as_nanos()).unwrap() {
        clock.advance(STEP);
        let now = clock.now_ns();
        let (due, later) = std::mem::take(&mut world.lock().unwrap().under_way)
            .into_iter()
            .partition::<Vec<_>, _>(|(at, _)| *at <= now);
        world.lock().unwrap().under_way.extend(later);
        due.into_iter().for_each(|(_, waker)| waker.wake());
        clock.advance(Duration::ZERO);
        for (index, tasks) in tasks.iter_mut().enumerate() {
            for task in tasks {
                if task.wakes() > 0 && task.granted().is_some() {
                    granted[index].push(now);
                    *task = ask(&gates[index].0, gates[index].1);
                }
            }
        }
    }
    let world = world.lock().unwrap();
    Run { granted, charged: world.charged.clone(), asked: world.asked }
}

/// In any interval of length `t`, at most `burst + rate * t`.
fn check_bound(costs: &[(u64, u64)], burst: u64, per_second: u64, late: u64) {
    for (index, (first, _)) in costs.iter().enumerate() {
        let mut total = 0;
        for (last, cost) in &costs[index..] {
            total += cost;
            let span = last - first + late;
            let most = burst * 1_000_000_000 + per_second * span;
            assert!(total * 1_000_000_000 <= most, "{total} in {span} ns");
        }
    }
}

/// The longest time between two grants.
fn longest_gap(granted: &[u64]) -> u64 {
    granted.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

#[test]
fn gates_obey_one_quota_and_each_has_its_turn_however_far_it_is() {
    let (near, far) = (300, 600);
    let run = run("50/s burst 1", &[(near, 1, 0), (near, 1, 0), (far, 1, 0)], Duration::from_secs(3));
    check_bound(&run.charged, 1, 50, 0);
    let mut granted: Vec<_> = run.granted.concat().into_iter().map(|at| (at, 1)).collect();
    granted.sort_unstable();
    // A grant is later than its charge by half of a trip.
    check_bound(&granted, 1, 50, 2 * far * US + 100 * US);
    assert!(granted.len() > 3 * 50 * 9 / 10, "{} granted", granted.len());
    for granted in &run.granted {
        // Everybody would have each third: 60 ms.
        assert!(longest_gap(granted) < 1_000_000_000, "{} ns", longest_gap(granted));
        assert!(granted.len() > 12, "{}", granted.len());
    }
    // Each token is asked for by the three, and seldom twice.
    assert!(run.asked < granted.len() * 5, "{} questions for {} grants", run.asked, granted.len());
}

#[test]
fn gates_whose_answers_are_lost_obey_the_quota_and_go_on() {
    let run = run("200/s burst 20", &[(300, 2, 4), (600, 2, 4)], Duration::from_secs(2));
    check_bound(&run.charged, 20, 200, 0);
    let granted: Vec<usize> = run.granted.iter().map(Vec::len).collect();
    assert!(granted.iter().all(|granted| *granted > 20), "{granted:?}");
    // What was charged for a lost answer is granted to nobody.
    let charged: u64 = run.charged.iter().map(|(_, cost)| cost).sum();
    assert!(u64::try_from(2 * (granted[0] + granted[1])).unwrap() <= charged);
}
