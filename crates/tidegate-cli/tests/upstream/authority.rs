//! An authority that signs certificates of services, and services that show them.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ALL_VERSIONS, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use super::proxy::service;

/// An authority, in a file that is gone with the test.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
}

/// A connection to a service, in TLS.
pub(crate) type Stream = StreamOwned<ServerConnection, TcpStream>;

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = std::env::temp_dir().join(format!("tidegate-{name}-{}.pem", std::process::id()));
        std::fs::write(&file, issuer.pem()).unwrap();
        Self { issuer, file }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// A service with a certificate for `localhost`, but for what `change` does to it.
    pub(crate) fn service(&self, change: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        self.service_of(ALL_VERSIONS, change)
    }

    pub(crate) fn service_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        change: impl FnOnce(&mut CertificateParams),
    ) -> ServerConfig {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        config(versions, certificate.into(), &key)
    }

    /// A service that shows the certificate of the authority itself.
    pub(crate) fn as_service(&self) -> ServerConfig {
        config(ALL_VERSIONS, self.issuer.der().clone(), self.issuer.key())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn config(
    versions: &[&'static SupportedProtocolVersion],
    certificate: CertificateDer<'static>,
    key: &KeyPair,
) -> ServerConfig {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

/// A service in TLS, whose connections are handled by `handle`, and its address by name.
pub(crate) fn tls_service<T: Send + 'static>(
    config: ServerConfig,
    handle: impl Fn(Stream) -> T + Clone + Send + 'static,
) -> (String, Receiver<T>) {
    let config = Arc::new(config);
    let (address, received) = service(move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        handle(StreamOwned::new(connection, stream))
    });
    (address.replace("127.0.0.1", "localhost"), received)
}
