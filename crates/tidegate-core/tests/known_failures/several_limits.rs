//! Several limits at once.

use super::*;

// The long limit was eaten by calls that the short one refused: blocked for half an hour.
#[test]
fn policy_charges_only_calls_that_passed() {
    let policy =
        policy(&[("short", Kind::FixedWindow, "10/min"), ("long", Kind::FixedWindow, "30 per 30min")]);
    let mut state = policy.fresh();
    let mut passed = 0;
    for call in 0..31 {
        let decision;
        (state, decision) = policy.step(state, call * 3900 * MS, 1);
        passed += u64::from(decision.decision.is_allowed());
    }
    assert_eq!(passed, 20);
    // In the third minute the ten that are left to the long limit pass.
    for _ in 0..10 {
        let decision;
        (state, decision) = policy.step(state, 120 * S, 1);
        assert!(decision.decision.is_allowed());
    }
    let (_, refused) = policy.step(state, 180 * S, 1);
    assert_eq!((refused.limit, refused.decision.retry_after()), (Some(1), ms(1_620_000)));
}

// The answer carried the numbers of a limit with 56 left: the client retried every 12 s for an hour.
#[test]
fn policy_answers_for_the_limit_that_refused() {
    let policy = policy(&[("requests", Kind::FixedWindow, "60/min"), ("spend", Kind::FixedWindow, "4/hour")]);
    let mut state = policy.fresh();
    for _ in 0..4 {
        (state, _) = policy.step(state, 600 * S, 1);
    }
    let (_, refused) = policy.step(state, 600 * S, 1);
    assert_eq!(policy.limits()[refused.limit.unwrap()].name.as_ref(), "spend");
    assert_eq!((refused.decision.retry_after(), refused.decision.remaining()), (ms(3_000_000), 0));
}

// One cost for all limits: bytes were counted as requests.
#[test]
fn policy_takes_a_cost_for_each_limit() {
    let policy = policy(&[("requests", Kind::TokenBucket, "10/s"), ("bytes", Kind::TokenBucket, "8192/s")]);
    let cost = |index: usize| [1, 4096][index];
    let mut state = policy.fresh();
    for remaining in [4096, 0] {
        let decision;
        (state, decision) = policy.step_with(state, 0, cost);
        assert!(decision.decision.is_allowed());
        assert_eq!(decision.decision.remaining(), remaining.min(9));
    }
    let (_, refused) = policy.step_with(state, 0, cost);
    assert_eq!((refused.limit, refused.decision.retry_after()), (Some(1), ms(500)));
}
