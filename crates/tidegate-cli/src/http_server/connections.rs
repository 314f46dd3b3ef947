//! Connections: taken while there is room, given a time to speak, and ended once they have their answers.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

use super::impatient::{Impatient, ImpatientBody};

/// Connections at one time; further ones wait in the system's backlog. An idle connection takes about 10 KB and one with
/// a long head or unread answers [`MAX_BUFFER`] twice, so all of them take 650 MB in the worst case.
const MAX_CONNECTIONS: usize = 10_000;

/// The most bytes of a head that are read, and of answers that wait to be written. A longer head is answered 431. Half as
/// much would refuse cookies that browsers send; twice as much would double the worst case.
const MAX_BUFFER: usize = 32 * 1024;

/// How long a client may take for the head of its next request. Less would end idle connections that their clients
/// still want to use; more would let a client that says nothing hold its place for longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a client may take to read before more can be written to it. It is the same as for its heads, and for the same
/// reasons: a client that does not read its answers holds its place as one that does not ask.
const WRITE_TIMEOUT: Duration = HEAD_TIMEOUT;

/// How long a client may take for the next part of a body: as for a head, or a client that never sends the rest of a body would
/// hold its place for ever.
const BODY_TIMEOUT: Duration = HEAD_TIMEOUT;

/// The pause after a connection could not be taken, since the reason (no file descriptor is free) needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections that were taken. hyper-util has the like, but not for connections that can be upgraded.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Each connection has a receiver until it ends.
    end: watch::Sender<()>,
}

impl Connections {
    /// How many there are now.
    pub(crate) fn open(&self) -> u64 {
        u64::try_from(self.end.receiver_count()).unwrap_or(u64::MAX)
    }

    /// Ends each connection as soon as it has its answers; is ready when all have ended.
    pub(crate) async fn shutdown(&self) {
        self.end.send_replace(());
        self.end.closed().await;
    }
}

/// Serves `router` on `listener` until `stop` is ready; from then on no connection is taken.
///
/// What is returned ends the connections that are left, each as soon as it has its answers.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()>,
) -> Connections {
    let (end, ended) = watch::channel(());
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_BUFFER);
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Ok((stream, peer, place)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Answers are small and complete; waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        let service = service_fn(move |request| call(router.clone(), peer, request));
        let stream = TokioIo::new(Impatient::new(stream, WRITE_TIMEOUT));
        let connection = http.serve_connection(stream, service).with_upgrades();
        let mut ended = ended.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // A client that breaks its connection harms nobody else, so there is nothing to report.
            tokio::select! {
                _ = &mut connection => {}
                _ = ended.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
    Connections { end }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}

fn call(
    mut router: Router,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> {
    let mut request = request.map(|body| ImpatientBody::new(body, BODY_TIMEOUT));
    request.extensions_mut().insert(ConnectInfo(peer));
    router.call(request)
}
