//! The output of the examples, which is fixed.

use std::process::Command;

#[test]
fn example_hint_closes_a_gate() {
    // The example beside this test's own binary; `cargo test` has built both.
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/hint");
    let output = Command::new(&path).output().unwrap_or_else(|error| {
        panic!("{}: {error}; build it with `cargo build -p tidegate-http --examples`", path.display())
    });
    assert!(output.status.success());
    let expected = "\
told Some(1.34s) by Some(\"retry-after-ms\")
closed for 1.34s, with 9 left
open again: true
after a shorter hint: false
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
