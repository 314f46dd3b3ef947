//! Calls that are taken back, against a replay of the history in which they never were.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::{Algorithm, Kind, Limiter, Quota, Receipt, Step as _, Tier};

const KINDS: [Kind; 4] = [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog];
/// The last one needs more than 64 bits of state.
const QUOTAS: [&str; 5] = [
    "10/s burst 20",
    "3/s burst 7",
    "1 per 2s burst 5",
    "1000/s",
    "9999999999999 per 20min burst 9999999999999",
];

/// What a caller does next.
#[derive(Debug, Clone)]
enum Act {
    /// A call of this part of the burst, in 16ths, for one of two keys.
    Call { key: usize, part: u64 },
    /// One of the calls is taken back.
    Refund { which: prop::sample::Index },
    /// Nanoseconds pass: up to so many bits of them.
    Pass { bits: u32, random: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..2_usize, 0..12_u64).prop_map(|(key, part)| Act::Call { key, part }),
        3 => any::<prop::sample::Index>().prop_map(|which| Act::Refund { which }),
        2 => (0..33_u32, any::<u64>()).prop_map(|(bits, random)| Act::Pass { bits, random }),
    ]
}

struct Call {
    key: usize,
    at: u64,
    cost: u64,
    stands: bool,
    receipt: Option<Receipt>,
}

/// What a key has left at `now` if only the calls that stand were made.
fn replayed(algorithm: &Algorithm, calls: &[Call], key: usize, now: u64) -> u64 {
    let mut state = algorithm.fresh();
    for call in calls.iter().filter(|call| call.key == key && call.stands) {
        algorithm.charge(&mut state, call.at, call.cost);
    }
    algorithm.look(&state, now, 0).remaining()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_refund_never_gives_more_than_if_the_call_had_not_been(
        kind in prop::sample::select(&KINDS[..]),
        quota in prop::sample::select(&QUOTAS[..]),
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let quota: Quota = quota.parse().unwrap();
        let algorithm = Algorithm::new(kind, quota);
        let most = algorithm.look(&algorithm.fresh(), 0, 0).remaining();
        let clock = ManualClock::new();
        let limiter = Limiter::builder(algorithm).capacity(100).clock(clock.clone()).build().unwrap();
        let mut calls: Vec<Call> = Vec::new();
        for act in acts {
            let now = limiter.now_ns();
            match act {
                Act::Call { key, part } => {
                    let cost = (most / 16 * part).max(1);
                    let decision = limiter.check_at(&key, cost, now);
                    if decision.is_allowed() {
                        let receipt = limiter.receipt(&key, cost, now, &decision);
                        calls.push(Call { key, at: now, cost, stands: true, receipt });
                    }
                }
                Act::Refund { which } if !calls.is_empty() => {
                    let call = which.get_mut(&mut calls);
                    if let Some(receipt) = call.receipt.take() {
                        limiter.refund(receipt);
                        call.stands = false;
                    }
                }
                Act::Refund { .. } => {}
                Act::Pass { bits, random } => {
                    clock.advance(Duration::from_nanos(random & ((1 << bits) - 1)));
                }
            }
            let now = limiter.now_ns();
            for key in 0..2 {
                let (found, exact) = (limiter.peek(&key, 0).remaining(), replayed(&algorithm, &calls, key, now));
                prop_assert!(found <= exact, "{found} left, {exact} if they had not been");
            }
        }
    }

    /// So callers of a service that is down are never refused for it, whatever the rate and however many at one time.
    #[test]
    fn calls_that_are_all_taken_back_leave_no_trace(
        kind in prop::sample::select(&KINDS[..]),
        quota in prop::sample::select(&QUOTAS[..]),
        waits in prop::collection::vec(1..3_000_000_u64, 1..40),
        at_one_time in 1..5_usize,
    ) {
        let algorithm = Algorithm::new(kind, quota.parse::<Quota>().unwrap());
        let clock = ManualClock::new();
        let limiter = Limiter::builder(algorithm).capacity(100).clock(clock.clone()).build().unwrap();
        let most = limiter.peek("key", 0).remaining();
        let mut open = std::collections::VecDeque::new();
        for wait in waits {
            let now = limiter.now_ns();
            let decision = limiter.check_at("key", 1, now);
            prop_assert!(decision.is_allowed());
            open.push_back(limiter.receipt("key", 1, now, &decision).unwrap());
            clock.advance(Duration::from_nanos(wait));
            // As many as the limit allows at one time, if that is fewer.
            if open.len() as u64 == (at_one_time as u64).min(most) {
                limiter.refund(open.pop_front().unwrap());
                // Of what happens at one instant nobody knows the order.
                clock.advance(Duration::from_nanos(1));
            }
        }
        open.into_iter().for_each(|receipt| { limiter.refund(receipt); });
        // What a decision says is rounded to a nanosecond, and so is what comes back.
        clock.advance(Duration::from_nanos(100));
        prop_assert_eq!(limiter.peek("key", 0).remaining(), most);
    }
}

#[test]
fn what_is_not_certain_stays_charged() {
    let quota = || "1/hour burst 3".parse::<Quota>().unwrap();
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(5));
    let limiter = Limiter::builder(quota()).capacity(1).clock(clock.clone()).build().unwrap();
    let call = |key: &str| {
        let now = limiter.now_ns();
        let decision = limiter.check_at(key, 1, now);
        limiter.receipt(key, 1, now, &decision)
    };
    // The key's slot, or another one of its set, is given to a newcomer.
    let receipt = call("ann").unwrap();
    for key in 0..100 {
        assert!(limiter.check_n(&key, 2).is_allowed());
    }
    assert!(limiter.check("ann").is_allowed());
    assert!(!limiter.refund(receipt));
    // The quota changes.
    clock.advance(Duration::from_secs(1));
    let receipt = call("ann").unwrap();
    limiter.set_quota(Tier::default(), 0, "1/hour burst 30".parse().unwrap()).unwrap();
    assert!(!limiter.refund(receipt));
    // What was not allowed has no receipt, and what cost nothing brings nothing back.
    let now = limiter.now_ns();
    assert!(limiter.receipt("ann", 99, now, &limiter.peek_at("ann", 99, now)).is_none());
    let nothing = limiter.receipt("ann", 0, now, &limiter.check_at("ann", 0, now)).unwrap();
    assert!(!limiter.refund(nothing));
}

#[test]
fn a_call_that_is_settled_is_as_one_that_had_that_cost_or_what_is_there_of_it() {
    for kind in KINDS.into_iter().chain([Kind::LeakyBucket]) {
        let algorithm = Algorithm::new(kind, "100/hour".parse::<Quota>().unwrap());
        for (estimate, cost, missing, left) in [
            (60, 15, 0, 75),
            (60, 60, 0, 30),
            (60, 0, 0, 90),
            (60, 80, 0, 10),
            (60, 95, 5, 0),
            (0, 40, 0, 50),
            (0, 91, 1, 0),
        ] {
            let limiter =
                Limiter::builder(algorithm).capacity(100).clock(ManualClock::new()).build().unwrap();
            assert!(limiter.check_n("ann", 10).is_allowed());
            let decision = limiter.check_at("ann", estimate, 0);
            let receipt = limiter.receipt("ann", estimate, 0, &decision).unwrap();
            assert_eq!(limiter.settle(receipt, cost), missing, "{kind:?} {estimate} {cost}");
            // A leaky bucket takes nothing back.
            let left = if kind == Kind::LeakyBucket { left.min(90 - estimate) } else { left };
            assert_eq!(limiter.peek("ann", 0).remaining(), left, "{kind:?} {estimate} {cost}");
        }
    }
}

/// The tokens of an estimate are nobody else's while it is settled, and all that is not missing is charged.
#[test]
fn what_is_settled_while_others_are_charged_is_charged_once() {
    const TOKENS: u64 = 20_000;
    let limiter = Limiter::new(format!("1/d burst {TOKENS}").parse::<Quota>().unwrap(), 100);
    let (others, settled) = std::thread::scope(|scope| {
        let others = scope.spawn(|| (0..).take_while(|_| limiter.check("ann").is_allowed()).count());
        let mut settled = 0;
        for round in 0_u64.. {
            let now = limiter.now_ns();
            let decision = limiter.check_at("ann", 5, now);
            let Some(receipt) = limiter.receipt("ann", 5, now, &decision) else { break };
            let cost = round % 11;
            let missing = limiter.settle(receipt, cost);
            assert!(cost > 5 || missing == 0, "{missing} of {cost}");
            settled += cost - missing;
        }
        (others.join().unwrap() as u64, settled)
    });
    assert_eq!(others + settled + limiter.peek("ann", 0).remaining(), TOKENS);
}
