//! A TCP proxy in front of a server, which does what networks do.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// What happens to what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// It arrives.
    Works,
    /// Replies arrive later.
    Delays(Duration),
    /// Nothing arrives, in either direction, and no end is told.
    Swallows,
    /// The server gets everything, and no reply arrives.
    LosesReplies,
    /// Replies arrive byte by byte.
    Drips(Duration),
    /// Connections are reset, new ones as well.
    Resets,
    /// Connections from before are dead and nobody is told; new ones work.
    ForgetsOld,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    network: watch::Sender<Network>,
    /// Of its own, so that a test that keeps its threads busy does not slow the network down. Dropping it ends everything.
    _runtime: Runtime,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (network, watched) = watch::channel(Network::Works);
        // A test may be async itself, where nothing may wait for another runtime: so bind without.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(carry(client, server, watched.clone()));
            }
        });
        Self { address, network, _runtime: runtime }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }
}

impl Proxy {
    /// A runtime must not be dropped where async code runs.
    pub(crate) fn stop(self) {
        self._runtime.shutdown_background();
    }
}

/// One connection. What was once swallowed is missing for ever, so nothing gets through on it afterwards, as on a
/// connection that waits for a lost packet.
async fn carry(mut client: TcpStream, server: SocketAddr, mut network: watch::Receiver<Network>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut requests_lost, mut replies_lost) = (false, false);
    let (mut request, mut reply) = ([0; 4096], [0; 4096]);
    if *network.borrow_and_update() == Network::Resets {
        let _ = client.set_zero_linger();
        return;
    }
    loop {
        tokio::select! {
            biased;
            changed = network.changed() => {
                if changed.is_err() { return }
                match *network.borrow_and_update() {
                    Network::Resets => {
                        let _ = client.set_zero_linger();
                        return;
                    }
                    Network::ForgetsOld => (requests_lost, replies_lost) = (true, true),
                    _ => {}
                }
            }
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                requests_lost |= *network.borrow() == Network::Swallows;
                if !requests_lost && server.write_all(&request[..length]).await.is_err() { return }
            }
            read = server.read(&mut reply) => {
                let Ok(length @ 1..) = read else { return };
                let now = *network.borrow();
                replies_lost |= matches!(now, Network::Swallows | Network::LosesReplies);
                if replies_lost { continue }
                let pieces = if let Network::Drips(_) = now { 1 } else { length };
                for piece in reply[..length].chunks(pieces) {
                    if let Network::Drips(pause) | Network::Delays(pause) = now {
                        tokio::time::sleep(pause).await;
                    }
                    if client.write_all(piece).await.is_err() { return }
                }
            }
        }
    }
}
