//! A client of `tidegate mcp`, and a server for it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take here; it is only waited for when something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// The example that is a server, beside this test's own binary.
pub(crate) fn server() -> String {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/mcp_tools");
    assert!(path.exists(), "{}; build it with `cargo build -p tidegate-cli --examples`", path.display());
    path.display().to_string()
}

/// A file for a test to write, which is not there.
pub(crate) fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mcp-{name}"));
    let _ = std::fs::remove_file(&path);
    path
}

pub(crate) fn call(id: impl Into<Value>, tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

pub(crate) fn request(id: &str, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}})
}

/// How a proxy ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// The answers that nobody had asked for before.
    pub(crate) rest: Vec<Value>,
    pub(crate) stderr: String,
}

pub(crate) struct Client {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<Value>,
    stderr: JoinHandle<String>,
}

impl Client {
    /// `tidegate mcp FLAGS -- SERVER`
    pub(crate) fn start(flags: &[&str], server: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("mcp").args(flags).arg("--").args(server);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, answers) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in stdout.lines() {
                let _ = sender.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { stdin: child.stdin.take(), child, answers, stderr }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        self.stdin.as_mut().unwrap().write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    pub(crate) fn hear(&self) -> Value {
        self.answers.recv_timeout(PATIENCE).unwrap()
    }

    /// Sends a message and takes the next answer, which must be the one to it.
    pub(crate) fn ask(&mut self, message: &Value) -> Value {
        self.say(message);
        let answer = self.hear();
        assert_eq!(answer["id"], message["id"], "{answer}");
        answer
    }

    /// Says no more, and waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.stdin.take());
        self.ended()
    }

    pub(crate) fn ended(mut self) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(5));
        };
        let rest = self.answers.iter().collect();
        Ended { code: status.code().unwrap_or(-1), rest, stderr: self.stderr.join().unwrap() }
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

/// What comes out when `bytes` go in, and the exit code and stderr.
pub(crate) fn through(program: &str, args: &[&str], bytes: Vec<u8>) -> (Vec<u8>, i32, String) {
    let mut command = Command::new(program);
    let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Whoever does not take all of it has its reasons, which the test looks at.
    let writer = thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    (output.stdout, output.status.code().unwrap_or(-1), String::from_utf8(output.stderr).unwrap())
}
