//! Clocks that go back, jump and sleep.

use super::*;

// A refused call at an older time still changed the state.
#[test]
fn a_refused_call_at_an_older_time_changes_nothing() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("2/s")));
        caller.until_refused(10 * S);
        let before = caller.state.clone();
        for now in [10 * S, 9 * S, 0] {
            assert!(!caller.call(now, 1).is_allowed(), "{kind}");
            assert_eq!(caller.state, before, "{kind}");
        }
    }
}

// The wall clock went back 11 s: tokens were negative and the wait 13 s; forward again, a refill for free.
#[test]
fn a_clock_that_steps_back_neither_punishes_nor_refills() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("5 per 10s")));
        assert!(caller.call(20 * S, 3).is_allowed());
        assert!(caller.call(9 * S, 1).is_allowed(), "{kind}: punished");
        assert!(caller.call(20 * S, 1).is_allowed(), "{kind}: punished");
        assert!(!caller.call(20 * S, 1).is_allowed(), "{kind}: refilled");
        assert!(!caller.call(9 * S, 1).is_allowed(), "{kind}: refilled");
    }
}

// The limit ended an hour after the machine woke: time that jumps ahead counts like any other.
#[test]
fn a_jump_ahead_is_time_that_has_passed() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("1/hour")));
        assert!(caller.call(0, 1).is_allowed());
        assert!(caller.call(10 * 3600 * S, 1).is_allowed(), "{kind}");
        assert!(!caller.call(10 * 3600 * S, 1).is_allowed(), "{kind}");
    }
}
