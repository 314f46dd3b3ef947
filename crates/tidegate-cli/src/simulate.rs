//! `tidegate simulate`: try limits on generated or recorded traffic, in virtual time.

mod chart;
mod leases;
mod output;
mod rows;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::Quota;
use tidegate_sim::{Arrivals, OneBucket, Pattern, PatternSettings, Settings, Share, Trace, arrivals_of};

use crate::fault::{Hint, Outcome};
use crate::quota_args::{QuotaArgs, above_zero, in_words, parse_rate, time, time_above_zero, whole};
use crate::report::plot::{self, Target};
use crate::report::text::one_line;
use crate::trace_args::TraceArgs;
use rows::Limiter;

/// What `simulate` is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Generated traffic: steady, burst, boundary, ramp, poisson or on-off [default: steady]
    #[arg(long, value_name = "NAME", conflicts_with = "trace", help_heading = "Pattern")]
    pattern: Option<Pattern>,

    /// The pattern's requests per second, or a rate such as 100/min [default: 20]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = "Pattern")]
    rate: Option<Quota>,

    /// How long the pattern goes on
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "3s", conflicts_with = "trace", help_heading = "Pattern")]
    duration: Duration,

    /// How many requests the pattern makes, instead of how long
    #[arg(long, value_name = "N", value_parser = whole, conflicts_with = "trace", help_heading = "Pattern")]
    requests: Option<u64>,

    /// The seed of the random patterns, poisson and on-off
    #[arg(long, value_name = "N", value_parser = whole, default_value = "1", conflicts_with = "trace", help_heading = "Pattern")]
    seed: u64,

    #[command(flatten)]
    traffic: TraceArgs,

    #[command(flatten)]
    limit: QuotaArgs,

    #[command(flatten)]
    limiter: LimiterArgs,

    /// The half-open window of the column `worst`
    #[arg(long, value_name = "TIME", value_parser = time_above_zero, default_value = "1s", help_heading = "Report")]
    worst_window: Duration,

    /// Also show which keys are rejected most
    #[arg(long, requires = "key", help_heading = "Report")]
    by_key: bool,

    /// Print JSON (`tidegate.simulate/1`) instead of the table
    #[arg(long, conflicts_with = "csv", help_heading = "Report")]
    json: bool,

    /// Print CSV instead of the table
    #[arg(long, help_heading = "Report")]
    csv: bool,

    /// Draw allowed and rejected requests over time into FILE.svg or FILE.html, or into the terminal with `-`
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    plot: Option<Target>,
}

/// Which limiters are tried, and how.
#[derive(Debug, clap::Args)]
struct LimiterArgs {
    /// A limiter to try, or `gate`, a token bucket whose callers wait in line; may be repeated; `all` for every limiter [default: none, fixed-window, sliding-log, token-bucket]
    #[arg(long = "limiter", value_name = "NAME", help_heading = "Limit")]
    limiters: Vec<Limiter>,

    /// The limits of a TOML file, all at once, instead of `--limit` and `--limiter`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["limiters", "limit", "window", "burst", "quota", "queue", "max_wait", "workers", "share"], help_heading = "Limit")]
    limits: Option<PathBuf>,

    /// How much cost may wait in the leaky bucket [default: the burst], or how many calls in the gate [default: 1024]
    #[arg(long, value_name = "N", value_parser = whole, help_heading = "Limit")]
    queue: Option<u64>,

    /// The longest wait in the leaky bucket or the gate; a call that would wait longer is rejected at once
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Limit")]
    max_wait: Option<Duration>,

    /// How long an allowed call runs; shows how many run at once
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Limit")]
    service_time: Option<Duration>,

    /// How many calls may run at once; a call whose turn comes when no place is free is rejected, and in the gate waits
    #[arg(long, value_name = "N", value_parser = above_zero, requires = "service_time", help_heading = "Limit")]
    max_in_flight: Option<NonZeroU64>,

    /// How many workers the requests go to, in turn; with several numbers, such as 1,10,100, there are rows for each
    #[arg(long, value_name = "N", value_parser = above_zero, value_delimiter = ',', help_heading = "Limit")]
    workers: Vec<NonZeroU64>,

    /// How the workers share a limit: copied, split, shared or leased; may be repeated [default: copied, split, shared]
    #[arg(long, value_name = "HOW", requires = "workers", value_parser = rows::parse_share, help_heading = "Limit")]
    share: Vec<Share>,

    #[command(flatten)]
    leases: leases::LeaseArgs,
}

impl LimiterArgs {
    /// Whether a row leases: then every row is compared with one bucket.
    fn has_leases(&self) -> bool {
        self.share.contains(&Share::Leased)
    }
}

/// Runs `simulate`.
///
/// # Errors
///
/// A trace or limits file that cannot be read, or flags that make no legal simulation.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    if args.plot == Some(Target::Terminal) && (args.json || args.csv) {
        return Err(Hint::error(
            "`--plot -` draws into the same output as `--json` or `--csv`",
            "name a file, such as `--plot run.svg`",
        ));
    }
    if let Some(target) = &args.plot {
        target.check()?;
    }
    let quota = args.limit.quota()?;
    let plan = rows::plan(args, quota)?;
    let source = Source::of(args, quota)?;
    let settings = Settings {
        worst_window: args.worst_window,
        service_time: args.limiter.service_time,
        max_in_flight: args.limiter.max_in_flight,
        by_key: args.by_key,
        bins: if args.plot.is_some() { chart::bins(source.arrivals()) } else { 0 },
        one_bucket: args
            .limiter
            .has_leases()
            .then(|| OneBucket { quota, per_key: args.traffic.key.is_some() }),
    };
    let report = rows::run(plan, source, args, &settings)?;
    output::print(&report, args)?;
    if let Some(target) = &args.plot {
        plot::write(target, &chart::plate(&report))?;
    }
    Ok(if report.rows.iter().any(rows::Row::is_broken) { Outcome::CheckFailed } else { Outcome::Fine })
}

/// Where the arrivals come from.
#[derive(Debug)]
enum Source {
    Pattern { pattern: Pattern, settings: PatternSettings, arrivals: Arrivals },
    Trace { name: String, trace: Trace },
}

impl Source {
    fn of(args: &Args, quota: Quota) -> anyhow::Result<Self> {
        if args.traffic.trace.is_some() {
            if args.rate.is_some() {
                return Err(Hint::error(
                    "--rate is the pace of a pattern, and a trace has its own",
                    "the limit is --limit 5, or --quota \"5/s burst 20\"",
                ));
            }
            return Ok(Self::Trace { name: args.traffic.name(), trace: args.traffic.load()? });
        }
        let pattern = args.pattern.unwrap_or(Pattern::Steady);
        let settings = PatternSettings {
            rate: match args.rate {
                Some(rate) => rate,
                None => Quota::new(20, Duration::from_secs(1))?,
            },
            duration: args.duration,
            requests: args.requests,
            seed: args.seed,
            limit: quota,
        };
        let arrivals = arrivals_of(pattern, &settings)?;
        Ok(Self::Pattern { pattern, settings, arrivals })
    }

    const fn arrivals(&self) -> &Arrivals {
        match self {
            Self::Pattern { arrivals, .. } => arrivals,
            Self::Trace { trace, .. } => &trace.arrivals,
        }
    }

    /// `pattern burst: 35 requests, limit 10 per second`.
    fn headline(&self, quota: Option<Quota>) -> String {
        let name = match self {
            Self::Pattern { pattern, settings, .. } if pattern.is_random() => {
                format!("pattern {pattern} (seed {})", settings.seed)
            }
            Self::Pattern { pattern, .. } => format!("pattern {pattern}"),
            Self::Trace { name, .. } => format!("trace {}", one_line(name)),
        };
        let requests = self.arrivals().len();
        let mut line = format!("{name}: {requests} request{}", if requests == 1 { "" } else { "s" });
        if let Some(keys) = &self.arrivals().keys {
            line.push_str(&format!(" of {} keys", keys.names.len()));
        }
        if let Some(quota) = quota {
            line.push_str(&format!(", limit {}", in_words(quota)));
        }
        line
    }
}
