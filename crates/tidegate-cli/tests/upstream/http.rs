//! Over http.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::proxy::*;

#[test]
fn heads_lose_what_neighbours_said_and_gain_where_they_come_from() {
    let (address, heads) = answering(
        "HTTP/1.1 201 Made\r\nConnection: x-mine, close\r\nx-mine: 1\r\nkeep-alive: timeout=5\r\n\
         set-cookie: a=1\r\nset-cookie: b=2\r\nproxy-authenticate: basic\r\ncontent-length: 2\r\n\r\nok",
    );
    let proxy = Proxy::start(&format!("{address}/base/"), "100/s", &[]);
    let answer = proxy.ask(
        "GET //a/../b%2f?q=%41&& HTTP/1.1\r\nHost: www.example:8\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n\
         Keep-Alive: 5\r\nTE: trailers, gzip\r\nUpgrade: h2c\r\nProxy-Authorization: x\r\nAccept: */*\r\n\
         X-Forwarded-For: 1.2.3.4\r\n\r\n",
    );
    assert_eq!(
        lines(&answer),
        ["HTTP/1.1 201 Made", "connection: close", "content-length: 2", "set-cookie: a=1", "set-cookie: b=2"]
    );
    assert!(answer.contains("\r\nratelimit: \"all\";r="), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(
        lines(&heads.recv().unwrap()),
        [
            "GET /base//a/../b%2f?q=%41&& HTTP/1.1",
            "accept: */*",
            "connection: te",
            "host: www.example:8",
            "te: trailers",
            "via: 1.1 tidegate",
            "x-forwarded-for: 1.2.3.4, 127.0.0.1",
            "x-forwarded-host: www.example:8",
            "x-forwarded-proto: http",
        ]
    );
}

#[test]
fn bodies_stream_both_ways_at_one_time_and_trailers_follow() {
    let (address, requests) = service(|mut stream| {
        let mut request = read_head(&mut stream);
        request += &read_until(&mut stream, "5\r\nfirst\r\n");
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n3\r\none\r\n")
            .unwrap();
        request += &read_until(&mut stream, "\r\n\r\n");
        stream.write_all(b"3\r\ntwo\r\n0\r\nx-sum: 6\r\n\r\n").unwrap();
        request
    });
    let proxy = Proxy::start(&address, "100/s", &[]);
    // A method that has no body as a rule may have one.
    let mut stream = proxy.send(
        "GET /x HTTP/1.1\r\nhost: h\r\nte: trailers\r\nconnection: te\r\ntransfer-encoding: chunked\r\n\
         trailer: x-end\r\n\r\n5\r\nfirst\r\n",
    );
    let head = read_until(&mut stream, "3\r\none\r\n");
    assert!(head.contains("transfer-encoding: chunked\r\n") && !head.contains("content-length"), "{head}");
    // The answer has begun, and the request has not ended.
    stream.write_all(b"6\r\nsecond\r\n0\r\nx-end: 1\r\n\r\n").unwrap();
    assert_eq!(read_until(&mut stream, "\r\n\r\n"), "3\r\ntwo\r\n0\r\nx-sum: 6\r\n\r\n");
    let request = requests.recv().unwrap();
    assert!(request.contains("transfer-encoding: chunked\r\n"), "{request}");
    assert!(request.ends_with("first\r\n6\r\nsecond\r\n0\r\nx-end: 1\r\n\r\n"), "{request}");
}

#[test]
fn sixty_four_mebibytes_go_through_in_bounded_memory() {
    const LENGTH: usize = 64 << 20;
    let (address, _) = service(|mut stream| {
        let head = read_head(&mut stream);
        assert!(head.contains(&format!("content-length: {LENGTH}\r\n")), "{head}");
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n").unwrap();
        let mut reader = stream.try_clone().unwrap().take(LENGTH as u64);
        std::io::copy(&mut reader, &mut stream).unwrap();
    });
    let proxy = Proxy::start(&address, "100/s", &[]);
    let mut stream = proxy.send(&format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {LENGTH}\r\n\r\n"));
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        let block: Vec<u8> = (0..=255).cycle().take(1 << 16).collect();
        for _ in 0..LENGTH / block.len() {
            writer.write_all(&block).unwrap();
        }
    });
    let head = read_head(&mut stream);
    assert!(head.contains(&format!("content-length: {LENGTH}\r\n")), "{head}");
    // Nobody reads for a while: what does not fit the buffers has to wait outside of the proxy.
    thread::sleep(Duration::from_millis(300));
    let mut block = vec![0; 1 << 16];
    for _ in 0..LENGTH / block.len() {
        stream.read_exact(&mut block).unwrap();
        assert!(block.iter().zip((0..=255_u8).cycle()).all(|(found, sent)| *found == sent));
    }
    writing.join().unwrap();
    if cfg!(target_os = "linux") {
        let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert!(peak < 32 << 10, "{peak} KiB");
    }
}

#[test]
fn answers_without_a_body_keep_what_they_say_of_one() {
    for (method, answer, expected) in [
        ("HEAD", "200 OK\r\ncontent-length: 7\r\n", &["content-length: 7"][..]),
        ("HEAD", "200 OK\r\ntransfer-encoding: chunked\r\n", &[]),
        ("GET", "304 Not Modified\r\netag: x\r\n", &["etag: x"]),
        // hyper leaves the length out, which is allowed; that it were 0 would be wrong.
        ("GET", "304 Not Modified\r\ncontent-length: 7\r\n", &[]),
        ("GET", "204 No Content\r\n", &[]),
        ("GET", "200 OK\r\ncontent-length: 0\r\n", &["content-length: 0"]),
    ] {
        let answer: &'static str = Box::leak(format!("HTTP/1.1 {answer}\r\n").into_boxed_str());
        let (address, heads) = answering(answer);
        let proxy = Proxy::start(&address, "100/s", &[]);
        let got = proxy.ask(&format!("{method} / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"));
        let mut expected = expected.to_vec();
        expected.insert(0, "connection: close");
        assert_eq!(lines(&got)[1..], expected, "{answer}");
        assert!(got.ends_with("\r\n\r\n"), "{got}");
        let head = heads.recv().unwrap();
        assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
    }
}

#[test]
fn targets_of_other_forms() {
    let (address, heads) = answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let proxy = Proxy::start(&format!("{address}/base"), "100/s", &[]);
    for (request, expected) in [
        ("OPTIONS * HTTP/1.1\r\nhost: h", "OPTIONS * HTTP/1.1"),
        ("GET http://other/x HTTP/1.1\r\nhost: h", "GET /base/x HTTP/1.1"),
        ("GET /x HTTP/1.0", "GET /base/x HTTP/1.1"),
    ] {
        assert!(proxy.ask(&format!("{request}\r\nconnection: close\r\n\r\n")).contains(" 200 OK\r\n"));
        let head = heads.recv().unwrap();
        assert_eq!(lines(&head)[0], expected);
        assert_eq!(head.contains("\r\nhost: other\r\n"), request.contains("//other"), "{head}");
    }
    for (request, status) in [
        ("CONNECT a:1 HTTP/1.1\r\nhost: a:1", "501"),
        ("GET / HTTP/1.1", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b", "400"),
    ] {
        let answer = proxy.ask(&format!("{request}\r\nconnection: close\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[test]
fn a_client_that_expects_100_is_told_to_go_on_unless_it_is_rejected() {
    let (address, bodies) = service(|mut stream| {
        read_head(&mut stream);
        let body = read_until(&mut stream, "hello");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        body
    });
    let proxy = Proxy::start(&address, "1/hour", &[]);
    let head = "PUT / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    let mut stream = proxy.send(head);
    assert_eq!(read_head(&mut stream), "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").unwrap();
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 200 "));
    assert_eq!(bodies.recv().unwrap(), "hello");
    assert!(read_head(&mut proxy.send(head)).starts_with("HTTP/1.1 429 "));
}

#[test]
fn what_is_rejected_does_not_reach_the_service() {
    let (address, heads) = answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let proxy = Proxy::start(&address, "1/hour burst 2", &[]);
    let statuses: Vec<String> = (0..5).map(|_| proxy.get()[9..12].to_owned()).collect();
    assert_eq!(statuses, ["200", "200", "429", "429", "429"]);
    drop(proxy);
    // Without the proxy all connections have ended.
    for _ in 0..2 {
        heads.recv_timeout(PATIENCE).unwrap();
    }
    assert!(heads.recv_timeout(Duration::from_millis(300)).is_err());
}

/// An address where nobody listens.
fn nowhere() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_service_that_is_not_there_is_answered_502() {
    let proxy = Proxy::start(&nowhere(), "100/s", &[]);
    let answer = proxy.get();
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/problem+json\r\n"), "{answer}");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(
        body,
        "{\"type\":\"about:blank\",\"title\":\"Bad Gateway\",\"status\":502,\"detail\":\"the service behind this server \
         cannot be reached; the request was not sent to it\"}"
    );
    for _ in 0..20 {
        proxy.get();
    }
    let said = proxy.stderr();
    assert!(said.starts_with("warning: upstream http://127.0.0.1:"), "{said}");
    assert!(said.contains("; answered 502"), "{said}");
    assert!(said.lines().count() < 10, "{said}");
}

#[test]
fn what_did_not_reach_the_service_costs_nothing() {
    let address = nowhere();
    let proxy = Proxy::start(&address, "1/hour burst 4", &[]);
    let status = || proxy.get()[9..12].to_owned();
    for _ in 0..10 {
        assert_eq!(status(), "502");
    }
    // Three at one time, again and again: nobody is rejected for what others did not get. The refill of some
    // milliseconds can be missing, so there is room for one more.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(status(), "502")));
        }
    });
    // Now the service is there, and all that the limit allows is left, but for that.
    let listener = TcpListener::bind(&address).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            read_head(&mut stream);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).unwrap();
        }
    });
    let statuses: Vec<String> = (0..6).map(|_| status()).collect();
    assert_eq!(statuses[..3], ["200", "200", "200"]);
    assert_eq!(statuses[4..], ["429", "429"]);
}

#[test]
fn a_request_that_got_no_answer_is_sent_again_only_if_it_is_safe() {
    let (address, heads) = service(|mut stream| {
        let first = read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        // The connection is used for the next request, and closed when that was read.
        first + &read_head(&mut stream)
    });
    let proxy = Proxy::start(&address, "100/s", &[]);
    assert!(proxy.get().starts_with("HTTP/1.1 200 "));
    let answer = proxy.ask("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("it may have done what was asked"), "{answer}");
    assert_eq!(heads.recv_timeout(PATIENCE).unwrap().matches("HTTP/1.1").count(), 2);
    // The second of these is read on a connection that is then closed, and answered on another one.
    assert!(proxy.get().starts_with("HTTP/1.1 200 "));
    assert!(proxy.get().starts_with("HTTP/1.1 200 "));
    assert_eq!(heads.recv_timeout(PATIENCE).unwrap().matches("GET / HTTP/1.1").count(), 2);
}

#[test]
fn a_body_that_breaks_off_is_not_a_whole_one() {
    for (head, whole) in [("content-length: 10", "10 bytes"), ("transfer-encoding: chunked", "a last chunk")]
    {
        let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nabcde\r\n");
        let (address, _) = answering(Box::leak(answer[..answer.len() - 2].to_owned().into_boxed_str()));
        let proxy = Proxy::start(&address, "100/s", &[]);
        let mut bytes = Vec::new();
        // The connection is closed or reset in the middle.
        let _ = proxy.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n").read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let body = text.split_once("\r\n\r\n").map_or("", |parts| parts.1);
        assert!(body.len() < 10 || head.contains("chunked"), "not {whole}: {text}");
        assert!(!body.contains("0\r\n\r\n"), "not {whole}: {text}");
    }
}

#[test]
fn a_slow_service_is_answered_504_and_a_slow_client_408() {
    let (address, _) = service(|mut stream| {
        read_head(&mut stream);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let proxy = Proxy::start(&address, "100/s", &["--upstream-timeout", "300ms"]);
    let answer = proxy.get();
    assert!(answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{answer}");
    let mut stream = proxy.send("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nab");
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 408 "));
}

#[test]
fn an_upload_may_take_longer_than_the_answer_may() {
    let (address, _) = service(|mut stream| {
        read_head(&mut stream);
        read_until(&mut stream, "abcdefgh");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    let proxy = Proxy::start(&address, "100/s", &["--upstream-timeout", "1s"]);
    let mut stream = proxy.send("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 8\r\n\r\n");
    for byte in b"abcdefgh" {
        thread::sleep(Duration::from_millis(200));
        stream.write_all(&[*byte]).unwrap();
    }
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_client_that_goes_away_ends_its_request() {
    for answer in ["", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n"] {
        let (arrived, has_arrived) = mpsc::channel();
        let (address, ended) = service(move |mut stream| {
            read_head(&mut stream);
            arrived.send(()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            // Until the proxy closes the connection; a time that runs out is another error.
            match stream.read(&mut [0]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        });
        let proxy = Proxy::start(&address, "100/s", &[]);
        let mut stream = proxy.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        has_arrived.recv_timeout(PATIENCE).unwrap();
        if !answer.is_empty() {
            read_until(&mut stream, "abcde\r\n");
        }
        drop(stream);
        assert!(ended.recv_timeout(PATIENCE).unwrap(), "{answer:?}");
    }
}

#[test]
fn a_connection_that_is_upgraded_goes_through_both_ways() {
    let (address, heads) = service(|mut stream| {
        let head = read_head(&mut stream);
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                      sec-websocket-accept: x\r\n\r\nhello";
        stream.write_all(answer.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(line.to_uppercase().as_bytes()).unwrap();
        head
    });
    let proxy = Proxy::start(&address, "100/s", &[]);
    let mut stream = proxy.send(
        "GET /chat HTTP/1.1\r\nhost: h\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: y\r\n\r\n",
    );
    let head = read_until(&mut stream, "hello");
    let expected = ["connection: upgrade", "sec-websocket-accept: x", "upgrade: websocket"];
    assert_eq!(lines(&head)[1..], expected, "{head}");
    stream.write_all(b"shout\n").unwrap();
    assert_eq!(read_until(&mut stream, "\n"), "SHOUT\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let head = heads.recv().unwrap();
    assert!(head.contains("connection: upgrade\r\n") && head.contains("upgrade: websocket\r\n"), "{head}");
}
