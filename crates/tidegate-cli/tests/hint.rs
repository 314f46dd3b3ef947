//! `tidegate hint` on the answers of `tests/data`, as `curl -i` would print them and in flags.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn tidegate(arguments: &[&str], input: &[u8]) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("hint")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn vectors() -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/retry-hints.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn every_vector_gives_its_wait_as_json() {
    for vector in vectors() {
        let headers = vector["headers"].as_object().unwrap();
        let mut answer = format!("HTTP/2 {}\r\n", vector["status"]);
        for (name, value) in headers {
            answer.push_str(&format!("{name}: {}\r\n", value.as_str().unwrap()));
        }
        answer.push_str("\r\n");
        answer.push_str(&vector.get("body").map(Value::to_string).unwrap_or_default());
        let now = vector["now"].as_str().unwrap();
        let printed = tidegate(&["--json", "--now", now], answer.as_bytes());
        let document: Value = serde_json::from_str(&printed).unwrap();
        // Numbers are compared as they are written, so nothing is rounded on the way.
        let wait = vector["expect_wait_seconds"].to_string();
        assert_eq!(document["wait_seconds"].to_string(), wait, "{}", vector["id"]);
        if let Some(remaining) = vector.get("expect_remaining") {
            assert_eq!(&document["remaining"], remaining, "{}", vector["id"]);
        }
        let no_retry = vector.get("expect_no_retry").is_some();
        assert_eq!(document["no_retry"], no_retry, "{}", vector["id"]);
        if let Some(scope) = vector.get("expect_scope") {
            assert_eq!(&document["scope"], scope, "{}", vector["id"]);
        }
        if let Some(limit) = vector.get("expect_inflight_limit") {
            assert_eq!(&document["in_flight_limit"], limit, "{}", vector["id"]);
        }
        assert_eq!(document["schema"], "tidegate.hint/1");
    }
}

#[test]
fn flags_and_stdin_say_the_same() {
    let now = ["--now", "2026-11-30T12:00:00Z"];
    let body = br#"{"retry_after": 1.5}"#;
    let flags = ["--status", "503", "--header", "Retry-After: 2", "--body", "-", now[0], now[1]];
    let in_flags = tidegate(&flags, body);
    let answer = [b"HTTP/1.1 503 Service Unavailable\nRetry-After: 2\n\n", &body[..]].concat();
    assert_eq!(in_flags, tidegate(&now, &answer));
    assert_eq!(in_flags, "wait     1.5s\nbecause  body retry_after: 1.5\n");
}

#[test]
fn an_answer_that_goes_on_is_read_to_its_bound_only() {
    let mut answer = b"HTTP/2 429\nretry-after: 5\n\n".to_vec();
    answer.resize(1024 * 1024, b' ');
    let printed = tidegate(&["--json"], &answer);
    let document: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(document["wait_seconds"], 5);
    assert_eq!(document["notes"][0], "the answer is too large to be read whole");
}

#[test]
fn what_an_answer_says_cannot_command_the_terminal() {
    let printed =
        tidegate(&["--header", "x-ratelimit-bucket: a\u{1b}[31m", "--header", "retry-after: 5"], b"");
    assert_eq!(printed, "wait     5s\nbecause  header retry-after: 5\n");
    let printed = tidegate(&["--status", "429", "--body", "-"], b"{\"message\": \"retry in 5s\\u001b[31m\"}");
    assert!(!printed.contains('\u{1b}'), "{printed:?}");
}
