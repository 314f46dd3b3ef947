//! The script against the reference in Rust, and both against the token bucket of the core.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Algorithm, Decision, Kind, Limit, Mode, Policy, PolicyDecision, Quota, State, Step};

use super::reference::{self, Keys};
use super::*;
use crate::limiter::exact;
use crate::timed::Timed;

/// The script with a time that the test says.
struct Subject(Timed);

impl Subject {
    fn new() -> Self {
        Self(Timed::new(SOURCE))
    }

    fn run(&mut self, now_us: u64, calls: &[Call]) -> Vec<Verdict> {
        let batch = Batch::new(calls.iter());
        let reply: Vec<i64> = batch.command(&self.0.sha).arg(now_us).query(&mut self.0.connection).unwrap();
        batch.answers(&reply).unwrap().into_iter().map(Option::unwrap).collect()
    }

    /// Every bucket as it is stored.
    fn stored(&mut self) -> Vec<(Vec<u8>, String)> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.0.connection).unwrap();
        let mut all: Vec<(Vec<u8>, String)> = keys
            .into_iter()
            .map(|key| (key.clone(), redis::cmd("GET").arg(key).query(&mut self.0.connection).unwrap()))
            .collect();
        all.sort();
        all
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

fn sorted(keys: &Keys) -> Vec<(Vec<u8>, String)> {
    let mut all: Vec<(Vec<u8>, String)> =
        keys.iter().map(|(key, is)| (key.to_vec(), is.to_string())).collect();
    all.sort();
    all
}

/// A quota that fits, from slow to fast and from small to as large as a double can count.
fn quota() -> impl Strategy<Value = Quota> {
    let counts = prop_oneof![1..20_u64, 1..10_000_000_u64];
    let periods =
        prop_oneof![1..5000_u64, 1..10_000_000_000_u64, Just(1_000_000_000), Just(86_400_000_000_000)];
    (counts, periods, prop_oneof![1..30_u64, 1..1_000_000_u64]).prop_filter_map(
        "too fine",
        |(count, per, burst)| {
            let quota = Quota::new(count, Duration::from_nanos(per)).ok()?.with_burst(burst).ok()?;
            Units::new(&bucket(quota)).is_ok().then_some(quota)
        },
    )
}

fn bucket(quota: Quota) -> Algorithm {
    Algorithm::new(Kind::TokenBucket, quota)
}

fn policy() -> impl Strategy<Value = Policy> {
    let limits = prop::collection::vec((quota(), prop::bool::weighted(0.2)), 1..4);
    limits.prop_map(|limits| {
        let limit = |(index, (quota, shadow)): (usize, (Quota, bool))| Limit {
            name: index.to_string().into(),
            algorithm: bucket(quota),
            mode: if shadow { Mode::Shadow } else { Mode::Enforce },
        };
        Policy::new(limits.into_iter().enumerate().map(limit).collect())
    })
}

/// A step of time in microseconds, mostly onwards, and costs as parts of the bursts, a few of them above.
type Arrival = (i64, [u8; 3], bool);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let step = prop_oneof![Just(0), 0..2000_i64, 0..20_000_000_i64, -1_000_000..0_i64, Just(86_400_000_000)];
    let cost = prop_oneof![8 => 0..40_u8, 1 => 90..110_u8];
    prop::collection::vec((step, [cost.clone(), cost.clone(), cost], prop::bool::weighted(0.9)), 1..30)
}

fn call(policy: &Policy, key: u8, percent: [u8; 3], charge: bool) -> (Call, Vec<u64>) {
    let costs = policy.limits().iter().zip(percent).map(|(limit, percent)| match &limit.algorithm {
        Algorithm::TokenBucket(bucket) => u64::from(percent) * bucket.burst() / 100,
        _ => 0,
    });
    let costs: Vec<u64> = costs.collect();
    let take = |(limit, cost): (&Limit, &u64)| {
        let bucket = Units::new(&limit.algorithm).unwrap();
        let name = format!("{key}:{}", limit.name).into_bytes();
        Take { key: name.into(), bucket, cost: bucket.cost(*cost), shadow: limit.mode == Mode::Shadow }
    };
    (Call { charge, takes: policy.limits().iter().zip(&costs).map(take).collect() }, costs)
}

/// As the core says it, in whole microseconds.
fn rounded_up(decision: Decision) -> Decision {
    let up = |time: Duration| Duration::from_micros(u64::try_from(time.as_nanos().div_ceil(1000)).unwrap());
    match decision {
        Decision::Allowed { start_after, remaining, reset_after } => {
            Decision::Allowed { start_after, remaining, reset_after: up(reset_after) }
        }
        Decision::Rejected { retry_after, remaining, reset_after } => {
            Decision::Rejected { retry_after: up(retry_after), remaining, reset_after: up(reset_after) }
        }
        never @ Decision::Never { .. } => never,
    }
}

/// The core's states, and its answer to a call.
fn core(policy: &Policy, states: &mut [State], now_us: u64, costs: &[u64], charge: bool) -> PolicyDecision {
    let now = now_us * 1000;
    let limits = || policy.limits().iter();
    let looks: Vec<Decision> = limits()
        .zip(&*states)
        .zip(costs)
        .map(|((limit, state), cost)| limit.algorithm.look(state, now, *cost))
        .collect();
    let answer = policy.combine(|index| rounded_up(looks[index]));
    if answer.decision.is_allowed() && charge {
        for (((limit, state), cost), look) in limits().zip(states).zip(costs).zip(looks) {
            if look.is_allowed() {
                limit.algorithm.charge(state, now, *cost);
            }
        }
    }
    answer
}

/// A year of the clock, in microseconds.
const START: u64 = 1_790_000_000_000_000;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, ..ProptestConfig::default() }
}

#[test]
fn script_reference_and_core_decide_a_trace_alike() {
    let subject = std::cell::RefCell::new(Subject::new());
    proptest!(config(150), |(policy in policy(), arrivals in arrivals())| {
        let mut subject = subject.borrow_mut();
        subject.clear();
        let mut keys = Keys::new();
        let mut states: Vec<State> = policy.limits().iter().map(|limit| limit.algorithm.fresh()).collect();
        let mut now = START;
        for (step, percent, charge) in arrivals {
            now = now.saturating_add_signed(step);
            let (call, costs) = call(&policy, 0, percent, charge);
            let [verdict] = subject.run(now, std::slice::from_ref(&call)).try_into().unwrap();
            prop_assert_eq!(&verdict, &reference::decide(&mut keys, now, &call));
            let answer = exact(&policy, &call.takes, &verdict, charge);
            let expected = core(&policy, &mut states, now, &costs, charge);
            prop_assert_eq!((answer.decision, answer.limit, answer.shadow), (expected.decision, expected.limit, expected.shadow));
            for ((left, limit), state) in answer.remaining.iter().zip(policy.limits()).zip(&states) {
                prop_assert_eq!(*left, limit.algorithm.look(state, now * 1000, 0).remaining());
            }
            prop_assert_eq!(subject.stored(), sorted(&keys));
        }
    });
}

#[test]
fn a_batch_is_decided_as_its_calls_are_one_by_one() {
    let subject = std::cell::RefCell::new(Subject::new());
    proptest!(config(60), |(policy in policy(), batches in prop::collection::vec((0..3_000_000_u64, prop::collection::vec((0..4_u8, arrivals()), 1..8)), 1..5))| {
        let mut subject = subject.borrow_mut();
        subject.clear();
        let mut keys = Keys::new();
        let mut now = START;
        for (step, calls) in batches {
            now += step;
            // Several calls on each of four keys, in any order, some of them many times the same: those go as one.
            let calls: Vec<Call> = calls
                .iter()
                .flat_map(|(key, arrivals)| arrivals.iter().map(move |arrival| (*key, arrival)))
                .flat_map(|(key, (step, percent, charge))| {
                    let times = usize::try_from(step.unsigned_abs() % 4).unwrap() + 1;
                    vec![call(&policy, key, *percent, *charge).0; times]
                })
                .collect();
            let one_by_one: Vec<Verdict> = calls.iter().map(|call| reference::decide(&mut keys, now, call)).collect();
            prop_assert_eq!(subject.run(now, &calls), one_by_one);
            prop_assert_eq!(subject.stored(), sorted(&keys));
        }
    });
}

#[test]
fn calls_that_are_the_same_go_as_one_only_where_nothing_comes_between() {
    let of = |limits: &[&str], charge| Call {
        charge,
        takes: limits
            .iter()
            .map(|limit| Take {
                key: limit.as_bytes().into(),
                bucket: Units::new(&bucket("1/s burst 9".parse().unwrap())).unwrap(),
                cost: 1,
                shadow: false,
            })
            .collect(),
    };
    let (a, b, both, look) = (of(&["a"], true), of(&["b"], true), of(&["a", "b"], true), of(&["a"], false));
    for (calls, operations) in [
        (vec![&a, &a, &a], 1),
        // Other buckets do not come between.
        (vec![&a, &b, &a, &b], 2),
        (vec![&a, &both, &a], 3),
        (vec![&both, &b, &both], 3),
        (vec![&both, &a, &both, &both], 3),
        (vec![&both, &b, &a, &both], 4),
        (vec![&a, &look, &look, &a], 3),
    ] {
        assert_eq!(Batch::new(calls.iter().copied()).operations.len(), operations, "{calls:?}");
    }
}

#[test]
fn a_bucket_stays_as_full_in_proportion_when_its_quota_changes() {
    let subject = std::cell::RefCell::new(Subject::new());
    proptest!(config(150), |(quotas in prop::collection::vec(quota(), 2..8), arrivals in arrivals())| {
        let mut subject = subject.borrow_mut();
        subject.clear();
        let mut keys = Keys::new();
        let mut now = START;
        for (index, (step, percent, charge)) in arrivals.into_iter().enumerate() {
            now = now.saturating_add_signed(step);
            // The same key, as if by several versions of a program.
            let limit = Limit { name: "one".into(), algorithm: bucket(quotas[index % quotas.len()]), mode: Mode::Enforce };
            let (call, _) = call(&Policy::new(vec![limit]), 0, percent, charge);
            let expected = reference::decide(&mut keys, now, &call);
            prop_assert_eq!(subject.run(now, &[call]), vec![expected]);
            prop_assert_eq!(subject.stored(), sorted(&keys));
        }
    });
}

#[test]
fn who_was_refused_under_a_new_quota_is_allowed_when_told() {
    let mut subject = Subject::new();
    let of = |quota: &str, percent, charge| {
        call(&Policy::from(bucket(quota.parse().unwrap())), 0, [percent; 3], charge).0
    };
    for first in [true, false] {
        subject.clear();
        // Emptied under a slow quota, and refused under a fast one: its tokens come at the fast rate from then on.
        subject.run(START, &[of("10/h", 100, true)]);
        let refused = of("100/100s", 1, first);
        assert!(!subject.run(START, &[refused])[0].allowed, "{first}");
        let again = of("100/100s", 1, true);
        assert!(!subject.run(START + 999_999, std::slice::from_ref(&again))[0].allowed, "{first}");
        assert!(subject.run(START + 1_000_000, &[again])[0].allowed, "{first}");
    }
}

#[test]
fn a_clock_that_steps_an_hour_creates_no_more_than_the_step() {
    let mut subject = Subject::new();
    let hour = 3_600_000_000;
    let algorithm = bucket("1 per 10min burst 100".parse().unwrap());
    let policy = Policy::from(algorithm);
    let admitted = |subject: &mut Subject, now| {
        let (one, _) = call(&policy, 0, [1; 3], true);
        let calls = vec![one; 200];
        subject.run(now, &calls).iter().filter(|verdict| verdict.allowed).count()
    };
    assert_eq!(admitted(&mut subject, START), 100);
    // An hour ahead: the six tokens of the hour, though they come too early.
    assert_eq!(admitted(&mut subject, START + hour), 6);
    // Back: nothing, and the wait tells of the hour.
    assert_eq!(admitted(&mut subject, START), 0);
    let (one, _) = call(&policy, 0, [1; 3], true);
    let [verdict] = subject.run(START, std::slice::from_ref(&one)).try_into().unwrap();
    let answer = exact(&policy, &one.takes, &verdict, true);
    assert_eq!(answer.decision.retry_after(), Some(Duration::from_secs(3600 + 600)));
    // And when it has come to where it was, it goes on as ever.
    assert_eq!(admitted(&mut subject, START + hour + 600_000_000 - 1), 0);
    assert_eq!(admitted(&mut subject, START + hour + 600_000_000), 1);
}

#[test]
fn who_comes_back_when_told_is_allowed_and_not_a_microsecond_earlier() {
    let subject = std::cell::RefCell::new(Subject::new());
    proptest!(config(100), |(quota in quota(), spent in 1..=100_u8, wanted in 1..=100_u8, later in 0..2_000_000_u64)| {
        let mut subject = subject.borrow_mut();
        subject.clear();
        let policy = Policy::from(bucket(quota));
        let [(first, _), (call, costs)] = [spent, wanted].map(|percent| call(&policy, 0, [percent; 3], true));
        subject.run(START, &[first]);
        let now = START + later;
        let [verdict] = subject.run(now, std::slice::from_ref(&call)).try_into().unwrap();
        let answer = exact(&policy, &call.takes, &verdict, true);
        prop_assume!(costs[0] > 0);
        if let Some(wait) = answer.decision.retry_after() {
            let then = now + u64::try_from(wait.as_micros()).unwrap();
            let look = Call { charge: false, ..call };
            prop_assert!(!subject.run(then - 1, std::slice::from_ref(&look))[0].allowed);
            prop_assert!(subject.run(then, std::slice::from_ref(&look))[0].allowed);
        }
    });
}
