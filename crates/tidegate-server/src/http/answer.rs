//! What is answered, in JSON and in fields.

use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tidegate::Decision;
use tidegate_http::layer::{Checked, CheckedLimit, Outcome};

use super::json;
use super::question::Named;

/// A decision.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'a> {
    allowed: bool,
    outcome: &'static str,
    /// The limit that refused.
    refused_by: Option<&'a str>,
    /// Rounded up. A wait of nothing is not one.
    retry_after_ms: Option<u64>,
    /// When an allowed call may run: later than now only if a leaky bucket has queued it. Rounded up.
    start_after_ms: u64,
    /// The limit in shadow that would have refused.
    shadow: Option<&'a str>,
    /// How it was decided, where servers share the limits.
    made: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    limits: Vec<OfLimit<'a>>,
    #[serde(skip)]
    checked: &'a Checked,
}

/// What one limit says. What was not asked is `null`.
#[derive(Debug, Serialize)]
struct OfLimit<'a> {
    limit: &'a str,
    key: &'a [String],
    cost: u64,
    allowed: Option<bool>,
    /// What is left after the call.
    remaining: Option<u64>,
    /// The largest cost that can be allowed.
    capacity: Option<u64>,
    retry_after_ms: Option<u64>,
    /// Until all is there. Rounded up.
    reset_after_ms: Option<u64>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(checked: &'a Checked, named: &'a [Named], id: Option<String>) -> Self {
        Self {
            allowed: checked.is_allowed(),
            outcome: match checked.outcome() {
                Outcome::Allowed => "allowed",
                Outcome::Queued(_) => "queued",
                Outcome::Never => "never",
                Outcome::Unanswered => "unanswered",
                _ => "rejected",
            },
            refused_by: checked.refused_by(),
            retry_after_ms: checked.retry_after().map(ms),
            start_after_ms: ms(checked.start_after()),
            shadow: checked.shadow(),
            made: checked.made().map(tidegate::shared::Made::name),
            id,
            limits: checked.limits().iter().zip(named).map(OfLimit::new).collect(),
            checked,
        }
    }

    pub(super) fn into_response(self) -> Response {
        let status = match self.checked.outcome() {
            Outcome::Allowed | Outcome::Queued(_) => StatusCode::OK,
            Outcome::Never => StatusCode::UNPROCESSABLE_ENTITY,
            Outcome::Unanswered => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut response = json(status, &self);
        self.checked.fields(response.headers_mut());
        response
    }
}

impl<'a> OfLimit<'a> {
    fn new((limit, named): (&'a CheckedLimit, &'a Named)) -> Self {
        let reset = limit.left.map(|left| match left {
            Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. } => ms(reset_after),
            Decision::Never { .. } => 0,
        });
        Self {
            limit: &limit.name,
            key: &named.key,
            cost: limit.cost,
            allowed: limit.decision.map(|decision| decision.is_allowed()),
            remaining: limit.left.filter(|_| limit.capacity.is_some()).map(|left| left.remaining()),
            capacity: limit.capacity,
            retry_after_ms: limit.decision.and_then(|decision| decision.retry_after()).map(ms),
            reset_after_ms: reset,
        }
    }
}

/// Whole milliseconds, rounded up.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What is wrong, as a problem body (RFC 9457).
pub(super) fn problem(status: StatusCode, detail: &str) -> Response {
    #[derive(Serialize)]
    struct Problem<'a> {
        r#type: &'static str,
        title: &'a str,
        status: u16,
        detail: &'a str,
    }
    let title = status.canonical_reason().unwrap_or_default();
    let body = Problem { r#type: "about:blank", title, status: status.as_u16(), detail };
    let bytes = serde_json::to_vec(&body).unwrap_or_default();
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))], bytes).into_response()
}
