//! Over https, to services whose certificates an authority of the test has signed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, SanType, date_time_ymd};
use rustls::version::{TLS12, TLS13};

use super::authority::{Authority, Stream, tls_service};
use super::proxy::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Answers one request, and tells what came.
fn answer(mut stream: Stream) -> String {
    let head = read_head(&mut stream);
    stream.write_all(ANSWER).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    head
}

#[test]
fn a_service_is_asked_in_tls_1_2_or_1_3_and_by_its_own_name() {
    let authority = Authority::new("both-versions");
    for version in [&TLS12, &TLS13] {
        let mut config = authority.service_of(&[version], |_| {});
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (address, requests) = tls_service(config, |mut stream| {
            let head = read_head(&mut stream);
            stream.write_all(ANSWER).unwrap();
            let tls = &stream.conn;
            (
                head,
                tls.protocol_version(),
                tls.server_name().map(str::to_owned),
                tls.alpn_protocol().map(<[u8]>::to_vec),
            )
        });
        let proxy = Proxy::start_tls(&format!("{address}/base"), "100/s", authority.file());
        let got = proxy.ask("GET /x?y HTTP/1.1\r\nhost: www.example:8\r\nconnection: close\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\nok"), "{got}");
        let (head, spoken, name, protocol) = requests.recv_timeout(PATIENCE).unwrap();
        assert_eq!(spoken, Some(version.version));
        assert_eq!((name.as_deref(), protocol.as_deref()), (Some("localhost"), Some(&b"http/1.1"[..])));
        assert_eq!(
            lines(&head),
            [
                "GET /base/x?y HTTP/1.1",
                &format!("host: {address}"),
                "via: 1.1 tidegate",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-host: www.example:8",
                "x-forwarded-proto: http",
            ]
        );
    }
}

#[test]
fn an_address_of_numbers_is_one_of_its_certificate() {
    let authority = Authority::new("numbers");
    let config = authority.service(|params| {
        params.subject_alt_names = vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())];
    });
    let (address, _) = tls_service(config, answer);
    let proxy = Proxy::start_tls(&address.replace("localhost", "127.0.0.1"), "100/s", authority.file());
    assert!(proxy.get().starts_with("HTTP/1.1 200 "));
}

/// The answers to two requests, of which the limit would allow one, and what is said on stderr.
fn refused(address: &str, authorities: &Path) -> (String, String) {
    let proxy = Proxy::start_tls(address, "1/hour", authorities);
    let first = proxy.get();
    assert!(first.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{first}");
    assert!(first.contains("content-type: application/problem+json\r\n"), "{first}");
    assert!(proxy.get().starts_with("HTTP/1.1 502 "), "what was not sent costs nothing");
    let warning = proxy.stderr().lines().next().unwrap().to_owned();
    let cause = warning.strip_prefix(&format!("warning: upstream https://{address}: "));
    (first, cause.unwrap_or_else(|| panic!("{warning}")).to_owned())
}

#[test]
fn a_certificate_that_is_not_trusted_is_answered_502_and_nothing_is_sent() {
    let (known, unknown) = (Authority::new("known"), Authority::new("unknown"));
    let expired = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 2);
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 2);
    let other = |params: &mut CertificateParams| {
        let name = SanType::DnsName("other.example".try_into().unwrap());
        params.subject_alt_names = vec![name, SanType::IpAddress(Ipv4Addr::new(192, 0, 2, 1).into())];
    };
    for (config, expected) in [
        (
            unknown.service(|_| {}),
            "its certificate is signed by no authority that this machine trusts; add the authority's certificate to those \
             of the system, or name a PEM file with it in SSL_CERT_FILE; answered 502",
        ),
        (
            known.service(other),
            "its certificate is for other.example, 192.0.2.1, not for localhost; write a name of its certificate in \
             --upstream, or have it made for this one; answered 502",
        ),
        (
            known.service(expired),
            "its certificate was valid until 2020-01-02T00:00:00Z; have it renewed, or set the clock of this machine; \
             answered 502",
        ),
        (
            known.service(early),
            "its certificate is valid from 4000-01-02T00:00:00Z on; have it renewed, or set the clock of this machine; \
             answered 502",
        ),
        (
            known.as_service(),
            "its certificate is that of an authority, as openssl req -x509 makes it, and not of a server; have one made \
             with the extension basicConstraints=CA:FALSE; answered 502",
        ),
    ] {
        let (address, received) = tls_service(config, |mut stream| stream.read(&mut [0]).ok());
        let (answer, cause) = refused(&address, known.file());
        assert_eq!(cause, expected);
        assert!(
            answer.ends_with(
                "\"detail\":\"the service behind this server has no certificate that is trusted here; the request was not \
                 sent to it\"}"
            ),
            "{answer}"
        );
        assert_eq!(received.recv_timeout(PATIENCE).unwrap(), None);
    }
}

#[test]
fn a_handshake_that_fails_is_answered_502_and_nothing_is_sent() {
    let authority = Authority::new("failing");
    let no_tls = "write http:// in --upstream if it speaks no TLS at that port; answered 502";
    let (plain, _) = service(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let (closing, _) = service(|mut stream| {
        let _ = stream.read(&mut [0; 1 << 14]);
    });
    let mut config = authority.service(|_| {});
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (only_h2, _) = tls_service(config, |mut stream| stream.read(&mut [0]).is_ok());
    for (address, expected) in [
        (plain, format!("what it answers is not TLS; {no_tls}")),
        (closing, format!("it closed the connection in the TLS handshake; {no_tls}")),
        (only_h2, "it speaks no HTTP/1.1; put a proxy before it that does; answered 502".to_owned()),
    ] {
        let (answer, cause) = refused(&address, authority.file());
        assert_eq!(cause, expected);
        assert!(
            answer.contains("\"no TLS could be agreed on with the service behind this server; "),
            "{answer}"
        );
    }
}

#[test]
fn a_service_that_never_shakes_hands_is_answered_504_when_the_time_to_connect_is_over() {
    let authority = Authority::new("silent");
    let (address, _) = service(|mut stream| stream.read_to_end(&mut Vec::new()).is_ok());
    let proxy = Proxy::start_tls(&address, "100/s", authority.file());
    let start = Instant::now();
    let answer = proxy.get();
    assert!(answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{answer}");
    assert!(
        answer.contains("did not take the connection in time; the request was not sent to it"),
        "{answer}"
    );
    // The time to connect is 5 s, that to answer 30 s.
    assert!(start.elapsed() >= Duration::from_secs(5) && start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    let said = proxy.stderr();
    assert!(said.ends_with(": no TLS connection in 5 s; answered 504\n"), "{said}");
}

#[test]
fn without_authorities_the_server_does_not_start() {
    let folder = std::env::temp_dir().join(format!("tidegate-authorities-{}", std::process::id()));
    let (empty, good) = (folder.join("empty"), folder.join("good"));
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::create_dir_all(&good).unwrap();
    std::fs::copy(Authority::new("in-a-folder").file(), good.join("authority.pem")).unwrap();
    let (missing, blank) = (folder.join("missing.pem"), folder.join("blank.pem"));
    std::fs::write(&blank, "# none\n").unwrap();
    let in_file =
        |file: &Path| format!("there is no certificate of an authority in SSL_CERT_FILE={}", file.display());
    let nowhere = "this machine has no authorities to check certificates with".to_owned();
    for (file, dir, error, hint) in [
        // A folder does not stand in for a file that was named.
        (Some(&missing), &good, in_file(&missing), "name a PEM file of certificates, or unset it"),
        (Some(&blank), &empty, in_file(&blank), "name a PEM file of certificates, or unset it"),
        (None, &empty, nowhere, "install the package ca-certificates"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--limit",
            "1/s",
            "--upstream",
            "https://localhost:9",
        ]);
        command.env_remove("SSL_CERT_FILE").env("SSL_CERT_DIR", dir).stdin(Stdio::null());
        if let Some(file) = file {
            command.env("SSL_CERT_FILE", file);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if !line.is_empty() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*line), (Some(2), ""), "{error}: {said}");
        let [first, last] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert!(first.starts_with(&format!("error: {error}")), "{said}");
        assert!(last.starts_with(&format!("hint: {hint}")), "{said}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_connection_that_is_upgraded_goes_through_tls_both_ways() {
    let authority = Authority::new("upgraded");
    let (address, _) = tls_service(authority.service(|_| {}), |mut stream| {
        read_head(&mut stream);
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello",
            )
            .unwrap();
        let line = read_until(&mut stream, "\n");
        stream.write_all(line.to_uppercase().as_bytes()).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    });
    let proxy = Proxy::start_tls(&address, "100/s", authority.file());
    let mut stream =
        proxy.send("GET /chat HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
    read_until(&mut stream, "hello");
    stream.write_all(b"shout\n").unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    assert_eq!(line, "SHOUT\n");
}

#[test]
fn an_answer_that_is_cut_off_does_not_look_complete() {
    let authority = Authority::new("cut-off");
    // Its end is that of the connection, which anybody on the way can bring about, if it is not said in TLS.
    for says_the_end in [true, false] {
        let (address, _) = tls_service(authority.service(|_| {}), move |mut stream| {
            read_head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabcde").unwrap();
            if says_the_end {
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
            stream.sock.shutdown(Shutdown::Write).unwrap();
            let _ = stream.sock.read_to_end(&mut Vec::new());
        });
        let proxy = Proxy::start_tls(&address, "100/s", authority.file());
        let mut bytes = Vec::new();
        // The connection may be reset.
        let _ = proxy.send("GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.ends_with("5\r\nabcde\r\n0\r\n\r\n"), says_the_end, "{text}");
    }
}

#[test]
fn a_safe_request_is_sent_again_when_its_tls_connection_ends_without_a_word() {
    let authority = Authority::new("again");
    let (address, heads) = tls_service(authority.service(|_| {}), |mut stream| {
        let first = read_head(&mut stream);
        stream.write_all(ANSWER).unwrap();
        // The connection is used for the next request, and ends when that was read.
        first + &read_head(&mut stream)
    });
    let proxy = Proxy::start_tls(&address, "100/s", authority.file());
    assert!(proxy.get().starts_with("HTTP/1.1 200 "));
    assert!(proxy.get().starts_with("HTTP/1.1 200 "));
    assert_eq!(heads.recv_timeout(PATIENCE).unwrap().matches("GET / HTTP/1.1").count(), 2);
}
