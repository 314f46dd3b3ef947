//! The question of a proxy: may this request of a client go on?
//!
//! The proxy sends the head of the client's request with `X-Forwarded-Method` and `X-Forwarded-Uri` (as Traefik and Caddy do by
//! themselves, and nginx when it is told to), and its address in `X-Forwarded-For`, which is believed of a trusted proxy.
//! All limits decide about it as they would in front of the service. A proxy that takes only one status for a refusal, as nginx
//! does, asks for it: `/v1/auth?refuse=403`.

use std::convert::Infallible;
use std::fmt::Write as _;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, Response as HttpResponse, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tidegate_http::RateLimit;
use tidegate_http::layer::RateLimitService;
use tower::{Layer as _, ServiceExt as _};
use tower_service::Service;

use super::QUESTION_MAX;
use super::answer::problem;

/// Says yes to whatever the limits have let through.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yes;

impl Service<Request> for Yes {
    type Response = Response;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        std::future::ready(Ok(HttpResponse::new(Body::empty())))
    }
}

/// What decides about the requests that a proxy asks about.
pub(super) fn service(limits: &RateLimit) -> RateLimitService<Yes> {
    limits.layer(Yes)
}

pub(super) async fn ask(service: RateLimitService<Yes>, mut request: Request) -> Response {
    let refuse = match refuse(request.uri().query()) {
        Ok(refuse) => refuse,
        Err(text) => return problem(StatusCode::BAD_REQUEST, text),
    };
    let asks_with_head = *request.method() == Method::HEAD;
    // A refusal in the form of gRPC is 200, which a proxy would take for a yes.
    request.headers_mut().remove(CONTENT_TYPE);
    match original(request.headers()) {
        Ok((method, uri)) => {
            if let Some(method) = method {
                *request.method_mut() = method;
            }
            if let Some(uri) = uri {
                *request.uri_mut() = uri;
            }
        }
        Err(text) => return problem(StatusCode::BAD_REQUEST, text),
    }
    let is_about_head = *request.method() == Method::HEAD;
    let answered = match service.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let mut response = answered.map(Body::new).into_response();
    if response.status() == StatusCode::OK {
        return response;
    }
    if is_about_head && !asks_with_head {
        // The refusal of a HEAD announces a body and has none. The question of the proxy is another request, which would wait
        // for that body.
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().remove(CONTENT_TYPE);
    }
    match refuse {
        Some(refuse) => refused_with(refuse, response).await,
        None => response,
    }
}

/// The same refusal with another status, which its body says too.
async fn refused_with(status: StatusCode, response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    head.status = status;
    let bytes = axum::body::to_bytes(body, QUESTION_MAX).await.unwrap_or_default();
    let body = match serde_json::from_slice::<Value>(&bytes) {
        Ok(mut problem) => {
            problem["status"] = status.as_u16().into();
            head.headers.remove(CONTENT_LENGTH);
            Body::from(problem.to_string())
        }
        // What is no JSON is nothing.
        Err(_) => Body::from(bytes),
    };
    Response::from_parts(head, body)
}

/// The method and the address of the request that the proxy asks about, where it says them.
fn original(headers: &HeaderMap) -> Result<(Option<Method>, Option<Uri>), &'static str> {
    let method = headers.get("x-forwarded-method").map(|method| Method::from_bytes(method.as_bytes()));
    let method = method.transpose().map_err(|_| "X-Forwarded-Method is no method")?;
    let uri = headers.get("x-forwarded-uri").map(|uri| {
        // Proxies let signs pass that are not right in an address, as `<` and letters that are not ASCII: those are escaped.
        let uri = uri.as_bytes();
        Uri::try_from(uri).or_else(|_| Uri::try_from(escaped(uri)))
    });
    // A word alone is the name of a host, and has no path.
    let uri = uri.map(|uri| uri.ok().filter(|uri| !uri.path().is_empty()));
    match uri {
        Some(None) => Err("X-Forwarded-Uri is no address; send the path and the query"),
        Some(uri) => Ok((method, uri)),
        None => Ok((method, None)),
    }
}

/// An address whose signs are all right in one (RFC 3986, 2.1 and 2.2).
fn escaped(uri: &[u8]) -> String {
    uri.iter().fold(String::with_capacity(uri.len() * 3), |mut text, &byte| {
        if byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

/// The status of refusals that is asked for. Other parts of a query are the client's, which some proxies keep.
fn refuse(query: Option<&str>) -> Result<Option<StatusCode>, &'static str> {
    const WRONG: &str = "write /v1/auth, or /v1/auth?refuse=STATUS with a status from 400 to 499";
    let mut parts = query.unwrap_or_default().split('&');
    let Some(status) = parts.find_map(|part| part.strip_prefix("refuse=")) else { return Ok(None) };
    let status: u16 = status.parse().map_err(|_| WRONG)?;
    let status = StatusCode::from_u16(status).ok().filter(StatusCode::is_client_error);
    status.map(Some).ok_or(WRONG)
}
