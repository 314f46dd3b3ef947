//! Rough treatment: clients that are many, slow, broken or hostile. The server stays small, and answers the others.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::limits::File;
use super::process::*;

/// The memory of a process that is in use, in KiB.
fn memory_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.running.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The status of an answer to these bytes; `None` if the connection was closed without one. `then_nothing` says that no more
/// will come.
fn status_of(server: &Server, bytes: &[u8], then_nothing: bool) -> Option<u16> {
    let mut stream = connect(server);
    // The server may have had enough before it has read all.
    let _ = stream.write_all(bytes);
    if then_nothing {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line.split(' ').nth(1)?.parse().ok()
}

/// That it still answers, and ends as it should, without a word on stderr.
fn is_well(mut server: Server) {
    assert_eq!(server.ask("GET", "").status, 200);
    server.running.signal("-TERM");
    assert_eq!(server.running.exit_code(), Some(0));
    assert_eq!(server.running.warnings(), Vec::<String>::new());
}

#[test]
fn idle_and_slow_connections_by_the_thousand_hold_up_nobody() {
    let server = Server::start(&["--limiter", "none"]);
    let before = memory_kib(&server);
    let mut connections: Vec<TcpStream> = (0..2000).map(|_| connect(&server)).collect();
    // Half of them begin a request, and say one byte of it now and then.
    for byte in b"GET / HT" {
        for stream in connections.iter_mut().step_by(2) {
            stream.write_all(&[*byte]).unwrap();
        }
        let asked = Instant::now();
        assert_eq!(server.ask("GET", "").status, 200);
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
    let grown = memory_kib(&server) - before;
    // A connection has 17 KiB without optimisation.
    assert!(grown < 2000 * 24, "{grown} KiB for 2000 connections");
    // A quarter goes away in the middle; the others finish, and are answered.
    for stream in connections.drain(..1000) {
        drop(stream);
    }
    for stream in connections.iter_mut().step_by(2) {
        stream.write_all(b"TP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    }
    is_well(server);
}

#[test]
fn what_is_no_request_is_refused_and_harms_nobody() {
    let server = Server::start(&["--quota", "1000000/s", "--key", "header:x-key"]);
    let head =
        |fields: &[u8]| [b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n", fields, b"\r\n"].concat();
    let long = |length: usize| [b"x-key: ".as_slice(), &vec![b'a'; length], b"\r\n"].concat();
    let many: Vec<u8> = (0..300).flat_map(|index| format!("x-{index}: 1\r\n").into_bytes()).collect();
    for (name, bytes, expected) in [
        ("bytes that are no UTF-8", head(b"x-key: \xff\xfe\xc3\x28\r\n"), Some(200)),
        ("an empty value", head(b"x-key:\r\n"), Some(200)),
        ("a byte 0 in a value", head(b"x-key: a\x00b\r\n"), Some(400)),
        ("a name that is none", head(b"x key: a\r\n"), Some(400)),
        ("a name of bytes", head(b"\xff\xfe: a\r\n"), Some(400)),
        ("64 KiB in a value", head(&long(65_536)), Some(431)),
        ("300 fields", head(&many), Some(431)),
        ("two lengths", head(b"content-length: 1\r\ncontent-length: 2\r\n"), Some(400)),
        ("a length that is none", head(b"content-length: -1\r\n"), Some(400)),
        ("a version that is none", b"GET / HTTP/9.9\r\n\r\n".to_vec(), Some(400)),
        ("no request", b"\r\n\r\n\r\n".to_vec(), None),
        ("a method that is none", b"G\x01T / HTTP/1.1\r\n\r\n".to_vec(), Some(400)),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), Some(400)),
        ("half a request", b"GET / HTTP/1.1\r\nhost".to_vec(), None),
        ("nothing", Vec::new(), None),
    ] {
        let status = status_of(&server, &bytes, expected.is_none());
        // What was not read may reset the connection before the answer is read.
        assert!(status == expected || (status.is_none() && bytes.len() > 32_000), "{name}: {status:?}");
    }
    // Bytes of a generator of its own (xorshift64), so that they are the same each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for length in (1..400).step_by(3) {
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .take(length)
        .collect();
        let _ = status_of(&server, &noise, true);
    }
    is_well(server);
}

#[test]
fn a_hundred_thousand_clients_take_no_more_memory_than_a_few() {
    let args = ["--quota", "1/hour burst 3", "--keys", "10000", "--trusted-proxies", "127.0.0.1"];
    let server = Server::start(&args);
    let ask = |clients: std::ops::Range<u32>| {
        let stream = connect(&server);
        let mut writer = stream.try_clone().unwrap();
        let count = clients.len();
        let writing = thread::spawn(move || {
            let requests = clients.map(|client| {
                let [_, b, c, d] = client.to_be_bytes();
                format!("GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 11.{b}.{c}.{d}\r\n\r\n")
            });
            let requests: Vec<String> = requests.collect();
            requests.chunks(100).try_for_each(|chunk| writer.write_all(chunk.concat().as_bytes())).unwrap();
        });
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let statuses = lines.filter(|line| line.starts_with("HTTP/1.1 ")).take(count);
        let allowed = statuses.filter(|line| line.contains(" 200 ")).count();
        writing.join().unwrap();
        (allowed, count)
    };
    assert_eq!(ask(0..10_000), (10_000, 10_000));
    let few = memory_kib(&server);
    // Each of them once: no stranger is rejected, though there is room for a tenth of them.
    assert_eq!(ask(10_000..110_000), (100_000, 100_000));
    let many = memory_kib(&server);
    assert!(many < few + 1024, "from {few} to {many} KiB");
    // Whoever comes too often is rejected also then.
    let held = (0..10)
        .map(|_| server.ask("GET", "x-forwarded-for: 192.0.2.1\r\n").status)
        .filter(|&status| status == 200);
    assert_eq!(held.count(), 3);
    is_well(server);
}

/// Whoever starts a server may read its first line and no other.
#[test]
fn what_is_said_and_not_read_holds_up_nothing() {
    // Forty lines of it are more than a pipe has room for.
    let limit = |n: usize| format!("[[limit]]\nname = \"{n}-{}\"\nquota = \"1/s\"\n", "long".repeat(15));
    let file = File::new("not-read", &(0..50).map(limit).collect::<String>());
    for is_closed in [false, true] {
        let args =
            ["serve", "--listen", "127.0.0.1:0", "--limits", file.path(), "--keys", "64", "--log", "text"];
        let mut child = tidegate(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = Some(BufReader::with_capacity(64, child.stdout.take().unwrap()));
        let mut first = String::new();
        stdout.as_mut().unwrap().read_line(&mut first).unwrap();
        assert!(first.starts_with("listening on "), "{first}");
        if is_closed {
            stdout = None;
        }
        let told = lines_of(child.stderr.take().unwrap());
        let until = |what: &str| while !told.recv_timeout(PATIENCE).unwrap().contains(what) {};
        let mut running = Running::of(child);
        until("started");
        for _ in 0..40 {
            running.signal("-HUP");
            until("reloaded");
        }
        running.signal("-TERM");
        assert_eq!(running.exit_code(), Some(0), "closed: {is_closed}");
        drop(stdout);
    }
}

#[test]
fn a_server_that_is_ended_says_how_many_connections_were_left() {
    let mut server = Server::start(&["--limit", "10/s"]);
    let mut slow = connect(&server);
    slow.write_all(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{").unwrap();
    // Connections are taken in their order.
    assert_eq!(server.ask("GET", "").status, 200);
    server.running.signal("-TERM");
    let start = Instant::now();
    while TcpStream::connect(&server.address).is_ok() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    server.running.signal("-TERM");
    assert_eq!(server.running.exit_code(), Some(0));
    let warning = "warning: cut off by a second signal: 1 HTTP connection";
    assert_eq!(server.running.warnings(), [warning]);
}
