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
}

impl Server {
    /// Starts one without persistence, with `options` as on its command line.
    pub(crate) fn start(options: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = folder.join(format!("tidegate-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = Self { process: None, port: 0, folder, options };
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
        let program = std::env::var(PROGRAM).unwrap_or_else(|_| "redis-server".to_owned());
        let child = Command::new(&program)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(&self.folder)
            .arg("--logfile")
            .arg(self.folder.join("log"))
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
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

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
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
