//! The answers of real providers in `tests/data/retry-hints.json`, each with the wait that it means.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use tidegate_http::hint::profile::PROFILES;
use tidegate_http::hint::{Hint, Response, Scope};

fn vectors() -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/retry-hints.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The hint of a vector, with its headers in alphabetical order or the other way around.
fn hint(vector: &Value, is_turned: bool) -> Hint {
    let headers = vector["headers"].as_object().unwrap().iter();
    let mut headers: Vec<_> = headers.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
    if is_turned {
        headers.reverse();
    }
    let body = vector.get("body").map(Value::to_string).unwrap_or_default();
    let status = u16::try_from(vector["status"].as_u64().unwrap()).unwrap();
    // All vectors have a `now` on this day.
    let minutes = match vector["now"].as_str().unwrap() {
        "2026-11-30T12:00:00Z" => 0,
        "2026-11-30T12:05:00Z" => 5,
        now => panic!("{now}"),
    };
    let now = UNIX_EPOCH + Duration::from_secs(1_796_040_000 + minutes * 60);
    Response::new(status, now).headers(headers).body(body.as_bytes()).hint()
}

/// What differs from what the vector expects, to the nanosecond.
fn differences(vector: &Value) -> Vec<String> {
    let hint = hint(vector, false);
    let mut faults = Vec::new();
    let mut compare = |what: &str, expected: String, got: String| {
        if expected != got {
            faults.push(format!("{what}: expected {expected}, got {got}"));
        }
    };
    let wait = vector["expect_wait_seconds"].as_number().map(|number| seconds(&number.to_string()));
    compare("wait", format!("{wait:?}"), format!("{:?}", hint.wait));
    if let Some(expected) = vector.get("expect_remaining") {
        let known = hint.dimensions.iter().filter_map(|known| Some((known.name.clone(), known.remaining?)));
        let known: BTreeMap<String, u64> = known.collect();
        let expected: BTreeMap<String, u64> = serde_json::from_value(expected.clone()).unwrap();
        compare("remaining", format!("{expected:?}"), format!("{known:?}"));
    }
    let no_retry = vector.get("expect_no_retry").is_some_and(|value| value.as_bool().unwrap());
    compare("no_retry", no_retry.to_string(), hint.no_retry.is_some().to_string());
    if let Some(scope) = vector.get("expect_scope") {
        let got = match hint.scope {
            Some(Scope::Bucket(_)) => "bucket",
            Some(Scope::Global) => "global",
            _ => "none",
        };
        compare("scope", scope.as_str().unwrap().to_owned(), got.to_owned());
    }
    let in_flight = vector.get("expect_inflight_limit").map(|limit| limit.as_u64().unwrap());
    compare("in flight", format!("{in_flight:?}"), format!("{:?}", hint.in_flight_limit));
    faults
}

/// `64.57` as a duration, without a float.
fn seconds(text: &str) -> Duration {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    Duration::new(whole.parse().unwrap(), format!("{fraction:0<9}").parse().unwrap())
}

fn check(tier: &str, least: usize) {
    let vectors: Vec<Value> = vectors().into_iter().filter(|vector| vector["tier"] == tier).collect();
    assert!(vectors.len() >= least, "only {} vectors are `{tier}`", vectors.len());
    let faults: Vec<String> = vectors
        .iter()
        .filter_map(|vector| {
            let faults = differences(vector);
            let line = || format!("{}: {}\n  {}", vector["id"], faults.join("; "), vector["note"]);
            (!faults.is_empty()).then(line)
        })
        .collect();
    assert!(
        faults.is_empty(),
        "{} of {} `{tier}` differ:\n{}",
        faults.len(),
        vectors.len(),
        faults.join("\n")
    );
}

#[test]
fn all_that_must_pass_pass() {
    check("must", 74);
}

#[test]
fn all_that_are_recommended_pass() {
    check("recommended", 4);
}

#[test]
fn all_that_are_lenient_pass() {
    check("lenient", 3);
}

#[test]
fn every_provider_is_in_a_profile() {
    for vector in vectors() {
        let provider = vector["provider"].as_str().unwrap();
        let is_known = PROFILES.iter().any(|profile| profile.providers.contains(&provider));
        assert!(is_known, "{provider}");
    }
}

/// A response from the wire may have its headers in any order.
#[test]
fn the_order_of_headers_does_not_matter() {
    for vector in vectors() {
        let (straight, turned) = (hint(&vector, false), hint(&vector, true));
        assert_eq!((straight.wait, straight.no_retry), (turned.wait, turned.no_retry), "{}", vector["id"]);
    }
}
