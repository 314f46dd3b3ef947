//! State, windows, and what is counted.

use super::*;

// No leak while calls went on: 9, 8, 7, 6, 5.
#[test]
fn leaky_bucket_drains_while_calls_go_on() {
    let mut caller = Caller::new(Algorithm::new(Kind::LeakyBucket, quota("10 per 30s")));
    let remaining: Vec<u64> = (0..11).map(|second| caller.call(second * S, 1).remaining()).collect();
    assert_eq!(remaining, [9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2]);
}

// Refused calls were logged too: a steady caller was blocked for ever.
#[test]
fn refused_calls_do_not_count() {
    for kind in [Kind::SlidingLog, Kind::FixedWindow] {
        let mut caller = Caller::new(Algorithm::new(kind, quota("10 per 10min")));
        for ten_minutes in 0..6 {
            let calls = (0..20).map(|call| ten_minutes * 600 * S + call * 30 * S);
            let allowed = calls.filter(|now| caller.call(*now, 1).is_allowed()).count();
            assert_eq!(allowed, 10, "{kind}");
        }
    }
}

// The key of a minute lived 2 s into the next, where the first call read the old count.
#[test]
fn fixed_window_starts_each_window_at_nothing() {
    let mut caller = Caller::new(Algorithm::new(Kind::FixedWindow, quota("60/min")));
    assert_eq!(caller.until_refused(58_700 * MS).0, 60);
    assert_eq!(caller.until_refused(60 * S).0, 60);
    assert_eq!(caller.until_refused(120 * S - 1).0, 0);
    assert_eq!(caller.until_refused(120 * S).0, 60);
}

// Window numbers came round again within the window and overwrote live entries: it counted too few.
#[test]
fn sliding_log_of_a_week_counts_every_call() {
    let mut caller = Caller::new(SlidingLog::new(quota("1000/week")));
    let allowed =
        (0..2016).filter(|five_minutes| caller.call(five_minutes * 300 * S, 1).is_allowed()).count();
    assert_eq!(allowed, 1000);
}

// Two limits shared one counter: each call reset the other, and nothing was ever limited.
#[test]
fn policy_keeps_a_state_for_each_limit() {
    let policy =
        policy(&[("short", Kind::FixedWindow, "20 per 10s"), ("long", Kind::FixedWindow, "50 per 60s")]);
    let mut state = policy.fresh();
    let mut allowed = [0; 6];
    for tenth in 0..600_u64 {
        let decision;
        (state, decision) = policy.step(state, tenth * 100 * MS, 1);
        allowed[usize::try_from(tenth / 100).unwrap()] += u64::from(decision.decision.is_allowed());
    }
    assert_eq!(allowed, [20, 20, 10, 0, 0, 0]);
}

// A look took from the quota.
#[test]
fn a_look_takes_nothing() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("2/s")));
        for _ in 0..10 {
            assert!(caller.algorithm.look(&caller.state, 0, 2).is_allowed());
        }
        assert_eq!(caller.until_refused(0).0, 2, "{kind}");
    }
}

// An increment of 0 skipped the check: a caller who paid afterwards was never limited.
#[test]
fn cost_0_is_still_a_check() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("10/s")));
        assert!(caller.call(0, 0).is_allowed());
        // Settled afterwards, above the capacity.
        caller.algorithm.charge(&mut caller.state, 0, 15);
        let wait = caller.call(0, 0).retry_after().unwrap_or_else(|| panic!("{kind}: not checked"));
        let told = u64::try_from(wait.as_nanos()).unwrap();
        assert!(!caller.call(told - 1, 0).is_allowed(), "{kind}");
        assert!(caller.call(told, 0).is_allowed(), "{kind}");
    }
}

// Accepted, shown, and never enforced.
#[test]
fn one_a_minute_is_enforced() {
    for kind in LIMITING {
        assert_eq!(Caller::new(Algorithm::new(kind, quota("1/min"))).until_refused(0).0, 1, "{kind}");
    }
}

// A call above the whole budget passed, and the next ones paid for it.
#[test]
fn a_call_above_the_budget_is_refused_at_once() {
    for kind in LIMITING {
        let mut caller = Caller::new(Algorithm::new(kind, quota("1000/min")));
        assert_eq!(caller.call(0, 1200), Decision::Never { capacity: 1000 }, "{kind}");
        assert!(caller.call(0, 1000).is_allowed(), "{kind}");
    }
}
