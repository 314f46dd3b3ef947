//! One budget for several proxies and for `tidegate run`.

use std::process::Command;

use crate::client::{Client, call, file, request, server};

fn budget(name: &str) -> String {
    let path = file(name);
    let _ = std::fs::remove_dir_all(path.with_extension("budget.places"));
    path.display().to_string()
}

#[test]
fn two_agents_with_one_account_are_allowed_what_one_would_be() {
    let path = budget("account.budget");
    let flags = ["--budget", &path, "--limit", "4 per 1h"];
    let mut one = Client::start(&flags, &[&server()]);
    // Then the budget is there.
    one.ask(&request("ready", "ping"));
    let mut agents = [one, Client::start(&["--budget", &path], &[&server()])];
    let mut allowed = 0;
    for id in 0..4 {
        for agent in &mut agents {
            allowed += u32::from(agent.ask(&call(id, "echo"))["result"].get("isError").is_none());
        }
    }
    assert_eq!(allowed, 4);
    let refused = agents[1].ask(&call(9, "echo"));
    let text = refused["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("4 per hour") && text.contains("Retry after "), "{text}");
    let run = ["run", "--budget", &path, "--max-wait", "0s", "--", "true"];
    let run = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(run).status().unwrap();
    assert_eq!(run.code(), Some(75), "a shell shares it too");
}

#[test]
fn who_waits_for_a_budget_starts_when_it_has_tokens_and_a_place() {
    let path = budget("waits.budget");
    let flags = ["--budget", &path, "--limit", "20/s", "--burst", "1", "--max-in-flight", "2"];
    let mut agents = [Client::start(&flags, &[&server()]), Client::start(&flags, &[&server()])];
    // So that both are there before the clock starts.
    for agent in &mut agents {
        agent.ask(&call("ready", "echo"));
    }
    let start = std::time::Instant::now();
    for id in 0..10 {
        for agent in &mut agents {
            agent.say(&call(id, "slow"));
        }
    }
    for agent in agents {
        let ended = agent.end();
        assert_eq!((ended.code, ended.rest.len()), (0, 10), "{}", ended.stderr);
        assert!(ended.rest.iter().all(|answer| answer["result"].get("isError").is_none()));
    }
    // 20 calls of 200 ms each, two at once.
    assert!(start.elapsed().as_millis() >= 2_000, "{:?}", start.elapsed());
}

#[test]
fn a_budget_that_cannot_be_opened_is_an_error() {
    let path = budget("errors.budget");
    let missing = Client::start(&["--budget", &path], &["cat"]).end();
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("hint: add its limit, such as --limit 2/s"), "{}", missing.stderr);
    assert_eq!(Client::start(&["--budget", &path, "--limit", "2/s"], &["true"]).end().code, 0);
    let other = Client::start(&["--budget", &path, "--limit", "3/s"], &["true"]).end();
    assert_eq!(other.code, 2);
    assert!(other.stderr.contains("has the limit `2/s` and not `3/s`"), "{}", other.stderr);
}
