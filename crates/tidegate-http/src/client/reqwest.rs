//! Calls through a client of reqwest, as a middleware.

use async_trait::async_trait;
use http::{Extensions, Response};
use reqwest::{Body, Request, ResponseBuilderExt as _};
use reqwest_middleware::{Error, Middleware, Next};

use super::Pace;
use super::call::Exchange;
use super::head::CallHead;
use super::policy::Failure;
use super::report::CallError;

/// With the feature `reqwest`.
///
/// - A [`NotSent`](super::NotSent) comes as [`Error::Middleware`], and is found in it by `downcast_ref`. Errors of reqwest
///   come as they are; the [`Report`](super::Report) is then in the extensions of `execute_with_extensions`.
/// - [`CallOptions`](super::CallOptions) are given by `RequestBuilder::with_extension`.
/// - An error while connecting means that nothing was sent: the tokens go back, and any call is sent again.
/// - Redirects are followed by reqwest itself, inside an attempt, and not paced.
/// - A `timeout` of reqwest is one of an attempt; it begins when that is sent.
#[async_trait]
impl<R: Send + Sync + 'static> Middleware for Pace<R> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let wish = self.shared.wish(CallHead::of_reqwest(&request, extensions));
        let chain = Chain { next, extensions: &mut *extensions };
        match self.shared.run(wish, request, chain).await {
            Ok(answer) => Ok(answer.map(Body::wrap).into()),
            Err(CallError::NotSent(not_sent)) => Err(Error::middleware(not_sent)),
            Err(CallError::Failed { error, report }) => {
                extensions.insert(*report);
                Err(error)
            }
        }
    }
}

/// The middlewares inside, and the client.
struct Chain<'a> {
    next: Next<'a>,
    extensions: &'a mut Extensions,
}

impl Exchange<Request> for Chain<'_> {
    type Body = Body;
    type Error = Error;

    fn repeat(&self, request: &Request) -> Option<Request> {
        request.try_clone()
    }

    async fn ready(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn send(&mut self, request: Request) -> Result<Response<Body>, Error> {
        let response = self.next.clone().run(request, self.extensions).await?;
        let url = response.url().clone();
        let mut response = Response::<Body>::from(response);
        // reqwest keeps the address of a response in its extensions, where only a builder puts it.
        if let Ok(with_url) = Response::builder().url(url).body(()) {
            response.extensions_mut().extend(with_url.into_parts().0.extensions);
        }
        Ok(response)
    }

    fn failure(&self, error: &Error) -> Failure {
        let Error::Reqwest(error) = error else { return Failure::Final };
        let is_final = error.is_builder()
            || error.is_redirect()
            || error.is_status()
            || error.is_decode()
            || error.is_upgrade();
        match () {
            () if error.is_connect() => Failure::Unsent,
            () if is_final => Failure::Final,
            () => Failure::Unknown,
        }
    }
}
