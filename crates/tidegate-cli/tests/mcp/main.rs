//! `tidegate mcp` between a client and a server, as processes.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod budget;
mod client;
mod hosts;
#[path = "http/main.rs"]
mod http;
mod learn;
mod rough;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::process::{Command, Stdio};

use client::{Client, call, file, request, server, through};
use serde_json::{Value, json};

/// What the log rounds away of two times.
const ROUNDED_NS: i128 = 2_000;

#[test]
fn twenty_calls_at_once_start_within_the_bound_and_none_is_lost() {
    let log = file("twenty.jsonl");
    let flags = ["--limit", "20/s", "--burst", "3", "--max-in-flight", "4", "--log", log.to_str().unwrap()];
    let mut client = Client::start(&flags, &[&server()]);
    let ids: BTreeSet<String> = (0..20).map(|id| format!("call {id}")).collect();
    for id in &ids {
        let mut call = call(id.as_str(), "slow");
        call["params"]["arguments"] = json!({"of": id});
        client.say(&call);
    }
    let ended = client.end();
    assert_eq!(ended.code, 0);
    assert_eq!(ended.rest.len(), 20);
    for answer in &ended.rest {
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap()["of"], answer["id"], "{answer}");
    }
    assert_eq!(
        ended.rest.iter().map(|answer| answer["id"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(),
        ids
    );
    assert!(
        ended.stderr.starts_with("tidegate mcp: 20 tool calls: 20 allowed (17 after a wait, "),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.ends_with(" at most), 0 rejected, 4 at once at most\n"), "{}", ended.stderr);

    let mut calls: Vec<(i128, i128)> =
        std::fs::read_to_string(&log).unwrap().lines().map(start_and_end).collect();
    calls.sort_unstable();
    for (first, (start, _)) in calls.iter().enumerate() {
        for (last, (end, _)) in calls.iter().enumerate().skip(first) {
            let beyond_burst = i128::try_from(last - first + 1).unwrap() - 3;
            assert!(
                end - start + ROUNDED_NS >= beyond_burst * 50_000_000,
                "calls {first} to {last}: {calls:?}"
            );
        }
        let running = calls.iter().filter(|call| call.0 <= *start && call.1 > start + ROUNDED_NS).count();
        assert!(running <= 4, "{running} run at once: {calls:?}");
    }

    let trace = ["--trace", log.to_str().unwrap(), "--time", "time", "--key", "tool", "--cost", "cost"];
    for verb in [&["simulate", "--limiter", "none"][..], &["fit"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(verb).args(trace).output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && stdout.contains("20 requests of 1 keys"), "{stdout}");
    }
}

/// When a call of the log started and ended, in nanoseconds.
fn start_and_end(line: &str) -> (i128, i128) {
    let entry: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&entry["tool"], &entry["decision"]), (&json!("slow"), &json!("allowed")));
    let time: jiff::Timestamp = entry["time"].as_str().unwrap().parse().unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "milliseconds of a test")]
    let ns = |name: &str| (entry[name].as_f64().unwrap() * 1e6) as i128;
    let start = time.as_nanosecond() + ns("wait_ms");
    (start, start + ns("duration_ms"))
}

#[test]
fn a_call_that_is_cancelled_while_it_waits_leaves_no_trace() {
    let log = file("cancelled.jsonl");
    let flags = ["--max-in-flight", "1", "--log", log.to_str().unwrap()];
    let mut client = Client::start(&flags, &[&server()]);
    let cancelled =
        |id: i64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    client.say(&call(1, "slow"));
    client.say(&call(2, "echo"));
    client.say(&call(3, "echo"));
    client.say(&cancelled(2));
    assert_eq!(client.hear()["id"], 1);
    assert_eq!(client.hear()["id"], 3);
    let ended = client.end();
    assert_eq!((ended.code, ended.rest), (0, vec![]));
    // The server would have told.
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.ends_with("0 rejected, 1 cancelled while waiting\n"), "{}", ended.stderr);
    assert!(std::fs::read_to_string(&log).unwrap().contains("\"decision\":\"cancelled\""));
}

#[test]
fn a_call_that_is_cancelled_in_flight_keeps_its_place_for_a_grace() {
    let mut client = Client::start(&["--max-in-flight", "1"], &[&server()]);
    client.say(&call(1, "silent"));
    client.say(&call(2, "echo"));
    client.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}));
    let start = std::time::Instant::now();
    assert_eq!(client.hear()["id"], 2);
    assert!(start.elapsed() > std::time::Duration::from_millis(4_900), "{:?}", start.elapsed());
    assert!(client.end().stderr.starts_with("cancelled\n"), "the server was told");
}

#[test]
fn who_waits_is_told_of_progress_and_then_of_the_refusal_and_others_pass() {
    let mut client = Client::start(&["--max-in-flight", "1", "--max-wait", "2s"], &[&server()]);
    client.say(&call(1, "silent"));
    let mut waits = call(2, "echo");
    waits["params"]["_meta"] = json!({"progressToken": "p"});
    client.say(&waits);
    for method in ["initialize", "server/discover", "tools/list", "ping", "resources/read", "tasks/get"] {
        client.ask(&request(method, method));
    }
    let progress = client.hear();
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(
        (&progress["params"]["progressToken"], &progress["params"]["progress"]),
        (&json!("p"), &json!(0.001))
    );
    let refused = client.hear();
    assert_eq!((&refused["id"], &refused["result"]["isError"]), (&json!(2), &json!(true)));
    let details = &refused["result"]["_meta"]["io.github.tidegate/rateLimit"];
    assert_eq!((&details["reason"], &details["executed"]), (&json!("in-flight"), &json!(false)));
    assert!(details["waitedMs"].as_u64().unwrap() >= 2_000);
    client.ask(&request("after", "ping"));
    assert_eq!(client.end().code, 0);
}

#[test]
fn a_refusal_says_the_seconds_and_when_no_wait_can_help() {
    let mut client = Client::start(&["--limit", "1 per 1h", "--cost", "big=9"], &[&server()]);
    assert_eq!(client.ask(&call(1, "echo"))["result"].get("isError"), None);
    let refused = client.ask(&call("1", "echo"));
    let text = refused["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(
        text,
        "Rate limit reached for tool echo (all-tools: 1 per hour). Not executed. Retry after 3600 s; do not call it again before then."
    );
    let told = refused["result"]["_meta"]["io.github.tidegate/rateLimit"]["retryAfterMs"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&told), "{told}");
    let never = client.ask(&call(3, "big"));
    let text = never["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("costs 9") && text.contains("Waiting cannot help"), "{text}");
    client.ask(&request("after", "ping"));
    assert_eq!(client.end().stderr, "tidegate mcp: 3 tool calls: 1 allowed, 1 rejected, 1 never possible\n");
}

#[test]
fn tools_of_a_limits_file_do_not_hold_each_other_up() {
    let limits = file("limits.toml");
    let text = "[[limit]]\nname = \"each\"\nkey = \"tool\"\nquota = \"1 per 1h\"\n[[limit]]\nname = \"all\"\nquota = \"9/s\"\n";
    std::fs::write(&limits, text).unwrap();
    let mut client = Client::start(&["--limits", limits.to_str().unwrap(), "--max-wait", "2h"], &[&server()]);
    client.ask(&call(1, "echo"));
    client.say(&call(2, "echo"));
    assert_eq!(client.ask(&call(3, "slow"))["result"].get("isError"), None);
    client.signal("TERM");
    let ended = client.ended();
    assert_eq!(ended.rest.len(), 1, "the call that waited is told: {:?}", ended.rest);
    assert_eq!(ended.rest[0]["id"], 2);
    assert_eq!(ended.code, 128 + 15);
}

#[test]
fn a_key_that_a_tool_call_does_not_have_is_an_error() {
    let limits = file("key.toml");
    std::fs::write(&limits, "[[limit]]\nname = \"a\"\nkey = \"client-ip\"\nquota = \"1/s\"\n").unwrap();
    let ended = Client::start(&["--limits", limits.to_str().unwrap()], &["cat"]).end();
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("limit `a` has the key `client-ip`, which a tool call does not have\nhint: "),
        "{}",
        ended.stderr
    );
}

#[test]
fn every_call_that_waits_is_answered_when_the_server_crashes() {
    let mut client = Client::start(&["--max-in-flight", "1"], &[&server()]);
    client.say(&call(1, "silent"));
    for id in 2..6 {
        client.say(&call(id, "echo"));
    }
    client.say(&json!({"jsonrpc": "2.0", "method": "notifications/crash"}));
    for id in 2..6 {
        let answer = client.hear();
        assert_eq!((&answer["id"], &answer["error"]["data"]["executed"]), (&json!(id), &json!(false)));
    }
    let ended = client.ended();
    assert_eq!((ended.code, ended.rest), (3, vec![]));
}

#[test]
fn a_dry_run_holds_nobody_up_and_counts() {
    let mut client = Client::start(&["--limit", "1 per 1h", "--dry-run"], &[&server()]);
    for id in 0..5 {
        assert_eq!(client.ask(&call(id, "echo"))["result"].get("isError"), None);
    }
    let told = "tidegate mcp: 5 tool calls: 5 allowed, 0 rejected, 4 would have been held up by a limit in shadow mode\n";
    assert_eq!(client.end().stderr, told);
}

#[test]
fn bytes_pass_as_they_came() {
    let odd: &[u8] = b"{ \"id\":1.0, \"method\":\"ping\" }\r\n\n\xff\xfe\n[1,2]\n{\"a\":\n\
        {\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"\\u0065cho\"},\"x\":1e400}\n\
        {\"id\":\"\\u0041\",\"method\":\"tools/call\",\"params\":{\"name\":\"echo\"}} \nthe last has no end";
    for flags in [&["mcp", "--", "cat"][..], &["mcp", "--limit", "10/s", "--max-in-flight", "9", "--", "cat"]]
    {
        let (out, code, _) = through(env!("CARGO_BIN_EXE_tidegate"), flags, odd.to_vec());
        assert_eq!(code, 0);
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(odd));
    }
    let session = ["initialize", "notifications/initialized", "tools/list", "tools/call"].map(|method| {
        let id = if method.starts_with("notif") { "" } else { "\"id\":\"\\u00e9\"," };
        format!("{{{id}\"method\":\"{method}\",\"params\":{{\"name\":\"echo\",\"arguments\":{{\"b\":1,\"a\":2}}}}}}\n")
    });
    let session = session.concat().into_bytes();
    let direct = through(&server(), &[], session.clone()).0;
    assert_eq!(direct.iter().filter(|byte| **byte == b'\n').count(), 3);
    for flags in [&["mcp", "--"][..], &["mcp", "--limit", "10/s", "--"]] {
        let server = server();
        let flags = [flags, &[&server]].concat();
        assert_eq!(through(env!("CARGO_BIN_EXE_tidegate"), &flags, session.clone()).0, direct);
    }
}

#[test]
fn a_message_may_have_64_mib_and_no_more() {
    let head = br#"{"id":1,"method":"tools/call","params":{"name":"echo","arguments":""#;
    let message = |length: usize| {
        let mut message = head.to_vec();
        message.resize(length - 4, b'a');
        message.extend(b"\"}}\n");
        message
    };
    // And its line end.
    let most = 64 * 1024 * 1024 + 1;
    let flags = ["mcp", "--limit", "10/s", "--", "cat"];
    let (out, code, stderr) = through(env!("CARGO_BIN_EXE_tidegate"), &flags, message(most));
    assert!(out == message(most) && code == 0, "{code} {stderr}");
    assert!(stderr.starts_with("tidegate mcp: 1 tool call: 1 allowed"), "it was understood: {stderr}");
    let (out, code, stderr) = through(env!("CARGO_BIN_EXE_tidegate"), &flags, message(most + 1));
    assert_eq!((out.len(), code), (0, 2));
    assert_eq!(stderr, "error: the client sent a message of more than 64 MiB\nhint: raise --max-message\n");
}

#[test]
fn exit_codes_signals_and_faults_are_told() {
    assert_eq!(Client::start(&[], &["false"]).end().code, 1);
    let ended = Client::start(&[], &["/no/such/server"]).end();
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.starts_with("error: cannot start `/no/such/server`: "), "{}", ended.stderr);
    let mut client = Client::start(&[], &[&server()]);
    // A signal before the handler is there would end the proxy alone.
    client.ask(&request("ready", "ping"));
    client.signal("TERM");
    assert_eq!(client.ended().code, 128 + 15);
}

#[test]
fn a_client_that_does_not_read_stops_the_server_and_can_end_the_proxy() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let command = command.args(["mcp", "--", "yes"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut proxy = command.spawn().unwrap();
    let mut first = [0; 2];
    proxy.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"y\n");
    let pid = proxy.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    assert_eq!(proxy.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn a_batch_with_calls_is_not_passed_on_when_there_are_limits() {
    let batch = json!([call(1, "echo"), request("2", "ping")]);
    let mut client = Client::start(&["--limit", "1/s"], &["cat"]);
    client.say(&batch);
    let answer = client.hear();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert_eq!(client.end().rest, Vec::<Value>::new());
    for flags in [&[][..], &["--limit", "1/s", "--dry-run"]] {
        let mut client = Client::start(flags, &["cat"]);
        client.say(&batch);
        assert_eq!(client.hear(), batch);
    }
}
