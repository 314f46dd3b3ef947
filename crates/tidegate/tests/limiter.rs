//! The keyed limiter under threads, under a flood of strangers, and with a clock that goes back.

use std::thread;
use std::time::Duration;

use tidegate::{Algorithm, Decision, Kind, Limiter, Step};

const S: u64 = 1_000_000_000;

#[expect(clippy::unwrap_used, reason = "the quotas of these tests are legal")]
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
                        (0..1000).filter(|_| limiter.check_at("one", 5 * S, 1).is_allowed()).count()
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
                    calls.filter(|key| limiter.check_at(key, 0, 1).is_allowed()).count()
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
    assert!(limiter.check_at("ann", 0, 1).is_allowed());
    assert!(!limiter.check_at(&String::from("ann"), 0, 1).is_allowed());
    assert!(!limiter.check_at(&"ann", 0, 1).is_allowed());
    assert!(limiter.check_at("bob", 0, 1).is_allowed());
}

#[test]
fn a_flood_of_strangers_takes_no_memory_and_frees_a_held_key_only_with_a_counted_eviction() {
    let limiter = limiter(Kind::TokenBucket, "10/s burst 10", 64);
    let bytes = limiter.bytes();
    let mut allowed = 0;
    // The key is held at its limit for 100 s, among 200,000 strangers who call once each.
    for step in 0..200_000_u64 {
        let now = step * S / 2000;
        assert!(limiter.check_at(&step, now, 1).is_allowed(), "a stranger within the limit");
        allowed += u64::from(limiter.check_at("held", now, 1).is_allowed());
    }
    let stats = limiter.stats_at(100 * S);
    assert_eq!((limiter.bytes(), stats.slots), (bytes, 64));
    assert!(stats.evicted > 0, "64 slots cannot hold 200 strangers at a time");
    // 10 + 10/s x 100 s; what is forgotten at an eviction is at most one burst. Since the strangers owe one token
    // each and the held key ten, it is never the one that is forgotten.
    assert_eq!(allowed, 1009);
}

#[test]
fn evictions_forget_the_smallest_debt_first() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 100", 0);
    let slots = limiter.stats_at(0).slots as u64;
    for key in 0..slots {
        assert!(limiter.check_at(&key, 0, 10 + key).is_allowed());
    }
    assert_eq!(limiter.stats_at(0).busy as u64, slots);
    assert!(limiter.check_at("newcomer", 0, 100).is_allowed());
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
        assert_eq!(limiter.check_at(&key, 0, 6), Decision::Never { capacity: 5 });
        assert!(limiter.check_at(&key, 0, 0).is_allowed());
    }
    let stats = limiter.stats_at(0);
    assert_eq!((stats.busy, stats.evicted), (0, 0));

    let unlimited = Limiter::new(Algorithm::new(Kind::Unlimited, "1/s".parse().unwrap()), 8);
    assert!((0..100_u32).all(|key| unlimited.check_at(&key, 0, 1).is_allowed()));
    assert_eq!(unlimited.stats_at(0).evicted, 0);
}

#[test]
fn a_slot_is_free_when_its_limiter_is_as_good_as_new_and_not_before() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 1", 0);
    for key in 0..8_u32 {
        assert!(limiter.check_at(&key, 0, 1).is_allowed());
    }
    assert_eq!(limiter.stats_at(S - 1).busy, 8);
    assert_eq!(limiter.stats_at(S).busy, 0);
    assert!(limiter.check_at("late", S, 1).is_allowed());
    assert_eq!(limiter.stats_at(S).evicted, 0);
}

#[test]
fn a_clock_that_goes_back_creates_nothing_for_a_key_that_was_forgotten() {
    let limiter = limiter(Kind::TokenBucket, "1/s burst 1", 0);
    for key in 0..8_u32 {
        assert!(limiter.check_at(&key, 0, 1).is_allowed());
    }
    // At 1 s all are as good as new, and strangers take their slots.
    for key in 100..108_u32 {
        assert!(limiter.check_at(&key, S, 1).is_allowed());
    }
    // Back at 0.5 s, a forgotten key is seen at 1 s, where it had its token; it has it once.
    let decision = limiter.check_at(&0_u32, S / 2, 1);
    let Decision::Allowed { reset_after, .. } = decision else { panic!("{decision:?}") };
    assert_eq!(reset_after, Duration::from_millis(1500));
    assert!(!limiter.check_at(&0_u32, S / 2, 1).is_allowed());
    assert!(!limiter.check_at(&0_u32, 2 * S - 1, 1).is_allowed());
}

#[test]
fn the_keyed_limiter_decides_as_the_pure_step_does() {
    for kind in Kind::ALL {
        let algorithm = Algorithm::new(kind, "7 per 3s burst 4".parse().unwrap());
        let limiter = Limiter::new(algorithm, 4096);
        let mut states = vec![algorithm.fresh(); 16];
        // Steps of a fixed linear generator: times that sometimes repeat or go back, costs of 0 to 5.
        let mut x = 12345_u64;
        let mut now = 10 * S;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = x >> 33;
            now = (now + draw % 50_000_000).saturating_sub(if draw.is_multiple_of(7) {
                100_000_000
            } else {
                0
            });
            let (key, cost) = ((draw >> 8) % 16, (draw >> 4) % 6);
            let state = &mut states[usize::try_from(key).unwrap()];
            let (next, expected) = algorithm.step(state.clone(), now, cost);
            *state = next;
            assert_eq!(limiter.check_at(&key, now, cost), expected, "{kind} key {key} cost {cost} at {now}");
        }
        assert_eq!(limiter.stats_at(now).evicted, 0);
    }
}
