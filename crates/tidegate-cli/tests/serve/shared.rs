//! `--store`: servers that share their limits on a real Redis.

use crate::limits::File;
use crate::process::{PATIENCE, Server, Watched, output, stderr};
use crate::redis_server::Server as Redis;

/// More than any answer takes, also on a machine that is busy with other tests.
const PATIENT: [&str; 2] = ["--store-deadline", "10s"];

/// The flags of limits on this Redis.
fn store(redis: &Redis) -> String {
    format!("{}#shop", redis.url())
}

#[test]
fn two_servers_on_one_redis_obey_one_limit() {
    let redis = Redis::start(&[]);
    let store = store(&redis);
    let flags = [
        "--limit",
        "7 per 1h",
        "--key",
        "none",
        "--store",
        &store,
        "--without-store",
        "closed",
        PATIENT[0],
        PATIENT[1],
    ];
    let servers = [Server::start(&flags), Server::start(&flags)];
    assert!(servers[0].settings.ends_with("key none, shared as `shop`"), "{}", servers[0].settings);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        for server in &servers {
            statuses.push(server.ask("GET", "").status);
        }
    }
    let expected: Vec<u16> = (0..10).map(|index| if index < 7 { 200 } else { 429 }).collect();
    assert_eq!(statuses, expected);
    let rejected = servers[1].ask("GET", "");
    let wait: u64 = rejected.header("retry-after").unwrap().parse().unwrap();
    assert!((500..=515).contains(&wait), "{wait}");
    assert_eq!(rejected.header("ratelimit-policy"), Some("\"token-bucket\";q=7;w=3600"));
}

#[test]
fn limits_of_a_file_are_charged_together_on_all_servers_and_stay_spent_when_it_is_read_again() {
    let redis = Redis::start(&[]);
    let store = store(&redis);
    let text = |all: u32| {
        format!(
            "[[limit]]\nname = \"per-account\"\nkey = \"header:x-account\"\nquota = \"3/h burst 3\"\n\n\
             [[limit]]\nname = \"all\"\nquota = \"{all}/h burst {all}\"\n"
        )
    };
    let file = File::new("shared-store", &text(4));
    let path = file.path();
    let flags = ["--limits", path, "--store", &store, "--without-store", "closed", PATIENT[0], PATIENT[1]];
    let servers = [Server::start(&flags), Server::start(&flags)];
    let ask = |server: usize, account: &str| {
        let response = servers[server].ask("GET", &format!("x-account: {account}\r\n"));
        (response.status, response.header("ratelimit").unwrap_or_default().to_owned())
    };
    assert_eq!(ask(0, "ann").0, 200);
    assert_eq!(ask(1, "ann").0, 200);
    assert_eq!(ask(0, "ann"), (200, "\"per-account\";r=0;t=1200, \"all\";r=1;t=900".to_owned()));
    assert_eq!(ask(1, "ann").0, 429);
    assert_eq!(ask(1, "bob").0, 200);
    assert_eq!(ask(0, "bob").0, 429);
    // Twice as many for all: it is as empty as it was, and so for each account.
    file.replace(&text(8));
    for server in &servers {
        assert_eq!(server.running.line(), format!("reloaded {path}: per-account, all"));
    }
    assert_eq!(ask(0, "carl").0, 429);
}

#[test]
fn without_the_store_each_way_is_as_told_and_it_comes_back() {
    for (without, statuses, made) in [
        ("closed", [503; 4], "closed"),
        ("open", [200; 4], "open"),
        // Two servers: half of the burst of four.
        ("local:2", [200, 200, 429, 429], "local"),
    ] {
        let mut redis = Redis::start(&[]);
        let store = store(&redis);
        let server = Watched::start(&[
            "--limit",
            "4 per 1h",
            "--key",
            "none",
            "--store",
            &store,
            "--without-store",
            without,
            PATIENT[0],
            PATIENT[1],
        ]);
        assert_eq!(server.server.ask("GET", "").status, 200);
        let sample = |made| format!("tidegate_decisions_made_total{{made=\"{made}\"}}");
        assert_eq!(server.metric(&sample("exact")), 1);
        assert_eq!(server.metric("tidegate_store_connected"), 1);
        redis.kill();
        for status in statuses {
            let response = server.server.ask("GET", "");
            assert_eq!(response.status, status, "{without}");
            assert_eq!(response.header("retry-after").is_some(), status != 200, "{without}");
        }
        assert_eq!(server.metric(&sample(made)), 4);
        let warning = server.server.running.warning();
        assert!(warning.starts_with("warning: the store does not answer; "), "{warning}");
        redis.start_again();
        let start = std::time::Instant::now();
        while server.metric("tidegate_store_connected") == 0 {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        // Without persistence it has forgotten what was spent: all four are there again.
        let statuses: Vec<u16> = (0..5).map(|_| server.server.ask("GET", "").status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 429], "{without}");
        assert_eq!(server.server.running.warning(), "warning: the store answers again");
    }
}

#[test]
fn a_store_that_is_away_at_the_start_is_an_error_only_where_requests_would_be_refused() {
    let mut redis = Redis::start(&[]);
    let store = store(&redis);
    redis.kill();
    let start = |without| {
        output(&[
            "serve",
            "--limit",
            "1/s",
            "--store",
            &store,
            "--without-store",
            without,
            PATIENT[0],
            PATIENT[1],
        ])
    };
    let failed = start("closed");
    assert_eq!(failed.status.code(), Some(2));
    let told = stderr(&failed);
    assert!(told.starts_with("error: cannot use the store at 127.0.0.1:"), "{told}");
    // What to do is for who starts the server, and not for who writes one.
    assert!(told.contains("hint: start it, or name a server") && !told.contains("connect_later"), "{told}");
    let late = [
        "serve",
        "--limit",
        "1/s",
        "--store",
        &store,
        "--without-store",
        "closed",
        "--store-deadline",
        "2min",
    ];
    let failed = output(&late);
    assert_eq!(failed.status.code(), Some(2));
    assert!(stderr(&failed).ends_with("\nhint: give --store-deadline another time\n"), "{}", stderr(&failed));
    let server = Server::start(&[
        "--limit",
        "1/h",
        "--key",
        "none",
        "--store",
        &store,
        "--without-store",
        "open",
        PATIENT[0],
        PATIENT[1],
    ]);
    assert!(server.running.warning().contains("requests are not limited until then"));
    assert_eq!([server.ask("GET", "").status, server.ask("GET", "").status], [200, 200]);
}

#[test]
fn wrong_use_is_one_line_that_says_what_to_do() {
    let redis = Redis::start(&[]);
    let url = redis.url();
    let store = store(&redis);
    let closed = ["--without-store", "closed", PATIENT[0], PATIENT[1]];
    for (flags, said) in [
        (vec!["--store", &url, closed[0], closed[1]], "error: the limits on the store have no name"),
        (vec!["--store", &store], "--without-store"),
        (vec!["--store", &store, "--without-store", "local:0"], "local:N"),
        (vec![closed[0], closed[1]], "--store"),
        (
            vec!["--store", &store, closed[0], closed[1], "--limiter", "fixed-window"],
            "error: the limit `fixed-window` is a fixed-window; only token-bucket limits can be shared",
        ),
        (vec!["--store", "http://127.0.0.1:1#a", closed[0], closed[1]], "error: the address of the store"),
        (
            vec!["--store", &store, closed[0], closed[1], "--store-deadline", "2min"],
            "error: deadline of 120s is out of range; write 1ms to 60s",
        ),
    ] {
        let all: Vec<&str> = ["serve", "--limit", "1/s"].into_iter().chain(flags).collect();
        let failed = output(&all);
        assert_eq!(failed.status.code(), Some(2), "{all:?}");
        assert!(stderr(&failed).contains(said), "{all:?}: {}", stderr(&failed));
    }
    let named = format!("{url}#budget");
    let failed = output(&["serve", "--limit", "1/s", "--store", &named, closed[0], closed[1]]);
    assert!(stderr(&failed).starts_with("error: limits on a store cannot be named `budget`"));
}
