//! Several limits on one call: all are charged or none, and the answer is that of the strictest.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Decision, Limit, Mode, Policy, State, Step};

use crate::model::Subject;
use crate::model::inputs::{Clock, after, calls, subjects};

/// The states of the limits one by one, as an independent account of what the policy should hold.
struct Account {
    policy: Policy,
    states: Vec<State>,
}

impl Account {
    fn new(limits: &[(Subject, bool)]) -> Self {
        let limits: Vec<Limit> = limits
            .iter()
            .enumerate()
            .map(|(index, (subject, shadow))| Limit {
                name: format!("limit {index}").into(),
                algorithm: subject.algorithm(),
                mode: if *shadow { Mode::Shadow } else { Mode::Enforce },
            })
            .collect();
        let states = limits.iter().map(|limit| limit.algorithm.fresh()).collect();
        Self { policy: Policy::new(limits), states }
    }

    fn looks(&self, now: u64, costs: &[u64]) -> Vec<Decision> {
        let limits = self.policy.limits().iter().zip(&self.states).zip(costs);
        limits.map(|((limit, state), cost)| limit.algorithm.look(state, now, *cost)).collect()
    }

    fn enforced(&self, index: usize) -> bool {
        self.policy.limits()[index].mode == Mode::Enforce
    }
}

fn limits() -> impl Strategy<Value = Vec<(Subject, bool)>> {
    proptest::collection::vec((subjects(), proptest::bool::weighted(0.25)), 0..5)
}

proptest! {
    #[test]
    fn policy_charges_all_or_none_and_answers_for_the_strictest(limits in limits(), calls in calls()) {
        let mut account = Account::new(&limits);
        let policy = account.policy.clone();
        let Some((first, _)) = limits.first() else { return Ok(()) };
        let (mut state, mut clock) = (policy.fresh(), Clock::default());
        for call in calls {
            let now = clock.advance(call.gap, first.quota);
            // Each limit has its own cost.
            let costs: Vec<u64> = limits.iter().map(|(subject, _)| call.cost.of(subject)).collect();
            let looks = account.looks(now, &costs);
            let (next, answer) = policy.step_with(state.clone(), now, |index| costs[index]);
            let enforced: Vec<usize> = (0..limits.len()).filter(|index| account.enforced(*index)).collect();

            prop_assert_eq!(answer.decision.is_allowed(), enforced.iter().all(|index| looks[*index].is_allowed()));
            prop_assert_eq!(policy.look_with(&state, now, |index| costs[index]), answer);
            prop_assert_eq!(answer.limit.is_none(), enforced.is_empty());
            prop_assert_eq!(
                answer.shadow,
                (0..limits.len()).find(|index| !account.enforced(*index) && !looks[*index].is_allowed())
            );
            match answer.decision {
                Decision::Allowed { start_after, remaining, reset_after } => {
                    let of_enforced = || enforced.iter().map(|index| looks[*index]);
                    prop_assert_eq!(remaining, of_enforced().map(|look| look.remaining()).min().unwrap_or(u64::MAX));
                    prop_assert_eq!(start_after, of_enforced().map(|look| look.start_after()).max().unwrap_or_default());
                    if let Some(tightest) = answer.limit {
                        let own = looks[tightest].start_after();
                        prop_assert_eq!(Decision::Allowed { start_after: own, remaining, reset_after }, looks[tightest]);
                    }
                    for (index, own) in account.states.iter_mut().enumerate() {
                        if looks[index].is_allowed() {
                            policy.limits()[index].algorithm.charge(own, now, costs[index]);
                        }
                    }
                }
                Decision::Rejected { retry_after, .. } => {
                    let largest = enforced.iter().filter_map(|index| looks[*index].retry_after()).max();
                    prop_assert_eq!(Some(retry_after), largest);
                    prop_assert_eq!(answer.decision, looks[answer.limit.unwrap()]);
                    prop_assert_eq!(&next, &state);
                    if let Some(told) = after(now, retry_after) {
                        let cost = |index: usize| costs[index];
                        prop_assert!(policy.look_with(&state, told, cost).decision.is_allowed());
                        prop_assert!(!policy.look_with(&state, told - 1, cost).decision.is_allowed());
                    }
                }
                Decision::Never { capacity } => {
                    prop_assert_eq!(answer.decision, looks[answer.limit.unwrap()]);
                    prop_assert!(costs[answer.limit.unwrap()] > capacity);
                    prop_assert_eq!(&next, &state);
                }
            }
            state = next;
            clock.hear(&answer.decision);
        }
    }
}

fn limit(name: &str, quota: &str, mode: Mode) -> Limit {
    let subject = Subject::new(tidegate_core::Kind::TokenBucket, quota.parse().unwrap());
    Limit { name: name.into(), algorithm: subject.algorithm(), mode }
}

#[test]
fn policy_names_the_first_of_limits_that_tie() {
    let policy = Policy::new(vec![limit("a", "1/s", Mode::Enforce), limit("b", "1/s", Mode::Enforce)]);
    let (state, allowed) = policy.step(policy.fresh(), 0, 1);
    assert_eq!(allowed.limit, Some(0));
    let (_, refused) = policy.step(state, 0, 1);
    assert_eq!((refused.limit, refused.decision.retry_after()), (Some(0), Some(Duration::from_secs(1))));
}

#[test]
fn policy_of_nothing_allows_everything() {
    let policy = Policy::new(Vec::new());
    let (_, answer) = policy.step(policy.fresh(), 0, u64::MAX);
    assert!(answer.decision.is_allowed());
    assert_eq!((answer.limit, answer.shadow), (None, None));
}

#[test]
fn policy_shadow_refuses_nothing_and_is_not_charged_for_refused_calls() {
    let policy =
        Policy::new(vec![limit("on", "2/s", Mode::Enforce), limit("trial", "3 per 10s", Mode::Shadow)]);
    let mut state = policy.fresh();
    let mut answers = Vec::new();
    for now in [0, 0, 0, 0, 1, 1, 1, 1].map(|seconds: u64| seconds * 1_000_000_000) {
        let answer;
        (state, answer) = policy.step(state, now, 1);
        answers.push((answer.decision.is_allowed(), answer.shadow));
    }
    // Two at 0 and one at 1 s are charged to the trial; the fourth allowed call is the one that it would refuse.
    let (allowed, refused) = ((true, None), (false, None));
    assert_eq!(answers[..6], [allowed, allowed, refused, refused, allowed, (true, Some(1))]);
    assert_eq!(answers[6..], [(false, Some(1)), (false, Some(1))]);
}
