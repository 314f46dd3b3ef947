//! A server that plays providers: it refuses the way they do, and logs when requests came.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;

/// Who is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    /// 429 with `retry-after-ms` beside its ceiling; before that, a success that says that nothing is left.
    OpenAi,
    /// 429 with `retry-after` in seconds and counters with RFC 3339 resets.
    Anthropic,
    /// 403 with nothing left until an instant in seconds since 1970.
    GitHub,
    /// 200 with an error in the body.
    Shopify,
    /// 429 with `Retry-After` in seconds.
    Slack,
}

impl Provider {
    pub(crate) const ALL: [Self; 5] =
        [Self::OpenAi, Self::Anthropic, Self::GitHub, Self::Shopify, Self::Slack];

    /// What is allowed before it refuses.
    pub(crate) const ALLOWED: usize = 3;
}

/// A request that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// How long before the end of what a hint had told; 0 if it came after that.
    pub(crate) early_by: Duration,
    pub(crate) is_refused: bool,
}

#[derive(Debug, Default)]
struct Played {
    log: Vec<Arrival>,
    allowed: usize,
    closed_until: Option<Instant>,
}

/// A provider that is played until the test ends.
#[derive(Debug, Clone)]
pub(crate) struct Playing {
    provider: Provider,
    played: Arc<Mutex<Played>>,
}

impl Playing {
    /// Starts to play on a free port.
    pub(crate) async fn start(provider: Provider) -> (Self, SocketAddr) {
        let playing = Self { provider, played: Arc::default() };
        let app = Router::new().fallback(async |State(playing): State<Self>| playing.answer());
        let address = serve(app.with_state(playing.clone())).await;
        (playing, address)
    }

    pub(crate) fn log(&self) -> Vec<Arrival> {
        self.played.lock().unwrap().log.clone()
    }

    fn answer(&self) -> impl IntoResponse + use<> {
        let mut played = self.played.lock().unwrap();
        let at = Instant::now();
        let early_by =
            played.closed_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(at));
        let is_refused = !early_by.is_zero() || played.allowed == Provider::ALLOWED;
        played.log.push(Arrival { early_by, is_refused });
        if is_refused {
            let (refusal, wait) = self.refusal();
            (played.allowed, played.closed_until) = (0, Some(at + wait));
            return refusal;
        }
        played.allowed += 1;
        let mut headers = vec![("content-type", "application/json".to_owned())];
        // The first time it says in time that nothing is left, so that nobody needs to be refused.
        if self.provider == Provider::OpenAi
            && played.allowed == Provider::ALLOWED
            && played.log.len() == Provider::ALLOWED
        {
            headers.push(("x-ratelimit-remaining-requests", "0".to_owned()));
            headers.push(("x-ratelimit-reset-requests", "150ms".to_owned()));
            (played.allowed, played.closed_until) = (0, Some(at + Duration::from_millis(150)));
        }
        respond(200, headers, r#"{"data":"done"}"#)
    }

    /// A refusal, and for how long nothing is allowed.
    fn refusal(&self) -> (axum::response::Response, Duration) {
        let ms = Duration::from_millis;
        let json = ("content-type", "application/json".to_owned());
        let text = |text: &str| text.to_owned();
        match self.provider {
            Provider::OpenAi => {
                let headers = vec![json, ("retry-after-ms", text("240")), ("retry-after", text("1"))];
                (respond(429, headers, r#"{"error":{"code":"rate_limit_exceeded"}}"#), ms(240))
            }
            Provider::Anthropic => {
                let headers = vec![
                    json,
                    ("retry-after", text("1")),
                    ("anthropic-ratelimit-input-tokens-remaining", text("0")),
                    ("anthropic-ratelimit-input-tokens-reset", text("2001-01-01T00:00:00Z")),
                    ("anthropic-ratelimit-requests-remaining", text("40")),
                    ("anthropic-ratelimit-requests-reset", text("2099-01-01T00:00:00Z")),
                ];
                (respond(429, headers, r#"{"type":"error","error":{"type":"rate_limit_error"}}"#), ms(1000))
            }
            Provider::GitHub => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                let reset = Duration::from_secs(now.as_secs() + 1);
                let headers = vec![
                    json,
                    ("x-ratelimit-limit", text("3")),
                    ("x-ratelimit-remaining", text("0")),
                    ("x-ratelimit-reset", reset.as_secs().to_string()),
                    ("x-ratelimit-resource", text("core")),
                ];
                (respond(403, headers, r#"{"message":"API rate limit exceeded"}"#), reset.saturating_sub(now))
            }
            Provider::Shopify => {
                let body = r#"{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":
                    {"cost":{"requestedQueryCost":60,"actualQueryCost":null,"throttleStatus":
                    {"maximumAvailable":1000.0,"currentlyAvailable":48,"restoreRate":50.0}}}}"#;
                (respond(200, vec![json], body), ms(240))
            }
            Provider::Slack => (
                respond(429, vec![("retry-after", text("1"))], r#"{"ok":false,"error":"ratelimited"}"#),
                ms(1000),
            ),
        }
    }
}

/// Serves an app on a free port until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn respond(
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: &'static str,
) -> axum::response::Response {
    let headers = headers.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let headers = HeaderMap::from_iter(headers);
    (StatusCode::from_u16(status).unwrap(), headers, body).into_response()
}
