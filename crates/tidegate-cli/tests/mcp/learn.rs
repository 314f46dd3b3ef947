//! Tools that say how long they want to be left alone, costs from arguments, and other requests that are limited.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, call, file, server};

const META: &str = "io.github.tidegate/rateLimit";

#[test]
fn a_tool_that_answers_with_429_is_left_alone_for_as_long_as_it_says() {
    let log = file("learn.jsonl");
    let mut client = Client::start(&["--log", log.to_str().unwrap()], &[&server()]);
    let told = client.ask(&call(1, "busy"));
    let start = Instant::now();
    assert!(
        told["result"]["content"][0]["text"].as_str().unwrap().contains("Retry-After: 2"),
        "it passes as it came"
    );
    client.say(&call(2, "busy"));
    assert_eq!(client.ask(&call(3, "echo"))["result"].get("isError"), None, "others go on");
    assert!(start.elapsed() < Duration::from_millis(1_500));
    assert_eq!(client.hear()["id"], 2);
    assert!(start.elapsed() >= Duration::from_millis(1_990), "{:?}", start.elapsed());
    let ended = client.end();
    assert!(ended.stderr.contains(", 2 answered with how long to wait"), "{}", ended.stderr);
    let lines = std::fs::read_to_string(log).unwrap();
    let hints: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["hint_ms"].clone()).collect();
    assert_eq!(hints, [json!(2000.0), Value::Null, json!(2000.0)]);
}

#[test]
fn a_pause_that_is_longer_than_the_wait_is_told_to_the_model() {
    let mut client = Client::start(&["--max-wait", "1s"], &[&server()]);
    client.ask(&call(1, "busy"));
    let refused = client.ask(&call(2, "busy"));
    assert_eq!(
        refused["result"]["content"][0]["text"],
        "The service behind tool busy has asked for a pause. Not executed. Retry after 2 s; do not call it again before then."
    );
    assert_eq!(refused["result"]["_meta"][META]["reason"], "server");
}

#[test]
fn a_dry_run_only_writes_down_what_it_was_told() {
    let mut client = Client::start(&["--dry-run"], &[&server()]);
    client.ask(&call(1, "busy"));
    let start = Instant::now();
    client.ask(&call(2, "busy"));
    assert!(start.elapsed() < Duration::from_millis(1_500));
    assert!(client.end().stderr.contains("2 answered with how long to wait"));
}

#[test]
fn a_call_costs_what_its_argument_says() {
    let limits = file("costs.toml");
    std::fs::write(
        &limits,
        "[[limit]]\nname = \"words\"\nquota = \"10 per 1h\"\n[[tool]]\nname = \"ec*\"\ncost = \"args.texts\"\n",
    )
    .unwrap();
    let flags = ["--limits", limits.to_str().unwrap(), "--cost", "slow=args.n"];
    let mut client = Client::start(&flags, &[&server()]);
    let with = |id: i64, tool: &str, arguments: Value| {
        let mut call = call(id, tool);
        call["params"]["arguments"] = arguments;
        call
    };
    assert_eq!(
        client.ask(&with(1, "echo", json!({"texts": ["a", "b", "c"]})))["result"].get("isError"),
        None
    );
    assert_eq!(client.ask(&with(2, "slow", json!({"n": 6.5})))["result"].get("isError"), None);
    let refused = client.ask(&with(3, "echo", json!({})));
    assert_eq!(refused["result"]["_meta"][META]["limit"], "words", "all ten are used");
    let never = client.ask(&with(4, "slow", json!({"n": 11})));
    assert!(
        never["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("Not executed: tool slow costs 11")
    );
}

#[test]
fn other_requests_are_limited_when_asked_for_and_refused_as_errors() {
    let limits = file("also.toml");
    std::fs::write(
        &limits,
        "[[limit]]\nname = \"reads\"\nquota = \"1 per 1h\"\ntools = [\"resources/read\"]\n",
    )
    .unwrap();
    let flags = ["--limits", limits.to_str().unwrap(), "--also", "resources/read"];
    let mut client = Client::start(&flags, &[&server()]);
    let read =
        |id: i64| json!({"jsonrpc": "2.0", "id": id, "method": "resources/read", "params": {"uri": "x:y"}});
    assert!(client.ask(&read(1)).get("error").is_none());
    let refused = client.ask(&read(2));
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["data"]["retryAfterSeconds"]),
        (&json!(429), &json!(3600))
    );
    assert_eq!(
        refused["error"]["message"],
        "Rate limit reached for resources/read (reads: 1 per hour). Not executed. Retry after 3600 s; do not call it again before then."
    );
    for id in 3..9 {
        assert_eq!(client.ask(&call(id, "echo"))["result"].get("isError"), None, "tools are no resources");
    }
}
