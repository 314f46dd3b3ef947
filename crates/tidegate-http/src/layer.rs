//! A tower layer that limits the requests of a server.
//!
//! ```text
//! request -> exempt? -> keys and costs -> all limits look -> a place in flight? -> all are charged -> service inside
//!                                               |                  |
//!                                     429, 400 (never)     429 (the key's), 503 (the server's)
//! ```
//!
//! **State.** A [`RateLimit`], its clones, and all services that it makes share one state. A layer that is built anew for
//! each connection limits nothing.
//!
//! **All or none.** A request is charged in all limits or in none, whatever their keys, and a rejected one changes nothing.
//! One limit alone is decided without a lock. With several, or with places in flight, an allowed request holds one lock
//! for as long as the decisions take; a request that a quota refuses does not.
//!
//! **Not served** is a request whose response has the mark [`NotServed`], as from a proxy whose service is down: what it was
//! charged is taken back.
//!
//! **In flight** is a request from its decision until the body of its response has ended, has failed or is dropped, and so
//! for a stream until it ends or the client goes away. If the service fails or panics, its place is free at once. What a
//! connection does after an upgrade (101, as for a WebSocket) has no body and holds no place.
//!
//! **Rejections** are responses, so the error of the service inside stays what it is:
//!
//! | | status | body | `Retry-After` |
//! | --- | --- | --- | --- |
//! | a limit refuses | 429 | problem `quota-exceeded` | the wait, in whole seconds up; `retry-after-ms` too |
//! | the key's places are taken | 429 | problem `quota-exceeded` | none, as nobody can tell |
//! | the server's places are taken | 503 | problem `temporary-reduced-capacity` | none, as nobody can tell |
//! | the cost is above the capacity | 400 | problem without a type | none, as no wait helps |
//!
//! A response to HEAD has the fields and no body. A request of gRPC (`application/grpc`) gets its own form: HTTP 200 with
//! `grpc-status` 8 or 14 and `grpc-retry-pushback-ms`. To write other bodies, look for the [`Rejection`] in the extensions of
//! the response in a service around this one.
//!
//! **What it does not do**: let requests wait for their turn (a leaky bucket with a queue is an error), and limit a request by
//! what its body holds or its response costs.

mod body;
mod build;
mod desk;
mod key;
mod places;
mod respond;
mod shape;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

pub use body::RateLimitBody;
pub use build::{IntoAlgorithm, RateLimitBuilder, RateLimitError, RequestLimit};
use desk::{Charges, Decided, Desk};
pub use key::{Key, KeyBy, RequestHead};
use places::Permit;
use respond::{Caller, Protocol, Stamp};
pub use respond::{Rejection, ShadowRejection};

/// Limits the requests that reach a service: a tower [`Layer`]. Clones share one state.
///
/// See the [module](self) for what is answered when. The keys of the client's address need the address of the peer: see
/// [`KeyBy::client`].
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response, StatusCode};
/// use http_body_util::Empty;
/// use tidegate_http::RateLimit;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let inner = service_fn(|_: Request<()>| async {
///     Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
/// });
/// let service = RateLimit::per_client("1 per 10s").layer(inner);
/// let request = || Request::new(());
///
/// assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
/// let rejected = service.clone().oneshot(request()).await.unwrap();
/// assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(rejected.headers()["retry-after"], "10");
/// assert_eq!(rejected.headers()["ratelimit"], "\"per-client\";r=0;t=10");
/// assert_eq!(rejected.headers()["ratelimit-policy"], "\"per-client\";q=1;w=10");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimit {
    desk: Arc<Desk>,
}

/// What a [`RateLimit`] has decided since it was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that went to the service inside. Those that are exempt are not counted at all.
    pub allowed: u64,
    /// Requests that a limit, or that in flight of their key, refused; those of *never* included.
    pub rejected: u64,
    /// Requests for which the server had no place in flight.
    pub shed: u64,
    /// Requests that a shadow limit would have refused.
    pub shadow: u64,
    /// Requests whose client was asked for and is not known, as the address of the peer was not found. If this is not 0,
    /// see [`KeyBy::client`].
    pub without_peer: u64,
    /// Requests whose response was marked as [`NotServed`], which are counted as allowed as well.
    pub not_served: u64,
    /// Requests that hold a place of [`RateLimitBuilder::max_in_flight`] now; 0 without that limit.
    pub in_flight: u64,
}

impl RateLimit {
    /// The quota for each client by its address, as a limit of the name `per-client` with room for 65,536 clients.
    ///
    /// The quota is a text such as `10/s burst 20`, a [`Quota`](tidegate::Quota) or an
    /// [`Algorithm`](tidegate::Algorithm).
    ///
    /// # Panics
    ///
    /// When the text is no quota, with what to write instead. Where the text comes from outside of the program, take
    /// [`Self::try_per_client`].
    #[must_use]
    #[track_caller]
    pub fn per_client(quota: impl IntoAlgorithm) -> Self {
        match Self::try_per_client(quota) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// The quota for each client by its address, as [`Self::per_client`].
    ///
    /// # Errors
    ///
    /// A text that is no quota; a leaky bucket with a queue.
    ///
    /// ```
    /// use tidegate_http::RateLimit;
    ///
    /// let error = RateLimit::try_per_client("10/fortnight").unwrap_err();
    /// assert!(error.to_string().starts_with("limit `per-client`: unknown unit `fortnight`"));
    /// ```
    pub fn try_per_client(quota: impl IntoAlgorithm) -> Result<Self, RateLimitError> {
        Self::builder().limit(RequestLimit::new("per-client", quota)).build()
    }

    /// A layer with more to say about it: other keys and costs, several limits, places in flight, proxies.
    #[must_use]
    pub fn builder() -> RateLimitBuilder {
        RateLimitBuilder::new()
    }

    fn of(desk: Desk) -> Self {
        Self { desk: Arc::new(desk) }
    }

    /// What has been decided so far, by all clones together. The numbers are read one after the other.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.desk.counters;
        Counts {
            allowed: counters.allowed.load(Ordering::Relaxed),
            rejected: counters.rejected.load(Ordering::Relaxed),
            shed: counters.shed.load(Ordering::Relaxed),
            shadow: counters.shadow.load(Ordering::Relaxed),
            without_peer: counters.without_peer.load(Ordering::Relaxed),
            not_served: counters.not_served.load(Ordering::Relaxed),
            in_flight: self.desk.places.lock().running(),
        }
    }

    /// How full the table of a limit is; `None` if there is no limit of that name. It walks the whole table.
    #[must_use]
    pub fn stats(&self, limit: &str) -> Option<tidegate::Stats> {
        let entry = self.desk.limits.iter().find(|entry| &*entry.name == limit)?;
        Some(entry.limiter.stats())
    }
}

impl<S> Layer<S> for RateLimit {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> RateLimitService<S> {
        RateLimitService { inner, desk: Arc::clone(&self.desk) }
    }
}

/// A service whose requests are limited, from [`RateLimit`]. Clones share the state of the layer.
#[derive(Debug, Clone)]
pub struct RateLimitService<S> {
    inner: S,
    desk: Arc<Desk>,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RateLimitService<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    ResponseBody: Body,
    ResponseBody::Data: From<Bytes>,
{
    type Response = Response<RateLimitBody<ResponseBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    /// Ready when the service inside is, also for requests that will be rejected.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let decided = self.desk.admit(&request);
        ResponseFuture {
            state: match decided {
                Ok(admitted) => {
                    State::Allowed { inner: self.inner.call(request), admitted, desk: Arc::clone(&self.desk) }
                }
                Err(response) => State::Rejected { response: Some(response) },
            },
        }
    }
}

/// A mark in the extensions of a response: the request was not served at all, so it is to cost nothing. A proxy sets it when
/// it could not reach the service behind.
///
/// What the request was charged is taken back in all limits, as by [`Limiter::refund`](tidegate::Limiter::refund): never more than
/// if it had not come. The fields of the response still say what was left with it.
///
/// ```
/// use http::{Response, StatusCode};
/// use tidegate_http::layer::NotServed;
///
/// let mut response = Response::new(());
/// *response.status_mut() = StatusCode::BAD_GATEWAY;
/// response.extensions_mut().insert(NotServed);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotServed;

/// What goes with a request that may run.
#[derive(Debug, Default)]
struct Admitted {
    stamp: Stamp,
    permit: Option<Permit>,
    charges: Charges,
}

impl Desk {
    /// What goes with the response of a request that may run, or the whole response to one that may not.
    fn admit<B>(&self, request: &Request<B>) -> Result<Admitted, Box<Response<Bytes>>> {
        let without_peer = Cell::new(false);
        let head = RequestHead::new(request, &self.who, &without_peer);
        if (!self.preflights_count && is_preflight(request))
            || self.exempt.as_ref().is_some_and(|exempt| exempt(head))
        {
            return Ok(Admitted::default());
        }
        let decided = self.decide(head);
        let without_peer = without_peer.get();
        if without_peer {
            self.counters.without_peer.fetch_add(1, Ordering::Relaxed);
        }
        match decided {
            Decided::Alone(shown, charges) => {
                Ok(Admitted { stamp: self.stamp_alone(shown), permit: None, charges })
            }
            Decided::Verdict(mut verdict) if verdict.is_allowed() => {
                let (permit, charges) = (verdict.permit.take(), std::mem::take(&mut verdict.charges));
                Ok(Admitted { stamp: self.stamp(&verdict), permit, charges })
            }
            Decided::Verdict(verdict) => {
                let protocol = Protocol::of(request.headers(), request.method());
                Err(Box::new(self.reject(&verdict, &Caller { protocol, without_peer })))
            }
        }
    }
}

/// Whether a browser asks by it if it may send another request (Fetch standard, CORS-preflight request).
fn is_preflight<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

pin_project! {
    /// The response of a [`RateLimitService`] to come.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProjection]
    #[derive(Debug)]
    enum State<F> {
        Allowed { #[pin] inner: F, admitted: Admitted, desk: Arc<Desk> },
        Rejected { response: Option<Box<Response<Bytes>>> },
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<RateLimitBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Allowed { inner, admitted, desk } => {
                let result = ready!(inner.poll(context));
                // Taken out also if that failed: then the place is free now.
                let Admitted { stamp, permit, charges } = std::mem::take(admitted);
                let mut response = result?.map(|body| RateLimitBody::inner(body, permit));
                if response.extensions().get::<NotServed>().is_some() {
                    desk.not_served(charges);
                }
                stamp.apply(&mut response);
                Poll::Ready(Ok(response))
            }
            StateProjection::Rejected { response } => match response.take() {
                Some(response) => Poll::Ready(Ok((*response).map(RateLimitBody::own))),
                // As `std::future::Ready` does: a future is not polled again after it was ready.
                None => panic!("a response was polled after it was ready"),
            },
        }
    }
}
