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
//! **Shared.** With [`RateLimitBuilder::shared`] the limits are decided by buckets that other processes share. Then a request
//! is kept until they have said so, and the service inside is called after that.
//!
//! **Other limits** can be put in force with [`RateLimit::replace`] while requests are decided; what was spent stays spent.
//!
//! **Not served** is a request whose response has the mark [`NotServed`], as from a proxy whose service is down: what it was
//! charged is taken back if the layer was told to, [`RateLimitBuilder::take_back_not_served`].
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
//! | the shared buckets do not answer, and that closes | 503 | problem `temporary-reduced-capacity` | until the next try |
//! | the server's places are taken | 503 | problem `temporary-reduced-capacity` | none, as nobody can tell |
//! | the cost is above the capacity | 400 | problem without a type | none, as no wait helps |
//!
//! A response to HEAD has the fields and no body. A request of gRPC (`application/grpc`) gets its own form: HTTP 200 with
//! `grpc-status` 8 or 14 and `grpc-retry-pushback-ms`. To write other bodies, look for the [`Rejection`] in the extensions of
//! the response in a service around this one.
//!
//! **Waiting.** A leaky bucket with a queue lets a request wait for its turn: the service inside is called, and the future it
//! returns is polled when the turn has come (a runtime of tokio keeps the time). It holds its places in flight while it
//! waits, so that it is charged and has its places in one decision; give more places than the queue has room, or none. A
//! client that goes away meanwhile has given its turn away: it is not taken back.
//!
//! **What it does not do**: limit a request by what its body holds or its response costs.

mod body;
mod build;
mod check;
mod desk;
mod key;
mod limit;
mod observe;
mod places;
mod replace;
mod respond;
mod shape;
mod sharing;
mod turn;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

pub use body::RateLimitBody;
pub use build::{IntoAlgorithm, RateLimitBuilder, RateLimitError, RequestLimit};
pub use check::{Charged, CheckError, Checked, CheckedLimit, Take};
use desk::{Alone, Ask, Charges, Decided, Desk, Verdict};
pub use key::{Key, KeyBy, RequestHead};
pub use observe::{Observed, Outcome, SeenLimit};
use places::Permit;
pub use replace::Replaced;
use respond::{Caller, Protocol, Stamp};
pub use respond::{Rejection, ShadowRejection};
use sharing::Asking;
use turn::Turn;

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
    shared: Arc<Shared>,
}

/// What all clones of a layer, and all services of theirs, have in common.
#[derive(Debug)]
struct Shared {
    desk: ArcSwap<Desk>,
    /// Held while the limits are replaced, so that it happens once at a time.
    replacing: Mutex<()>,
}

/// What a [`RateLimit`] has decided since it was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that went to the service inside. Those that are exempt are not counted at all.
    pub allowed: u64,
    /// Requests that a limit, or that in flight of their key, refused; those of *never* included.
    pub rejected: u64,
    /// Requests for which the server had no place in flight, or that were refused since the shared buckets did not answer.
    pub shed: u64,
    /// Requests that a shadow limit would have refused.
    pub shadow: u64,
    /// Requests whose client was asked for and is not known, as the address of the peer was not found. If this is not 0,
    /// see [`KeyBy::client`].
    pub without_peer: u64,
    /// Requests whose response was marked as [`NotServed`], which are counted as allowed as well, if the layer takes those
    /// back.
    pub not_served: u64,
    /// Requests in flight now, those that wait included. They are counted if their number is limited, or if somebody is
    /// told of decisions; 0 if not.
    pub in_flight: u64,
    /// Requests that wait now for their turn in a leaky bucket.
    pub waiting: u64,
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
    /// A text that is no quota.
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
        Self { shared: Arc::new(Shared { desk: ArcSwap::from_pointee(desk), replacing: Mutex::new(()) }) }
    }

    /// What has been decided so far, by all clones together. The numbers are read one after the other.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let desk = self.shared.desk.load();
        let counters = &desk.counters;
        Counts {
            allowed: counters.allowed.load(Ordering::Relaxed),
            rejected: counters.rejected.load(Ordering::Relaxed),
            shed: counters.shed.load(Ordering::Relaxed),
            shadow: counters.shadow.load(Ordering::Relaxed),
            without_peer: counters.without_peer.load(Ordering::Relaxed),
            not_served: counters.not_served.load(Ordering::Relaxed),
            in_flight: desk.places.lock().running(),
            waiting: counters.waiting.load(Ordering::Relaxed),
        }
    }

    /// What is left to a key in a limit, without charging it: the decision on a cost of 0. `None` if there is no limit of
    /// that name, or if others keep its buckets.
    #[must_use]
    pub fn level(&self, limit: &str, key: &Key<'_>) -> Option<tidegate::Decision> {
        let desk = self.shared.desk.load();
        let entry = desk.limit(limit)?;
        let ask = Ask { key: key.clone(), tier: entry.place_of(key), cost: 0 };
        desk.sharing.is_none().then(|| entry.peek(&ask, 0, desk.now_ns()))
    }

    /// The memory of all tables in bytes; see [`Limiter::bytes`](tidegate::Limiter::bytes).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.desk.load().limits.iter().map(limit::Entry::bytes).sum()
    }

    /// How full the table of a limit is; `None` if there is no limit of that name. It walks the whole table.
    #[must_use]
    pub fn stats(&self, limit: &str) -> Option<tidegate::Stats> {
        Some(self.shared.desk.load().limit(limit)?.stats())
    }
}

impl<S> Layer<S> for RateLimit {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> RateLimitService<S> {
        RateLimitService { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A service whose requests are limited, from [`RateLimit`]. Clones share the state of the layer.
#[derive(Debug, Clone)]
pub struct RateLimitService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RateLimitService<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone,
    ResponseBody: Body,
    ResponseBody::Data: From<Bytes>,
{
    type Response = Response<RateLimitBody<ResponseBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, RequestBody>;

    /// Ready when the service inside is, also for requests that will be rejected.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let desk = self.shared.desk.load();
        let state = match desk.admit(&request) {
            Admission::Now(Ok(admitted)) => {
                let charged_by = desk.takes_back.then(|| ChargedBy::new(&self.shared, &desk));
                State::Allowed { inner: self.inner.call(request), admitted, charged_by }
            }
            Admission::Now(Err(response)) => State::Rejected { response: Some(response) },
            Admission::Later(asking, to) => {
                // This one is ready; the next call may need another.
                let next = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, next);
                State::Asking { asking, to, waiting: Some((inner, request)) }
            }
        };
        ResponseFuture { state }
    }
}

/// A mark in the extensions of a response: the request was not served at all, so it is to cost nothing. A proxy sets it when
/// it could not reach the service behind.
///
/// What the request was charged is taken back in all limits, as by [`Limiter::refund`](tidegate::Limiter::refund): never more
/// than if it had not come. The layer has to be told, with [`RateLimitBuilder::take_back_not_served`]. The fields of the response
/// still say what was left with it. If the limits were replaced since it was charged, it stays charged: its key may have had
/// another quota meanwhile, in which the charge was worn off already.
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

impl Desk {
    /// What a request gets that may run, or the whole response to one that may not, or who will say.
    fn admit<B>(self: &Arc<Self>, request: &Request<B>) -> Admission {
        let without_peer = Cell::new(false);
        let head = RequestHead::new(request, &self.who, &without_peer);
        if (!self.preflights_count && is_preflight(request))
            || self.exempt.as_ref().is_some_and(|exempt| exempt(head))
        {
            return Admission::Now(Ok(Admitted::default()));
        }
        let protocol = || Protocol::of(request.headers(), request.method());
        if let Some(sharing) = &self.sharing {
            let begun = self.begin(sharing, head);
            let to = Caller { protocol: protocol(), without_peer: self.count_peer(&without_peer) };
            return match begun {
                Ok(asking) => Admission::Later(Box::new(asking), to),
                Err(verdict) => Admission::Now(self.settle(*verdict, || to)),
            };
        }
        let decided = self.decide(head);
        let without_peer = self.count_peer(&without_peer);
        Admission::Now(match decided {
            Decided::Alone(Alone { wait, shown, permit, charges }) => {
                Ok(Admitted { stamp: self.stamp_alone(shown), permit, charges, turn: self.turn(wait) })
            }
            Decided::Verdict(verdict) => {
                self.settle(verdict, || Caller { protocol: protocol(), without_peer })
            }
        })
    }

    /// Counts a request whose peer was asked for and is not known.
    fn count_peer(&self, without_peer: &Cell<bool>) -> bool {
        let without_peer = without_peer.get();
        if without_peer {
            self.counters.without_peer.fetch_add(1, Ordering::Relaxed);
        }
        without_peer
    }

    /// What a request gets by this verdict, or the response to its caller.
    fn settle(&self, mut verdict: Verdict, to: impl FnOnce() -> Caller) -> Settled {
        if !verdict.is_allowed() {
            return Err(Box::new(self.reject(&verdict, &to())));
        }
        let (permit, charges) = (verdict.permit.take(), std::mem::take(&mut verdict.charges));
        let turn = self.turn(verdict.answer.decision.start_after());
        Ok(Admitted { stamp: self.stamp(&verdict), permit, charges, turn })
    }

    fn turn(&self, wait: Duration) -> Option<Turn> {
        (!wait.is_zero()).then(|| Turn::after(wait, &self.counters))
    }
}

/// What a request gets that may run, or the whole response to one that may not.
type Settled = Result<Admitted, Box<Response<Bytes>>>;

/// What became of a request in the layer.
enum Admission {
    Now(Settled),
    /// Others decide it, and a rejection is to be told like that.
    Later(Box<Asking>, Caller),
}

/// What a request has that may run.
#[derive(Debug, Default)]
struct Admitted {
    /// What goes with the response.
    stamp: Stamp,
    /// Its place in flight.
    permit: Option<Permit>,
    /// What it was charged.
    charges: Charges,
    /// When it may run, if that is later.
    turn: Option<Turn>,
}

/// Who has charged a request. It does not keep tables alive that were replaced.
#[derive(Debug)]
struct ChargedBy {
    shared: Arc<Shared>,
    desk: Weak<Desk>,
}

impl ChargedBy {
    fn new(shared: &Arc<Shared>, desk: &Arc<Desk>) -> Self {
        Self { shared: Arc::clone(shared), desk: Arc::downgrade(desk) }
    }

    /// The limits that charged it, if they are in force still.
    fn in_force(&self) -> Option<Arc<Desk>> {
        let desk = self.shared.desk.load_full();
        std::ptr::eq(self.desk.as_ptr(), Arc::as_ptr(&desk)).then_some(desk)
    }

    /// Takes back what a request was charged that nobody has served, if the limits are still those that charged it.
    fn not_served(&self, charges: Charges) {
        match self.in_force() {
            Some(desk) => desk.not_served(charges),
            None => self.shared.desk.load().not_served(Charges::new()),
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
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, S::Future, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, B> {
        Asking { asking: Box<Asking>, to: Caller, waiting: Option<(S, Request<B>)> },
        Allowed { #[pin] inner: F, admitted: Admitted, charged_by: Option<ChargedBy> },
        Rejected { response: Option<Box<Response<Bytes>>> },
    }
}

impl<S, RequestBody, ResponseBody> Future for ResponseFuture<S, RequestBody>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    ResponseBody: Body,
{
    type Output = Result<Response<RateLimitBody<ResponseBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Asking { asking, to, waiting } => {
                    let (desk, verdict) = ready!(asking.poll(context));
                    let decided = desk.settle(verdict, || *to);
                    match (decided, waiting.take()) {
                        (Ok(admitted), Some((mut service, request))) => {
                            State::Allowed { inner: service.call(request), admitted, charged_by: None }
                        }
                        (Ok(_), None) => polled_again(),
                        (Err(response), _) => State::Rejected { response: Some(response) },
                    }
                }
                StateProjection::Allowed { inner, admitted, charged_by } => {
                    if let Some(turn) = &mut admitted.turn {
                        ready!(turn.poll(context));
                        admitted.turn = None;
                    }
                    let result = ready!(inner.poll(context));
                    // Taken out also if that failed: then the place is free now.
                    let Admitted { stamp, permit, charges, .. } = std::mem::take(admitted);
                    let mut response = result?.map(|body| RateLimitBody::inner(body, permit));
                    if let Some(charged_by) = charged_by
                        && response.extensions().get::<NotServed>().is_some()
                    {
                        charged_by.not_served(charges);
                    }
                    stamp.apply(&mut response);
                    return Poll::Ready(Ok(response));
                }
                StateProjection::Rejected { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok((*response).map(RateLimitBody::own))),
                    None => polled_again(),
                },
            };
            state.set(next);
        }
    }
}

/// As `std::future::Ready` does: a future is not polled again after it was ready.
fn polled_again() -> ! {
    panic!("a response was polled after it was ready")
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
