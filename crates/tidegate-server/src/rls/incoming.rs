//! Connections, taken while there is room, and ended if they do not begin to speak.

use std::future::Future as _;
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
use tokio::time::{Sleep, sleep};
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::server::Connected;

/// The pause after a connection could not be taken, since the reason (no file descriptor is free) needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may take to begin to speak. From then on it is asked by HTTP/2 whether it is there; before that a client
/// which says nothing would hold its place for ever.
const GREETING_TIME_MAX: Duration = Duration::from_secs(60);

/// What a client of HTTP/2 sends first (RFC 9113, 3.4), in bytes.
const GREETING_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

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
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        };
        // Answers are small and complete; waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let greeting = Some(Box::pin(sleep(GREETING_TIME_MAX)));
        let connection = Connection { stream, greeting, came: 0, _open: Open::new(opened), _place: place };
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
        // Until when its first bytes have to be there, while they are not.
        greeting: Option<Pin<Box<Sleep>>>,
        came: usize,
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
        let this = self.project();
        let Some(late) = this.greeting else { return this.stream.poll_read(context, into) };
        let before = into.filled().len();
        let read = this.stream.poll_read(context, into);
        *this.came += into.filled().len() - before;
        if *this.came >= GREETING_BYTES {
            *this.greeting = None;
        } else if read.is_pending() {
            return late.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        read
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_begin_to_speak_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut incoming = Incoming::new(listener, 2, Arc::default());
        let mut next =
            async || std::future::poll_fn(|context| Pin::new(&mut incoming).poll_next(context)).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
        let mut connection = next().await.unwrap().unwrap();
        let came = Instant::now();
        let mut bytes = Vec::new();
        let error = connection.read_to_end(&mut bytes).await.unwrap_err();
        assert_eq!((error.kind(), bytes.len()), (io::ErrorKind::TimedOut, 16));
        assert!(came.elapsed() >= GREETING_TIME_MAX - Duration::from_secs(1));

        // One that has is not asked by this any more.
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(&[b'P'; GREETING_BYTES]).await.unwrap();
        let mut connection = next().await.unwrap().unwrap();
        let mut greeting = [0; GREETING_BYTES];
        connection.read_exact(&mut greeting).await.unwrap();
        sleep(GREETING_TIME_MAX * 2).await;
        client.write_all(b"!").await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'!');
    }
}
