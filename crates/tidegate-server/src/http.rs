//! Decisions over HTTP and JSON, for every language.
//!
//! | | |
//! | --- | --- |
//! | `POST /v1/check` | decides a call in the limits that it names, all or none, and charges it; or only looks (`"peek": true`) |
//! | `POST /v1/reserve` | the same for a cost that is known afterwards: charges an estimate, and answers an `id` |
//! | `POST /v1/settle` | charges what the call has really cost, in place of the estimate |
//! | `POST /v1/cancel` | gives the estimate back |
//! | `/v1/auth` | decides the request that a proxy asks about, by all limits: 200 or 429 |
//! | `GET /v1/limits` | the limits in force, in words |
//! | `GET /v1/openapi.json` | the description of all of it |
//!
//! **Answers** of a decision: 200 when it is allowed, 429 when a wait helps, 422 when none does (the cost is above the capacity),
//! 503 when what keeps the limits does not answer. They carry `RateLimit`, `RateLimit-Policy`, `Retry-After` and
//! `retry-after-ms`, and say the same in JSON. What is wrong with a question is a problem body (`application/problem+json`).
//!
//! **State.** The limits are those of a [`RateLimit`]. What is reserved is kept here, bounded in number and time; what is
//! neither settled nor cancelled stays charged.

mod answer;
mod auth;
mod question;
mod reserved;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use serde::Serialize;
use tidegate_http::RateLimit;
use tidegate_http::layer::{Charged, Key, Take};
use tokio::sync::Semaphore;

use answer::{Answer, problem};
use question::{Asked, Named, Settled};
use reserved::Reserved;

use crate::secret::is_same;

/// The most bytes of a question.
pub const QUESTION_MAX: usize = 64 * 1024;

/// How many questions of more than 4 KiB are read at one time, so that many clients which are slow take 64 MiB; others wait.
pub const LARGE_MAX: usize = 1024;

/// How long a question may take to come. It is the time that the head of a request has: who sends neither holds a connection.
pub const QUESTION_TIME_MAX: Duration = Duration::from_secs(60);

/// The most limits that a question names.
pub const LIMITS_MAX: usize = 32;

/// The most bytes of the parts of a key together.
pub const KEY_MAX: usize = 1024;

/// In how many limits calls can be reserved at one time, all together: as many calls if each names one. It takes about 300 bytes
/// for each.
pub const RESERVED_MAX: usize = 65_536;

/// How long a call stays reserved at most.
pub const EXPIRES_MAX: Duration = Duration::from_secs(3600);

/// Makes a key of a limit from its parts, as people write them: what a request of that key would have.
pub type KeyOf = Arc<dyn Fn(&str, &[String]) -> Result<Key<'static>, String> + Send + Sync>;

/// What the limits are, in words.
pub type Words = Arc<dyn Fn() -> Vec<LimitInWords> + Send + Sync>;

/// One limit in words.
#[derive(Debug, Clone, Serialize)]
pub struct LimitInWords {
    /// Its name.
    pub name: String,
    /// What it means, in lines.
    pub words: Vec<String>,
}

/// What the API is made of.
#[derive(Clone)]
pub struct Api {
    /// The limits.
    pub limits: RateLimit,
    /// How their keys are read.
    pub key_of: KeyOf,
    /// What they mean.
    pub words: Words,
    /// What who asks has to give as `Authorization: Bearer TOKEN`.
    pub token: Option<Arc<str>>,
}

#[derive(Clone)]
struct Desk {
    api: Api,
    reserved: Arc<Reserved>,
    /// Places for large questions.
    large: Arc<Semaphore>,
}

/// The routes of the API. Other paths are not answered by it.
pub fn router(api: Api) -> Router {
    let auth = auth::service(&api.limits);
    let token = api.token.clone();
    let desk = Desk { api, reserved: Arc::default(), large: Arc::new(Semaphore::new(LARGE_MAX)) };
    let router = Router::new()
        .route("/v1/check", post(check))
        .route("/v1/reserve", post(reserve))
        .route("/v1/settle", post(settle))
        .route("/v1/cancel", post(cancel))
        .route("/v1/limits", get(limits))
        .route("/v1/openapi.json", get(openapi))
        .method_not_allowed_fallback(async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method; see /v1/openapi.json")
        })
        .with_state(desk)
        .route("/v1/auth", any(move |request: Request| auth::ask(auth.clone(), request)))
        .route("/v1", any(no_such_path))
        .route("/v1/", any(no_such_path))
        .route("/v1/{*other}", any(no_such_path));
    match token {
        Some(token) => ask_token(router, token),
        None => router,
    }
}

/// The same routes, for who has the token: what else is served under the limits needs it as well, as whoever is served there
/// spends tokens.
pub fn ask_token(router: Router, token: Arc<str>) -> Router {
    router.layer(from_fn_with_state(token, has_token))
}

/// Lets who has the token pass.
async fn has_token(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    // The name of a scheme may be in capitals or not (RFC 9110, 11.1).
    let given = given.split_at_checked(b"Bearer ".len());
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer ")).map(|(_, token)| token);
    if is_same(given.unwrap_or_default(), token.as_bytes()) {
        return next.run(request).await;
    }
    let mut response =
        problem(StatusCode::UNAUTHORIZED, "send the token of this server as `Authorization: Bearer TOKEN`");
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

async fn no_such_path() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such path; see /v1/openapi.json")
}

async fn check(State(desk): State<Desk>, body: Body) -> Response {
    let asked = match Asked::read(body, &desk.large).await {
        Ok(asked) => asked,
        Err(response) => return *response,
    };
    let takes = match takes(&desk, &asked.named) {
        Ok(takes) => takes,
        Err(response) => return *response,
    };
    match desk.api.limits.check(&takes, !asked.peek).await {
        Ok(checked) => Answer::new(&checked, &asked.named, None).into_response(),
        Err(error) => problem(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

async fn reserve(State(desk): State<Desk>, body: Body) -> Response {
    let asked = match Asked::read(body, &desk.large).await {
        Ok(asked) => asked,
        Err(response) => return *response,
    };
    if asked.peek {
        return problem(StatusCode::BAD_REQUEST, "`peek` is for /v1/check; a reservation is charged");
    }
    if !desk.api.limits.gives_back() {
        let text = "nothing is given back on a shared store, so nothing can be reserved; use /v1/check";
        return problem(StatusCode::NOT_IMPLEMENTED, text);
    }
    let takes = match takes(&desk, &asked.named) {
        Ok(takes) => takes,
        Err(response) => return *response,
    };
    let Some(room) = desk.reserved.room(takes.len()) else {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "as many calls are reserved as can be; settle some");
    };
    match desk.api.limits.reserve(&takes).await {
        Ok((checked, charged)) => {
            let id = charged.map(|charged| desk.reserved.keep(room, charged, asked.expires));
            Answer::new(&checked, &asked.named, id).into_response()
        }
        Err(error) => problem(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

async fn settle(State(desk): State<Desk>, body: Body) -> Response {
    #[derive(Serialize)]
    struct Done {
        /// What could not be charged, as it was not there.
        missing: u64,
    }
    let settled = match Settled::read(body, &desk.large, true).await {
        Ok(settled) => settled,
        Err(response) => return *response,
    };
    // A name that is not right must not be the cost that is not said, which is 0.
    let charged = desk.reserved.take_if(&settled.id, |charged| match settled.unknown(charged.limits()) {
        Some(name) => Err(wrong_name(name, charged)),
        None => Ok(()),
    });
    match charged {
        Ok(Some(charged)) => {
            json(StatusCode::OK, &Done { missing: charged.settle(|limit| settled.cost(limit)) })
        }
        Ok(None) => gone(),
        Err(text) => problem(StatusCode::BAD_REQUEST, &text),
    }
}

async fn cancel(State(desk): State<Desk>, body: Body) -> Response {
    #[derive(Serialize)]
    struct Done {
        cancelled: bool,
    }
    let settled = match Settled::read(body, &desk.large, false).await {
        Ok(settled) => settled,
        Err(response) => return *response,
    };
    match desk.reserved.take(&settled.id) {
        Some(charged) => {
            charged.give_back();
            json(StatusCode::OK, &Done { cancelled: true })
        }
        None => gone(),
    }
}

fn wrong_name(name: &str, charged: &Charged) -> String {
    let names: Vec<_> = charged.limits().map(|limit| format!("`{limit}`")).collect();
    format!("nothing is reserved in `{name}`; it is in {}", names.join(", "))
}

fn gone() -> Response {
    problem(
        StatusCode::NOT_FOUND,
        "nothing is reserved by this id: it was settled, cancelled, or its time is over",
    )
}

async fn limits(State(desk): State<Desk>) -> Response {
    #[derive(Serialize)]
    struct Limits {
        limits: Vec<LimitInWords>,
    }
    json(StatusCode::OK, &Limits { limits: (desk.api.words)() })
}

async fn openapi() -> Response {
    let text = include_str!("http/openapi.json");
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// What is asked of the limits.
fn takes<'a>(desk: &Desk, named: &'a [Named]) -> Result<Vec<Take<'a>>, Box<Response>> {
    let take = |named: &'a Named| {
        let key = (desk.api.key_of)(&named.limit, &named.key)
            .map_err(|why| Box::new(problem(StatusCode::BAD_REQUEST, &why)))?;
        Ok(Take { limit: &named.limit, key, cost: named.cost })
    };
    named.iter().map(take).collect()
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // Room for a decision in one limit, so that few answers are moved while they are written.
    let mut bytes = Vec::with_capacity(512);
    match serde_json::to_writer(&mut bytes, value) {
        Ok(()) => {
            let mut response = Response::new(Body::from(bytes));
            *response.status_mut() = status;
            let kind = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &format!("no JSON: {error}")),
    }
}

impl fmt::Debug for Api {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("limits", &self.limits).finish_non_exhaustive()
    }
}
