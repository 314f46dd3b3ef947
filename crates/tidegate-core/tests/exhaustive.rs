//! All inputs of small worlds: every answer equals the reference, and the worst case is what each file says it is.
//!
//! A world is a quota of at most three tokens in at most four nanoseconds. A call that changes no state needs no call
//! after it: what could follow follows without it too. So a sequence is some charges and one call of any kind.

use std::time::Duration;

use tidegate_core::algorithm::LeakyBucket;
use tidegate_core::{Algorithm, Decision, Kind, Quota, Step};

use crate::model::choices::Choices;
use crate::model::{Model, Small, Subject};

fn small_quota(choices: &mut Choices, burst_most: u64) -> Quota {
    let (count, per) = (choices.between(1, 3), choices.between(1, 4));
    let quota = Quota::new(count, Duration::from_nanos(per)).unwrap();
    quota.with_burst(choices.between(1, burst_most)).unwrap()
}

/// Up to `length` calls in the first two windows and an instant, in any order of time, each costing 0 to 4.
fn check_all_calls(choices: &mut Choices, subject: &Subject, length: u64) {
    let algorithm = subject.algorithm();
    let (mut state, mut latest) = (algorithm.fresh(), 0);
    let mut model: Model<Small> = subject.model();
    let (last, mut told) = (2 * subject.quota.per_ns().get(), Vec::new());
    for _ in 0..length {
        let (now, cost) = (choices.between(0, last), choices.between(0, 4));
        told.push((now, cost));
        let (next, decision) = algorithm.step(state.clone(), now, cost);
        assert_eq!(decision, model.step(now, cost), "{subject:?}: {told:?}");
        if now < latest {
            assert_eq!(next, algorithm.step(state, latest, cost).0, "{subject:?}: {told:?}");
            return;
        }
        if next == state {
            return check_wait(subject, &model, &decision, now, cost);
        }
        (state, latest) = (next, now);
    }
}

/// The wait of the reference itself, by trying each nanosecond.
fn check_wait(subject: &Subject, model: &Model<Small>, decision: &Decision, now: u64, cost: u64) {
    if let Some(wait) = decision.retry_after() {
        let first = (now..).find(|later| model.look(*later, cost).is_allowed());
        assert_eq!(first.map(|first| u128::from(first - now)), Some(wait.as_nanos()), "{subject:?} at {now}");
    }
}

fn check_kind(kind: Kind, length: u64, burst_most: u64) {
    let runs = Choices::all(|choices| {
        let subject = Subject::new(kind, small_quota(choices, burst_most));
        check_all_calls(choices, &subject, length);
    });
    assert!(runs > 1000, "{runs}");
}

#[test]
fn fixed_window_in_all_small_worlds() {
    check_kind(Kind::FixedWindow, 4, 1);
}

#[test]
fn sliding_window_in_all_small_worlds() {
    check_kind(Kind::SlidingWindow, 4, 1);
}

#[test]
fn sliding_log_in_all_small_worlds() {
    check_kind(Kind::SlidingLog, 4, 1);
}

#[test]
fn token_bucket_in_all_small_worlds() {
    check_kind(Kind::TokenBucket, 4, 3);
}

#[test]
fn unlimited_in_a_small_world() {
    Choices::all(|choices| {
        check_all_calls(choices, &Subject::new(Kind::Unlimited, "1/ns".parse().unwrap()), 2);
    });
}

#[test]
fn leaky_bucket_in_all_small_worlds() {
    Choices::all(|choices| {
        let quota = small_quota(choices, 2);
        let queue = choices.between(0, 2);
        let max_wait = choices.between(0, 2).checked_sub(1).map(Duration::from_nanos);
        check_all_calls(choices, &Subject::queued(quota, queue, max_wait), 3);
    });
}

/// The most cost that starts in any half-open window of the length of the period, over all that callers can do:
/// at each nanosecond of some windows, any number of unit calls that is allowed.
fn worst_window(algorithm: &Algorithm, quota: Quota, windows: u64) -> u64 {
    let per = quota.per_ns().get();
    let mut worst = 0;
    Choices::all(|choices| {
        let (mut state, mut starts) = (algorithm.fresh(), Vec::new());
        for now in 0..windows * per {
            while choices.between(0, 1) == 1 {
                let (next, decision) = algorithm.step(state, now, 1);
                state = next;
                if !decision.is_allowed() {
                    // One call more than is allowed is as good as none more.
                    return;
                }
                starts.push(u128::from(now) + decision.start_after().as_nanos());
            }
        }
        for from in 0..u128::from(windows * per) {
            let inside = starts.iter().filter(|start| (from..from + u128::from(per)).contains(start));
            worst = worst.max(inside.count() as u64);
        }
    });
    let bound = algorithm.bound(Duration::from_nanos(per - 1)).unwrap();
    assert!(u128::from(worst) <= bound, "{worst} of at most {bound}: {quota}");
    worst
}

fn check_worst(kind: Kind, claim: impl Fn(u64, u64) -> u64) {
    Choices::all(|choices| {
        let quota = small_quota(choices, 1);
        let worst = worst_window(&Algorithm::new(kind, quota), quota, 3);
        let claimed = claim(quota.count(), quota.per_ns().get());
        assert_eq!(worst, claimed, "{kind} {quota}");
    });
}

#[test]
fn fixed_window_worst_case_is_twice_the_count() {
    // A window of one nanosecond is one instant, and no boundary is inside.
    check_worst(Kind::FixedWindow, |count, per| if per == 1 { count } else { 2 * count });
}

#[test]
fn sliding_log_worst_case_is_the_count() {
    check_worst(Kind::SlidingLog, |count, _| count);
}

#[test]
fn token_bucket_worst_case_is_burst_and_what_flows_in() {
    Choices::all(|choices| {
        let quota = small_quota(choices, 3);
        let (count, per, burst) = (quota.count(), quota.per_ns().get(), quota.burst());
        let bound = burst + count * (per - 1) / per;
        let worst = worst_window(&Algorithm::new(Kind::TokenBucket, quota), quota, 3);
        if count <= (burst - 1) * per {
            assert_eq!(worst, bound, "{quota}");
        } else {
            // Calls come at whole nanoseconds. A bucket that cannot hold what flows in between them spills some.
            assert!(worst <= bound, "{quota}");
        }
    });
}

#[test]
fn sliding_window_worst_case_is_under_twice_the_count() {
    // `N` in the last nanosecond of a window; in the last one of the view, `2/W` of it still counts.
    check_worst(Kind::SlidingWindow, |count, per| count.max(2 * count - (2 * count).div_ceil(per)));
}

#[test]
fn sliding_window_worst_case_is_one_short_of_twice_the_count() {
    // As soon as a window has two nanoseconds for each token.
    for (count, per) in [(1, 2), (2, 4), (3, 6)] {
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap();
        assert_eq!(worst_window(&Algorithm::new(Kind::SlidingWindow, quota), quota, 3), 2 * count - 1);
    }
}

#[test]
fn leaky_bucket_worst_case_of_starts_is_burst_and_what_drains() {
    Choices::all(|choices| {
        let quota = small_quota(choices, 2);
        let algorithm = Algorithm::LeakyBucket(LeakyBucket::new(quota, choices.between(0, 2)));
        let worst = worst_window(&algorithm, quota, 2);
        let (count, per, burst) = (quota.count(), quota.per_ns().get(), quota.burst());
        if per.is_multiple_of(count) {
            assert_eq!(worst, burst + count * (per - 1) / per, "{quota}");
        } else {
            // A start is rounded up to a nanosecond; strictly less than that is hidden.
            assert!(worst * per < burst * per + count * per, "{quota}");
        }
    });
}
