//! The script against the lender of the core.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Algorithm, Decision, Kind, Quota};
use tidegate_core::lease::{Lender, Returned, Terms};

use super::*;
use crate::timed::Timed;

/// The script with a time that the test says.
struct Subject(Timed);

const KEY: &[u8] = b"bucket";

impl Subject {
    fn new() -> Self {
        Self(Timed::new(SOURCE))
    }

    fn lend(&mut self, units: &Units, ttl_us: u64, now_us: u64, ask: &Ask) -> Told {
        let Arguments { keys, values } = arguments(KEY, units, ttl_us, ask);
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.0.sha).arg(keys.len()).arg(keys).arg(values).arg(now_us);
        let reply: Vec<i64> = command.query(&mut self.0.connection).unwrap();
        told(&reply).unwrap()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

fn units(quota: Quota) -> Units {
    Units::new(&Algorithm::new(Kind::TokenBucket, quota)).unwrap()
}

/// A quota that fits, and terms to lease it under.
fn leased() -> impl Strategy<Value = (Quota, Terms)> {
    let periods = prop_oneof![1000..5000_u64, 1..10_000_000_000_u64, Just(1_000_000_000)];
    (1..10_000_u64, periods, prop_oneof![1..30_u64, 1..1_000_000_u64], 1..1000_u64).prop_filter_map(
        "too fine",
        |(count, per, burst, over)| {
            let quota = Quota::new(count, Duration::from_nanos(per)).ok()?.with_burst(burst).ok()?;
            Units::new(&Algorithm::new(Kind::TokenBucket, quota)).ok()?;
            Some((quota, Terms::within(quota, over)?))
        },
    )
}

/// A step of time as a part of the time to live, the costs and the chunk as parts of the burst, and which loan is given
/// back, and how many of its tokens.
type Step = (u64, [u8; 3], Option<(prop::sample::Index, u8)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let part = || prop_oneof![3 => Just(0), 8 => 0..30_u8, 1 => 50..101_u8];
    let step = prop_oneof![Just(0), 1..10_u64, 1..100_u64, 100..350_u64];
    let returned = prop::option::weighted(0.6, (any::<prop::sample::Index>(), 0..101_u8));
    prop::collection::vec((step, [part(), part(), part()], returned), 1..40)
}

const START: u64 = 1_790_000_000_000_000;

#[test]
fn the_script_lends_and_takes_back_as_the_lender_of_the_core() {
    let subject = std::cell::RefCell::new(Subject::new());
    // What happened: loans, returns taken and not taken, refusals.
    let happened = std::cell::Cell::new([0_u32; 4]);
    let count = |what: usize| {
        let mut counts = happened.get();
        counts[what] += 1;
        happened.set(counts);
    };
    let config = ProptestConfig { cases: 300, ..ProptestConfig::default() };
    proptest!(config, |((quota, terms) in leased(), steps in steps())| {
        let mut subject = subject.borrow_mut();
        subject.clear();
        let (units, lender) = (units(quota), Lender::new(quota, terms));
        let ttl_us = u64::try_from(terms.ttl().as_micros()).unwrap();
        let mut lent = lender.fresh();
        let mut loans: Vec<Loan> = Vec::new();
        let mut now = START;
        for (step, parts, returned) in steps {
            now += step * ttl_us / 100;
            let [first, more, chunk] = parts.map(|percent| u64::from(percent) * quota.burst() / 100);
            let returned = returned.filter(|_| !loans.is_empty()).map(|(which, percent)| {
                let loan = which.get(&loans);
                Returned { tokens: loan.tokens * u64::from(percent) / 100, lent_at: loan.lent_at }
            });
            let ask = Ask { first, waiting: first + more, chunk, returned };
            let told = subject.lend(&units, ttl_us, now, &ask);
            // The core is asked in two steps, to see what it took back.
            let mut taken = 0;
            if let Some(returned) = returned {
                taken = lender.take_back(&mut lent, now * 1000, returned);
            }
            let answer = lender.lend(&mut lent, now * 1000, Ask { returned: None, ..ask });
            prop_assert_eq!(told.returned, taken);
            prop_assert_eq!(told.loan, answer.ok());
            prop_assert_eq!(units.tokens(told.level.units), lender.level(&lent, now * 1000));
            match (answer, told.loan) {
                (Err(Decision::Rejected { retry_after, .. }), None) => {
                    let wait = units.decision(told.level.units, told.level.lag, units.cost(first)).retry_after();
                    let up = u64::try_from(retry_after.as_nanos().div_ceil(1000)).unwrap();
                    prop_assert_eq!(wait, Some(Duration::from_micros(up)));
                    count(3);
                }
                (Ok(_), Some(loan)) => {
                    if loan.tokens > 0 {
                        count(0);
                    }
                    loans.push(loan);
                }
                (answer, loan) => prop_assert!(false, "{answer:?} of the core, {loan:?} of the script"),
            }
            if returned.is_some_and(|returned| returned.tokens > 0) {
                count(if taken > 0 { 1 } else { 2 });
            }
        }
    });
    let happened = happened.get();
    // The rarest, a return that is taken, happens some 120 times, give or take 15.
    assert!(happened.iter().all(|count| *count > 20), "{happened:?}");
}

#[test]
fn a_clock_that_goes_back_brings_no_token_and_takes_none_back() {
    let mut subject = Subject::new();
    let quota: Quota = "1000/s burst 100".parse().unwrap();
    let (units, ttl_us) = (units(quota), 50_000);
    let ask = Ask { first: 60, waiting: 60, chunk: 0, returned: None };
    let told = subject.lend(&units, ttl_us, START, &ask);
    let loan = told.loan.unwrap();
    let returned = Some(Returned { tokens: 60, lent_at: loan.lent_at });
    let told = subject.lend(&units, ttl_us, START - 1_000_000, &Ask { returned, ..ask });
    assert_eq!((told.loan, told.returned), (None, 0));
    assert_eq!(told.level, Level { units: units.cost(40), lag: 1_000_000 });
    // As soon as it is where it was, the bucket fills again.
    let told = subject.lend(&units, ttl_us, START + 20_000, &ask);
    assert!(told.loan.is_some());
}

#[test]
fn a_return_that_comes_after_the_end_of_its_loan_is_not_taken() {
    let mut subject = Subject::new();
    let quota: Quota = "100/s burst 100".parse().unwrap();
    let (units, ttl_us) = (units(quota), 50_000);
    let ask = |first, returned| Ask { first, waiting: first, chunk: 0, returned };
    for (age_us, taken) in [(50_000, 5), (50_001, 0), (100_000, 0)] {
        subject.clear();
        let _all = subject.lend(&units, ttl_us, START, &ask(100, None));
        let loan = subject.lend(&units, ttl_us, START + 110_000, &ask(10, None)).loan.unwrap();
        let returned = Returned { tokens: 5, lent_at: loan.lent_at };
        let told = subject.lend(&units, ttl_us, START + 110_000 + age_us, &ask(0, Some(returned)));
        assert_eq!(told.returned, taken, "{age_us}");
    }
}

#[test]
fn where_somebody_else_charged_the_bucket_nothing_is_taken_back() {
    let mut subject = Subject::new();
    let quota: Quota = "100/s burst 100".parse().unwrap();
    let (units, ttl_us) = (units(quota), 50_000);
    let ask = |first, returned| Ask { first, waiting: first, chunk: 0, returned };
    for (charged, taken) in [(false, 5), (true, 0)] {
        subject.clear();
        // It was full more than two times to live before the second loan, so there is room for five.
        let _all = subject.lend(&units, ttl_us, START, &ask(100, None));
        let loan = subject.lend(&units, ttl_us, START + 110_000, &ask(10, None)).loan.unwrap();
        if charged {
            let (level, time) = (units.cost(1), START + 111_000);
            let text = format!("{level} {time} {} {}", units.capacity(), units.rate());
            let () = redis::cmd("SET").arg(KEY).arg(text).query(&mut subject.0.connection).unwrap();
        }
        let returned = Returned { tokens: 5, lent_at: loan.lent_at };
        let told = subject.lend(&units, ttl_us, START + 112_000, &ask(0, Some(returned)));
        assert_eq!(told.returned, taken, "{charged}");
    }
}

#[test]
fn a_bucket_under_another_quota_stays_as_full_in_proportion() {
    let mut subject = Subject::new();
    let (old, new) =
        (units("1000/s burst 100".parse().unwrap()), units("2000/s burst 1000".parse().unwrap()));
    let ask = |first, returned| Ask { first, waiting: first, chunk: 0, returned };
    let loan = subject.lend(&old, 50_000, START, &ask(50, None)).loan.unwrap();
    let told =
        subject.lend(&new, 50_000, START, &ask(0, Some(Returned { tokens: 50, lent_at: loan.lent_at })));
    assert_eq!((new.tokens(told.level.units), told.returned), (500, 0));
}

#[test]
fn who_was_refused_a_loan_under_a_new_quota_gets_it_when_told() {
    let mut subject = Subject::new();
    let (old, new) = (units("10/h".parse().unwrap()), units("100/100s".parse().unwrap()));
    let ask = |first| Ask { first, waiting: first, chunk: 0, returned: None };
    assert!(subject.lend(&old, 50_000, START, &ask(10)).loan.is_some());
    assert!(subject.lend(&new, 50_000, START, &ask(1)).loan.is_none());
    assert!(subject.lend(&new, 50_000, START + 999_999, &ask(1)).loan.is_none());
    assert!(subject.lend(&new, 50_000, START + 1_000_000, &ask(1)).loan.is_some());
}

#[test]
fn a_key_that_holds_something_else_is_left_alone() {
    let mut subject = Subject::new();
    let units = units("1000/s".parse().unwrap());
    for key in [KEY, &lent_key(KEY)] {
        subject.clear();
        let () = redis::cmd("SET").arg(key).arg("hello").query(&mut subject.0.connection).unwrap();
        let Arguments { keys, values } = arguments(KEY, &units, 50_000, &Ask { first: 1, ..Ask::default() });
        let mut command = redis::cmd("EVALSHA");
        command.arg(&subject.0.sha).arg(keys.len()).arg(keys).arg(values).arg(START);
        let reply: Vec<i64> = command.query(&mut subject.0.connection).unwrap();
        assert_eq!(told(&reply), None);
        let is: String = redis::cmd("GET").arg(key).query(&mut subject.0.connection).unwrap();
        assert_eq!(is, "hello");
    }
}
