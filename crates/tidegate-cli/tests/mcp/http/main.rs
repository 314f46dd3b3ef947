//! `tidegate mcp --listen --upstream`: MCP over Streamable HTTP.

mod peer;

use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{call, file};
use peer::{Proxy, server};

const META: &str = "io.github.tidegate/rateLimit";

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

#[test]
fn calls_of_many_clients_keep_to_the_limits_and_none_is_lost() {
    let (upstream, seen) = server();
    let proxy = Proxy::start(upstream, &["--limit", "20/s", "--burst", "3", "--max-in-flight", "4"]);
    let start = Instant::now();
    thread::scope(|scope| {
        for id in 0..20 {
            let proxy = &proxy;
            // All of the same id: they are of different clients.
            scope.spawn(move || assert_eq!((text(&proxy.call(7, "slow")), id), ("slow", id)));
        }
    });
    // The last of 17 that had to wait started after 17/20 s; four at once need a second for 20 of 200 ms.
    assert!(start.elapsed() >= Duration::from_millis(1_000), "{:?}", start.elapsed());
    assert_eq!(seen.all().len(), 20);
    let (code, stderr) = proxy.end();
    assert_eq!(code, 0);
    assert!(
        stderr.starts_with("tidegate mcp: 20 tool calls: 20 allowed") && stderr.contains("4 at once at most"),
        "{stderr}"
    );
}

#[test]
fn all_but_calls_pass_as_they_are_and_are_not_counted() {
    let (upstream, seen) = server();
    let proxy = Proxy::start(upstream, &["--limit", "1 per 1h", "--burst", "1", "--max-wait", "0s"]);
    for method in ["initialize", "server/discover", "tools/list", "ping", "resources/read"] {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}});
        let (status, _, body) = proxy.post("", &message);
        assert_eq!((status, text(&serde_json::from_str(&body).unwrap())), (200, method));
    }
    assert_eq!(proxy.post("", &json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).0, 202);
    let mut listens = proxy.open("GET", "", &Value::Null);
    let mut first = [0; 12];
    listens.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    assert_eq!(text(&proxy.call(1, "echo")), "echo");
    assert_eq!(proxy.call(2, "echo")["result"]["_meta"][META]["executed"], false);
    // The server is told its own name.
    assert!(seen.all().iter().all(|(_, host, _)| *host == upstream.to_string()));
    let evil = proxy.post("origin: http://evil.example\r\n", &call(3, "echo"));
    assert_eq!(evil.0, 403, "{evil:?}");
    // A stream that nobody ends does not keep the proxy from ending.
    let start = Instant::now();
    assert_eq!(proxy.end().0, 0);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_stream_passes_and_its_answer_ends_the_call() {
    let (upstream, _) = server();
    let proxy = Proxy::start(upstream, &["--max-in-flight", "1"]);
    let mut stream = proxy.open("POST", "", &call(1, "stream"));
    let heard = read_until(&mut stream, "\"text\":\"stream\"");
    assert!(heard.contains("notifications/progress"), "{heard}");
    // The stream is still open, and the only place is free.
    assert_eq!(text(&proxy.call(2, "echo")), "echo");
}

/// Reads until the text has come.
fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut heard = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&heard).contains(wanted) {
        let length = stream.read(&mut piece).unwrap();
        assert_ne!(length, 0, "it ended after {}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(heard).unwrap()
}

#[test]
fn an_answer_of_http_or_of_a_tool_that_says_how_long_closes_the_tool() {
    for (tool, status) in [("busy", 429), ("busy_stream", 200)] {
        let (upstream, seen) = server();
        let proxy = Proxy::start(upstream, &["--max-wait", "1s"]);
        let (passed, head, _) = proxy.post("", &call(1, tool));
        assert_eq!(passed, status);
        assert!(status == 200 || head.contains("retry-after: 2"), "{head}");
        let refused = proxy.call(2, tool);
        assert_eq!(refused["result"]["_meta"][META]["reason"], "server", "{refused}");
        assert_eq!(text(&proxy.call(3, "echo")), "echo");
        assert_eq!(seen.all().len(), 2);
    }
}

#[test]
fn who_waits_is_told_of_progress_and_gets_the_answer_in_the_same_stream() {
    let (upstream, _) = server();
    for (tool, answered) in
        [("echo", "\"text\":\"echo\""), ("stream", "\"text\":\"stream\""), ("broken", "HTTP status 502")]
    {
        let proxy = Proxy::start(upstream, &["--limit", "1 per 2s"]);
        proxy.post("", &call(0, "echo"));
        let mut waits = call(1, tool);
        waits["params"]["_meta"] = json!({"progressToken": "p"});
        let mut stream = proxy.open("POST", "", &waits);
        let heard = read_until(&mut stream, answered);
        let progress =
            heard.find("waiting for a rate limit, 1 s so far").unwrap_or_else(|| panic!("{heard}"));
        assert!(
            heard.starts_with("HTTP/1.1 200") && heard.contains("content-type: text/event-stream"),
            "{heard}"
        );
        assert!(progress < heard.find(answered).unwrap());
    }
}

#[test]
fn a_stream_that_breaks_off_does_so_for_the_client_too() {
    let (upstream, _) = server();
    let proxy = Proxy::start(upstream, &["--limit", "1 per 2s"]);
    let mut waits = call(1, "cut");
    waits["params"]["_meta"] = json!({"progressToken": "p"});
    // The first does not wait.
    for _ in 0..2 {
        let mut answer = Vec::new();
        let _ = proxy.open("POST", "", &waits).read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("chunked"), "{answer}");
        // A piece of length 0 would say that all has come.
        assert!(!answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    }
}

#[test]
fn a_call_that_is_cancelled_or_whose_client_goes_while_it_waits_leaves_no_trace() {
    let (upstream, seen) = server();
    let log = file("http-cancelled.jsonl");
    let proxy = Proxy::start(upstream, &["--max-in-flight", "1", "--log", log.to_str().unwrap()]);
    let session = "mcp-session-id: one\r\n";
    let first = proxy.open("POST", session, &call(1, "slow"));
    seen.wait_for("slow", 1);
    let mut cancelled = proxy.open("POST", session, &call(2, "echo"));
    let gone = proxy.open("POST", "mcp-session-id: two\r\n", &call(2, "echo"));
    let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    // It may come before the call that it is about; then the server hears of it.
    while proxy.post(session, &told).0 == 202
        && seen.all().iter().any(|request| request.2.contains("cancelled"))
    {
        seen.all().retain(|request| !request.2.contains("cancelled"));
    }
    drop(gone);
    let mut answer = String::new();
    cancelled.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("text/event-stream") && !answer.contains("jsonrpc"), "{answer}");
    assert_eq!(text(&proxy.call(3, "echo")), "echo");
    drop(first);
    proxy.end();
    assert_eq!(seen.all().iter().filter(|request| request.2 == "echo").count(), 1);
    assert_eq!(std::fs::read_to_string(log).unwrap().matches("\"cancelled\"").count(), 2);
}

#[test]
fn a_call_whose_client_goes_while_it_runs_keeps_its_place_for_a_grace() {
    let (upstream, seen) = server();
    let proxy = Proxy::start(upstream, &["--max-in-flight", "1"]);
    drop({
        let stream = proxy.open("POST", "", &call(1, "silent"));
        seen.wait_for("silent", 1);
        stream
    });
    let start = Instant::now();
    assert_eq!(text(&proxy.call(2, "echo")), "echo");
    assert!(start.elapsed() > Duration::from_millis(4_500), "{:?}", start.elapsed());
    assert!(proxy.end().1.contains("2 allowed"));
}

#[test]
fn each_session_has_a_limit_of_its_own_if_the_file_says_so() {
    let (upstream, _) = server();
    let limits = file("sessions.toml");
    std::fs::write(&limits, "[[limit]]\nname = \"each\"\nkey = \"session\"\nquota = \"1 per 1h\"\n").unwrap();
    let proxy = Proxy::start(upstream, &["--limits", limits.to_str().unwrap()]);
    let allowed = |headers: &str| {
        let body = proxy.post(headers, &call(1, "echo")).2;
        text(&serde_json::from_str(&body).unwrap()) == "echo"
    };
    let (one, two) = ("mcp-session-id: one\r\n", "mcp-session-id: two\r\n");
    assert_eq!([one, two, one, two, "", ""].map(allowed), [true, true, false, false, true, false]);
}

#[test]
fn calls_that_wait_are_answered_at_the_end_and_faults_are_told() {
    let (upstream, seen) = server();
    let proxy = Proxy::start(upstream, &["--max-in-flight", "1", "--max-message", "1"]);
    let batch = json!([call(1, "echo")]);
    let (status, _, body) = proxy.post("", &batch);
    assert!(status == 400 && body.contains("-32600"), "{status} {body}");
    let mut long = call(1, "echo");
    long["params"]["arguments"] = json!({"text": "x".repeat(1 << 20)});
    assert_eq!(proxy.post("", &long).0, 413);
    let running = proxy.open("POST", "", &call(1, "silent"));
    seen.wait_for("silent", 1);
    let mut waits = call(2, "echo");
    waits["params"]["_meta"] = json!({"progressToken": "p"});
    let mut waiting = proxy.open("POST", "", &waits);
    read_until(&mut waiting, "waiting for a rate limit");
    drop(running);
    let (code, stderr) = proxy.end();
    assert_eq!(code, 0, "{stderr}");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("the proxy in front of the MCP server ended before the call of tool")
            && answer.contains("not executed"),
        "{answer}"
    );
}

#[test]
fn a_server_that_is_down_is_told_and_frees_the_place() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let proxy = Proxy::start(nobody, &["--max-in-flight", "1"]);
    for id in 0..3 {
        let (status, _, body) = proxy.post("", &call(id, "echo"));
        assert!(status == 502 && body.contains("\"status\":502"), "{status} {body}");
    }
}

#[test]
fn no_call_is_hidden_in_a_packed_message() {
    let (upstream, seen) = server();
    let proxy = Proxy::start(upstream, &["--limit", "1 per 1h", "--max-wait", "0s"]);
    for headers in ["content-encoding: gzip\r\n", "content-type: application/json; charset=utf-7\r\n"] {
        assert_eq!(proxy.post(headers, &call(1, "echo")).0, 415, "{headers}");
    }
    assert!(seen.all().is_empty());
}

#[test]
fn a_call_that_comes_late_to_its_end_does_not_end_another_of_the_same_id() {
    let (upstream, seen) = server();
    let proxy = Proxy::start(upstream, &["--max-in-flight", "1", "--max-wait", "7s"]);
    let session = "mcp-session-id: one\r\n";
    let first = proxy.open("POST", session, &call(1, "silent"));
    seen.wait_for("silent", 1);
    let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(proxy.post(session, &told).0, 202);
    let _second = proxy.open("POST", session, &call(1, "silent"));
    seen.wait_for("silent", 2);
    drop(first);
    // The second still has the only place, also after the grace.
    assert_eq!(proxy.call(3, "echo")["result"]["_meta"][META]["reason"], "in-flight");
}
