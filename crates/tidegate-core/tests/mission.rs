//! The worked example, and the long runs: no more than was promised, no less than was earned, no drift.

use std::time::Duration;

use tidegate_core::algorithm::{LeakyBucket, TokenBucket};
use tidegate_core::{Algorithm, Kind, Quota, Step};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// Three at once, a fourth after half a second, and one of two then.
fn check_worked_example<A: Step>(bucket: &A) {
    let mut state = bucket.fresh();
    let mut call = |now: u64| {
        let (next, decision) = bucket.step(state.clone(), now, 1);
        state = next;
        (decision.is_allowed(), decision.retry_after().map(|wait| wait.as_millis()))
    };
    assert_eq!([call(0), call(0), call(0)], [(true, None); 3]);
    assert_eq!(call(0), (false, Some(500)));
    assert_eq!(call(250 * MS), (false, Some(250)));
    assert_eq!(call(500 * MS), (true, None));
    assert_eq!(call(500 * MS), (false, Some(500)));
}

#[test]
fn token_bucket_worked_example() {
    let quota: Quota = "2/s burst 3".parse().unwrap();
    check_worked_example(&TokenBucket::new(quota));
    check_worked_example(&Algorithm::new(Kind::TokenBucket, quota));
}

#[test]
fn leaky_bucket_without_queue_worked_example() {
    check_worked_example(&LeakyBucket::new("2/s burst 3".parse().unwrap(), 0));
}

/// A unit call each 0.01 s from 0 to 100 s: how many are allowed.
fn allowed_in_100_s(algorithm: &Algorithm) -> u64 {
    let mut state = algorithm.fresh();
    let mut allowed = 0;
    for call in 0..=10_000 {
        let (next, decision) = algorithm.step(state, call * 10 * MS, 1);
        state = next;
        allowed += u64::from(decision.is_allowed());
    }
    allowed
}

/// Limits of 1 to 100 a second: with them demand, 100 a second, suffices.
const LIMITS: [u64; 13] = [1, 2, 3, 7, 9, 10, 13, 33, 50, 64, 97, 99, 100];

/// A call comes only each 0.01 s, so a bucket must hold what flows in between two of them beside one token, or it
/// spills: this is claimed for a burst of 2 or more.
fn check_bucket_gives_the_rate(kind: Kind) {
    for limit in LIMITS {
        for burst in [2, 3, limit + 1, 2 * limit, 1000] {
            let quota: Quota = format!("{limit}/s burst {burst}").parse().unwrap();
            let allowed = allowed_in_100_s(&Algorithm::new(kind, quota));
            let (least, most) = (limit * 100, limit * 100 + burst);
            assert!((least..=most).contains(&allowed), "{quota}: {allowed}");
            // All that was there at the start and all that came, as far as there were calls for it.
            assert_eq!(allowed, most.min(10_001), "{quota}");
        }
    }
}

#[test]
fn token_bucket_gives_the_rate_for_100_s() {
    check_bucket_gives_the_rate(Kind::TokenBucket);
}

#[test]
fn leaky_bucket_gives_the_rate_for_100_s() {
    check_bucket_gives_the_rate(Kind::LeakyBucket);
}

#[test]
fn fixed_window_gives_the_rate_for_100_s() {
    for limit in LIMITS {
        let quota: Quota = format!("{limit}/s").parse().unwrap();
        // A hundred windows, and the first call of the next.
        assert_eq!(allowed_in_100_s(&Algorithm::new(Kind::FixedWindow, quota)), limit * 100 + 1);
    }
}

#[test]
fn sliding_log_gives_the_rate_for_100_s() {
    for limit in LIMITS {
        let quota: Quota = format!("{limit}/s").parse().unwrap();
        assert_eq!(allowed_in_100_s(&Algorithm::new(Kind::SlidingLog, quota)), limit * 100 + 1);
    }
}

/// The rate is not claimed here: a window that holds anything is in view until its last instant, so each window but
/// the first allows one less than the count, and with a count of 1 only every other window allows one.
#[test]
fn sliding_window_gives_one_less_than_the_rate_for_100_s() {
    for limit in LIMITS {
        let quota: Quota = format!("{limit}/s").parse().unwrap();
        let allowed = allowed_in_100_s(&Algorithm::new(Kind::SlidingWindow, quota));
        let expected = if limit == 1 { 51 } else { (limit - 1) * 100 + 2 };
        assert_eq!(allowed, expected, "{quota}");
        assert!(allowed <= limit * 101, "{quota}");
    }
}

/// Ten million calls: at each, what was ever allowed is `B + floor(r·t)`, to the token.
fn check_no_drift(quota: Quota, step: u64) {
    let bucket = TokenBucket::new(quota);
    let (mut state, mut allowed, mut now) = (bucket.fresh(), 0_u64, 0_u64);
    // The next instant at which one more is due.
    let due = |allowed: u64| {
        let tokens = u128::from(allowed.saturating_sub(quota.burst()) + 1);
        u64::try_from((tokens * quota.per().as_nanos()).div_ceil(u128::from(quota.count()))).unwrap()
    };
    while allowed < quota.burst() {
        let (next, decision) = bucket.step(state, now, 1);
        assert!(decision.is_allowed());
        (state, allowed) = (next, allowed + 1);
    }
    let mut next_due = due(allowed);
    for call in 0..10_000_000_u64 {
        now += step;
        let (next, decision) = bucket.step(state, now, 1);
        state = next;
        assert_eq!(decision.is_allowed(), now >= next_due, "call {call} at {now}");
        if decision.is_allowed() {
            allowed += 1;
            next_due = due(allowed);
        }
    }
    assert!(allowed > 1_000_000, "{allowed}");
    let earned = u128::from(now) * u128::from(quota.count()) / quota.per().as_nanos();
    assert_eq!(u128::from(allowed), u128::from(quota.burst()) + earned);
}

#[test]
fn token_bucket_does_not_drift_at_three_a_second() {
    check_no_drift("3/s burst 2".parse().unwrap(), 123_456_789);
}

#[test]
fn token_bucket_does_not_drift_at_seven_in_nine_nanoseconds() {
    check_no_drift(Quota::new(7, Duration::from_nanos(9)).unwrap().with_burst(2).unwrap(), 1);
}

#[test]
fn token_bucket_does_not_drift_at_seven_in_nine_seconds() {
    check_no_drift("7 per 9s burst 2".parse().unwrap(), S + 1);
}
