//! Addresses to listen at.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::fault::{Hint, warn};

/// Takes an address, which a flag says, and warns if it is one for other machines too.
pub(crate) async fn bind(
    flag: &str,
    address: SocketAddr,
    what: &str,
) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(flag, address, &error))?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        warn(&format!(
            "{address} lets other machines in{what}; use {flag} 127.0.0.1:{} to keep them out",
            address.port()
        ));
    }
    Ok((listener, address))
}

fn cannot_listen(flag: &str, listen: SocketAddr, error: &io::Error) -> anyhow::Error {
    let (why, hint) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            "the port is in use".to_owned(),
            format!("stop the other program, or give {flag} another port; port 0 takes a free one"),
        ),
        io::ErrorKind::PermissionDenied => {
            ("not permitted".to_owned(), "ports below 1024 need a privilege; use for example 8080".to_owned())
        }
        io::ErrorKind::AddrNotAvailable => (
            "this machine has no such address".to_owned(),
            format!("use for example {flag} 127.0.0.1:{}", listen.port()),
        ),
        _ => (error.to_string(), format!("give {flag} another address or port")),
    };
    Hint::error(format!("cannot listen on {listen}: {why}"), hint)
}

/// Reads `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric
        .as_deref()
        .unwrap_or(text)
        .parse()
        .map_err(|_| "not an address with a port; write for example 127.0.0.1:8080 or [::1]:8080".to_owned())
}
