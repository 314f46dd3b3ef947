//! `--each`: one command for each argument.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Ended, Folder, assert_kept, most_at_once, now_ns, signal};

fn numbers(count: u32) -> Vec<u8> {
    (1..=count).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

#[test]
fn arguments_go_where_the_braces_are_or_to_the_end() {
    let folder = Folder::new("each");
    let each = ["--limit", "1000/s", "--each"];
    for (more, input, out) in [
        (&["--", "echo", "<{}>", "{}{}"][..], &b"a b\n\n\nc"[..], "<a b> a ba b\n<c> cc\n"),
        (&["--", "echo", "x"], b"a\n$HOME\n", "x a\nx $HOME\n"),
        (&["-0", "--", "printf", "<%s>\\n"], b"a\nb\0\0c\0", "<a\nb>\n<c>\n"),
        (&["--", "cat"], b"/dev/stdin\n", ""),
        (&["--", "echo"], b"", ""),
    ] {
        let ended = folder.run_with_input(&[&each[..], more].concat(), input);
        assert_eq!((ended.status, &*ended.out, &*ended.err), (Some(0), out, ""), "{more:?}");
    }
}

#[test]
fn some_that_fail_are_told_at_the_end() {
    let folder = Folder::new("failed");
    let script = "test {} != 3 -a {} != 5 || exit 4; echo {}";
    let arguments = ["--limit", "1000/s", "--each", "--", "sh", "-c", script];
    let ended = folder.run_with_input(&arguments, &numbers(6));
    assert_eq!((ended.status, &*ended.out), (Some(123), "1\n2\n4\n6\n"));
    assert_eq!(ended.err, "tidegate run: 2 of 6 commands failed, first that of `3` with status 4\n");
    for (command, status) in [("no-such-command", 127), ("/", 126)] {
        let ended = folder.run_with_input(&["--limit", "9/s", "--each", "--", command], &numbers(3));
        assert_eq!(ended.status, Some(status), "{}", ended.err);
    }
    let ended = folder.run_with_input(&["--limit", "1000/s", "--each", "--", "echo"], b"a\nb\0\nc\n");
    assert_eq!((ended.status, &*ended.out), (Some(2), "a\n"));
    assert!(ended.err.contains("error: argument 2 has a zero byte"), "{}", ended.err);
}

#[test]
fn they_are_started_in_order_by_the_limit() {
    let folder = Folder::new("order");
    // Field 22 of the system's record is when the process was started.
    let script = "date +%s%N >> times; echo {} $(cut -d' ' -f22 /proc/$$/stat)";
    let arguments =
        ["--limit", "50/s", "--burst", "2", "--max-in-flight", "4", "--each", "--", "sh", "-c", script];
    let since = now_ns();
    let ended = folder.run_with_input(&arguments, &numbers(15));
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert_kept(&folder.read("times"), since, 2, 20_000_000);
    let mut starts: Vec<(u32, u64)> = ended
        .out
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(number, start)| (number.parse().unwrap(), start.parse().unwrap()))
        .collect();
    starts.sort_unstable();
    assert_eq!(starts.len(), 15);
    assert!(starts.is_sorted_by_key(|(_, start)| *start), "{starts:?}");
}

#[test]
fn as_many_run_at_once_as_may_and_no_more() {
    let folder = Folder::new("flight");
    // The first three end when there are three of them.
    let script = "echo + >> log; until test $(grep -c + log) -ge 3; do sleep 0.01; done; echo - >> log";
    let arguments = ["--limit", "1000/s", "--max-in-flight", "3", "--each", "--", "sh", "-c", script];
    let ended = folder.run_with_input(&arguments, &numbers(20));
    assert_eq!((ended.status, &*ended.err), (Some(0), ""));
    assert_eq!(folder.read("log").lines().count(), 40);
    assert_eq!(most_at_once(&folder.read("log")), 3);
}

#[test]
fn lines_stay_whole_whatever_their_length() {
    let folder = Folder::new("lines");
    // Lines of 5000 and of 200,000 bytes on both outputs; the last has no end of its own.
    let script = "for n in 5000 200000 5000; do head -c $n /dev/zero | tr '\\0' {}; echo; done; \
        head -c 300000 /dev/zero | tr '\\0' {} >&2; head -c 70000 /dev/zero | tr '\\0' {}";
    let letters: Vec<u8> = (0..50_u8).flat_map(|number| [b'a' + number % 26, b'\n']).collect();
    let arguments = ["--limit", "1000/s", "--max-in-flight", "8", "--each", "--", "sh", "-c", script];
    let ended = folder.run_with_input(&arguments, &letters);
    assert_eq!(ended.status, Some(0));
    let lengths = |text: &str| {
        let mut lengths = std::collections::BTreeMap::new();
        for line in text.lines() {
            let first = line.chars().next().unwrap();
            assert!(line.chars().all(|letter| letter == first), "a line of {} bytes is mixed", line.len());
            *lengths.entry(line.len()).or_insert(0) += 1;
        }
        lengths
    };
    assert_eq!(
        lengths(&ended.out).into_iter().collect::<Vec<_>>(),
        [(5000, 100), (70000, 50), (200_000, 50)]
    );
    assert_eq!(lengths(&ended.err).into_iter().collect::<Vec<_>>(), [(300_000, 50)]);
}

#[test]
fn a_status_to_try_again_takes_another_turn() {
    let folder = Folder::new("retry");
    // Each fails once with 75; 2 fails always.
    let script = "echo {} >> runs; test {} = 2 && exit 75; test $(grep -c '^{}$' runs) -ge 2 || exit 75";
    let arguments = [
        "--budget",
        "a",
        "--limit",
        "100/hour",
        "--retry-on-exit",
        "75",
        "--retries",
        "3",
        "--each",
        "--",
        "sh",
        "-c",
        script,
    ];
    let ended = folder.run_with_input(&arguments, &numbers(3));
    assert_eq!(ended.status, Some(123));
    assert_eq!(ended.err, "tidegate run: 1 of 3 commands failed, first that of `2` with status 75\n");
    // 2 + 4 + 2 runs, all paid for.
    assert_eq!(folder.read("runs").lines().count(), 8);
    assert_eq!(folder.budget("a").peek(0).unwrap().remaining(), 92);
}

#[test]
fn a_turn_that_is_late_stops_the_run() {
    let folder = Folder::new("each-late");
    let arguments = ["--limit", "2/hour", "--max-wait", "1min", "--each", "--", "echo"];
    let ended = folder.run_with_input(&arguments, &numbers(9));
    assert_eq!((ended.status, &*ended.out), (Some(75), "1\n2\n"), "{}", ended.err);
    let (stopped, late) = ended.err.split_once('\n').unwrap();
    assert_eq!(stopped, "tidegate run: stopped, 7 not started");
    assert!(late.starts_with("tidegate run: no turn within 60s: it would have been a wait of "), "{late}");
}

#[test]
fn a_signal_stops_the_run_and_goes_to_those_that_run() {
    let folder = Folder::new("each-signal");
    let script = "trap 'echo got {}; exit 9' INT; echo {} >> up; while :; do sleep 0.01; done";
    let arguments = ["--limit", "1000/s", "--max-in-flight", "2", "--each", "--", "sh", "-c", script];
    let mut child = folder.tidegate(&arguments).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &numbers(10)).unwrap();
    folder.wait_for("up", |text| text.lines().count() == 2);
    signal(&child, Signal::INT);
    let ended = Ended::new(&child.wait_with_output().unwrap());
    let mut out: Vec<&str> = ended.out.lines().collect();
    out.sort_unstable();
    assert_eq!((ended.signal, out), (Some(2), vec!["got 1", "got 2"]), "{}", ended.err);
    assert!(ended.err.contains("2 of 2 commands failed"), "{}", ended.err);
    assert!(ended.err.ends_with("tidegate run: stopped, 8 not started\n"), "{}", ended.err);
}

#[test]
fn a_reader_that_goes_away_ends_the_run_well() {
    let folder = Folder::new("head");
    let mut shell = std::process::Command::new("sh");
    let script = r#"{ yes | "$0" run --limit 1000/s --each -- echo; echo $? > status; } | head -n 2"#;
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).current_dir(&folder.0);
    let ended = Ended::new(&shell.output().unwrap());
    assert_eq!((&*ended.out, &*ended.err), ("y\ny\n", ""));
    folder.wait_for("status", |text| text == "0\n");
}

#[test]
fn a_thousand_arguments_take_no_longer_than_to_start_them() {
    let folder = Folder::new("thousand");
    let input = numbers(1000);
    let started = Instant::now();
    let ended = folder.run_with_input(&["--limit", "100000/s", "--each", "--", "true"], &input);
    assert_eq!((ended.status, &*ended.err), (Some(0), ""));
    // 1 s on two cores; a millisecond of sleep for each would not be seen, and a tick of a loop of 100 ms would.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}
