//! The findings as text, readable at a glance.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use tidegate_sim::fit::{Curve, Interval, Rate};

use super::words::{date, duration, number};
use super::{Args, AtRate, Findings, chart};
use crate::report::text::one_line;

/// The whole report.
pub(super) fn report(found: &Findings<'_>, args: &Args) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", summary(found));
    for at in &found.rates {
        text.push('\n');
        text.push_str(&one_rate(found, at));
    }
    // Waits are asked for instead of what a bucket that rejects would need.
    if let Some(curve) = found.curve.as_ref().filter(|_| !args.wait) {
        text.push_str("\nsmallest burst that rejects nothing, by rate\n");
        text.push_str(&curve_table(found, curve));
        text.push_str(&proposals(found));
    }
    text
}

/// One line about the trace.
fn summary(found: &Findings<'_>) -> String {
    let mut line = format!("{}: {}", one_line(&found.name), requests(found.arrivals.len()));
    if let Some(keys) = &found.arrivals.keys {
        let _ = write!(line, " of {} keys", keys.names.len());
    }
    let _ = write!(line, ", cost {}, in {}", found.cost, duration(found.arrivals.span()));
    if let Ok(mean) = Rate::new(found.cost, found.arrivals.span()) {
        let _ = write!(line, ", mean {}/s", mean.tokens_per_second().decimal(3).text);
    }
    line
}

/// What one rate needs, why, and what was asked beyond.
fn one_rate(found: &Findings<'_>, at: &AtRate) -> String {
    let mut text = format!(
        "{}: burst {} rejects nothing (exactly {})\n  forced by {}\n",
        at.rate,
        at.needed.whole_burst(),
        number(at.needed.burst),
        forced_by(found, &at.needed.interval),
    );
    if found.curve.as_ref().and_then(Curve::mean).is_some_and(|mean| at.rate < mean) {
        text.push_str(
            "  slower than the mean: on a longer trace like this one the burst grows without end\n",
        );
    }
    if let Some(tolerated) = at.tolerated {
        let _ = writeln!(
            text,
            "  with at most {} of {} rejected: burst {} rejects {}{}",
            tolerated.rejected_max,
            requests(found.arrivals.len()),
            tolerated.burst,
            tolerated.rejected,
            if tolerated.smallest {
                ", and every smaller one rejects more"
            } else {
                ", one less rejects more; a yet smaller one was not ruled out"
            },
        );
    }
    if !at.waits.is_empty() {
        let head = ["burst", "delayed", "share", "p50", "p99", "longest"];
        let rows = at.waits.iter().map(|waits| {
            let cells = [
                waits.burst.to_string(),
                waits.delayed.to_string(),
                share(waits.delayed, found.arrivals.len()),
                duration(waits.p50),
                duration(waits.p99),
                duration(waits.max),
            ];
            cells.to_vec()
        });
        text.push_str("  waiting in order instead of being rejected\n");
        text.push_str(&table(&head, rows, 6));
    }
    text
}

/// The interval in words.
fn forced_by(found: &Findings<'_>, interval: &Interval) -> String {
    let mut text = format!(
        "{} of cost {} within {}, from {} after the first",
        requests(interval.requests),
        interval.cost,
        duration(interval.length),
        duration(found.offset(interval.begin)),
    );
    if let Some(date) = date(interval.begin) {
        let _ = write!(text, " ({date})");
    }
    if let Some(key) = found.key(interval.key) {
        let _ = write!(text, ", key `{}`", one_line(key));
    }
    text
}

/// The curve at some pleasant rates.
fn curve_table(found: &Findings<'_>, curve: &Curve) -> String {
    let contents = chart::table(found, curve);
    let head: Vec<&str> = contents.head.iter().map(String::as_str).collect();
    table(&head, contents.rows.into_iter(), head.len() - 1)
}

/// The proposals as quotas.
fn proposals(found: &Findings<'_>) -> String {
    let (Some(proposals), Some(curve)) = (found.proposals, &found.curve) else { return String::new() };
    let Some(one) = proposals.one else {
        return match proposals.mean {
            None => "\nno proposal: everything comes at one instant, so any rate will do\n".to_owned(),
            Some(mean) => format!(
                "\nno proposal: the trace is too short or too regular for a knee; {} rejects nothing\n",
                curve.bucket(mean)
            ),
        };
    };
    let mut text = format!(
        "\nproposals (knees of the curve; each rejects nothing of this trace)\n  one bucket:  {one}\n"
    );
    match proposals.short {
        Some(short) => {
            let _ = writeln!(text, "  two buckets: {one} and {short}");
        }
        None => text.push_str("  two buckets: no second knee; a faster bucket would add little\n"),
    }
    text
}

/// `part` of `all` in percent, rounded up to two decimals.
fn share(part: usize, all: usize) -> String {
    let hundredths = (part as u128 * 10_000).div_ceil((all as u128).max(1));
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

fn requests(count: usize) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
}

/// A table without lines; the first `right` columns are numbers.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>, right: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((2, 0)).set_constraint(ColumnConstraint::ContentWidth);
        if index < right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    lines.concat()
}
