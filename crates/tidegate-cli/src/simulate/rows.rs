//! The rows of a simulation: which limiters run, each with its tally.

use std::str::FromStr;
use std::time::Duration;

use tidegate_core::{Algorithm, Kind, Limit, Mode, Quota, Step};
use tidegate_sim::{Settings, Share, SimLimit, Tally, Workers, simulate, split};

use super::{Args, Source};
use crate::fault::Hint;
use crate::limits;
use crate::progress::Progress;

/// A value of `--limiter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limiter {
    /// Every limiter.
    All,
    /// This one.
    One(Kind),
}

impl FromStr for Limiter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.parse().map(Self::One).map_err(|error: tidegate_core::UnknownKind| format!("{error}, all"))
    }
}

/// A value of `--share`.
pub(super) fn parse_share(text: &str) -> Result<Share, &'static str> {
    Share::ALL.into_iter().find(|share| share.name() == text).ok_or("write one of copied, split, shared")
}

/// One row to run.
#[derive(Debug)]
pub(super) struct Plan {
    name: String,
    workers: Workers,
    /// The most cost that the limits promise to allow in the worst window, where they promise it for all keys together.
    bound: Option<u128>,
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
}

impl Row {
    /// Whether more was allowed than was promised: never, unless the engine is wrong.
    pub(super) fn is_broken(&self) -> bool {
        self.bound.is_some_and(|bound| self.tally.worst > bound)
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
    for limiter in &args.limiter.limiters {
        match limiter {
            Limiter::All => kinds.extend(Kind::ALL),
            Limiter::One(kind) => kinds.push(*kind),
        }
    }
    if kinds.is_empty() {
        kinds = vec![Kind::Unlimited, Kind::FixedWindow, Kind::SlidingLog, Kind::TokenBucket];
        if args.limiter.queue.is_some() || args.limiter.max_wait.is_some() {
            kinds.push(Kind::LeakyBucket);
        }
    }
    let mut plans = Vec::new();
    for kind in kinds {
        let Some(workers) = args.limiter.workers else {
            plans.push(plan_of_kind(kind, None, quota, args)?);
            continue;
        };
        let workers = usize::try_from(workers.get()).unwrap_or(usize::MAX);
        if workers > 10_000 {
            return Err(Hint::error(
                format!("{workers} workers are too many to simulate"),
                "write at most 10000",
            ));
        }
        let shares = if args.limiter.share.is_empty() { &Share::ALL[..] } else { &args.limiter.share };
        for share in shares {
            plans.push(plan_of_kind(kind, Some((*share, workers)), quota, args)?);
        }
    }
    Ok(plans)
}

fn plan_of_kind(
    kind: Kind,
    sharing: Option<(Share, usize)>,
    quota: Quota,
    args: &Args,
) -> anyhow::Result<Plan> {
    let per_key = args.traffic.key.is_some();
    let one = |quota: Quota| {
        let algorithm = match kind {
            Kind::LeakyBucket => {
                let queue = args.limiter.queue.unwrap_or(quota.burst());
                limits::leaky_bucket(quota, queue, args.limiter.max_wait)
            }
            kind => Algorithm::new(kind, quota),
        };
        let limit = Limit { name: kind.name().into(), algorithm, mode: Mode::Enforce };
        vec![SimLimit { limit, per_key, max_in_flight: None }]
    };
    let windowed = matches!(kind, Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog);
    let (name, limits) = match sharing {
        None => (kind.name().to_owned(), vec![one(quota)]),
        Some((share, workers)) => {
            let limits = match share {
                Share::Shared => vec![one(quota)],
                Share::Copied => vec![one(quota); workers],
                Share::Split if kind == Kind::Unlimited => vec![one(quota); workers],
                Share::Split => (0..workers)
                    .map(|worker| Ok(one(split(quota, windowed, worker, workers)?)))
                    .collect::<anyhow::Result<_>>()?,
            };
            (format!("{} {}", kind.name(), share.name()), limits)
        }
    };
    let window = half_open(args.worst_window);
    let bound = if per_key {
        None
    } else {
        limits.iter().flatten().map(|sim| sim.limit.algorithm.bound(window)).sum()
    };
    Ok(Plan { name, workers: Workers { limits }, bound })
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
    let bound = read
        .iter()
        .filter(|limit| limit.key.is_empty() && limit.limit.mode == Mode::Enforce)
        .filter_map(|limit| limit.limit.algorithm.bound(window))
        .min();
    let limits = read
        .into_iter()
        .map(|read| SimLimit {
            per_key: !read.key.is_empty(),
            limit: read.limit,
            max_in_flight: read.max_in_flight,
        })
        .collect();
    Ok(Plan { name: "all limits".to_owned(), workers: Workers::one(limits), bound })
}

/// Runs every row over the same arrivals.
pub(super) fn run(
    plans: Vec<Plan>,
    source: Source,
    args: &Args,
    settings: &Settings,
) -> anyhow::Result<Report> {
    let arrivals = source.arrivals();
    let requests = arrivals.len() as u64;
    let mut progress = Progress::requests("deciding", requests.saturating_mul(plans.len() as u64));
    let mut done = 0;
    let mut rows = Vec::new();
    for plan in plans {
        let tally = simulate(arrivals, &plan.workers, settings, &mut |n| progress.at(done + n as u64));
        done += requests;
        rows.push(Row { name: plan.name, tally, bound: plan.bound });
    }
    progress.done();
    let quota = match args.limiter.limits {
        Some(_) => None,
        None => Some(args.limit.quota()?),
    };
    Ok(Report { source, quota, rows })
}
