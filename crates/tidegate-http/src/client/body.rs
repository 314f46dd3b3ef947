//! The body of an answer: what was read of it to look for a hint, then the rest, with the place in flight that it holds.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tidegate::Permit;

/// The body of a response that came through a [`Pace`](super::Pace): that of the service inside, whole and in order.
///
/// Its call's place in flight is free when the body has ended, has failed or is dropped.
pub struct PacedBody<B: Body> {
    /// What was read ahead.
    ahead: BytesMut,
    trailers: Option<HeaderMap>,
    error: Option<B::Error>,
    /// What was not read ahead; `None` after the end.
    rest: Option<Pin<Box<B>>>,
    permit: Option<Permit>,
}

impl<B: Body> PacedBody<B> {
    pub(super) fn new(body: B) -> Self {
        let rest = (!body.is_end_stream()).then(|| Box::pin(body));
        Self { ahead: BytesMut::new(), trailers: None, error: None, rest, permit: None }
    }

    /// Keeps a place in flight until the end, if that is still to come.
    pub(super) fn hold(&mut self, permit: Option<Permit>) {
        self.permit = permit.filter(|_| self.rest.is_some() && self.error.is_none());
    }

    /// Whether the service inside has nothing more to send.
    pub(super) const fn is_whole(&self) -> bool {
        self.rest.is_none() && self.error.is_none()
    }

    /// Reads ahead, until the end or until there is more than `max`. What was read stays if it is dropped.
    pub(super) async fn read_ahead(&mut self, max: usize) {
        while self.rest.is_some() && self.error.is_none() && self.ahead.len() <= max {
            match poll_fn(|context| self.poll_rest(context)).await {
                None => {}
                Some(Err(error)) => self.error = Some(error),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.ahead.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }

    /// All of it, if it was read ahead.
    pub(super) fn text(&self) -> Option<&[u8]> {
        self.is_whole().then_some(&self.ahead)
    }

    /// The next frame from inside. After the last one the place is free.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let polled = ready!(rest.as_mut().poll_frame(context));
        let failed = matches!(polled, Some(Err(_)));
        if failed || polled.is_none() || rest.is_end_stream() {
            self.permit = None;
            // A body that failed still tells how long it would have been.
            self.rest.take_if(|_| !failed);
        }
        Poll::Ready(polled.map(|result| {
            result.map(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
        }))
    }
}

impl<B: Body> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if !this.ahead.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.ahead.split().freeze()))));
        }
        if let Some(error) = this.error.take() {
            this.rest = None;
            return Poll::Ready(Some(Err(error)));
        }
        if this.rest.is_some() {
            let polled = ready!(this.poll_rest(context));
            // What has failed is over.
            this.rest.take_if(|_| matches!(polled, Some(Err(_))));
            return Poll::Ready(polled);
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_whole() && self.ahead.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.len() as u64;
        let Some(rest) = &self.rest else { return SizeHint::with_exact(ahead) };
        let rest = rest.size_hint();
        let mut whole = SizeHint::new();
        if let Some(upper) = rest.upper() {
            whole.set_upper(upper.saturating_add(ahead));
        }
        whole.set_lower(rest.lower().saturating_add(ahead));
        whole
    }
}

// Nothing is pinned in place: the body inside has a box of its own.
impl<B: Body> Unpin for PacedBody<B> {}

impl<B: Body> fmt::Debug for PacedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PacedBody");
        debug.field("ahead", &self.ahead.len()).field("ended", &self.rest.is_none());
        debug.field("permit", &self.permit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use tidegate::Gate;

    use super::*;

    type Read = Result<Frame<Bytes>, &'static str>;

    /// A body of given frames, which stalls at a gap.
    struct Frames(VecDeque<Option<Read>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Read>> {
            match self.0.pop_front() {
                Some(Some(frame)) => Poll::Ready(Some(frame)),
                Some(None) => Poll::Pending,
                None => Poll::Ready(None),
            }
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let data = |frame: &Option<Read>| match frame {
                Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                _ => 0,
            };
            SizeHint::with_exact(self.0.iter().map(data).sum::<usize>() as u64)
        }
    }

    fn data(text: &'static str) -> Option<Read> {
        Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
    }

    /// A body in a gate, of which up to `max` were read ahead.
    fn body<const N: usize>(frames: [Option<Read>; N], max: Option<usize>) -> (Gate, PacedBody<Frames>) {
        let gate = Gate::new("10/s".parse().unwrap());
        let mut body = PacedBody::new(Frames(frames.into()));
        let permit = gate.try_acquire(1).unwrap();
        if let Some(max) = max {
            let mut reading = Box::pin(body.read_ahead(max));
            let _ = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        body.hold(Some(permit));
        (gate, body)
    }

    /// What comes out of it, `.` for each time that there is nothing yet.
    fn read(body: &mut PacedBody<Frames>) -> String {
        let mut text = String::new();
        loop {
            let hint = body.size_hint();
            match Pin::new(&mut *body).poll_frame(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => text.push('.'),
                Poll::Ready(None) => {
                    assert!(body.is_end_stream() && hint.exact() == Some(0));
                    return text;
                }
                Poll::Ready(Some(Err(error))) => text.push_str(error),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => text.push_str(std::str::from_utf8(&data).unwrap()),
                    Err(_) => text.push_str(" trailers"),
                },
            }
        }
    }

    #[test]
    fn what_was_read_ahead_comes_first_and_nothing_is_lost() {
        let trailers = || Some(Ok(Frame::trailers(HeaderMap::new())));
        for max in [None, Some(0), Some(1), Some(3), Some(100)] {
            let (gate, mut whole) = body([data("ab"), data("c"), None, data("de"), trailers()], max);
            assert_eq!(whole.size_hint().exact(), Some(5));
            assert_eq!(gate.status().in_flight, 1, "{max:?}");
            let gap = if max.is_some_and(|max| max >= 3) { "" } else { "." };
            assert_eq!(read(&mut whole), format!("abc{gap}de trailers"), "{max:?}");
            assert_eq!(gate.status().in_flight, 0);

            let (gate, mut broken) = body([data("ab"), data("c"), Some(Err(" broken")), data("d")], max);
            assert_eq!(broken.text(), None);
            assert_eq!(gate.status().in_flight, u64::from(max.is_none_or(|max| max < 3)));
            assert_eq!(read_until_error(&mut broken), "abc broken", "{max:?}");
            assert_eq!(gate.status().in_flight, 0);
        }
    }

    /// After an error nobody asks for more.
    fn read_until_error(body: &mut PacedBody<Frames>) -> String {
        let mut text = String::new();
        loop {
            match Pin::new(&mut *body).poll_frame(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(Ok(frame))) => {
                    text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
                }
                Poll::Ready(Some(Err(error))) => return text + error,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_place_is_free_as_soon_as_the_end_was_seen() {
        let (gate, whole) = body([data("ab"), data("c")], Some(100));
        assert_eq!((gate.status().in_flight, whole.text()), (0, Some(&b"abc"[..])));
        // All of it, but one more than may be read ahead.
        let (gate, whole) = body([data("ab"), data("c"), data("d")], Some(2));
        assert_eq!((gate.status().in_flight, whole.text()), (1, None));
        drop(whole);
        assert_eq!(gate.status().in_flight, 0);
        let (gate, empty) = body([], None);
        assert_eq!((gate.status().in_flight, empty.is_end_stream()), (0, true));
    }
}
