//! The curve as a chart, and as the table of its points.

use tidegate_sim::fit::{Curve, Rate, pleasant_rates};

use super::Findings;
use super::words::{duration, number};
use crate::report::plot::{Axis, Chart, Plate, Series, Style, Table};
use crate::report::text::one_line;

/// How many rows the table of the curve has at most, without those that were asked for or proposed.
const ROWS_MAX: usize = 9;

/// Points of the drawn line; the line between two is straight on paper, and the curve nearly is.
const POINTS: u32 = 300;

/// An axis whose ends differ by more than this factor is logarithmic.
const LOG_FROM: f64 = 20.0;

/// The chart, and the table of its points.
pub(super) fn plate(found: &Findings<'_>, curve: &Curve) -> Plate {
    let chart = chart(found, curve);
    Plate { title: chart.title.clone(), charts: vec![chart], table: table(found, curve) }
}

/// The burst against the rate, with the asked rates and the proposals.
pub(super) fn chart(found: &Findings<'_>, curve: &Curve) -> Chart {
    let rates = table_rates(found, curve);
    let ends = (rates.first().copied(), rates.last().copied());
    let (low, high) = (ends.0.map_or(1.0, per_second), ends.1.map_or(1.0, per_second));
    let step = (high / low).powf(1.0 / f64::from(POINTS));
    let points: Vec<(f64, f64)> = (0..=POINTS)
        .map(|index| low * step.powf(f64::from(index)))
        .map(|rate| (rate, burst(curve, rate)))
        .collect();
    let point = |rate: Rate| (per_second(rate), burst(curve, per_second(rate)));
    let proposed = found.proposals.iter().flat_map(|proposals| [proposals.one, proposals.short]).flatten();
    let asked = found.rates.iter().map(|at| ("asked", curve.bucket(at.rate)));
    let dots = asked.chain(proposed.map(|bucket| ("proposed", bucket))).map(|(why, bucket)| Series {
        name: format!("{why}: {bucket}"),
        points: vec![point(bucket.rate)],
        style: Style::Dots,
    });
    let line = Series { name: "smallest burst".to_owned(), points, style: Style::Line };
    let log = |values: (f64, f64)| values.1 > values.0 * LOG_FROM;
    let y = (burst(curve, high), burst(curve, low));
    Chart {
        title: format!("{}: burst that rejects nothing, by rate", one_line(&found.name)),
        x: Axis { label: "rate, tokens per second".to_owned(), log: log((low, high)) },
        y: Axis { label: "burst, tokens".to_owned(), log: log(y) },
        series: std::iter::once(line).chain(dots).collect(),
        y_max: None,
        bound: None,
    }
}

/// The curve at some rates: what it needs, and what forces it.
pub(super) fn table(found: &Findings<'_>, curve: &Curve) -> Table {
    let mut head = vec!["rate", "burst", "exactly", "requests", "cost", "within"];
    let keyed = found.arrivals.keys.is_some();
    if keyed {
        head.push("key");
    }
    let rows = table_rates(found, curve).into_iter().map(|rate| {
        let needed = curve.at(rate);
        let mut row = vec![
            rate.to_string(),
            needed.whole_burst().to_string(),
            number(needed.burst),
            needed.interval.requests.to_string(),
            needed.interval.cost.to_string(),
            duration(needed.interval.length),
        ];
        if keyed {
            row.push(one_line(found.key(needed.interval.key).unwrap_or_default()).into_owned());
        }
        row
    });
    Table { head: head.into_iter().map(str::to_owned).collect(), rows: rows.collect() }
}

/// Pleasant rates from the mean to where the curve is flat, thinned out, and those that were asked for or proposed.
fn table_rates(found: &Findings<'_>, curve: &Curve) -> Vec<Rate> {
    let mut rates = Vec::new();
    if let Some(mean) = curve.mean() {
        let mut all = pleasant_rates(mean, curve.breaks().last().copied().unwrap_or(mean));
        all.retain(|rate| *rate >= mean);
        let steps = ROWS_MAX.min(all.len()).saturating_sub(1);
        rates.extend((0..=steps).filter_map(|step| all.get(step * (all.len() - 1) / steps.max(1))));
    }
    let proposed = found.proposals.iter().flat_map(|proposals| [proposals.one, proposals.short]).flatten();
    rates.extend(proposed.map(|bucket| bucket.rate));
    rates.extend(found.rates.iter().map(|at| at.rate));
    rates.sort();
    rates.dedup();
    rates
}

fn per_second(rate: Rate) -> f64 {
    rate.count() as f64 / rate.per() as f64 * 1e9
}

/// The curve in floats: only what is drawn, never what is reported.
fn burst(curve: &Curve, per_second: f64) -> f64 {
    let lines = curve.lines().iter().map(|line| line.cost as f64 - per_second * (line.length as f64 / 1e9));
    lines.fold(0.0, f64::max)
}
