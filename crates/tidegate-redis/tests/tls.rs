//! TLS, on a real server with a certificate of its own authority.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tidegate_redis::{Made, OnFailure, Store};

use crate::harness::quota;
use crate::harness::server::{Server, free_port};

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Certificate and key, in PEM.
struct Signed(String, String);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate of the same name as its issuer would be taken for its own issuer.
        params.distinguished_name.push(DnType::CommonName, "authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str) -> Signed {
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        Signed(params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// A server of this authority, and its port for TLS.
fn server(authority: &Authority, clients: &str) -> (Server, u16) {
    // The folder is the server's, and gone with it; so the files are in another one's.
    let files = Server::start_of_the_path(&[]);
    let file = |name: &str, text: &str| {
        let path = files.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let Signed(certificate, key) = authority.sign("localhost");
    let (certificate, key) = (file("server.pem", &certificate), file("server.key", &key));
    let authority = file("authority.pem", &authority.0.pem());
    let port = free_port();
    let server = Server::start_of_the_path(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &authority,
        "--tls-auth-clients",
        clients,
        "--requirepass",
        "s3cret",
    ]);
    (server, port)
}

#[tokio::test]
async fn a_server_is_spoken_to_in_tls_and_only_if_its_authority_is_believed() {
    let authority = Authority::new();
    let (_server, port) = server(&authority, "no");
    let url = format!("rediss://:s3cret@localhost:{port}");
    let pem = authority.0.pem();
    let store = Store::builder(&url).authorities(pem.as_bytes()).connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/day burst 2"), OnFailure::Closed).unwrap();
    let answer = limiter.check("ann").await;
    assert_eq!((answer.made, &*answer.remaining), (Made::Exact, &[1][..]));
    // The authorities of the system, and another one of the same name, did not sign it.
    for builder in [
        Store::builder(&url),
        Store::builder(&url).authorities(Authority::new().0.pem().as_bytes()),
        // By another name than the certificate's.
        Store::builder(&url.replace("localhost", "127.0.0.1")).authorities(pem.as_bytes()),
    ] {
        let error = builder.connect_timeout(Duration::from_secs(10)).connect().await.unwrap_err().to_string();
        assert!(error.contains("certificate") && !error.contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_it() {
    let authority = Authority::new();
    let (_server, port) = server(&authority, "yes");
    let url = format!("rediss://:s3cret@localhost:{port}");
    let pem = authority.0.pem();
    let builder =
        || Store::builder(&url).authorities(pem.as_bytes()).connect_timeout(Duration::from_secs(10));
    let Signed(certificate, key) = authority.sign("client");
    let store = builder().client_certificate(certificate.as_bytes(), key.as_bytes()).connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/day burst 2"), OnFailure::Closed).unwrap();
    assert_eq!(limiter.check("ann").await.made, Made::Exact);
    assert!(builder().connect().await.is_err());
    // The key is nowhere to be read.
    let text = format!("{:?}", builder().client_certificate(certificate.as_bytes(), key.as_bytes()));
    assert!(!text.contains("KEY") && !text.contains("s3cret"), "{text}");
}

#[tokio::test]
async fn certificates_that_cannot_be_read_are_an_error() {
    let error = Store::builder("rediss://localhost")
        .client_certificate(b"none", b"none")
        .connect()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("the address of the store is not understood: "), "{error}");
}
