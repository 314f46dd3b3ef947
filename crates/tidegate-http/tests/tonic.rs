//! The layer around a tonic server, asked by a tonic client over sockets.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_http::{RateLimit, RequestLimit};
use tokio::net::TcpListener;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A health service under a limit for each client, and a connection to it.
async fn served(quota: &str) -> (RateLimit, SocketAddr) {
    let layer = RateLimit::builder()
        .limit(RequestLimit::new("per-client", quota))
        .max_in_flight(1)
        // Where tonic has the address of the peer.
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()))
        .build()
        .unwrap();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", ServingStatus::Serving).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer.clone()).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    (layer, address)
}

async fn client(address: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn request() -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest::default());
    request.set_timeout(Duration::from_secs(20));
    request
}

#[tokio::test]
async fn a_rejected_call_has_the_status_of_grpc_and_its_wait() {
    let (layer, address) = served("1/hour burst 2").await;
    // A connection for each call: they share one state.
    for _ in 0..2 {
        let response = client(address).await.check(request()).await.unwrap();
        assert!(
            response.metadata().get("ratelimit").unwrap().to_str().unwrap().starts_with("\"per-client\";r=")
        );
    }
    let status = client(address).await.check(request()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().starts_with("rejected by `per-client` (1/hour burst 2): retry after 35"),
        "{status}"
    );
    let pushback: u64 =
        status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!((3_590_000..=3_600_000).contains(&pushback), "{pushback}");
    assert_eq!((layer.counts().allowed, layer.counts().rejected, layer.counts().without_peer), (2, 1, 0));
}

#[tokio::test]
async fn a_stream_holds_its_place_until_it_is_dropped() {
    let (layer, address) = served("1000/s").await;
    let mut stream = client(address).await.watch(request()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let status = client(address).await.check(request()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    drop(stream);
    // The server learns of it over the connection.
    while layer.counts().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    assert!(client(address).await.check(request()).await.is_ok());
}
