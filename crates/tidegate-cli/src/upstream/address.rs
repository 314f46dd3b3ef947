//! Where a service is, as `--upstream` says it.

use axum::http::Uri;
use axum::http::uri::{Authority, Scheme};
use rustls::pki_types::ServerName;

use crate::fault::Hint;

/// The address of a service.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(super) url: String,
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    /// As it was written; `/` if it was not.
    pub(super) path: String,
}

impl Address {
    /// Reads `http://HOST[:PORT][/PATH]`, or the same with `https`.
    ///
    /// # Errors
    ///
    /// A text of another form.
    pub(crate) fn parse(url: &str) -> anyhow::Result<Self> {
        let wrong = |why: &str| {
            Hint::error(
                format!("--upstream {url}: {why}"),
                "write for example --upstream http://127.0.0.1:3000 or --upstream https://api.example.com/base",
            )
        };
        let uri: Uri = url.parse().map_err(|_| wrong("not an address"))?;
        let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let Some(scheme) = scheme else { return Err(wrong("not an http:// or https:// address")) };
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
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if *scheme == Scheme::HTTPS && ServerName::try_from(host).is_err() {
            return Err(wrong("no certificate can be for a host of that name"));
        }
        Ok(Self {
            url: url.to_owned(),
            scheme: scheme.clone(),
            authority: authority.clone(),
            path: uri.path().to_owned(),
        })
    }

    /// Whether requests go to it in TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_maybe_a_port_and_a_path() {
        for (url, is_https, authority, path) in [
            ("http://127.0.0.1:3000", false, "127.0.0.1:3000", "/"),
            ("https://api.example.com/base/", true, "api.example.com", "/base/"),
            ("HTTPS://[::1]:8443", true, "[::1]:8443", "/"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.is_https(), is_https, "{url}");
            assert_eq!((address.authority.as_str(), address.path.as_str()), (authority, path), "{url}");
        }
    }

    #[test]
    fn what_is_no_address_of_a_service_is_said() {
        for (url, expected) in [
            ("ftp://a", "not an http:// or https:// address"),
            ("a:80", "not an http:// or https:// address"),
            ("/x", "not an http:// or https:// address"),
            ("", "not an address"),
            ("http://u:p@a", "names and passwords are not sent"),
            ("http://a:99999", "the port is not a number up to 65535"),
            ("https://a:/x", "the port is not a number up to 65535"),
            ("http://[::1]:x", "the port is not a number up to 65535"),
            ("http://a/?x", "a query or a fragment has no place here"),
            ("https://a/#x", "a query or a fragment has no place here"),
            ("https://a..b/", "no certificate can be for a host of that name"),
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }
}
