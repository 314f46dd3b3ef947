//! One command at a time, with budgets that several shells share.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Ended, Folder, assert_kept, most_at_once, now_ns, signal};

#[test]
fn the_exit_status_is_that_of_the_command() {
    let folder = Folder::new("status");
    fs::write(folder.0.join("text"), "no program\n").unwrap();
    for (command, status, err) in [
        (&["true"][..], 0, ""),
        (&["sh", "-c", "exit 3"], 3, ""),
        (&["sh", "-c", "exit 255"], 255, ""),
        (&["./text"], 126, "tidegate run: `./text` cannot be executed: Permission denied (os error 13)\n"),
        (&["/"], 126, "tidegate run: `/` cannot be executed: permission denied\n"),
        (&["no-such-command"], 127, "tidegate run: `no-such-command` was not found\n"),
        (&["./nothing"], 127, "tidegate run: `./nothing` was not found\n"),
    ] {
        let ended = folder.run(&[&["--budget", "a", "--limit", "100/hour", "--"][..], command].concat());
        assert_eq!((ended.status, &*ended.err), (Some(status), err), "{command:?}");
    }
    // The four that could not be started were not charged.
    assert_eq!(folder.budget("a").peek(0).unwrap().remaining(), 97);
}

#[test]
fn a_command_that_a_signal_ends_is_followed_by_the_same_signal() {
    let folder = Folder::new("killed");
    // 6 and 3 would leave a core behind.
    for (name, number) in [("TERM", 15), ("INT", 2), ("KILL", 9), ("ABRT", 6), ("QUIT", 3), ("USR1", 10)] {
        let script = format!("kill -{name} $$");
        let ended = folder.run(&["--budget", "a", "--limit", "100/hour", "--", "sh", "-c", &script]);
        assert_eq!((ended.status, ended.signal), (None, Some(number)), "{name}: {}", ended.err);
    }
    // A shell around it sees what it would see of the command.
    let tidegate = env!("CARGO_BIN_EXE_tidegate");
    let script = format!("{tidegate} run --budget ./a --limit 1/s -- sh -c 'kill -TERM $$'; echo $?");
    let shell =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(&folder.0).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shell.stdout), "143\n");
}

#[test]
fn stdin_stdout_and_stderr_are_those_of_the_command() {
    let folder = Folder::new("stdio");
    let arguments = [
        "--budget",
        "./here",
        "--limit",
        "5/hour",
        "--",
        "sh",
        "-c",
        "cat; printf e >&2; echo \"$1\"",
        "-",
        "{}",
    ];
    let ended = folder.run_with_input(&arguments, b"one\ntwo");
    // Without --each, braces are braces.
    assert_eq!((ended.status, &*ended.out, &*ended.err), (Some(0), "one\ntwo{}\n", "e"));
    assert!(folder.0.join("here").is_file());
}

#[test]
fn shells_with_one_budget_share_its_limit_and_its_places() {
    let folder = Folder::new("shells");
    let script = "date +%s%N >> times; echo + >> log; sleep 0.02; echo - >> log";
    let arguments = [
        "--budget",
        "api",
        "--limit",
        "20/s",
        "--burst",
        "3",
        "--max-in-flight",
        "2",
        "--",
        "sh",
        "-c",
        script,
    ];
    let since = now_ns();
    // Two shells that run four commands each, one after the other.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let ended = folder.run(&arguments);
                    assert_eq!(ended.status, Some(0), "{}", ended.err);
                }
            });
        }
        // And four at once.
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(folder.run(&arguments).status, Some(0)));
        }
    });
    assert_eq!(folder.read("times").lines().count(), 12);
    assert_kept(&folder.read("times"), since, 3, 50_000_000);
    assert!(most_at_once(&folder.read("log")) <= 2, "{}", folder.read("log"));
    // The limit is in the budget, and so are the places.
    let other = folder.run(&["--budget", "api", "--max-in-flight", "3", "--", "true"]);
    assert_eq!(other.status, Some(2));
    assert!(other.err.contains("has 2 places in flight and not 3"), "{}", other.err);
}

#[test]
fn a_place_is_held_until_the_command_has_ended() {
    let folder = Folder::new("place");
    let budget = ["--budget", "api", "--limit", "100/hour", "--max-in-flight", "1"];
    let first = folder
        .tidegate(
            &[&budget[..], &["--", "sh", "-c", "echo > up; until test -e end; do sleep 0.01; done"]].concat(),
        )
        .spawn()
        .unwrap();
    folder.wait_for("up", |text| !text.is_empty());
    let refused = folder.run(&["--budget", "api", "--max-wait", "10ms", "--", "touch", "ran"]);
    assert_eq!(refused.status, Some(75));
    assert!(refused.err.contains("as many commands ran all the time as may"), "{}", refused.err);
    assert!(!folder.0.join("ran").exists());
    fs::write(folder.0.join("end"), "").unwrap();
    assert!(first.wait_with_output().unwrap().status.success());
    assert_eq!(folder.run(&["--budget", "api", "--max-wait", "0s", "--", "true"]).status, Some(0));
    assert_eq!(folder.budget("api").peek(0).unwrap().remaining(), 98);
}

#[test]
fn a_turn_that_does_not_come_in_time_costs_nothing() {
    let folder = Folder::new("late");
    assert_eq!(folder.run(&["--budget", "a", "--limit", "2/hour", "--", "true"]).status, Some(0));
    let started = Instant::now();
    let late = folder.run(&["--budget", "a", "--cost", "2", "--max-wait", "20min", "--", "touch", "ran"]);
    // That is certain at once.
    assert!(started.elapsed() < Duration::from_secs(600));
    assert_eq!((late.status, late.err.lines().count()), (Some(75), 1), "{}", late.err);
    let (_, wait) = late.err.split_once("it would have been a wait of ").unwrap();
    let wait: f64 = wait.split_once("s;").unwrap().0.parse().unwrap();
    assert!((600.0..=1800.0).contains(&wait), "{}", late.err);
    assert!(!folder.0.join("ran").exists());
    assert_eq!(folder.budget("a").peek(0).unwrap().remaining(), 1);
}

#[test]
fn a_command_is_run_again_in_turns_of_its_own() {
    let folder = Folder::new("again");
    let script = "date +%s%N >> times; test $(wc -l < times) -ge 3 || exit 75";
    let since = now_ns();
    let budget = ["--budget", "a", "--limit", "20/s", "--burst", "1"];
    let ended = folder.run(&[&budget[..], &["--retry-on-exit", "75", "--", "sh", "-c", script]].concat());
    assert_eq!((ended.status, folder.read("times").lines().count()), (Some(0), 3), "{}", ended.err);
    assert_kept(&folder.read("times"), since, 1, 50_000_000);
    // With a limit of its own, as often as it may, and not for another status.
    for (on, runs) in [("9", 3), ("8", 1)] {
        let _ = fs::remove_file(folder.0.join("runs"));
        let ended = folder.run(&[
            "--limit",
            "1000/s",
            "--retry-on-exit",
            on,
            "--retries",
            "2",
            "--",
            "sh",
            "-c",
            "echo >> runs; exit 9",
        ]);
        assert_eq!((ended.status, folder.read("runs").lines().count()), (Some(9), runs), "{}", ended.err);
    }
}

/// Waits until the process listens for a signal, as the system tells.
fn wait_until_it_listens(child: &Child, signal: Signal) {
    let started = Instant::now();
    let listens = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    };
    while !listens() {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not listen");
        std::thread::yield_now();
    }
}

#[test]
fn a_signal_ends_the_wait_and_nothing_is_charged() {
    let folder = Folder::new("wait");
    assert_eq!(folder.run(&["--budget", "a", "--limit", "1/hour", "--", "true"]).status, Some(0));
    for kind in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let child = folder.tidegate(&["--budget", "a", "--", "touch", "ran"]).spawn().unwrap();
        wait_until_it_listens(&child, kind);
        signal(&child, kind);
        let ended = Ended::new(&child.wait_with_output().unwrap());
        assert_eq!(ended.signal, Some(kind.as_raw()), "{}", ended.err);
    }
    assert!(!folder.0.join("ran").exists());
    // What is left is what the hour gave, and the next turn still comes.
    assert!(folder.budget("a").peek(1).unwrap().retry_after() > Some(Duration::from_secs(3000)));
}

#[test]
fn a_signal_goes_to_the_command_once() {
    let folder = Folder::new("signal");
    for (kind, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")] {
        let _ = fs::remove_file(folder.0.join("up"));
        let script = format!(
            "trap 'echo >> got-{name}' {name}; echo > up; until test -e end-{name}; do sleep 0.01; done; exit 5"
        );
        let arguments =
            ["--budget", "a", "--limit", "9/hour", "--retry-on-exit", "5", "--", "sh", "-c", &script];
        let child = folder.tidegate(&arguments).spawn().unwrap();
        folder.wait_for("up", |text| !text.is_empty());
        signal(&child, kind);
        let got = format!("got-{name}");
        folder.wait_for(&got, |text| !text.is_empty());
        // The command goes on after the signal, and ends when it wants to; then it is not run again.
        fs::write(folder.0.join(format!("end-{name}")), "").unwrap();
        let ended = Ended::new(&child.wait_with_output().unwrap());
        assert_eq!((ended.status, &*folder.read(&got)), (Some(5), "\n"), "{name}: {}", ended.err);
    }
    assert_eq!(folder.budget("a").peek(0).unwrap().remaining(), 6);
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let folder = Folder::new("nohup");
    let mut shell = std::process::Command::new("sh");
    let script = r#"trap "" HUP; exec "$0" run --budget ./a --limit 9/hour -- grep SigIgn /proc/self/status"#;
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).current_dir(&folder.0);
    let ended = Ended::new(&shell.output().unwrap());
    let mask = u64::from_str_radix(ended.out.trim().strip_prefix("SigIgn:").unwrap().trim(), 16).unwrap();
    assert_eq!(mask & 1, 1, "{}", ended.out);
}
