//! Any bytes as the answer of a server: no panic, and every bound is kept.
//!
//! Run with a nightly toolchain, for ten minutes:
//!
//! ```sh
//! cargo install cargo-fuzz
//! cargo +nightly fuzz run hint -- -max_total_time=600 -dict=fuzz/hint.dict
//! ```
//!
//! An input begins with two bytes: which answer of `tests/data/retry-hints.json` to begin with (or none), and the
//! status. Then come header lines, each `name: value`, where a first byte of 0x80 or more picks a known name instead;
//! an empty line, and the body. Without a body, that of the chosen answer is used.
//!
//! Where cargo-fuzz cannot run, `crates/tidegate-http/tests/hint_properties.rs` checks the same with `PROPTEST_CASES`
//! set to a large number.

#![no_main]

use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tidegate_http::hint::profile::PROFILES;
use tidegate_http::hint::{CEILING, Reason, Response, WAIT_MAX};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The headers and bodies of the answers that are known.
static ANSWERS: LazyLock<Vec<(Fields, Vec<u8>)>> = LazyLock::new(|| {
    let text = include_str!("../../tests/data/retry-hints.json");
    let vectors: Vec<Value> = serde_json::from_str(text).expect("the file is JSON");
    let answer = |vector: &Value| {
        let fields = vector["headers"].as_object().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().as_bytes().to_vec();
        let fields = fields.map(|(name, value)| (name.as_bytes().to_vec(), text(value))).collect();
        (fields, vector.get("body").map(Value::to_string).unwrap_or_default().into_bytes())
    };
    vectors.iter().map(answer).collect()
});

/// The names that mean something.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let rules = PROFILES.iter().flat_map(|profile| profile.headers);
    let names = rules.map(|rule| rule.header.replace('*', "tokens"));
    names.chain(["date".to_owned(), "age".to_owned()]).collect()
});

fuzz_target!(|data: &[u8]| {
    let [which, status, rest @ ..] = data else { return };
    let (mut fields, known_body) = ANSWERS.get(usize::from(*which)).cloned().unwrap_or_default();
    let mut body = rest;
    while let Some(end) = body.iter().position(|byte| *byte == b'\n') {
        let (line, after) = (&body[..end], &body[end + 1..]);
        body = after;
        match line {
            [] => break,
            [pick @ 0x80..=0xff, value @ ..] => {
                let name = &NAMES[usize::from(*pick & 0x7f) % NAMES.len()];
                fields.push((name.clone().into_bytes(), value.to_vec()));
            }
            _ => {
                let mut parts = line.splitn(2, |byte| *byte == b':');
                let name = parts.next().unwrap_or_default().to_vec();
                fields.push((name, parts.next().unwrap_or_default().to_vec()));
            }
        }
    }
    let body = if body.is_empty() { &known_body } else { body };
    let status = [200, 403, 429, 503][usize::from(*status) % 4];
    let now = UNIX_EPOCH + Duration::from_secs(1_796_040_000);
    let response =
        Response::new(status, now).headers(fields.iter().map(|(name, value)| (name, value))).body(body);
    let hint = response.hint();
    assert!(hint.wait.is_none_or(|wait| wait <= WAIT_MAX));
    assert_eq!(hint.wait.is_some(), hint.signal.is_some());
    assert_eq!(hint.wait.is_none(), hint.reason == Reason::Nothing);
    assert!(hint.dimensions.len() <= 32 && hint.notes.len() <= 16);
    if let Some(pause) = hint.pause(CEILING) {
        assert!(pause.wait <= CEILING && (pause.is_cut || Some(pause.wait) >= hint.wait));
    }
    assert_eq!(hint, response.hint(), "the same answer gives the same hint");
});
