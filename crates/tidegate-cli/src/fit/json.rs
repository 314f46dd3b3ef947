//! The findings as JSON, schema `tidegate.fit/1`.
//!
//! A field is only added within a version. Fractions have their numbers as text, because they may pass 2⁵³.

use serde::Serialize;
use tidegate_sim::fit::{Bucket, Fraction, Interval, Rate};

use super::words::{date, digits};
use super::{AtRate, Findings};

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    trace: Trace<'a>,
    rates: Vec<AtRateJson<'a>>,
    /// Pieces by rising rate; `null` if there are too many.
    curve: Option<Vec<Piece<'a>>>,
    proposals: Option<Proposals>,
}

#[derive(Serialize)]
struct Trace<'a> {
    name: &'a str,
    requests: usize,
    cost: u64,
    span_ns: u64,
    keys: Option<usize>,
    mean_per_second: Option<Number>,
}

#[derive(Serialize)]
struct Number {
    numerator: String,
    denominator: String,
    decimal: String,
    /// `false` if the decimal was rounded up.
    decimal_is_exact: bool,
}

#[derive(Serialize)]
struct AtRateJson<'a> {
    rate: String,
    per_second: Number,
    burst: Number,
    whole_burst: u64,
    forced_by: IntervalJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerated: Option<Tolerated>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waits: Vec<Waits>,
}

#[derive(Serialize)]
struct IntervalJson<'a> {
    first_index: usize,
    last_index: usize,
    requests: usize,
    cost: u64,
    begin_after_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<String>,
    length_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

#[derive(Serialize)]
struct Tolerated {
    burst: u64,
    rejected: usize,
    rejected_max: usize,
    is_smallest: bool,
}

#[derive(Serialize)]
struct Waits {
    burst: u64,
    delayed: usize,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

#[derive(Serialize)]
struct Piece<'a> {
    from_per_second: Number,
    /// `null`: any faster rate.
    to_per_second: Option<Number>,
    forced_by: IntervalJson<'a>,
}

#[derive(Serialize)]
struct Proposals {
    one: Option<BucketJson>,
    /// To be used together; empty if there is no second knee.
    two: Vec<BucketJson>,
}

#[derive(Serialize)]
struct BucketJson {
    quota: String,
    rate: String,
    burst: u64,
}

/// The findings, with a line end.
pub(super) fn report(found: &Findings<'_>) -> anyhow::Result<String> {
    let report = Report {
        schema: "tidegate.fit/1",
        trace: Trace {
            name: &found.name,
            requests: found.arrivals.len(),
            cost: found.cost,
            span_ns: found.arrivals.span(),
            keys: found.arrivals.keys.as_ref().map(|keys| keys.names.len()),
            mean_per_second: Rate::new(found.cost, found.arrivals.span())
                .ok()
                .map(|mean| number(mean.tokens_per_second())),
        },
        rates: found.rates.iter().map(|at| at_rate(found, at)).collect(),
        curve: found.curve.as_ref().map(|curve| {
            let starts = std::iter::once(Rate::per_second(0)).chain(curve.breaks().iter().copied());
            let ends = curve.breaks().iter().copied().map(Some).chain([None]);
            let pieces = curve.lines().iter().zip(starts.zip(ends));
            pieces
                .map(|(line, (start, end))| Piece {
                    from_per_second: number(start.tokens_per_second()),
                    to_per_second: end.map(|end| number(end.tokens_per_second())),
                    forced_by: interval(found, line),
                })
                .collect()
        }),
        proposals: found.proposals.map(|proposals| Proposals {
            one: proposals.one.map(bucket),
            two: match (proposals.one, proposals.short) {
                (Some(one), Some(short)) => vec![bucket(one), bucket(short)],
                _ => Vec::new(),
            },
        }),
    };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

fn at_rate<'a>(found: &'a Findings<'_>, at: &AtRate) -> AtRateJson<'a> {
    AtRateJson {
        rate: at.rate.to_string(),
        per_second: number(at.rate.tokens_per_second()),
        burst: number(at.needed.burst),
        whole_burst: at.needed.whole_burst(),
        forced_by: interval(found, &at.needed.interval),
        tolerated: at.tolerated.map(|tolerated| Tolerated {
            burst: tolerated.burst,
            rejected: tolerated.rejected,
            rejected_max: tolerated.rejected_max,
            is_smallest: tolerated.smallest,
        }),
        waits: at
            .waits
            .iter()
            .map(|waits| Waits {
                burst: waits.burst,
                delayed: waits.delayed,
                p50_ns: waits.p50,
                p99_ns: waits.p99,
                max_ns: waits.max,
            })
            .collect(),
    }
}

fn interval<'a>(found: &'a Findings<'_>, interval: &Interval) -> IntervalJson<'a> {
    IntervalJson {
        first_index: interval.from,
        last_index: interval.to,
        requests: interval.requests,
        cost: interval.cost,
        begin_after_ns: found.offset(interval.begin),
        begin: date(interval.begin),
        length_ns: interval.length,
        key: found.key(interval.key),
    }
}

fn number(fraction: Fraction) -> Number {
    let decimal = digits(fraction);
    Number {
        numerator: fraction.numerator().to_string(),
        denominator: fraction.denominator().to_string(),
        decimal: decimal.text,
        decimal_is_exact: decimal.exact,
    }
}

fn bucket(bucket: Bucket) -> BucketJson {
    BucketJson { quota: bucket.to_string(), rate: bucket.rate.to_string(), burst: bucket.burst }
}
