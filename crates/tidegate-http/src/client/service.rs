//! Calls through a tower service.

use std::any::Any;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::Pace;
use super::body::PacedBody;
use super::call::{Exchange, Shared};
use super::head::CallHead;
use super::policy::Failure;
use super::report::CallError;

/// How the body of a request is had once more.
///
/// A function `Fn(&B) -> Option<B>` is one as well: `None` for a body that cannot be sent twice.
pub trait RepeatBody<B>: Send + Sync + 'static {
    /// The same body again, if that can be.
    fn repeat(&self, body: &B) -> Option<B>;
}

/// Bodies are cloned, as `Full<Bytes>` and `String` can be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cloned;

impl<B: Clone> RepeatBody<B> for Cloned {
    fn repeat(&self, body: &B) -> Option<B> {
        Some(body.clone())
    }
}

/// No body can be had again, so that nothing is sent twice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Once;

impl<B> RepeatBody<B> for Once {
    fn repeat(&self, _: &B) -> Option<B> {
        None
    }
}

impl<B, F: Fn(&B) -> Option<B> + Send + Sync + 'static> RepeatBody<B> for F {
    fn repeat(&self, body: &B) -> Option<B> {
        self(body)
    }
}

impl<S, R> Layer<S> for Pace<R> {
    type Service = PaceService<S, R>;

    fn layer(&self, inner: S) -> PaceService<S, R> {
        PaceService { inner, shared: Arc::clone(&self.shared), repeat: Arc::clone(&self.repeat) }
    }
}

/// A service whose calls are paced, from [`Pace`]. Clones share the gate.
///
/// It is always ready: a call waits in the gate first, and then until the service inside is ready, so that it holds no
/// place there while it waits for its turn. How many may wait is the gate's
/// [`max_waiting`](tidegate::gate::Builder::max_waiting).
#[derive(Debug)]
pub struct PaceService<S, R = Cloned> {
    inner: S,
    shared: Arc<Shared>,
    repeat: Arc<R>,
}

impl<S: Clone, R> Clone for PaceService<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared), repeat: Arc::clone(&self.repeat) }
    }
}

impl<S, R, RequestBody, ResponseBody> Service<Request<RequestBody>> for PaceService<S, R>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    R: RepeatBody<RequestBody>,
    RequestBody: Send + 'static,
    ResponseBody: Body + Send + 'static,
    ResponseBody::Error: Send,
{
    type Response = Response<PacedBody<ResponseBody>>;
    type Error = CallError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    /// # Cancel safety
    ///
    /// Dropping the future while it waits takes the call out of the line, and a permit that it was granted goes back as
    /// if it had not been. Dropping it while an attempt runs drops that; its tokens stay spent and its place is free.
    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let wish = shared.wish(CallHead::of(&request));
        let tower = Tower {
            inner: self.inner.clone(),
            shared: Arc::clone(&shared),
            repeat: Arc::clone(&self.repeat),
        };
        Box::pin(async move { shared.run(wish, request, tower).await })
    }
}

struct Tower<S, R> {
    inner: S,
    shared: Arc<Shared>,
    repeat: Arc<R>,
}

impl<S, R, RequestBody, ResponseBody> Exchange<Request<RequestBody>> for Tower<S, R>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Send,
    S::Error: Send + 'static,
    S::Future: Send,
    R: RepeatBody<RequestBody>,
    RequestBody: Send,
    ResponseBody: Body + Send,
    ResponseBody::Error: Send,
{
    type Body = ResponseBody;
    type Error = S::Error;

    fn repeat(&self, request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
        let body = self.repeat.repeat(request.body())?;
        let mut again = Request::new(body);
        again.method_mut().clone_from(request.method());
        again.uri_mut().clone_from(request.uri());
        *again.version_mut() = request.version();
        again.headers_mut().clone_from(request.headers());
        again.extensions_mut().clone_from(request.extensions());
        Some(again)
    }

    async fn ready(&mut self) -> Result<(), S::Error> {
        poll_fn(|context| self.inner.poll_ready(context)).await
    }

    fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, S::Error>> + Send {
        self.inner.call(request)
    }

    fn failure(&self, error: &S::Error) -> Failure {
        let error: &dyn Any = error;
        self.shared.failure.as_ref().map_or(Failure::Unknown, |failure| failure(error))
    }
}
