//! What a request is answered: 200 in its own time, or 429 with the exact wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use tidegate::{Decision, Limiter};

use super::key::KeySource;

/// The wait of a rejection in milliseconds, for callers to whom a second is long.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// What all connections share: the one limiter, and what it has decided.
#[derive(Debug)]
pub(crate) struct Desk {
    limiter: Limiter,
    label: String,
    key: KeySource,
    allowed: AtomicU64,
    rejected: AtomicU64,
    in_flight: AtomicU64,
}

/// How many requests were decided, and how many wait for their answer now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) allowed: u64,
    pub(crate) rejected: u64,
    pub(crate) in_flight: u64,
}

impl Desk {
    pub(crate) fn new(limiter: Limiter, label: String, key: KeySource) -> Self {
        let zero = AtomicU64::default;
        Self { limiter, label, key, allowed: zero(), rejected: zero(), in_flight: zero() }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            allowed: self.allowed.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }
}

/// Answers any path and method.
///
/// A request that the leaky bucket lets wait is answered when it may start. If its client goes away meanwhile, the wait
/// is dropped with the connection; its place in the queue was given away and is not taken back.
pub(crate) async fn answer(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let _in_flight = InFlight::enter(&desk);
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    // A connection always has a peer address; without one the limit is still kept, for all such requests together.
    let peer = peer.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    let decision = desk.limiter.check(&desk.key.key(peer, request.headers()));
    match decision {
        Decision::Allowed { start_after, remaining, .. } => {
            desk.allowed.fetch_add(1, Ordering::Relaxed);
            if !start_after.is_zero() {
                tokio::time::sleep(start_after).await;
            }
            allowed(&desk.label, remaining)
        }
        Decision::Rejected { retry_after, .. } => {
            desk.rejected.fetch_add(1, Ordering::Relaxed);
            rejected(&desk.label, retry_after, decision.retry_after_seconds().unwrap_or(1))
        }
        // Every request costs 1, and no capacity is below that.
        Decision::Never { .. } => {
            desk.rejected.fetch_add(1, Ordering::Relaxed);
            text(StatusCode::TOO_MANY_REQUESTS, format!("rejected by {}: never allowed\n", desk.label))
        }
    }
}

/// Counts a request as in flight until it is dropped, answered or not.
struct InFlight<'a>(&'a Desk);

impl<'a> InFlight<'a> {
    fn enter(desk: &'a Desk) -> Self {
        desk.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(desk)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

fn allowed(label: &str, remaining: u64) -> Response {
    let body = if remaining == u64::MAX {
        format!("allowed: {label}\n")
    } else {
        format!("allowed by {label}: {remaining} remaining\n")
    };
    text(StatusCode::OK, body)
}

fn rejected(label: &str, retry_after: Duration, seconds: u64) -> Response {
    let ms = whole_ms(retry_after);
    let body = format!("rejected by {label}: retry after {}.{:03} s\n", ms / 1000, ms % 1000);
    let mut response = text(StatusCode::TOO_MANY_REQUESTS, body);
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
    response
}

/// A wait in milliseconds, rounded up and at least 1: whoever waits that long has waited long enough.
fn whole_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

fn text(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up_and_never_zero() {
        for (ns, ms, seconds) in [
            (1, "1", "1"),
            (1_000_000, "1", "1"),
            (1_000_001, "2", "1"),
            (184_999_999, "185", "1"),
            (999_999_999, "1000", "1"),
            (1_000_000_000, "1000", "1"),
            (1_000_000_001, "1001", "2"),
        ] {
            let retry_after = Duration::from_nanos(ns);
            let decision = Decision::Rejected { retry_after, remaining: 0, reset_after: retry_after };
            let response = rejected("it", retry_after, decision.retry_after_seconds().unwrap());
            assert_eq!(response.headers()["retry-after-ms"], ms, "{ns} ns");
            assert_eq!(response.headers()["retry-after"], seconds, "{ns} ns");
        }
    }
}
