//! Numbers that are known from elsewhere: what the algorithms answer on recorded traffic, counted by other programs,
//! and the texts that the documentation shows.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs `tidegate` with words separated by blanks; `{a b}` is one word, and a sample stands for its path.
fn run(command: &str) -> Output {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let mut args = Vec::new();
    let mut rest = command;
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('{') {
            Some(quoted) => quoted.split_once('}').unwrap(),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        let is_sample = data.join(word).is_file();
        args.push(if is_sample { data.join(word).display().to_string() } else { word.to_owned() });
        rest = after.trim_start();
    }
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(command: &str) -> Value {
    let output = run(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(command: &str) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn recorded_traffic_is_rejected_as_often_as_elsewhere() {
    const AZURE: &str = "azure_llm_2023_code.csv";
    for (trace, limit, requests, rejected) in [
        (AZURE, "--quota {5/s burst 20}", 8819, 3347),
        (AZURE, "--cost ContextTokens+GeneratedTokens --quota {8000/s burst 50000}", 8819, 2456),
        ("mooncake_conversation.jsonl --time-unit ms", "--quota {4/s burst 20}", 12031, 154),
        ("apache_combined_10k.log", "--quota {1 per 10s burst 20}", 10000, 7900),
        ("apache_combined_10k.log", "--quota {1 per 10s burst 5} --key client", 10000, 1767),
    ] {
        let report = json(&format!("simulate --json --limiter token-bucket --trace {trace} {limit}"));
        assert_eq!(report["schema"], "tidegate.simulate/1");
        assert_eq!(report["requests"], requests, "{trace}");
        let row = &report["results"][0];
        assert_eq!(row["rejected"], rejected, "{trace} {limit}");
        assert_eq!(row["allowed"], requests - rejected, "{trace} {limit}");
    }
}

#[test]
fn workers_that_share_reject_more_than_workers_with_copies() {
    let report = json(
        "simulate --json --limiter token-bucket --trace azure_llm_2023_code.csv --quota {3/s burst 10} \
         --workers 4 --share shared --share copied",
    );
    let rejected = |row: usize, name: &str| {
        assert_eq!(report["results"][row]["limiter"], name);
        report["results"][row]["rejected"].as_u64().unwrap()
    };
    assert_eq!((rejected(0, "token-bucket shared"), rejected(1, "token-bucket copied")), (5455, 767));
}

#[test]
fn the_smallest_bursts_of_a_trace() {
    let report = json("fit --json --trace azure_llm_2023_code.csv --rate 5 --rate 10");
    assert_eq!(report["schema"], "tidegate.fit/1");
    let bursts: Vec<&str> = report["rates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| at["burst"]["decimal"].as_str().unwrap())
        .collect();
    assert_eq!(bursts, ["507.925165", "318.43561"]);
}

#[test]
fn the_tables_of_the_patterns() {
    assert_eq!(
        text("simulate --pattern burst"),
        "pattern burst: 35 requests, limit 10 per second

limiter        allowed  rejected  worst 1s
none                35         0        30
fixed-window        15        20        10
sliding-log         15        20        10
token-bucket        15        20        10
"
    );
    assert_eq!(
        text("simulate"),
        "pattern steady: 60 requests, limit 10 per second

limiter        allowed  rejected  worst 1s
none                60         0        20
fixed-window        30        30        10
sliding-log         30        30        10
token-bucket        39        21        19
"
    );
}
