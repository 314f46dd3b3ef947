//! The admin address: what it counts is what `hammer` counted, and what it says is what is in force.

use std::net::TcpStream;

use serde_json::{Value, json};

use super::limits::File;
use super::process::*;

fn hammered(watched: &Watched, args: &[&str]) -> (u64, u64) {
    let mut all = vec!["--json"];
    all.extend(args);
    let report: Value = serde_json::from_str(&stdout(&watched.server.hammer(&all))).unwrap();
    let count = |status: &str| report["statuses"][status].as_u64().unwrap_or(0);
    (count("200"), count("429") + count("503"))
}

#[test]
fn what_it_counts_is_what_hammer_counted() {
    let watched = Watched::start(&["--quota", "10/s burst 20", "--key", "header:x-account"]);
    let (mut allowed, mut rejected) = (0, 0);
    for (account, requests) in [("ann", "90"), ("bob", "30"), ("eve <script>", "60")] {
        let header = format!("x-account: {account}");
        let (yes, no) =
            hammered(&watched, &["--requests", requests, "--interval", "1ms", "--header", &header]);
        assert!(yes >= 20 && no > 0);
        (allowed, rejected) = (allowed + yes, rejected + no);
        let state = watched.state();
        let most = state["limits"][0]["rejected_most"].as_array().unwrap();
        let mine = most.iter().find(|key| key["key"] == account).unwrap();
        assert_eq!((mine["at_least"].as_u64(), mine["at_most"].as_u64()), (Some(no), Some(no)));
        assert_eq!(mine["level"]["capacity"], 20);
    }
    assert_eq!(allowed + rejected, 180);

    let state = watched.state();
    assert_eq!(state["requests"]["allowed"], allowed);
    assert_eq!(state["requests"]["rejected"], rejected);
    let limit = &state["limits"][0];
    assert_eq!((&limit["allowed"], &limit["rejected"]), (&json!(allowed), &json!(rejected)));
    assert_eq!(limit["asked_most"][0]["key"], "ann");
    assert_eq!(limit["words"][0], "10 per second, burst 20 for each header:x-account (token-bucket)");

    assert_eq!(watched.metric("tidegate_requests_total{outcome=\"allowed\"}"), allowed);
    assert_eq!(watched.metric("tidegate_requests_total{outcome=\"rejected\"}"), rejected);
    let of_limit = |outcome| {
        let labels = format!("limit=\"token-bucket\",outcome=\"{outcome}\"");
        watched.metric(&format!("tidegate_limit_decisions_total{{{labels}}}"))
    };
    assert_eq!((of_limit("allowed"), of_limit("rejected")), (allowed, rejected));
    assert_eq!(watched.metric("tidegate_decision_seconds_count"), 180);
    assert!(!watched.get("/metrics").body.contains("ann"), "keys are no labels");

    // The seconds of the last minute end up with all of them.
    watched.until(|state| {
        let sum = |name: &str| {
            let seconds = state["seconds"][name].as_array().unwrap().iter();
            seconds.map(|second| second.as_u64().unwrap()).sum::<u64>()
        };
        (sum("allowed"), sum("rejected")) == (allowed, rejected)
    });
}

#[test]
fn those_who_wait_are_seen() {
    let watched = Watched::start(&["--limiter", "leaky-bucket", "--quota", "1/hour burst 1", "--queue", "3"]);
    let _waiting: Vec<TcpStream> = (0..6).map(|_| watched.server.send("GET", "")).collect();
    let state = watched.until(|state| state["requests"]["rejected"] == 2);
    assert_eq!((&state["waiting"], &state["requests"]["queued"]), (&json!(3), &json!(3)));
    assert_eq!(watched.metric("tidegate_waiting"), 3);
    assert_eq!(watched.metric("tidegate_in_flight"), 3);
    assert_eq!(state["limits"][0]["asked_most"][0]["level"]["remaining"], 0);
}

#[test]
fn limits_that_change_are_shown_and_go_on_counting() {
    let limit = |name: &str, quota: &str| format!("[[limit]]\nname = \"{name}\"\nquota = \"{quota}\"\n");
    let file = File::new("admin", &limit("all", "1/hour burst 5"));
    let watched = Watched::start(&["--limits", file.path()]);
    assert_eq!(watched.server.ask("GET", "").status, 200);
    let shadow = limit("next", "1/hour burst 1") + "mode = \"shadow\"\n";
    file.replace(&(limit("all", "1/hour burst 50") + &shadow));
    watched.server.running.line();
    assert_eq!(watched.server.ask("GET", "").status, 200);
    assert_eq!(watched.server.ask("GET", "").status, 200);

    let state = watched.state();
    let (all, next) = (&state["limits"][0], &state["limits"][1]);
    assert_eq!((&all["quota"], &all["allowed"]), (&json!("1/hour burst 50"), &json!(3)));
    assert_eq!(
        (&next["mode"], &next["allowed"], &next["rejected"]),
        (&json!("shadow"), &json!(1), &json!(1))
    );
    assert_eq!(state["requests"]["allowed"], 3);
    assert_eq!(watched.metric("tidegate_reloads_total{result=\"ok\"}"), 1);

    file.replace("nonsense");
    watched.server.running.warning();
    let state = watched.state();
    assert_eq!(state["reloads"]["failed"], 1);
    for field in ["quota", "words", "allowed"] {
        assert_eq!(state["limits"][0][field], all[field]);
    }
}

#[test]
fn it_is_ready_until_it_drains_and_healthy_until_it_ends() {
    let mut watched =
        Watched::start(&["--limiter", "leaky-bucket", "--quota", "1 per 3s burst 1", "--queue", "9"]);
    assert_eq!(watched.get("/healthz").status, 200);
    let ready = watched.get("/readyz");
    assert_eq!((ready.status, &*ready.body), (200, "ready\n"));
    assert_eq!(watched.server.ask("GET", "").status, 200);
    let mut waiting = watched.server.send("GET", "");
    watched.until(|state| state["waiting"] == 1);
    watched.server.running.signal("-TERM");
    watched.until(|state| state["status"] == "draining");
    assert_eq!((watched.get("/readyz").status, watched.get("/healthz").status), (503, 200));
    assert_eq!(read(&mut waiting).status, 200);
    assert_eq!(watched.server.running.exit_code(), Some(0));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let watched = Watched::start(&[]);
    let page = watched.get("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'self';"), "{policy}");
    let mut linked = 0;
    for part in
        page.body.split(['"', ' ', '>']).filter(|part| part.ends_with(".js") || part.ends_with(".css"))
    {
        linked += 1;
        let file = watched.get(&format!("/{part}"));
        assert_eq!(file.status, 200, "{part}");
        assert!(!file.body.contains("http://") || file.body.contains("www.w3.org/2000/svg"), "{part}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(linked, 2);
    assert_eq!(watched.get("/nothing").status, 404);
}

#[test]
fn only_this_machine_is_answered() {
    let watched = Watched::start(&[]);
    let rebound =
        watched.request("GET /api/state HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert_eq!(rebound.status, 403);
    let ask = json!({ "quota": "5/s", "limiters": ["token-bucket"] }).to_string();
    assert_eq!(watched.post("content-type: text/plain\r\n", &ask).status, 415);
    assert_eq!(watched.post("content-type: application/json\r\n", &ask).status, 200);
}

#[test]
fn the_playground_decides_as_simulate_does() {
    let watched = Watched::start(&[]);
    let json = "content-type: application/json\r\n";
    let ask = json!({
        "pattern": "poisson", "rate": "40/s", "duration": "5s", "seed": 3,
        "quota": "10/s burst 15", "limiters": ["token-bucket", "fixed-window"],
    });
    let played: Value = serde_json::from_str(&watched.post(json, &ask.to_string()).body).unwrap();
    assert_eq!(played["schema"], "tidegate.playground/1");
    let simulated = output(&[
        "simulate",
        "--pattern",
        "poisson",
        "--rate",
        "40",
        "--duration",
        "5s",
        "--seed",
        "3",
        "--quota",
        "10/s burst 15",
        "--limiter",
        "token-bucket",
        "--limiter",
        "fixed-window",
        "--json",
    ]);
    let simulated: Value = serde_json::from_str(&stdout(&simulated)).unwrap();
    assert_eq!(played["requests"], simulated["requests"]);
    for row in 0..2 {
        for field in ["limiter", "allowed", "rejected", "worst", "bound"] {
            assert_eq!(played["results"][row][field], simulated["results"][row][field], "{field}");
        }
    }

    let wrong = watched.post(json, r#"{"quota": "5 a second", "limiters": ["token-bucket"]}"#);
    let error: Value = serde_json::from_str(&wrong.body).unwrap();
    assert_eq!(wrong.status, 400);
    assert!(error["error"].as_str().unwrap().starts_with("the limit: "), "{error}");
    let long = json!({ "quota": "5/s", "limiters": ["none"], "trace": "x".repeat(1 << 20) }).to_string();
    assert_eq!(watched.post(json, &long).status, 413);
}

#[test]
fn the_log_is_an_object_a_line() {
    let args = ["--quota", "1/hour", "--log", "json", "--log-level", "debug"];
    let mut watched = Watched::start(&args);
    let line = || -> Value { serde_json::from_str(&watched.server.running.warning()).unwrap() };
    let started = line();
    assert_eq!((&started["level"], &started["message"]), (&json!("INFO"), &json!("started")));
    assert_eq!(started["admin"], watched.admin);
    assert_eq!((watched.server.ask("GET", "").status, watched.server.ask("GET", "").status), (200, 429));
    let refused = line();
    assert_eq!((&refused["level"], &refused["message"]), (&json!("DEBUG"), &json!("request refused")));
    assert_eq!((&refused["limit"], &refused["key"]), (&json!("token-bucket"), &json!("127.0.0.1")));
    watched.server.running.signal("-TERM");
    assert_eq!(line()["message"], "draining");
    let stopped = line();
    assert_eq!((&stopped["allowed"], &stopped["rejected"]), (&json!(1), &json!(1)));
    assert_eq!(watched.server.running.exit_code(), Some(0));
}

/// The text format of Prometheus, strictly: a family is one piece with its help and type before it, and no series comes twice.
#[test]
fn metrics_are_in_the_format() {
    let file =
        File::new("metrics", "[[limit]]\nname = \"a \\\"b\\\\\"\nkey = \"client-ip\"\nquota = \"1/s\"\n");
    let watched = Watched::start(&["--limits", file.path()]);
    hammered(&watched, &["--requests", "9", "--interval", "0s"]);
    let response = watched.get("/metrics");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(response.body.ends_with('\n'));
    let (mut families, mut series, mut family, mut last_bucket) = (Vec::new(), Vec::new(), "", 0);
    for line in response.body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').unwrap().0;
            assert!(!families.contains(&family), "{line}");
            families.push(family);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let kind = kind.strip_prefix(family).unwrap();
            assert!([" counter", " gauge", " histogram"].contains(&kind), "{line}");
            assert_eq!(kind == " counter", family.ends_with("_total"), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().unwrap() >= 0.0, "{line}");
            let rest = sample.split('{').next().unwrap().strip_prefix(family).unwrap();
            assert!(["", "_bucket", "_sum", "_count"].contains(&rest), "{line}");
            assert!(!series.contains(&sample), "{line}");
            series.push(sample);
            if rest == "_bucket" {
                let bucket: u64 = value.parse().unwrap();
                assert!(bucket >= last_bucket, "{line}");
                last_bucket = bucket;
            }
        }
    }
    assert_eq!((last_bucket, families.len()), (9, 13));
    assert!(series.contains(&r#"tidegate_table_slots_used{limit="a \"b\\"}"#), "{series:?}");
}
