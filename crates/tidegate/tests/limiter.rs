//! The keyed limiter under threads, under a flood of strangers, and with a clock that goes back.
//!
//! One file, since nearly every case is asked of both tables, the flat one and that of sets, by the same few helpers.

#![expect(clippy::unwrap_used, reason = "the quotas of these tests are legal")]

use std::thread;
use std::time::Duration;

use tidegate::algorithm::{LeakyBucket, TokenBucket};
use tidegate::clock::ManualClock;
use tidegate::{
    Algorithm, Bucket, Capacity, Decision, Kind, Limit, Limiter, Mode, Policy, Quota, Step, Tier, WhenFull,
};

const S: u64 = 1_000_000_000;

fn limiter(kind: Kind, quota: &str, keys: usize) -> Limiter {
    Limiter::new(Algorithm::new(kind, quota.parse().unwrap()), keys)
}

#[test]
fn threads_at_one_instant_are_allowed_exactly_the_burst() {
    for kind in
        [Kind::TokenBucket, Kind::LeakyBucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog]
    {
        let limiter = limiter(kind, "1000/s", 64);
        let allowed: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1000).filter(|_| limiter.check_at("one", 1, 5 * S).is_allowed()).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(allowed, 1000, "{kind}");
    }
}

#[test]
fn threads_on_many_keys_get_the_burst_of_each() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 7", 1024);
    let allowed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let calls = (0..20).flat_map(|_| 0..50_u32);
                    calls.filter(|key| limiter.check_at(key, 1, 0).is_allowed()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(limiter.stats_at(0).evicted, 0);
    assert_eq!(allowed, 50 * 7);
}

#[test]
fn text_and_owned_text_are_the_same_key() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 1", 8);
    assert!(limiter.check_at("ann", 1, 0).is_allowed());
    assert!(!limiter.check_at(&String::from("ann"), 1, 0).is_allowed());
    assert!(!limiter.check_at(&"ann", 1, 0).is_allowed());
    assert!(limiter.check_at("bob", 1, 0).is_allowed());
}

#[test]
fn a_flood_of_strangers_takes_no_memory_and_frees_a_held_key_only_with_a_counted_eviction() {
    let limiter = limiter(Kind::TokenBucket, "10/s burst 10", 64);
    let bytes = limiter.bytes();
    let mut allowed = 0;
    // The key is held at its limit for 100 s, among 200,000 strangers who call once each.
    for step in 0..200_000_u64 {
        let now = step * S / 2000;
        assert!(limiter.check_at(&step, 1, now).is_allowed(), "a stranger within the limit");
        allowed += u64::from(limiter.check_at("held", 1, now).is_allowed());
    }
    let stats = limiter.stats_at(100 * S);
    assert_eq!((limiter.bytes(), stats.slots), (bytes, 70));
    assert!(stats.evicted > 0, "70 slots cannot hold 200 strangers at a time");
    // 10 + 10/s x 100 s; what is forgotten at an eviction is at most one burst. Since the strangers owe one token
    // each and the held key ten, it is never the one that is forgotten.
    assert_eq!(allowed, 1009);
}

#[test]
fn evictions_forget_the_smallest_debt_first() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 100", 0);
    let slots = limiter.stats_at(0).slots as u64;
    for key in 0..slots {
        assert!(limiter.check_at(&key, 10 + key, 0).is_allowed());
    }
    assert_eq!(limiter.stats_at(0).used as u64, slots);
    assert!(limiter.check_at("newcomer", 100, 0).is_allowed());
    assert_eq!(limiter.stats_at(0).evicted, 1);
    // Key 0 owed least: it is the one that has a full bucket again; the others still owe what they took.
    for key in 1..slots {
        assert_eq!(limiter.check_at(&key, 0, 0).remaining(), 90 - key);
    }
    assert_eq!(limiter.check_at(&0_u64, 0, 0).remaining(), 100);
}

#[test]
fn calls_that_leave_nothing_to_remember_take_no_slot() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 5", 8);
    for key in 0..100_u32 {
        assert_eq!(limiter.check_at(&key, 6, 0), Decision::Never { capacity: 5 });
        assert!(limiter.check_at(&key, 0, 0).is_allowed());
    }
    let stats = limiter.stats_at(0);
    assert_eq!((stats.used, stats.evicted), (0, 0));

    let unlimited = Limiter::new(Algorithm::new(Kind::Unlimited, "1/s".parse().unwrap()), 8);
    assert!((0..100_u32).all(|key| unlimited.check_at(&key, 1, 0).is_allowed()));
    assert_eq!(unlimited.stats_at(0).evicted, 0);
}

#[test]
fn a_slot_is_free_when_its_limiter_is_as_good_as_new_and_not_before() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 1", 0);
    for key in 0..7_u32 {
        assert!(limiter.check_at(&key, 1, 0).is_allowed());
    }
    assert_eq!(limiter.stats_at(S - 1).used, 7);
    assert_eq!(limiter.stats_at(S).used, 0);
    assert!(limiter.check_at("late", 1, S).is_allowed());
    assert_eq!(limiter.stats_at(S).evicted, 0);
}

#[test]
fn a_clock_that_goes_back_creates_nothing_for_a_key_that_was_forgotten() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 1", 0);
    for key in 0..7_u32 {
        assert!(limiter.check_at(&key, 1, 0).is_allowed());
    }
    // At 1 s all are as good as new, and strangers take their slots.
    for key in 100..107_u32 {
        assert!(limiter.check_at(&key, 1, S).is_allowed());
    }
    // Back at 0.5 s, a forgotten key is seen at 1 s, where it had its token; it has it once.
    let decision = limiter.check_at(&0_u32, 1, S / 2);
    let Decision::Allowed { reset_after, .. } = decision else { panic!("{decision:?}") };
    assert_eq!(reset_after, Duration::from_millis(1500));
    assert!(!limiter.check_at(&0_u32, 1, S / 2).is_allowed());
    assert!(!limiter.check_at(&0_u32, 1, 2 * S - 1).is_allowed());
}

#[test]
fn a_clock_that_goes_back_gives_a_key_that_was_evicted_no_more_than_was_counted() {
    // The second is a table of sets, for the number of its limits.
    let bucket = |name: usize| named(&name.to_string(), bucket("100/s"), Mode::Enforce);
    for policy in [Policy::new(vec![bucket(0)]), Policy::new((0..9).map(bucket).collect())] {
        let limiter = Limiter::builder(policy).capacity(Capacity::Bytes(1)).clock(ManualClock::new());
        let limiter = limiter.build().unwrap();
        // A key that has spent everything has all but a part of a token again when it is evicted.
        let evicted_at = S - 1;
        assert!(limiter.check_at("held", 100, 0).is_allowed());
        for key in 1..limiter.stats().slots {
            assert!(limiter.check_at(&key, 60, S / 2).is_allowed());
        }
        assert!(limiter.check_at("new", 100, evicted_at).is_allowed());
        let stats = limiter.stats_at(evicted_at);
        assert_eq!((stats.evicted, stats.forgotten), (1, 1));
        // The clock goes back, and comes again to where it was.
        let allowed = |now| (0..200).filter(|_| limiter.check_at("held", 1, now).is_allowed()).count();
        let (again, later) = (allowed(0), allowed(evicted_at));
        assert!(again + later <= 99 + 1, "{again} at 0, {later} later: 99 tokens came and 1 was forgotten");
    }
}

#[test]
fn the_keyed_limiter_decides_as_the_pure_step_does() {
    for &kind in Kind::ALL {
        // The flat table of token buckets has no room for the time of the last charge: see the next test. Where time goes
        // back there is one key: with more, one that was as good as new could be forgotten.
        let goes_back = kind != Kind::TokenBucket;
        let keys = if goes_back { 1 } else { 16 };
        let algorithm = Algorithm::new(kind, "7 per 3s burst 4".parse().unwrap());
        let limiter = Limiter::new(algorithm, 4096);
        let mut states = vec![algorithm.fresh(); 16];
        // Steps of a fixed linear generator: times that sometimes repeat or go back, costs of 0 to 5.
        let mut x = 12345_u64;
        let mut now = 10 * S;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = x >> 33;
            now = (now + draw % 50_000_000).saturating_sub(if goes_back && draw.is_multiple_of(7) {
                100_000_000
            } else {
                0
            });
            let (key, cost) = ((draw >> 8) % keys, (draw >> 4) % 6);
            let state = &mut states[usize::try_from(key).unwrap()];
            let (next, expected) = algorithm.step(state.clone(), now, cost);
            *state = next;
            assert_eq!(limiter.check_at(&key, cost, now), expected, "{kind} key {key} cost {cost} at {now}");
        }
        assert_eq!(limiter.stats_at(now).evicted, 0);
    }
}

#[test]
fn the_flat_table_decides_as_the_one_number_bucket_does_also_when_time_goes_back() {
    // One key: with more, one whose bucket was full could be forgotten, and be full when the time goes back.
    for quota in ["7 per 3s burst 4", "10/s", "1 per 10s burst 3", "90000/min burst 2"] {
        let bucket = TokenBucket::new(quota.parse().unwrap());
        let limiter = limiter(Kind::TokenBucket, quota, 4096);
        let mut state = bucket.fresh();
        let mut random = Pcg(7);
        let mut now = 10 * S;
        for _ in 0..20_000 {
            let draw = random.next();
            now = (now + draw % 50_000_000).saturating_sub(if draw.is_multiple_of(7) {
                100_000_000
            } else {
                0
            });
            let cost = (draw >> 4) % 6;
            let expected;
            (state, expected) = bucket.step(state, now, cost);
            assert_eq!(limiter.check_at("one", cost, now), expected, "{quota} cost {cost} at {now}");
        }
    }
}

/// A fixed linear generator.
struct Pcg(u64);

impl Pcg {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

fn named(name: &str, algorithm: Algorithm, mode: Mode) -> Limit {
    Limit { name: name.into(), algorithm, mode }
}

fn bucket(quota: &str) -> Algorithm {
    Algorithm::new(Kind::TokenBucket, quota.parse::<Quota>().unwrap())
}

#[test]
fn several_limits_are_decided_as_the_pure_policy_does() {
    let window = Algorithm::new(Kind::FixedWindow, "20/s".parse::<Quota>().unwrap());
    for second in [bucket("20/s burst 30"), window] {
        let policy = Policy::new(vec![
            named("fast", bucket("10/s burst 5"), Mode::Enforce),
            named("second", second, Mode::Enforce),
            named("tried", bucket("3/s"), Mode::Shadow),
        ]);
        let limiter = Limiter::builder(policy.clone()).capacity(1000).build().unwrap();
        let mut states = vec![policy.fresh(); 8];
        let mut random = Pcg(3);
        let clock = ManualClock::new();
        let limiter_on_clock =
            Limiter::builder(policy.clone()).capacity(1000).clock(clock.clone()).build().unwrap();
        let mut now = 0;
        for _ in 0..20_000 {
            let draw = random.next();
            now += draw % 30_000_000;
            clock.set(now);
            let (key, costs) = ((draw >> 8) % 8, [(draw >> 4) % 3, (draw >> 6) % 7, 1]);
            let state = &mut states[usize::try_from(key).unwrap()];
            let (next, expected) = policy.step_with(state.clone(), now, |limit| costs[limit]);
            *state = next;
            assert_eq!(
                limiter_on_clock.check_with(&key, |limit| costs[limit]),
                expected,
                "key {key} at {now}"
            );
        }
        assert_eq!(limiter.stats().used, 0);
    }
}

#[test]
fn a_look_with_several_costs_says_what_the_call_would_be_told_and_charges_nothing() {
    let two = Policy::new(vec![
        named("calls", bucket("1/hour burst 3"), Mode::Enforce),
        named("bytes", bucket("1/hour burst 100"), Mode::Enforce),
    ]);
    let limiter = Limiter::new(two, 8);
    for costs in [[1, 60], [1, 60], [2, 40], [3, 0], [1, 40]] {
        let look = limiter.peek_with("ann", |limit| costs[limit]);
        assert_eq!(limiter.peek_with("ann", |limit| costs[limit]).limit, look.limit);
        let call = limiter.check_with("ann", |limit| costs[limit]);
        assert_eq!(
            (look.limit, look.decision.is_allowed()),
            (call.limit, call.decision.is_allowed()),
            "{costs:?}"
        );
        assert_eq!(look.decision.remaining(), call.decision.remaining(), "{costs:?}");
    }
}

#[test]
fn newcomers_in_a_full_table_share_one_state_or_are_rejected_as_was_said() {
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let algorithm = Algorithm::new(kind, "10/s".parse::<Quota>().unwrap());
        let build = |rule| {
            let clock = ManualClock::new();
            let limiter =
                Limiter::builder(algorithm).capacity(Capacity::Bytes(1)).when_full(rule).clock(clock.clone());
            let limiter = limiter.build().unwrap();
            for key in 0..limiter.stats().slots {
                assert_eq!(limiter.check_n(&key, 10).remaining(), 0);
            }
            (limiter, clock)
        };
        let (sharing, _) = build(WhenFull::Share);
        let allowed = (1000..2000_u32).filter(|key| sharing.check(key).is_allowed()).count();
        assert_eq!(allowed, 10, "{kind}: a thousand newcomers have one state");
        assert_eq!((sharing.stats().shared, sharing.stats().evicted), (1000, 0));
        assert!(!sharing.check(&0_usize).is_allowed(), "{kind}: nobody established was forgotten");

        let (rejecting, clock) = build(WhenFull::Reject);
        let decision = rejecting.check("new");
        let wait = decision.retry_after().unwrap();
        assert_eq!((rejecting.stats().refused, rejecting.stats().evicted), (1, 0));
        clock.advance(wait - Duration::from_nanos(1));
        assert!(!rejecting.check("new").is_allowed());
        clock.advance(Duration::from_nanos(1));
        assert!(rejecting.check("new").is_allowed(), "{kind}: the wait told is kept");
    }
}

#[test]
fn whatever_the_clock_does_what_is_allowed_beyond_the_limits_is_counted() {
    let mut random = Pcg(11);
    for round in 0..300 {
        let mut draw = |below: u64| random.next() % below;
        let (count, per, burst) = (1 + draw(10), 1 + draw(1000), 1 + draw(20));
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap();
        // Nine limits are a table of sets.
        let limits = if round % 3 == 0 { 9 } else { 1 };
        let bucket = named("a", Algorithm::new(Kind::TokenBucket, quota), Mode::Enforce);
        let clock = ManualClock::new();
        let limiter = Limiter::builder(Policy::new(vec![bucket; limits]))
            .clock(&clock)
            .capacity(Capacity::Bytes(1))
            .when_full(if round % 2 == 0 { WhenFull::Evict } else { WhenFull::Reject })
            .build()
            .unwrap();
        let keys = 1 + draw(20);
        let mut allowed = vec![0_u128; 20];
        let (mut now, mut latest) = (0, 0);
        for step in 0..300 {
            now = match draw(4) {
                0 => now + draw(per * 2),
                1 => now.saturating_sub(draw(per * burst * 2)),
                2 => latest,
                _ => now,
            };
            latest = latest.max(now);
            clock.set(now);
            if draw(30) == 0 {
                limiter.set_quota(Tier::default(), 0, quota).unwrap();
            }
            let (key, cost) = (draw(keys), 1 + draw(burst));
            let looked = limiter.peek(&key, cost);
            let decision = limiter.check_n(&key, cost);
            assert_eq!(decision, looked, "round {round} step {step}");
            if decision.is_allowed() {
                allowed[usize::try_from(key).unwrap()] += u128::from(cost);
            }
            // However often a time comes again, what a key gets in all is a burst and what came until the latest.
            let bound = TokenBucket::new(quota).bound(Duration::from_nanos(latest)).unwrap();
            let beyond: u128 = allowed.iter().map(|allowed| allowed.saturating_sub(bound)).sum();
            let forgotten = limiter.stats().forgotten;
            assert!(beyond <= u128::from(forgotten), "round {round} step {step}: {beyond} of {forgotten}");
        }
    }
}

#[test]
fn a_look_at_a_newcomer_in_a_full_table_says_what_the_call_would_be_told_and_counts_nothing() {
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        for rule in [WhenFull::Evict, WhenFull::Share, WhenFull::Reject] {
            let algorithm = Algorithm::new(kind, "10/s".parse::<Quota>().unwrap());
            let limiter = Limiter::builder(algorithm).capacity(Capacity::Bytes(1)).when_full(rule);
            let limiter = limiter.clock(ManualClock::new()).build().unwrap();
            (0..limiter.stats().slots).for_each(|key| assert!(limiter.check_n(&key, 10).is_allowed()));
            for (key, cost) in (1000_u32..).zip([0, 4, 11, 4, 4, 2, 1]) {
                let before = limiter.stats();
                let looked = limiter.peek(&key, cost);
                assert_eq!(limiter.stats(), before, "{kind} {rule:?}");
                assert_eq!(looked, limiter.check_n(&key, cost), "{kind} {rule:?} cost {cost}");
            }
        }
    }
}

#[test]
fn newcomers_of_two_tiers_that_share_do_not_touch_and_keep_their_debt_when_a_quota_changes() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        // The last is wide: so both tables have the token buckets.
        for (first, second) in [("10/s", "30/hour"), ("7 per 3s burst 10", "9223372036854775807/s burst 30")]
        {
            let clock = ManualClock::new();
            clock.set(1_000 * S);
            let [policy, gold] = [first, second].map(|text| Algorithm::new(kind, quota(text)));
            let limiter =
                Limiter::builder(policy).tier("gold", gold).clock(&clock).capacity(Capacity::Bytes(1));
            let limiter = limiter.when_full(WhenFull::Share).build().unwrap();
            let gold = limiter.tier("gold").unwrap();
            let slots = limiter.stats().slots;
            let burst = limiter.peek("new", 0).remaining();
            (0..slots).for_each(|key| assert!(limiter.check_n(&key, burst).is_allowed()));
            let allowed = |tier, keys: u64| {
                (0..keys).filter(|key| limiter.check_in(tier, &(1000 + key), 1).is_allowed()).count() as u64
            };
            assert_eq!(allowed(Tier::default(), 50), burst, "{kind} {first} {second}");
            if kind == Kind::TokenBucket {
                assert!(allowed(gold, 30) == 30, "{kind} {first} {second}");
            }
            assert_eq!(allowed(Tier::default(), 50), 0, "{kind} {first} {second}");
        }
        // A change of the second tier carries over what its newcomers spent.
        let clock = ManualClock::new();
        let limiter = Limiter::builder(Algorithm::new(kind, quota("10/hour")))
            .tier("gold", Algorithm::new(kind, quota("30/hour")))
            .clock(&clock)
            .capacity(Capacity::Bytes(1))
            .when_full(WhenFull::Share)
            .build()
            .unwrap();
        let gold = limiter.tier("gold").unwrap();
        (0..limiter.stats().slots).for_each(|key| assert!(limiter.check_n(&key, 10).is_allowed()));
        assert!(limiter.check_in(gold, "new", 30).is_allowed());
        limiter.set_quota(gold, 0, quota("3000/hour")).unwrap();
        assert!(!limiter.check_in(gold, "new", 1).is_allowed(), "{kind}");
    }
}

#[test]
fn what_eviction_gives_back_is_counted() {
    let limiter = limiter(Kind::TokenBucket, "1/hour burst 100", 1);
    let slots = u64::try_from(limiter.stats_at(0).slots).unwrap();
    let mut allowed = 0;
    // Twice as many keys as slots, each at its limit, in turns.
    for round in 0..50_u64 {
        for key in 0..2 * slots {
            allowed += if limiter.check_at(&key, 10, round).is_allowed() { 10 } else { 0 };
        }
    }
    let stats = limiter.stats_at(50);
    assert!(stats.evicted > 0);
    assert!(allowed <= 2 * slots * 100 + stats.forgotten, "{allowed} allowed, {} forgotten", stats.forgotten);
}

#[test]
fn a_change_of_quota_gives_nobody_a_burst() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in [Kind::TokenBucket, Kind::FixedWindow, Kind::LeakyBucket, Kind::SlidingLog] {
        let clock = ManualClock::new();
        let algorithm = Algorithm::new(kind, quota("100/hour"));
        let limiter = Limiter::builder(algorithm).capacity(1000).clock(clock.clone()).build().unwrap();
        for (key, spent) in [("empty", 100), ("half", 50), ("full", 0)] {
            assert_eq!(limiter.check_n(key, spent).remaining(), 100 - spent);
        }
        // Another burst, another rate, units that do not divide each other, and back.
        for (text, capacity) in
            [("1000/hour", 1000), ("7 per 3600s", 7), ("2000/day", 2000), ("100/hour", 100)]
        {
            limiter.set_quota(Tier::default(), 0, quota(text)).unwrap();
            for (key, part) in
                [("empty", 0), ("half", capacity / 2), ("full", capacity), ("unknown", capacity)]
            {
                let remaining = limiter.peek(key, 0).remaining();
                let lost = if key == "half" { u64::div_ceil(capacity, 7) } else { 0 };
                assert!(
                    remaining <= part && remaining + lost >= part,
                    "{kind} {text} {key}: {remaining} of {part}"
                );
            }
        }
    }
}

#[test]
fn a_change_of_one_limit_leaves_the_others_as_they_were() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for &kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Unlimited) {
        let other = Algorithm::new(kind, quota("10/s"));
        let policy = Policy::new(vec![
            named("changes", bucket("20/s burst 1000"), Mode::Enforce),
            named("stays", other, Mode::Enforce),
        ]);
        let clock = ManualClock::new();
        clock.set(100 * S);
        let limiter = Limiter::builder(policy).clock(&clock).build().unwrap();
        assert!(limiter.check_n("ann", 10).is_allowed());
        clock.set(100 * S + S / 2);
        let before = limiter.peek("ann", 7);
        limiter.set_quota(Tier::default(), 0, quota("30/s burst 1000")).unwrap();
        assert_eq!(limiter.peek("ann", 7), before, "{kind}");
    }
}

#[test]
fn quotas_change_while_callers_go_on() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    let limiter = Limiter::new(quota("1 per 36500d burst 100"), 5000);
    let allowed: usize = thread::scope(|scope| {
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let limiter = &limiter;
                scope
                    .spawn(move || (0..40_000_u32).filter(|n| limiter.check(&(n % 100)).is_allowed()).count())
            })
            .collect();
        for _ in 0..50 {
            limiter.set_quota(Tier::default(), 0, quota("3 per 36500d burst 100")).unwrap();
            limiter.set_quota(Tier::default(), 0, quota("1 per 36500d burst 100")).unwrap();
        }
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(allowed, 100 * 100, "a hundred keys with a burst of a hundred, and no token comes");
}

#[test]
fn a_key_that_changes_its_tier_stays_as_full_in_proportion() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let policy = |text: &str| Algorithm::new(kind, quota(text));
        let limiter = Limiter::builder(policy("10/hour"))
            .tier("gold", policy("70/hour"))
            .key_tier("vip", "gold")
            .clock(ManualClock::new())
            .build()
            .unwrap();
        let gold = limiter.tier("gold").unwrap();
        assert_eq!(limiter.check("vip").remaining(), 69);
        assert_eq!(limiter.check_n("ann", 10).remaining(), 0);
        assert!(!limiter.check_in(gold, "ann", 1).is_allowed(), "{kind}: a better tier brings no tokens");
        assert_eq!(limiter.check_n("bob", 5).remaining(), 5);
        assert_eq!(limiter.check_in(gold, "bob", 0).remaining(), 35);
        assert_eq!(limiter.check_n("bob", 1).remaining(), 4);
        assert_eq!(limiter.tier("silver"), None);
    }
}

#[test]
fn a_look_at_a_key_that_was_in_another_tier_says_what_the_call_would_be_told() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingLog] {
        // The third is a table of sets for token buckets, as one of their quotas is wide.
        for (first, second) in
            [("10/s", "1000/s"), ("100/s", "3/s"), ("7 per 3s burst 5", "9223372036854775807/s")]
        {
            let [policy, gold] = [first, second].map(|text| Algorithm::new(kind, quota(text)));
            let limiter =
                Limiter::builder(policy).tier("gold", gold).clock(ManualClock::new()).build().unwrap();
            let gold = limiter.tier("gold").unwrap();
            for (key, spent) in [("ann", 3), ("bob", 1), ("eve", 0)] {
                let _ = limiter.check_in(gold, key, spent);
                for cost in [0, 1] {
                    assert_eq!(limiter.peek(key, cost), limiter.check_n(key, cost), "{kind} {second} {key}");
                }
            }
        }
    }
}

#[test]
fn a_queue_changes_while_its_callers_stay() {
    let clock = ManualClock::new();
    let line = |queue| Algorithm::LeakyBucket(LeakyBucket::new("1/hour".parse().unwrap(), queue));
    let limiter = Limiter::builder(line(1)).tier("gold", line(1)).clock(&clock).build().unwrap();
    let gold = limiter.tier("gold").unwrap();
    let check = |key: &str| limiter.check_in_at(gold, key, 1, clock.now_ns()).is_allowed();
    assert_eq!(["ann", "ann", "ann"].map(check), [true, true, false]);
    limiter.set_algorithm(gold, 0, line(3)).unwrap();
    let left = |tier, key| limiter.peek_in_at(tier, key, 0, clock.now_ns()).remaining();
    assert_eq!((left(gold, "ann"), left(gold, "bob"), left(Tier::default(), "bob")), (0, 4, 2));
    // A table of 64-bit numbers has no queue.
    let limiter = Limiter::new("1/s".parse::<Quota>().unwrap(), 1);
    let error = limiter.set_algorithm(Tier::default(), 0, line(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this leaky-bucket does not fit the 64-bit state of this limiter; build a new limiter with it"
    );
}

#[test]
fn what_cannot_be_built_says_why() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    let errors = [
        Limiter::builder(Policy::new(Vec::new())).build().unwrap_err(),
        Limiter::builder(quota("1/s")).tier("a", Policy::new(Vec::new())).build().unwrap_err(),
        Limiter::builder(quota("1/s")).tier("a", quota("2/s")).tier("a", quota("3/s")).build().unwrap_err(),
        Limiter::builder(quota("1/s")).key_tier("ann", "gold").build().unwrap_err(),
        Limiter::new(quota("1/s"), 1).set_quota(Tier::default(), 1, quota("1/s")).unwrap_err(),
        Limiter::new(quota("1/s"), 1).set_quota(Tier::default(), 0, quota("1000000007/s")).unwrap_err(),
    ];
    let texts = errors.map(|error| error.to_string());
    assert_eq!(
        texts.each_ref().map(String::as_str),
        [
            "a limiter needs at least one limit; use the algorithm `none` to limit nothing",
            "tier `a` has other limits than the first; give each tier the same limits in number, order, name and mode",
            "two tiers are named `a`; give each a name of its own",
            "there is no tier `gold`; declare it before it is given to a key",
            "there is no limit 1 in tier 0; this limiter has 1 limits and 1 tiers",
            "this token-bucket does not fit the 64-bit state of this limiter; build a new limiter with it",
        ]
    );
}

#[test]
fn memory_is_what_was_asked_for() {
    let quota = "10/s burst 20".parse::<Quota>().unwrap();
    for keys in [1000, 65_536, 1_000_000] {
        let limiter = Limiter::new(quota, keys);
        assert!(limiter.stats_at(0).slots >= keys);
        assert!(limiter.bytes() <= 20 * keys + 128, "{} bytes for {keys} keys", limiter.bytes());
    }
    for bytes in [128, 4096, 1 << 20] {
        let limiter = Limiter::new(quota, Capacity::Bytes(bytes));
        assert!(limiter.bytes() <= bytes, "{} of {bytes}", limiter.bytes());
    }
    // A quota whose state is wider than 64 bits works as well, in a table of another kind.
    let wide = Limiter::new("1000000007/s burst 5".parse::<Quota>().unwrap(), 10);
    assert_eq!((0..9).filter(|_| wide.check_at("ann", 1, 0).is_allowed()).count(), 5);
}

#[test]
fn the_collision_bound_holds_for_hashes_of_few_bits() {
    // The arithmetic, with 16-bit fingerprints and 4 sets in place of 56 bits and many: pairs that agree in both.
    let (bits, sets, keys, runs) = (16_u32, 4_u64, 64_u64, 3000);
    let mut random = Pcg(11);
    let mut collided = 0_u32;
    for _ in 0..runs {
        let mut seen = std::collections::HashSet::new();
        let draws = (0..keys).map(|_| (random.next() << 33) ^ (random.next() << 5) ^ random.next());
        let collides = draws
            .map(|hash| ((u128::from(hash) * u128::from(sets)) >> 64, hash & ((1 << bits) - 1)))
            .any(|slot| !seen.insert(slot));
        collided += u32::from(collides);
    }
    let bound = f64::from(u32::try_from(keys * keys).unwrap()) / 2.0 / (2.0_f64.powi(16) * 4.0);
    let measured = f64::from(collided) / f64::from(runs);
    assert!(measured < bound * 1.5 && measured > bound / 2.0, "{measured} against a bound of {bound}");
    let limiter = Limiter::new("1/s".parse::<Quota>().unwrap(), 1_000_000);
    assert!((limiter.collision_bound(1_000_000) - 5e11 / 2.0_f64.powi(64)).abs() < 1e-12);
}

#[test]
fn a_quota_of_many_units_works_on_a_clock_that_counts_from_the_epoch() {
    // 11/s counts in elevenths of a nanosecond: 64 bits last for 53 years of them, and the epoch is further away.
    let clock = ManualClock::new();
    clock.set(1_800_000_000 * S);
    for quota in ["11/s burst 2", "13/s burst 2", "10/s burst 2", "110/s burst 2"] {
        let quota: Quota = quota.parse().unwrap();
        let limiter = Limiter::builder(quota).capacity(100).clock(&clock).build().unwrap();
        let bucket = Bucket::with_clock(quota, &clock);
        for _ in 0..5 {
            assert!(limiter.check_n("ann", 2).is_allowed() && bucket.check_n(2).is_allowed(), "{quota}");
            assert!(!limiter.check("ann").is_allowed() && !bucket.check().is_allowed(), "{quota}");
            clock.advance(Duration::from_secs(1));
        }
    }
}

#[test]
fn the_wait_is_exact_for_a_burst_that_takes_half_of_64_bits_or_more() {
    // Ten thousand million tokens of 10⁹ units each are more than 2⁶³: with a bucket that is empty and a call for all of
    // it, twice as much is missing.
    for burst in [10_000_000_000_u64, 17_000_000_000, 9_223_372_036, 9_223_372_037, 8_000_000_000] {
        let quota = "1/s".parse::<Quota>().unwrap().with_burst(burst).unwrap();
        let clock = ManualClock::new();
        let limiter = Limiter::builder(quota).capacity(10).clock(&clock).build().unwrap();
        let bucket = Bucket::with_clock(quota, &clock);
        assert!(limiter.check_n("ann", burst).is_allowed() && bucket.check_n(burst).is_allowed());
        let wait = Some(Duration::from_secs(burst));
        assert_eq!(limiter.check_n("ann", burst).retry_after(), wait, "{burst}");
        assert_eq!(bucket.check_n(burst).retry_after(), wait, "{burst}");
    }
}

#[test]
fn newcomers_that_share_gain_nothing_when_the_quota_changes() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let limiter = Limiter::builder(Algorithm::new(kind, quota("10 per 36500d")))
            .capacity(Capacity::Bytes(1))
            .when_full(WhenFull::Share)
            .build()
            .unwrap();
        (0..limiter.stats().slots).for_each(|key| assert!(limiter.check_n(&key, 10).is_allowed()));
        let stop = std::sync::atomic::AtomicBool::new(false);
        let allowed = thread::scope(|scope| {
            let newcomers = scope.spawn(|| {
                let keys = (1000..u64::MAX).take_while(|_| !stop.load(std::sync::atomic::Ordering::Relaxed));
                keys.filter(|key| limiter.check(key).is_allowed()).count()
            });
            for _ in 0..300 {
                limiter.set_quota(Tier::default(), 0, quota("30 per 36500d burst 10")).unwrap();
                limiter.set_quota(Tier::default(), 0, quota("10 per 36500d")).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            newcomers.join().unwrap()
        });
        let most = if kind == Kind::TokenBucket { 10 } else { 30 };
        assert!(allowed <= most, "{kind}: {allowed} newcomers, and no token comes");
    }
}

#[test]
fn a_leaky_bucket_keeps_its_queue_when_its_quota_changes() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    let bucket = LeakyBucket::new(quota("10/s burst 1"), 50).with_max_wait(Duration::from_secs(1));
    let limiter = Limiter::builder(Algorithm::LeakyBucket(bucket)).clock(ManualClock::new()).build().unwrap();
    limiter.set_quota(Tier::default(), 0, quota("100/s burst 1")).unwrap();
    assert_eq!(
        (0..100).filter(|_| limiter.check("a").is_allowed()).count(),
        51,
        "the queue of 50 and the burst"
    );
    limiter.set_quota(Tier::default(), 0, quota("5/s burst 1")).unwrap();
    assert_eq!(
        (0..100).filter(|_| limiter.check("b").is_allowed()).count(),
        6,
        "no more than a second's worth waits"
    );
}

#[test]
fn a_clock_that_goes_back_before_a_change_creates_nothing() {
    let quota: Quota = "10/s".parse().unwrap();
    let clock = ManualClock::new();
    let limiter = Limiter::builder(quota)
        .tier("other", "10/s burst 20".parse::<Quota>().unwrap())
        .clock(&clock)
        .build()
        .unwrap();
    let other = limiter.tier("other").unwrap();
    clock.set(100 * S);
    assert!(limiter.check_n("ann", 10).is_allowed() && limiter.check_n("bob", 10).is_allowed());
    clock.set(50 * S);
    limiter.set_quota(Tier::default(), 0, quota).unwrap();
    let _ = limiter.check_in(other, "bob", 0);
    clock.set(100 * S);
    assert!(!limiter.check("ann").is_allowed());
    assert!(!limiter.check_in(other, "bob", 1).is_allowed());
}

#[test]
fn a_clock_that_goes_back_after_a_change_creates_nothing() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in
        [Kind::TokenBucket, Kind::LeakyBucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog]
    {
        for (from, to) in [("10/s", "10/s"), ("10/s", "30 per 3s burst 10"), ("20 per 2s burst 10", "10/s")] {
            let clock = ManualClock::new();
            let policy = Algorithm::new(kind, quota(from));
            let limiter = Limiter::builder(policy).tier("other", policy).clock(&clock).build().unwrap();
            let other = limiter.tier("other").unwrap();
            clock.set(100 * S);
            let allowed =
                |tier, key: &str| (0..100).filter(|_| limiter.check_in(tier, key, 1).is_allowed()).count();
            let most = allowed(Tier::default(), "ann").max(allowed(Tier::default(), "bob"));
            // All is there again. One of them comes in another tier, and then the quotas change.
            clock.set(110 * S);
            let _ = limiter.check_in(other, "bob", 0);
            limiter.set_quota(Tier::default(), 0, quota(to)).unwrap();
            limiter.set_quota(other, 0, quota(to)).unwrap();
            let capacity = limiter.peek("new", 0).remaining().max(most as u64);
            for (tier, key) in [(Tier::default(), "ann"), (other, "bob")] {
                clock.set(100 * S);
                let back = allowed(tier, key);
                clock.set(110 * S);
                let again = allowed(tier, key);
                assert!((back + again) as u64 <= capacity, "{kind} {from} to {to} {key}: {back} and {again}");
                assert!(again + back > 0, "{kind} {from} to {to} {key}");
            }
        }
    }
}

#[test]
fn the_cost_is_asked_once_and_may_use_the_limiter() {
    let policy = Policy::new(vec![
        named("a", bucket("10/s"), Mode::Enforce),
        named("b", bucket("10/s"), Mode::Enforce),
    ]);
    let limiter = Limiter::builder(policy).clock(ManualClock::new()).build().unwrap();
    let asked = std::cell::Cell::new(0);
    for _ in 0..2 {
        asked.set(0);
        let answer = limiter.check_with("ann", |limit| {
            asked.set(asked.get() + 1);
            let _ = limiter.check("ann");
            limit as u64
        });
        assert!(answer.decision.is_allowed());
        assert_eq!(asked.get(), 2);
    }
}

#[test]
fn the_policy_is_the_one_of_today() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    for kind in [Kind::TokenBucket, Kind::SlidingWindow] {
        let limiter = Limiter::new(Algorithm::new(kind, quota("10/s")), 10);
        limiter.set_quota(Tier::default(), 0, quota("5/s")).unwrap();
        assert_eq!(limiter.policy().limits()[0].algorithm, Algorithm::new(kind, quota("5/s")));
    }
}

#[test]
fn a_tier_of_another_limiter_counts_as_the_first() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    let gold =
        Limiter::builder(quota("1/s")).tier("gold", quota("9/s")).build().unwrap().tier("gold").unwrap();
    let limiter = Limiter::new(quota("1/s burst 3"), 10);
    assert_eq!(limiter.check_in(gold, "ann", 1).remaining(), 2);
}

#[test]
fn shadow_limits_reject_no_newcomers() {
    for algorithm in [bucket("10/s"), Algorithm::new(Kind::FixedWindow, "10/s".parse::<Quota>().unwrap())] {
        let policy = Policy::new(vec![named("tried", algorithm, Mode::Shadow)]);
        let limiter = Limiter::builder(policy)
            .capacity(Capacity::Bytes(1))
            .when_full(WhenFull::Reject)
            .clock(ManualClock::new())
            .build()
            .unwrap();
        assert!((0..100_u32).all(|key| limiter.check_n(&key, 10).is_allowed()));
    }
}
