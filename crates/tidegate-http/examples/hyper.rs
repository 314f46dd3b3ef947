//! A hyper server under a limit: `cargo run -p tidegate-http --example hyper`, then `curl -i` its address.

use std::convert::Infallible;
use std::error::Error;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate_http::RateLimit;
use tower::{Layer as _, service_fn};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows its result")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Made once: clones share its state. One that is made for each connection limits nothing.
    let limit = RateLimit::per_client("1 per 10s burst 3");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let limited = limit.layer(service_fn(|_: Request<Incoming>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello\n"))))
        }));
        // The layer looks for the address of the client in the extensions of the request.
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let mut limited = limited.clone();
            async move { tower::Service::call(&mut limited, request).await }
        });
        tokio::spawn(async move {
            let http = hyper::server::conn::http1::Builder::new();
            // A client that breaks its connection harms nobody else.
            let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
        });
    }
}
