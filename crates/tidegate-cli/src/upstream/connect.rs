//! Connections to a service: TCP, and with https TLS on it.

use std::env;
use std::error::Error;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Scheme;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::fault::Hint;

/// How long it may take to connect, TLS and all. A service that is there answers in milliseconds; one packet that is lost
/// costs a second, two cost three.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// When a connection on which nothing moves is asked whether the other end is there. Answers may be silent for long.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Makes connections, each in a bounded time.
#[derive(Debug, Clone)]
pub(super) struct Connector(HttpsConnector<HttpConnector>);

impl Connector {
    /// For `http` addresses, or for `https` ones, whose certificates have to be signed by an authority that this machine
    /// trusts.
    ///
    /// # Errors
    ///
    /// With `https`, no authority can be read.
    pub(super) fn new(is_https: bool) -> anyhow::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.enforce_http(false);
        // What is reached by http shows no certificate.
        let roots = if is_https { roots()? } else { RootCertStore::empty() };
        let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Not h2: it has no upgrades as WebSockets need them, and a `Host` of its own.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(HttpsConnector::from((tcp, tls))))
    }
}

/// The authorities that this machine trusts, or those that the environment names.
fn roots() -> anyhow::Result<RootCertStore> {
    let file = env::var_os("SSL_CERT_FILE");
    if let Some(file) = &file {
        // It was asked for, so it has to be there, also where SSL_CERT_DIR names others.
        let loaded = rustls_native_certs::load_certs_from_paths(Some(Path::new(file)), None);
        if store(loaded.certs).is_empty() {
            let cause = loaded.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            return Err(Hint::error(
                format!("there is no certificate of an authority in SSL_CERT_FILE={}{cause}", file.display()),
                "name a PEM file of certificates, or unset it to use those of the system",
            ));
        }
    }
    let loaded = rustls_native_certs::load_native_certs();
    let roots = store(loaded.certs);
    if roots.is_empty() {
        let cause = loaded.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(Hint::error(
            format!("this machine has no authorities to check certificates with{cause}"),
            "install the package ca-certificates, or name a PEM file of certificates in SSL_CERT_FILE",
        ));
    }
    Ok(roots)
}

fn store(certificates: Vec<CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Systems have some that are not understood.
    roots.add_parsable_certificates(certificates);
    roots
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let kind = if to.scheme() == Some(&Scheme::HTTPS) { "TLS connection" } else { "connection" };
        let connection = self.0.call(to);
        Box::pin(async move {
            tokio::time::timeout(CONNECT_TIMEOUT, connection).await.unwrap_or_else(|_| {
                let late = format!("no {kind} in {} s", CONNECT_TIMEOUT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, late).into())
            })
        })
    }
}
