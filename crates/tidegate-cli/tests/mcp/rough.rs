//! `tidegate mcp` between a client and a server that do not behave.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, call, file, server, through};

const ANSWERS: &str = r#"while read -r line; do id=$((id + 1)); printf '{"jsonrpc":"2.0","id":%d,"result":{"x":NaN}}\n' $id; done"#;

#[test]
fn an_answer_frees_its_place_however_its_id_and_its_numbers_are_written() {
    let flags = ["mcp", "--max-in-flight", "1", "--", "sh", "-c", ANSWERS];
    let calls = [1, 2, 3].map(|id| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id}.0,\"method\":\"tools/call\",\"params\":{{\"name\":\"t\"}}}}\n"
        )
    });
    let (out, code, stderr) = through(env!("CARGO_BIN_EXE_tidegate"), &flags, calls.concat().into());
    let out = String::from_utf8(out).unwrap();
    assert_eq!((code, out.matches("NaN").count()), (0, 3), "{out} {stderr}");
}

#[test]
fn a_call_that_servers_may_read_in_two_ways_is_not_passed_on() {
    let line = br#"{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call","params":{"name":"t"}}"#;
    let (out, ..) =
        through(env!("CARGO_BIN_EXE_tidegate"), &["mcp", "--limit", "1/s", "--", "cat"], line.to_vec());
    let answer: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32600)));
    let (out, ..) = through(env!("CARGO_BIN_EXE_tidegate"), &["mcp", "--", "cat"], line.to_vec());
    assert_eq!(out, line, "without a limit all passes");
}

#[test]
fn a_last_message_without_a_line_end_keeps_apart_from_those_that_wait() {
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}).to_string();
    let said = format!("{}\n{}\n{ping}", call(1, "t"), call(2, "t"));
    let flags = ["mcp", "--limit", "5/s", "--burst", "1", "--", "cat"];
    let (out, ..) = through(env!("CARGO_BIN_EXE_tidegate"), &flags, said.into());
    let expected = format!("{}\n{ping}\n{}\n", call(1, "t"), call(2, "t"));
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn calls_to_a_server_that_reads_no_more_are_answered() {
    let mut client =
        Client::start(&["--limit", "100/s"], &["sh", "-c", "exec 0<&-; echo '{}'; exec sleep 60"]);
    // From here on it does not read.
    assert_eq!(client.hear(), json!({}));
    let answer = client.ask(&call(1, "t"));
    assert_eq!(answer["error"]["data"]["executed"], false, "{answer}");
    client.signal("TERM");
    assert!(client.ended().stderr.contains("1 not started"));
}

#[test]
fn what_a_server_leaves_behind_does_not_keep_the_proxy() {
    let start = Instant::now();
    let client =
        Client::start(&["--limit", "1 per 1h"], &["sh", "-c", "sleep 60 0</dev/null 2>/dev/null & exit 3"]);
    assert_eq!(client.ended().code, 3);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn what_a_server_leaves_behind_may_turn_to_another_input_late() {
    let start = Instant::now();
    let server = "exec 9<&0; { sleep 1; exec sleep 60 0</dev/null 2>/dev/null 9<&-; } 0<&9 & exit 3";
    let client = Client::start(&["--limit", "1 per 1h"], &["sh", "-c", server]);
    assert_eq!(client.ended().code, 3);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_client_that_reads_late_gets_all_that_the_server_said_before_it_ended() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let server = "yes | head -c 1000000";
    let command = command.args(["mcp", "--limit", "1/s", "--", "sh", "-c", server]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Longer than the patience with what a server leaves behind.
    thread::sleep(Duration::from_secs(11));
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    assert_eq!(said.len(), 1_000_000);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let pipe = file("log.fifo");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let path = pipe.to_str().unwrap();
    let args = ["mcp", "--limit", "100/s", "--log", path, "--", "cat"];
    let (_, code, stderr) = through(env!("CARGO_BIN_EXE_tidegate"), &args, Vec::new());
    assert!(code == 2 && stderr.contains("cannot write the log"), "{stderr}");
    // It is open, and nobody takes anything out.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let args = ["mcp", "--dry-run", "--log", path, "--", &server()];
    let calls: String = (0..10_000).map(|id| format!("{}\n", call(id, "echo"))).collect();
    let (out, code, stderr) = through(env!("CARGO_BIN_EXE_tidegate"), &args, calls.into());
    assert_eq!((code, out.split(|byte| *byte == b'\n').count()), (0, 10_001));
    assert!(stderr.contains("warning: the log misses "), "{stderr}");
    drop(reader);
}

#[test]
fn a_hangup_that_is_ignored_stays_so() {
    let mut command = Command::new("sh");
    let command = command.args([
        "-c",
        "trap '' HUP; exec \"$0\" mcp --limit 1/s -- cat",
        env!("CARGO_BIN_EXE_tidegate"),
    ]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for _ in 0..2 {
        stdin.write_all(b"x\n").unwrap();
        let mut heard = [0; 2];
        stdout.read_exact(&mut heard).unwrap();
        assert!(
            Command::new("kill").args(["-s", "HUP", &child.id().to_string()]).status().unwrap().success()
        );
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
