//! Whose limit a request counts against.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName};

/// Where the key of a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// The address at the other end of the connection.
    ClientIp,
    /// The value of a header.
    Header(HeaderName),
    /// All requests have one limit.
    None,
}

/// The key of one request. It is hashed and not kept, so a long header value costs no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key<'a> {
    /// All requests, or all without the header.
    Shared,
    V4(Ipv4Addr),
    /// The first 64 bits of the address: one subscriber has at least that network to itself.
    V6Network(u64),
    Header(&'a [u8]),
}

impl KeySource {
    /// The key of a request from `peer` with `headers`. Of a header that is there several times, the first counts.
    pub(crate) fn key<'a>(&self, peer: SocketAddr, headers: &'a HeaderMap) -> Key<'a> {
        match self {
            Self::ClientIp => Key::of_address(peer.ip()),
            Self::Header(name) => {
                headers.get(name).map_or(Key::Shared, |value| Key::Header(value.as_bytes()))
            }
            Self::None => Key::Shared,
        }
    }
}

impl Key<'_> {
    fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6Network(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client-ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::None => f.write_str("none"),
        }
    }
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "client-ip" => Ok(Self::ClientIp),
            "none" => Ok(Self::None),
            _ => match text.strip_prefix("header:") {
                Some(name) => name.parse().map(Self::Header).map_err(|_| {
                    format!("`{name}` cannot be the name of a header; write for example header:x-api-key")
                }),
                None => Err("unknown key; write client-ip, header:NAME or none".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(address: &str) -> Key<'static> {
        Key::of_address(address.parse().unwrap())
    }

    #[test]
    fn addresses_of_one_subscriber_are_one_key() {
        assert_eq!(key_of("::ffff:203.0.113.9"), key_of("203.0.113.9"));
        assert_ne!(key_of("203.0.113.9"), key_of("203.0.113.10"));
        assert_eq!(key_of("2001:db8:1:2:3:4:5:6"), key_of("2001:db8:1:2:ffff::1"));
        assert_ne!(key_of("2001:db8:1:2::1"), key_of("2001:db8:1:3::1"));
    }

    #[test]
    fn requests_without_the_header_share_a_key_that_no_value_has() {
        let source: KeySource = "header:X-Api-Key".parse().unwrap();
        let peer = "127.0.0.1:1".parse().unwrap();
        let with = |value| HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), value)]);
        let (ann, bob, empty) = (
            with(axum::http::HeaderValue::from_static("ann")),
            with(axum::http::HeaderValue::from_static("bob")),
            with(axum::http::HeaderValue::from_static("")),
        );
        assert_eq!(source.key(peer, &ann), Key::Header(b"ann"));
        assert_ne!(source.key(peer, &ann), source.key(peer, &bob));
        assert_eq!(source.key(peer, &HeaderMap::new()), Key::Shared);
        assert_ne!(source.key(peer, &empty), Key::Shared);
    }

    #[test]
    fn key_sources_are_read_as_they_are_printed() {
        for text in ["client-ip", "none", "header:x-api-key"] {
            assert_eq!(text.parse::<KeySource>().unwrap().to_string(), text);
        }
        for text in ["", "ip", "header", "header:", "header:a b", "Client-IP"] {
            assert!(text.parse::<KeySource>().is_err(), "{text}");
        }
    }
}
