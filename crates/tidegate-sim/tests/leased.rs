//! Workers that lease, on random traffic over a bad network: the overshoot that is promised, and nothing else lost.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::lease::Terms;
use tidegate_core::{Algorithm, Kind, Limit, Mode, Quota};
use tidegate_sim::{
    Arrivals, Costs, Leased, OneBucket, Settings, SimLimit, Tally, Workers, simulate, simulate_leased,
};

const MS: u64 = 1_000_000;

fn leased(quota: Quota, overshoot: u64, workers: usize) -> Leased {
    Leased {
        quota,
        terms: Terms::within(quota, overshoot).unwrap(),
        workers,
        delay: Duration::from_millis(1),
        lost_per_million: 0,
        crash_every: None,
        seed: 1,
    }
}

fn run(arrivals: &Arrivals, leased: &Leased) -> Tally {
    simulate_leased(arrivals, leased, &Settings::default(), &mut |_| {})
}

/// The same arrivals through buckets, one for all workers or one for each.
fn buckets(arrivals: &Arrivals, quota: Quota, n: usize) -> Tally {
    let algorithm = Algorithm::new(Kind::TokenBucket, quota);
    let limit = Limit { name: "bucket".into(), algorithm, mode: Mode::Enforce };
    let limits = vec![SimLimit { limit, per_key: false, max_in_flight: None, overrides: Default::default() }];
    let one_bucket = Some(OneBucket { quota, per_key: false });
    let settings = Settings { one_bucket, ..Settings::default() };
    simulate(arrivals, &Workers { limits: vec![limits; n] }, &settings, &mut |_| {})
}

fn steady(gap: u64, n: u64) -> Arrivals {
    Arrivals { times: (0..n).map(|index| index * gap).collect(), ..Arrivals::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_traffic_over_a_bad_network_stays_within_the_overshoot(
        rate in 20_u64..3000, burst in 1_u64..300, overshoot in 1_u64..100, workers in 1_usize..12,
        delay in 0_u64..40 * MS, lost in 0_u32..300_000, crash in prop::option::of(1_u64..200), seed: u64,
        calls in proptest::collection::vec((prop_oneof![4 => Just(0), 4 => 0..4 * MS, 1 => 0..200 * MS], 0_u64..5), 1..400),
    ) {
        let quota = Quota::new(rate, Duration::from_secs(1)).unwrap().with_burst(burst).unwrap();
        prop_assume!(Terms::within(quota, overshoot).is_some());
        let setup = Leased {
            delay: Duration::from_nanos(delay),
            lost_per_million: lost,
            crash_every: crash.map(Duration::from_millis),
            seed,
            ..leased(quota, overshoot, workers)
        };
        let mut now = 0;
        let times = calls.iter().map(|(gap, _)| { now += gap; now }).collect();
        let costs: Vec<u64> = calls.iter().map(|(_, cost)| *cost).collect();
        let most_cost = costs.iter().copied().max().unwrap();
        let arrivals = Arrivals { times, costs: Costs::Each(costs), keys: None };
        let tally = run(&arrivals, &setup);
        prop_assert_eq!(tally.allowed + tally.rejected, arrivals.len() as u64);
        prop_assert!(tally.over.unwrap() <= u128::from(setup.promised(most_cost).min(overshoot)));
        let leases = tally.leases.unwrap();
        prop_assert!(leases.unanswered <= tally.rejected);
        if lost == 0 && crash.is_none() && delay * 2 < u64::try_from(setup.terms.ttl().as_nanos()).unwrap() {
            prop_assert_eq!((leases.lost_answers, leases.crashes, leases.unanswered), (0, 0, 0));
        }
        prop_assert_eq!(run(&arrivals, &setup), tally, "the same seed gives the same run");
    }
}

#[test]
fn leases_allow_what_one_bucket_allows_with_few_calls_to_the_store() {
    // 900 calls a second of 1000 that are allowed, by ten workers.
    let quota: Quota = "1000/s".parse().unwrap();
    let arrivals = steady(1_111_111, 9000);
    let tally = run(&arrivals, &leased(quota, 200, 10));
    assert_eq!((tally.allowed, tally.over), (9000, Some(0)));
    let leases = tally.leases.unwrap();
    assert!(leases.store_calls * 3 < 9000, "{leases:?}");

    // Twice as many as are allowed: near empty, the decisions are those of the bucket.
    let arrivals = steady(500_000, 20_000);
    let (tally, one) = (run(&arrivals, &leased(quota, 50, 10)), buckets(&arrivals, quota, 1));
    assert!(
        tally.allowed.abs_diff(one.allowed) * 100 <= one.allowed,
        "{} and {}",
        tally.allowed,
        one.allowed
    );
    assert!(tally.over <= Some(50));
}

#[test]
fn the_check_sees_copies() {
    let quota: Quota = "1000/s burst 100".parse().unwrap();
    let arrivals = steady(100_000, 10_000);
    assert_eq!(buckets(&arrivals, quota, 1).over, Some(0));
    assert!(buckets(&arrivals, quota, 4).over > Some(300));
}

#[test]
fn what_a_crash_loses_is_a_lease_and_answers_that_are_lost_reject_those_who_waited() {
    let quota: Quota = "1000/s".parse().unwrap();
    let arrivals = steady(2 * MS, 5000);
    let calm = leased(quota, 100, 4);
    let base = run(&arrivals, &calm).leases.unwrap();
    let crashing = Leased { crash_every: Some(Duration::from_millis(100)), ..calm };
    let tally = run(&arrivals, &crashing).leases.unwrap();
    assert_eq!(tally.crashes, 99);
    assert!(tally.lost > base.lost);
    let each = u128::from(calm.terms.chunk());
    assert!(tally.lost <= base.lost + u128::from(tally.crashes) * each, "{tally:?}, {base:?}");

    let losing = Leased { lost_per_million: 100_000, ..calm };
    let tally = run(&arrivals, &losing);
    let leases = tally.leases.unwrap();
    assert!(leases.lost_answers > 0 && leases.unanswered > 0);
    // There were tokens for all: who was rejected waited for an answer that did not come.
    assert_eq!(tally.rejected, leases.unanswered);
}
