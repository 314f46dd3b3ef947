//! A Redis or Valkey server of its own for each test, on a free port, killed when it is dropped.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Which program is started, if it is not `redis-server` of the path.
const PROGRAM: &str = "TIDEGATE_REDIS_SERVER";

/// A server that runs.
pub(crate) struct Server {
    process: Option<Child>,
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
    /// The program, if it is not the one that tests are told to use.
    program: Option<&'static str>,
    /// What is in the configuration file of a sentinel.
    sentinel: Option<String>,
}

impl Server {
    /// Starts one without persistence, with `options` as on its command line.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_as(options, None, None)
    }

    /// Starts the `redis-server` of the path, whatever the tests are told to use: for what few builds can do.
    pub(crate) fn start_of_the_path(options: &[&str]) -> Self {
        Self::start_as(options, Some("redis-server"), None)
    }

    /// Starts a sentinel, with `lines` as its configuration.
    pub(crate) fn start_sentinel(lines: &str) -> Self {
        Self::start_as(&[], None, Some(lines.to_owned()))
    }

    fn start_as(options: &[&str], program: Option<&'static str>, sentinel: Option<String>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = folder.join(format!("tidegate-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = Self { process: None, port: 0, folder, options, program, sentinel };
        // Another program can take the port between the look and the start.
        for _ in 0..5 {
            server.port = free_port();
            if server.spawn() {
                return server;
            }
        }
        panic!(
            "no server came up: {}",
            std::fs::read_to_string(server.folder.join("log")).unwrap_or_default()
        );
    }

    /// Starts the process; false if it ended at once.
    fn spawn(&mut self) -> bool {
        let program = self.program.map_or_else(
            || std::env::var(PROGRAM).unwrap_or_else(|_| "redis-server".to_owned()),
            str::to_owned,
        );
        let mut command = Command::new(&program);
        let (port, log) = (self.port.to_string(), self.folder.join("log"));
        if let Some(lines) = &self.sentinel {
            // A sentinel writes down what it learns.
            let file = self.folder.join("sentinel.conf");
            let settings = format!("port {port}\nbind 127.0.0.1\nlogfile {}\n{lines}\n", log.display());
            std::fs::write(&file, settings).unwrap();
            command.arg(&file).arg("--sentinel").current_dir(&self.folder);
        } else {
            command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(&self.folder);
            command.arg("--logfile").arg(&log).args(&self.options);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot start `{program}`: {error}; install redis-server (apt-get install redis-server), or name one in {PROGRAM}")
        });
        let child = self.process.insert(child);
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if answers(self.port) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("`{program}` does not answer on port {}", self.port)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// A connection of the test's own, to look at what is there.
    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts it again after [`Self::kill`], on the same port and with the same files.
    pub(crate) fn start_again(&mut self) {
        assert!(self.spawn(), "the server did not come back");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A port that was free a moment ago, as was the one 10,000 above it, on which nodes of a cluster speak to each other.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        if let Some(above) = port.checked_add(10_000)
            && TcpListener::bind((Ipv4Addr::LOCALHOST, above)).is_ok()
        {
            return port;
        }
    }
}

/// Whether the server is ready for commands: an error about rights is an answer, one about loading is not.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut reply = [0; 64];
    stream.write_all(b"PING\r\n").is_ok()
        && stream.read(&mut reply).is_ok_and(|length| {
            reply[..length].starts_with(b"+PONG") || reply[..length].starts_with(b"-NOAUTH")
        })
}
