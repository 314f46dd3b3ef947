//! Verbs as processes, and answers of servers.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take here; it is only waited for when something is wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn tidegate(args: &[&str]) -> Command {
    // What a shell starts in the background ignores this, and so would all of its children.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,HUP").arg(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn output(args: &[&str]) -> Output {
    tidegate(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running verb, which ends with the test.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
    warnings: Receiver<String>,
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(tidegate(args))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let warnings = lines_of(child.stderr.take().unwrap());
        Self { child, lines, warnings }
    }

    /// One whose lines are read elsewhere.
    pub(crate) fn of(child: Child) -> Self {
        let nothing = || mpsc::channel().1;
        Self { child, lines: nothing(), warnings: nothing() }
    }

    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// The next line on stderr.
    pub(crate) fn warning(&self) -> String {
        self.warnings.recv_timeout(PATIENCE).unwrap()
    }

    /// What else was said on stderr, when it has ended.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.iter().collect()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it did not end");
    }
}

/// The lines of a stream, as they come.
pub(crate) fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let stream = BufReader::new(stream);
    thread::spawn(move || stream.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Server {
    pub(crate) running: Running,
    pub(crate) address: String,
    pub(crate) settings: String,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let running = Running::start(&all);
        let first = running.line();
        let address =
            first.strip_prefix("listening on http://").unwrap_or_else(|| panic!("{first}")).to_owned();
        let settings = running.line();
        Self { running, address, settings }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn hammer(&self, args: &[&str]) -> Output {
        let url = self.url();
        let mut all = vec!["hammer", &url];
        all.extend(args);
        output(&all)
    }

    pub(crate) fn ask(&self, method: &str, headers: &str) -> Response {
        let mut stream = self.send(method, headers);
        read(&mut stream)
    }

    pub(crate) fn send(&self, method: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{method} /any/path HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")
            .unwrap();
        stream
    }
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub(crate) fn read(stream: &mut TcpStream) -> Response {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head: head.to_owned(), body: body.to_owned() }
}

/// What is answered at `address` to these bytes.
pub(crate) fn request(address: &str, text: &str) -> Response {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    read(&mut stream)
}

pub(crate) fn get(address: &str, path: &str) -> Response {
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))
}

/// A server with an admin address.
pub(crate) struct Watched {
    pub(crate) server: Server,
    pub(crate) admin: String,
}

impl Watched {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut all = vec!["--admin", "127.0.0.1:0"];
        all.extend(args);
        let server = Server::start(&all);
        let line = server.running.line();
        let admin = line.strip_prefix("admin on http://").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { server, admin }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        get(&self.admin, path)
    }

    pub(crate) fn post(&self, head: &str, body: &str) -> Response {
        self.request(&format!(
            "POST /api/simulate HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{head}content-length: {}\r\n\r\n{body}",
            self.admin,
            body.len()
        ))
    }

    pub(crate) fn request(&self, text: &str) -> Response {
        request(&self.admin, text)
    }

    pub(crate) fn state(&self) -> Value {
        let response = self.get("/api/state");
        assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
        serde_json::from_str(&response.body).unwrap()
    }

    pub(crate) fn metric(&self, sample: &str) -> u64 {
        let text = self.get("/metrics").body;
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {sample} in:\n{text}")).parse().unwrap()
    }

    /// Reads the state until so many requests wait for their turn.
    pub(crate) fn until_waiting(&self, count: u64) {
        self.until(|state| state["waiting"] == count);
    }

    /// Reads the state until it is as it should be.
    pub(crate) fn until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let state = self.state();
            if is_so(&state) {
                return state;
            }
            assert!(start.elapsed() < PATIENCE, "{state:#}");
        }
    }
}
