//! The output of the examples, which is fixed.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::Command;

/// The example beside this test's own binary; `cargo test` has built both.
fn output(example: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    let output = Command::new(&path).output().unwrap_or_else(|error| {
        panic!("{}: {error}; build it with `cargo build -p tidegate --examples`", path.display())
    });
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn example_gate_prints_when_calls_start() {
    let starts =
        [("token-bucket", [3, 1, 1, 1, 1, 1, 1, 1, 0, 0]), ("fixed-window", [3, 0, 0, 3, 0, 0, 3, 0, 0, 1])];
    let lines = starts.iter().flat_map(|(kind, starts)| {
        starts.iter().enumerate().map(move |(second, starts)| format!("{kind}, {second} s: {starts}\n"))
    });
    assert_eq!(output("gate"), lines.collect::<String>());
}

#[test]
fn example_settle_prints_what_is_left() {
    let expected = "\
reserved 1000, left 0
used 300, left 700
used 800 of 700, next call in 10.1s
after 70 s, left 600
dropped without settling, left 100
cancelled, left 100
cost 2000 exceeds the capacity 1000 of the gate, so it can never be granted; raise the burst or lower the cost
";
    assert_eq!(output("settle"), expected);
}

#[test]
fn example_keyed_prints_a_decision_for_each_key() {
    let expected = "\
10000 keys in 195 KiB
ann, call 1: allowed
ann, call 2: allowed
ann, call 3: allowed
ann, call 4: rejected, again in 500ms
bob: 3 of 3 left
carol: 20 of 30 left
ann, half a second later: true
a cost of 4: Never { capacity: 3 }
";
    assert_eq!(output("keyed"), expected);
}
