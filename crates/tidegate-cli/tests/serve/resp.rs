//! `serve --resp`, asked by `redis-cli` and by sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use super::process::{PATIENCE, Server, output, stderr, stdout};

/// A server that speaks RESP too: where it does, and what it says of its table.
struct RespServer {
    server: Server,
    address: String,
    settings: String,
}

impl RespServer {
    fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", args)
    }

    fn start_at(address: &str, args: &[&str]) -> Self {
        let mut all = vec!["--resp", address];
        all.extend(args);
        let server = Server::start(&all);
        let line = server.running.line();
        let address = line.strip_prefix("resp on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        let settings = server.running.line();
        Self { server, address, settings }
    }

    /// What `redis-cli` prints.
    fn cli(&self, args: &[&str]) -> String {
        let port = self.address.rsplit(':').next().unwrap();
        let output = Command::new("redis-cli").args(["-p", port]).args(args).output();
        let output =
            output.unwrap_or_else(|error| panic!("redis-cli, which comes with redis-server: {error}"));
        assert_eq!(stderr(&output), "");
        stdout(&output)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// A file with a password, of one test.
struct PasswordFile(PathBuf);

impl PasswordFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-password-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn redis_cli_is_answered_in_both_versions_of_the_protocol() {
    let server = RespServer::start(&["--resp-keys", "1000"]);
    assert_eq!(server.settings, "cl.throttle, 1000 keys in 64 KiB, no password");
    for version in ["-2", "-3"] {
        let call = [version, "CL.THROTTLE", version, "15", "30", "60"];
        assert_eq!(server.cli(&call), "0\n16\n15\n-1\n2\n");
        assert!(server.cli(&call).starts_with("0\n16\n14\n-1\n"));
        assert_eq!(server.cli(&[version, "CL.THROTTLE", version, "-1", "30", "60"]), "1\n0\n0\n-1\n0\n");
        let wrong = server.cli(&[version, "CL.THROTTLE", version, "15", "0", "60"]);
        assert!(wrong.starts_with("ERR count per period is below 1; "), "{wrong}");
        assert_eq!(server.cli(&[version, "PING"]), "PONG\n");
    }
    // As many at once as fit into a pipeline, and others on other connections.
    let bulk = server.cli(&["-r", "500", "CL.THROTTLE", "many", "99", "1", "3600"]);
    assert_eq!(bulk.split("\n").filter(|line| *line == "100").count(), 500);
    assert_eq!(server.cli(&["CL.THROTTLE", "many", "99", "1", "3600", "0"]).lines().nth(2), Some("0"));
}

#[test]
fn the_http_side_has_its_own_limit() {
    let server = RespServer::start(&["--limit", "1", "--window", "1h"]);
    assert_eq!(server.server.ask("GET", "").status, 200);
    assert_eq!(server.server.ask("GET", "").status, 429);
    assert!(server.cli(&["CL.THROTTLE", "127.0.0.1", "15", "30", "60"]).starts_with("0\n16\n15\n"));
}

#[test]
fn a_password_is_read_from_the_first_line_of_a_file() {
    let file = PasswordFile::new("good", "high water\r\nnot this\n");
    let server = RespServer::start(&["--resp-password-file", file.path()]);
    assert_eq!(server.settings, "cl.throttle, 65536 keys in 4160 KiB, with a password");
    let mut stream = server.connect();
    stream.write_all(b"PING\r\n*2\r\n$4\r\nAUTH\r\n$10\r\nhigh water\r\nPING\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "-NOAUTH Authentication required.\r\n+OK\r\n+PONG\r\n+OK\r\n");
}

#[test]
fn a_server_told_to_stop_answers_redis_clients_and_says_what_it_did() {
    let mut server = RespServer::start(&[]);
    let mut stream = server.connect();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    // An idle client does not hold it up, and what came before the signal is answered.
    let idle = server.connect();
    stream.write_all("CL.THROTTLE k 1 1 3600\r\n".repeat(3).as_bytes()).unwrap();
    server.server.running.signal("-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let answers = ["*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:3600\r\n", "*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:7200\r\n"];
    assert!(rest.starts_with(&answers.concat()), "{rest}");
    assert_eq!(server.server.running.exit_code(), Some(0));
    assert_eq!(server.server.running.line(), "stopped: 0 requests, 0 allowed, 0 rejected");
    assert_eq!(server.server.running.line(), "stopped: 4 commands, 2 allowed, 1 rejected");
    assert!(TcpStream::connect(&server.address).is_err());
    drop(idle);
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    let empty = PasswordFile::new("empty", "\nlater\n");
    let taken = RespServer::start(&[]);
    for (args, expected) in [
        (
            &["--resp", "127.0.0.1"][..],
            "error: invalid value '127.0.0.1' for '--resp <ADDRESS>': not an address with a port; \
             write for example 127.0.0.1:8080 or [::1]:8080\n"
                .to_owned(),
        ),
        (
            &["--resp", &taken.address],
            format!(
                "error: cannot listen on {}: the port is in use\n\
                 hint: stop the other program, or give --resp another port; port 0 takes a free one\n",
                taken.address
            ),
        ),
        (
            &["--resp", "127.0.0.1:0", "--resp-password-file", empty.path()],
            format!(
                "error: there is no password in {}\n\
                 hint: write the password on its first line, and let only the user of this server read it\n",
                empty.path()
            ),
        ),
        (
            &["--resp", "127.0.0.1:0", "--resp-password-file", "/nowhere/password"],
            "error: cannot read /nowhere/password: No such file or directory (os error 2)\n\
             hint: write the password on its first line, and let only the user of this server read it\n"
                .to_owned(),
        ),
    ] {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let output = output(&all);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{args:?}");
        let said = stderr(&output);
        assert!(said.starts_with(&expected), "{said}");
    }
}

#[test]
fn who_lets_other_machines_in_is_warned() {
    let server = RespServer::start_at("0.0.0.0:0", &[]);
    let warning = server.server.running.warning();
    assert!(
        warning.contains("lets other machines in, without a password; use --resp 127.0.0.1:"),
        "{warning}"
    );
}

#[test]
fn a_limit_of_the_server_is_one_for_redis_clients_and_for_http() {
    let server = RespServer::start(&["--limit", "1/h", "--burst", "3", "--key", "header:x-account"]);
    assert_eq!(server.cli(&["TG.CHECK", "token-bucket", "ann", "2"]), "0\n3\n1\n-1\n7200\n");
    let ask = || server.server.ask("GET", "x-account: ann\r\n").status;
    assert_eq!([ask(), ask()], [200, 429]);
    let rejected = server.cli(&["TG.CHECK", "token-bucket", "ann"]);
    assert!(rejected.starts_with("1\n3\n0\n36") || rejected.starts_with("1\n3\n0\n35"), "{rejected}");
    let wrong = server.cli(&["TG.CHECK", "token-bucket", ""]);
    assert_eq!(wrong.trim(), "ERR the limit `token-bucket` has a key (header:x-account); write it as `key`");
}
