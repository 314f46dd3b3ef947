//! An answer of the server on its way to the client: it passes as it is, and is read for what it says about waiting.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use hyper::body::{Body as _, Frame, SizeHint};
use tidegate_http::hint;

use super::events::Events;
use super::hall::Visit;
use crate::mcp::{frame, learn};

/// The answer, with a body that tells the desk when the call has ended.
pub(super) fn watch(response: Response, visit: Visit) -> Response {
    let reader = if is_event_stream(response.headers()) {
        Reader::Events(Events::default())
    } else {
        let refused = response.status().is_client_error() || response.status().is_server_error();
        let head = refused.then(|| (response.status(), response.headers().clone()));
        Reader::Document { kept: Some(Vec::new()), head }
    };
    response.map(|body| {
        let mut watch = Watch { body, reader, visit };
        if watch.body.is_end_stream() {
            watch.end();
        }
        Body::new(watch)
    })
}

pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.trim_ascii_start().get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
}

#[derive(Debug)]
struct Watch {
    body: Body,
    reader: Reader,
    visit: Visit,
}

#[derive(Debug)]
enum Reader {
    Document {
        /// What has come of it, up to [`hint::BODY_MAX`]; `None` when it is longer.
        kept: Option<Vec<u8>>,
        /// Of an answer that is a refusal of HTTP.
        head: Option<(StatusCode, HeaderMap)>,
    },
    Events(Events),
}

impl Watch {
    fn take(&mut self, bytes: &Bytes) {
        match &mut self.reader {
            Reader::Document { kept, .. } => match kept {
                Some(document) if document.len() + bytes.len() <= hint::BODY_MAX => {
                    document.extend_from_slice(bytes);
                }
                _ => *kept = None,
            },
            Reader::Events(events) => {
                let visit = &mut self.visit;
                events.take(bytes, |data| {
                    if frame::answered(data).contains(&visit.id().id) {
                        visit.answered(learn::pause(data, SystemTime::now()));
                    }
                });
            }
        }
    }

    /// No more comes. A stream may end before the answer; what comes later, by other ways, is not waited for.
    fn end(&mut self) {
        let pause = match &self.reader {
            Reader::Document { kept, head } => pause(kept.as_deref().unwrap_or_default(), head.as_ref()),
            Reader::Events(_) => None,
        };
        self.visit.answered(pause);
    }
}

/// For how long the document, or the refusal it is the body of, wants the tool to be left alone.
fn pause(document: &[u8], head: Option<&(StatusCode, HeaderMap)>) -> Option<Duration> {
    let now = SystemTime::now();
    let of_http = head.and_then(|(status, headers)| {
        let hint = hint::Response::new(status.as_u16(), now).headers(headers).body(document).hint();
        hint.pause(hint::CEILING).map(|pause| pause.wait).filter(|wait| !wait.is_zero())
    });
    of_http.max(learn::pause(document, now))
}

impl hyper::body::Body for Watch {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().cloned()) {
            self.take(&data);
        }
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
