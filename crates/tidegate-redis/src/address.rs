//! Where the store is, as its address says.
//!
//! One server is what the client library reads itself. Several are written as one address, whose user, password and
//! settings are those of every server that keeps buckets:
//!
//! - `redis+sentinel://USER:PASSWORD@HOST,HOST/NAME/DB`: sentinels, port 26379, and the name by which they know the primary;
//! - `redis+cluster://USER:PASSWORD@HOST,HOST`: some nodes of a cluster, port 6379. The others are told by these.
//!
//! `rediss` instead of `redis` is TLS, to the sentinels too.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult};

use crate::error::{Error, StoreFault, Why};

/// Where the store is, and how to log in there.
pub(crate) enum Address {
    One(ConnectionInfo),
    Sentinels {
        name: Box<str>,
        sentinels: Vec<ConnectionInfo>,
        /// How to connect to the primary, once it is known where that is.
        server: ConnectionInfo,
    },
    Cluster {
        /// Nodes to begin with.
        seeds: Vec<ConnectionInfo>,
    },
}

/// What TLS needs beyond the authorities of the system. In PEM.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing reads it without TLS"))]
pub(crate) struct Certificates {
    pub(crate) authorities: Option<Vec<u8>>,
    /// Certificate and key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

/// User and password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: Option<Box<str>>,
    pub(crate) password: Box<str>,
}

impl Address {
    pub(crate) fn parse(
        url: &str,
        certificates: &Certificates,
        sentinel_login: Option<&Login>,
    ) -> Result<Self, Error> {
        Self::read(url, certificates, sentinel_login).map_err(Error::Address)
    }

    fn read(
        url: &str,
        certificates: &Certificates,
        sentinel_login: Option<&Login>,
    ) -> Result<Self, StoreFault> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        match scheme.split_once('+') {
            Some((base, "sentinel")) => {
                let parts = Parts::of(url);
                let (name, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
                if name.is_empty() {
                    return Err(StoreFault(Why::Address("it does not name the primary after the hosts")));
                }
                let server = parts.server(base, db, certificates)?;
                let mut login = RedisConnectionInfo::default();
                if let Some(Login { user, password }) = sentinel_login {
                    login = login.set_password(password);
                    if let Some(user) = user {
                        login = login.set_username(user);
                    }
                }
                let sentinels = parts.hosts(base, 26379, &server)?;
                let sentinels =
                    sentinels.into_iter().map(|info| info.set_redis_settings(login.clone())).collect();
                Ok(Self::Sentinels { name: name.into(), sentinels, server })
            }
            Some((base, "cluster")) => {
                let parts = Parts::of(url);
                if !matches!(parts.path, "" | "0") {
                    return Err(StoreFault(Why::Address("a cluster has no databases but 0")));
                }
                let server = parts.server(base, "", certificates)?;
                Ok(Self::Cluster { seeds: parts.hosts(base, 6379, &server)? })
            }
            _ => Ok(Self::One(secured(url.into_connection_info()?, certificates)?)),
        }
    }
}

/// An address of several hosts, taken apart.
struct Parts<'a> {
    login: &'a str,
    hosts: Vec<&'a str>,
    /// Without the first slash.
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Self {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        Self { login, hosts: hosts.split(',').collect(), path: path.trim_end_matches('/'), query }
    }

    /// How to connect to the servers that keep buckets; the host is to be replaced.
    fn server(&self, base: &str, db: &str, certificates: &Certificates) -> RedisResult<ConnectionInfo> {
        let (login, query) = (self.login, self.query);
        let host = self.hosts.first().unwrap_or(&"");
        let url = format!("{base}://{login}@{host}/{db}?{query}");
        secured(url.as_str().into_connection_info()?, certificates)
    }

    fn hosts(&self, base: &str, port: u16, server: &ConnectionInfo) -> RedisResult<Vec<ConnectionInfo>> {
        let each = self.hosts.iter().map(|host| {
            let url = format!("{base}://{host}");
            let told = redis::parse_redis_url(&url).and_then(|url| url.port());
            let name = match url.as_str().into_connection_info()?.addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
                other => other.to_string(),
            };
            Ok(at(server, &name, told.unwrap_or(port)))
        });
        each.collect()
    }
}

/// As `info`, at another host.
pub(crate) fn at(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.into(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.into(), port),
    };
    info.clone().set_addr(addr)
}

/// The host of an address, for those who are told only a port.
pub(crate) fn host_of(info: &ConnectionInfo) -> &str {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    }
}

/// With the certificates, if it is an address of TLS.
#[cfg(feature = "tls")]
fn secured(info: ConnectionInfo, certificates: &Certificates) -> RedisResult<ConnectionInfo> {
    if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        return Ok(info);
    }
    // The client library takes the provider of the process, and panics where there are two to choose from.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let Certificates { authorities, client } = certificates.clone();
    if authorities.is_none() && client.is_none() {
        return Ok(info);
    }
    let client_tls =
        client.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    let certificates = redis::TlsCertificates { client_tls, root_cert: authorities };
    Ok(redis::Client::build_with_tls(info, certificates)?.get_connection_info().clone())
}

/// Without TLS such an address is an error of the client library already.
#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "it has the form of the other")]
fn secured(info: ConnectionInfo, _: &Certificates) -> RedisResult<ConnectionInfo> {
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, Error> {
        Address::parse(url, &Certificates::default(), None)
    }

    fn addresses(of: &[ConnectionInfo]) -> Vec<String> {
        of.iter().map(|info| info.addr().to_string()).collect()
    }

    #[test]
    fn sentinels_have_a_name_and_a_port_and_not_the_password_of_the_primary() {
        let url = "redis+sentinel://ann:s%40crt@one,two:5000,[::1]:6000/main/3";
        let Ok(Address::Sentinels { name, sentinels, server }) = parse(url) else { panic!("{url}") };
        assert_eq!(&*name, "main");
        assert_eq!(addresses(&sentinels), ["one:26379", "two:5000", "::1:6000"]);
        assert!(sentinels.iter().all(|info| info.redis_settings().password().is_none()));
        let settings = server.redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("ann"), Some("s@crt"), 3)
        );
        let login = Login { user: None, password: "other".into() };
        let Ok(Address::Sentinels { sentinels, .. }) =
            Address::parse(url, &Certificates::default(), Some(&login))
        else {
            panic!("{url}")
        };
        assert!(sentinels.iter().all(|info| info.redis_settings().password() == Some("other")));
    }

    #[test]
    fn nodes_of_a_cluster_have_one_login() {
        let url = "redis+cluster://:secret@one,two:7000";
        let Ok(Address::Cluster { seeds }) = parse(url) else { panic!("{url}") };
        assert_eq!(addresses(&seeds), ["one:6379", "two:7000"]);
        assert!(seeds.iter().all(|info| info.redis_settings().password() == Some("secret")));
    }

    #[test]
    fn what_cannot_be_meant_is_an_error() {
        for url in [
            "redis+sentinel://one,two",
            "redis+sentinel://one,/main",
            "redis+sentinel://one/main/three",
            "redis+cluster://one,two/1",
            "redis+cluster://",
            "redis+other://one",
            "http+cluster://one",
        ] {
            assert!(matches!(parse(url), Err(Error::Address(_))), "{url}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_for_every_host() {
        let Ok(Address::Sentinels { sentinels, server, .. }) = parse("rediss+sentinel://one,two/main") else {
            panic!()
        };
        for info in sentinels.iter().chain([&server, &at(&server, "three", 1)]) {
            assert!(matches!(info.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        }
    }
}
