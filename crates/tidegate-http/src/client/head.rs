//! The head of an outgoing call, and what a caller can say about one call.

use std::fmt;
use std::time::Duration;

use http::{Extensions, HeaderMap, Method};
use tidegate::gate::Cost;

/// The head of a call, as functions for its cost see it.
#[derive(Clone, Copy)]
pub struct CallHead<'a> {
    method: &'a Method,
    host: Option<&'a str>,
    path: &'a str,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> CallHead<'a> {
    pub(super) fn of<B>(request: &'a http::Request<B>) -> Self {
        Self {
            method: request.method(),
            host: request.uri().host(),
            path: request.uri().path(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    #[cfg(feature = "reqwest")]
    pub(super) fn of_reqwest(request: &'a reqwest::Request, extensions: &'a Extensions) -> Self {
        Self {
            method: request.method(),
            host: request.url().host_str(),
            path: request.url().path(),
            headers: request.headers(),
            extensions,
        }
    }

    /// The method.
    #[must_use]
    pub const fn method(&self) -> &'a Method {
        self.method
    }

    /// The host of the address, if the address is a whole one.
    #[must_use]
    pub const fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// The path, without the query.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        self.path
    }

    /// The fields.
    #[must_use]
    pub const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What the caller has put beside the request: the request's extensions, and with reqwest those of `with_extension`.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&'a T> {
        self.extensions.get()
    }
}

impl fmt::Debug for CallHead<'_> {
    /// Without the fields, which hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CallHead");
        debug.field("method", self.method).field("host", &self.host).field("path", &self.path);
        debug.finish_non_exhaustive()
    }
}

/// What a caller says about one call, in the extensions of its request. It goes before what the layer says about all.
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::client::CallOptions;
///
/// let mut request = http::Request::post("http://127.0.0.1/v1/messages").body(())?;
/// // One request, 1200 LLM tokens; it does no harm to ask twice.
/// let options = CallOptions::new().cost([1, 1200]).idempotent(true).deadline(Duration::from_secs(5));
/// request.extensions_mut().insert(options);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOptions {
    pub(super) cost: Option<Cost>,
    pub(super) idempotent: Option<bool>,
    pub(super) deadline: Option<Duration>,
}

impl CallOptions {
    /// Says nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What each attempt costs: in the gate's first limit, or in each.
    #[must_use]
    pub fn cost(mut self, cost: impl Into<Cost>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    /// Whether it does no harm if it runs twice.
    #[must_use]
    pub fn idempotent(mut self, is_idempotent: bool) -> Self {
        self.idempotent = Some(is_idempotent);
        self
    }

    /// How long after the call began its last attempt may start.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}
