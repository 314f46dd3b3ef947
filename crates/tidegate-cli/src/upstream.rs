//! A service behind this server: requests that were allowed go on to it, and its answers come back.
//!
//! Bodies stream both ways, with their trailers, and nobody reads further than the other side takes. What went out and
//! got no answer may have been done, so it is sent once, and the client is the one to decide. Only a request of a safe
//! method without a body, such as GET, goes out a second time when the connection was closed on it: an idle connection
//! may be closed at the very moment when it is used. A client that goes away ends its request to the service.
//!
//! `Host` goes on as the client sent it, the path and the query byte for byte. What a proxy changes in a head is in
//! `fields.rs`, what it answers when the service does not in `fault.rs`.

mod body;
mod fault;
mod fields;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, Method, StatusCode, Uri, Version};
use axum::response::Response;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::fault::Hint;
use body::{Bodiless, Watch, Watched};
use fault::{Fault, Log};

/// How long it may take to connect. A service that is there answers in milliseconds; one packet that is lost costs a
/// second, two cost three.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection is kept for the next request. Some services close theirs after five seconds; a request that meets
/// the closing is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// When a connection on which nothing moves is asked whether the other end is there. Answers may be silent for long.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Connections at one time that have become something else, as for a WebSocket. It is as many as there are connections.
const MAX_TUNNELS: usize = 10_000;

/// A service that requests are passed on to.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client<HttpConnector, Watched>,
    authority: Authority,
    /// What goes before each path, without a slash at the end.
    base: String,
    timeout: Duration,
    tunnels: Arc<Semaphore>,
    log: Log,
}

impl Upstream {
    /// The service at `url`, which has to begin its answer in `timeout`.
    ///
    /// # Errors
    ///
    /// A text that is no address of the form `http://HOST[:PORT][/BASE]`.
    pub(crate) fn new(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        let wrong = |why: &str| {
            Hint::error(
                format!("--upstream {url}: {why}"),
                "write for example --upstream http://127.0.0.1:3000; a path at its end goes before all paths",
            )
        };
        let uri: Uri = url.parse().map_err(|_| wrong("not an address"))?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(Hint::error(
                format!("--upstream {url}: this version does not speak TLS"),
                "write http://, to the service itself or to a proxy beside it that speaks TLS to it",
            ));
        }
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(wrong("not an http:// address"));
        }
        let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err(wrong("no host"));
        };
        if authority.as_str().contains('@') {
            return Err(wrong("names and passwords are not sent"));
        }
        if authority.as_str().len() > authority.host().len() && authority.port_u16().is_none() {
            return Err(wrong("the port is not a number up to 65535"));
        }
        if uri.query().is_some() || url.contains('#') {
            return Err(wrong("a query or a fragment has no place here"));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(KEEPALIVE));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Ok(Self {
            client,
            authority: authority.clone(),
            base: uri.path().trim_end_matches('/').to_owned(),
            timeout,
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
            log: Log::new(url),
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
        fields::to_upstream(&mut parts, &body, peer)?;
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

    /// Where the request goes: the path as it is, behind the base.
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
            _ if path.starts_with('/') => format!("{}{path}", self.base),
            // http://host?query
            _ => format!("{}/{path}", self.base),
        };
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone());
        uri.path_and_query(path)
            .build()
            .map_err(|_| Fault::Refused(StatusCode::URI_TOO_LONG, "the path is too long to be passed on"))
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

    fn target(base: &str, method: &str, uri: &str) -> Option<String> {
        let upstream = Upstream::new(base, Duration::from_secs(1)).unwrap();
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        upstream.target(&request).ok().map(|uri| uri.to_string())
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
            assert_eq!(target(base, method, uri).as_deref(), expected, "{base} {method} {uri}");
        }
        let upstream = Upstream::new("http://a/b", Duration::from_secs(1)).unwrap();
        let request = Request::builder().method("OPTIONS").uri("*").body(Body::empty()).unwrap();
        assert_eq!(upstream.target(&request).unwrap().path(), "*");
    }

    #[test]
    fn what_is_no_address_of_a_service_is_said() {
        for (url, expected) in [
            ("https://a", "does not speak TLS"),
            ("ftp://a", "not an http:// address"),
            ("a:80", "not an http:// address"),
            ("/x", "not an http:// address"),
            ("", "not an address"),
            ("http://u:p@a", "names and passwords are not sent"),
            ("http://a:99999", "the port is not a number up to 65535"),
            ("http://a:/x", "the port is not a number up to 65535"),
            ("http://[::1]:x", "the port is not a number up to 65535"),
            ("http://a/?x", "a query or a fragment has no place here"),
            ("http://a/#x", "a query or a fragment has no place here"),
        ] {
            let error = Upstream::new(url, Duration::from_secs(1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }
}
