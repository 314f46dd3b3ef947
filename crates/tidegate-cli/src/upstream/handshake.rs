//! Why a TLS handshake with a service failed, and what to do about it.

use std::error::Error;
use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

/// A handshake that failed. The texts are for the log; a client is not told them.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) cause: String,
    /// What the operator can do.
    pub(super) advice: &'static str,
    /// Whether it is the certificate that is not trusted.
    pub(super) is_certificate: bool,
}

impl Failed {
    /// What failed, if an error in connecting is one of TLS.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Some(Self::in_tls(error));
            }
            let io = error.downcast_ref::<io::Error>();
            // The source of an io::Error that wraps another is the source of that.
            next = match io.and_then(io::Error::get_ref) {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
            if io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
                // Nothing is read before there is a connection but the handshake.
                return Some(Self::new("it closed the connection in the TLS handshake", NO_TLS));
            }
        }
        None
    }

    fn new(cause: impl Into<String>, advice: &'static str) -> Self {
        Self { cause: cause.into(), advice, is_certificate: false }
    }

    fn in_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::in_certificate(error),
            rustls::Error::InvalidMessage(_) => Self::new("what it answers is not TLS", NO_TLS),
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::new("it speaks no HTTP/1.1", "put a proxy before it that does")
            }
            rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
            | rustls::Error::PeerIncompatible(_) => {
                Self::new(format!("no TLS in common ({error})"), "let it speak TLS 1.2 or 1.3")
            }
            _ => Self::new(format!("the TLS handshake failed ({error})"), "see what its own log says"),
        }
    }

    fn in_certificate(error: &CertificateError) -> Self {
        const CLOCK: &str = "have it renewed, or set the clock of this machine";
        let (cause, advice) = match error {
            CertificateError::UnknownIssuer => (
                "its certificate is signed by no authority that this machine trusts".to_owned(),
                "add the authority's certificate to those of the system, or name a PEM file with it in SSL_CERT_FILE",
            ),
            CertificateError::NotValidForNameContext { expected, presented } => (
                format!("its certificate is for {}, not for {}", names(presented), expected.to_str()),
                "write a name of its certificate in --upstream, or have it made for this one",
            ),
            CertificateError::ExpiredContext { not_after, .. } => {
                (format!("its certificate was valid until {}", time(*not_after)), CLOCK)
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                (format!("its certificate is valid from {} on", time(*not_before)), CLOCK)
            }
            // webpki's word for it has no type here.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => (
                "its certificate is that of an authority, as openssl req -x509 makes it, and not of a server"
                    .to_owned(),
                "have one made with the extension basicConstraints=CA:FALSE",
            ),
            _ => (format!("its certificate is not valid ({error})"), "have another one made for it"),
        };
        Self { cause, advice, is_certificate: true }
    }
}

const NO_TLS: &str = "write http:// in --upstream if it speaks no TLS at that port";

/// The names of a certificate, of which there may be a hundred.
fn names(presented: &[String]) -> String {
    const SHOWN: usize = 4;
    // They are written as DnsName("example.com") and IpAddress(192.0.2.1).
    let bare = |name: &String| {
        let name = name.strip_prefix("DnsName(").or_else(|| name.strip_prefix("IpAddress(")).unwrap_or(name);
        name.trim_end_matches(')').trim_matches('"').to_owned()
    };
    let shown: Vec<String> = presented.iter().take(SHOWN).map(bare).collect();
    match presented.len() {
        0 => "no name".to_owned(),
        all if all > SHOWN => format!("{} and {} more", shown.join(", "), all - SHOWN),
        _ => shown.join(", "),
    }
}

fn time(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "a time out of reach".to_owned(), |time| time.to_string())
}
