//! The rows of a simulation: which limiters run, each with its tally.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use tidegate_core::{Algorithm, Kind, Limit, Mode, Quota, Step};
use tidegate_sim::{
    Arrivals, Costs, Gate, Leased, Settings, Share, SimLimit, Tally, Workers, part, simulate, simulate_gate,
    simulate_leased, split,
};

use super::{Args, Source};
use crate::fault::Hint;
use crate::limits;
use crate::progress::Progress;
use crate::quota_args::no_queue;

/// A value of `--limiter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limiter {
    /// Every limiter.
    All,
    /// This one.
    One(Kind),
    /// The waiting line: a token bucket whose callers wait in turn, and for a place in flight.
    Gate,
}

/// How many calls wait in a gate if it is not said, as in the library.
const GATE_QUEUE: usize = 1024;

impl FromStr for Limiter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        if text == "gate" {
            return Ok(Self::Gate);
        }
        text.parse().map(Self::One).map_err(|error: tidegate_core::UnknownKind| format!("{error}, gate, all"))
    }
}

/// A value of `--share`.
pub(super) fn parse_share(text: &str) -> Result<Share, &'static str> {
    let shares = Share::ALL.into_iter().chain([Share::Leased]);
    shares.into_iter().find(|share| share.name() == text).ok_or("write one of copied, split, shared, leased")
}

/// One row to run.
#[derive(Debug)]
pub(super) struct Plan {
    name: String,
    what: What,
    /// The most cost that the limits promise to allow in the worst window, where they promise it for all keys together.
    bound: Option<u128>,
    /// How the workers share the limit, and how many they are.
    sharing: Option<(Share, usize)>,
}

/// What a row runs.
#[derive(Debug)]
enum What {
    Workers(Workers),
    Gate(Gate),
    Leased(Leased),
}

/// One row that has run.
#[derive(Debug)]
pub(super) struct Row {
    /// The limiter, and how it is shared.
    pub(super) name: String,
    /// What it did.
    pub(super) tally: Tally,
    /// What it promised.
    pub(super) bound: Option<u128>,
    /// The most that it promised to allow beyond one bucket, in any interval.
    pub(super) overshoot: Option<u128>,
    /// How many workers asked a store how often, where rows are compared with leases.
    pub(super) store: Option<Store>,
}

/// The calls to a shared store in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Store {
    /// How the workers share the limit.
    pub(super) share: Share,
    /// All of them.
    pub(super) calls: u64,
    /// How many workers made them.
    pub(super) workers: u64,
}

impl Row {
    /// Whether more was allowed than was promised: never, unless the engine is wrong.
    pub(super) fn is_broken(&self) -> bool {
        self.bound.is_some_and(|bound| self.tally.worst > bound)
            || self.overshoot.zip(self.tally.over).is_some_and(|(most, over)| over > most)
    }
}

/// A whole run.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) source: Source,
    /// `None` when the limits come from a file.
    pub(super) quota: Option<Quota>,
    pub(super) rows: Vec<Row>,
}

/// What is to run: checked before any trace is read, so that a wrong flag does not cost minutes.
pub(super) fn plan(args: &Args, quota: Quota) -> anyhow::Result<Vec<Plan>> {
    if let Some(path) = &args.limiter.limits {
        return Ok(vec![plan_of_file(path, args)?]);
    }
    let mut kinds: Vec<Kind> = Vec::new();
    let mut plans = Vec::new();
    for limiter in &args.limiter.limiters {
        match limiter {
            Limiter::All => kinds.extend(Kind::ALL),
            Limiter::One(kind) => kinds.push(*kind),
            Limiter::Gate => plans.push(plan_of_gate(quota, args)?),
        }
    }
    if args.limiter.limiters.is_empty() {
        kinds = vec![Kind::Unlimited, Kind::FixedWindow, Kind::SlidingLog, Kind::TokenBucket];
        if args.limiter.queue.is_some() || args.limiter.max_wait.is_some() {
            kinds.push(Kind::LeakyBucket);
        }
    }
    if !kinds.contains(&Kind::LeakyBucket) && plans.is_empty() {
        if args.limiter.queue.is_some() {
            return Err(no_queue("--queue"));
        }
        if args.limiter.max_wait.is_some() {
            return Err(no_queue("--max-wait"));
        }
    }
    args.limiter.leases.check(&args.limiter.share)?;
    // The gate comes last, as the one row that has callers.
    let gates = plans.split_off(0);
    for kind in kinds {
        if args.limiter.workers.is_empty() {
            plans.push(plan_of_kind(kind, None, quota, args)?);
        }
        let shares = if args.limiter.share.is_empty() { &Share::ALL[..] } else { &args.limiter.share };
        for workers in &args.limiter.workers {
            let workers = usize::try_from(workers.get()).unwrap_or(usize::MAX);
            if workers > 10_000 {
                return Err(Hint::error(
                    format!("{workers} workers are too many to simulate"),
                    "write at most 10000",
                ));
            }
            for share in shares {
                let mut plan = plan_of_kind(kind, Some((*share, workers)), quota, args)?;
                if args.limiter.workers.len() > 1 {
                    plan.name.push_str(&format!(", {workers} worker{}", if workers == 1 { "" } else { "s" }));
                }
                plans.push(plan);
            }
        }
    }
    plans.extend(gates);
    Ok(plans)
}

/// One budget for all keys, and a line in which callers wait for it and for a place in flight.
fn plan_of_gate(quota: Quota, args: &Args) -> anyhow::Result<Plan> {
    if !args.limiter.workers.is_empty() {
        return Err(Hint::error(
            "a gate is one line for all callers",
            "leave out --workers or --limiter gate",
        ));
    }
    let algorithm = Algorithm::new(Kind::TokenBucket, quota);
    let max_waiting =
        args.limiter.queue.map_or(GATE_QUEUE, |queue| usize::try_from(queue).unwrap_or(usize::MAX));
    let gate = Gate { algorithm, max_waiting, max_wait: args.limiter.max_wait };
    let bound = algorithm.bound(half_open(args.worst_window));
    Ok(Plan { name: "gate".to_owned(), what: What::Gate(gate), bound, sharing: None })
}

fn plan_of_kind(
    kind: Kind,
    sharing: Option<(Share, usize)>,
    quota: Quota,
    args: &Args,
) -> anyhow::Result<Plan> {
    if let Some((Share::Leased, workers)) = sharing {
        return plan_of_leases(kind, workers, quota, args);
    }
    let per_key = args.traffic.key.is_some();
    let one = |quota: Quota, queue: Option<u64>| {
        let algorithm = match kind {
            Kind::LeakyBucket => {
                limits::leaky_bucket(quota, queue.unwrap_or(quota.burst()), args.limiter.max_wait)
            }
            kind => Algorithm::new(kind, quota),
        };
        let limit = Limit { name: kind.name().into(), algorithm, mode: Mode::Enforce };
        vec![SimLimit { limit, per_key, max_in_flight: None, overrides: Default::default() }]
    };
    let windowed = matches!(kind, Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog);
    let queue = args.limiter.queue;
    let (name, limits) = match sharing {
        None => (kind.name().to_owned(), vec![one(quota, queue)]),
        Some((share, workers)) => {
            let limits = match share {
                Share::Shared | Share::Leased => vec![one(quota, queue)],
                Share::Copied => vec![one(quota, queue); workers],
                Share::Split if kind == Kind::Unlimited => vec![one(quota, queue); workers],
                Share::Split => (0..workers)
                    .map(|worker| {
                        let queue = queue.map(|queue| part(queue, worker, workers));
                        Ok(one(split(quota, windowed, worker, workers)?, queue))
                    })
                    .collect::<anyhow::Result<_>>()?,
            };
            (format!("{} {}", kind.name(), share.name()), limits)
        }
    };
    let window = half_open(args.worst_window);
    let bound = if per_key {
        None
    } else {
        let bounds = limits.iter().flatten().map(|sim| sim.limit.algorithm.bound(window));
        bounds.reduce(|sum, bound| Some(sum?.saturating_add(bound?))).flatten()
    };
    Ok(Plan { name, what: What::Workers(Workers { limits }), bound, sharing })
}

/// Workers that lease. What they promise depends on the dearest call, which is known when the trace is read.
fn plan_of_leases(kind: Kind, workers: usize, quota: Quota, args: &Args) -> anyhow::Result<Plan> {
    let limiter = &args.limiter;
    if limiter.service_time.is_some() {
        return Err(Hint::error(
            "how long calls run is not simulated with leases",
            "leave out --service-time or --share leased",
        ));
    }
    let leased = limiter.leases.leased(kind, quota, workers, args.seed)?;
    let name = format!("{} {}", kind.name(), Share::Leased.name());
    Ok(Plan { name, what: What::Leased(leased), bound: None, sharing: Some((Share::Leased, workers)) })
}

/// The longest closed interval inside a half-open window.
fn half_open(window: Duration) -> Duration {
    window.saturating_sub(Duration::from_nanos(1))
}

fn plan_of_file(path: &std::path::Path, args: &Args) -> anyhow::Result<Plan> {
    let read = limits::read(path)?;
    let mut key: Option<&[String]> = None;
    for limit in read.iter().filter(|limit| !limit.key.is_empty()) {
        if args.traffic.key.is_none() {
            return Err(Hint::error(
                format!(
                    "limit `{}` has the key {}, and no field is named for it",
                    limit.limit.name,
                    limit.key.join(" + ")
                ),
                "name the field of the trace that holds the key, such as `--trace FILE --key client`",
            ));
        }
        if key.is_some_and(|key| key != limit.key) {
            return Err(Hint::error(
                "the limits have different keys, and a simulation reads one key field",
                "try them one at a time, or with the same key",
            ));
        }
        key = Some(&limit.key);
    }
    if let Some(limit) = read.iter().find(|limit| limit.max_in_flight.is_some())
        && args.limiter.service_time.is_none()
    {
        return Err(Hint::error(
            format!("limit `{}` has `max_in_flight`, and how long a call runs is not said", limit.limit.name),
            "say it with `--service-time TIME`",
        ));
    }
    let window = half_open(args.worst_window);
    let bound = bound_of_all(&read, window);
    let limits = read
        .into_iter()
        .map(|read| SimLimit {
            overrides: overrides(&read),
            per_key: !read.key.is_empty(),
            limit: read.limit,
            max_in_flight: read.max_in_flight,
        })
        .collect();
    Ok(Plan {
        name: "all limits".to_owned(),
        what: What::Workers(Workers::one(limits)),
        bound,
        sharing: None,
    })
}

/// The keys that have another quota. A trace has one key field, so that a key of several parts is none of its keys.
fn overrides(read: &limits::FileLimit) -> HashMap<Box<str>, Algorithm> {
    let of = |other: &limits::Override| match other.key.as_slice() {
        [key] => Some((key.as_str().into(), read.limit.algorithm.with_quota(other.quota))),
        _ => None,
    };
    read.overrides.iter().filter_map(of).collect()
}

/// The most cost that all limits together let start within `window`, where they promise anything about that.
///
/// A limit is charged when a call comes. Where one limit lets calls wait, calls start later than they were charged, and
/// only that limit knows when: the others promise nothing about the starts. Where several do, or one for each key,
/// a call starts when the last of them lets it, which none of them promises anything about.
fn bound_of_all(limits: &[limits::FileLimit], window: Duration) -> Option<u128> {
    let enforced: Vec<_> = limits.iter().filter(|limit| limit.limit.mode == Mode::Enforce).collect();
    let waiting: Vec<_> =
        enforced.iter().filter(|limit| limit.limit.algorithm.kind() == Kind::LeakyBucket).collect();
    let promising = match waiting.as_slice() {
        [] => enforced.as_slice(),
        [one] => std::slice::from_ref(*one),
        _ => &[],
    };
    promising
        .iter()
        .filter(|limit| limit.key.is_empty())
        .filter_map(|limit| limit.limit.algorithm.bound(window))
        .min()
}

/// The most states that a row may keep. A state takes 64 bytes, so twice as many would take 8 GB more.
const MAX_STATES: usize = 1 << 27;

/// Refuses rows whose states, one for each worker, limit and key, would not fit into memory.
fn check_states(plans: &[Plan], arrivals: &Arrivals) -> anyhow::Result<()> {
    let keys = arrivals.keys.as_ref().map_or(1, |keys| keys.names.len());
    for plan in plans {
        let states = match &plan.what {
            What::Workers(workers) => {
                let limits = workers.limits.iter().flatten();
                limits.map(|sim| if sim.per_key { keys } else { 1 }).fold(0, usize::saturating_add)
            }
            // A lease is made when a key comes to a worker; it takes four times as much.
            What::Leased(leased) => keys.saturating_mul(leased.workers).min(arrivals.len()).saturating_mul(4),
            What::Gate(_) => continue,
        };
        if states > MAX_STATES {
            return Err(Hint::error(
                format!("{} would keep {states} states, one for each worker and key", plan.name),
                format!("at most {MAX_STATES} fit; write fewer --workers, or leave out --key"),
            ));
        }
    }
    Ok(())
}

/// What a row promises beyond one bucket, and what it asked of a store: a state that workers share is asked for each call.
fn compare(
    row: &mut Row,
    what: &What,
    sharing: Option<(Share, usize)>,
    args: &Args,
    arrivals: &Arrivals,
) -> anyhow::Result<()> {
    let quota = args.limit.quota()?;
    let most_cost = match &arrivals.costs {
        Costs::One => 1,
        Costs::Each(costs) => costs.iter().copied().max().unwrap_or(0),
    };
    let share = sharing.map(|(share, _)| share);
    let mut calls = if share == Some(Share::Shared) { arrivals.len() as u64 } else { 0 };
    if let What::Leased(leased) = what {
        let overshoot = u128::from(leased.promised(most_cost));
        row.overshoot = Some(overshoot);
        if args.traffic.key.is_none() {
            let bound = Algorithm::new(Kind::TokenBucket, quota).bound(half_open(args.worst_window));
            row.bound = bound.map(|bound| bound.saturating_add(overshoot));
        }
        calls = row.tally.leases.map_or(0, |leases| leases.store_calls);
    } else if row.name.starts_with(Kind::TokenBucket.name()) && share != Some(Share::Copied) {
        row.overshoot = Some(0);
    }
    row.store = sharing.map(|(share, workers)| Store { share, calls, workers: workers as u64 });
    Ok(())
}

/// Runs every row over the same arrivals.
pub(super) fn run(
    plans: Vec<Plan>,
    source: Source,
    args: &Args,
    settings: &Settings,
) -> anyhow::Result<Report> {
    let arrivals = source.arrivals();
    check_states(&plans, arrivals)?;
    let requests = arrivals.len() as u64;
    let mut progress = Progress::requests("deciding", requests.saturating_mul(plans.len() as u64));
    let mut done = 0;
    let mut rows = Vec::new();
    for plan in plans {
        let mut at = |n: usize| progress.at(done + n as u64);
        let tally = match &plan.what {
            What::Workers(workers) => simulate(arrivals, workers, settings, &mut at),
            What::Gate(gate) => simulate_gate(arrivals, gate, settings, &mut at)?,
            What::Leased(leased) => simulate_leased(arrivals, leased, settings, &mut at),
        };
        done += requests;
        let mut row = Row { name: plan.name, tally, bound: plan.bound, overshoot: None, store: None };
        if args.limiter.has_leases() {
            compare(&mut row, &plan.what, plan.sharing, args, arrivals)?;
        }
        rows.push(row);
    }
    progress.done();
    let quota = match args.limiter.limits {
        Some(_) => None,
        None => Some(args.limit.quota()?),
    };
    Ok(Report { source, quota, rows })
}
