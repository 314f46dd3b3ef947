//! Overflow, extremes and zero.

use super::*;

// The duration overflowed and the limiter was open for good.
#[test]
fn a_rate_of_one_in_centuries_refuses() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("1 per 10000000000s")));
        assert!(caller.call(0, 1).is_allowed(), "{kind}");
        assert!(caller.call(0, 1).retry_after().unwrap() >= Duration::from_secs(10_000_000_000), "{kind}");
        assert!(!caller.call(300 * YEAR, 1).is_allowed(), "{kind}");
    }
}

// A rate, burst or period of 0 meant "no limit" here and "nothing" there, divided by zero, or hung a waiter.
#[test]
fn zeros_are_refused_at_construction() {
    for text in ["0/s", "0/s burst 1", "0 per 60s burst 0", "0.0/s"] {
        assert_eq!(text.parse::<Quota>(), Err(QuotaError::ZeroRate), "{text}");
    }
    assert_eq!("10/s burst 0".parse::<Quota>(), Err(QuotaError::ZeroBurst));
    assert_eq!("1 per 0s".parse::<Quota>(), Err(QuotaError::ZeroPeriod));
    assert_eq!(Quota::new(0, Duration::from_secs(60)), Err(QuotaError::ZeroRate));
    assert_eq!(Quota::new(1, Duration::ZERO), Err(QuotaError::ZeroPeriod));
}

// tokens·elapsed overflowed 63 bits: available tokens were negative after a long idle time.
#[test]
fn a_long_idle_time_fills_and_does_not_overflow() {
    for kind in LIMITING {
        for idle in [DAY / 2, DAY, YEAR, 50 * YEAR, 500 * YEAR] {
            let mut caller = Caller::new(Algorithm::new(kind, quota("1000000 per 12h")));
            assert!(caller.call(0, 1_000_000).is_allowed());
            // The sliding window has the old one in view until 24 h.
            if kind != Kind::SlidingWindow || idle > DAY / 2 {
                assert!(caller.call(idle, 1_000_000).is_allowed(), "{kind} after {idle}");
            }
        }
    }
}

// The last instants of the clock: nothing wraps into "long ago".
#[test]
fn the_end_of_the_clock_refuses_like_any_time() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("2 per 10s")));
        assert_eq!(caller.until_refused(u64::MAX).0, 2, "{kind}");
        assert!(caller.call(u64::MAX, 1).retry_after().unwrap() > Duration::ZERO, "{kind}");
        assert!(!caller.call(0, 1).is_allowed(), "{kind}");
    }
}

// A timer of 32 bits overflowed: the block of 10⁹ s lasted 1 ms.
#[test]
fn a_block_of_thirty_years_lasts_thirty_years() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("10 per 1000000000s burst 10")));
        assert!(caller.call(0, 10).is_allowed());
        for now in [MS, S, 25 * DAY, YEAR] {
            let refused = caller.call(now, 10);
            assert!(
                refused.retry_after().unwrap() >= Duration::from_nanos(1_000_000_000 * S - now),
                "{kind}"
            );
        }
    }
}

// The first caller was let into debt: 5000 of 5 a second.
#[test]
fn a_cost_above_the_capacity_is_never_allowed() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("5/s")));
        for now in [0, S, YEAR] {
            assert_eq!(caller.call(now, 5000), Decision::Never { capacity: 5 }, "{kind}");
        }
        assert!(caller.call(YEAR, 5).is_allowed(), "{kind}");
    }
}

// A minute's quota was turned into a rate a second: a call above that second's share waited for ever.
#[test]
fn token_bucket_of_a_minute_holds_the_minute() {
    assert!(bucket("40000/min").call(0, 800).is_allowed());
    assert_eq!(bucket("40000/min burst 666").call(0, 800), Decision::Never { capacity: 666 });
}
