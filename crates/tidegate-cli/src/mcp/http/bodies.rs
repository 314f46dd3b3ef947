//! The messages of requests, which have to be whole before it is known what they are: how long each may be, how much all of
//! them may be at one time, and how long a client may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use http_body_util::BodyExt as _;

/// How long a client may take for the next piece. It is as long as for the head.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// How many messages of the greatest length there is room for.
const LONGEST_AT_ONCE: usize = 4;

/// The least room, in bytes, so that many clients find some where the longest message is short.
const ROOM_MIN: usize = 256 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Bodies {
    longest: usize,
    room: usize,
    patience: Duration,
    held: Arc<AtomicUsize>,
}

/// The room that a message takes, until this goes away.
#[derive(Debug)]
pub(super) struct Weight {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Bodies {
    pub(super) fn new(longest: usize) -> Self {
        let room = longest.saturating_mul(LONGEST_AT_ONCE).max(ROOM_MIN);
        Self { longest, room, patience: PIECE_TIMEOUT, held: Arc::default() }
    }

    /// The longest message, in bytes.
    pub(super) const fn longest(&self) -> usize {
        self.longest
    }

    /// The whole of a body.
    ///
    /// # Errors
    ///
    /// Which status the client gets, and why.
    pub(super) async fn read(&self, mut body: Body) -> Result<(Bytes, Weight), (StatusCode, &'static str)> {
        let mut message = Vec::new();
        let mut weight = Weight { bytes: 0, held: Arc::clone(&self.held) };
        loop {
            let frame = tokio::time::timeout(self.patience, body.frame()).await;
            let frame =
                frame.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the body of the request stopped"))?;
            let Some(frame) = frame else { return Ok((message.into(), weight)) };
            let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body of the request broke off"))?;
            // Trailers are of no use to a server of MCP.
            let Ok(piece) = frame.into_data() else { continue };
            if message.len() + piece.len() > self.longest {
                return Err((StatusCode::PAYLOAD_TOO_LARGE, "the message is too long; see --max-message"));
            }
            let held = self.held.fetch_add(piece.len(), Ordering::Relaxed);
            weight.bytes += piece.len();
            if held.saturating_add(piece.len()) > self.room {
                return Err((StatusCode::SERVICE_UNAVAILABLE, "too many long messages at once"));
            }
            message.extend_from_slice(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_messages_together_have_a_bound_and_give_their_room_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let bodies = Bodies { room: 15, ..Bodies::new(10) };
            let body = |length| Body::from(vec![b'x'; length]);
            let first = bodies.read(body(10)).await.unwrap();
            assert_eq!(bodies.read(body(11)).await.unwrap_err().0, StatusCode::PAYLOAD_TOO_LARGE);
            assert_eq!(bodies.read(body(6)).await.unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(bodies.read(body(5)).await.unwrap().0.len(), 5);
            drop(first);
            assert_eq!(bodies.read(body(10)).await.unwrap().0.len(), 10);
            assert_eq!(bodies.held.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn a_client_that_stops_in_its_message_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(async {
            let (sender, pieces) = tokio::sync::mpsc::channel(1);
            let body = Body::new(super::super::stream::Pieces(pieces));
            sender.send(Ok(Bytes::from_static(b"{"))).await.unwrap();
            let bodies = Bodies { patience: Duration::from_millis(10), ..Bodies::new(10) };
            let refused = bodies.read(body).await.unwrap_err();
            assert_eq!(refused.0, StatusCode::REQUEST_TIMEOUT);
        });
    }
}
