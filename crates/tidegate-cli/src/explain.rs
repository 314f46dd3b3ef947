//! `tidegate explain`: what a quota means, in words and numbers.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Algorithm, Kind, Quota, Step};

use crate::fault::{Hint, Outcome};
use crate::quota_args::in_words;
use crate::report::table::Table;
use crate::report::text::duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// What `explain` is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A quota, such as "100/min burst 20"
    #[arg(required = true, value_name = "QUOTA")]
    quota: Vec<String>,

    /// Print JSON (`tidegate.explain/1`)
    #[arg(long)]
    json: bool,
}

/// Runs `explain`.
///
/// # Errors
///
/// A text that is no quota.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let text = args.quota.join(" ");
    let quota: Quota = text.parse().map_err(|error: tidegate_core::QuotaError| {
        Hint::error(error.to_string(), "a quota is COUNT/UNIT or COUNT per TIME, and optionally burst TOKENS")
    })?;
    let facts = Facts::of(quota, &text);
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &facts)?;
        writeln!(out)?;
    } else {
        out.write_all(in_text(&facts, quota).as_bytes())?;
    }
    Ok(Outcome::Fine)
}

/// All that is said about a quota. Times are in nanoseconds, rounded up; counts are rounded down.
#[derive(Debug, Serialize)]
struct Facts {
    schema: &'static str,
    quota: String,
    burst: u64,
    interval_ns: u128,
    fill_ns: u128,
    worst: Vec<Worst>,
    limiters: Vec<Limiter>,
    warnings: Vec<String>,
}

/// The most that a token bucket lets through in any half-open window.
#[derive(Debug, Serialize)]
struct Worst {
    window_ns: u128,
    most: u128,
}

/// The same quota under another limiter: the most at one instant, and in any half-open window of the quota's period.
#[derive(Debug, Serialize)]
struct Limiter {
    limiter: &'static str,
    at_once: u64,
    worst: u128,
}

impl Facts {
    fn of(quota: Quota, text: &str) -> Self {
        let bucket = TokenBucket::new(quota);
        let windows = [SECOND, MINUTE, HOUR, DAY].into_iter().chain([quota.per()]);
        let mut windows: Vec<Duration> =
            windows.filter(|window| *window >= quota.per().min(SECOND)).collect();
        windows.sort_unstable();
        windows.dedup();
        let limiters = [Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog, Kind::TokenBucket]
            .into_iter()
            .map(|kind| {
                let at_once = match kind {
                    Kind::TokenBucket => quota.burst(),
                    _ => quota.count(),
                };
                Limiter {
                    limiter: kind.name(),
                    at_once,
                    worst: most(&Algorithm::new(kind, quota), quota.per()),
                }
            });
        Self {
            schema: "tidegate.explain/1",
            quota: quota.to_string(),
            burst: quota.burst(),
            interval_ns: wait(quota, 1).as_nanos(),
            fill_ns: wait(quota, quota.burst()).as_nanos(),
            worst: windows
                .into_iter()
                .map(|window| Worst { window_ns: window.as_nanos(), most: most(&bucket, window) })
                .collect(),
            limiters: limiters.collect(),
            warnings: warnings(quota, text),
        }
    }
}

/// The most in any half-open window.
fn most(limiter: &impl Step, window: Duration) -> u128 {
    limiter.bound(window.saturating_sub(Duration::from_nanos(1))).unwrap_or(u128::MAX)
}

/// How long an empty bucket takes to be full.
pub(crate) fn fill(quota: Quota) -> Duration {
    wait(quota, quota.burst())
}

/// How long an empty bucket takes to hold `tokens`.
fn wait(quota: Quota, tokens: u64) -> Duration {
    let bucket = TokenBucket::new(quota);
    let (empty, _) = bucket.step(bucket.fresh(), 0, quota.burst());
    bucket.look(&empty, 0, tokens).retry_after().unwrap_or(Duration::ZERO)
}

pub(crate) fn warnings(quota: Quota, text: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    let fill = wait(quota, quota.burst());
    if fill > MINUTE && quota.burst() > 1 {
        warnings.push(format!(
            "the burst hides the rate for long: from full, a caller at twice the rate is not rejected for {}; \
             a smaller burst shows the rate sooner, as in `{}`",
            duration(fill),
            smaller(quota),
        ));
    }
    if quota.burst() == 1 && quota.count() > 1 {
        warnings.push(format!(
            "with burst 1 no two calls pass within {}: of two at once, one is rejected; \
             for {} in any pattern write `{}`",
            duration(wait(quota, 1)),
            in_words(quota.with_burst(quota.count()).unwrap_or(quota)),
            quota.with_burst(quota.count()).unwrap_or(quota),
        ));
    }
    if quota.per() < Duration::from_millis(1) {
        warnings.push(format!(
            "`{text}` is {} per second; was a longer time meant, such as `{}/s`?",
            u128::from(quota.count()).saturating_mul(1_000_000_000) / quota.per().as_nanos().max(1),
            quota.count(),
        ));
    }
    if text.split(|c: char| !c.is_alphabetic()).any(|word| word == "m") {
        warnings.push("`m` is read as minutes; write `min` to be clear, or `ms` for milliseconds".to_owned());
    }
    warnings
}

/// The quota with a burst that fills in ten seconds or so.
fn smaller(quota: Quota) -> Quota {
    let in_ten = u128::from(quota.count()).saturating_mul(10_000_000_000) / quota.per().as_nanos().max(1);
    let burst = u64::try_from(in_ten).unwrap_or(u64::MAX).clamp(1, quota.burst());
    quota.with_burst(burst).unwrap_or(quota)
}

fn in_text(facts: &Facts, quota: Quota) -> String {
    let mut text = format!("{}: {}\n\n", facts.quota, in_words(quota));
    let ns = |ns: u128| duration(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)));
    let tokens = |n: u64| if n == 1 { "1 token".to_owned() } else { format!("{n} tokens") };
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    let exact = if facts.interval_ns.is_multiple_of(1000) { "" } else { "about " };
    line("at once", format!("{}, then 1 per {exact}{}", tokens(facts.burst), ns(facts.interval_ns)));
    line("full again", format!("{} after it was emptied", ns(facts.fill_ns)));
    line("never passes", format!("a call that costs more than {}", facts.burst));
    for worst in &facts.worst {
        let rate_alone = worst.most.saturating_sub(u128::from(facts.burst));
        line(
            &format!("worst {}", unit(worst.window_ns)),
            format!("{} = {} saved up + {rate_alone} earned", worst.most, facts.burst),
        );
    }
    let worst = format!("worst {}", unit(quota.per().as_nanos()));
    let mut table = Table::new(&["limiter", "at once", &worst]);
    for limiter in &facts.limiters {
        table.row(&[limiter.limiter.to_owned(), limiter.at_once.to_string(), limiter.worst.to_string()]);
    }
    let _ = write!(text, "\n{table}");
    for warning in &facts.warnings {
        let _ = write!(text, "\nwarning: {warning}\n");
    }
    text
}

/// A window in words: `second`, `minute`, `10s`.
fn unit(ns: u128) -> String {
    match ns {
        1_000_000_000 => "second".to_owned(),
        60_000_000_000 => "minute".to_owned(),
        3_600_000_000_000 => "hour".to_owned(),
        86_400_000_000_000 => "day".to_owned(),
        _ => duration(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(text: &str) -> String {
        let quota = text.parse().unwrap();
        in_text(&Facts::of(quota, text), quota)
    }

    #[test]
    fn a_quota_is_explained_in_numbers() {
        insta::assert_snapshot!(explained("100/min burst 20"), @r"
        100/min burst 20: 100 per minute, burst 20

        at once       20 tokens, then 1 per 600ms
        full again    12s after it was emptied
        never passes  a call that costs more than 20
        worst second  21 = 20 saved up + 1 earned
        worst minute  119 = 20 saved up + 99 earned
        worst hour    6019 = 20 saved up + 5999 earned
        worst day     144019 = 20 saved up + 143999 earned

        limiter          at once  worst minute
        fixed-window         100           200
        sliding-window       100           199
        sliding-log          100           100
        token-bucket          20           119
        ");
    }

    #[test]
    fn a_burst_that_hides_the_rate_is_warned_of() {
        let warned = |text: &str| Facts::of(text.parse().unwrap(), text).warnings;
        assert!(warned("5000/hour")[0].starts_with("the burst hides the rate for long"));
        assert!(warned("10/s burst 1")[0].starts_with("with burst 1 no two calls pass within 100ms"));
        assert!(warned("10/us")[0].starts_with("`10/us` is 10000000 per second"));
        assert!(warned("10/m")[0].starts_with("`m` is read as minutes"));
        for fine in ["10/s burst 20", "100/min", "1 per 10s", "0.5/s", "3/s"] {
            assert_eq!(warned(fine), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn what_is_explained_is_what_the_bucket_does() {
        for text in ["100/min burst 20", "3/s", "7/11s burst 5", "1 per 10s burst 3"] {
            let quota: Quota = text.parse().unwrap();
            let bucket = TokenBucket::new(quota);
            let facts = Facts::of(quota, text);
            for worst in &facts.worst {
                // Empty a full bucket and take a token as soon as there is one, up to the end of the window.
                let mut state = bucket.fresh();
                let (mut now, mut taken) = (0_u128, 0_u128);
                while now < worst.window_ns.min(100_000_000_000) {
                    let (next, decision) = bucket.step(state, u64::try_from(now).unwrap(), 1);
                    state = next;
                    match decision.retry_after() {
                        None => taken += 1,
                        Some(wait) => now += wait.as_nanos(),
                    }
                }
                if worst.window_ns <= 100_000_000_000 {
                    assert_eq!(taken, worst.most, "{text} in {}", worst.window_ns);
                }
            }
        }
    }
}
