//! The admin address: metrics, health, and the live page with its JSON.
//!
//! | path | what |
//! | --- | --- |
//! | `/` | the live page |
//! | `/metrics` | counters and gauges for Prometheus |
//! | `/healthz` | 200 as long as it runs |
//! | `/readyz` | 200, and 503 as soon as it drains |
//! | `/api/state` | `tidegate.state/1`: what the page shows |
//! | `/api/simulate` | `tidegate.playground/1`: what limiters make of a pattern or a trace |
//!
//! Whoever reaches it can read the keys that ask most. It has no password, so it belongs on the loopback or on a network
//! of its own. On the loopback it answers only to names of the loopback, since a page of somebody else could have a name of
//! its own that leads here.

mod board;
mod meter;
mod metrics;
mod playground;
mod series;
mod sharded;
mod sides;
mod state;
mod top;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Serialize;
use tokio::sync::Semaphore;

pub(super) use board::{Board, Counter, Shown};

/// The most bytes of a question to the playground: an access log of some thousand lines.
const MAX_QUESTION: usize = 1024 * 1024;

/// How many questions are worked on at one time; others wait. One could keep both threads of a small machine busy.
const QUESTIONS: usize = 1;

const JSON: &str = "application/json";

/// The files of the page: path, type, text.
const PAGE: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("admin/page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("admin/page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("admin/page/page.js")),
    ("/draw.js", "text/javascript; charset=utf-8", include_str!("admin/page/draw.js")),
    ("/playground.js", "text/javascript; charset=utf-8", include_str!("admin/page/playground.js")),
    ("/icon.svg", "image/svg+xml", include_str!("admin/page/icon.svg")),
];

/// The page loads nothing from elsewhere, and nobody can put it into a frame.
const CONTENT_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
);

#[derive(Debug, Clone)]
struct Desk {
    board: Arc<Board>,
    /// The address that is limited.
    listen: SocketAddr,
    questions: Arc<Semaphore>,
}

/// What answers at the admin address `at`, about the server at `listen`.
pub(super) fn router(board: Arc<Board>, listen: SocketAddr, at: SocketAddr) -> Router {
    let desk = Desk { board, listen, questions: Arc::new(Semaphore::new(QUESTIONS)) };
    let mut router = Router::new();
    for (path, kind, text) in PAGE {
        router = router.route(path, get(async move || answer(StatusCode::OK, kind, text)));
    }
    router
        .route("/healthz", get(async || plain(StatusCode::OK, "ok\n")))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/state", get(state))
        .route("/api/simulate", post(simulate))
        .fallback(async || plain(StatusCode::NOT_FOUND, "there is no such page; the live page is at /\n"))
        .with_state(desk)
        .layer(from_fn_with_state(at.ip(), guard))
}

/// Ends the seconds of the series, until it is dropped.
pub(super) async fn keep_time(board: Arc<Board>) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    seconds.tick().await;
    loop {
        seconds.tick().await;
        board.end_second();
    }
}

async fn ready(State(desk): State<Desk>) -> Response {
    if desk.board.is_draining() {
        plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        plain(StatusCode::OK, "ready\n")
    }
}

async fn metrics(State(desk): State<Desk>) -> Response {
    match tokio::task::spawn_blocking(move || metrics::text(&desk.board)).await {
        Ok(text) => answer(StatusCode::OK, metrics::CONTENT_TYPE, text),
        Err(_) => stopping(),
    }
}

async fn state(State(desk): State<Desk>) -> Response {
    let read = move || state::State::of(&desk.board, desk.listen);
    match tokio::task::spawn_blocking(read).await {
        Ok(state) => json(StatusCode::OK, &state),
        Err(_) => stopping(),
    }
}

async fn simulate(State(desk): State<Desk>, headers: HeaderMap, body: Body) -> Response {
    // A browser asks first before it sends this type for a page from elsewhere, and gets no leave.
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !kind.starts_with(JSON.as_bytes()) {
        return wrong(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send JSON, with `content-type: application/json`");
    }
    let Ok(question) = axum::body::to_bytes(body, MAX_QUESTION).await else {
        return wrong(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a question has at most 1 MiB; use `tidegate simulate --trace` for a longer trace",
        );
    };
    let Ok(_turn) = desk.questions.acquire().await else { return stopping() };
    let played = tokio::task::spawn_blocking(move || playground::Ask::read(&question)?.run()).await;
    match played {
        Ok(Ok(played)) => json(StatusCode::OK, &played),
        Ok(Err(error)) => wrong(StatusCode::BAD_REQUEST, &error),
        Err(_) => stopping(),
    }
}

/// Lets a request in that names the machine it is for, and says with each answer what a browser may do with it.
async fn guard(State(at): State<IpAddr>, request: Request, next: Next) -> Response {
    let mut response = if !at.is_loopback() || names_loopback(request.headers()) {
        next.run(request).await
    } else {
        plain(StatusCode::FORBIDDEN, "this address is for this machine; ask for 127.0.0.1 or localhost\n")
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

/// Whether the `Host` of a request is this machine. Requests without one do not come from a browser.
fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => answer(status, JSON, bytes),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("no JSON: {error}\n")),
    }
}

/// What is wrong with a question, in one line.
fn wrong(status: StatusCode, error: &str) -> Response {
    #[derive(Serialize)]
    struct Wrong<'a> {
        error: &'a str,
    }
    json(status, &Wrong { error })
}

fn stopping() -> Response {
    plain(StatusCode::SERVICE_UNAVAILABLE, "the server stops\n")
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response {
    answer(status, "text/plain; charset=utf-8", text)
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_known() {
        let is_here = |host: &str| {
            names_loopback(&HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]))
        };
        for host in ["localhost", "localhost:9090", "127.0.0.1:9090", "127.8.8.8", "[::1]:9090", "[::1]"] {
            assert!(is_here(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9090", "10.0.0.1:9090", "localhost.evil.example", "[::2]"]
        {
            assert!(!is_here(host), "{host}");
        }
        assert!(names_loopback(&HeaderMap::new()));
    }
}
