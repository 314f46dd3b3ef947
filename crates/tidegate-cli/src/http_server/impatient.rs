//! A connection that gives up when its other end does not read, and a body that gives up when it does not come.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long something may stand still while it is waited for.
#[derive(Debug)]
struct Patience {
    time: Duration,
    /// Made when it is waited for the first time: mostly it is never.
    end: Option<Pin<Box<Sleep>>>,
    is_stuck: bool,
}

impl Patience {
    const fn new(time: Duration) -> Self {
        Self { time, end: None, is_stuck: false }
    }

    /// Passes `progress` on; when it has been pending for too long, an error instead.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<T>,
        late: impl FnOnce(io::Error) -> T,
    ) -> Poll<T> {
        if progress.is_ready() {
            self.is_stuck = false;
            return progress;
        }
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(self.time)));
        if !self.is_stuck {
            self.is_stuck = true;
            end.as_mut().reset(Instant::now() + self.time);
        }
        end.as_mut().poll(context).map(|()| late(io::ErrorKind::TimedOut.into()))
    }
}

/// A stream whose writes fail once nothing could be written for `patience`.
#[derive(Debug)]
pub(crate) struct Impatient<S> {
    stream: S,
    patience: Patience,
}

impl<S> Impatient<S> {
    pub(crate) const fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience: Patience::new(patience) }
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.patience.watch(context, progress, Err)
    }
}

/// A body that fails once nothing of it came for `patience` while it was waited for.
#[derive(Debug)]
pub(crate) struct ImpatientBody<B = Incoming> {
    body: B,
    patience: Patience,
}

impl<B> ImpatientBody<B> {
    pub(crate) const fn new(body: B, patience: Duration) -> Self {
        Self { body, patience: Patience::new(patience) }
    }
}

impl<B> Body for ImpatientBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let progress = Pin::new(&mut self.body).poll_frame(context);
        let progress = progress.map(|frame| frame.map(|frame| frame.map_err(Into::into)));
        self.patience.watch(context, progress, |late| Some(Err(late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn a_reader_that_does_not_read_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let _reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let patience = Duration::from_millis(50);
            let mut stream = Impatient::new(stream, patience);
            // What is written at once does not wait, also when nothing was written for longer than that.
            sleep(patience * 2).await;
            let bytes = vec![0; 1 << 20];
            let mut last = Instant::now();
            let error = loop {
                match poll_fn(|context| Pin::new(&mut stream).poll_write(context, &bytes)).await {
                    Ok(_) => last = Instant::now(),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(last.elapsed() >= patience, "{:?}", last.elapsed());
        });
    }

    /// A body of one part, whose end never comes.
    struct Endless(Option<Bytes>);

    impl Body for Endless {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            self.0.take().map_or(Poll::Pending, |part| Poll::Ready(Some(Ok(Frame::data(part)))))
        }
    }

    #[test]
    fn a_body_whose_rest_does_not_come_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let patience = Duration::from_millis(50);
            let mut body = ImpatientBody::new(Endless(Some(Bytes::from("{"))), patience);
            // Time in which nobody asks for it does not count.
            sleep(patience * 2).await;
            let mut next = async || poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap();
            assert_eq!(next().await.unwrap().into_data().unwrap(), "{");
            let last = Instant::now();
            let error = next().await.unwrap_err();
            assert_eq!(error.downcast::<io::Error>().unwrap().kind(), io::ErrorKind::TimedOut);
            assert!(last.elapsed() >= patience, "{:?}", last.elapsed());
        });
    }
}
