//! What a run prints: lines for people, or one JSON object.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Quota;

use super::fields::{Check, Findings};
use super::gather::{Gathered, LATE, Plan};
use super::obey::Obeyed;
use super::retry::Retry;
use super::verdict::{Interval, Verdict};

/// The name and version of the JSON form.
const SCHEMA: &str = "tidegate.hammer/1";

/// Everything that a run found.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) url: String,
    pub(crate) plan: Plan,
    pub(crate) gathered: &'a Gathered,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) retry: Option<Retry>,
    pub(crate) findings: Findings,
    pub(crate) obeyed: Option<Obeyed>,
}

impl Report<'_> {
    /// Whether something that was checked does not hold.
    pub(crate) fn is_broken(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.broken.is_some())
            || matches!(self.retry, Some(Retry::Broken { .. }))
            || self.findings.is_broken()
            || self.obeyed.as_ref().is_some_and(|obeyed| obeyed.broken > 0)
    }

    /// The lines for people.
    pub(crate) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let gathered = self.gathered;
        for (status, count) in &gathered.statuses {
            writeln!(out, "{status}  x{count}")?;
        }
        if gathered.errors > 0 {
            let cause = gathered.first_error.as_deref().unwrap_or_default();
            writeln!(out, "error  x{}  {cause}", gathered.errors)?;
        }
        writeln!(out, "{} requests in {}", gathered.requests(), hundredths(gathered.elapsed()))?;
        let latency = &gathered.latency_ns;
        if !latency.is_empty() {
            writeln!(
                out,
                "latency p50 {}, p99 {}, max {} from the intended start",
                ms(latency.value_at_quantile(0.5)),
                ms(latency.value_at_quantile(0.99)),
                ms(latency.max()),
            )?;
        }
        match &self.verdict {
            Some(verdict) => write_verdict(out, verdict)?,
            None => writeln!(out, "no bound checked: give --limit or --quota to check one")?,
        }
        write_findings(out, &self.findings)?;
        if let Some(obeyed) = &self.obeyed {
            write_obeyed(out, obeyed)?;
        }
        match &self.retry {
            Some(Retry::Held { told, waited }) => {
                writeln!(out, "retry_after held: told {}, allowed after {}", ms_of(*told), ms_of(*waited))
            }
            Some(Retry::Broken { told, waited }) => {
                writeln!(
                    out,
                    "retry_after broken: told {}, rejected again after {}",
                    ms_of(*told),
                    ms_of(*waited)
                )
            }
            Some(Retry::Skipped(reason)) => writeln!(out, "retry_after not checked: {reason}"),
            None => Ok(()),
        }
    }

    /// One JSON object on one line.
    pub(crate) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.json())
    }

    fn json(&self) -> Value {
        let gathered = self.gathered;
        let latency = &gathered.latency_ns;
        let statuses: serde_json::Map<String, Value> =
            gathered.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        json!({
            "schema": SCHEMA,
            "url": self.url,
            "requests_planned": self.plan.requests,
            "planned_ns": whole_ns(self.plan.pace.start(self.plan.requests.saturating_sub(1))),
            "concurrency": self.plan.concurrency,
            "requests": gathered.requests(),
            "interrupted": gathered.interrupted,
            "elapsed_ns": whole_ns(gathered.elapsed()),
            "statuses": statuses,
            "errors": { "count": gathered.errors, "first": gathered.first_error },
            "latency": (!latency.is_empty()).then(|| json!({
                "from": "intended start",
                "p50_ns": latency.value_at_quantile(0.5),
                "p99_ns": latency.value_at_quantile(0.99),
                "max_ns": latency.max(),
            })),
            "late": { "count": gathered.late, "max_ns": gathered.late_ns_max, "from_ns": whole_ns(LATE) },
            "bound": self.verdict.as_ref().map(bound_json),
            "retry_after": self.retry.as_ref().map(retry_json),
            "fields": findings_json(&self.findings),
            "obey": self.obeyed.as_ref().map(obeyed_json),
        })
    }
}

fn write_verdict(out: &mut impl Write, verdict: &Verdict) -> io::Result<()> {
    let Verdict { quota, whole, broken, undecided, is_checked, predicted } = verdict;
    match (broken, undecided) {
        (None, _) if !is_checked => writeln!(out, "bound not checked: no request was answered")?,
        (None, None) => {
            writeln!(out, "bound held: {} allowed, at most {}", whole.allowed, equation(whole, *quota))?;
        }
        (None, Some(worst)) => writeln!(
            out,
            "bound not decided: {} allowed or not answered in {}, at most {}",
            worst.allowed,
            hundredths(worst.span),
            equation(worst, *quota)
        )?,
        (Some(worst), _) => writeln!(
            out,
            "bound broken: {} allowed in {}, at most {}",
            worst.allowed,
            hundredths(worst.span),
            equation(worst, *quota)
        )?,
    }
    if verdict.is_below_prediction() {
        writeln!(
            out,
            "fewer than predicted: a full bucket allows {}; others may use this limit, or it was used just before",
            predicted.0
        )?;
    }
    Ok(())
}

/// `7.9 = 5 + 5/s x 0.59s`.
fn equation(interval: &Interval, quota: Quota) -> String {
    let tenths = interval.at_most_tenths(quota);
    let rate = quota.with_burst(quota.count()).unwrap_or(quota);
    format!("{}.{} = {} + {rate} x {}", tenths / 10, tenths % 10, quota.burst(), hundredths(interval.span))
}

fn bound_json(verdict: &Verdict) -> Value {
    let interval = |interval: &Interval| {
        let tenths = interval.at_most_tenths(verdict.quota);
        json!({
            "allowed": interval.allowed,
            "at_most": u64::try_from(tenths / 10).unwrap_or(u64::MAX),
            "span_ns": whole_ns(interval.span),
        })
    };
    json!({
        "quota": verdict.quota.to_string(),
        "held": verdict.is_held(),
        "whole": interval(&verdict.whole),
        "worst": verdict.broken.as_ref().map(interval),
        "undecided": verdict.undecided.as_ref().map(interval),
        "predicted": { "least": verdict.predicted.0, "most": verdict.predicted.1 },
        "fewer_than_predicted": verdict.is_below_prediction(),
    })
}

fn retry_json(retry: &Retry) -> Value {
    match retry {
        Retry::Held { told, waited } => {
            json!({ "verdict": "held", "told_ns": whole_ns(*told), "waited_ns": whole_ns(*waited) })
        }
        Retry::Broken { told, waited } => {
            json!({ "verdict": "broken", "told_ns": whole_ns(*told), "waited_ns": whole_ns(*waited) })
        }
        Retry::Skipped(reason) => json!({ "verdict": "skipped", "reason": reason }),
    }
}

/// One line for each check that failed. That all held is only said where the answers show what is left.
fn write_findings(out: &mut impl Write, findings: &Findings) -> io::Result<()> {
    for (name, check) in &findings.checks {
        if let Some(first) = &check.first {
            writeln!(out, "{name} broken: {} of {}, first: {first}", check.broken, check.decided)?;
        }
    }
    if findings.answers > 0 && !findings.is_broken() {
        let decided = |name| findings.checks.iter().find(|(other, _)| *other == name);
        let decided = |name| decided(name).map_or(0, |(_, check)| check.decided);
        let (remaining, t) = (decided("remaining"), decided("t"));
        writeln!(
            out,
            "fields held: on {} answers; remaining decided {remaining} times, t {t} times",
            findings.answers
        )?;
    }
    Ok(())
}

fn write_obeyed(out: &mut impl Write, obeyed: &Obeyed) -> io::Result<()> {
    let came_back = obeyed.kept + obeyed.broken + obeyed.undecided;
    let late = ms(obeyed.late_ns_max);
    if let Some(first) = obeyed.first_broken {
        writeln!(
            out,
            "obey broken: {} of {came_back} that came back were rejected again, first: told {}, came back after {}",
            obeyed.broken,
            ms_of(first.told),
            ms(whole_ns(first.waited))
        )?;
    } else if obeyed.kept > 0 {
        writeln!(
            out,
            "obey held: {} came back when told and were allowed, at most {late} late",
            obeyed.kept
        )?;
    } else if came_back == 0 {
        writeln!(out, "obey not checked: nobody was rejected and came back")?;
    }
    if obeyed.undecided > 0 && obeyed.callers > 1 {
        writeln!(
            out,
            "obey not decided: {} came back and were rejected again; {} callers share the limit, and another may have \
             taken the token (--concurrency 1 decides it)",
            obeyed.undecided, obeyed.callers
        )?;
    } else if obeyed.undecided > 0 {
        writeln!(out, "obey not decided: {} came back, with requests that got no answer", obeyed.undecided)?;
    }
    if obeyed.no_wait_told > 0 {
        writeln!(out, "no wait told: by {} rejections", obeyed.no_wait_told)?;
    }
    if obeyed.not_tried > 0 {
        writeln!(out, "not tried: {} waits that were longer than the run", obeyed.not_tried)?;
    }
    Ok(())
}

fn findings_json(findings: &Findings) -> Value {
    let check = |check: &Check| json!({ "held": (check.decided > 0).then_some(check.broken == 0), "decided": check.decided, "broken": check.broken, "first": check.first });
    let checks: serde_json::Map<String, Value> =
        findings.checks.iter().map(|(name, found)| ((*name).to_owned(), check(found))).collect();
    json!({ "answers": findings.answers, "checks": checks })
}

fn obeyed_json(obeyed: &Obeyed) -> Value {
    json!({
        "callers": obeyed.callers,
        "kept": obeyed.kept,
        "broken": obeyed.broken,
        "first_broken": obeyed.first_broken.map(|back| json!({
            "told_ns": whole_ns(back.told),
            "waited_ns": whole_ns(back.waited),
        })),
        "not_decided": obeyed.undecided,
        "no_wait_told": obeyed.no_wait_told,
        "not_tried": obeyed.not_tried,
        "late_ns_max": obeyed.late_ns_max,
    })
}

fn whole_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time as `0.59s`, to the nearest hundredth.
fn hundredths(time: Duration) -> String {
    let hundredths = time.as_nanos().saturating_add(5_000_000) / 10_000_000;
    format!("{}.{:02}s", hundredths / 100, hundredths % 100)
}

/// Nanoseconds as `0.41 ms`, to the nearest hundredth.
pub(crate) fn ms(ns: u64) -> String {
    let hundredths = ns.saturating_add(5_000) / 10_000;
    format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
}

/// A time in whole milliseconds, rounded down.
fn ms_of(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
