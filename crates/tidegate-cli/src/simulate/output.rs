//! What a simulation prints: the table, JSON or CSV, and the plot.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Mode;
use tidegate_sim::{KeyTally, Waits};

use super::rows::{Report, Row, Store};
use super::{Args, Source};
use crate::fault::tell;
use crate::report::table::Table;
use crate::report::text::{duration, one_line, share};

/// How many keys `--by-key` shows in the table.
const TOP_KEYS: usize = 10;

pub(super) fn print(report: &Report, args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &Json::of(report, args))?;
        writeln!(out)?;
    } else if args.csv {
        csv(report, &mut out)?;
    } else {
        text(report, args, &mut out)?;
    }
    out.flush()?;
    for row in report.rows.iter().filter(|row| row.is_broken()) {
        broken(row);
    }
    Ok(())
}

fn broken(row: &Row) {
    if let Some((most, over)) = row.overshoot.zip(row.tally.over).filter(|(most, over)| over > most) {
        tell(&format!(
            "bound broken: {} allowed {over} more than one bucket, and promises at most {most}; please report this",
            row.name
        ));
        return;
    }
    let bound = row.bound.unwrap_or(0);
    tell(&format!(
        "bound broken: {} allowed {} in a window, and promises at most {bound}; please report this",
        row.name, row.tally.worst
    ));
}

fn text(report: &Report, args: &Args, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}\n", report.source.headline(report.quota))?;
    let worst = format!("worst {}", duration(args.worst_window));
    let waits = report.rows.iter().any(|row| row.tally.waits.is_some());
    let never = report.rows.iter().any(|row| row.tally.never > 0);
    let peak = args.limiter.service_time.is_some();
    let mut header = vec!["limiter", "allowed", "rejected", &worst];
    if never {
        header.push("never");
    }
    if waits {
        header.extend(["p50 wait", "p99 wait", "max wait"]);
    }
    if peak {
        header.push("peak in flight");
    }
    let leases = args.limiter.has_leases();
    if leases {
        header.extend(["over", "lost", "store calls", "per worker"]);
    }
    let mut table = Table::new(&header);
    for row in &report.rows {
        let tally = &row.tally;
        let mut cells = vec![
            row.name.clone(),
            tally.allowed.to_string(),
            tally.rejected.to_string(),
            tally.worst.to_string(),
        ];
        if never {
            cells.push(tally.never.to_string());
        }
        if waits {
            let none = Waits { p50: Duration::ZERO, p99: Duration::ZERO, max: Duration::ZERO };
            let waits = tally.waits.unwrap_or(none);
            cells.extend([waits.p50, waits.p99, waits.max].map(duration));
        }
        if peak {
            cells.push(tally.peak_in_flight.unwrap_or(0).to_string());
        }
        if leases {
            cells.push(tally.over.unwrap_or(0).to_string());
            cells.push(tally.leases.map_or(0, |leases| leases.lost).to_string());
            cells.push(row.store.map_or(0, |store| store.calls).to_string());
            let span = report.source.arrivals().span();
            cells.push(row.store.map_or_else(String::new, |store| per_worker(store, span)));
        }
        table.row(&cells);
    }
    write!(out, "{table}")?;
    if report.quota.is_none() {
        limits(report, out)?;
    }
    if args.by_key {
        for row in &report.rows {
            by_key(report, row, out)?;
        }
    }
    Ok(())
}

/// The calls of a worker to the store in a second, to a tenth.
fn per_worker(store: Store, span_ns: u64) -> String {
    let of = u128::from(store.workers) * u128::from(span_ns.max(1));
    let tenths = (u128::from(store.calls) * 10_000_000_000 + of / 2) / of;
    format!("{}.{}/s", tenths / 10, tenths % 10)
}

/// Which of several limits refused.
fn limits(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&["limit", "mode", "refused"]);
    for limit in report.rows.iter().flat_map(|row| &row.tally.limits) {
        let mode = match limit.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        };
        table.row(&[one_line(&limit.name).into_owned(), mode.to_owned(), limit.refused.to_string()]);
    }
    write!(out, "\n{table}")
}

/// The keys of a row by how much of them was rejected, most first; ties keep the order of first appearance.
fn most_rejected<'a>(report: &'a Report, row: &'a Row) -> Vec<(&'a str, KeyTally)> {
    let Some(keys) = &report.source.arrivals().keys else { return Vec::new() };
    let mut keys: Vec<(&str, KeyTally)> =
        keys.names.iter().map(AsRef::as_ref).zip(row.tally.by_key.iter().copied()).collect();
    keys.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.rejected));
    keys
}

fn by_key(report: &Report, row: &Row, out: &mut dyn Write) -> io::Result<()> {
    let keys = most_rejected(report, row);
    let rejected: Vec<_> = keys.iter().filter(|(_, tally)| tally.rejected > 0).collect();
    if rejected.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}: {} of {} keys had requests rejected; most of them:",
        row.name,
        rejected.len(),
        keys.len()
    )?;
    let mut table = Table::new(&["key", "allowed", "rejected", "share"]);
    for (key, tally) in rejected.iter().take(TOP_KEYS) {
        let all = tally.allowed + tally.rejected;
        table.row(&[
            one_line(key).into_owned(),
            tally.allowed.to_string(),
            tally.rejected.to_string(),
            share(tally.rejected, all),
        ]);
    }
    write!(out, "{table}")
}

fn csv(report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    for row in &report.rows {
        csv.serialize(CsvRow {
            limiter: &row.name,
            allowed: row.tally.allowed,
            rejected: row.tally.rejected,
            never: row.tally.never,
            shed: row.tally.shed,
            allowed_cost: row.tally.allowed_cost,
            rejected_cost: row.tally.rejected_cost,
            worst: row.tally.worst,
            first_rejected: row.tally.first_rejected,
            wait_p50_ns: row.tally.waits.map(|waits| waits.p50.as_nanos()),
            wait_p99_ns: row.tally.waits.map(|waits| waits.p99.as_nanos()),
            wait_max_ns: row.tally.waits.map(|waits| waits.max.as_nanos()),
            peak_in_flight: row.tally.peak_in_flight,
            over: row.tally.over,
            lost: row.tally.leases.map(|leases| leases.lost),
            store_calls: row.store.map(|store| store.calls),
        })?;
    }
    csv.flush()?;
    Ok(())
}

#[derive(Debug, Serialize)]
struct CsvRow<'a> {
    limiter: &'a str,
    allowed: u64,
    rejected: u64,
    never: u64,
    shed: u64,
    allowed_cost: u128,
    rejected_cost: u128,
    worst: u128,
    first_rejected: Option<usize>,
    wait_p50_ns: Option<u128>,
    wait_p99_ns: Option<u128>,
    wait_max_ns: Option<u128>,
    peak_in_flight: Option<u64>,
    over: Option<u128>,
    lost: Option<u128>,
    store_calls: Option<u64>,
}

/// The JSON report; its schema is in `docs/json.md`.
#[derive(Debug, Serialize)]
struct Json<'a> {
    schema: &'static str,
    source: JsonSource<'a>,
    requests: usize,
    keys: Option<usize>,
    span_ns: u64,
    quota: Option<String>,
    worst_window_ns: u128,
    results: Vec<JsonRow<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum JsonSource<'a> {
    Pattern {
        name: &'static str,
        seed: Option<u64>,
    },
    Trace {
        name: &'a str,
        format: String,
        time_field: &'a str,
        time_reading: String,
        lines: u64,
        skipped: u64,
        out_of_order: u64,
    },
}

#[derive(Debug, Serialize)]
struct JsonRow<'a> {
    limiter: &'a str,
    allowed: u64,
    rejected: u64,
    never: u64,
    shed: u64,
    allowed_cost: u128,
    rejected_cost: u128,
    worst: u128,
    bound: Option<u128>,
    first_rejected: Option<usize>,
    waits: Option<JsonWaits>,
    peak_in_flight: Option<u64>,
    limits: Vec<JsonLimit<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leases: Option<JsonLeases>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_key: Vec<JsonKey<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonWaits {
    p50_ns: u128,
    p99_ns: u128,
    max_ns: u128,
}

#[derive(Debug, Serialize)]
struct JsonLeases {
    overshoot: u128,
    returned: u128,
    lost: u128,
    lost_answers: u64,
    crashes: u64,
    unanswered: u64,
}

impl JsonLeases {
    fn of(row: &Row) -> Option<Self> {
        let leases = row.tally.leases?;
        Some(Self {
            overshoot: row.overshoot?,
            returned: leases.returned,
            lost: leases.lost,
            lost_answers: leases.lost_answers,
            crashes: leases.crashes,
            unanswered: leases.unanswered,
        })
    }
}

#[derive(Debug, Serialize)]
struct JsonLimit<'a> {
    name: &'a str,
    mode: &'static str,
    refused: u64,
}

#[derive(Debug, Serialize)]
struct JsonKey<'a> {
    key: &'a str,
    allowed: u64,
    rejected: u64,
}

impl<'a> Json<'a> {
    fn of(report: &'a Report, args: &Args) -> Self {
        let arrivals = report.source.arrivals();
        Self {
            schema: "tidegate.simulate/1",
            source: match &report.source {
                Source::Pattern { pattern, settings, .. } => JsonSource::Pattern {
                    name: pattern.name(),
                    seed: pattern.is_random().then_some(settings.seed),
                },
                Source::Trace { name, trace } => JsonSource::Trace {
                    name,
                    format: trace.format.to_string(),
                    time_field: &trace.time_field,
                    time_reading: trace.time_reading.to_string(),
                    lines: trace.lines,
                    skipped: trace.skipped,
                    out_of_order: trace.out_of_order,
                },
            },
            requests: arrivals.len(),
            keys: arrivals.keys.as_ref().map(|keys| keys.names.len()),
            span_ns: arrivals.span(),
            quota: report.quota.map(|quota| quota.to_string()),
            worst_window_ns: args.worst_window.as_nanos(),
            results: report.rows.iter().map(|row| JsonRow::of(report, row)).collect(),
        }
    }
}

impl<'a> JsonRow<'a> {
    fn of(report: &'a Report, row: &'a Row) -> Self {
        let tally = &row.tally;
        let by_key = if tally.by_key.is_empty() { Vec::new() } else { most_rejected(report, row) };
        Self {
            limiter: &row.name,
            allowed: tally.allowed,
            rejected: tally.rejected,
            never: tally.never,
            shed: tally.shed,
            allowed_cost: tally.allowed_cost,
            rejected_cost: tally.rejected_cost,
            worst: tally.worst,
            bound: row.bound,
            first_rejected: tally.first_rejected,
            waits: tally.waits.map(|waits| JsonWaits {
                p50_ns: waits.p50.as_nanos(),
                p99_ns: waits.p99.as_nanos(),
                max_ns: waits.max.as_nanos(),
            }),
            peak_in_flight: tally.peak_in_flight,
            limits: tally
                .limits
                .iter()
                .map(|limit| JsonLimit {
                    name: &limit.name,
                    mode: if limit.mode == Mode::Shadow { "shadow" } else { "enforce" },
                    refused: limit.refused,
                })
                .collect(),
            over: tally.over,
            store_calls: row.store.map(|store| store.calls),
            leases: JsonLeases::of(row),
            by_key: by_key
                .into_iter()
                .map(|(key, tally)| JsonKey { key, allowed: tally.allowed, rejected: tally.rejected })
                .collect(),
        }
    }
}
