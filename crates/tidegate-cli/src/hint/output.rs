//! A hint as people and programs read it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tidegate_http::hint::{CEILING, Dimension, Hint, NoRetry, Note, Reason, Scope, Signal, Source, WAIT_MAX};

use crate::report::text::{duration, one_line};

/// From here a wait is also shown in minutes, hours or days.
const LONG: Duration = Duration::from_secs(120);

/// The hint in a few lines.
pub(super) fn text(hint: &Hint) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<9}{}", one_line(value));
    };
    if let Some(why) = hint.no_retry {
        line("retry", &format!("no: {}", in_words(why)));
    }
    match hint.wait {
        Some(wait) if hint.no_retry.is_some() => line("wait", &format!("{}, for other calls", time(wait))),
        Some(wait) => line("wait", &time(wait)),
        None if hint.no_retry.is_some() => {}
        None => line("wait", "not told: back off on your own, longer each time and with jitter"),
    }
    if let Some(signal) = &hint.signal {
        line("because", &because(&hint.reason, signal));
    }
    let left: Vec<String> = hint.dimensions.iter().filter_map(left).collect();
    if !left.is_empty() {
        line("left", &left.join("; "));
    }
    match &hint.scope {
        Some(Scope::Bucket(name)) => line("for", &format!("calls of the bucket {name}")),
        Some(Scope::Global) => line("for", "all calls"),
        _ => {}
    }
    if let Some(limit) = hint.in_flight_limit {
        line("at once", &format!("{limit} calls in flight at most"));
    }
    if hint.in_flight_refused {
        line("at once", "too many calls in flight: run fewer; a lower rate does not help");
    }
    text
}

fn because(reason: &Reason, signal: &Signal) -> String {
    let said = said(signal);
    match reason {
        Reason::Empty { dimension } => format!("nothing is left of {dimension}; {said}"),
        Reason::Documented => format!("the provider's documentation says so; {said}"),
        _ => said,
    }
}

fn said(signal: &Signal) -> String {
    let source = match signal.source {
        Source::Header => "header",
        Source::Body => "body",
    };
    format!("{source} {}: {}", signal.name, signal.value)
}

fn left(dimension: &Dimension) -> Option<String> {
    let mut text = format!("{} {}", dimension.name, dimension.remaining?);
    if let Some(limit) = dimension.limit {
        let _ = write!(text, " of {limit}");
    }
    if let Some(reset) = dimension.reset.filter(|reset| !reset.is_zero()) {
        let _ = write!(text, ", more in {}", time(reset));
    }
    Some(text)
}

fn in_words(why: NoRetry) -> &'static str {
    match why {
        NoRetry::ServerSaysSo => "the server does not want this call again",
        NoRetry::Pushback => "gRPC pushback forbids it",
        NoRetry::QuotaSpent => "the account has nothing left to spend, and waiting does not change that",
        NoRetry::CostAboveCapacity => "the call costs more than the bucket can ever hold",
        NoRetry::NotALimit => "a 403 with quota left is no rate limit",
        _ => "the answer says so",
    }
}

/// What else is worth knowing.
pub(super) fn notes(hint: &Hint) -> Vec<String> {
    let mut notes: Vec<String> = hint.notes.iter().map(note).collect();
    if hint.pause(CEILING).is_some_and(|pause| pause.is_cut) {
        notes.push(format!(
            "the wait is longer than {}: a client should not obey that without telling somebody",
            duration(CEILING)
        ));
    }
    notes
}

fn note(note: &Note) -> String {
    match note {
        Note::Unreadable(signal) => format!("{} could not be read, so it does not count", said(signal)),
        Note::Instant(signal) => {
            format!("{} is an instant in place of a delay, and was taken for it", said(signal))
        }
        Note::Saturated => format!("the answer tells a longer wait; {}s is the most", WAIT_MAX.as_secs()),
        Note::RoundedDown => "the reset was rounded down to whole seconds; wait up to 1s longer".to_owned(),
        Note::Stale => "the answer comes from a cache, so its counters do not count".to_owned(),
        Note::TooMuch => "the answer is too large to be read whole".to_owned(),
        _ => "there is more to know".to_owned(),
    }
}

/// `179.56s`, and for long times `360s (6m)`.
fn time(time: Duration) -> String {
    let exact = format!("{}s", seconds(time));
    if time < LONG { exact } else { format!("{exact} (about {})", duration(time)) }
}

/// All decimals that are not zero.
fn seconds(time: Duration) -> String {
    let (whole, nanos) = (time.as_secs(), time.subsec_nanos());
    if nanos == 0 {
        return whole.to_string();
    }
    format!("{whole}.{nanos:09}").trim_end_matches('0').to_owned()
}

/// The hint as `tidegate.hint/1`.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    schema: &'static str,
    status: u16,
    wait_seconds: Option<Box<RawValue>>,
    pause_seconds: Option<Box<RawValue>>,
    reason: &'static str,
    signal: Option<SignalDocument<'a>>,
    no_retry: bool,
    no_retry_reason: Option<&'static str>,
    scope: Option<&'static str>,
    bucket: Option<&'a str>,
    remaining: BTreeMap<&'a str, u64>,
    dimensions: Vec<DimensionDocument<'a>>,
    in_flight_limit: Option<u64>,
    in_flight_refused: bool,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SignalDocument<'a> {
    source: &'static str,
    name: &'a str,
    value: &'a str,
}

#[derive(Debug, Serialize)]
struct DimensionDocument<'a> {
    name: &'a str,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_seconds: Option<Box<RawValue>>,
}

impl<'a> Document<'a> {
    /// # Errors
    ///
    /// None: digits are JSON.
    pub(super) fn of(status: u16, hint: &'a Hint) -> serde_json::Result<Self> {
        // As digits, since binary fractions would round.
        let number =
            |time: Option<Duration>| time.map(|time| RawValue::from_string(seconds(time))).transpose();
        let dimension = |dimension: &'a Dimension| {
            Ok(DimensionDocument {
                name: &dimension.name,
                limit: dimension.limit,
                remaining: dimension.remaining,
                reset_seconds: number(dimension.reset)?,
            })
        };
        let (scope, bucket) = match &hint.scope {
            Some(Scope::Bucket(name)) => (Some("bucket"), Some(name.as_str())),
            Some(Scope::Global) => (Some("global"), None),
            _ => (None, None),
        };
        Ok(Self {
            schema: "tidegate.hint/1",
            status,
            wait_seconds: number(hint.wait)?,
            pause_seconds: number(hint.pause(CEILING).map(|pause| pause.wait))?,
            reason: match hint.reason {
                Reason::Instruction => "instruction",
                Reason::Empty { .. } => "empty",
                Reason::Documented => "documented",
                _ => "nothing",
            },
            signal: hint.signal.as_ref().map(|signal| SignalDocument {
                source: match signal.source {
                    Source::Header => "header",
                    Source::Body => "body",
                },
                name: &signal.name,
                value: &signal.value,
            }),
            no_retry: hint.no_retry.is_some(),
            no_retry_reason: hint.no_retry.map(in_words),
            scope,
            bucket,
            remaining: hint.dimensions.iter().filter_map(|d| Some((d.name.as_str(), d.remaining?))).collect(),
            dimensions: hint.dimensions.iter().map(dimension).collect::<serde_json::Result<_>>()?,
            in_flight_limit: hint.in_flight_limit,
            in_flight_refused: hint.in_flight_refused,
            notes: notes(hint),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (ns, expected, shown) in [
            (0, "0", "0s"),
            (1, "0.000000001", "0.000000001s"),
            (1_340_000_000, "1.34", "1.34s"),
            (9_894_791_955, "9.894791955", "9.894791955s"),
            (360_000_000_000, "360", "360s (about 6m)"),
            (2_147_483_648_000_000_000, "2147483648", "2147483648s (about 24855d 3h)"),
        ] {
            let wait = Duration::from_nanos(ns);
            assert_eq!(seconds(wait), expected);
            assert_eq!(time(wait), shown);
        }
    }
}
