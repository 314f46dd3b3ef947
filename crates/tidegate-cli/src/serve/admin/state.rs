//! `GET /api/state`: all that the live page shows, as one document (`tidegate.state/1`).

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tidegate::{Decision, Kind, Mode, Quota, Stats};
use tidegate_server::resp::Resp;
use tidegate_server::rls::Rls;

use super::board::{Board, Shown};
use super::meter::Name;
use super::series::{Series, Tally};
use super::sides::{GrpcState, RespState, Side};
use super::top::Counted;

/// How many keys of a limit are shown.
const KEYS: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct State {
    schema: &'static str,
    version: &'static str,
    listen: String,
    status: &'static str,
    now_unix_ms: u128,
    uptime_ms: u128,
    requests: Outcomes,
    in_flight: u64,
    waiting: u64,
    decision_p50_ns: Option<u128>,
    decision_p99_ns: Option<u128>,
    reloads: Reloads,
    seconds: Seconds,
    resp: Option<RespState>,
    grpc: Option<GrpcState>,
    limits: Vec<Limit>,
}

#[derive(Debug, Serialize)]
struct Outcomes {
    allowed: u64,
    queued: u64,
    rejected: u64,
    never: u64,
    key_full: u64,
    shed: u64,
    unanswered: u64,
}

#[derive(Debug, Serialize)]
struct Reloads {
    ok: u64,
    failed: u64,
}

/// Each second of the last minute, the latest last.
#[derive(Debug, Serialize)]
pub(super) struct Seconds {
    allowed: Vec<u64>,
    rejected: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct Limit {
    name: String,
    limiter: &'static str,
    mode: &'static str,
    quota: String,
    key: Vec<String>,
    words: Vec<String>,
    allowed: u64,
    rejected: u64,
    never: u64,
    refused_elsewhere: u64,
    seconds: Seconds,
    table: Option<Table>,
    asked_most: Vec<KeyState>,
    rejected_most: Vec<KeyState>,
}

#[derive(Debug, Serialize)]
struct Table {
    slots: usize,
    used: usize,
    evicted: u64,
}

/// A key, how often it was counted, and what is left to it now.
#[derive(Debug, Serialize)]
struct KeyState {
    key: Box<str>,
    at_least: u64,
    at_most: u64,
    level: Option<Level>,
}

#[derive(Debug, Serialize)]
struct Level {
    remaining: u64,
    capacity: u64,
    reset_after_ns: u128,
    refill: Option<Refill>,
}

/// How tokens come back, if it is not all at once.
#[derive(Debug, Serialize)]
struct Refill {
    count: u64,
    per_ns: u64,
}

impl State {
    /// What it is like now. It may walk through tables, so it is nothing for a thread that others wait for.
    pub(super) fn of(board: &Board, listen: SocketAddr) -> Self {
        let counts = board.layer().map(tidegate_http::RateLimit::counts).unwrap_or_default();
        let requests = board.meter.total();
        let [allowed, queued, rejected, never, key_full, shed, unanswered] = requests.outcomes;
        let took = |percent| requests.took_at_most(percent).map(|took| took.as_nanos());
        let stats = board.stats();
        let stats = |name: &str| stats.iter().find(|(other, _)| **other == *name).map(|(_, stats)| *stats);
        Self {
            schema: "tidegate.state/1",
            version: env!("CARGO_PKG_VERSION"),
            listen: listen.to_string(),
            status: if board.is_draining() { "draining" } else { "ready" },
            now_unix_ms: unix(SystemTime::now()).as_millis(),
            uptime_ms: board.started.elapsed().as_millis(),
            requests: Outcomes { allowed, queued, rejected, never, key_full, shed, unanswered },
            in_flight: counts.in_flight,
            waiting: counts.waiting,
            decision_p50_ns: took(50),
            decision_p99_ns: took(99),
            reloads: Reloads {
                ok: board.reloads.ok.load(Ordering::Relaxed),
                failed: board.reloads.failed.load(Ordering::Relaxed),
            },
            seconds: Seconds::of(&board.meter.series()),
            resp: board.resp().map(Side::<Resp>::state),
            grpc: board.grpc().map(Side::<Rls>::state),
            limits: board
                .shown()
                .iter()
                .map(|shown| Limit::of(shown, board, stats(&shown.meter.name)))
                .collect(),
        }
    }
}

impl Limit {
    fn of(shown: &Shown, board: &Board, stats: Option<Stats>) -> Self {
        let limit = &shown.limit.limit;
        let [allowed, rejected, never, refused_elsewhere] = shown.meter.total();
        let (asked, rejected_most) = shown.meter.top(KEYS);
        let keys = |counted: Vec<Counted<Name>>| {
            counted.into_iter().map(|counted| KeyState::of(counted, shown, board)).collect()
        };
        Self {
            name: limit.name.to_string(),
            limiter: limit.algorithm.kind().name(),
            mode: mode(limit.mode),
            quota: shown.limit.quota.to_string(),
            key: shown.limit.key.clone(),
            words: shown.words.clone(),
            allowed,
            rejected,
            never,
            refused_elsewhere,
            seconds: Seconds::of(&shown.meter.series()),
            table: stats.map(|stats| Table { slots: stats.slots, used: stats.used, evicted: stats.evicted }),
            asked_most: keys(asked),
            rejected_most: keys(rejected_most),
        }
    }
}

impl KeyState {
    fn of(counted: Counted<Name>, shown: &Shown, board: &Board) -> Self {
        let Counted { name, at_least, at_most } = counted;
        let level = name.key.as_ref().and_then(|key| {
            let quota = shown.quota(key);
            let decision = board.keeper(shown)?.level(&shown.meter.name, key)?;
            Level::of(decision, quota, shown)
        });
        Self { key: name.text, at_least, at_most, level }
    }
}

impl Level {
    fn of(decision: Decision, quota: Quota, shown: &Shown) -> Option<Self> {
        let capacity = shown.capacity(quota)?;
        let (Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. }) = decision
        else {
            return None;
        };
        let is_steady = matches!(shown.limit.limit.algorithm.kind(), Kind::TokenBucket | Kind::LeakyBucket);
        let refill = Refill { count: quota.count(), per_ns: quota.per_ns().get() };
        Some(Self {
            remaining: decision.remaining(),
            capacity,
            reset_after_ns: reset_after.as_nanos(),
            refill: is_steady.then_some(refill),
        })
    }
}

impl Seconds {
    pub(super) fn of(series: &Series) -> Self {
        let (allowed, rejected) =
            series.seconds().map(|Tally { allowed, rejected }| (allowed, rejected)).unzip();
        Self { allowed, rejected }
    }
}

/// The mode as a limits file says it.
pub(super) const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
    }
}

/// The time since 1970; 0 if the clock is before that.
pub(super) fn unix(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
