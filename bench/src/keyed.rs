//! Many keys.

use anyhow::Result;
use governor::RateLimiter;
use tidegate::Limiter;

use crate::floor::FlatTable;
use crate::harness::{Answer, Case, Options, Row};
use crate::keys::Keys;
use crate::one::{BURST, TOKEN_NS, governor_quota, quota, throttlecrab, throttlecrab_allows};

const CALLS: usize = 1_000_000;

/// The room that a limiter has when nobody says otherwise.
const ROOM: u64 = 65_536;
const MILLION: u64 = 1_000_000;

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut run = |texts: &'static str, ids: &'static str, keys: u64, room: u64, draw: fn(u64) -> Keys| {
        if !options.wants(texts) && !options.wants(ids) {
            return anyhow::Ok(());
        }
        let draws = draw(keys);
        if options.wants(texts) {
            rows.extend(by_text(texts, options, &draws, keys, room)?);
        }
        if options.wants(ids) {
            rows.extend(by_id(ids, options, &draws, keys, room)?);
        }
        Ok(())
    };
    run("hot-1k/str", "hot-1k/u64", 1000, ROOM, Keys::uniform)?;
    run("uniform-1M/str", "uniform-1M/u64", MILLION, MILLION, Keys::uniform)?;
    run("zipf-1M/str", "zipf-1M/u64", MILLION, MILLION, Keys::zipf)?;
    if options.wants("own-1k/str") {
        rows.extend(own_keys(options)?);
    }
    if options.wants("hot-1k/str/rejected") {
        rows.extend(rejected(options)?);
    }
    Ok(rows)
}

fn flat(keys: u64) -> FlatTable {
    FlatTable::new(size(keys), TOKEN_NS, u64::from(BURST) * TOKEN_NS)
}

pub(crate) fn size(keys: u64) -> usize {
    usize::try_from(keys).unwrap_or(usize::MAX)
}

fn by_text(name: &'static str, options: &Options, draws: &Keys, keys: u64, room: u64) -> Result<Vec<Row>> {
    let floor = flat(room);
    let limiter = Limiter::new(quota()?, size(room));
    let roomy = Limiter::new(quota()?, size(2 * room));
    let passed = Limiter::new(quota()?, size(room));
    let now = passed.now_ns();
    let governor = RateLimiter::keyed(governor_quota());
    let allocates = RateLimiter::keyed(governor_quota());
    let foldhash = RateLimiter::<String, _, _>::dashmap_with_hasher(
        governor_quota(),
        foldhash::fast::RandomState::default(),
    );
    let crab = throttlecrab(size(keys));
    for (_, text) in Keys::all(keys) {
        floor.check(&*text);
        let _ = (limiter.check(&*text), roomy.check(&*text), passed.check_at(&*text, 1, now));
        let _ = (governor.check_key(&text), allocates.check_key(&text), foldhash.check_key(&text));
        throttlecrab_allows(&crab, &text, BURST.into(), 1);
    }
    let mut case = Case::new(name, Answer::Allowed);
    case.peer("floor: flat table", |call| floor.check(draws.text(call)));
    case.peer("tidegate Limiter", |call| limiter.check(draws.text(call)).is_allowed());
    case.peer("tidegate Limiter, twice the room", |call| roomy.check(draws.text(call)).is_allowed());
    case.peer("tidegate Limiter, now passed in", |call| {
        passed.check_at(draws.text(call), 1, now).is_allowed()
    });
    case.peer("governor, String keys", |call| governor.check_key(draws.owned(call)).is_ok());
    case.peer("governor, String keys, caller has &str", |call| {
        allocates.check_key(&draws.text(call).to_owned()).is_ok()
    });
    case.peer("governor, String keys, foldhash", |call| foldhash.check_key(draws.owned(call)).is_ok());
    case.peer("throttlecrab in a Mutex", |call| {
        throttlecrab_allows(&crab, draws.text(call), BURST.into(), 1)
    });
    Ok(case.run(options, CALLS))
}

fn by_id(name: &'static str, options: &Options, draws: &Keys, keys: u64, room: u64) -> Result<Vec<Row>> {
    let floor = flat(room);
    let limiter = Limiter::new(quota()?, size(room));
    let governor = RateLimiter::keyed(governor_quota());
    let foldhash = RateLimiter::<u64, _, _>::dashmap_with_hasher(
        governor_quota(),
        foldhash::fast::RandomState::default(),
    );
    for (id, _) in Keys::all(keys) {
        floor.check(&id);
        let _ = (limiter.check(&id), governor.check_key(&id), foldhash.check_key(&id));
    }
    let mut case = Case::new(name, Answer::Allowed);
    case.peer("floor: flat table", |call| floor.check(&draws.id(call)));
    case.peer("tidegate Limiter", |call| limiter.check(&draws.id(call)).is_allowed());
    case.peer("governor, u64 keys", |call| governor.check_key(&draws.id(call)).is_ok());
    case.peer("governor, u64 keys, foldhash", |call| foldhash.check_key(&draws.id(call)).is_ok());
    Ok(case.run(options, CALLS))
}

/// A thousand keys for each thread, which no other thread calls.
fn own_keys(options: &Options) -> Result<Vec<Row>> {
    const KEYS: usize = 1000;
    let threads = [Keys::all(1000), Keys::all(2000)].map(|keys| {
        let keys: Vec<String> = keys.map(|(_, text)| text).collect();
        keys[keys.len() - KEYS..].to_vec()
    });
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mine = || &threads[next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2];
    let floor = flat(ROOM);
    let limiter = Limiter::new(quota()?, size(ROOM));
    let governor = RateLimiter::keyed(governor_quota());
    let mut case = Case::new("own-1k/str", Answer::Allowed);
    case.peer_by_thread("floor: flat table", || {
        let keys = mine();
        let floor = &floor;
        move |call| floor.check(&*keys[call % KEYS])
    });
    case.peer_by_thread("tidegate Limiter", || {
        let keys = mine();
        let limiter = &limiter;
        move |call| limiter.check(&*keys[call % KEYS]).is_allowed()
    });
    case.peer_by_thread("governor, String keys", || {
        let keys = mine();
        let governor = &governor;
        move |call| governor.check_key(&keys[call % KEYS]).is_ok()
    });
    Ok(case.run(options, CALLS))
}

/// A thousand keys that have nothing left.
fn rejected(options: &Options) -> Result<Vec<Row>> {
    const HOUR_NS: u64 = 3600 * TOKEN_NS;
    let draws = Keys::uniform(1000);
    let floor = FlatTable::new(size(ROOM), HOUR_NS, HOUR_NS);
    let limiter = Limiter::new("1/h burst 1".parse::<tidegate::Quota>()?, size(ROOM));
    let quota = governor::Quota::per_hour(std::num::NonZeroU32::MIN);
    let governor = RateLimiter::keyed(quota);
    let crab = throttlecrab(1000);
    for (_, text) in Keys::all(1000) {
        let _ = (floor.check(&*text), limiter.check(&*text), governor.check_key(&text));
        while throttlecrab_allows(&crab, &text, 2, 36_000) {}
    }
    let mut case = Case::new("hot-1k/str/rejected", Answer::Rejected);
    case.peer("floor: flat table", |call| floor.check(draws.text(call)));
    case.peer("tidegate Limiter", |call| limiter.check(draws.text(call)).is_allowed());
    case.peer("governor, String keys", |call| governor.check_key(draws.owned(call)).is_ok());
    // With a burst of 1 it rejects nothing.
    case.peer("throttlecrab in a Mutex, burst 2", |call| {
        throttlecrab_allows(&crab, draws.text(call), 2, 36_000)
    });
    Ok(case.run(options, CALLS))
}
