//! One bucket under threads, exact and by leases.

#![expect(clippy::unwrap_used, reason = "the quotas of these tests are legal")]

use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::algorithm::TokenBucket;
use tidegate::clock::ManualClock;
use tidegate::{Bucket, LeasedBucket, Quota, Step};

/// The second needs more than 64 bits, and takes a lock.
const QUOTAS: [&str; 2] = ["1 per 36500d burst 1000", "1000000007 per 36500d burst 1000"];

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

#[test]
fn threads_at_one_instant_are_allowed_exactly_the_burst() {
    for text in QUOTAS {
        for _ in 0..20 {
            let bucket = Bucket::with_clock(quota(text), ManualClock::new());
            let allowed: usize = thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| (0..400).filter(|_| bucket.check().is_allowed()).count()))
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(allowed, 1000, "{text}");
        }
    }
}

#[test]
fn a_look_charges_nothing() {
    let bucket = Bucket::with_clock(quota("1/hour burst 3"), ManualClock::new());
    assert_eq!(bucket.peek(2).remaining(), 1);
    assert_eq!(bucket.check_n(3).remaining(), 0);
    assert_eq!(bucket.peek(0).remaining(), 0);
}

proptest! {
    #[test]
    fn one_bucket_decides_as_the_pure_step_does(
        count in 1_u64..50, per in 1_u64..1000, burst in 1_u64..200, wide in any::<bool>(),
        calls in proptest::collection::vec((0_u64..400, 0_u64..8), 1..200),
    ) {
        // A count that shares no factor with the period makes units that do not fit 64 bits.
        let count = if wide { 1_000_000_007 } else { count };
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap();
        let (bucket, pure) = (Bucket::with_clock(quota, ManualClock::new()), TokenBucket::new(quota));
        let (mut state, mut now) = (pure.fresh(), 0);
        for (gap, cost) in calls {
            now += gap;
            let expected;
            (state, expected) = pure.step(state, now, cost);
            prop_assert_eq!(bucket.check_at(cost, now), expected);
        }
    }

    #[test]
    fn leased_buckets_keep_the_overshoot_in_any_interval(
        count in 1_u64..50, per in 1_u64..1000, burst in 1_u64..200,
        handles in 1_u64..5, overshoot in 0_u64..60, ttl in 1_u64..500,
        calls in proptest::collection::vec((0_usize..5, 0_u64..40, 0_u64..4), 1..300),
    ) {
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap();
        let pure = TokenBucket::new(quota);
        let ttl = Duration::from_nanos(ttl);
        let bucket = LeasedBucket::with_clock(quota, overshoot, handles, ttl, ManualClock::new());
        let mut held: Vec<_> = (0..handles).map(|_| bucket.handle().unwrap()).collect();
        prop_assert!(bucket.handle().is_none(), "as many as were agreed");
        let (mut now, mut allowed) = (0, Vec::new());
        for (handle, gap, cost) in calls {
            now += gap;
            let handle = handle % held.len();
            if held[handle].check_at(cost, now).is_allowed() {
                allowed.push((now, cost));
            }
        }
        for (from, &(start, _)) in allowed.iter().enumerate() {
            let mut cost = 0;
            for &(end, spent) in &allowed[from..] {
                cost += u128::from(spent);
                let bound = pure.bound(Duration::from_nanos(end - start)).unwrap();
                let extra = if start == 0 { 0 } else { u128::from(overshoot) };
                prop_assert!(cost <= bound + extra, "{} in {}..={}, {}", cost, start, end, bound);
            }
        }
    }
}

#[test]
fn leased_threads_are_allowed_no_more_than_the_burst_when_nothing_comes() {
    for text in QUOTAS {
        let clock = ManualClock::new();
        let bucket = LeasedBucket::with_clock(quota(text), 40, 4, Duration::from_secs(1), &clock);
        let allowed: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let mut handle = bucket.handle().unwrap();
                    scope.spawn(move || (0..1000).filter(|_| handle.check().is_allowed()).count())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // Every chunk is spent to the end, since each thread goes on until the bucket is empty.
        assert_eq!(allowed, 1000, "{text}");
        assert!(bucket.handle().is_some(), "a dropped handle gives its place back");
    }
}

#[test]
fn a_lease_that_cannot_be_spent_is_not_taken() {
    let clock = ManualClock::new();
    for ttl in [Duration::ZERO, Duration::from_secs(1)] {
        let bucket = LeasedBucket::with_clock(quota("1000/s"), 100, 1, ttl, &clock);
        let mut handle = bucket.handle().unwrap();
        // A call that costs nothing takes nothing.
        assert!(handle.check_at(0, 0).is_allowed());
        assert_eq!(bucket.bucket().peek(0).remaining(), 1000);
    }
    // What lives for no time could not be spent: no call takes more than its cost.
    let bucket = LeasedBucket::with_clock(quota("1000/s"), 100, 1, Duration::ZERO, &clock);
    let mut handle = bucket.handle().unwrap();
    assert_eq!((0..2000).filter(|_| handle.check().is_allowed()).count(), 1000);
}
