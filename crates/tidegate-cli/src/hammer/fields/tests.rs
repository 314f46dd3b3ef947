//! Logs of a few answers, and what can be said of them.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::*;

const MS: u64 = 1_000_000;

/// When a request was sent and its answer received, in milliseconds; the status; the fields in lines.
type Row = (u64, u64, u16, &'static str);

/// How often something was decided, and how often it was broken.
type Counts = (u64, u64);

fn headers(lines: &str) -> HeaderMap {
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in lines.split('|').filter(|line| !line.is_empty()).map(field) {
        headers.append(name, value);
    }
    headers
}

fn findings_with(cost: u64, rows: &[Row], unanswered: &[(u64, u64)]) -> Findings {
    let mut log = Log::new(cost);
    let mut answered = Vec::new();
    for &(sent, received, status, lines) in rows {
        log.add(answered.len(), status, &read(&headers(lines)));
        answered.push(Answered { sent_ns: sent * MS, received_ns: received * MS, allowed: status == 200 });
    }
    let request =
        |&(sent, received)| Answered { sent_ns: sent * MS, received_ns: received * MS, allowed: true };
    log.findings(&answered, &unanswered.iter().map(request).collect::<Vec<_>>())
}

fn check(name: &str, findings: &Findings) -> Counts {
    let (_, check) = findings.checks.iter().find(|(other, _)| *other == name).unwrap();
    assert_eq!(check.first.is_some(), check.broken > 0);
    (check.decided, check.broken)
}

fn decided(name: &str, rows: &[Row]) -> Counts {
    check(name, &findings_with(1, rows, &[]))
}

#[test]
fn one_answer_can_be_false_by_itself() {
    for (name, status, lines, expected) in [
        ("well_formed", 200, "ratelimit: \"a\";r=1;t=1|ratelimit-policy: \"a\";q=5;w=1", (1, 0)),
        ("well_formed", 200, "", (0, 0)),
        ("well_formed", 200, "ratelimit: \"a\";r=-1", (1, 1)),
        ("well_formed", 200, "ratelimit: \"a\";t=1", (1, 1)),
        ("well_formed", 200, "ratelimit: \"a\";r=1|ratelimit-policy: \"a\";q=x y", (1, 1)),
        ("well_formed", 200, "ratelimit: limit=10, remaining=3, reset=5|ratelimit-policy: 10;w=5", (1, 0)),
        ("well_formed", 200, "x-ratelimit-remaining: many", (1, 1)),
        ("well_formed", 429, "retry-after: soon", (1, 1)),
        ("well_formed", 429, "retry-after: Wed, 21 Oct 2026 07:28:00 GMT", (0, 0)),
        ("well_formed", 429, "retry-after-ms: -5", (1, 1)),
        ("remaining_within_quota", 200, "ratelimit: \"a\";r=5|ratelimit-policy: \"a\";q=5", (1, 0)),
        ("remaining_within_quota", 200, "ratelimit: \"a\";r=6|ratelimit-policy: \"a\";q=5", (1, 1)),
        ("remaining_within_quota", 200, "ratelimit: \"b\";r=6|ratelimit-policy: \"a\";q=5", (0, 0)),
        ("remaining_within_quota", 200, "x-ratelimit-remaining: 6|x-ratelimit-limit: 5", (1, 1)),
        ("remaining_within_quota", 200, "age: 3|x-ratelimit-remaining: 6|x-ratelimit-limit: 5", (0, 0)),
        ("rejected_with_none_left", 429, "ratelimit: \"a\";r=1", (1, 1)),
        ("rejected_with_none_left", 429, "ratelimit: \"a\";r=1, \"b\";r=0", (1, 0)),
        ("rejected_with_none_left", 503, "ratelimit: \"a\";r=1", (0, 0)),
        (
            "rejected_with_none_left",
            429,
            "ratelimit: \"a\";r=9|ratelimit-policy: \"a\";q=9;qu=\"content-bytes\"",
            (0, 0),
        ),
        ("waits_agree", 429, "ratelimit: \"a\";r=0;t=2|retry-after: 2", (1, 0)),
        ("waits_agree", 429, "ratelimit: \"a\";r=0;t=2|retry-after: 1", (1, 1)),
        // A limit in the shadow is used up as well, for longer.
        ("waits_agree", 429, "ratelimit: \"a\";r=0;t=2, \"s\";r=0;t=60|retry-after: 2", (1, 0)),
        ("waits_agree", 429, "retry-after: 1|retry-after-ms: 1", (1, 0)),
        ("waits_agree", 429, "retry-after: 1|retry-after-ms: 1001", (1, 1)),
        ("waits_agree", 429, "retry-after: 3|retry-after-ms: 1999", (1, 1)),
    ] {
        assert_eq!(decided(name, &[(0, 1, status, lines)]), expected, "{name} of {status} {lines}");
    }
}

const THREE: &str = "ratelimit: \"a\";r=3";
const ONE: &str = "ratelimit: \"a\";r=1";
const NONE: &str = "ratelimit: \"a\";r=0";
const BYTES: &str = "ratelimit: \"a\";r=3, \"b\";r=9|ratelimit-policy: \"b\";q=9;qu=\"content-bytes\"";

#[test]
fn remaining_is_false_if_fewer_can_have_been_charged() {
    let table: &[(&str, &[Row], Counts)] = &[
        ("none in between", &[(0, 1, 200, ONE), (2, 3, 429, NONE)], (1, 1)),
        ("one in between", &[(0, 1, 200, ONE), (2, 3, 200, NONE), (4, 5, 429, NONE)], (1, 0)),
        ("two of three", &[(0, 1, 200, THREE), (2, 3, 200, ""), (4, 5, 200, ""), (6, 7, 429, NONE)], (1, 1)),
        ("rejected ones may be charged", &[(0, 1, 200, ONE), (2, 3, 503, ""), (4, 5, 429, NONE)], (1, 0)),
        ("sent before the receipt", &[(0, 3, 200, ONE), (2, 4, 429, NONE)], (0, 0)),
        ("one in flight at the promise", &[(0, 5, 200, ""), (1, 2, 200, ONE), (6, 7, 429, NONE)], (1, 0)),
        ("one in flight at the end", &[(0, 1, 200, ONE), (2, 5, 429, NONE), (4, 9, 200, "")], (1, 0)),
        ("one sent after the end", &[(0, 1, 200, ONE), (2, 5, 429, NONE), (6, 9, 200, "")], (1, 1)),
        (
            "another limit rejects",
            &[(0, 1, 200, ONE), (2, 3, 429, "ratelimit: \"b\";r=0, \"a\";r=1")],
            (0, 0),
        ),
        (
            "another client's limit",
            &[(0, 1, 200, "ratelimit: \"a\";r=1;pk=:YQ==:"), (2, 3, 429, "ratelimit: \"a\";r=0;pk=:Yg==:")],
            (0, 0),
        ),
        ("a rejection that shows nothing", &[(0, 1, 200, ONE), (2, 3, 429, "")], (1, 1)),
        ("a rejection that may be for bytes", &[(0, 1, 200, BYTES), (2, 3, 429, "")], (0, 0)),
        ("503 is no quota", &[(0, 1, 200, ONE), (2, 3, 503, "")], (0, 0)),
        (
            "older fields",
            &[(0, 1, 200, "x-ratelimit-remaining: 1"), (2, 3, 429, "x-ratelimit-remaining: 0")],
            (1, 1),
        ),
        ("an older promise", &[(0, 1, 200, THREE), (2, 3, 200, NONE), (4, 5, 429, NONE)], (1, 1)),
    ];
    for (name, rows, expected) in table {
        assert_eq!(decided("remaining", rows), *expected, "{name}");
    }
    let rows = [(0, 1, 200, ONE), (2, 3, 429, NONE)];
    assert_eq!(check("remaining", &findings_with(1, &rows, &[(0, 2)])), (1, 0), "the server may have got it");
    assert_eq!(check("remaining", &findings_with(1, &rows, &[(9, 10)])), (1, 1), "it was sent too late");
    assert_eq!(check("remaining", &findings_with(2, &rows, &[])), (0, 0), "one is not enough for two");
    assert_eq!(decided("remaining", &rows), (1, 1));
}

const T: &str = "ratelimit: \"a\";r=0;t=1";
const MS_50: &str = "retry-after: 1|retry-after-ms: 50";

#[test]
fn a_wait_is_judged_by_the_next_request_alone() {
    let table: &[(&str, &str, &[Row], Counts)] = &[
        ("too short", "t", &[(0, 1, 429, T), (1001, 1002, 429, T)], (1, 1)),
        ("true", "t", &[(0, 1, 429, T), (1001, 1002, 200, "")], (1, 0)),
        ("a millisecond early", "t", &[(0, 1, 429, T), (1000, 1002, 429, T)], (0, 0)),
        ("one in between", "t", &[(0, 1, 429, T), (500, 501, 429, T), (1001, 1002, 429, T)], (0, 0)),
        ("one beside it", "t", &[(0, 1, 429, T), (1001, 1004, 429, T), (1003, 1005, 200, "")], (0, 0)),
        ("one in flight", "t", &[(0, 9, 200, ""), (1, 2, 429, T), (1003, 1005, 429, T)], (0, 0)),
        ("503 is no quota", "t", &[(0, 1, 429, T), (1001, 1002, 503, "")], (0, 0)),
        (
            "the latest of two",
            "t",
            &[(0, 1, 429, "ratelimit: \"a\";r=0;t=1, \"b\";r=0;t=2"), (1001, 1002, 429, T)],
            (0, 0),
        ),
        ("milliseconds", "retry_after_ms", &[(0, 1, 429, MS_50), (51, 52, 429, MS_50)], (1, 1)),
        ("its seconds are not over", "retry_after", &[(0, 1, 429, MS_50), (51, 52, 429, MS_50)], (0, 0)),
        ("seconds", "retry_after", &[(0, 1, 429, MS_50), (1001, 1002, 429, MS_50)], (1, 1)),
    ];
    for (name, check, rows, expected) in table {
        assert_eq!(decided(check, rows), *expected, "{name}");
    }
    let rows = [(0, 1, 429, T), (1001, 1002, 429, T)];
    assert_eq!(check("t", &findings_with(1, &rows, &[(0, 2)])), (0, 0), "it may come at any time");
}

#[test]
fn a_bucket_seen_over_any_network_is_never_accused() {
    use tidegate::Step as _;
    let mut x = 11_u64;
    let mut draw = |below: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % below
    };
    let bucket = tidegate::algorithm::TokenBucket::new("5/s burst 7".parse().unwrap());
    let (mut judged, mut accused_liar) = (0, 0);
    for run in 0..400 {
        // Instants of the decisions, in order; each answer was sent before and received after, by up to 30 ms or 2 s.
        let slow = if run % 2 == 0 { 30 * MS } else { 2000 * MS };
        let (mut state, mut now) = (bucket.fresh(), 3000 * MS);
        let (mut honest, mut liar, mut answered) = (Log::new(1), Log::new(1), Vec::new());
        for index in 0..60 {
            now += draw(if run % 3 == 0 { 1500 } else { 100 }) * MS;
            let decision;
            (state, decision) = bucket.step(state, now, 1);
            let allowed = decision.is_allowed();
            let status = if allowed { 200 } else { 429 };
            let remaining = decision.remaining();
            let wait = decision.retry_after().unwrap_or_default();
            let (seconds, ms) =
                (wait.as_nanos().div_ceil(1_000_000_000), wait.as_nanos().div_ceil(MS.into()));
            let text = |more: u64| {
                if allowed {
                    format!("ratelimit: \"a\";r={}|ratelimit-policy: \"a\";q=7;w=2", remaining + more)
                } else {
                    format!("ratelimit: \"a\";r=0;t={seconds}|retry-after: {seconds}|retry-after-ms: {ms}")
                }
            };
            honest.add(index, status, &read(&headers(&text(0))));
            liar.add(index, status, &read(&headers(&text(1))));
            answered.push(Answered { sent_ns: now - draw(slow), received_ns: now + draw(slow), allowed });
        }
        let findings = honest.findings(&answered, &[]);
        assert!(!findings.is_broken(), "run {run}: {findings:?}");
        judged += check("remaining", &findings).0;
        accused_liar += check("remaining", &liar.findings(&answered, &[])).1;
    }
    assert!(judged > 1000 && accused_liar > 50, "{judged} judged, {accused_liar} lies found");
}
