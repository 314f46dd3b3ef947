//! `tidegate hammer`: sends requests at an even pace and says whether the server kept its limit.

mod fields;
mod gather;
mod obey;
mod pace;
mod report;
mod retry;
mod target;
mod verdict;

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tidegate::Quota;

use crate::fault::{Hint, Outcome};
use crate::quota_args::{QuotaArgs, parse_rate, time, time_above_zero, whole_within};
use gather::{Gathered, Plan, gather};
use obey::obey;
use pace::Pace;
use report::{Report, ms};
use retry::Retry;
use target::{Target, header, url};
use verdict::Verdict;

/// Requests when neither `--requests` nor `--duration` says how many.
const DEFAULT_REQUESTS: u64 = 40;

/// The distance of two requests when neither `--interval` nor `--rate` gives one.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(15);

/// Requests in flight when --concurrency does not say how many. Twice as many come near the open files of one process.
const DEFAULT_CONCURRENCY: u64 = 500;

/// The most requests of a run. Each answer is kept until the verdict, in 24 bytes, 12 for each limit that it shows and one
/// more, and 28 if it is a rejection.
const MAX_REQUESTS: u64 = 10_000_000;

/// Send requests at an even pace and say whether the server kept its limit
///
/// Requests start at their intended times, whether or not earlier ones were answered, and latency counts from there.
/// With --limit, --window, --burst or --quota it checks the server against that limit: that in every interval at most
/// burst + rate x time was allowed (exit code 1 if not), and that whoever waits as told is allowed. Every answer but
/// 429 and 503 counts as allowed. What the fields RateLimit, RateLimit-Policy, Retry-After and retry-after-ms say, or the
/// older X-RateLimit-Remaining, is judged as well (exit code 1 if false), as if nobody else used the limits; where the
/// times of sending and receipt leave it open, nothing is said against the server. A request without an answer makes the exit code 2; if the server may have got and
/// allowed so many of them that the bound would be broken, the verdict is that it is not decided.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server to ask, with http://
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080/", value_parser = url)]
    url: Uri,

    /// How many requests [default: 40]
    #[arg(long, value_name = "N", value_parser = requests)]
    requests: Option<u64>,

    /// The time from one request to the next; 0s sends all at once [default: 15ms]
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "rate")]
    interval: Option<Duration>,

    /// The pace as a rate instead: 100 (a second), 5/min
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<Quota>,

    /// Stop sending after this time
    #[arg(long, value_name = "TIME", value_parser = time_above_zero)]
    duration: Option<Duration>,

    /// How many requests may be in flight at one time; further ones start late [default: 500, or 1 with --obey]
    #[arg(long, value_name = "N", value_parser = concurrency)]
    concurrency: Option<u64>,

    /// A header for every request, 'Name: value'; can be given several times
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// Check the told wait even without a limit to check
    #[arg(long)]
    check_retry: bool,

    /// Come back when told: who is rejected waits exactly as long as told, and must be allowed then
    ///
    /// Each of --concurrency callers has one request in flight. With more than one, another may have taken the token, and
    /// a second rejection decides nothing. A wait longer than what is left of --duration, or than 10 s without it, is not
    /// tried. Coming back counts as one of --requests.
    #[arg(long, conflicts_with = "check_retry")]
    obey: bool,

    /// What each request costs, in units of the server's limits; RateLimit is judged by it
    #[arg(long, value_name = "N", default_value = "1", value_parser = cost)]
    cost: u64,

    /// Print one JSON object (schema tidegate.hammer/1)
    #[arg(long)]
    json: bool,

    #[command(flatten, next_help_heading = "The limit to check")]
    quota: QuotaArgs,
}

/// Runs `hammer`.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = plan(args)?;
    let quota = if args.quota.is_given() { Some(args.quota.quota()?) } else { None };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the threads that send")?;
    let result = runtime.block_on(hammer(args, plan, quota));
    // After an interrupt nobody waits for the answers that are still to come.
    runtime.shutdown_background();
    result
}

async fn hammer(args: &Args, plan: Plan, quota: Option<Quota>) -> anyhow::Result<Outcome> {
    let headers: HeaderMap = args.headers.iter().cloned().collect();
    let target = Target::new(args.url.clone(), headers, plan.concurrency);
    let _ = writeln!(
        io::stderr(),
        "hammer {}: {} requests in {:?}{}, at most {} in flight",
        args.url,
        plan.requests,
        plan.pace.start(plan.requests.saturating_sub(1)),
        if args.obey { " and the waits told" } else { "" },
        plan.concurrency
    );
    tokio::select! {
        () = target.wait_until_listening() => {}
        // The run begins, and ends at once.
        _ = tokio::signal::ctrl_c() => return Ok(Outcome::Fine),
    }
    let empty = Gathered::new(args.cost)?;
    let (gathered, obeyed) = if args.obey {
        let (gathered, obeyed) = obey(&target, plan, args.duration, empty).await;
        (gathered, Some(obeyed))
    } else {
        (gather(&target, plan, empty).await?, None)
    };
    warn_of_the_run(plan, &gathered, args.obey);

    let check_retry =
        (quota.is_some() || args.check_retry) && !gathered.interrupted && gathered.errors == 0 && !args.obey;
    let report = Report {
        url: args.url.to_string(),
        plan,
        gathered: &gathered,
        findings: gathered.fields.findings(&gathered.answered, &gathered.unanswered),
        obeyed,
        verdict: quota.map(|quota| Verdict::new(quota, &gathered)),
        retry: if check_retry { Some(retry_or_interrupt(&target).await) } else { None },
    };
    // Whether somebody reads the report changes nothing about what it says.
    let written = write(&report, args.json);
    if report.is_broken() {
        return Ok(Outcome::CheckFailed);
    }
    match &gathered.first_error {
        Some(cause) => Err(no_answer(&args.url, &gathered, cause)),
        None => {
            written?;
            Ok(Outcome::Fine)
        }
    }
}

fn write(report: &Report<'_>, json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        report.write_json(&mut stdout)?;
    } else {
        report.write_text(&mut stdout)?;
    }
    stdout.flush()
}

/// The check of the told wait, which Ctrl-C ends.
async fn retry_or_interrupt(target: &Target) -> Retry {
    tokio::select! {
        retry = retry::check(target) => retry,
        _ = tokio::signal::ctrl_c() => Retry::Skipped("interrupted".to_owned()),
    }
}

/// How many requests, and when.
fn plan(args: &Args) -> anyhow::Result<Plan> {
    let pace = match &args.rate {
        Some(rate) => Pace::rate(rate),
        None => Pace::each(args.interval.unwrap_or(DEFAULT_INTERVAL)),
    };
    let requests = match (args.requests, args.duration.map(|duration| pace.requests_in(duration))) {
        (None, None) => DEFAULT_REQUESTS,
        (Some(requests), None | Some(None)) => requests,
        (None, Some(Some(in_time))) => in_time,
        (Some(requests), Some(Some(in_time))) => requests.min(in_time),
        (None, Some(None)) => {
            return Err(Hint::error(
                "an interval of 0 has no end in a duration",
                "say how many with --requests, or give --interval a time above 0",
            ));
        }
    };
    if requests > MAX_REQUESTS {
        return Err(Hint::error(
            format!("{requests} requests are more than the {MAX_REQUESTS} that one run can hold"),
            "give a shorter --duration or a lower --rate",
        ));
    }
    let default = if args.obey { 1 } else { DEFAULT_CONCURRENCY };
    Ok(Plan { requests, pace, concurrency: usize::try_from(args.concurrency.unwrap_or(default))? })
}

/// Says on stderr what makes the figures weaker than they look.
fn warn_of_the_run(plan: Plan, gathered: &Gathered, obeys: bool) {
    let mut stderr = io::stderr().lock();
    let requests = gathered.requests();
    // A diagnostic that cannot be written changes nothing.
    if gathered.interrupted {
        let _ = writeln!(stderr, "interrupted: {requests} of {} requests are reported", plan.requests);
    } else if requests < plan.requests && !obeys {
        let _ = writeln!(
            stderr,
            "warning: {} requests were not sent, as {} were in flight for too long; raise --concurrency",
            plan.requests - requests,
            plan.concurrency
        );
    }
    if gathered.late > 0 {
        let _ = writeln!(
            stderr,
            "warning: the pace was not kept: {} of {requests} requests started late, by up to {}; \
             lower --rate or raise --concurrency",
            gathered.late,
            ms(gathered.late_ns_max)
        );
    }
}

fn no_answer(url: &Uri, gathered: &Gathered, cause: &str) -> anyhow::Error {
    let some = format!("{} of {} requests got no answer from {url}", gathered.errors, gathered.requests());
    let hint = if gathered.answered.is_empty() {
        "start a server there, `tidegate serve` for example, or give another URL"
    } else {
        "lower --rate or --concurrency, or look at what the server says"
    };
    Hint::error(format!("{some}: {cause}"), hint)
}

/// Reads a number of requests.
fn requests(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=MAX_REQUESTS)
}

/// Reads a cost.
fn cost(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=MAX_REQUESTS)
}

/// Reads a number of requests in flight: each takes a port of this machine, which has no more.
fn concurrency(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=65_535)
}
