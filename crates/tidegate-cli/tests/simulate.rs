//! `simulate` as a process: what it promises of several limits, and of workers that share one.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A file of this test run.
fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("simulate-{name}"));
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("simulate").args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = simulate(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A line for each call: its time in seconds and its key.
fn trace(calls: &[(u64, &str)]) -> String {
    calls.iter().map(|(at, key)| format!("{{\"t\": {at}, \"k\": \"{key}\"}}\n")).collect()
}

#[test]
fn a_limit_promises_nothing_about_calls_that_another_lets_wait() {
    // Calls of `a` wait 10 s for each other and then start together with five of other keys: 6 in an instant, which no
    // limit was broken by, since they came 10 s apart.
    let others = ["b", "c", "d", "e", "f"];
    let calls: Vec<(u64, &str)> =
        [(0, "a"), (0, "a")].into_iter().chain(others.map(|key| (10, key))).collect();
    let trace = file("waiting.jsonl", &trace(&calls));
    let limits = file(
        "waiting.toml",
        "[[limit]]\nname = \"all\"\nquota = \"5 per 5s\"\n\
         [[limit]]\nname = \"each\"\nquota = \"1 per 10s\"\nkey = \"k\"\nqueue = { max = 10 }\n",
    );
    let args = ["--trace", &trace, "--time", "t", "--time-unit", "s", "--key", "k", "--limits", &limits];
    let report = json(&args);
    assert_eq!(report["results"][0]["worst"], 6);
    assert_eq!(report["results"][0]["bound"], Value::Null);

    // Without waiting, the limit of all holds for what starts.
    let limits = file(
        "rejecting.toml",
        "[[limit]]\nname = \"all\"\nquota = \"5 per 5s\"\n\
         [[limit]]\nname = \"each\"\nquota = \"1 per 10s\"\nkey = \"k\"\n",
    );
    let args = ["--trace", &trace, "--time", "t", "--time-unit", "s", "--key", "k", "--limits", &limits];
    let report = json(&args);
    assert_eq!((&report["results"][0]["worst"], &report["results"][0]["bound"]), (&5.into(), &5.into()));
}

#[test]
fn a_queue_is_split_among_workers_as_its_burst_is() {
    let args = ["--pattern", "burst", "--requests", "100", "--limiter", "leaky-bucket", "--workers", "4"];
    let allowed = |queue: &[&str], share: &str| {
        let report = json(&[&args, queue, &["--share", share]].concat());
        report["results"][0]["allowed"].as_u64().unwrap()
    };
    // 10 at once and 6 that wait; of the 17 that come two seconds later as many, when all that was taken is back. One of
    // them comes to a worker that is full, while another has room.
    assert_eq!(allowed(&["--queue", "6"], "shared"), 10 + 6 + 16);
    assert_eq!(allowed(&["--queue", "6"], "split"), 10 + 6 + 15);
    assert_eq!(allowed(&["--queue", "6"], "copied"), 4 * (10 + 6) + 17);
}

#[test]
fn a_bound_too_large_to_count_is_not_a_small_one() {
    let args = ["--limiter", "fixed-window", "--quota", "9000000000000000000 per 1ns", "--rate", "1"];
    let copied = ["--workers", "9", "--share", "copied", "--worst-window", "100000d", "--json"];
    let text = String::from_utf8(simulate(&[&args[..], &copied].concat()).stdout).unwrap();
    assert!(text.contains(&format!("\"bound\": {},", u128::MAX)), "{text}");
}

#[test]
fn a_key_with_a_quota_of_its_own_has_it_in_a_simulation_too() {
    let calls: Vec<(u64, &str)> = (0..8).flat_map(|at| [(at, "ann"), (at, "bob")]).collect();
    let trace = file("override.jsonl", &trace(&calls));
    let limits = file(
        "override.toml",
        "[[limit]]\nname = \"each\"\nkey = \"k\"\nquota = \"1/hour burst 2\"\n\
         [[limit.override]]\nkey = \"ann\"\nquota = \"1/hour burst 5\"\n\
         [[limit.override]]\nkey = \"eve\"\nquota = \"1/hour burst 9\"\n",
    );
    let args = ["--trace", &trace, "--time", "t", "--time-unit", "s", "--key", "k", "--limits", &limits];
    let report = json(&args);
    assert_eq!((&report["results"][0]["allowed"], &report["results"][0]["rejected"]), (&7.into(), &9.into()));
}

#[test]
fn leases_show_what_they_promise_what_they_allow_and_what_they_ask() {
    let args = ["--pattern", "poisson", "--rate", "2000", "--quota", "1000/s", "--limiter", "token-bucket"];
    let shares = ["--workers", "10", "--share", "copied", "--share", "leased", "--share", "shared"];
    let bad =
        ["--store-loss", "2%", "--crash-every", "50ms", "--store-delay", "4ms", "--max-overshoot", "10%"];
    let report = json(&[&args[..], &shares, &bad].concat());
    let [copied, leased, shared] = [0, 1, 2].map(|row| &report["results"][row]);
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    // The network and the crashes are in the leases alone.
    assert_eq!((number(shared, "over"), number(shared, "store_calls")), (0, number(&report, "requests")));
    assert!(number(copied, "over") > 1000);
    assert_eq!(number(copied, "store_calls"), 0);
    assert_eq!(leased["leases"]["overshoot"], 100);
    assert_eq!(leased["bound"], 1000 + 999 + 100);
    assert!(number(leased, "over") <= 100);
    assert!(number(leased, "store_calls") > 0);
    assert_eq!(leased["leases"]["crashes"], 59);
    assert!(number(&leased["leases"], "lost_answers") > 0 && number(&leased["leases"], "lost") > 0);
    assert!(number(&leased["leases"], "unanswered") > 0);
    assert!(shared.get("leases").is_none());

    // Another seed is another run, and the same one the same.
    let seeded = |seed| json(&[&args[..], &shares, &bad, &["--seed", seed]].concat());
    assert_eq!(seeded("1"), report);
    assert_ne!(seeded("2")["results"][1]["leases"], report["results"][1]["leases"]);
}

#[test]
fn each_key_has_leases_of_its_own() {
    let calls: Vec<(u64, &str)> = (0..50).flat_map(|at| [(at, "a"), (at, "b"), (at, "b")]).collect();
    let trace = file("leases.jsonl", &trace(&calls));
    let args = ["--trace", &trace, "--time", "t", "--time-unit", "ms", "--key", "k", "--by-key"];
    let limit = ["--quota", "100/s burst 20", "--limiter", "token-bucket", "--workers", "2"];
    let leases = ["--share", "leased", "--share", "shared", "--max-overshoot", "4"];
    let report = json(&[&args[..], &limit, &leases].concat());
    for row in [0, 1] {
        let row = &report["results"][row];
        assert_eq!(row["bound"], Value::Null);
        for key in row["by_key"].as_array().unwrap() {
            let allowed = key["allowed"].as_u64().unwrap();
            assert!((20..=28).contains(&allowed), "{row}");
        }
    }
}

#[test]
fn several_numbers_of_workers_have_rows_each_and_a_plot_over_them() {
    let plot = file("workers.svg", "");
    let args = ["--quota", "1000/s", "--limiter", "token-bucket", "--max-overshoot", "10%", "--plot", &plot];
    let report =
        json(&[&args[..], &["--workers", "1,100", "--share", "leased", "--share", "shared"]].concat());
    let names: Vec<_> =
        report["results"].as_array().unwrap().iter().map(|row| row["limiter"].as_str().unwrap()).collect();
    let expected = ["leased, 1 worker", "shared, 1 worker", "leased, 100 workers", "shared, 100 workers"];
    assert_eq!(names, expected.map(|name| format!("token-bucket {name}")));
    let plot = fs::read_to_string(plot).unwrap();
    for text in ["workers", "beyond one bucket", "calls to the store", "leased", "shared"] {
        assert!(plot.contains(text), "{text}");
    }
}
