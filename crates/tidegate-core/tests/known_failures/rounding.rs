//! Rounding, floats and truncation.

use super::*;

// A rate of 10/13 lost a nanosecond's worth of token on the way through seconds: the first call was refused.
#[test]
fn every_small_fraction_is_exact_from_the_first_call() {
    for count in 1..200 {
        for seconds in 1..200 {
            let quota = Quota::new(count, Duration::from_secs(seconds)).unwrap().with_burst(1).unwrap();
            let mut caller = Caller::new(TokenBucket::new(quota));
            assert!(caller.call(0, 1).is_allowed());
            let wait = (seconds * S).div_ceil(count);
            assert_eq!(caller.call(0, 1).retry_after(), Some(Duration::from_nanos(wait)));
            assert!(!caller.call(wait - 1, 1).is_allowed());
            assert!(caller.call(wait, 1).is_allowed());
        }
    }
}

// The fraction of a token was cast away at each poll: 0 for ever at any rate under 1000/s.
#[test]
fn token_bucket_polled_each_millisecond_refills() {
    let mut caller = bucket("100/s burst 1");
    let allowed: Vec<u64> = (0..=20).filter(|at| caller.call(at * MS, 1).is_allowed()).collect();
    assert_eq!(allowed, [0, 10, 20]);
}

// The time of the last refill moved at every call: a caller faster than the refill was never served again.
#[test]
fn token_bucket_called_too_fast_still_refills() {
    let mut caller = bucket("1/s");
    let allowed = (0..=3000).filter(|at| caller.call(at * MS, 1).is_allowed()).count();
    assert_eq!(allowed, 4);
}

// One token was added for a whole period instead of five.
#[test]
fn a_period_brings_the_whole_count() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("5 per 7s")));
        assert_eq!(caller.until_refused(0).0, 5, "{kind}");
        // The sliding window has the old one in view for a second period.
        let later = if kind == Kind::SlidingWindow { 14 * S } else { 7 * S };
        assert_eq!(caller.until_refused(later).0, 5, "{kind}");
    }
}

// The fraction was dropped: the client waited 1 s and was refused again.
#[test]
fn whole_seconds_are_rounded_up() {
    let mut caller = bucket("1 per 1.5s");
    assert!(caller.call(0, 1).is_allowed());
    let refused = caller.call(200 * MS, 1);
    assert_eq!((refused.retry_after_seconds(), refused.retry_after()), (Some(2), ms(1300)));
}

// Refused again with 0, and then with a negative number.
#[test]
fn waiting_whole_seconds_as_told_is_enough_every_time() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("3 per 1.7s")));
        let mut now = 0;
        for _ in 0..50 {
            caller.until_refused(now);
            let seconds = caller.call(now, 1).retry_after_seconds().unwrap();
            assert!((1..=4).contains(&seconds), "{kind}: {seconds}");
            now += seconds * S;
            assert!(caller.call(now, 1).is_allowed(), "{kind} at {now}");
        }
    }
}

// The wait was computed without the burst: 5 s.
#[test]
fn token_bucket_waits_for_one_token_and_not_for_all() {
    assert_eq!(bucket("1/s burst 5").until_refused(0), (5, ms(1000)));
}

// The reset was counted from the newest entry: 50 s.
#[test]
fn sliding_log_waits_for_its_oldest_entry() {
    let mut caller = Caller::new(SlidingLog::new(quota("2/min")));
    assert!(caller.call(0, 1).is_allowed());
    assert!(caller.call(10 * S, 1).is_allowed());
    assert_eq!(caller.call(20 * S, 1).retry_after(), ms(40_000));
}
