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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::num::NonZeroU64;
    use std::sync::Arc;
    use std::task::Waker;

    use http::HeaderMap;

    use super::super::places::Places;
    use super::*;

    /// A body of given frames, which knows its end or does not.
    struct Frames {
        frames: VecDeque<Read>,
        knows_end: bool,
    }

    impl Body for Frames {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Read>> {
            Poll::Ready(self.frames.pop_front())
        }

        fn is_end_stream(&self) -> bool {
            self.knows_end && self.frames.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(7)
        }
    }

    type Read = Result<Frame<Bytes>, &'static str>;

    /// The body of these frames with a place, and whether the place is taken after each poll.
    fn polls<const N: usize>(frames: [Read; N], knows_end: bool) -> (Vec<Option<Read>>, Vec<bool>) {
        let places = Arc::new(Places::new(NonZeroU64::new(1), None));
        let taken = || places.lock().running() == 1;
        places.lock().enter(None);
        let permit = Permit::new(Arc::clone(&places), None);
        let body = RateLimitBody::inner(Frames { frames: frames.into(), knows_end }, Some(permit));
        assert_eq!(body.size_hint().exact(), Some(7));
        let mut body = Box::pin(body);
        let (mut read, mut held) = (Vec::new(), vec![taken()]);
        for _ in 0..=N {
            assert_eq!(body.is_end_stream(), knows_end && read.len() == N);
            let Poll::Ready(frame) = body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())) else {
                panic!("these frames are there");
            };
            read.push(frame);
            held.push(taken());
        }
        drop(body);
        assert!(!taken());
        (read, held)
    }

    fn data(text: &'static str) -> Read {
        Ok(Frame::data(text.into()))
    }

    #[test]
    fn the_place_is_free_when_the_body_has_ended() {
        assert_eq!(polls([], true).1, [false, false]);
        assert_eq!(polls([], false).1, [true, false]);
        assert_eq!(polls([data("a"), data("b")], false).1, [true, true, true, false]);
        // After the last frame of a body that knows its end, a server does not ask again.
        assert_eq!(polls([data("a"), data("b")], true).1, [true, true, false, false]);
        assert_eq!(polls([data("a"), Err("broken")], false).1, [true, true, false, false]);
    }

    #[test]
    fn frames_trailers_and_errors_go_through_as_they_are() {
        let trailers = || HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("x"))]);
        let (mut read, _) = polls([data("a"), Ok(Frame::trailers(trailers())), Err("broken")], false);
        assert_eq!(read.len(), 4);
        assert!(read.pop().unwrap().is_none());
        assert_eq!(read.pop().unwrap().unwrap().unwrap_err(), "broken");
        assert_eq!(read.pop().unwrap().unwrap().unwrap().into_trailers().unwrap(), trailers());
        assert_eq!(read.pop().unwrap().unwrap().unwrap().into_data().unwrap(), "a");
    }

    #[test]
    fn our_own_text_is_one_frame() {
        let mut body = Box::pin(RateLimitBody::<Frames>::own("text".into()));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
        let mut poll =
            || body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())).map(Option::transpose);
        let Poll::Ready(Ok(Some(frame))) = poll() else { panic!("the text is there") };
        assert_eq!(frame.into_data().unwrap(), "text");
        assert!(matches!(poll(), Poll::Ready(Ok(None))));
        assert!(body.is_end_stream());
    }
}
