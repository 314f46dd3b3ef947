//! One bucket that all threads call.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use governor::clock::FakeRelativeClock;
use leaky_bucket::RateLimiter as Leaky;
use ratelimit::Ratelimiter;
use throttlecrab::{PeriodicStore, RateLimiter as Throttlecrab};
use tidegate::{Bucket, LeasedBucket, Quota};

use crate::floor::{Clock, Word};
use crate::harness::{Answer, Case, Options, Row};

const CALLS: usize = 1_000_000;

/// More than any run calls, so that every call is allowed; and yet each leaves a debt, as calls under a limit do.
pub(crate) const BURST: u32 = 1_000_000_000;
pub(crate) const TOKEN_NS: u64 = 1_000_000_000;
const BURST_NS: u64 = BURST as u64 * TOKEN_NS;
const HOUR_NS: u64 = 3600 * TOKEN_NS;

/// What [`BURST`] means to governor.
pub(crate) fn governor_quota() -> governor::Quota {
    governor::Quota::per_second(NonZeroU32::MIN)
        .allow_burst(NonZeroU32::new(BURST).unwrap_or(NonZeroU32::MIN))
}

/// What [`BURST`] means here.
pub(crate) fn quota() -> Result<Quota> {
    Ok(Quota::new(1, Duration::from_secs(1))?.with_burst(BURST.into())?)
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if options.wants("one/allowed") {
        rows.extend(allowed(options)?);
    }
    if options.wants("one/rejected") {
        rows.extend(rejected(options)?);
    }
    if options.wants("one/now-passed-in") {
        rows.extend(now_passed_in(options)?);
    }
    Ok(rows)
}

fn allowed(options: &Options) -> Result<Vec<Row>> {
    let (clock, word) = (Clock::new(), Word::new());
    let bucket = Bucket::new(quota()?);
    // Chunks of 64 for each of two threads.
    let leased = LeasedBucket::new(quota()?, 128, 2, Duration::from_millis(10));
    let governor = governor::RateLimiter::direct(governor_quota());
    let ratelimit =
        Ratelimiter::builder(1).max_tokens(BURST.into()).initial_available(BURST.into()).build()?;
    let leaky = Leaky::builder().initial(1_000_000_000_000).max(1_000_000_000_000).build();
    let throttlecrab = Mutex::new(Throttlecrab::new(PeriodicStore::new()));
    let mut case = Case::new("one/allowed", Answer::Allowed);
    case.peer("floor: compare-and-swap", |_| word.allows(clock.now_ns(), TOKEN_NS, BURST_NS));
    case.peer("tidegate Bucket", |_| bucket.check().is_allowed());
    case.peer_by_thread("tidegate LeasedBucket, chunks of 64", || {
        let mut handle = leased.handle();
        move |_| handle.as_mut().is_some_and(|handle| handle.check().is_allowed())
    });
    case.peer("governor", |_| governor.check().is_ok());
    case.peer("ratelimit", |_| ratelimit.try_wait().is_ok());
    case.peer("leaky-bucket", |_| leaky.try_acquire(1));
    case.peer("throttlecrab in a Mutex", |_| throttlecrab_allows(&throttlecrab, "one", BURST.into(), 1));
    Ok(case.run(options, CALLS))
}

fn rejected(options: &Options) -> Result<Vec<Row>> {
    let (clock, word) = (Clock::new(), Word::new());
    let bucket = Bucket::new("1/h burst 1".parse()?);
    let leased = LeasedBucket::new("1/h burst 1".parse()?, 128, 2, Duration::from_millis(10));
    let governor = governor::RateLimiter::direct(governor::Quota::per_hour(NonZeroU32::MIN));
    let ratelimit = Ratelimiter::builder(1)
        .period(Duration::from_secs(3600))
        .max_tokens(1)
        .initial_available(1)
        .build()?;
    let leaky = Leaky::builder().initial(1).max(1).interval(Duration::from_secs(3600)).build();
    let throttlecrab = Mutex::new(Throttlecrab::new(PeriodicStore::new()));
    // What is there is taken first.
    while word.allows(clock.now_ns(), HOUR_NS, HOUR_NS) {}
    while bucket.check().is_allowed() {}
    while leased.bucket().check().is_allowed() {}
    while governor.check().is_ok() {}
    while ratelimit.try_wait().is_ok() {}
    while leaky.try_acquire(1) {}
    while throttlecrab_allows(&throttlecrab, "one", 2, 36_000) {}
    let mut case = Case::new("one/rejected", Answer::Rejected);
    case.peer("floor: compare-and-swap", |_| word.allows(clock.now_ns(), HOUR_NS, HOUR_NS));
    case.peer("tidegate Bucket", |_| bucket.check().is_allowed());
    case.peer_by_thread("tidegate LeasedBucket, chunks of 64", || {
        let mut handle = leased.handle();
        move |_| handle.as_mut().is_some_and(|handle| handle.check().is_allowed())
    });
    case.peer("governor", |_| governor.check().is_ok());
    case.peer("ratelimit", |_| ratelimit.try_wait().is_ok());
    case.peer("leaky-bucket", |_| leaky.try_acquire(1));
    // With a burst of 1 it rejects nothing.
    case.peer("throttlecrab in a Mutex, burst 2", |_| throttlecrab_allows(&throttlecrab, "one", 2, 36_000));
    Ok(case.run(options, CALLS))
}

fn now_passed_in(options: &Options) -> Result<Vec<Row>> {
    let now = 5 * TOKEN_NS;
    let word = Word::new();
    let bucket = Bucket::new(quota()?);
    let clock = FakeRelativeClock::default();
    let leased = LeasedBucket::new(quota()?, 128, 2, Duration::from_millis(10));
    let governor = governor::RateLimiter::direct_with_clock(governor_quota(), clock.clone());
    let mut case = Case::new("one/now-passed-in/allowed", Answer::Allowed);
    case.peer("floor: compare-and-swap", |_| word.allows(now, TOKEN_NS, BURST_NS));
    case.peer("tidegate Bucket", |_| bucket.check_at(1, now).is_allowed());
    case.peer_by_thread("tidegate LeasedBucket, chunks of 64", || {
        let mut handle = leased.handle();
        move |_| handle.as_mut().is_some_and(|handle| handle.check_at(1, now).is_allowed())
    });
    case.peer("governor, FakeRelativeClock", |_| governor.check().is_ok());
    let mut rows = case.run(options, CALLS);

    let word = Word::new();
    let bucket = Bucket::new("1/h burst 1".parse()?);
    let governor =
        governor::RateLimiter::direct_with_clock(governor::Quota::per_hour(NonZeroU32::MIN), clock.clone());
    while word.allows(now, HOUR_NS, HOUR_NS) {}
    while bucket.check_at(1, now).is_allowed() {}
    while governor.check().is_ok() {}
    let mut case = Case::new("one/now-passed-in/rejected", Answer::Rejected);
    case.peer("floor: compare-and-swap", |_| word.allows(now, HOUR_NS, HOUR_NS));
    case.peer("tidegate Bucket", |_| bucket.check_at(1, now).is_allowed());
    case.peer("governor, FakeRelativeClock", |_| governor.check().is_ok());
    rows.extend(case.run(options, CALLS));
    Ok(rows)
}

/// One call to throttlecrab the way a program with threads makes it: it wants `&mut`, and the time from the caller.
#[inline]
pub(crate) fn throttlecrab_allows(
    limiter: &Mutex<Throttlecrab<PeriodicStore>>,
    key: &str,
    burst: i64,
    period_s: i64,
) -> bool {
    let now = SystemTime::now();
    let mut limiter = limiter.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    limiter.rate_limit(key, burst, 1, period_s, 1, now).is_ok_and(|(allowed, _)| allowed)
}

/// A limiter of throttlecrab with room for `keys`.
pub(crate) fn throttlecrab(keys: usize) -> Mutex<Throttlecrab<PeriodicStore>> {
    Mutex::new(Throttlecrab::new(PeriodicStore::with_capacity(keys)))
}
