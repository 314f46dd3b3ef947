//! A proxy as a process, and services that it can be before.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// How long anything may take here; it is only waited for when something is wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running proxy, which ends with the test.
pub(crate) struct Proxy {
    pub(crate) child: Child,
    file: PathBuf,
    address: String,
}

impl Proxy {
    /// A proxy to `upstream` (an address, maybe with a path) with one limit for everybody.
    pub(crate) fn start(upstream: &str, quota: &str, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--upstream", &format!("http://{upstream}")])
            .args(args);
        Self::run(command, quota)
    }

    /// A proxy to `upstream` (an address with a name, maybe with a path) in TLS, which trusts the authorities of a file.
    pub(crate) fn start_tls(upstream: &str, quota: &str, authorities: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &format!("https://{upstream}")]);
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR");
        Self::run(command, quota)
    }

    fn run(mut command: Command, quota: &str) -> Self {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let file =
            std::env::temp_dir().join(format!("tidegate-upstream-{}-{number}.toml", std::process::id()));
        std::fs::write(&file, format!("[[limit]]\nname = \"all\"\nquota = \"{quota}\"\n")).unwrap();
        command.arg("--limits").arg(&file);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
        Self { child, file, address }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub(crate) fn send(&self, text: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// The whole answer to a request, which asks for the connection to be closed.
    pub(crate) fn ask(&self, text: &str) -> String {
        let mut answer = String::new();
        self.send(text).read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn get(&self) -> String {
        self.ask("GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
    }

    /// What it has said on stderr until it is ended here.
    pub(crate) fn stderr(mut self) -> String {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// A service whose connections are handled by `handle`, each in a thread of its own. What it returns is received.
pub(crate) fn service<T: Send + 'static>(
    handle: impl Fn(TcpStream) -> T + Clone + Send + 'static,
) -> (String, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let (handle, sender) = (handle.clone(), sender.clone());
            thread::spawn(move || sender.send(handle(stream)));
        }
    });
    (address, received)
}

/// Reads up to the end of `until`.
pub(crate) fn read_until(stream: &mut impl Read, until: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(until.as_bytes()) {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            panic!("it ended: {}", String::from_utf8_lossy(&text));
        }
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

pub(crate) fn read_head(stream: &mut impl Read) -> String {
    read_until(stream, "\r\n\r\n")
}

/// A service that answers each request, which has no body, with `answer`, and tells the heads that it got.
pub(crate) fn answering(answer: &'static str) -> (String, Receiver<String>) {
    service(move |mut stream| {
        let head = read_head(&mut stream);
        stream.write_all(answer.as_bytes()).unwrap();
        // Until the proxy closes the connection, or has no use for it any more.
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0]);
        head
    })
}

/// The lines of a head, in order of the alphabet but for the first, without the fields that change with time.
pub(crate) fn lines(head: &str) -> Vec<&str> {
    let head = head.split("\r\n\r\n").next().unwrap();
    let mut lines: Vec<&str> = head
        .split("\r\n")
        .filter(|line| !line.starts_with("date: ") && !line.starts_with("ratelimit"))
        .collect();
    lines[1..].sort_unstable();
    lines
}
