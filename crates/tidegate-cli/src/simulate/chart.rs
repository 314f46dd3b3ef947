//! The plot of a simulation: for each limiter what it allowed and rejected over time, and how full a bucket was.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_sim::{Arrivals, Bin, Share, Timeline};

use super::rows::{Report, Row, Store};
use crate::report::plot::{Axis, Chart, Plate, Series, Style, Table};
use crate::report::text::duration;

/// How many bins the time is cut into: about five requests each, and no more than can be told apart.
pub(super) fn bins(arrivals: &Arrivals) -> usize {
    (arrivals.len() / 5).clamp(12, 120)
}

/// The charts of all rows, with the table of the report.
pub(super) fn plate(report: &Report) -> Plate {
    let mut charts = over_workers(report);
    if !charts.is_empty() {
        return Plate { title: report.source.headline(report.quota), charts, table: table(report) };
    }
    // One scale for all, so that limiters can be compared by eye.
    let bins =
        report.rows.iter().filter_map(|row| row.tally.timeline.as_ref()).flat_map(|timeline| &timeline.bins);
    let most = bins.map(|bin| bin.allowed.max(bin.rejected)).max().unwrap_or(0);
    for row in &report.rows {
        let Some(timeline) = &row.tally.timeline else { continue };
        charts.push(counts(row, timeline, most));
        charts.extend(level(row, timeline));
    }
    Plate { title: report.source.headline(report.quota), charts, table: table(report) }
}

/// Where leases were tried with several numbers of workers: what is beyond one bucket, and what is asked of the store.
#[expect(clippy::cast_precision_loss, reason = "coordinates in a picture")]
fn over_workers(report: &Report) -> Vec<Chart> {
    let stores: Vec<_> = report.rows.iter().filter_map(|row| Some((row.store?, row))).collect();
    let numbers: BTreeSet<u64> = stores.iter().map(|(store, _)| store.workers).collect();
    if numbers.len() < 2 {
        return Vec::new();
    }
    let mut shares = Vec::new();
    for (store, _) in &stores {
        if !shares.contains(&store.share) {
            shares.push(store.share);
        }
    }
    let seconds = (report.source.arrivals().span().max(1) as f64) / 1e9;
    let chart = |title: &str, y: &str, of: &dyn Fn(&Store, &Row) -> f64| {
        let series = |share: &Share| Series {
            name: share.name().to_owned(),
            points: stores
                .iter()
                .filter(|(store, _)| store.share == *share)
                .map(|(store, row)| (store.workers as f64, of(store, row)))
                .collect(),
            style: Style::Line,
        };
        Chart {
            title: title.to_owned(),
            x: Axis { label: "workers".to_owned(), log: true },
            y: Axis { label: y.to_owned(), log: false },
            series: shares.iter().map(series).collect(),
            y_max: None,
            bound: None,
        }
    };
    vec![
        chart("allowed", "requests", &|_, row| row.tally.allowed as f64),
        chart("beyond one bucket", "tokens", &|_, row| row.tally.over.unwrap_or(0) as f64),
        chart("calls to the store", "in a second", &|store, _| store.calls as f64 / seconds),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "coordinates in a picture")]
fn counts(row: &Row, timeline: &Timeline, most: u64) -> Chart {
    let series = |name: &str, of: fn(&Bin) -> u64| Series {
        name: name.to_owned(),
        points: steps(timeline, |bin| Some(of(bin))),
        style: Style::Line,
    };
    Chart {
        title: format!("{}: {} allowed, {} rejected", row.name, row.tally.allowed, row.tally.rejected),
        x: Axis { label: "seconds".to_owned(), log: false },
        y: Axis {
            label: format!("requests in {}", duration(Duration::from_nanos(timeline.bin))),
            log: false,
        },
        series: vec![series("allowed", |bin| bin.allowed), series("rejected", |bin| bin.rejected)],
        // Some room on top for the legend.
        y_max: Some((most as f64 * 1.3).max(1.0)),
        bound: None,
    }
}

/// The tokens left in a bucket; `None` where there is not one bucket but several, or none.
fn level(row: &Row, timeline: &Timeline) -> Option<Chart> {
    let is_bucket = ["token-bucket", "leaky-bucket"].iter().any(|name| row.name.starts_with(name));
    if !is_bucket || timeline.bins.iter().all(|bin| bin.level.is_none()) {
        return None;
    }
    let what = if row.name.starts_with("leaky-bucket") { "room left" } else { "tokens left" };
    Some(Chart {
        title: format!("{}: {what}", row.name),
        x: Axis { label: "seconds".to_owned(), log: false },
        y: Axis { label: format!("least {what}"), log: false },
        series: vec![Series {
            name: String::new(),
            points: steps(timeline, |bin| bin.level),
            style: Style::Line,
        }],
        y_max: None,
        bound: None,
    })
}

/// A line that stays level within each bin.
#[expect(clippy::cast_precision_loss, reason = "coordinates in a picture")]
fn steps(timeline: &Timeline, of: impl Fn(&Bin) -> Option<u64>) -> Vec<(f64, f64)> {
    let seconds = timeline.bin as f64 / 1e9;
    let mut points = Vec::new();
    for (index, bin) in timeline.bins.iter().enumerate() {
        if let Some(value) = of(bin) {
            points.push((index as f64 * seconds, value as f64));
            points.push(((index + 1) as f64 * seconds, value as f64));
        }
    }
    points
}

fn table(report: &Report) -> Table {
    let head = ["limiter", "allowed", "rejected", "worst"].map(str::to_owned).to_vec();
    let rows = report
        .rows
        .iter()
        .map(|row| {
            let tally = &row.tally;
            vec![
                row.name.clone(),
                tally.allowed.to_string(),
                tally.rejected.to_string(),
                tally.worst.to_string(),
            ]
        })
        .collect();
    Table { head, rows }
}
