//! The body of a response: that of the service inside, or our own text; with the place in flight that it holds.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::places::Permit;

pin_project! {
    /// The body of a response that went through a [`RateLimit`](super::RateLimit).
    ///
    /// It is the body `B` of the service inside, frame by frame, trailers and size hint included, or the text of a
    /// rejection. The request's place in flight is free when the body has ended, has failed or is dropped.
    #[derive(Debug)]
    pub struct RateLimitBody<B> {
        #[pin]
        kind: Kind<B>,
        permit: Option<Permit>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Own { text: Bytes },
    }
}

impl<B: Body> RateLimitBody<B> {
    pub(super) fn inner(body: B, permit: Option<Permit>) -> Self {
        // A server does not poll a body that has nothing in it.
        let permit = permit.filter(|_| !body.is_end_stream());
        Self { kind: Kind::Inner { body }, permit }
    }
}

impl<B> RateLimitBody<B> {
    pub(super) const fn own(text: Bytes) -> Self {
        Self { kind: Kind::Own { text }, permit: None }
    }
}

impl<B> Body for RateLimitBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        match this.kind.project() {
            KindProjection::Own { text } => {
                Poll::Ready(text.has_remaining().then(|| Ok(Frame::data(std::mem::take(text).into()))))
            }
            KindProjection::Inner { mut body } => {
                let polled = body.as_mut().poll_frame(context);
                let ended = match &polled {
                    Poll::Pending => false,
                    // After the last frame a server need not ask for one more.
                    Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
                    Poll::Ready(Some(Err(_)) | None) => true,
                };
                if ended {
                    *this.permit = None;
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Own { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Own { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
