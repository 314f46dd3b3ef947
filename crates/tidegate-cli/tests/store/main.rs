//! `--budget redis://HOST:PORT#NAME` of `run` and `mcp`, with a real server.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../mcp/client.rs"]
#[expect(dead_code, reason = "the tests of mcp use all of it")]
mod client;
#[path = "../mcp/http/peer.rs"]
mod peer;
mod places;
#[path = "../../../tidegate-redis/tests/harness/server.rs"]
#[expect(dead_code, reason = "the tests of the store use all of it")]
mod server;

use std::process::Command;
use std::time::Instant;

use client::{Client, call, request};
use serde_json::Value;
use server::Server;

const META: &str = "io.github.tidegate/rateLimit";

/// The exit code and stderr of `tidegate run --budget URL FLAGS -- true`.
fn run(url: &str, flags: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(["run", "--budget", url]).args(flags).args(["--", "true"]).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn is_allowed(answer: &Value) -> bool {
    answer.get("result").is_some_and(|result| result["isError"] != true)
}

#[test]
fn shells_and_agents_share_one_bucket_of_a_server() {
    let server = Server::start(&[]);
    let url = format!("{}#account", server.url());
    let flags = ["--limit", "6 per 1h", "--without-store", "closed", "--max-wait", "0s"];
    let both: Vec<&str> = ["--budget", &url].into_iter().chain(flags).collect();
    let mut agents = [Client::start(&both, &[&client::server()]), Client::start(&both, &[&client::server()])];
    let mut allowed = 0;
    for id in 0..4 {
        for agent in &mut agents {
            allowed += u32::from(is_allowed(&agent.ask(&call(id, "echo"))));
        }
        allowed += u32::from(run(&url, &flags).0 == 0);
    }
    assert_eq!(allowed, 6);
    let (code, told) = run(&url, &flags);
    assert!(code == 75 && told.contains("no turn within 0ns"), "{code} {told}");
    let refused = agents[0].ask(&call(9, "echo"));
    assert_eq!(refused["result"]["_meta"][META]["limit"], "account");
    // Another name is another budget.
    assert_eq!(run(&format!("{}#other", server.url()), &flags).0, 0);
}

#[test]
fn who_waits_for_a_server_starts_as_soon_as_it_has_tokens() {
    let server = Server::start(&[]);
    let url = format!("{}#waits", server.url());
    let flags = ["--budget", &url, "--limit", "20/s", "--burst", "1", "--without-store", "closed"];
    let mut agents =
        [Client::start(&flags, &[&client::server()]), Client::start(&flags, &[&client::server()])];
    for agent in &mut agents {
        agent.ask(&request("ready", "ping"));
    }
    let start = Instant::now();
    for id in 0..10 {
        for agent in &mut agents {
            agent.say(&call(id, "echo"));
        }
    }
    for agent in agents {
        let ended = agent.end();
        assert_eq!((ended.code, ended.rest.len()), (0, 10), "{}", ended.stderr);
        assert!(ended.rest.iter().all(is_allowed), "{:?}", ended.rest);
    }
    assert!(start.elapsed().as_millis() >= 19 * 50, "{:?}", start.elapsed());
}

#[test]
fn without_the_server_calls_go_on_or_are_refused_as_the_flag_says() {
    let mut server = Server::start(&[]);
    let url = format!("{}#away", server.url());
    let agent = |how| {
        let flags = ["--budget", &url, "--limit", "1000/s", "--without-store", how, "--max-wait", "0s"];
        let mut agent = Client::start(&flags, &[&client::server()]);
        assert!(is_allowed(&agent.ask(&call(0, "echo"))));
        agent
    };
    let (mut open, mut closed) = (agent("open"), agent("closed"));
    server.kill();
    assert!((1..9).all(|id| is_allowed(&open.ask(&call(id, "echo")))));
    assert!((1..9).all(|id| !is_allowed(&closed.ask(&call(id, "echo")))));
    server.start_again();
    let start = Instant::now();
    let mut id = 10;
    while !is_allowed(&closed.ask(&call(id, "echo"))) {
        assert!(start.elapsed().as_secs() < 20);
        id += 1;
    }
    assert!(open.end().stderr.contains("does not answer; calls go on without a limit"));
    let told = closed.end().stderr;
    assert!(
        told.contains("calls wait or are refused until it does") && told.contains("answers again"),
        "{told}"
    );
}

#[test]
fn what_is_missing_or_wrong_is_said_without_the_password() {
    let nobody = "redis://user:secret@127.0.0.1:1#x";
    for (url, flags, expected) in [
        (
            "redis://127.0.0.1:1",
            &["--limit", "2/s", "--without-store", "open"][..],
            "the budget of a server has no name",
        ),
        (nobody, &["--without-store", "open"], "hint: add it, such as --limit 2/s"),
        (nobody, &["--limit", "2/s"], "hint: add --without-store closed"),
        (nobody, &["--limit", "2/s", "--without-store", "closed"], "cannot use the store at 127.0.0.1:1"),
        ("http://127.0.0.1:1#x", &["--limit", "2/s", "--without-store", "closed"], "write redis://HOST:PORT"),
        (nobody, &["--limit", "2/s", "--without-store", "open", "--max-in-flight", "0"], "invalid value '0'"),
        (
            nobody,
            &["--max-in-flight", "2", "--without-store", "open"],
            "the limit of the budget `x` is not said",
        ),
        (
            nobody,
            &["--limit", "2/s", "--without-store", "closed", "--max-in-flight", "2"],
            "cannot use the store at 127.0.0.1:1",
        ),
    ] {
        let (code, told) = run(url, flags);
        assert!(
            code == 2 && told.contains(expected) && !told.contains("secret"),
            "{url} {flags:?}: {code} {told}"
        );
    }
    for more in [&[][..], &["--max-in-flight", "1"]] {
        let (code, told) = run(nobody, &[&["--limit", "2/s", "--without-store", "open"], more].concat());
        assert!(
            code == 0 && told.contains("calls go on without a limit") && !told.contains("secret"),
            "{code} {told}"
        );
    }
}
