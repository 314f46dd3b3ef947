//! Workers that spend leases of one bucket: the overshoot that was promised, and none near empty.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::algorithm::token_bucket::Tat;
use tidegate_core::lease::{Lease, Terms};
use tidegate_core::{Quota, Step};

/// One bucket and the leases of its workers.
struct World {
    bucket: TokenBucket,
    state: Tat,
    terms: Terms,
    leases: Vec<Lease>,
    /// Time and cost of what was allowed.
    allowed: Vec<(u64, u64)>,
}

impl World {
    fn new(quota: Quota, overshoot: u64, workers: usize, ttl: u64) -> Self {
        let bucket = TokenBucket::new(quota);
        Self {
            bucket,
            state: bucket.fresh(),
            terms: Terms::new(overshoot, workers as u64, Duration::from_nanos(ttl)),
            leases: vec![Lease::default(); workers],
            allowed: Vec::new(),
        }
    }

    /// One call by one worker; whether it is allowed.
    fn call(&mut self, worker: usize, now: u64, cost: u64) -> bool {
        let lease = &mut self.leases[worker];
        let mut allowed = lease.spend(now, cost);
        if !allowed && self.bucket.look(&self.state, now, cost).is_allowed() {
            let level = self.bucket.look(&self.state, now, 0).remaining();
            let asked = self.terms.ask(level, cost);
            let decision;
            (self.state, decision) = self.bucket.step(self.state, now, asked);
            assert!(decision.is_allowed(), "no more is asked than is there");
            if asked > cost {
                lease.renew(&self.terms, now, asked - cost);
            }
            allowed = true;
        }
        if allowed {
            self.allowed.push((now, cost));
        }
        allowed
    }
}

proptest! {
    #[test]
    fn leases_allow_no_more_than_the_overshoot_in_any_interval(
        count in 1_u64..50, per in 1_u64..1000, burst in 1_u64..200,
        workers in 1_usize..5, overshoot in 0_u64..60, ttl in 1_u64..500,
        calls in proptest::collection::vec((0_usize..5, 0_u64..40, 0_u64..4), 1..300),
    ) {
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap();
        let mut world = World::new(quota, overshoot, workers, ttl);
        let mut now = 0;
        for (worker, gap, cost) in calls {
            now += gap;
            world.call(worker % workers, now, cost);
        }
        let held = world.terms.chunk() * workers as u64;
        prop_assert!(held <= overshoot);
        for (from, &(start, _)) in world.allowed.iter().enumerate() {
            let mut cost = 0;
            for &(end, spent) in &world.allowed[from..] {
                cost += u128::from(spent);
                let bound = world.bucket.bound(Duration::from_nanos(end - start)).unwrap();
                let extra = if start == 0 { 0 } else { u128::from(held) };
                prop_assert!(cost <= bound + extra, "{cost} in {start}..={end}, {bound} and {extra}");
            }
        }
    }
}

#[test]
fn leases_reach_the_overshoot_that_is_promised() {
    // Every worker takes a chunk at 0 and holds it until the bucket is full again: all of it is spent beside a burst.
    let mut world = World::new("1/ns burst 1000".parse().unwrap(), 40, 4, 1001);
    for worker in 0..4 {
        assert!(world.call(worker, 0, 1));
    }
    let before = world.allowed.len();
    while (0..4).any(|worker| world.call(worker, 1000, 1)) {}
    assert_eq!(world.allowed.len() - before, 1000 + 40);
}

#[test]
fn near_empty_every_call_asks() {
    let mut world = World::new("1 per 36500d burst 100".parse().unwrap(), 40, 4, u64::MAX);
    while (0..4).any(|worker| world.call(worker, 0, 1)) {}
    // Nothing was left in a lease when the bucket was empty: exactly the burst.
    assert_eq!(world.allowed.len(), 100);
    assert!(world.leases.iter().all(|lease| lease.left() == 0));
}
