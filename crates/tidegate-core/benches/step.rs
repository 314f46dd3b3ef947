//! One decision: how long a step takes, beside a bare compare-and-add of the same width in the same run.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Algorithm, Kind, Quota, Step};

/// `3/s` in nanoseconds per call and a little more, so that each call is allowed.
const ALLOWED_EVERY: u64 = 333_333_334;

fn quota() -> Quota {
    black_box(Quota::new(3, Duration::from_secs(1)).unwrap_or_else(|error| panic!("{error}")))
}

/// A nanosecond, so that for a third of a billion calls each is rejected.
const REJECTED_EVERY: u64 = 1;

/// What any limiter with one number must do: compare the state with a limit, and add a cost to it.
fn compare_and_add(criterion: &mut Criterion) {
    let (cost, tolerance) = (black_box(333_333_333_u128), black_box(1_000_000_000_u128));
    criterion.bench_function("step/compare_and_add/u128", |bencher| {
        let (mut state, mut now) = (0_u128, 0_u64);
        bencher.iter(|| {
            now = now.wrapping_add(ALLOWED_EVERY);
            let next = state.max(u128::from(now)).wrapping_add(cost);
            let allowed = next.wrapping_sub(u128::from(now)) <= tolerance;
            if allowed {
                state = next;
            }
            allowed
        });
    });
}

/// A step with the state in a local and time going on; the first calls use up what a fresh state allows.
fn bench_step<A: Step>(criterion: &mut Criterion, name: &str, limiter: &A, every: u64) {
    criterion.bench_function(name, |bencher| {
        let (mut state, mut now) = (limiter.fresh(), 0_u64);
        for _ in 0..3 {
            limiter.charge(&mut state, now, 1);
        }
        bencher.iter(|| {
            now = now.wrapping_add(every);
            // Looking and charging in place is what `step` does with a state that it owns.
            let allowed = limiter.look(&state, now, 1).is_allowed();
            if allowed {
                limiter.charge(&mut state, now, 1);
            }
            allowed
        });
    });
}

fn token_bucket(criterion: &mut Criterion) {
    let bucket = TokenBucket::new(quota());
    bench_step(criterion, "token_bucket/allowed", &bucket, ALLOWED_EVERY);
    bench_step(criterion, "token_bucket/rejected", &bucket, REJECTED_EVERY);
}

fn each_algorithm(criterion: &mut Criterion) {
    for &kind in Kind::ALL {
        let algorithm = Algorithm::new(kind, quota());
        bench_step(criterion, &format!("algorithm/{kind}/allowed"), &algorithm, ALLOWED_EVERY);
        if kind != Kind::Unlimited {
            bench_step(criterion, &format!("algorithm/{kind}/rejected"), &algorithm, REJECTED_EVERY);
        }
    }
}

criterion_group!(benches, compare_and_add, token_bucket, each_algorithm);
criterion_main!(benches);
