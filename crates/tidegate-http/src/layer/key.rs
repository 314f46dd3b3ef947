//! What a request counts against: keys, and how they are taken from the head of a request.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{Extensions, HeaderMap, HeaderName, Method, Request, Uri};

use crate::identity::{ClientIdentity, Network};

/// The head of a request, as functions for keys and costs see it.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    who: &'a Who,
    /// Is set when the address of the peer was asked for and is not known.
    without_peer: &'a Cell<bool>,
}

/// How to tell the client of a request.
pub(super) struct Who {
    pub(super) identity: ClientIdentity,
    pub(super) peer: PeerFn,
}

pub(super) type PeerFn = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;
type KeyFn = Arc<dyn for<'a> Fn(RequestHead<'a>) -> Option<Key<'a>> + Send + Sync>;

impl<'a> RequestHead<'a> {
    pub(super) fn new<B>(request: &'a Request<B>, who: &'a Who, without_peer: &'a Cell<bool>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            who,
            without_peer,
        }
    }

    /// The method.
    #[must_use]
    pub const fn method(&self) -> &'a Method {
        self.method
    }

    /// The path and query, or the whole address.
    #[must_use]
    pub const fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// The fields.
    #[must_use]
    pub const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What services before this one have said about the request, such as who was authenticated.
    #[must_use]
    pub const fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// The address of the client, as [`ClientIdentity`] tells it; `None` if the address of the peer is not known.
    #[must_use]
    pub fn client(&self) -> Option<IpAddr> {
        let peer = (self.who.peer)(self.extensions);
        self.without_peer.set(self.without_peer.get() || peer.is_none());
        Some(self.who.identity.client(peer?, self.headers))
    }

    fn network(&self) -> Option<Network> {
        Some(self.who.identity.network(self.client()?))
    }
}

impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", self.method)
            .field("uri", self.uri)
            .finish_non_exhaustive()
    }
}

/// The key of one request, from what a [`KeyBy::function`] found. It is hashed and not kept.
///
/// ```
/// use tidegate_http::layer::Key;
///
/// assert_eq!(Key::from("ann"), Key::from("ann".to_owned()));
/// assert_ne!(Key::from("7"), Key::from(7));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key<'a>(Repr<'a>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Repr<'a> {
    /// All requests, or all that have no other key.
    Shared,
    Client(Network),
    Number(u64),
    Bytes(Cow<'a, [u8]>),
    Both(Box<(Key<'a>, Key<'a>)>),
}

impl<'a> Key<'a> {
    /// The key that all requests share: that of [`KeyBy::everyone`], and of requests that have no other.
    #[must_use]
    pub const fn everyone() -> Self {
        Self(Repr::Shared)
    }

    /// The key of those that are counted by two at once: see [`KeyBy::and`].
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Repr::Both(Box::new((self, other))))
    }

    /// As it is named to others, the same on every machine: no two keys have one name.
    ///
    /// `*` is everyone, an address stands as it is written, a number follows `#`, and bytes follow `=`.
    pub(super) fn name(&self) -> Vec<u8> {
        match &self.0 {
            Repr::Shared => b"*".to_vec(),
            Repr::Client(network) => network.to_string().into_bytes(),
            Repr::Number(number) => format!("#{number}").into_bytes(),
            Repr::Bytes(bytes) => [b"=", &**bytes].concat(),
            Repr::Both(both) => {
                let (first, second) = (both.0.name(), both.1.name());
                [format!("&{}:", first.len()).as_bytes(), &first, &second].concat()
            }
        }
    }

    /// The same key, without a copy of its bytes.
    pub(super) fn borrowed(&self) -> Key<'_> {
        Key(match &self.0 {
            Repr::Shared => Repr::Shared,
            Repr::Client(network) => Repr::Client(*network),
            Repr::Number(number) => Repr::Number(*number),
            Repr::Bytes(bytes) => Repr::Bytes(Cow::Borrowed(bytes)),
            Repr::Both(both) => Repr::Both(Box::new((both.0.borrowed(), both.1.borrowed()))),
        })
    }

    /// The same key, for longer than the request lives.
    #[must_use]
    pub fn into_owned(self) -> Key<'static> {
        Key(match self.0 {
            Repr::Shared => Repr::Shared,
            Repr::Client(network) => Repr::Client(network),
            Repr::Number(number) => Repr::Number(number),
            Repr::Bytes(bytes) => Repr::Bytes(bytes.into_owned().into()),
            Repr::Both(both) => Repr::Both(Box::new((both.0.into_owned(), both.1.into_owned()))),
        })
    }
}

impl fmt::Display for Key<'_> {
    /// As people write it; what is not printable is escaped. `*` is the key of requests that have no other.
    ///
    /// ```
    /// use tidegate_http::layer::Key;
    ///
    /// assert_eq!(Key::from("ann\n").to_string(), r"ann\n");
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Shared => f.write_str("*"),
            Repr::Client(network) => write!(f, "{network}"),
            Repr::Number(number) => write!(f, "{number}"),
            Repr::Bytes(bytes) => write!(f, "{}", bytes.escape_ascii()),
            Repr::Both(both) => write!(f, "{} {}", both.0, both.1),
        }
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(text: &'a str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Repr::Bytes(bytes.into()))
    }
}

impl From<String> for Key<'_> {
    fn from(text: String) -> Self {
        Self(Repr::Bytes(text.into_bytes().into()))
    }
}

impl From<u64> for Key<'_> {
    fn from(number: u64) -> Self {
        Self(Repr::Number(number))
    }
}

impl From<Network> for Key<'_> {
    fn from(network: Network) -> Self {
        Self(Repr::Client(network))
    }
}

/// Whose limit a request counts against.
///
/// Requests that have no such key (no such header, an unknown peer) share one, that of nobody in particular.
///
/// ```
/// use tidegate_http::KeyBy;
///
/// // Who is authenticated has a limit of his own; who is not, one for his address.
/// let key = KeyBy::header("x-account").or(KeyBy::client());
/// // The same for each path.
/// let key = key.and(KeyBy::path());
/// ```
#[derive(Clone)]
pub struct KeyBy(Source);

#[derive(Clone)]
enum Source {
    Everyone,
    Client,
    Header(HeaderName),
    Method,
    Path,
    Function(KeyFn),
    Or(Box<(KeyBy, KeyBy)>),
    And(Box<(KeyBy, KeyBy)>),
}

impl KeyBy {
    /// All requests share one limit.
    #[must_use]
    pub const fn everyone() -> Self {
        Self(Source::Everyone)
    }

    /// The client, by its address: see [`identity`](crate::identity) for what that is behind a proxy and in IPv6.
    ///
    /// **The address of the peer must be known.** It is looked for in the extensions of the request: axum's
    /// `ConnectInfo<SocketAddr>` (with the feature `axum`, and only if the app is served with
    /// `into_make_service_with_connect_info::<SocketAddr>()`), then a plain [`SocketAddr`]; or where
    /// [`peer`](super::RateLimitBuilder::peer) says. Where it is not found **all clients share one limit**; the
    /// rejection says so, and [`Counts::without_peer`](super::Counts::without_peer) counts it.
    #[must_use]
    pub const fn client() -> Self {
        Self(Source::Client)
    }

    /// The value of a request header, any bytes; the first if there are several.
    ///
    /// A client is free to send another value each time. Take a header that something before this layer has checked or
    /// set, or add a second limit by [`Self::client`].
    ///
    /// # Panics
    ///
    /// When it cannot be the name of a header. It may be in capitals.
    #[must_use]
    #[track_caller]
    pub fn header(name: &str) -> Self {
        match name.parse() {
            Ok(name) => Self(Source::Header(name)),
            Err(_) => panic!("`{name}` cannot be the name of a header; write for example x-api-key"),
        }
    }

    /// The method.
    #[must_use]
    pub const fn method() -> Self {
        Self(Source::Method)
    }

    /// The path as it was sent, without the query. A client can send as many as it likes.
    #[must_use]
    pub const fn path() -> Self {
        Self(Source::Path)
    }

    /// What a function finds in the head of the request; `None` where it finds nothing.
    ///
    /// ```
    /// use tidegate_http::KeyBy;
    /// use tidegate_http::layer::Key;
    ///
    /// #[derive(Clone)]
    /// struct Account(u64);
    /// let key = KeyBy::function(|head| Some(Key::from(head.extensions().get::<Account>()?.0))).or(KeyBy::client());
    /// ```
    #[must_use]
    pub fn function<F>(key: F) -> Self
    where
        F: for<'a> Fn(RequestHead<'a>) -> Option<Key<'a>> + Send + Sync + 'static,
    {
        Self(Source::Function(Arc::new(key)))
    }

    /// This key where there is one, and `other` where there is none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(Source::Or(Box::new((self, other))))
    }

    /// Both together: a limit for each pair.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Source::And(Box::new((self, other))))
    }

    /// Whether both find the same key in any request. Of functions that is known of clones of one only.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Source::Header(name), Source::Header(other)) => name == other,
            (Source::Function(function), Source::Function(other)) => Arc::ptr_eq(function, other),
            (Source::Or(these), Source::Or(others)) | (Source::And(these), Source::And(others)) => {
                these.0.is(&others.0) && these.1.is(&others.1)
            }
            (Source::Everyone, Source::Everyone)
            | (Source::Client, Source::Client)
            | (Source::Method, Source::Method)
            | (Source::Path, Source::Path) => true,
            _ => false,
        }
    }

    /// The key of a request.
    pub(super) fn of<'a>(&self, head: RequestHead<'a>) -> Option<Key<'a>> {
        match &self.0 {
            Source::Everyone => Some(Key::everyone()),
            Source::Client => head.network().map(Key::from),
            Source::Header(name) => head.headers.get(name).map(|value| Key::from(value.as_bytes())),
            Source::Method => Some(head.method.as_str().into()),
            Source::Path => Some(head.uri.path().into()),
            Source::Function(function) => function(head),
            Source::Or(sources) => sources.0.of(head).or_else(|| sources.1.of(head)),
            Source::And(sources) => {
                let part = |source: &Self| source.of(head).unwrap_or(Key::everyone());
                Some(part(&sources.0).and(part(&sources.1)))
            }
        }
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Everyone => f.write_str("everyone"),
            Source::Client => f.write_str("client"),
            Source::Header(name) => write!(f, "header:{name}"),
            Source::Method => f.write_str("method"),
            Source::Path => f.write_str("path"),
            Source::Function(_) => f.write_str("function"),
            Source::Or(sources) => write!(f, "({:?} or {:?})", sources.0, sources.1),
            Source::And(sources) => write!(f, "({:?} and {:?})", sources.0, sources.1),
        }
    }
}

/// Where the address of the peer is by itself.
pub(super) fn peer_in(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_keys_have_one_name() {
        let network = |text: &str| ClientIdentity::new().network(text.parse().unwrap());
        let bytes = |text: &'static str| Key::from(text);
        let keys = [
            Key::everyone(),
            bytes("*"),
            bytes(""),
            bytes("203.0.113.9"),
            Key::from(network("203.0.113.9")),
            Key::from(network("2001:db8::1")),
            Key::from(9),
            bytes("9"),
            bytes("#9"),
            bytes("a").and(bytes("b")),
            bytes("a=b").and(bytes("")),
            bytes("a").and(bytes("b").and(bytes("c"))),
            bytes("a").and(bytes("b")).and(bytes("c")),
            bytes("&2:=a=b"),
        ];
        let names: std::collections::HashSet<_> = keys.iter().map(Key::name).collect();
        assert_eq!(names.len(), keys.len());
        assert_eq!(bytes("a").and(Key::from(network("203.0.113.9"))).name(), b"&2:=a203.0.113.9");
    }
}
