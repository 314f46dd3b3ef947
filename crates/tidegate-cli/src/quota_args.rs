//! The flags that describe a limiter, the same for every verb that takes one.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use tidegate::algorithm::LeakyBucket;
use tidegate::{Algorithm, Kind, Quota, QuotaError, parse_duration};

use crate::fault::Hint;

/// The rate when no flag gives one.
const DEFAULT_LIMIT: &str = "10";

/// How fast, how many at once: `--limit`, `--window` and `--burst`, or all of it as `--quota`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct QuotaArgs {
    /// Calls per window, above 0: 5, 0.5; or with the time: 2/s, 100/min [default: 10]
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "quota",
        allow_negative_numbers = true,
        help_heading = "Limit"
    )]
    limit: Option<Limit>,

    /// The time in which --limit calls come: 1s, 250ms, 5min [default: 1s]
    #[arg(long, value_name = "TIME", conflicts_with = "quota", value_parser = time_above_zero, help_heading = "Limit")]
    window: Option<Duration>,

    /// Calls that can come at once when nobody called for a while [default: the limit]
    #[arg(long, value_name = "N", conflicts_with = "quota", value_parser = whole, help_heading = "Limit")]
    burst: Option<u64>,

    /// All three as one text: "10/s burst 20", "1 per 10s", "90000/min"
    #[arg(long, value_name = "TEXT", help_heading = "Limit")]
    quota: Option<Quota>,
}

impl QuotaArgs {
    /// Whether any of the flags was given.
    pub(crate) const fn is_given(&self) -> bool {
        self.limit.is_some() || self.window.is_some() || self.burst.is_some() || self.quota.is_some()
    }

    /// Whether a flag says the rate, rather than leave it to the default.
    #[cfg(unix)]
    pub(crate) const fn has_rate(&self) -> bool {
        self.limit.is_some() || self.quota.is_some()
    }

    /// The quota that the flags describe; 10 per second when none was given.
    pub(crate) fn quota(&self) -> anyhow::Result<Quota> {
        if let Some(quota) = self.quota {
            return Ok(quota);
        }
        let quota = match &self.limit {
            Some(Limit::Rate(_)) if self.window.is_some() => {
                return Err(Hint::error(
                    "--limit says its time already, and --window says another",
                    "leave --window out, or give --limit a number alone",
                ));
            }
            Some(Limit::Rate(rate)) => *rate,
            Some(Limit::Count(count)) => self.per_window(count)?,
            None => self.per_window(DEFAULT_LIMIT)?,
        };
        Ok(match self.burst {
            Some(burst) => quota.with_burst(burst)?,
            None => quota,
        })
    }

    fn per_window(&self, count: &str) -> Result<Quota, QuotaError> {
        // The text form of a `Duration` is one number with a unit that the quota grammar knows.
        let window = self.window.unwrap_or(Duration::from_secs(1));
        format!("{count} per {window:?}").parse()
    }
}

/// One limiter: an algorithm, its quota and its queue.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LimiterArgs {
    /// The algorithm: token-bucket, leaky-bucket, fixed-window, sliding-window, sliding-log or none
    #[arg(long, value_name = "NAME", default_value = "token-bucket", value_parser = kind, help_heading = "Limit")]
    limiter: Kind,

    #[command(flatten)]
    quota: QuotaArgs,

    /// Calls that may wait (leaky-bucket only) [default: the burst, or whatever --max-wait lets in]
    #[arg(long, value_name = "N", value_parser = whole, help_heading = "Limit")]
    queue: Option<u64>,

    /// The longest that a call may wait, 5s for example (leaky-bucket only)
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Limit")]
    max_wait: Option<Duration>,
}

impl LimiterArgs {
    /// The algorithm that the flags describe, and its quota.
    pub(crate) fn algorithm(&self) -> anyhow::Result<(Algorithm, Quota)> {
        let quota = self.quota.quota()?;
        if self.limiter == Kind::LeakyBucket {
            let queue = self.queue.unwrap_or(if self.max_wait.is_some() { u64::MAX } else { quota.burst() });
            let bucket = LeakyBucket::new(quota, queue);
            let bucket = self.max_wait.map_or(bucket, |max_wait| bucket.with_max_wait(max_wait));
            return Ok((Algorithm::LeakyBucket(bucket), quota));
        }
        for (flag, given) in [("--queue", self.queue.is_some()), ("--max-wait", self.max_wait.is_some())] {
            if given {
                return Err(no_queue(flag));
            }
        }
        Ok((Algorithm::new(self.limiter, quota), quota))
    }

    /// The limiter in a few words, such as `token-bucket 5/s burst 10`.
    pub(crate) fn label(&self, quota: Quota) -> String {
        match self.limiter {
            Kind::Unlimited => "no limit".to_owned(),
            // Windows have no burst, so it is not shown.
            Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog => {
                format!("{} {}", self.limiter, quota.with_burst(quota.count()).unwrap_or(quota))
            }
            kind => format!("{kind} {quota}"),
        }
    }
}

/// The error for a flag of the queue without a limiter that has one.
pub(crate) fn no_queue(flag: &str) -> anyhow::Error {
    Hint::error(
        format!("{flag} is about calls that wait, and only in a leaky-bucket do calls wait"),
        "leave it out, or add --limiter leaky-bucket",
    )
}

/// What `--limit` can be.
#[derive(Debug, Clone)]
enum Limit {
    /// A number of calls as written, which the quota grammar can read.
    Count(String),
    /// A number of calls with its time, such as `2/s`.
    Rate(Quota),
}

impl FromStr for Limit {
    type Err = BadNumber;

    fn from_str(text: &str) -> Result<Self, BadNumber> {
        if !text.contains("burst")
            && let Ok(rate) = text.parse()
        {
            return Ok(Self::Rate(rate));
        }
        match format!("{text} per 1s").parse::<Quota>() {
            Ok(_) => Ok(Self::Count(text.to_owned())),
            Err(QuotaError::ZeroRate) => Err(BadNumber::Zero),
            Err(QuotaError::Negative { .. }) => Err(BadNumber::Negative),
            Err(_) if text.parse::<Quota>().is_ok() => Err(BadNumber::WithBurst),
            Err(
                QuotaError::NotANumber { .. } | QuotaError::Trailing { .. } | QuotaError::UnknownUnit { .. },
            ) => Err(BadNumber::NotANumber),
            Err(error) => Err(BadNumber::Quota(error)),
        }
    }
}

/// Why a text is no `--limit`.
#[derive(Debug)]
enum BadNumber {
    Zero,
    Negative,
    NotANumber,
    /// A whole quota.
    WithBurst,
    Quota(QuotaError),
}

impl fmt::Display for BadNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("0 never allows anything; write a number above 0, such as 0.5"),
            Self::Negative => f.write_str("a limit is above 0; write for example 5 or 0.5"),
            Self::NotANumber => f.write_str("not a number; write for example 5, 0.5 or 2/s"),
            Self::WithBurst => f.write_str(
                "that is a limit with its burst; give the burst by --burst, or all of it by --quota",
            ),
            Self::Quota(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BadNumber {}

/// Reads the name of an algorithm.
pub(crate) fn kind(text: &str) -> Result<Kind, tidegate::UnknownKind> {
    text.parse()
}

/// Reads a time such as `5s`; 0 is one.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| match error {
        QuotaError::NoPeriod { .. } => "a time needs a unit; write for example 10s, 250ms or 5min".to_owned(),
        QuotaError::NotANumber { .. } | QuotaError::Trailing { .. } => {
            "not a time; write for example 10s, 250ms or 5min".to_owned()
        }
        QuotaError::UnknownUnit { unit, .. } => {
            format!("unknown unit `{unit}`; write ns, us, ms, s, min, hour, day or week")
        }
        QuotaError::Negative { .. } => "a time is not negative; write for example 10s".to_owned(),
        QuotaError::TooLarge { .. } => {
            "longer than 584 years, which is the most; write for example 10s".to_owned()
        }
        error => error.to_string(),
    })
}

/// Reads a time above 0.
pub(crate) fn time_above_zero(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("a time of 0 is too short; write for example 1s".to_owned()),
        time => Ok(time),
    }
}

/// Reads a pace: a number per second such as `20`, or a rate such as `100/min`.
///
/// # Errors
///
/// A text that is neither.
pub(crate) fn parse_rate(text: &str) -> Result<Quota, String> {
    let number = text.trim();
    let rate = match number.parse() {
        Err(QuotaError::NoPeriod { .. }) => format!("{number}/s").parse(),
        rate => rate,
    };
    let rate = rate.map_err(|error| match error {
        QuotaError::ZeroRate => "nothing would ever come; write a rate above 0, such as 0.5".to_owned(),
        QuotaError::Negative { .. } => "a rate is above 0; write for example 20, 0.5 or 100/min".to_owned(),
        QuotaError::NotANumber { .. } | QuotaError::Trailing { .. } | QuotaError::BurstNotWhole { .. } => {
            NOT_A_RATE.to_owned()
        }
        error => error.to_string(),
    })?;
    if number.contains("burst") {
        return Err("a pace has no burst; write for example 20, 0.5 or 100/min".to_owned());
    }
    Ok(rate)
}

/// What is said of a text that is no pace.
const NOT_A_RATE: &str = "not a rate; write for example 20, 0.5 or 100/min";

/// Reads a whole number.
pub(crate) fn whole(text: &str) -> Result<u64, String> {
    whole_within(text, 0..=u64::MAX)
}

/// Reads a whole number of at least 1.
pub(crate) fn above_zero(text: &str) -> Result<NonZeroU64, String> {
    let range = 1..=u64::MAX;
    NonZeroU64::new(whole_within(text, range.clone())?).ok_or_else(|| not_within(&range))
}

/// Reads a whole number in `range`.
pub(crate) fn whole_within(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| not_within(&range))
}

fn not_within(range: &RangeInclusive<u64>) -> String {
    format!("not a whole number from {} to {}", range.start(), range.end())
}

/// The limit in words, as reports begin with: `10 per second`, `5 per 10s, burst 20`.
pub(crate) fn in_words(quota: Quota) -> String {
    let rate = format!("{}", quota.with_burst(quota.count()).unwrap_or(quota));
    let rate = match rate.split_once('/') {
        Some((count, "s")) => format!("{count} per second"),
        Some((count, "min")) => format!("{count} per minute"),
        Some((count, unit)) => format!("{count} per {unit}"),
        None => rate,
    };
    if quota.burst() == quota.count() { rate } else { format!("{rate}, burst {}", quota.burst()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        quota: QuotaArgs,
    }

    fn read(flags: &[&str]) -> String {
        match Flags::try_parse_from(std::iter::once(&"test").chain(flags)) {
            Ok(flags) => match flags.quota.quota() {
                Ok(quota) => quota.to_string(),
                Err(error) => format!("error: {error}"),
            },
            Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
        }
    }

    #[test]
    fn quota_flags_say_the_same_as_the_text() {
        for (flags, expected) in [
            (&[][..], "10/s"),
            (&["--limit", "5"], "5/s"),
            (&["--limit", "0.5"], "1 per 2s"),
            (&["--limit", "100", "--window", "1min", "--burst", "20"], "100/min burst 20"),
            (&["--burst", "3"], "10/s burst 3"),
            (&["--quota", "1 per 10s burst 5"], "1 per 10s burst 5"),
            (&["--limit", "2/s"], "2/s"),
            (&["--limit", "100/min", "--burst", "20"], "100/min burst 20"),
            (
                &["--limit", "2/s", "--window", "1s"],
                "error: --limit says its time already, and --window says another",
            ),
            (
                &["--limit", "10/s burst 3"],
                "error: invalid value '10/s burst 3' for '--limit <N>': that is a limit with its burst; give the burst by --burst, or all of it by --quota",
            ),
            (
                &["--limit", "ten"],
                "error: invalid value 'ten' for '--limit <N>': not a number; write for example 5, 0.5 or 2/s",
            ),
            (
                &["--burst", "ten"],
                "error: invalid value 'ten' for '--burst <N>': not a whole number from 0 to 18446744073709551615",
            ),
            (
                &["--limit", "NaN"],
                "error: invalid value 'NaN' for '--limit <N>': not a number; write for example 5, 0.5 or 2/s",
            ),
            (
                &["--limit", "0"],
                "error: invalid value '0' for '--limit <N>': 0 never allows anything; write a number above 0, such as 0.5",
            ),
            (
                &["--burst", "0"],
                "error: a burst of 0 never allows anything; write a burst of at least 1, as in `10/s burst 1`",
            ),
            (
                &["--window", "0s"],
                "error: invalid value '0s' for '--window <TIME>': a time of 0 is too short; write for example 1s",
            ),
            (
                &["--limit", "5", "--quota", "1/s"],
                "error: the argument '--limit <N>' cannot be used with '--quota <TEXT>'",
            ),
        ] {
            assert_eq!(read(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn quotas_are_said_in_words() {
        for (text, words) in [
            ("10/s", "10 per second"),
            ("10/s burst 20", "10 per second, burst 20"),
            ("100/min", "100 per minute"),
            ("1 per 10s", "1 per 10s"),
            ("5000/hour burst 1", "5000 per hour, burst 1"),
        ] {
            assert_eq!(in_words(text.parse().unwrap()), words);
        }
    }
}
