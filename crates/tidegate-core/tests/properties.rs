//! What holds for every algorithm, every quota and every sequence of calls.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Decision, Kind, State, Step};

use crate::model::inputs::{Call, Clock, Cost, after, calls, costs, gaps, quotas, subjects};
use crate::model::{Big, Exact, Model, Subject};

/// Plays calls from a fresh state; `check` sees the state, the time and the cost before each.
fn play(subject: &Subject, calls: &[Call], mut check: impl FnMut(&State, u64, u64)) -> State {
    let algorithm = subject.algorithm();
    let (mut state, mut clock) = (algorithm.fresh(), Clock::default());
    for call in calls {
        let now = clock.advance(call.gap, subject.quota);
        if call.forced {
            algorithm.charge(&mut state, now, call.cost.as_debt(subject));
            continue;
        }
        let cost = call.cost.of(subject);
        check(&state, now, cost);
        let decision;
        (state, decision) = algorithm.step(state, now, cost);
        clock.hear(&decision);
    }
    state
}

proptest! {
    /// Every number in every answer is that of exact arithmetic.
    #[test]
    fn every_answer_equals_the_reference(subject in subjects(), calls in calls()) {
        let algorithm = subject.algorithm();
        let mut model: Model<Big> = subject.model();
        let (mut state, mut clock) = (algorithm.fresh(), Clock::default());
        for call in calls {
            let now = clock.advance(call.gap, subject.quota);
            if call.forced {
                let cost = call.cost.as_debt(&subject);
                algorithm.charge(&mut state, now, cost);
                model.charge(now, cost);
                continue;
            }
            let cost = call.cost.of(&subject);
            let looked = algorithm.look(&state, now, cost);
            let (next, decision) = algorithm.step(state, now, cost);
            prop_assert_eq!(decision, model.step(now, cost), "{} at {}", cost, now);
            prop_assert_eq!(looked, decision);
            clock.hear(&decision);
            state = next;
        }
    }

    /// The type that users of one algorithm take, with its state of one number.
    #[test]
    fn token_bucket_alone_equals_the_reference(quota in quotas(), calls in calls()) {
        let (subject, bucket) = (Subject::new(Kind::TokenBucket, quota), TokenBucket::new(quota));
        let mut model: Model<Big> = subject.model();
        let (mut state, mut clock, mut latest) = (bucket.fresh(), Clock::default(), 0);
        for call in calls {
            let now = clock.advance(call.gap, quota).max(latest);
            let decision;
            (state, decision) = bucket.step(state, now, call.cost.of(&subject));
            prop_assert_eq!(decision, model.step(now, call.cost.of(&subject)));
            latest = now;
            clock.hear(&decision);
        }
    }

    /// A caller who comes back as told, alone, is allowed; one nanosecond earlier it is not.
    #[test]
    fn retry_after_is_exact(subject in subjects(), calls in calls()) {
        let algorithm = subject.algorithm();
        play(&subject, &calls, |state, now, cost| {
            let decision = algorithm.look(state, now, cost);
            let Decision::Rejected { retry_after, .. } = decision else { return };
            assert_ne!(retry_after, Duration::ZERO);
            // A debt of more than 2⁶⁴ seconds cannot be told.
            if retry_after == Duration::MAX {
                return;
            }
            let seconds = decision.retry_after_seconds().unwrap();
            assert!(seconds >= 1 && u128::from(seconds) == retry_after.as_nanos().div_ceil(1_000_000_000));
            let Some(told) = after(now, retry_after) else { return };
            assert!(algorithm.look(state, told, cost).is_allowed(), "as told");
            assert!(!algorithm.look(state, told - 1, cost).is_allowed(), "1 ns early");
            // And not at any instant before, whatever the shape of the wait.
            let middle = now + (told - now) / 2;
            assert!(middle == told || !algorithm.look(state, middle, cost).is_allowed(), "half-way");
        });
    }

    /// Once told when all is as new, everything there is can be had then.
    #[test]
    fn reset_after_brings_everything_back(subject in subjects(), calls in calls()) {
        let algorithm = subject.algorithm();
        let fresh = algorithm.look(&algorithm.fresh(), 0, 0);
        play(&subject, &calls, |state, now, _| {
            let (Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. }) =
                algorithm.look(state, now, 0) else { unreachable!("cost 0 is never above the capacity") };
            if let Some(reset) = after(now, reset_after) {
                assert_eq!(algorithm.look(state, reset, 0), fresh);
                assert!(reset == now || algorithm.look(state, reset - 1, 0) != fresh);
            }
        });
    }

    /// A rejected call leaves the state as it was, bit for bit; so do a look and a call of cost 0.
    #[test]
    fn a_rejection_changes_no_state(subject in subjects(), calls in calls()) {
        let algorithm = subject.algorithm();
        play(&subject, &calls, |state, now, cost| {
            let (next, decision) = algorithm.step(state.clone(), now, cost);
            assert!(&next == state || (decision.is_allowed() && cost > 0));
            assert_eq!(&algorithm.step(state.clone(), now, 0).0, state);
            let mut charged = state.clone();
            algorithm.charge(&mut charged, now, 0);
            assert_eq!(&charged, state);
        });
    }

    /// `Never` if and only if the cost is above the capacity, whatever the state.
    #[test]
    fn never_means_above_the_capacity(subject in subjects(), calls in calls()) {
        let algorithm = subject.algorithm();
        let capacity = subject.largest_cost();
        play(&subject, &calls, |state, now, cost| {
            let decision = algorithm.look(state, now, cost);
            assert_eq!(decision == Decision::Never { capacity }, cost > capacity, "{decision:?}");
            assert!(decision.remaining() <= subject.capacity());
        });
    }

    /// Time that goes back neither creates nor punishes: the answer is that of the last charge.
    #[test]
    fn time_going_back_creates_nothing_and_never_punishes(
        subject in subjects(), calls in calls(), gap in gaps(), back in any::<u64>(), cost in costs(),
    ) {
        let algorithm = subject.algorithm();
        let cost = cost.of(&subject);
        let mut latest = 0;
        let mut state = play(&subject, &calls, |state, now, cost| {
            if algorithm.look(state, now, cost).is_allowed() && cost > 0 {
                latest = latest.max(now);
            }
        });
        latest = latest.max(Clock::at(latest).advance(gap, subject.quota));
        algorithm.charge(&mut state, latest, 1);
        let earlier = latest.saturating_sub(back);
        let (at_latest, then) = algorithm.step(state.clone(), latest, cost);
        let (at_earlier, decision) = algorithm.step(state, earlier, cost);
        prop_assert_eq!(decision.is_allowed(), then.is_allowed());
        prop_assert_eq!(decision.remaining(), then.remaining());
        // Afterwards the two cannot be told apart.
        prop_assert_eq!(at_earlier, at_latest);
    }

    /// At one instant, `a` then `b` is `a + b`.
    #[test]
    fn costs_at_one_instant_add_up(subject in subjects(), calls in calls(), a in costs(), b in costs(), gap in gaps()) {
        let algorithm = subject.algorithm();
        let mut last = 0;
        let state = play(&subject, &calls, |_, now, _| last = now);
        let now = Clock::at(last).advance(gap, subject.quota);
        let (a, b) = (a.of(&subject), b.of(&subject));
        let Some(sum) = a.checked_add(b) else { return Ok(()) };
        let (after_a, first) = algorithm.step(state.clone(), now, a);
        let (apart, second) = algorithm.step(after_a, now, b);
        let (together, both) = algorithm.step(state, now, sum);
        if first.is_allowed() && second.is_allowed() && both.is_allowed() {
            prop_assert_eq!(&apart, &together);
        }
        if both.is_allowed() {
            prop_assert!(first.is_allowed() && second.is_allowed());
            prop_assert_eq!(second.remaining(), both.remaining());
        } else if sum <= subject.largest_cost() {
            prop_assert!(!(first.is_allowed() && second.is_allowed()));
        }
    }

    /// In no interval between two calls is more allowed than `bound` says, nor than the definition says.
    #[test]
    fn no_interval_holds_more_than_its_bound(subject in subjects(), calls in calls()) {
        let algorithm = subject.algorithm();
        let calls: Vec<Call> = calls.into_iter().map(|call| Call { forced: false, ..call }).collect();
        let (mut latest, mut started) = (0, Vec::<(u128, u128)>::new());
        play(&subject, &calls, |state, now, cost| {
            let decision = algorithm.look(state, now, cost);
            if decision.is_allowed() && cost > 0 {
                let wait = decision.start_after().as_nanos();
                let start = if wait == 0 { u128::from(now.max(latest)) } else { u128::from(now) + wait };
                latest = latest.max(now);
                started.push((start, u128::from(cost)));
            }
        });
        for (first, (from, _)) in started.iter().enumerate() {
            let mut cost = 0;
            for (to, more) in &started[first..] {
                cost += more;
                let span = to - from;
                if span > Duration::MAX.as_nanos() {
                    continue;
                }
                if let Some(bound) = algorithm.bound(Duration::from_nanos_u128(span)) {
                    prop_assert!(cost <= bound, "{cost} in {span} ns, at most {bound}");
                }
                if let Some(bound) = definition(&subject, *from, *to) {
                    prop_assert!(Big::whole(cost) < bound, "{cost} in {span} ns, at most {bound}");
                }
            }
        }
    }

    /// A call that is allowed now is allowed at any later time if nobody else comes.
    #[test]
    fn waiting_longer_never_hurts(subject in subjects(), calls in calls(), gap in gaps(), cost in costs()) {
        let algorithm = subject.algorithm();
        let mut last = 0;
        let state = play(&subject, &calls, |_, now, _| last = now);
        let later = Clock::at(last).advance(gap, subject.quota).max(last);
        let cost = cost.of(&subject);
        if algorithm.look(&state, last, cost).is_allowed() {
            prop_assert!(algorithm.look(&state, later, cost).is_allowed());
        }
        prop_assert!(algorithm.look(&state, later, 0).remaining() >= algorithm.look(&state, last, 0).remaining());
    }
}

/// What the head of each file promises for the closed interval from `from` to `to`, as a number that the cost stays
/// below; `None` for no promise there.
fn definition(subject: &Subject, from: u128, to: u128) -> Option<Big> {
    let quota = subject.quota;
    let (window, span) = (u128::from(quota.per_ns().get()), to - from);
    let earned = |span: u128| Big::whole(quota.count()) * Big::whole(span) / Big::whole(window);
    let at_most = |cost: Big| Some(cost + Big::whole(1_u64) / Big::whole(window));
    let twice = 2 * u128::from(quota.count());
    match subject.kind {
        Kind::TokenBucket => at_most(Big::whole(quota.burst()) + earned(span)),
        // A start is rounded up to a nanosecond, so less than that is hidden.
        Kind::LeakyBucket => Some(Big::whole(quota.burst()) + earned(span + 1)),
        Kind::SlidingLog if span < window => at_most(Big::whole(quota.count())),
        Kind::FixedWindow | Kind::SlidingWindow if from / window == to / window => {
            at_most(Big::whole(quota.count()))
        }
        Kind::FixedWindow if span <= window => at_most(Big::whole(twice)),
        Kind::SlidingWindow if span <= window => Some(Big::whole(twice)),
        _ => None,
    }
}

#[test]
fn a_cost_is_what_its_name_says() {
    let subject = Subject::new(Kind::TokenBucket, "10/s burst 20".parse().unwrap());
    let costs = [Cost::None, Cost::One, Cost::Largest(0), Cost::AboveLargest, Cost::Share(128)];
    assert_eq!(costs.map(|cost| cost.of(&subject)), [0, 1, 20, 21, 10]);
}
