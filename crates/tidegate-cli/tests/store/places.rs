//! Places in flight that processes share through a server.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{self, Client, call, request};
use crate::peer::{self, Proxy};
use crate::server::Server;
use crate::{META, is_allowed};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a place of a process that died is taken, as `--help` says.
const TTL: Duration = Duration::from_secs(15);

/// What is said when the server did not answer within 50 ms.
const LATE: &str = "does not answer; calls wait or are refused";

/// A budget with many tokens and some places.
struct Budget {
    server: Server,
    url: String,
    limit: &'static str,
    places: &'static str,
}

impl Budget {
    fn new(places: &'static str) -> Self {
        let server = Server::start(&[]);
        let url = format!("{}#jobs", server.url());
        Self { server, url, limit: "1000/s", places }
    }

    fn flags<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let own = ["--budget", &self.url, "--limit", self.limit, "--max-in-flight", self.places];
        let how: &[&str] =
            if more.contains(&"--without-store") { &[] } else { &["--without-store", "closed"] };
        [&own, how, more].concat()
    }

    /// `tidegate run` with this budget, without waiting for it.
    fn run(&self, more: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        run.arg("run").args(self.flags(more)).arg("--").args(command);
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    }

    /// The end of a run that does not wait.
    fn at_once(&self, command: &[&str]) -> (i32, String) {
        loop {
            let output = self.run(&["--max-wait", "0s"], command).output().unwrap();
            // On a machine with much to do, an answer of the server can come too late.
            if output.status.code() != Some(75) || !String::from_utf8_lossy(&output.stderr).contains(LATE) {
                return told(&output);
            }
        }
    }

    fn agent(&self, more: &[&str]) -> Client {
        Client::start(&self.flags(more), &[&client::server()])
    }

    /// How many places are taken.
    fn held(&self) -> u64 {
        let mut connection = self.server.connection();
        redis::cmd("ZCARD").arg("{tidegate:budget:jobs}::places").query(&mut connection).unwrap()
    }

    fn until_held(&self, places: u64) {
        until(|| self.held() == places);
    }

    /// How many scripts the server has run.
    fn scripts(&self) -> u64 {
        let mut connection = self.server.connection();
        let text: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let calls = text.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it does not come to be so");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The exit code and stderr, without what is said of a server that answers late.
fn told(output: &Output) -> (i32, String) {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    let lines = stderr.lines().filter(|line| !line.contains(LATE) && !line.ends_with("answers again"));
    (output.status.code().unwrap_or(-1), lines.map(|line| format!("{line}\n")).collect())
}

/// A run whose command has started, and ends when its stdin is closed.
fn holding(budget: &Budget) -> Child {
    let mut child = budget.run(&[], &["sh", "-c", "echo ready; exec cat"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// The most that ran at once, from lines of a time and 1 or -1; and how many lines there are.
fn peak(log: &Path) -> (i32, usize) {
    let text = fs::read_to_string(log).unwrap();
    let mut events: Vec<(u64, i32)> = text
        .lines()
        .map(|line| {
            let (time, change) = line.split_once(' ').unwrap();
            (time.parse().unwrap(), change.parse().unwrap())
        })
        .collect();
    events.sort_unstable();
    let running = events.iter().scan(0, |running, (_, change)| {
        *running += change;
        Some(*running)
    });
    (running.max().unwrap(), events.len())
}

/// The answer to a call that finds no place.
fn refused_for_places(agent: &mut Client) -> Value {
    let mut answer = Value::Null;
    until(|| {
        answer = agent.ask(&call("full", "echo"));
        assert!(!is_allowed(&answer), "{answer}");
        answer["result"]["_meta"][META]["reason"] == "in-flight"
    });
    answer
}

#[test]
fn commands_of_two_runs_are_never_more_at_once_than_there_are_places() {
    let budget = Budget::new("2");
    let log = client::file("overlap.log");
    let script =
        format!("echo $(date +%s%N) 1 >> {0}; sleep 0.1; echo $(date +%s%N) -1 >> {0}", log.display());
    let runs = [1, 2].map(|_| {
        let mut run = budget.run(&["--each"], &["sh", "-c", &script]).spawn().unwrap();
        run.stdin.take().unwrap().write_all(b"1\n2\n3\n4\n5\n6\n7\n8\n").unwrap();
        run
    });
    for run in runs {
        assert_eq!(told(&run.wait_with_output().unwrap()), (0, String::new()));
    }
    assert_eq!(peak(&log), (2, 32));
    assert_eq!(budget.held(), 0, "all is released before the end");
}

#[test]
fn a_run_that_ends_or_is_told_to_leaves_no_place_behind() {
    let budget = Budget::new("1");
    let mut first = holding(&budget);
    let (code, text) = budget.at_once(&["true"]);
    assert!(code == 75 && text.contains("as many commands ran all the time as may"), "{code} {text}");
    // One that waits for a place, and is told to end.
    let before = budget.scripts();
    let waiting = budget.run(&[], &["true"]).spawn().unwrap();
    until(|| budget.scripts() >= before + 3);
    signal(&waiting, "TERM");
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), None, "the signal ends it");
    assert_eq!(budget.held(), 1);
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    // However it ended, the next one need not wait.
    for (command, expected) in [("exit 7", 7), ("kill -TERM $$", -1), ("true", 0), ("kill -9 $$", -1)] {
        let (code, text) = told(&budget.run(&["--max-wait", "0s"], &["sh", "-c", command]).output().unwrap());
        assert_eq!((code, text.as_str(), budget.held()), (expected, "", 0), "{command}");
    }
    let nothing = budget.run(&[], &["/"]).output().unwrap();
    assert_eq!((told(&nothing).0, budget.held()), (126, 0));
}

#[test]
fn who_waits_for_tokens_keeps_no_place_from_others() {
    let budget = Budget { limit: "4 per 1h", ..Budget::new("1") };
    assert_eq!(budget.at_once(&["true"]), (0, String::new()));
    let late = told(&budget.run(&["--cost", "4", "--max-wait", "1s"], &["true"]).output().unwrap());
    assert!(late.0 == 75 && late.1.contains("it would have been a wait of"), "{late:?}");
    let before = budget.scripts();
    let waiting = budget.run(&["--cost", "4"], &["true"]).spawn().unwrap();
    until(|| budget.scripts() >= before + 4);
    budget.until_held(0);
    assert_eq!(budget.at_once(&["true"]), (0, String::new()), "a token and a place are there");
    signal(&waiting, "TERM");
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), None);
    assert_eq!(budget.held(), 0);
}

#[test]
fn runs_that_wait_for_tokens_take_turns() {
    // One place, and tokens that come more slowly than commands end.
    let budget = Budget { limit: "20/s", ..Budget::new("1") };
    let log = client::file("turns.log");
    let script = format!("echo {{}} >> {}", log.display());
    let runs = ["a", "b"].map(|name| {
        let mut run = budget.run(&["--each", "--burst", "1"], &["sh", "-c", &script]).spawn().unwrap();
        run.stdin.take().unwrap().write_all(format!("{name}\n").repeat(40).as_bytes()).unwrap();
        run
    });
    for run in runs {
        assert_eq!(told(&run.wait_with_output().unwrap()), (0, String::new()));
    }
    let order: Vec<String> = fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(order.len(), 80);
    let of_first = order[..40].iter().filter(|name| **name == order[0]).count();
    println!("of the first 40 turns, {of_first} were of one run");
    assert!(of_first < 40, "one had all turns until it was done: {order:?}");
}

#[test]
fn the_place_of_a_killed_run_is_free_after_its_time_to_live() {
    let budget = Budget::new("1");
    let mut killed = holding(&budget);
    // Its command lives on, as it does with a budget of one machine.
    let stdin = killed.stdin.take();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let start = Instant::now();
    assert_eq!(budget.at_once(&["true"]).0, 75);
    let scripts = budget.scripts();
    let next = told(&budget.run(&["--max-wait", "20s"], &["true"]).output().unwrap());
    assert_eq!(next, (0, String::new()));
    let waited = start.elapsed();
    assert!(waited > TTL / 2 && waited < TTL + Duration::from_secs(2), "{waited:?}");
    // Who waits asks at most 20 times a second.
    let asked = budget.scripts() - scripts;
    assert!(
        Duration::from_millis(50) * u32::try_from(asked).unwrap() < waited + Duration::from_secs(1),
        "{asked}"
    );
    drop(stdin);
}

#[test]
fn two_gates_share_places_and_who_waits_starts_when_one_is_free() {
    let budget = Budget::new("2");
    let mut agents = [budget.agent(&[]), budget.agent(&[])];
    for agent in &mut agents {
        agent.ask(&request("ready", "ping"));
    }
    let start = Instant::now();
    for id in 0..6 {
        for agent in &mut agents {
            agent.say(&call(id, "slow"));
        }
    }
    let shares = agents.map(|agent| {
        let ended = agent.end();
        assert_eq!((ended.code, ended.rest.len()), (0, 6), "{}", ended.stderr);
        assert!(ended.rest.iter().all(is_allowed), "{:?}", ended.rest);
        ended.stderr
    });
    // 12 calls of 200 ms each, two at once.
    assert!(start.elapsed() >= Duration::from_millis(1200), "{:?} {shares:?}", start.elapsed());
    assert_eq!(budget.held(), 0);
}

#[test]
fn a_gate_that_ends_and_a_call_that_is_cancelled_leave_no_place_behind() {
    let budget = Budget::new("1");
    let mut one = budget.agent(&[]);
    one.say(&call(1, "silent"));
    budget.until_held(1);
    let mut two = budget.agent(&["--max-wait", "5s"]);
    let mut three = budget.agent(&["--max-wait", "0s"]);
    let refused = refused_for_places(&mut three);
    assert_eq!(three.end().code, 0);
    let text = refused["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("(jobs: 1 in flight)"), "{text}");
    two.say(&call(1, "echo"));
    let before = budget.scripts();
    until(|| budget.scripts() >= before + 2);
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    two.say(&cancelled);
    assert!(two.ask(&request("ping", "ping")).get("result").is_some());
    // The call that ran takes its place along, and a shell finds it.
    one.signal("TERM");
    assert_eq!(one.ended().code, 128 + 15);
    assert_eq!(budget.held(), 0);
    assert_eq!(budget.at_once(&["true"]), (0, String::new()));
    assert!(is_allowed(&two.ask(&call(2, "echo"))));
    // At the end of what the client says, one that is never answered lets go too.
    two.say(&call(3, "silent"));
    budget.until_held(1);
    assert_eq!(two.end().code, 0);
    assert_eq!(budget.held(), 0);
}

#[test]
fn a_gate_over_http_shares_places_with_one_over_pipes() {
    let budget = Budget::new("1");
    let (upstream, seen) = peer::server();
    let proxy = Proxy::start(upstream, &budget.flags(&[]));
    let mut agent = budget.agent(&["--max-wait", "0s"]);
    let running = proxy.open("POST", "", &call(1, "silent"));
    seen.wait_for("silent", 1);
    refused_for_places(&mut agent);
    drop(running);
    // What became of the call nobody knows, so its place comes free after a grace.
    budget.until_held(0);
    agent.say(&call(2, "silent"));
    budget.until_held(1);
    let waiting = proxy.open("POST", "", &call(2, "echo"));
    let before = budget.scripts();
    until(|| budget.scripts() >= before + 2);
    drop(waiting);
    assert_eq!(agent.end().code, 0);
    // Who waited and has gone keeps none.
    budget.until_held(0);
    assert!(is_allowed(&proxy.call(3, "echo")));
    let _running = proxy.open("POST", "", &call(4, "silent"));
    seen.wait_for("silent", 2);
    // It waits for the call that runs, until it is told again.
    proxy.signal("TERM");
    until(|| std::net::TcpStream::connect(proxy.address).is_err());
    assert_eq!(budget.held(), 1);
    assert_eq!(proxy.end().0, 0);
    assert_eq!(budget.held(), 0);
}

#[test]
fn without_the_server_places_are_not_counted_or_not_given_as_the_flag_says() {
    let mut budget = Budget::new("1");
    let mut agents = ["open", "closed"].map(|how| {
        let mut agent = budget.agent(&["--without-store", how, "--max-wait", "0s"]);
        until(|| is_allowed(&agent.ask(&call(0, "echo"))));
        agent
    });
    let run = "--each --without-store open".split(' ').collect::<Vec<_>>();
    let mut run = budget.run(&run, &["echo"]).spawn().unwrap();
    let mut arguments = run.stdin.take().unwrap();
    let mut printed = BufReader::new(run.stdout.take().unwrap()).lines();
    arguments.write_all(b"with\n").unwrap();
    assert_eq!(printed.next().unwrap().unwrap(), "with");
    budget.until_held(0);
    // It gets no place before the server goes.
    let mut holder = budget.agent(&[]);
    holder.say(&call(1, "silent"));
    budget.until_held(1);
    let before = budget.scripts();
    let waits = budget.run(&["--max-wait", "3s"], &["true"]).spawn().unwrap();
    until(|| budget.scripts() >= before + 5);
    budget.server.kill();
    arguments.write_all(b"without\nand again\n").unwrap();
    assert_eq!(printed.next().unwrap().unwrap(), "without");
    assert_eq!(printed.next().unwrap().unwrap(), "and again");
    let late = told(&waits.wait_with_output().unwrap());
    assert!(late.0 == 75 && late.1.contains("no turn within 3s: it would have been a wait of"), "{late:?}");
    let [open, closed] = &mut agents;
    for id in 1..5 {
        assert!(is_allowed(&open.ask(&call(id, "echo"))));
        assert!(!is_allowed(&closed.ask(&call(id, "echo"))));
    }
    budget.server.start_again();
    let mut id = 10;
    until(|| {
        id += 1;
        is_allowed(&closed.ask(&call(id, "echo")))
    });
    drop(arguments);
    let (code, text) = told(&run.wait_with_output().unwrap());
    assert!(code == 0 && text.contains("calls go on without a limit"), "{code} {text}");
    let [open, closed] = agents.map(|agent| agent.end().stderr);
    let times = |text: &str, what| text.matches(what).count();
    assert!(open.contains("does not answer; calls go on without a limit"), "{open}");
    assert!(times(&closed, LATE) >= 1 && times(&closed, LATE) == times(&closed, "answers again"), "{closed}");
}

#[test]
fn a_lost_place_is_told_once_and_what_runs_in_it_goes_on() {
    let mut budget = Budget::new("2");
    let mut agent = budget.agent(&[]);
    let mut run = holding(&budget);
    agent.say(&call(1, "silent"));
    budget.until_held(2);
    // It comes back without what it knew.
    budget.server.kill();
    budget.server.start_again();
    let mut stderr = BufReader::new(run.stderr.take().unwrap()).lines();
    let line = stderr.next().unwrap().unwrap();
    let expected = "warning: a place in flight of the budget `jobs` was lost, since it was not renewed in time; what runs in it goes on";
    assert!(line.starts_with(expected), "{line}");
    run.stdin.as_mut().unwrap().write_all(b"still there\n").unwrap();
    drop(run.stdin.take());
    let mut printed = String::new();
    std::io::Read::read_to_string(run.stdout.as_mut().unwrap(), &mut printed).unwrap();
    assert_eq!((printed.as_str(), run.wait().unwrap().code()), ("still there\n", Some(0)));
    assert!(stderr.next().is_none(), "once");
    // That of the gate is renewed at about the same time.
    until(|| is_allowed(&agent.ask(&call(2, "echo"))));
    let ended = agent.end();
    assert!(ended.stderr.matches(expected).count() <= 1, "{}", ended.stderr);
}
