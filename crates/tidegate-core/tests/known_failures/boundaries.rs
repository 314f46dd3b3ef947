//! Boundaries and off-by-one.

use super::*;

// Capacity was confused with tolerance: one more than the burst passed after an idle time.
#[test]
fn token_bucket_after_idle_holds_the_burst_and_not_one_more() {
    for burst in 1..=20 {
        let interval = S / 5;
        for (idle, expected) in [(-1, burst - 1), (0, burst), (1, burst), (i64::MAX / 2, burst)] {
            let mut caller = bucket(&format!("5/s burst {burst}"));
            assert_eq!(caller.until_refused(0), (burst, ms(200)));
            let now = (burst * interval).saturating_add_signed(idle);
            let (allowed, wait) = caller.until_refused(now);
            let wait = wait.unwrap().as_nanos();
            assert_eq!((allowed, wait), (expected, if idle < 0 { 1 } else { 200_000_000 }), "{burst} {idle}");
        }
    }
}

// The stored time was floored at now - tolerance, so up to twice the burst could be banked: 17 passed.
#[test]
fn token_bucket_banks_no_more_than_its_burst() {
    let mut caller = bucket("60 per 60s burst 10");
    assert!(caller.call(0, 1).is_allowed());
    assert_eq!(caller.until_refused(8900 * MS), (10, ms(1000)));
}

// The told delay landed on a boundary that still counted: the retry failed, and its delay was 0, so it spun.
#[test]
fn a_retry_exactly_as_told_succeeds_in_every_algorithm() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("1 per 100ms")));
        let mut now = 37 * MS;
        for _ in 0..100 {
            assert!(caller.call(now, 1).is_allowed(), "{kind} at {now}");
            let wait = caller.call(now, 1).retry_after().unwrap();
            assert!(!wait.is_zero());
            now += u64::try_from(wait.as_nanos()).unwrap();
        }
    }
}

// The request that crosses the boundary was counted before what had left was trimmed.
#[test]
fn sliding_log_lets_the_call_pass_that_crosses_the_boundary() {
    for at in [10 * S, 10 * S + MS] {
        let mut caller = Caller::new(SlidingLog::new(quota("1 per 10s")));
        assert!(caller.call(0, 1).is_allowed());
        assert!(!caller.call(10 * S - 1, 1).is_allowed());
        assert!(caller.call(at, 1).is_allowed());
    }
}

// 120 in one second, which nobody had said could be.
#[test]
fn fixed_window_says_that_two_windows_can_meet() {
    let mut caller = Caller::new(Algorithm::new(Kind::FixedWindow, quota("60/min")));
    assert_eq!(caller.until_refused(59 * S), (60, ms(1000)));
    assert_eq!(caller.until_refused(60 * S), (60, ms(60_000)));
    assert_eq!(caller.algorithm.bound(Duration::from_secs(1)), Some(120));
    assert_eq!(caller.call(90 * S, 1).retry_after(), ms(30_000));
}

// Users of a bucket counted more than 17 in 30 s and took it for a fault: the bound is burst + rate·t.
#[test]
fn token_bucket_states_its_bound_and_sliding_log_is_the_strict_mode() {
    let calls: Vec<u64> = (0..60).flat_map(|second| [second * S, second * S + 250 * MS]).collect();
    for (kind, at_most) in [(Kind::TokenBucket, 34), (Kind::SlidingLog, 17)] {
        let mut caller = Caller::new(Algorithm::new(kind, quota("17 per 30s")));
        let allowed: Vec<u64> =
            calls.iter().copied().filter(|now| caller.call(*now, 1).is_allowed()).collect();
        let in_view = |from: u64| allowed.iter().filter(|at| (from..from + 30 * S).contains(at)).count();
        let worst = allowed.iter().map(|from| in_view(*from)).max().unwrap();
        assert!(worst as u64 <= at_most, "{kind}: {worst}");
        assert!(caller.algorithm.bound(Duration::from_nanos(30 * S - 1)).unwrap() <= u128::from(at_most));
        assert!(worst > 16, "{kind}: {worst}");
    }
}

// Remaining was shown greater than the capacity.
#[test]
fn remaining_is_never_above_the_capacity() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("2 per 1ms")));
        for tick in 0..100 {
            assert!(caller.call(tick * MS, 1).remaining() <= 1, "{kind}");
            assert!(caller.algorithm.look(&caller.state, (tick + 1) * MS, 0).remaining() <= 2, "{kind}");
        }
    }
}
