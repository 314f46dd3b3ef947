//! Who the client is: the address that the nearest trusted machine saw.
//!
//! Anybody can send `X-Forwarded-For`. So forwarding fields count only when they come from a proxy that is named as
//! trusted; then they are walked **from the right**, where the nearest proxy wrote, over the trusted ones, and the first
//! address that is not trusted is the client. What stands further left was written by that client.
//!
//! | peer (10.0.0.0/8 is trusted) | `X-Forwarded-For` | client |
//! | --- | --- | --- |
//! | 203.0.113.9 | `1.2.3.4` | 203.0.113.9 |
//! | 10.0.0.5 | `1.2.3.4, 203.0.113.9` | 203.0.113.9 |
//! | 10.0.0.5 | `1.2.3.4, 203.0.113.9, 10.1.1.1` | 203.0.113.9 |
//! | 10.0.0.5 | `evil, 10.1.1.1` | 10.1.1.1 |
//! | 10.0.0.5 | | 10.0.0.5 |
//!
//! An entry that is no address (`unknown`, `_hidden`, empty) ends the walk: the client is then the last trusted machine.
//! When all are trusted it is the left-most. Ports, brackets and zones are taken off, `::ffff:192.0.2.1` is `192.0.2.1`.
//!
//! One subscriber has at least a /64 of IPv6 to himself, so that is what counts as one client.

mod network;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

pub use network::{Network, NetworkError, TrustedProxies};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// How to tell who the client is. By default it is the peer, and no forwarding field counts.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use tidegate_http::identity::ClientIdentity;
///
/// let identity = ClientIdentity::new().trusted_proxies("10.0.0.0/8".parse()?);
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", HeaderValue::from_static("1.2.3.4, 203.0.113.9, 10.1.1.1"));
/// assert_eq!(identity.client("10.0.0.5".parse()?, &headers).to_string(), "203.0.113.9");
/// // Not from a proxy: what it says does not count.
/// assert_eq!(identity.client("198.51.100.7".parse()?, &headers).to_string(), "198.51.100.7");
/// // All addresses of one subscriber are one client.
/// assert_eq!(identity.network("2001:db8:1:2:3:4:5:6".parse()?).to_string(), "2001:db8:1:2::/64");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    trust: Trust,
    field: ForwardingField,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Trust {
    Proxies(TrustedProxies),
    Hops(usize),
}

/// The field in which the trusted proxies say who the client is. It is always one: two are never merged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ForwardingField {
    /// `X-Forwarded-For`: a list that each proxy adds to on the right.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), its `for=` values.
    Forwarded,
    /// A field with one address that the proxy sets, such as `CF-Connecting-IP` or `X-Real-IP`. The proxy must take away
    /// what the client sent. When it is there twice or holds no address, the client is the peer.
    Single(HeaderName),
}

impl ClientIdentity {
    /// The peer is the client.
    #[must_use]
    pub fn new() -> Self {
        Self {
            trust: Trust::Proxies(TrustedProxies::default()),
            field: ForwardingField::default(),
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        }
    }

    /// Trusts what these proxies say.
    #[must_use]
    pub fn trusted_proxies(self, proxies: TrustedProxies) -> Self {
        Self { trust: Trust::Proxies(proxies), ..self }
    }

    /// Trusts the last `hops` machines, whatever their addresses: the client is the entry of that number from the right,
    /// or the left-most if there are fewer; 0 is the peer. **Only where nobody can connect but through the proxies**:
    /// who can is free to choose an address.
    #[must_use]
    pub fn trusted_hops(self, hops: usize) -> Self {
        Self { trust: Trust::Hops(hops), ..self }
    }

    /// Where the proxies say it; `X-Forwarded-For` by default.
    #[must_use]
    pub fn field(self, field: ForwardingField) -> Self {
        Self { field, ..self }
    }

    /// How many leading bits of an IPv4 address make one client; 32 by default, and at most.
    #[must_use]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { ipv4_prefix: bits.min(32), ..self }
    }

    /// How many leading bits of an IPv6 address make one client; 64 by default, 128 at most. Some providers give a
    /// subscriber a /56 or a /48.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { ipv6_prefix: bits.min(128), ..self }
    }

    /// The address of the client of a request that came from `peer`. It takes time linear in the length of the field.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        match &self.trust {
            Trust::Proxies(proxies) if !proxies.contain(peer) => peer,
            Trust::Hops(0) => peer,
            trust => {
                let trusted = |hop: usize, address: IpAddr| match trust {
                    Trust::Proxies(proxies) => proxies.contain(address),
                    Trust::Hops(hops) => hop < *hops,
                };
                match &self.field {
                    ForwardingField::XForwardedFor => {
                        let entries = entries(headers, X_FORWARDED_FOR);
                        walk(peer, entries.map(|entry| node(&unquoted(entry)?)), trusted)
                    }
                    ForwardingField::Forwarded => {
                        walk(peer, entries(headers, FORWARDED).map(forwarded_for), trusted)
                    }
                    ForwardingField::Single(name) => single(headers, name).unwrap_or(peer),
                }
            }
        }
    }

    /// The network of addresses that counts as the same client as `address`: the key of its limit.
    #[must_use]
    pub fn network(&self, address: IpAddr) -> Network {
        let address = address.to_canonical();
        Network::of(address, if address.is_ipv4() { self.ipv4_prefix } else { self.ipv6_prefix })
    }
}

impl Default for ClientIdentity {
    fn default() -> Self {
        Self::new()
    }
}

/// Goes over the hops from the nearest on while they are trusted; `trusted` is asked with the number of the hop, from 1.
fn walk(
    peer: IpAddr,
    hops: impl Iterator<Item = Option<IpAddr>>,
    trusted: impl Fn(usize, IpAddr) -> bool,
) -> IpAddr {
    let mut client = peer;
    for (hop, address) in (1..).zip(hops) {
        let Some(address) = address else { break };
        client = address;
        if !trusted(hop, address) {
            break;
        }
    }
    client
}

fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => node(std::str::from_utf8(value.as_bytes()).ok()?),
        _ => None,
    }
}

/// The entries of all lines of a list field, the last first.
fn entries(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    headers.get_all(name).iter().rev().flat_map(|line: &HeaderValue| EntriesFromRight(Some(line.as_bytes())))
}

/// Splits a list at the commas that are outside of quotes, from the right.
///
/// From the right, since a quote that is never closed is then the trouble of what stands left of it, which the client may
/// have written, and not of the entries that a proxy added.
struct EntriesFromRight<'a>(Option<&'a [u8]>);

impl<'a> Iterator for EntriesFromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let list = self.0?;
        let mut in_quotes = false;
        for (index, byte) in list.iter().enumerate().rev() {
            match byte {
                b'"' => {
                    let escapes = list[..index].iter().rev().take_while(|byte| **byte == b'\\').count();
                    // In quotes, one with an odd number of backslashes before it is a part of the text.
                    in_quotes = if in_quotes { escapes % 2 == 1 } else { true };
                }
                b',' if !in_quotes => {
                    self.0 = Some(&list[..index]);
                    return Some(&list[index + 1..]);
                }
                _ => {}
            }
        }
        self.0 = None;
        Some(list)
    }
}

/// The address in an element of `Forwarded`, such as `for="[2001:db8::1]:80";proto=https`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    loop {
        let mut in_quotes = false;
        let mut escaped = false;
        let end = rest.iter().position(|byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = in_quotes,
                b'"' => in_quotes = !in_quotes,
                b';' => return !in_quotes,
                _ => {}
            }
            false
        });
        let (pair, after) = rest.split_at(end.unwrap_or(rest.len()));
        let equals = pair.iter().position(|byte| *byte == b'=');
        if let Some(equals) = equals
            && pair[..equals].trim_ascii().eq_ignore_ascii_case(b"for")
        {
            // Two are a mistake, and which of them holds would be a guess.
            let value = unquoted(&pair[equals + 1..])?;
            if found.replace(node(&value)?).is_some() {
                return None;
            }
        }
        match after.split_first() {
            Some((_, after)) => rest = after,
            None => return found,
        }
    }
}

/// The text of a token or a quoted string, without the space around it.
fn unquoted(value: &[u8]) -> Option<std::borrow::Cow<'_, str>> {
    let value = std::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    let Some(quoted) = value.strip_prefix('"') else {
        return (!value.contains('"')).then_some(value.into());
    };
    let mut text = String::new();
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return chars.as_str().is_empty().then_some(text.into()),
            '\\' => text.push(chars.next()?),
            c => text.push(c),
        }
    }
    None
}

/// The address of a node: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`, `fe80::1%eth0`.
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let ipv6 = |text: &str| {
        let address = text.split_once('%').map_or(text, |(address, _zone)| address);
        address.parse::<Ipv6Addr>().ok()
    };
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        let port_is_fine = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return port_is_fine.then(|| ipv6(address))?.map(|address| IpAddr::V6(address).to_canonical());
    }
    if let Some(address) = ipv6(text) {
        return Some(IpAddr::V6(address).to_canonical());
    }
    let (address, port) = text.split_once(':').map_or((text, None), |(address, port)| (address, Some(port)));
    port.is_none_or(is_port).then(|| address.parse::<Ipv4Addr>().ok())?.map(IpAddr::V4)
}

/// A number, or one of the hidden ports of RFC 7239 such as `_p1`.
fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(hidden) => {
            !hidden.is_empty()
                && hidden.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests;
