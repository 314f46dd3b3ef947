//! What is answered, and said on stderr, when a request could not be passed on.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper_util::client::legacy;
use tidegate_http::layer::NotServed;
use tidegate_http::problem::PROBLEM_JSON;

use super::body::Late;
use super::handshake::Failed;
use crate::fault::warn;

/// Why there is no answer of the service. The texts are causes, for the log; a client is not told them.
#[derive(Debug)]
pub(super) enum Fault {
    /// The request is not one to pass on.
    Refused(StatusCode, &'static str),
    /// There was no connection, so nothing was sent.
    Unreachable { cause: String, in_time: bool },
    /// There was a connection and no TLS on it, so nothing was sent.
    Untrusted(Failed),
    /// The connection broke before there was an answer, or what came is none.
    Broken(String),
    /// The body of the request broke off.
    Body,
    /// Somebody let the time pass.
    Late(Late),
}

impl Fault {
    pub(super) fn of(error: &legacy::Error) -> Self {
        let failed = Failed::of(error).filter(|_| error.is_connect());
        if let Some(failed) = failed {
            return Self::Untrusted(failed);
        }
        let cause = root_cause(error);
        if error.is_connect() {
            return Self::Unreachable { cause, in_time: !is_timeout(error) };
        }
        let error = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
        if error.is_some_and(hyper::Error::is_user) { Self::Body } else { Self::Broken(cause) }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Refused(status, _) => *status,
            Self::Unreachable { in_time: true, .. } | Self::Untrusted(_) | Self::Broken(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::Unreachable { in_time: false, .. } | Self::Late(Late::Upstream) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Body => StatusCode::BAD_REQUEST,
            Self::Late(Late::Client) => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// What the client is told.
    const fn detail(&self) -> &'static str {
        match self {
            Self::Refused(_, detail) => detail,
            Self::Unreachable { in_time: true, .. } => {
                "the service behind this server cannot be reached; the request was not sent to it"
            }
            Self::Unreachable { in_time: false, .. } => {
                "the service behind this server did not take the connection in time; the request was not sent to it"
            }
            Self::Untrusted(Failed { is_certificate: true, .. }) => {
                "the service behind this server has no certificate that is trusted here; the request was not sent to it"
            }
            Self::Untrusted(Failed { is_certificate: false, .. }) => {
                "no TLS could be agreed on with the service behind this server; the request was not sent to it"
            }
            Self::Broken(_) => {
                "the service behind this server gave no valid answer; it may have done what was asked"
            }
            Self::Body => "the body of the request broke off",
            Self::Late(Late::Upstream) => {
                "the service behind this server did not answer in time; it may have done what was asked"
            }
            Self::Late(Late::Client) => "the body of the request did not come in time",
        }
    }

    /// What the operator is told, if it is the service's fault.
    fn cause(&self) -> Option<&str> {
        match self {
            Self::Unreachable { cause, .. } | Self::Broken(cause) => Some(cause),
            Self::Untrusted(failed) => Some(&failed.cause),
            Self::Late(Late::Upstream) => Some("no answer in time"),
            Self::Refused(..) | Self::Body | Self::Late(Late::Client) => None,
        }
    }

    /// What the operator can do, where that is known.
    const fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Untrusted(failed) => Some(failed.advice),
            _ => None,
        }
    }

    pub(super) fn response(&self) -> Response {
        let status = self.status();
        let title = status.canonical_reason().unwrap_or_default();
        // Nothing in here needs an escape.
        let json = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{},"detail":"{}"}}"#,
            status.as_u16(),
            self.detail()
        );
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        if matches!(self, Self::Unreachable { .. } | Self::Untrusted(_)) {
            // Then the limits take back what it was charged.
            response.extensions_mut().insert(NotServed);
        }
        if matches!(self, Self::Body | Self::Late(Late::Client)) {
            // The rest of the body may still come, and must not be taken for a request.
            response.headers_mut().insert(axum::http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Whether the connection ended before anything of an answer had come.
pub(super) fn is_cut_off(error: &legacy::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    source.is_some_and(|source| {
        let io = source.source().and_then(|source| source.downcast_ref::<io::Error>());
        let is_reset = io.is_some_and(|error| {
            // The third is the end of a TLS connection whose other side did not say that it ends.
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
            )
        });
        source.is_incomplete_message() || source.is_canceled() || source.is_closed() || is_reset
    })
}

/// The innermost error: `connection refused` rather than `client error`.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Says on stderr what is wrong with the service, in one line a second at most.
#[derive(Debug)]
pub(super) struct Log {
    url: String,
    start: Instant,
    /// The second from which on the next line may be written.
    next: AtomicU64,
    /// The faults since the last line that were not said.
    unsaid: AtomicU64,
}

impl Log {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            start: Instant::now(),
            next: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
        }
    }

    pub(super) fn note(&self, fault: &Fault) {
        let Some(cause) = fault.cause() else { return };
        let now = self.start.elapsed().as_secs();
        let next = self.next.load(Ordering::Relaxed);
        let is_mine = now >= next
            && self.next.compare_exchange(next, now + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_mine {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let more = match self.unsaid.swap(0, Ordering::Relaxed) {
            0 => String::new(),
            unsaid => format!("; {unsaid} more since the last line"),
        };
        let advice = fault.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
        let status = fault.status().as_u16();
        warn(&format!("upstream {}: {cause}{advice}; answered {status}{more}", self.url));
    }
}
