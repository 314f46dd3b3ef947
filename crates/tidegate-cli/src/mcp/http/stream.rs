//! An answer that begins while its call waits: an event stream with notifications of progress, and the answer at its end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::events::event;
use super::hall::{Told, Visit};
use super::handle::Proxy;
use super::watch::is_event_stream;
use crate::mcp::answer;

/// How many pieces wait for a client that does not read; then the server is not read either.
const PIECES: usize = 4;

/// The answer of a call that has waited long enough to be told of.
pub(super) fn answer(
    proxy: Arc<Proxy>,
    parts: Parts,
    peer: SocketAddr,
    visit: Visit,
    progress: Vec<u8>,
) -> Response {
    let (sender, pieces) = channel(PIECES);
    tokio::spawn(async move {
        // When the client goes, its call goes with it.
        tokio::select! {
            () = sender.closed() => {}
            () = write(proxy, parts, peer, visit, progress, &sender) => {}
        }
    });
    response(Body::new(Pieces(pieces)))
}

/// A stream that ends without an answer.
pub(super) fn empty() -> Response {
    response(Body::empty())
}

fn response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would hold events back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (StatusCode::OK, headers, body).into_response()
}

async fn write(
    proxy: Arc<Proxy>,
    parts: Parts,
    peer: SocketAddr,
    mut visit: Visit,
    progress: Vec<u8>,
    client: &Sender<Piece>,
) {
    // A client that has gone is seen by who called this.
    let _ = client.send(Ok(event(&progress).into())).await;
    loop {
        match visit.next().await {
            Some(Told::Progress(progress)) => drop(client.send(Ok(event(&progress).into())).await),
            Some(Told::Answer(answer)) => {
                let _ = client.send(Ok(event(&answer).into())).await;
                return;
            }
            Some(Told::Start(message)) => {
                let id = visit.raw_id();
                let response = proxy.start(parts, message.into(), peer, visit).await;
                return pass(response, &id, proxy.bodies.longest(), client).await;
            }
            None => return,
        }
    }
}

/// Passes the server's answer on, as events. If its stream breaks off, so does the client's: an end would say that all came.
async fn pass(response: Response, id: &str, max_message: usize, client: &Sender<Piece>) {
    let status = response.status();
    let is_stream = is_event_stream(response.headers());
    let mut body = response.into_body();
    if is_stream && status.is_success() {
        while let Some(frame) = body.frame().await {
            let piece = match frame.map(Frame::into_data) {
                Ok(Ok(data)) => Ok(data),
                // Trailers, which no event stream has.
                Ok(Err(_)) => continue,
                Err(error) => Err(io::Error::other(error)),
            };
            let _ = client.send(piece).await;
        }
        return;
    }
    let whole = http_body_util::Limited::new(body, max_message).collect().await.map(|body| body.to_bytes());
    let message = match whole {
        // An error of the protocol may come with any status.
        Ok(message) if is_message(&message) => event(&message),
        _ => event(&answer::of_http(id, status.as_u16())),
    };
    let _ = client.send(Ok(message.into())).await;
}

fn is_message(text: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Head {
        #[serde(rename = "jsonrpc")]
        _version: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Head>(text).is_ok()
}

/// A part of a stream, or that it broke off.
pub(super) type Piece = io::Result<Bytes>;

/// A body of pieces that come.
pub(super) struct Pieces(pub(super) Receiver<Piece>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
