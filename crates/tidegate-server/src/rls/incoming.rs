//! Connections, taken while there is room.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::server::Connected;

/// The pause after a connection could not be taken, since the reason (no file descriptor is free) needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections were opened and closed.
#[derive(Debug, Default)]
pub(super) struct Opened {
    opened: AtomicU64,
    closed: AtomicU64,
}

impl Opened {
    /// All that were opened, and those that are open now.
    pub(super) fn read(&self) -> (u64, u64) {
        // In this order, so that not more were closed than opened.
        let closed = self.closed.load(Ordering::Relaxed);
        let opened = self.opened.load(Ordering::Relaxed);
        (opened, opened.saturating_sub(closed))
    }
}

/// One that is open, until it is dropped.
#[derive(Debug)]
struct Open(Arc<Opened>);

impl Open {
    fn new(all: &Arc<Opened>) -> Self {
        all.opened.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(all))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The connections of a listener, at most so many at one time. Further ones wait until one ends.
#[derive(Debug)]
pub(super) struct Incoming {
    taken: mpsc::Receiver<Connection>,
}

impl Incoming {
    /// Listens until it is dropped.
    pub(super) fn new(listener: TcpListener, connections: usize, opened: Arc<Opened>) -> Self {
        let (give, taken) = mpsc::channel(1);
        tokio::spawn(async move {
            tokio::select! {
                () = give.closed() => {}
                () = accept(&listener, connections, &opened, &give) => {}
            }
        });
        Self { taken }
    }
}

async fn accept(
    listener: &TcpListener,
    connections: usize,
    opened: &Arc<Opened>,
    give: &mpsc::Sender<Connection>,
) {
    let places = Arc::new(Semaphore::new(connections));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        };
        // Answers are small and complete; waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let connection = Connection { stream, _open: Open::new(opened), _place: place };
        if give.send(connection).await.is_err() {
            break;
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.taken.poll_recv(context).map(|taken| taken.map(Ok))
    }
}

pin_project! {
    /// A connection that gives its place back when it ends.
    #[derive(Debug)]
    pub(super) struct Connection {
        #[pin]
        stream: TcpStream,
        _open: Open,
        _place: OwnedSemaphorePermit,
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().stream.poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.project().stream.poll_write(context, from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().stream.poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
