//! One request over HTTP: what it is to the limits, and how its client is answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};

use tidegate_http::problem::PROBLEM_JSON;

use super::bodies::Bodies;
use super::hall::{Hall, Told, Visit};
use super::stream;
use super::watch::watch;
use crate::mcp::answer;
use crate::mcp::frame::{self, Asked, Message};
use crate::upstream::Upstream;

/// The id of a session of the protocol up to 2025-11-25.
const SESSION: &str = "mcp-session-id";

/// Everything that requests have in common.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) hall: Arc<Hall>,
    pub(super) upstream: Upstream,
    pub(super) bodies: Bodies,
    /// How many calls there were.
    pub(super) calls: AtomicU64,
}

impl Proxy {
    /// Answers a request from `peer`.
    pub(super) async fn handle(self: Arc<Self>, request: Request, peer: SocketAddr) -> Response {
        if !is_from_here(request.headers()) {
            return refusal(StatusCode::FORBIDDEN, "a web page of another origin must not use this server");
        }
        if request.method() != Method::POST {
            return self.upstream.forward(request, peer).await;
        }
        let (mut parts, body) = request.into_parts();
        if self.hall.limits_something() && !is_plain(&parts.headers) {
            let detail = "a message is neither compressed nor in another character encoding than UTF-8";
            return refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        }
        let (message, weight) = match self.bodies.read(body).await {
            Ok(read) => read,
            Err((status, detail)) => return refusal(status, detail),
        };
        // Until the server has begun its answer.
        parts.extensions.insert(Arc::new(weight));
        match frame::message(&message, &self.hall.charges) {
            Message::Call(asked) => self.call(parts, message, asked, peer).await,
            Message::Cancelled(id) => {
                let told = session(&parts.headers)
                    .is_none_or(|session| self.hall.cancel_named((session.into(), id)));
                if told {
                    self.forward(parts, message, peer).await
                } else {
                    StatusCode::ACCEPTED.into_response()
                }
            }
            Message::Batch if self.hall.limits_something() => json(StatusCode::BAD_REQUEST, answer::batch()),
            Message::Unclear(id) if self.hall.limits_something() => {
                json(StatusCode::BAD_REQUEST, answer::unclear(id.as_deref()))
            }
            Message::Batch | Message::Unclear(_) | Message::Other => self.forward(parts, message, peer).await,
        }
    }

    /// A call: it waits for its turn, and then its answer is that of the server.
    async fn call(
        self: Arc<Self>,
        mut parts: Parts,
        message: Bytes,
        mut asked: Asked,
        peer: SocketAddr,
    ) -> Response {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let session = session(&parts.headers);
        let named_in = session.filter(|_| !asked.modern).map(Box::from);
        asked.subject.session = session.map_or_else(|| peer.ip().to_string().into(), Into::into);
        // What is compressed cannot be read for what it says about waiting.
        parts.headers.remove(header::ACCEPT_ENCODING);
        let hears_progress = parts.headers.get(header::ACCEPT).is_none_or(accepts_events);
        let mut visit = self.hall.arrive(asked, named_in, number, message.into());
        if visit.waits() {
            shrink(&mut parts);
        }
        loop {
            match visit.next().await {
                // In a box, so that a call that waits has no room for it yet.
                Some(Told::Start(message)) => {
                    return Box::pin(self.start(parts, message.into(), peer, visit)).await;
                }
                Some(Told::Answer(answer)) => return json(StatusCode::OK, answer),
                Some(Told::Progress(progress)) if hears_progress => {
                    return stream::answer(self, parts, peer, visit, progress);
                }
                Some(Told::Progress(_)) => {}
                // Cancelled while it waited: there is no answer, and the client wants none.
                None => return stream::empty(),
            }
        }
    }

    /// Passes a call on whose turn it is.
    pub(super) async fn start(
        &self,
        parts: Parts,
        message: Bytes,
        peer: SocketAddr,
        visit: Visit,
    ) -> Response {
        watch(self.forward(parts, message, peer).await, visit)
    }

    async fn forward(&self, parts: Parts, message: Bytes, peer: SocketAddr) -> Response {
        self.upstream.forward(Request::from_parts(parts, Body::from(message)), peer).await
    }
}

/// Copies what refers to the buffer that the head was read into, which has 8 KiB, so that it does not live as long as the
/// call waits.
fn shrink(parts: &mut Parts) {
    let mut headers = HeaderMap::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_str().as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
        {
            headers.append(name, value);
        }
    }
    parts.headers = headers;
    if let Ok(uri) = parts.uri.to_string().parse() {
        parts.uri = uri;
    }
}

/// Whether the message can be read as it is. What a server would have to unpack first, a call could be hidden in.
fn is_plain(headers: &HeaderMap) -> bool {
    let is_packed = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"));
    let is_utf8 = |kind: &HeaderValue| {
        let kind = String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase();
        let charset = kind.split_once("charset").and_then(|(_, rest)| rest.trim_start().strip_prefix('='));
        let charset = charset.map(|rest| rest.split(';').next().unwrap_or(rest).trim().trim_matches('"'));
        !kind.contains("json")
            || charset.is_none_or(|charset| matches!(charset, "utf-8" | "utf8" | "us-ascii"))
    };
    !is_packed && headers.get_all(header::CONTENT_TYPE).iter().all(is_utf8)
}

fn session(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION).and_then(|value| value.to_str().ok()).filter(|session| !session.is_empty())
}

/// Whether the client can be told of progress: an event stream is among what it takes.
fn accepts_events(accept: &HeaderValue) -> bool {
    let accept = accept.as_bytes().to_ascii_lowercase();
    [&b"text/event-stream"[..], b"*/*"]
        .iter()
        .any(|kind| accept.windows(kind.len()).any(|part| part == *kind))
}

/// Whether the request is not that of a web page from elsewhere, which a browser says with `Origin`. A page could reach
/// this server by a name of its own that means this machine.
fn is_from_here(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let Some(origin) = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()) else {
        return false;
    };
    let is_loopback = match origin.host() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback()),
        None => false,
    };
    is_loopback || {
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        // By an address, not by a name: that can be made to mean this machine.
        let is_address = origin
            .host()
            .is_some_and(|host| host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok());
        is_address && origin.authority().map(|authority| authority.as_str().as_bytes()) == host
    }
}

fn json(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn refusal(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or_default();
    let problem = serde_json::json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], problem.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_or_in_another_encoding_is_not_plain() {
        for (name, value, expected) in [
            ("content-type", "application/json", true),
            ("content-type", "application/json; charset=\"UTF-8\"; x=y", true),
            ("content-type", "application/json;charset=utf-7", false),
            ("content-type", "Application/JSON; charset = utf-16", false),
            ("content-type", "text/plain; charset=iso-8859-1", true),
            ("content-encoding", "identity", true),
            ("content-encoding", "gzip", false),
            ("content-encoding", "identity, br", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            assert_eq!(is_plain(&headers), expected, "{name}: {value}");
        }
    }

    #[test]
    fn pages_from_elsewhere_are_told_by_their_origin() {
        for (origin, host, expected) in [
            (None, "127.0.0.1:8080", true),
            (Some("http://localhost:6274"), "127.0.0.1:8080", true),
            (Some("http://127.0.0.1"), "localhost:8080", true),
            (Some("http://[::1]:3"), "localhost:8080", true),
            (Some("http://10.0.0.1:8080"), "10.0.0.1:8080", true),
            (Some("http://10.0.0.2:8080"), "10.0.0.1:8080", false),
            (Some("http://evil.example:8080"), "evil.example:8080", false),
            (Some("http://localhost.evil.example"), "localhost:8080", false),
            (Some("null"), "127.0.0.1:8080", false),
            (Some(""), "127.0.0.1:8080", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            }
            assert_eq!(is_from_here(&headers), expected, "{origin:?} at {host}");
        }
    }
}
