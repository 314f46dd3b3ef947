//! `POST /api/simulate`: a pattern or a pasted trace through limiters, as `tidegate simulate` does it
//! (`tidegate.playground/1`).

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Algorithm, Kind, Limit, Mode, Quota, State, Step as _};
use tidegate_sim::trace::UnknownTimeUnit;
use tidegate_sim::{
    Arrivals, Pattern, PatternSettings, Settings, SimLimit, Tally, TraceOptions, Workers, arrivals_of,
    simulate,
};

use crate::limits::leaky_bucket;
use crate::quota_args::{in_words, time};
use crate::report::text::{duration, share};

/// The most requests of a run: it takes a tenth of a second for all limiters. Ten times as many would take a second, for
/// which nobody moves a slider.
const MAX_REQUESTS: u64 = 100_000;

/// The most requests whose decisions are told one by one. More could not be told apart on a page.
const MAX_DECISIONS: usize = 400;

/// Into how many pieces the time is cut: about as many as a page has room for.
const BINS: usize = 120;

/// What is to be tried.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    quota: String,
    limiters: Vec<String>,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    rate: Option<String>,
    #[serde(default)]
    duration: Option<String>,
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    trace: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    time_unit: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(super) struct Played {
    schema: &'static str,
    quota: String,
    words: String,
    requests: usize,
    keys: Option<usize>,
    span_ns: u64,
    window_ns: u128,
    bin_ns: u64,
    times_ns: Option<Vec<u64>>,
    notes: Vec<String>,
    results: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    limiter: &'static str,
    allowed: u64,
    rejected: u64,
    worst: u128,
    bound: Option<u128>,
    max_wait_ns: Option<u128>,
    words: String,
    bins: Bins,
    decisions: Option<String>,
}

#[derive(Debug, Serialize)]
struct Bins {
    allowed: Vec<u64>,
    rejected: Vec<u64>,
}

impl Ask {
    /// Reads it from JSON.
    ///
    /// # Errors
    ///
    /// In one line: what is wrong with it.
    pub(super) fn read(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json).map_err(|error| format!("not a question of the playground: {error}"))
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// In one line: what is wrong with it, and what to write instead.
    pub(super) fn run(&self) -> Result<Played, String> {
        let quota: Quota = self.quota.parse().map_err(|error| format!("the limit: {error}"))?;
        let mut kinds: Vec<Kind> = Vec::new();
        for name in &self.limiters {
            let kind = name.parse().map_err(|error| format!("the limiter `{name}`: {error}"))?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if kinds.is_empty() {
            return Err("no limiter to try; name one, such as token-bucket".to_owned());
        }
        let mut notes = Vec::new();
        let arrivals = match &self.trace {
            Some(trace) => self.trace(trace, &mut notes)?,
            None => self.pattern(quota)?,
        };
        let settings = Settings { worst_window: quota.per(), bins: BINS, ..Settings::default() };
        let results = kinds.into_iter().map(|kind| Row::of(kind, quota, &arrivals, &settings)).collect();
        let first = arrivals.times.first().copied().unwrap_or(0);
        let is_short = arrivals.len() <= MAX_DECISIONS;
        Ok(Played {
            schema: "tidegate.playground/1",
            quota: quota.to_string(),
            words: in_words(quota),
            requests: arrivals.len(),
            keys: arrivals.keys.as_ref().map(|keys| keys.names.len()),
            span_ns: arrivals.span(),
            window_ns: quota.per().as_nanos(),
            bin_ns: (arrivals.span() / BINS as u64).saturating_add(1),
            times_ns: is_short.then(|| arrivals.times.iter().map(|time| time - first).collect()),
            notes,
            results,
        })
    }

    fn pattern(&self, limit: Quota) -> Result<Arrivals, String> {
        let pattern: Pattern =
            self.pattern.as_deref().unwrap_or("steady").parse().map_err(|error| format!("{error}"))?;
        let rate: Quota = self
            .rate
            .as_deref()
            .unwrap_or("20/s")
            .parse()
            .map_err(|error| format!("the rate of the pattern: {error}"))?;
        let duration = time(self.duration.as_deref().unwrap_or("3s"))
            .map_err(|error| format!("how long the pattern goes on: {error}"))?;
        let expected = match pattern {
            Pattern::Burst => 0,
            Pattern::Boundary => u128::from(limit.count()) * 2,
            // Phases can be busier than the average by chance, but not twice as busy.
            _ => {
                duration.as_nanos().saturating_mul(u128::from(rate.count())) / u128::from(rate.per_ns().get())
            }
        };
        if expected > u128::from(MAX_REQUESTS) {
            return Err(format!(
                "{expected} requests are more than the {MAX_REQUESTS} that are tried here; lower the rate or the \
                 time, or use `tidegate simulate`"
            ));
        }
        let settings =
            PatternSettings { rate, duration, requests: None, seed: self.seed.unwrap_or(1), limit };
        arrivals_of(pattern, &settings).map_err(|error| error.to_string())
    }

    fn trace(&self, text: &str, notes: &mut Vec<String>) -> Result<Arrivals, String> {
        let key = self.key.as_deref().map(str::trim).filter(|key| !key.is_empty());
        let unit = self.time_unit.as_deref().map(str::parse).transpose();
        let time_unit = unit.map_err(|error: UnknownTimeUnit| error.to_string())?;
        let options = TraceOptions { key: key.map(str::to_owned), time_unit, ..TraceOptions::default() };
        // A line without an end is one that an editor did not end.
        let text = format!("{}\n", text.trim_end());
        let trace =
            tidegate_sim::trace::read(text.as_bytes(), "trace", &options, &mut |_| {}).map_err(|error| {
                error
                    .to_string()
                    .replace("pass `--time-unit s|ms|us|ns`", "say which unit")
                    .replace('\n', "; ")
            })?;
        if trace.arrivals.len() as u64 > MAX_REQUESTS {
            return Err(format!(
                "{} requests are more than the {MAX_REQUESTS} that are tried here; use `tidegate simulate --trace`",
                trace.arrivals.len()
            ));
        }
        notes.push(format!("time is read from {} as {}", trace.time_field, trace.time_reading));
        if trace.out_of_order > 0 {
            notes.push(format!("{} requests were out of order and were sorted by time", trace.out_of_order));
        }
        Ok(trace.arrivals)
    }
}

impl Row {
    fn of(kind: Kind, quota: Quota, arrivals: &Arrivals, settings: &Settings) -> Self {
        let algorithm = match kind {
            // The queue that `simulate` takes if nobody says one.
            Kind::LeakyBucket => leaky_bucket(quota, quota.burst(), None),
            kind => Algorithm::new(kind, quota),
        };
        let per_key = arrivals.keys.is_some();
        let limit = Limit { name: kind.name().into(), algorithm, mode: Mode::Enforce };
        let workers =
            Workers::one(vec![SimLimit { limit, per_key, max_in_flight: None, overrides: HashMap::new() }]);
        let tally = simulate(arrivals, &workers, settings, &mut |_| {});
        let half_open = settings.worst_window.saturating_sub(Duration::from_nanos(1));
        let bound = if per_key { None } else { algorithm.bound(half_open) };
        let timeline = tally.timeline.iter().flat_map(|timeline| &timeline.bins);
        let (allowed, rejected) = timeline.map(|bin| (bin.allowed, bin.rejected)).unzip();
        Self {
            limiter: kind.name(),
            allowed: tally.allowed,
            rejected: tally.rejected,
            worst: tally.worst,
            bound,
            max_wait_ns: tally.waits.map(|waits| waits.max.as_nanos()),
            words: words(&tally, bound, settings.worst_window),
            bins: Bins { allowed, rejected },
            decisions: (arrivals.len() <= MAX_DECISIONS).then(|| decisions(&algorithm, arrivals)),
        }
    }
}

/// The result in a line.
fn words(tally: &Tally, bound: Option<u128>, window: Duration) -> String {
    let all = tally.allowed + tally.rejected;
    let mut words = format!("{} of {all} allowed ({})", tally.allowed, share(tally.allowed, all));
    if let Some(waits) = &tally.waits {
        words.push_str(&format!(", the longest wait {}", duration(waits.max)));
    }
    words.push_str(&format!("; at most {} in any {}", tally.worst, duration(window)));
    if let Some(bound) = bound {
        words.push_str(&format!(", the promise is {bound}"));
    }
    words
}

/// Each decision as a letter: allowed, rejected or waiting.
fn decisions(algorithm: &Algorithm, arrivals: &Arrivals) -> String {
    let keys = arrivals.keys.as_ref();
    let mut states: Vec<State> = vec![algorithm.fresh(); keys.map_or(1, |keys| keys.names.len())];
    let calls = arrivals.times.iter().enumerate().map(|(index, now)| {
        let key = keys.map_or(0, |keys| keys.ids[index] as usize);
        let (state, decision) = algorithm.step(states[key].clone(), *now, arrivals.cost(index));
        states[key] = state;
        match decision.is_allowed() {
            true if decision.start_after().is_zero() => 'a',
            true => 'w',
            false => 'r',
        }
    });
    calls.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(json: &str) -> Result<Played, String> {
        Ask::read(json.as_bytes())?.run()
    }

    #[test]
    fn the_letters_agree_with_the_counts() {
        for pattern in ["steady", "burst", "boundary", "ramp", "poisson", "on-off"] {
            let json = format!(
                r#"{{"pattern": "{pattern}", "rate": "20/s", "duration": "3s", "quota": "5/s burst 7", "limiters":
                ["none", "fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket"]}}"#
            );
            let played = run(&json).unwrap();
            assert_eq!(played.times_ns.as_ref().unwrap().len(), played.requests);
            for row in &played.results {
                let letters = row.decisions.as_ref().unwrap();
                let count = |letter| letters.matches(letter).count() as u64;
                assert_eq!(count('a') + count('w'), row.allowed, "{pattern} {}", row.limiter);
                assert_eq!(count('r'), row.rejected, "{pattern} {}", row.limiter);
                assert_eq!(row.bins.allowed.iter().sum::<u64>(), row.allowed);
                assert!(row.bound.is_none_or(|bound| row.worst <= bound));
            }
        }
    }

    #[test]
    fn a_pasted_trace_has_a_state_for_each_key() {
        let ask = |key: &str| {
            let trace = "time,client\n1,ann\n1,bob\n1,ann\n1,bob\n2,ann";
            let json = serde_json::json!({
                "trace": trace, "key": key, "time_unit": "s", "quota": "1 per 10s", "limiters": ["token-bucket"],
            });
            run(&json.to_string()).unwrap()
        };
        let (all, each) = (ask(""), ask("client"));
        assert_eq!((all.keys, all.results[0].allowed, all.results[0].bound.is_some()), (None, 1, true));
        assert_eq!((each.keys, each.results[0].allowed, each.results[0].bound), (Some(2), 2, None));
        assert_eq!(each.results[0].decisions.as_deref(), Some("aarrr"));
        assert_eq!(all.results[0].words, "1 of 5 allowed (20.0%); at most 1 in any 10s, the promise is 1");
    }

    #[test]
    fn what_cannot_be_tried_is_said_in_one_line() {
        let cases = [
            ("{", "not a question of the playground: EOF"),
            (r#"{"quota": "5/s"}"#, "not a question of the playground: missing field `limiters`"),
            (r#"{"quota": "5/s", "limiters": []}"#, "no limiter to try"),
            (r#"{"quota": "5/s", "limiters": ["x"]}"#, "the limiter `x`: unknown"),
            (r#"{"quota": "5", "limiters": ["none"]}"#, "the limit: "),
            (r#"{"quota": "5/s", "limiters": ["none"], "rate": "x"}"#, "the rate of the pattern: "),
            (r#"{"quota": "5/s", "limiters": ["none"], "duration": "x"}"#, "how long the pattern goes on: "),
            (r#"{"quota": "5/s", "limiters": ["none"], "pattern": "x"}"#, "unknown pattern"),
            (r#"{"quota": "5/s", "limiters": ["none"], "rate": "1000000/s"}"#, "3000000 requests are more"),
            (r#"{"quota": "99999999/s", "limiters": ["none"], "pattern": "boundary"}"#, "199999998 requests"),
            (r#"{"quota": "5/s", "limiters": ["none"], "trace": "hello"}"#, "trace"),
            (
                r#"{"quota": "5/s", "limiters": ["none"], "trace": "time\n1\n2"}"#,
                "trace:2: time `time` is the number `1`",
            ),
            (r#"{"quota": "5/s", "limiters": ["none"], "trace": "t", "time_unit": "x"}"#, "unknown"),
        ];
        for (json, begins) in cases {
            let error = run(json).unwrap_err();
            assert!(error.starts_with(begins) && !error.contains('\n'), "{json}: {error}");
        }
    }

    #[test]
    fn the_largest_run_and_the_largest_quota_are_played() {
        let played = run(r#"{"quota": "1000000000/s", "rate": "100000/s", "duration": "1s", "limiters":
            ["none", "fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket"]}"#);
        let played = played.unwrap();
        assert_eq!((played.requests, played.times_ns.is_some()), (100_000, false));
        assert!(played.results.iter().all(|row| row.allowed == 100_000 && row.decisions.is_none()));
    }
}
