//! What a proxy changes in a head (RFC 9110, section 7.6): what was said between two neighbours goes no further, and the
//! next one is told where the request came from.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING,
    UPGRADE, VIA,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use hyper::body::Body as _;

use super::Host;
use super::fault::Fault;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Fields between neighbours, also where `Connection` does not name them.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The head of a request as the service gets it.
pub(super) fn to_upstream(parts: &mut Parts, body: &Body, peer: SocketAddr, told: Host) -> Result<(), Fault> {
    let Parts { uri, version, headers, .. } = parts;
    if !is_only_chunked(headers) {
        // Whose end is found in a body is chunked; what else was done to it is between neighbours (RFC 9112, section 6.1).
        return Err(Fault::Refused(
            StatusCode::NOT_IMPLEMENTED,
            "no transfer coding but chunked is passed on",
        ));
    }
    if let Some(authority) = uri.authority() {
        if authority.as_str().contains('@') {
            return Err(Fault::Refused(StatusCode::BAD_REQUEST, "a host has no name and password"));
        }
        // Then what the field says does not count (RFC 9112, section 3.2.2).
        let host = HeaderValue::from_str(authority.as_str());
        headers.insert(
            HOST,
            host.map_err(|_| Fault::Refused(StatusCode::BAD_REQUEST, "the host is not valid"))?,
        );
    }
    match (headers.get_all(HOST).iter().count(), *version) {
        (1, _) | (0, Version::HTTP_10) => {}
        _ => return Err(Fault::Refused(StatusCode::BAD_REQUEST, "the field Host has to be there once")),
    }
    let wants_trailers = has_token(headers, &TE, "trailers");
    remove_hop_by_hop(headers);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    // How the body is framed is said anew, and once.
    headers.remove(CONTENT_LENGTH);
    match body.size_hint().exact() {
        Some(0) if parts.method.is_safe() => {}
        Some(length) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    let before = if *version == Version::HTTP_10 { "1.0 tidegate" } else { "1.1 tidegate" };
    append_to_list(headers, VIA, before);
    append_to_list(headers, X_FORWARDED_FOR, &peer.ip().to_canonical().to_string());
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    if told == Host::OfUpstream {
        // Then hyper's client takes it from the address, without a port that is the scheme's own.
        headers.remove(HOST);
    }
    Ok(())
}

/// The fields of an answer as the client gets them.
pub(super) fn to_client(headers: &mut HeaderMap) -> Result<(), Fault> {
    if !is_only_chunked(headers) {
        return Err(Fault::Broken("it sent a transfer coding that nobody asked for".to_owned()));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // Then it is the encoding that frames the body (RFC 9112, section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers);
    Ok(())
}

/// Whether the body has no transfer coding but chunked, which is taken off and put on again. The bytes of another one, such as
/// gzip, would go on without a word of it.
fn is_only_chunked(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(TRANSFER_ENCODING).into_iter();
    lines.map(HeaderValue::as_bytes).all(|line| line.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// The protocol that the sender wants to go on with on this connection, as for a WebSocket.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(UPGRADE).filter(|_| has_token(headers, &CONNECTION, "upgrade")).cloned()
}

/// Says to the neighbour that the connection is to go on with `protocol`.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        // Without these the message would be another one.
        .filter(|name| !matches!(*name, HOST | CONTENT_LENGTH))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    // `trailers;q=1` has a weight, which says no more.
    tokens(headers, name)
        .any(|found| found.split(';').next().unwrap_or(found).trim().eq_ignore_ascii_case(token))
}

/// Appends to a list, which becomes one line: some readers see the first line only, or the last.
fn append_to_list(headers: &mut HeaderMap, name: HeaderName, last: &str) {
    let mut list = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(last.as_bytes());
    // Values that were valid with a comma between them are.
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn passed_on(uri: &str, version: Version, lines: &[(&str, &str)]) -> Option<Vec<String>> {
        let mut parts = Request::builder().uri(uri).version(version).body(()).unwrap().into_parts().0;
        for (name, value) in lines {
            parts.headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let peer = "[::ffff:192.0.2.7]:9".parse().unwrap();
        to_upstream(&mut parts, &Body::empty(), peer, Host::AsSent).ok()?;
        let lines = parts.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        Some(lines)
    }

    #[test]
    fn neighbours_keep_their_words_and_the_rest_goes_on() {
        let lines = [
            ("host", "a"),
            ("connection", "keep-alive, X-Mine, host"),
            ("connection", "x-forwarded-for"),
            ("x-mine", "1"),
            ("x-forwarded-for", "6.6.6.6"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "basic x"),
            ("proxy-connection", "close"),
            ("te", "gzip;q=0.5, Trailers"),
            ("upgrade", "h2c"),
            ("trailer", "x-sum"),
            ("authorization", "bearer x"),
            ("x-forwarded-proto", "https"),
            ("via", "1.0 fred"),
            ("via", "1.1 ann"),
        ];
        let expected = [
            "authorization: bearer x",
            "connection: te",
            "host: a",
            "te: trailers",
            "trailer: x-sum",
            "via: 1.0 fred, 1.1 ann, 1.1 tidegate",
            "x-forwarded-for: 192.0.2.7",
            "x-forwarded-host: a",
            "x-forwarded-proto: https",
        ];
        assert_eq!(passed_on("/", Version::HTTP_11, &lines).unwrap(), expected);
    }

    #[test]
    fn the_peer_comes_last_in_one_line() {
        let lines = [("host", "a"), ("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2, 3.3.3.3")];
        let passed = passed_on("/", Version::HTTP_11, &lines).unwrap();
        assert!(passed.contains(&"x-forwarded-for: 1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.7".to_owned()));
    }

    #[test]
    fn there_is_one_host() {
        let absolute = passed_on("http://b:8/x", Version::HTTP_11, &[("host", "a")]).unwrap();
        assert!(absolute.contains(&"host: b:8".to_owned()));
        assert_eq!(passed_on("/", Version::HTTP_11, &[]), None);
        assert_eq!(passed_on("/", Version::HTTP_11, &[("host", "a"), ("host", "b")]), None);
        assert!(passed_on("/", Version::HTTP_10, &[]).unwrap().contains(&"via: 1.0 tidegate".to_owned()));
    }

    #[test]
    fn a_host_has_no_password() {
        assert_eq!(passed_on("http://a:b@c/x", Version::HTTP_11, &[("host", "a")]), None);
    }

    #[test]
    fn no_transfer_coding_but_chunked_goes_on_unsaid() {
        for (coding, goes_on) in
            [("chunked", true), ("Chunked ", true), ("gzip, chunked", false), ("gzip", false), ("", false)]
        {
            let lines = [("host", "a"), ("transfer-encoding", coding)];
            assert_eq!(passed_on("/", Version::HTTP_11, &lines).is_some(), goes_on, "{coding}");
            assert_eq!(to_client(&mut headers(&lines)).is_ok(), goes_on, "{coding}");
        }
    }

    #[test]
    fn an_answer_is_framed_in_one_way() {
        let mut both = headers(&[("transfer-encoding", "chunked"), ("content-length", "5"), ("etag", "x")]);
        to_client(&mut both).unwrap();
        assert_eq!(both, headers(&[("etag", "x")]));
        let mut length = headers(&[("content-length", "5"), ("connection", "close, content-length")]);
        to_client(&mut length).unwrap();
        assert_eq!(length, headers(&[("content-length", "5")]));
    }
}
