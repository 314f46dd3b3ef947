//! A service behind this server: requests that were allowed go on to it, and its answers come back.
//!
//! Bodies stream both ways, with their trailers, and nobody reads further than the other side takes. What went out and
//! got no answer may have been done, so it is sent once, and the client is the one to decide. Only a request of a safe
//! method without a body, such as GET, goes out a second time when the connection was closed on it: an idle connection
//! may be closed at the very moment when it is used. A client that goes away ends its request to the service.
//!
//! `Host` goes on as the client sent it or becomes the service's own, as the verb says; the path and the query go on byte
//! for byte. What a proxy changes in a head is in `fields.rs`, what it answers when the service does not in `fault.rs`, and
//! how it connects in `connect.rs`.

mod address;
mod body;
mod connect;
mod fault;
mod fields;
mod handshake;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, StatusCode, Uri, Version};
use axum::response::Response;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Semaphore;

pub(crate) use address::Address;
use body::{Bodiless, Watch, Watched};
use connect::Connector;
use fault::{Fault, Log};

/// How long a connection is kept for the next request. Some services close theirs after five seconds; a request that meets
/// the closing is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Connections at one time that have become something else, as for a WebSocket. It is as many as there are connections.
const MAX_TUNNELS: usize = 10_000;

/// The `Host` that the service is told. In both cases `X-Forwarded-Host` has the one that the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// The client's, for a service that makes links of it, or is several by it.
    AsSent,
    /// That of its address, for a service that answers to its own name only, as one that its certificate is for.
    OfUpstream,
}

/// What becomes of the path that a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paths {
    /// It goes behind that of the address.
    BehindBase,
    /// It stays, but that `/` becomes the path of the address.
    AsSent,
}

/// A service that requests are passed on to.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client<Connector, Watched>,
    address: Address,
    host: Host,
    paths: Paths,
    timeout: Duration,
    tunnels: Arc<Semaphore>,
    log: Log,
}

impl Upstream {
    /// The service at `address`, which has to begin its answer in `timeout`.
    ///
    /// # Errors
    ///
    /// The service is to be reached by https, and no authority is known to check its certificate with.
    pub(crate) fn new(address: Address, host: Host, paths: Paths, timeout: Duration) -> anyhow::Result<Self> {
        let connector = Connector::new(address.is_https())?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Ok(Self {
            client,
            log: Log::new(&address.url),
            address,
            host,
            paths,
            timeout,
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
        })
    }

    /// Passes a request from `peer` on, and the answer back. Without an answer it is a 502 or 504 with a problem body.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the request to the service.
    pub(crate) async fn forward(&self, request: Request, peer: SocketAddr) -> Response {
        self.exchange(request, peer).await.unwrap_or_else(|fault| {
            self.log.note(&fault);
            fault.response()
        })
    }

    async fn exchange(&self, mut request: Request, peer: SocketAddr) -> Result<Response, Fault> {
        let uri = self.target(&request)?;
        let method = request.method().clone();
        let protocol = fields::upgrade(request.headers()).filter(|_| request.version() == Version::HTTP_11);
        let client_side = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        fields::to_upstream(&mut parts, &body, peer, self.host)?;
        if let Some(protocol) = protocol {
            fields::set_upgrade(&mut parts.headers, protocol);
        }
        let Parts { headers, .. } = parts;

        let watch = Arc::new(Watch::new());
        let send = |headers: HeaderMap, body: Body| {
            let mut request = Request::new(Watched::new(body, Arc::clone(&watch)));
            *request.method_mut() = method.clone();
            *request.uri_mut() = uri.clone();
            *request.headers_mut() = headers;
            self.client.request(request)
        };
        let again = (method.is_safe() && body.is_end_stream()).then(|| headers.clone());
        let answer = async {
            match (send(headers, body).await, again) {
                (Err(error), Some(headers)) if fault::is_cut_off(&error) => {
                    send(headers, Body::empty()).await
                }
                (result, _) => result,
            }
        };
        let mut response = tokio::select! {
            response = answer => response.map_err(|error| Fault::of(&error))?,
            late = watch.late(self.timeout) => return Err(Fault::Late(late)),
        };

        let upgrade = fields::upgrade(response.headers());
        let service_side = hyper::upgrade::on(&mut response);
        fields::to_client(response.headers_mut())?;
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client_side), Some(protocol)) = (client_side, upgrade) else {
                return Err(Fault::Broken("it switched to a protocol that nobody asked for".to_owned()));
            };
            self.tunnel(client_side, service_side)?;
            fields::set_upgrade(response.headers_mut(), protocol);
        }
        Ok(with_body(&method, response))
    }

    /// Where the request goes, its path byte for byte.
    fn target(&self, request: &Request) -> Result<Uri, Fault> {
        let (method, uri) = (request.method(), request.uri());
        if method == Method::CONNECT {
            return Err(Fault::Refused(StatusCode::NOT_IMPLEMENTED, "CONNECT is not passed on"));
        }
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = match path {
            // It is about the service as a whole (RFC 9110, 9.3.7).
            "*" if method == Method::OPTIONS => "*".to_owned(),
            "*" => return Err(Fault::Refused(StatusCode::BAD_REQUEST, "only OPTIONS has the target *")),
            _ if path.starts_with('/') => self.path(path),
            // http://host?query
            _ => self.path(&format!("/{path}")),
        };
        let Address { scheme, authority, .. } = &self.address;
        let uri = Uri::builder().scheme(scheme.clone()).authority(authority.clone());
        uri.path_and_query(path)
            .build()
            .map_err(|_| Fault::Refused(StatusCode::URI_TOO_LONG, "the path is too long to be passed on"))
    }

    /// The path that a path with its query becomes.
    fn path(&self, sent: &str) -> String {
        let base = &self.address.path;
        match (self.paths, sent.strip_prefix('/')) {
            (Paths::BehindBase, _) => format!("{}{sent}", base.trim_end_matches('/')),
            (Paths::AsSent, Some(query)) if query.is_empty() || query.starts_with('?') => {
                format!("{base}{query}")
            }
            (Paths::AsSent, _) => sent.to_owned(),
        }
    }

    /// Copies what the two sides say to each other from now on, until both have ended or one breaks.
    fn tunnel(&self, client: OnUpgrade, service: OnUpgrade) -> Result<(), Fault> {
        let Ok(place) = Arc::clone(&self.tunnels).try_acquire_owned() else {
            return Err(Fault::Refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "as many connections have been upgraded as the server may have",
            ));
        };
        tokio::spawn(async move {
            // Who breaks the connection ends it for both, and there is nobody to tell.
            if let (Ok(client), Ok(service)) = tokio::join!(client, service) {
                let (mut client, mut service) = (TokioIo::new(client), TokioIo::new(service));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut service).await;
            }
            drop(place);
        });
        Ok(())
    }
}

/// The answer with a body of the kind that it has. One that has none must not be given a length of 0: the length that is
/// told with it is that of another answer.
fn with_body(method: &Method, response: Response<Incoming>) -> Response {
    let has_none = *method == Method::HEAD
        || response.status().is_informational()
        || matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    response.map(|body| if has_none { Body::new(Bodiless) } else { Body::new(body) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(base: &str, paths: Paths) -> Upstream {
        Upstream::new(Address::parse(base).unwrap(), Host::AsSent, paths, Duration::from_secs(1)).unwrap()
    }

    fn target(base: &str, paths: Paths, method: &str, uri: &str) -> Option<String> {
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        upstream(base, paths).target(&request).ok().map(|uri| uri.to_string())
    }

    #[test]
    fn the_path_goes_behind_the_base_as_it_is() {
        for (base, method, uri, expected) in [
            ("http://a:1", "GET", "/x//y/../%2e?q=%41&&", Some("http://a:1/x//y/../%2e?q=%41&&")),
            ("http://a:1/", "GET", "/", Some("http://a:1/")),
            ("http://a/b/", "GET", "/x", Some("http://a/b/x")),
            ("http://a/b", "GET", "http://other/x?y", Some("http://a/b/x?y")),
            ("http://[::1]:5", "GET", "http://other?y", Some("http://[::1]:5/?y")),
            ("http://a", "GET", "*", None),
            ("http://a", "CONNECT", "a:1", None),
        ] {
            let target = target(base, Paths::BehindBase, method, uri);
            assert_eq!(target.as_deref(), expected, "{base} {method} {uri}");
        }
        let request = Request::builder().method("OPTIONS").uri("*").body(Body::empty()).unwrap();
        let upstream = upstream("http://a/b", Paths::BehindBase);
        assert_eq!(upstream.target(&request).unwrap().path(), "*");
    }

    #[test]
    fn a_path_that_stays_does_but_where_there_is_none() {
        for (base, uri, expected) in [
            ("http://a/mcp", "/", "http://a/mcp"),
            ("http://a/mcp/", "/?x=/", "http://a/mcp/?x=/"),
            ("http://a/mcp", "/mcp?x", "http://a/mcp?x"),
            ("http://a/mcp", "//", "http://a//"),
            ("http://a/mcp", "/.well-known/x", "http://a/.well-known/x"),
            ("http://a/mcp", "http://other?y", "http://a/mcp?y"),
            ("http://a", "/", "http://a/"),
        ] {
            assert_eq!(target(base, Paths::AsSent, "POST", uri).as_deref(), Some(expected), "{base} {uri}");
        }
    }
}
