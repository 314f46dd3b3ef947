//! The flags that say a quota, the same for every verb that takes one.

use std::time::Duration;

use tidegate_core::{Quota, QuotaError, parse_duration};

use crate::fault::Hint;

/// A quota in flags: `--limit`, `--window` and `--burst`, or one `--quota`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct QuotaArgs {
    /// Tokens per window: a number such as 10 or 0.5 [default: 10]
    #[arg(long, value_name = "N", help_heading = "Limit")]
    limit: Option<String>,

    /// The time in which the limit's tokens come, such as 1s, 250ms or 1min [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limit")]
    window: Option<Duration>,

    /// The most tokens at once [default: the limit, at least 1]
    #[arg(long, value_name = "TOKENS", help_heading = "Limit")]
    burst: Option<String>,

    /// The whole quota as one text, such as "10/s burst 20" or "1 per 10s"
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["limit", "window", "burst"], help_heading = "Limit")]
    quota: Option<Quota>,
}

impl QuotaArgs {
    /// The quota that the flags say; 10 per second where they say nothing.
    ///
    /// # Errors
    ///
    /// Flags that make no legal quota.
    pub(crate) fn quota(&self) -> anyhow::Result<Quota> {
        if let Some(quota) = self.quota {
            return Ok(quota);
        }
        let limit = self.limit.as_deref().unwrap_or("10").trim();
        if limit.contains('/') || limit.contains("per") {
            return Err(Hint::error(
                format!("`--limit {limit}` is not a number"),
                format!("write `--quota \"{limit}\"`, or `--limit` and `--window` apart"),
            ));
        }
        let window = self.window.unwrap_or(Duration::from_secs(1));
        let quota = match &self.burst {
            Some(burst) => format!("{limit} per {}ns burst {burst}", window.as_nanos()).parse(),
            None => format!("{limit} per {}ns", window.as_nanos()).parse(),
        };
        quota.map_err(|error: QuotaError| match error {
            QuotaError::NotANumber { .. } | QuotaError::Trailing { .. } => {
                let (flag, value) = match &self.burst {
                    Some(burst) if limit.parse::<f64>().is_ok() => ("--burst", burst.as_str()),
                    _ => ("--limit", limit),
                };
                Hint::error(
                    format!("`{flag} {value}` is not a number"),
                    "write for example `--limit 10 --window 1s --burst 20`",
                )
            }
            other => anyhow::Error::new(other),
        })
    }
}

/// Reads a pace: a number per second such as `20`, or a rate such as `100/min`.
///
/// # Errors
///
/// A text that is neither.
pub(crate) fn parse_rate(text: &str) -> Result<Quota, QuotaError> {
    let number = text.trim();
    if !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return format!("{number}/s").parse();
    }
    number.parse()
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
            (&["--limit", "10/s"], "error: `--limit 10/s` is not a number"),
            (&["--limit", "ten"], "error: `--limit ten` is not a number"),
            (&["--burst", "ten"], "error: `--burst ten` is not a number"),
            (&["--limit", "NaN"], "error: `--limit NaN` is not a number"),
            (
                &["--limit", "0"],
                "error: a rate of 0 never allows anything again; write a rate above 0, such as `1 per 10s`, or use the limiter `none` for no limit",
            ),
            (
                &["--burst", "0"],
                "error: a burst of 0 never allows anything; write a burst of at least 1, as in `10/s burst 1`",
            ),
            (
                &["--window", "0s"],
                "error: a period of 0 has no rate; write a period above 0, as in `1 per 10s`",
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
