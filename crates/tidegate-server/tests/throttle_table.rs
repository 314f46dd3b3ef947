//! `CL.THROTTLE` as a table: rows of (time, arguments, answer), readable without the code. The calls are those that were
//! tried on redis-cell, whose answers differ where it cuts seconds off.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::HashMap;

use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Quota, Step as _};
use tidegate_server::resp::throttle::{KEY_MAX, Table, Terms, ThrottleError};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// One call: `key max_burst count period quantity`, and its five integers.
fn call(table: &Table, now_ns: u64, args: &str) -> Result<[i64; 5], ThrottleError> {
    let mut words = args.split(' ');
    let key = words.next().unwrap();
    let numbers: Vec<i64> = words.map(|word| word.parse().unwrap()).collect();
    let terms = Terms::new(numbers[0], numbers[1], numbers[2])?;
    let answer = table.decide(key.as_bytes(), &terms, numbers.get(3).copied().unwrap_or(1), now_ns)?;
    Ok(answer.integers())
}

/// Calls in order. Each key has a table of its own, since the rows of the next begin at an earlier time.
fn check(rows: &[(u64, &str, [i64; 5])]) {
    let mut tables = HashMap::new();
    for (now_ns, args, expected) in rows {
        let key = args.split(' ').next().unwrap();
        let table = tables.entry(key).or_insert_with(|| Table::new(100));
        assert_eq!(call(table, *now_ns, args), Ok(*expected), "`{args}` at {now_ns} ns");
    }
}

#[test]
fn the_answers_are_those_of_the_specification() {
    // The specification was written from calls some milliseconds apart.
    check(&[
        (0, "user123 15 30 60", [0, 16, 15, -1, 2]),
        (MS, "user123 15 30 60", [0, 16, 14, -1, 4]),
        (0, "a 0 1 2", [0, 1, 0, -1, 2]),
        (MS, "a 0 1 2", [1, 1, 0, 2, 2]),
        (2 * SECOND - 1, "a 0 1 2", [1, 1, 0, 1, 1]),
        (2 * SECOND, "a 0 1 2", [0, 1, 0, -1, 2]),
        // More than the bucket holds: it can never pass, and what is there is told.
        (0, "b 2 1 10 4", [1, 3, 3, -1, 0]),
        (0, "b 2 1 10 3", [0, 3, 0, -1, 30]),
        (MS, "b 2 1 10 0", [0, 3, 0, -1, 30]),
        (MS, "b 2 1 10 1", [1, 3, 0, 10, 30]),
        (SECOND, "b 2 1 10 1", [1, 3, 0, 9, 29]),
        (SECOND, "b 2 1 10 9", [1, 3, 0, -1, 29]),
        (9 * SECOND + 1, "b 2 1 10 1", [1, 3, 0, 1, 21]),
        (10 * SECOND, "b 2 1 10 2", [1, 3, 1, 10, 20]),
        (10 * SECOND, "b 2 1 10 1", [0, 3, 0, -1, 30]),
        (0, "d 4 5 60 6", [1, 5, 5, -1, 0]),
        (0, "d 4 5 60 5", [0, 5, 0, -1, 60]),
        (MS, "d 4 5 60 1", [1, 5, 0, 12, 60]),
        // A bucket of nothing.
        (0, "c2 -1 5 60", [1, 0, 0, -1, 0]),
        (0, "c2 -1 5 60 0", [0, 0, 0, -1, 0]),
        // A third of a second is not lost.
        (0, "e 0 3 1", [0, 1, 0, -1, 1]),
        (0, "e 0 3 1", [1, 1, 0, 1, 1]),
        (333_333_333, "e 0 3 1", [1, 1, 0, 1, 1]),
        (333_333_334, "e 0 3 1", [0, 1, 0, -1, 1]),
    ]);
}

#[test]
fn numbers_out_of_range_are_errors_that_change_nothing() {
    use ThrottleError::*;
    let table = Table::new(100);
    let (max, min) = (i64::MAX, i64::MIN);
    for (args, error) in [
        ("k 5 0 60".to_owned(), NoCount),
        ("k 5 -1 60".to_owned(), NoCount),
        (format!("k 5 {min} 60"), NoCount),
        ("k 5 5 0".to_owned(), NoPeriod),
        (format!("k 5 5 {min}"), NoPeriod),
        ("k -2 5 60".to_owned(), BurstTooSmall),
        (format!("k {min} 5 60"), BurstTooSmall),
        (format!("k {max} {max} 1"), BurstTooLarge),
        (format!("k 5 5 {max}"), TooSlow),
        ("k 0 1 9223372037".to_owned(), TooSlow),
        ("k 1 1 9223372036".to_owned(), TooSlow),
        (format!("k {} 1 1", max - 1), TooSlow),
        (format!("k {} {max} {max}", max - 1), TooSlow),
        ("k 5 5 60 -1".to_owned(), NegativeQuantity),
        (format!("k -1 5 60 {min}"), NegativeQuantity),
    ] {
        assert_eq!(call(&table, SECOND, &args), Err(error), "{args}");
    }
    let long = "k".repeat(KEY_MAX + 1);
    assert_eq!(call(&table, SECOND, &format!("{long} 5 5 60")), Err(KeyTooLong));
    assert_eq!(call(&table, SECOND, "k 5 5 60 0"), Ok([0, 6, 6, -1, 0]));
}

#[test]
fn the_largest_numbers_are_exact() {
    let max = i64::MAX;
    check(&[
        (SECOND, "k 0 1 9223372036", [0, 1, 0, -1, 9_223_372_036]),
        (2 * SECOND, "k 0 1 9223372036", [1, 1, 0, 9_223_372_035, 9_223_372_035]),
        (SECOND, &format!("l {} {max} 1 {}", max - 2, max - 1), [0, max - 1, 0, -1, 1]),
        (SECOND, &format!("l {} {max} 1 {max}", max - 2), [1, max - 1, 0, -1, 1]),
        // As many tokens a nanosecond, rounded down.
        (SECOND + 1, &format!("l {} {max} 1 0", max - 2), [0, max - 1, 9_223_372_036, -1, 1]),
        (SECOND, &format!("m 0 {max} 9223372036"), [0, 1, 0, -1, 1]),
    ]);
}

/// What is told as seconds keeps its promise: at that time the call is allowed, unless somebody else takes tokens.
#[test]
fn who_comes_back_when_told_is_allowed() {
    for (count, period, burst) in
        [(1, 1, 0), (3, 1, 0), (7, 60, 4), (30, 60, 15), (1_000_003, 3600, 99), (1, 9973, 1)]
    {
        let args = format!("k {burst} {count} {period}");
        let table = Table::new(1);
        for round in 0..50 {
            let mut now_ns = round * 100_000 * SECOND + round * 1_234_567;
            loop {
                let [rejected, _, remaining, retry_after, _] = call(&table, now_ns, &args).unwrap();
                if rejected == 0 {
                    assert_eq!(retry_after, -1);
                    continue;
                }
                assert_eq!(remaining, 0);
                assert!(retry_after > 0);
                now_ns += u64::try_from(retry_after).unwrap() * SECOND;
                assert_eq!(call(&table, now_ns, &args).unwrap()[0], 0, "{args} after {retry_after} s");
                break;
            }
        }
    }
}

/// The same calls at the same times are decided as by the core's bucket, to the nanosecond.
#[test]
fn decisions_are_those_of_the_core() {
    use rand_like::Numbers;
    let mut numbers = Numbers(7);
    for _ in 0..200 {
        let (burst, count, period) = (numbers.below(20) + 1, numbers.below(1000) + 1, numbers.below(100) + 1);
        let quota =
            Quota::new(count, std::time::Duration::from_secs(period)).unwrap().with_burst(burst).unwrap();
        let bucket = TokenBucket::new(quota);
        let terms = Terms::new(
            i64::try_from(burst).unwrap() - 1,
            i64::try_from(count).unwrap(),
            i64::try_from(period).unwrap(),
        )
        .unwrap();
        let (table, mut state, mut now_ns) = (Table::new(1), bucket.fresh(), 0);
        for _ in 0..200 {
            now_ns += numbers.below(period * SECOND / count);
            let cost = numbers.below(4);
            let (next, decision) = bucket.step(state, now_ns, cost);
            state = next;
            let answer = table.decide(b"k", &terms, i64::try_from(cost).unwrap(), now_ns).unwrap();
            assert_eq!(answer.rejected, !decision.is_allowed());
            let wait = decision.retry_after().map(|wait| u64::try_from(wait.as_nanos()).unwrap());
            assert_eq!(answer.retry_after_ns, wait);
            assert_eq!(answer.remaining, bucket.look(&state, now_ns, 0).remaining());
        }
    }
}

#[test]
fn another_quota_leaves_a_bucket_as_full_in_proportion() {
    check(&[
        // Empty stays empty, and the wait is under the new quota.
        (0, "k 9 1 60 10", [0, 10, 0, -1, 600]),
        (0, "k 99 1 1", [1, 100, 0, 1, 100]),
        (SECOND, "k 99 1 1", [0, 100, 0, -1, 100]),
        // Half full stays half full.
        (0, "h 9 1 60 5", [0, 10, 5, -1, 300]),
        (0, "h 99 1 1 0", [0, 100, 50, -1, 50]),
        // To ask for nothing did not change the quota: half a minute later half a token of ten has come.
        (30 * SECOND, "h 99 1 1 0", [0, 100, 55, -1, 45]),
        // Full stays full.
        (0, "f 9 1 60 1", [0, 10, 9, -1, 60]),
        (60 * SECOND, "f 99 1 1 0", [0, 100, 100, -1, 0]),
        // What can never be does not change the quota.
        (0, "n 9 1 60 10", [0, 10, 0, -1, 600]),
        (0, "n 0 1 1 2", [1, 1, 0, -1, 1]),
        (60 * SECOND, "n 9 1 60 1", [0, 10, 0, -1, 600]),
    ]);
}

#[test]
fn changing_the_quota_to_and_fro_brings_no_token() {
    let table = Table::new(1);
    let quotas = ["k 9 1 3600", "k 6 7 86400", "k 999 1 60", "k 0 1 7200", "k 3 11 100000"];
    assert_eq!(call(&table, 0, "k 9 1 3600 10").unwrap()[0], 0);
    for round in 0..10_000 {
        let [rejected, _, remaining, ..] = call(&table, 0, quotas[round % quotas.len()]).unwrap();
        assert_eq!((rejected, remaining), (1, 0), "round {round}");
    }
}

#[test]
fn a_clock_that_goes_back_creates_nothing() {
    check(&[
        (100 * SECOND, "k 4 1 1 5", [0, 5, 0, -1, 5]),
        // Seen from then, what is missing comes later.
        (50 * SECOND, "k 4 1 1", [1, 5, 0, 51, 55]),
        (50 * SECOND, "k 9 1 1", [1, 10, 0, 51, 60]),
        (101 * SECOND, "k 9 1 1", [0, 10, 0, -1, 10]),
    ]);
}

#[test]
fn any_number_of_keys_and_quotas_takes_no_more_memory_and_the_busiest_stays_rejected() {
    let table = Table::new(1000);
    let bytes = table.bytes();
    assert!(bytes < 1000 * 66, "{bytes}");
    assert!((1000..1200).contains(&table.slots()), "{}", table.slots());
    assert_eq!(call(&table, 0, "busy 0 1 1000000").unwrap()[0], 0);
    for stranger in 0..200_000 {
        let answer = call(&table, SECOND, &format!("stranger{stranger} {} 1 1", stranger % 50)).unwrap();
        assert_eq!(answer[0], 0, "nobody is rejected for want of room");
    }
    assert_eq!(call(&table, SECOND, "busy 0 1 1000000").unwrap()[0], 1);
    assert_eq!(table.bytes(), bytes);
    assert!(table.evicted() > 190_000, "{}", table.evicted());

    // A key whose bucket is full again makes room without anybody being forgotten.
    let table = Table::new(1);
    for key in 0..1000 {
        assert_eq!(call(&table, key * SECOND, &format!("{key} 0 1 1")).unwrap()[0], 0);
    }
    assert_eq!(table.evicted(), 0);
}

#[test]
fn threads_that_ask_at_one_instant_get_the_burst_and_no_more() {
    let table = Table::new(10);
    let terms = Terms::new(999, 1, 3600).unwrap();
    let allowed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    (0..1000).filter(|_| !table.decide(b"k", &terms, 1, SECOND).unwrap().rejected).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(allowed, 1000);
}

/// Numbers in a fixed order that look random (PCG's step), so that a failure repeats.
mod rand_like {
    pub(crate) struct Numbers(pub(crate) u64);

    impl Numbers {
        pub(crate) fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }
}
