//! Bodies on their way: one that says when it last moved, and one that is not there.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

/// Who let the time pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// The client did not go on with the body of its request.
    Client,
    /// The service did not read it, or did not answer.
    Upstream,
}

/// When the body of a request last moved: the time to answer counts from there, as an upload may take long.
#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    moved_ms: AtomicU64,
    waits_for_client: AtomicBool,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), moved_ms: AtomicU64::new(0), waits_for_client: AtomicBool::new(false) }
    }

    fn moved(&self) {
        // 500 million years fit.
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(ms, Ordering::Relaxed);
    }

    /// Is ready when nothing has moved for `timeout`.
    pub(super) async fn late(&self, timeout: Duration) -> Late {
        loop {
            let moved = Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
            let left = (moved + timeout).saturating_sub(self.start.elapsed());
            if left.is_zero() {
                let waits_for_client = self.waits_for_client.load(Ordering::Relaxed);
                return if waits_for_client { Late::Client } else { Late::Upstream };
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// The body of a request, with a [`Watch`] on it.
#[derive(Debug)]
pub(super) struct Watched {
    body: Body,
    watch: Arc<Watch>,
}

impl Watched {
    pub(super) const fn new(body: Body, watch: Arc<Watch>) -> Self {
        Self { body, watch }
    }
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.watch.waits_for_client.store(polled.is_pending(), Ordering::Relaxed);
        if polled.is_ready() {
            self.watch.moved();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer that has none. It does not say that its length is 0.
#[derive(Debug)]
pub(super) struct Bodiless;

impl hyper::body::Body for Bodiless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
