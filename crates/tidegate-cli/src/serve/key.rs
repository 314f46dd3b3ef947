//! Whose limit a request counts against, in the words of a limits file and of `--key`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::HeaderName;
use tidegate_http::KeyBy;
use tidegate_http::identity::Network;
use tidegate_http::layer::Key;

/// One thing that a key can be made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// The address of the client; for IPv6 its /64 network.
    ClientIp,
    /// The path, without the query.
    Path,
    /// The method.
    Method,
    /// The value of a header.
    Header(HeaderName),
}

/// What `--key` says: a word, or `None` where all requests have one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyWord(pub(crate) Option<Word>);

impl Word {
    fn key_by(&self) -> KeyBy {
        match self {
            Self::ClientIp => KeyBy::client(),
            Self::Path => KeyBy::path(),
            Self::Method => KeyBy::method(),
            Self::Header(name) => KeyBy::header(name.as_str()),
        }
    }

    /// The key of requests that have this value.
    fn key(&self, value: &str) -> Result<Key<'static>, String> {
        match self {
            Self::ClientIp => client(value).map(Key::from).ok_or_else(|| {
                format!(
                    "`{value}` is no client; write an IPv4 address, or an IPv6 address or its /64 network"
                )
            }),
            Self::Path if !value.starts_with('/') => {
                Err(format!("`{value}` is no path; a path begins with `/`"))
            }
            Self::Path | Self::Method | Self::Header(_) => Ok(Key::from(value.to_owned())),
        }
    }
}

/// What the layer counts by: the words together, or everyone if there is none.
pub(crate) fn key_by(words: &[Word]) -> KeyBy {
    words.iter().map(Word::key_by).reduce(KeyBy::and).unwrap_or_else(KeyBy::everyone)
}

/// The key of requests that have these values, one for each word.
pub(crate) fn key(words: &[Word], values: &[String]) -> Result<Key<'static>, String> {
    let parts: Result<Vec<_>, _> = words.iter().zip(values).map(|(word, value)| word.key(value)).collect();
    Ok(parts?.into_iter().reduce(Key::and).unwrap_or(Key::everyone()))
}

/// A client as the layer counts it.
fn client(text: &str) -> Option<Network> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let usual = if address.to_canonical().is_ipv4() { 32 } else { 64 };
    let is_usual = prefix.is_none_or(|prefix| prefix.parse() == Ok(usual));
    is_usual.then(|| Network::of(address, usual))
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client-ip"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "client-ip" => Ok(Self::ClientIp),
            "path" => Ok(Self::Path),
            "method" => Ok(Self::Method),
            _ => match text.strip_prefix("header:") {
                Some(name) => name.parse().map(Self::Header).map_err(|_| {
                    format!("`{name}` cannot be the name of a header; write for example header:x-api-key")
                }),
                None => Err("unknown key; write client-ip, header:NAME, path, method or none".to_owned()),
            },
        }
    }
}

impl FromStr for KeyWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(if text == "none" { None } else { Some(text.parse()?) }))
    }
}

impl fmt::Display for KeyWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(word) => write!(f, "{word}"),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_printed() {
        for text in ["client-ip", "path", "method", "header:x-api-key", "none"] {
            assert_eq!(text.parse::<KeyWord>().unwrap().to_string(), text);
        }
        for text in ["", "ip", "header", "header:", "header:a b", "Client-IP"] {
            assert!(text.parse::<KeyWord>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_the_keys_of_requests_that_have_them() {
        let one = |word: &str, value: &str| key(&[word.parse().unwrap()], &[value.to_owned()]);
        assert_eq!(one("header:x-account", "ann").unwrap(), Key::from("ann"));
        assert_eq!(one("client-ip", "203.0.113.9").unwrap(), one("client-ip", "::ffff:203.0.113.9").unwrap());
        assert_eq!(
            one("client-ip", "2001:db8:1:2::7").unwrap(),
            one("client-ip", "2001:db8:1:2::/64").unwrap()
        );
        for (word, value) in
            [("client-ip", "ann"), ("client-ip", "10.0.0.0/8"), ("client-ip", "2001:db8::/32"), ("path", "x")]
        {
            assert!(one(word, value).is_err(), "{word} {value}");
        }
        let words = ["header:x-account", "path"].map(|word| word.parse().unwrap());
        let values = ["ann", "/search"].map(str::to_owned);
        assert_eq!(key(&words, &values).unwrap(), Key::from("ann").and(Key::from("/search")));
    }
}
