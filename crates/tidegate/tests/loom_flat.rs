//! The protocol of the flat table in every order that two or three threads can meet in, as far as two preemptions reach.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p tidegate --release --test loom_flat
//! ```
//!
//! `--cfg loom` puts the model checker's atomics into the table, so with it nothing but this file runs. More preemptions
//! (`LOOM_MAX_PREEMPTIONS=3`) take minutes.

#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "the quotas of these tests are legal")]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tidegate::clock::ManualClock;
use tidegate::{Capacity, Decision, Limiter, Quota, Tier};

const S: u64 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
/// Slots of a set, and so of the table.
const SLOTS: u64 = 7;

/// A limiter of one set.
fn one_set(quota: &str) -> Arc<Limiter> {
    let limiter = Limiter::builder(quota.parse::<Quota>().unwrap())
        .capacity(Capacity::Bytes(1))
        .clock(ManualClock::new())
        .build();
    Arc::new(limiter.unwrap())
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_to(2, model);
}

fn explore_to(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    // Steps of one execution: filling a set takes some thousand, and a loop without end would still be found.
    builder.max_branches = 20_000;
    builder.check(model);
}

/// What `key` is told at `now_ns`, on a thread of its own.
///
/// The checker runs this thread last and goes back from there. Of the accesses to an atomic it looks at the last one only, so
/// a load is seen to race with a store that comes before it, and not with a store behind the storing thread's own load: the
/// caller that reads is here, and the one that writes on the main thread.
fn check(limiter: &Arc<Limiter>, key: u64, now_ns: u64) -> thread::JoinHandle<Decision> {
    let limiter = limiter.clone();
    thread::spawn(move || limiter.check_at(&key, 1, now_ns))
}

#[test]
fn two_newcomers_at_one_instant_are_one_key() {
    explore(|| {
        let limiter = one_set("1/s burst 1");
        let other = check(&limiter, 1, S);
        let here = limiter.check_at(&1_u64, 1, S);
        assert!(here.is_allowed() ^ other.join().unwrap().is_allowed());
    });
}

#[test]
fn three_threads_are_allowed_exactly_the_burst() {
    // Each pair of threads can wait for the other, which makes two preemptions minutes.
    explore_to(1, || {
        let limiter = one_set("1/s burst 3");
        let first = limiter.check_at(&1_u64, 1, S);
        let others = [check(&limiter, 1, S), check(&limiter, 1, S)];
        let here = limiter.check_at(&1_u64, 1, S);
        let allowed = others.map(|other| other.join().unwrap().is_allowed());
        let count = [first.is_allowed(), here.is_allowed(), allowed[0], allowed[1]];
        assert_eq!(count.iter().filter(|&&allowed| allowed).count(), 3);
    });
}

/// Seven keys have spent their one token, a tenth of a second one after the other.
fn full_set() -> (Arc<Limiter>, u64) {
    let limiter = one_set("1/s burst 1");
    for key in 1..=SLOTS {
        assert!(limiter.check_at(&key, 1, S + key * S / 10).is_allowed());
    }
    (limiter, S + SLOTS * S / 10)
}

#[test]
fn a_held_key_is_rejected_while_another_is_forgotten_for_a_newcomer() {
    explore(|| {
        let (limiter, now) = full_set();
        let held = check(&limiter, SLOTS, now);
        assert!(limiter.check_at(&100_u64, 1, now).is_allowed());
        let rejected = Decision::Rejected { retry_after: SECOND, remaining: 0, reset_after: SECOND };
        assert_eq!(held.join().unwrap(), rejected);
    });
}

#[test]
fn a_key_that_is_forgotten_is_told_its_own_wait_or_is_allowed() {
    explore(|| {
        let (limiter, now) = full_set();
        // The newcomer takes the slot of key 1, which is nearest to full, and would have a second to wait itself.
        let forgotten = check(&limiter, 1, now);
        assert!(limiter.check_at(&100_u64, 1, now).is_allowed());
        let forgotten = forgotten.join().unwrap();
        let wait = SECOND - Duration::from_nanos(6 * S / 10);
        let rejected = Decision::Rejected { retry_after: wait, remaining: 0, reset_after: wait };
        assert!(forgotten == rejected || forgotten.is_allowed(), "{forgotten:?}");
    });
}

#[test]
fn a_rejection_is_of_the_old_quota_or_the_new_one() {
    for (old, new, resets) in [("1/s burst 1", "1/s burst 2", [1, 2]), ("1/s burst 2", "1/s burst 1", [2, 1])]
    {
        explore(move || {
            let limiter = one_set(old);
            while limiter.check_at(&1_u64, 1, 0).is_allowed() {}
            let caller = check(&limiter, 1, 0);
            limiter.set_quota(Tier::default(), 0, new.parse().unwrap()).unwrap();
            let decision = caller.join().unwrap();
            // An empty bucket stays empty, and a token takes a second under either.
            let expected = resets.map(|reset| Decision::Rejected {
                retry_after: SECOND,
                remaining: 0,
                reset_after: Duration::from_secs(reset),
            });
            assert!(expected.contains(&decision), "{decision:?}");
        });
    }
}

#[test]
fn a_call_is_charged_before_or_after_a_change_and_not_lost() {
    explore(|| {
        let limiter = one_set("1/s burst 2");
        assert!(limiter.check_at(&1_u64, 1, 0).is_allowed());
        let caller = check(&limiter, 1, 0);
        limiter.set_quota(Tier::default(), 0, "1/s burst 4".parse().unwrap()).unwrap();
        // Before: two of two, so four of four are gone. After: two of four, and one more.
        let left = match caller.join().unwrap() {
            Decision::Allowed { remaining: 0, .. } => 0,
            Decision::Allowed { remaining: 1, .. } => 1,
            decision => panic!("{decision:?}"),
        };
        assert_eq!(limiter.peek_at(&1_u64, 0, 0).remaining(), left);
    });
}
