//! The server that is asked: where it is, how one request is sent, what an answer says.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use axum::http::uri::{PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpStream;

use super::fields::{Said, read};

/// How long a request may take until its answer is complete, the time to connect included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server may take until it listens: one that has to be loaded and linked takes some tenths of a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait before looking again whether the server listens.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A server, and connections to it that are kept for the next request.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    client: Client<HttpConnector, Empty<Bytes>>,
    url: Uri,
    headers: HeaderMap,
}

/// What of an answer matters here.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// What its fields say of the limits.
    pub(crate) said: Said,
}

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) cause: String,
    /// Whether the server may have got the request, and may have allowed it.
    pub(crate) may_have_arrived: bool,
}

impl Answer {
    /// Whether the limit let the request through. Any answer but 429 and 503 says so: a 404 was not rejected by a limit.
    pub(crate) const fn is_allowed(&self) -> bool {
        !matches!(self.status, 429 | 503)
    }

    /// The wait that the server told, from `retry-after-ms` or else `Retry-After` in seconds. A date is no wait that can
    /// be checked, since clocks differ.
    pub(crate) fn told_wait(&self) -> Option<Duration> {
        self.said.ms.map(Duration::from_millis).or_else(|| self.said.seconds.map(Duration::from_secs))
    }
}

impl Target {
    /// A server at `url`, to which every request carries `headers`, with at most `connections` kept.
    pub(crate) fn new(url: Uri, headers: HeaderMap, connections: usize) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(connections).build(connector);
        Self { client, url, headers }
    }

    /// Waits until somebody listens, for [`PATIENCE`] at most: a server that was started a moment ago may not do so yet.
    /// Whatever else is wrong the requests will find out.
    pub(crate) async fn wait_until_listening(&self) {
        let (Some(host), port) = (self.url.host(), self.url.port_u16().unwrap_or(80)) else { return };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let refused = async || match TcpStream::connect((host.as_str(), port)).await {
            Ok(_) => false,
            Err(error) => error.kind() == ErrorKind::ConnectionRefused,
        };
        let listening = async {
            while refused().await {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let _in_time = tokio::time::timeout(PATIENCE, listening).await;
    }

    /// Sends one request and reads the whole answer.
    pub(crate) async fn ask(&self) -> Result<Answer, NoAnswer> {
        match tokio::time::timeout(TIMEOUT, self.ask_without_timeout()).await {
            Ok(result) => result,
            Err(_) => Err(NoAnswer {
                cause: format!("no answer in {} s", TIMEOUT.as_secs()),
                may_have_arrived: true,
            }),
        }
    }

    async fn ask_without_timeout(&self) -> Result<Answer, NoAnswer> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.url.clone();
        request.headers_mut().clone_from(&self.headers);
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| NoAnswer { cause: root_cause(&error), may_have_arrived: !error.is_connect() })?;
        let answer = Answer { status: response.status().as_u16(), said: read(response.headers()) };
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame.map_err(|error| NoAnswer { cause: root_cause(&error), may_have_arrived: true })?;
        }
        Ok(answer)
    }
}

/// The innermost error: `connection refused` rather than `client error`.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Reads an `http://` address; without a scheme it is one, and without a path the path is `/`.
pub(crate) fn url(text: &str) -> Result<Uri, String> {
    const HELP: &str = "write for example http://127.0.0.1:8080/";
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = with_scheme.parse().map_err(|error| format!("{error}; {HELP}"))?;
    let mut parts = uri.into_parts();
    match parts.scheme.as_ref() {
        Some(scheme) if *scheme == Scheme::HTTP => {}
        Some(scheme) if *scheme == Scheme::HTTPS => {
            return Err("this version does not speak TLS; give the http:// address of the server".to_owned());
        }
        _ => return Err(format!("only http:// addresses can be asked; {HELP}")),
    }
    let Some(authority) = parts.authority.as_ref().filter(|authority| !authority.host().is_empty()) else {
        return Err(format!("no server in the address; {HELP}"));
    };
    if authority.as_str().contains('@') {
        return Err(
            "a name and a password in an address are not sent; give --header 'authorization: ...'".to_owned()
        );
    }
    if authority.as_str().len() > authority.host().len() && authority.port_u16().is_none() {
        return Err(format!("the port of the address is not a number up to 65535; {HELP}"));
    }
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|error| format!("{error}; {HELP}"))
}

/// Reads `Name: value`.
pub(crate) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("no colon; write for example 'x-api-key: ann'")?;
    let name: HeaderName =
        name.trim().parse().map_err(|_| format!("`{}` cannot be the name of a header", name.trim()))?;
    let value =
        value.trim().parse().map_err(|_| format!("`{}` cannot be the value of a header", value.trim()))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_completed_and_others_refused_with_advice() {
        for (text, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("127.0.0.1:8080/a?b", "http://127.0.0.1:8080/a?b"),
            ("localhost", "http://localhost/"),
            ("http://[::1]:80/x", "http://[::1]:80/x"),
        ] {
            assert_eq!(url(text).unwrap().to_string(), expected);
        }
        for (text, expected) in [
            ("https://example.com/", "does not speak TLS"),
            ("ftp://example.com/", "only http:// addresses"),
            ("http://", "write for example"),
            ("a b", "write for example"),
            ("http://x:99999/", "the port of the address is not a number up to 65535"),
            ("http://x:/", "the port of the address is not a number up to 65535"),
            ("http://user:word@x/", "are not sent"),
        ] {
            let error = url(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_finer_wait_counts_and_a_date_does_not() {
        for (headers, expected) in [
            (vec![("retry-after", "1"), ("retry-after-ms", "185")], Some(185)),
            (vec![("retry-after", "2")], Some(2000)),
            (vec![("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], None),
            (vec![("retry-after", "-1")], None),
            (vec![], None),
        ] {
            let headers = headers
                .into_iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let answer = Answer { status: 429, said: read(&headers.collect()) };
            assert_eq!(answer.told_wait(), expected.map(Duration::from_millis));
        }
    }
}
