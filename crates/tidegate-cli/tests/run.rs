//! `tidegate run` as a process, with real commands: their ends, their turns, their output, and signals.
//!
//! What is timed is timed by the commands, and only a bound is checked that no load of the machine can break: a turn
//! never comes early.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "run/each.rs"]
mod each;
#[path = "run/single.rs"]
mod single;

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

/// A folder of a test, and what runs in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// `tidegate run` with `arguments`; budgets are in the folder.
    fn tidegate(&self, arguments: &[&str]) -> Command {
        // What a shell starts in the background ignores these, and so would all of its children.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT,HUP").arg(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("run").args(arguments).current_dir(&self.0).env("XDG_STATE_HOME", &self.0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        Ended::new(&self.tidegate(arguments).output().unwrap())
    }

    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let mut child = self.tidegate(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // Who stops early does not read all of it.
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let ended = Ended::new(&child.wait_with_output().unwrap());
        let _ = writer.join().unwrap();
        ended
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// Waits until a command has written this to a file.
    fn wait_for(&self, file: &str, done: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !done(&self.read(file)) {
            assert!(started.elapsed() < Duration::from_secs(60), "{file}: {:?}", self.read(file));
            std::thread::yield_now();
        }
    }

    fn budget(&self, name: &str) -> tidegate::Budget {
        tidegate::Budget::open_existing(self.0.join(format!("tidegate/{name}.budget"))).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
struct Ended {
    status: Option<i32>,
    signal: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn new(output: &Output) -> Self {
        Self {
            status: output.status.code(),
            signal: output.status.signal(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
}

/// Now, in the nanoseconds of `date +%s%N`.
fn now_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// That a limit of `burst` and one turn every `every_ns` was kept by commands that wrote their time, when it was full at
/// `since_ns` at the earliest. A command writes its time after its turn, so whatever is late makes this no less true.
fn assert_kept(times: &str, since_ns: u64, burst: u64, every_ns: u64) {
    let mut times: Vec<u64> = times.lines().map(|line| line.parse().unwrap()).collect();
    times.sort_unstable();
    for (number, time) in (1_u64..).zip(&times) {
        let earliest = since_ns + number.saturating_sub(burst) * every_ns;
        assert!(*time >= earliest, "start {number} came {} ns early: {times:?}", earliest - time);
    }
}

/// The most commands at one time, from the lines that they wrote when they began (`+`) and before they ended (`-`).
fn most_at_once(log: &str) -> usize {
    let (mut running, mut most) = (0, 0);
    for line in log.lines() {
        match line {
            "+" => running += 1,
            _ => running -= 1,
        }
        most = most.max(running);
    }
    most
}

#[test]
fn wrong_use_is_one_line_that_says_what_to_do() {
    let folder = Folder::new("wrong");
    assert_eq!(folder.run(&["--budget", "there", "--limit", "2/s", "--", "true"]).status, Some(0));
    for (arguments, error) in [
        ("--limit 2/s -- true", "one command that shares with nobody never has to wait"),
        ("--each -- true", "no limit is given"),
        ("--budget a -- true", "there is no budget `"),
        ("--budget there --limit 3/s -- true", "the budget `"),
        ("--budget there --burst 3 -- true", "no rate is given"),
        ("--budget there --cost 3 -- true", "--cost 3 exceeds the burst of `2/s`"),
        ("--budget there --limit 2/s --window 1s -- true", "--limit says its time already"),
        ("--budget . --limit 2/s -- true", "`.` is no name for a budget"),
        ("--budget no/where --limit 2/s -- true", "cannot "),
        ("--budget there", "the following required arguments were not provided:"),
        ("--budget there true", "unexpected argument 'true' found"),
        ("--budget there --cost 0 -- true", "invalid value '0' for '--cost <N>'"),
        ("--budget there --max-in-flight 0 -- true", "invalid value '0' for '--max-in-flight <N>'"),
        ("--budget there --max-in-flight 2000 -- true", "invalid value '2000' for '--max-in-flight <N>'"),
        (
            "--budget there --max-wait 5 -- true",
            "invalid value '5' for '--max-wait <TIME>': a time needs a unit",
        ),
        ("--budget there --retry-on-exit 0 -- true", "invalid value '0' for '--retry-on-exit <STATUS>'"),
        ("--budget there --retry-on-exit 256 -- true", "invalid value '256' for '--retry-on-exit <STATUS>'"),
        ("--budget there --retries 2 -- true", "the following required arguments were not provided:"),
        ("--budget there -0 -- true", "the following required arguments were not provided:"),
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let ended = folder.run(&words);
        assert_eq!((ended.status, &*ended.out), (Some(2), ""), "{arguments}: {}", ended.err);
        assert!(ended.err.starts_with(&format!("error: {error}")), "{arguments}: {}", ended.err);
    }
}

#[test]
fn a_budget_that_has_other_numbers_says_what_can_be_done_at_a_prompt() {
    let folder = Folder::new("other");
    let made = ["--budget", "./a", "--limit", "2/s", "--max-in-flight", "4", "--", "true"];
    assert_eq!(folder.run(&made).status, Some(0));
    for (flags, error, hint) in [
        (
            "--budget ./a --limit 3/s",
            "/a` has the limit `2/s` and not `3/s`",
            "leave --limit out, since the budget keeps its own, or name another budget; to change this one, delete the file when nobody uses it",
        ),
        (
            "--budget ./a --max-in-flight 3",
            "/a` has 4 places in flight and not 3",
            "write --max-in-flight 4, or name another budget; to change this one, delete the file when nobody uses it",
        ),
        (
            "--budget no/where --limit 2/s",
            "/no/where`: No such file or directory (os error 2)",
            "make the folder that it is to be in, or write a name without a `/`",
        ),
    ] {
        let words: Vec<&str> = flags.split(' ').chain(["--", "true"]).collect();
        let ended = folder.run(&words);
        let (first, second) = ended.err.split_once('\n').unwrap();
        assert!(ended.status == Some(2) && first.ends_with(error), "{flags}: {}", ended.err);
        assert_eq!(second, format!("hint: {hint}\n"), "{flags}");
    }
}
