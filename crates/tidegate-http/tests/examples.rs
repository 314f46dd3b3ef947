//! What the examples print, and do when they are asked.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Ends the server with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn servers_allow_three_and_tell_the_others_how_long() {
    for example in ["axum", "hyper"] {
        allows_three(example);
    }
}

fn allows_three(example: &str) {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    let mut server = Command::new(&path);
    let server = server.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; build it with `cargo build -p tidegate-http --examples`", path.display())
    });
    let mut server = Running(server);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on http://").unwrap();
    for request in 1..=5 {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let told = answer.contains("\r\nretry-after: ");
        let expected = if request <= 3 { ("HTTP/1.1 200", false) } else { ("HTTP/1.1 429", true) };
        assert_eq!((answer.get(..12).unwrap_or_default(), told), expected, "{answer}");
    }
}

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

#[test]
fn example_client_obeys_and_gives_up() {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/client");
    let output = Command::new(&path).output().unwrap_or_else(|error| {
        panic!("{}: {error}; build it with `cargo build -p tidegate-http --examples`", path.display())
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "\
200 OK after 2 attempts
waited as told: true
hello
429 Too Many Requests after 1 attempt, given up: true
the call was not sent: an answer 429 said to wait 3600s (`retry-after: 3600`)
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
