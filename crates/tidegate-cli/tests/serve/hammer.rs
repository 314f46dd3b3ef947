//! `serve` and `hammer` against each other, over the loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::process::*;

/// The number after `prefix` in the first line that has it.
fn figure(text: &str, prefix: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(prefix));
    line.unwrap_or_else(|| panic!("no {prefix} in:\n{text}")).parse().unwrap()
}

#[test]
fn forty_requests_at_five_a_second_get_what_the_equation_says() {
    let server = Server::start(&["--limiter", "token-bucket", "--limit", "5"]);
    assert_eq!(server.settings, "token-bucket 5/s, key client-ip, 65536 keys in 1280 KiB");
    let output = server.hammer(&[]);
    let text = stdout(&output);
    let (allowed, rejected) = (figure(&text, "200  x"), figure(&text, "429  x"));
    let third = text.lines().nth(2).unwrap();
    let seconds: f64 =
        third.strip_prefix("40 requests in ").unwrap().strip_suffix('s').unwrap().parse().unwrap();
    assert_eq!(allowed + rejected, 40, "{text}");
    // 7 within 0.6 s; a machine that does not keep the pace takes longer, and then there may be more.
    let at_most = (0..).take_while(|&n: &u32| f64::from(n) <= 5.0 + 5.0 * (seconds + 0.005)).last().unwrap();
    assert!((7..=u64::from(at_most)).contains(&allowed), "{text}");
    assert!(text.lines().nth(3).unwrap().starts_with("latency p50 "), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_server_that_keeps_its_limit_is_said_to() {
    let server = Server::start(&["--limit", "20", "--window", "2s", "--burst", "3"]);
    let output = server.hammer(&["--limit", "20", "--window", "2s", "--burst", "3"]);
    let text = stdout(&output);
    assert!(text.contains("\nbound held: "), "{text}");
    assert!(text.contains(" = 3 + 20 per 2s x 0."), "{text}");
    assert!(text.contains("\nretry_after held: told "), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_server_that_breaks_the_bound_is_found_and_the_exit_code_is_1() {
    let server = Server::start(&["--limit", "1000"]);
    let output = server.hammer(&["--limit", "1"]);
    let text = stdout(&output);
    assert!(text.starts_with("200  x40\n"), "{text}");
    assert!(text.contains("\nbound broken: "), "{text}");
    assert_eq!(output.status.code(), Some(1));

    let json: Value = serde_json::from_slice(&server.hammer(&["--limit", "1", "--json"]).stdout).unwrap();
    assert_eq!(json["bound"]["held"], false);
    assert_eq!(json["bound"]["worst"]["at_most"], 1);
}

#[test]
fn many_connections_at_one_instant_share_one_limit() {
    let server = Server::start(&["--quota", "5/hour", "--key", "none"]);
    let args =
        ["--requests", "300", "--interval", "0s", "--concurrency", "50", "--quota", "5/hour", "--json"];
    let output = server.hammer(&args);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "tidegate.hammer/1");
    assert_eq!(json["requests"], 300);
    assert_eq!(json["statuses"], serde_json::json!({ "200": 5, "429": 295 }));
    assert_eq!(json["bound"]["held"], true);
    assert_eq!(json["bound"]["predicted"], serde_json::json!({ "least": 5, "most": 5 }));
    assert_eq!(json["retry_after"]["verdict"], "skipped", "12 minutes are not waited");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_rejection_tells_its_wait_rounded_up() {
    let server = Server::start(&["--quota", "1 per 2500ms"]);
    let allowed = server.ask("GET", "");
    assert_eq!((allowed.status, allowed.body.as_str()), (200, "allowed\n"));
    assert_eq!(allowed.header("ratelimit"), Some("\"token-bucket\";r=0;t=3"));
    let rejected = server.ask("POST", "content-length: 0\r\n");
    assert_eq!(rejected.status, 429);
    let ms: u64 = rejected.header("retry-after-ms").unwrap().parse().unwrap();
    let seconds: u64 = rejected.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2500).contains(&ms), "{ms}");
    assert_eq!(seconds, ms.div_ceil(1000));
    let expected =
        format!("rejected by `token-bucket` (1 per 2500ms): retry after {}.{:03} s", ms / 1000, ms % 1000);
    let problem: Value = serde_json::from_str(&rejected.body).unwrap();
    assert_eq!(problem["detail"], expected);
    let head = server.ask("HEAD", "");
    assert_eq!((head.status, head.body.as_str()), (429, ""));
}

#[test]
fn a_header_makes_keys_of_its_own_and_those_without_share_one() {
    let server = Server::start(&["--quota", "1/hour", "--key", "header:X-Api-Key"]);
    for (headers, status) in [
        ("x-api-key: ann\r\n", 200),
        ("X-API-KEY: ann\r\n", 429),
        ("x-api-key: bob\r\n", 200),
        ("", 200),
        ("", 429),
        ("x-api-key:\r\n", 200),
        ("x-forwarded-for: 1.2.3.4\r\n", 429),
    ] {
        assert_eq!(server.ask("GET", headers).status, status, "{headers:?}");
    }
}

#[test]
fn forwarding_headers_make_no_keys_of_their_own() {
    let server = Server::start(&["--quota", "1/hour"]);
    assert_eq!(server.ask("GET", "x-forwarded-for: 1.2.3.4\r\n").status, 200);
    assert_eq!(server.ask("GET", "x-forwarded-for: 5.6.7.8\r\n").status, 429);
}

#[test]
fn a_head_is_read_up_to_a_bound() {
    let server = Server::start(&[]);
    let answer = |length: usize| {
        let mut stream = TcpStream::connect(&server.address)?;
        let head = format!("GET / HTTP/1.1\r\nconnection: close\r\nx: {}\r\n\r\n", "a".repeat(length));
        stream.write_all(head.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    assert!(answer(20_000).unwrap().starts_with("HTTP/1.1 200 "));
    // The rest of a head that was not read may reset the connection before the answer is read.
    assert!(answer(50_000).map_or_else(|_| true, |text| text.starts_with("HTTP/1.1 431 ")));
}

#[test]
fn a_sliding_log_says_what_it_takes_beyond_its_table() {
    let server = Server::start(&["--limiter", "sliding-log", "--limit", "500", "--keys", "8"]);
    let rest = server.settings.strip_prefix("sliding-log 500/s, key client-ip, 8 keys in 1 KiB").unwrap();
    assert_eq!(rest, " and 16 bytes more for each call in the window, at most 500 a key");
}

#[test]
fn a_server_told_to_stop_answers_those_who_wait_in_its_queue() {
    let mut watched =
        Watched::start(&["--limiter", "leaky-bucket", "--quota", "1 per 3s burst 1", "--queue", "2"]);
    let server = &watched.server;
    assert_eq!(server.ask("GET", "").status, 200);
    // This one goes away while it waits; its place is not given back, and nothing breaks.
    let gone = server.send("GET", "");
    watched.until_waiting(1);
    drop(gone);
    watched.until_waiting(0);
    let mut waiting = server.send("GET", "");
    watched.until_waiting(1);
    assert_eq!(server.ask("GET", "").status, 429, "both places are taken");
    let told = Instant::now();
    server.running.signal("-TERM");
    let response = read(&mut waiting);
    assert_eq!(response.status, 200);
    assert!(
        told.elapsed() > Duration::from_millis(2500),
        "it was let wait, not hurried: {:?}",
        told.elapsed()
    );
    assert!(TcpStream::connect(&server.address).is_err(), "no new connections");
    assert_eq!(watched.server.running.exit_code(), Some(0));
    assert_eq!(watched.server.running.line(), "stopped: 4 requests, 3 allowed, 1 rejected");
}

#[test]
fn a_limits_file_is_served_with_the_numbers_of_the_limit_that_bound() {
    let file = std::env::temp_dir().join(format!("tidegate-limits-{}.toml", std::process::id()));
    let text = "[[limit]]\nname = \"per-key\"\nkey = [\"header:x-key\", \"path\"]\nquota = \"1/hour burst 3\"\n\
                [[limit]]\nname = \"all\"\nquota = \"1/hour burst 5\"\n\
                [[limit]]\nname = \"tried\"\nquota = \"1/hour burst 1\"\nmode = \"shadow\"\n";
    std::fs::write(&file, text).unwrap();
    let mut server = Server::start(&["--limits", file.to_str().unwrap()]);
    assert_eq!(server.settings, format!("limits of {}: per-key, all, tried", file.display()));
    let ask = |key: &str| server.ask("GET", &format!("x-key: {key}\r\n"));
    let statuses: Vec<u16> = ["a", "a", "a", "a", "b", "b", "b"].iter().map(|key| ask(key).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 200, 200, 429]);
    let answer = ask("c");
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("3600")));
    assert!(answer.body.contains("\"violated-policies\":[\"all\"]"), "{}", answer.body);
    server.running.signal("-TERM");
    assert_eq!(server.running.exit_code(), Some(0));
    assert_eq!(server.running.line(), "stopped: 8 requests, 5 allowed, 3 rejected");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut watched = Watched::start(&["--limiter", "leaky-bucket", "--quota", "1/min burst 1"]);
    assert_eq!(watched.server.ask("GET", "").status, 200);
    let _waiting = watched.server.send("GET", "");
    watched.until_waiting(1);
    let told = Instant::now();
    watched.server.running.signal("-TERM");
    while watched.get("/readyz").status == 200 {}
    let server = &mut watched.server;
    server.running.signal("-INT");
    assert_eq!(server.running.exit_code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(5));
    assert_eq!(server.running.line(), "stopped: 2 requests, 2 allowed, 0 rejected");
}

#[test]
fn a_port_in_use_is_said_in_one_line() {
    let server = Server::start(&[]);
    assert!(server.settings.starts_with("token-bucket 10/s, key client-ip, "), "{}", server.settings);
    let output = output(&["serve", "--listen", &server.address]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    assert_eq!(
        stderr(&output),
        format!(
            "error: cannot listen on {}: the port is in use\n\
             hint: stop the other program, or give --listen another port; port 0 takes a free one\n",
            server.address
        )
    );
}

#[test]
fn wrong_flags_are_said_with_advice_and_the_exit_code_is_2() {
    for (args, expected) in [
        ("serve --limit abc", "not a number; write for example 5, 0.5 or 2/s"),
        ("serve --limit 0", "0 never allows anything; write a number above 0"),
        ("serve --limit -5", "a limit is above 0; write for example 5 or 0.5"),
        ("serve --burst 0", "a burst of 0 never allows anything; write a burst of at least 1"),
        ("serve --window 5", "a time needs a unit; write for example 10s"),
        ("serve --window 0s", "a time of 0 is too short; write for example 1s"),
        ("serve --quota 10/fortnight", "unknown unit `fortnight`"),
        ("serve --quota 5/s --limit 5", "cannot be used with"),
        ("serve --limiter bucket", "unknown limiter; write one of none, fixed-window"),
        ("serve --queue 5", "--queue is about calls that wait"),
        ("serve --key ip", "unknown key; write client-ip, header:NAME, path, method or none"),
        ("serve --key header:a(b", "`a(b` cannot be the name of a header"),
        ("serve --listen 8080", "write for example 127.0.0.1:8080"),
        ("serve --keys 0", "not a whole number from 1 to 16777216"),
        ("hammer https://127.0.0.1/", "this version does not speak TLS"),
        ("hammer ftp://127.0.0.1/", "only http:// addresses can be asked"),
        ("hammer --header x", "no colon; write for example 'x-api-key: ann'"),
        ("hammer --rate abc", "not a rate; write for example 20, 0.5 or 100/min"),
        ("hammer --rate 5 --interval 1s", "cannot be used with"),
        ("hammer --interval 0s --duration 1s", "an interval of 0 has no end in a duration"),
        ("hammer --rate 1000000/s --duration 1h", "more than the 10000000 that one run can hold"),
    ] {
        let args: Vec<_> = args.split(' ').collect();
        let output = output(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = stderr(&output);
        assert!(text.starts_with("error: ") && text.contains(expected), "{args:?}:\n{text}");
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error_with_a_hint() {
    let server = Server::start(&[]);
    let url = server.url();
    drop(server);
    let output = output(&["hammer", &url, "--requests", "3", "--limit", "5"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).starts_with("error  x3  "), "{}", stdout(&output));
    let text = stderr(&output);
    assert!(text.contains(&format!("error: 3 of 3 requests got no answer from {url}: ")), "{text}");
    assert!(text.contains("\nhint: start a server there"), "{text}");
}

/// A server that answers the first `answers` requests with 200, and closes its connections to the others.
fn closing_server(answers: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut left = answers;
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(&stream);
            let mut line = String::new();
            // A connection without a request only looked whether somebody listens.
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                continue;
            }
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            if let Some(fewer) = left.checked_sub(1) {
                left = fewer;
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    format!("http://{address}/")
}

#[test]
fn what_was_not_answered_may_have_been_allowed() {
    let quota = ["--requests", "10", "--interval", "1ms", "--concurrency", "1", "--quota", "3/hour"];
    for (answers, verdict, held) in [
        (0, "bound not checked: no request was answered", Value::Null),
        (2, "bound not decided: 10 allowed or not answered in 0.", Value::Null),
        (5, "bound broken: ", Value::Bool(false)),
    ] {
        for json in [false, true] {
            let url = closing_server(answers);
            let mut args = vec!["hammer", &url];
            args.extend(quota);
            args.extend(json.then_some("--json"));
            let output = output(&args);
            let text = stdout(&output);
            if json {
                let report: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(report["bound"]["held"], held, "{text}");
            } else {
                assert!(text.lines().any(|line| line.starts_with(verdict)), "{text}");
            }
            assert_eq!(output.status.code(), Some(if answers == 5 { 1 } else { 2 }), "{text}");
        }
    }
    // Even if the one that got no answer was allowed, three are within the limit.
    let url = closing_server(2);
    let output = output(&["hammer", &url, "--requests", "3", "--quota", "3/hour", "--concurrency", "1"]);
    assert!(stdout(&output).contains("\nbound held: 2 allowed, at most 3.0"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_interrupt_ends_the_check_of_the_told_wait() {
    let server = Server::start(&["--quota", "1 per 9s"]);
    let mut hammer = Running::start(&["hammer", &server.url(), "--requests", "3", "--quota", "1 per 9s"]);
    thread::sleep(Duration::from_millis(700));
    hammer.signal("-INT");
    let told = Instant::now();
    assert_eq!(hammer.exit_code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    let last = hammer.lines.iter().last().unwrap();
    assert_eq!(last, "retry_after not checked: interrupted");
}

#[test]
fn an_interrupted_run_reports_what_it_has() {
    let server = Server::start(&["--limiter", "none"]);
    let mut hammer = Running::start(&["hammer", &server.url(), "--interval", "20ms", "--requests", "100000"]);
    thread::sleep(Duration::from_millis(500));
    hammer.signal("-INT");
    assert_eq!(hammer.exit_code(), Some(0));
    let first = hammer.line();
    let answered: u64 = first.strip_prefix("200  x").unwrap().parse().unwrap();
    assert!((1..1000).contains(&answered), "{first}");
    assert!(hammer.line().starts_with(&format!("{answered} requests in ")));
}

#[test]
fn a_pace_that_is_not_kept_is_said() {
    let server = Server::start(&["--limiter", "leaky-bucket", "--quota", "10/s burst 1", "--queue", "100"]);
    let output = server.hammer(&["--requests", "5", "--interval", "1ms", "--concurrency", "1"]);
    assert!(stdout(&output).starts_with("200  x5\n"), "{}", stdout(&output));
    assert!(stderr(&output).contains("warning: the pace was not kept: "), "{}", stderr(&output));
}
