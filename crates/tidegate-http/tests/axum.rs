//! The layer in an axum app, over real connections.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use tidegate::clock::ManualClock;
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long a test waits for what must happen: far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves an app on a free port until the test ends.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn ask(address: SocketAddr, request: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

/// The whole answer to a request on a connection of its own.
async fn exchange(address: SocketAddr, method: &str, path: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    ask(address, &request).await.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Reads until the answer so far ends in `end`.
async fn read_until(connection: &mut TcpStream, end: &str) -> String {
    let mut answer = String::new();
    while !answer.ends_with(end) {
        answer.push(char::from(timeout(PATIENCE, connection.read_u8()).await.unwrap().unwrap()));
    }
    answer
}

/// Waits until as many requests are in flight.
async fn in_flight(layer: &RateLimit, expected: u64) {
    let reached = async {
        while layer.counts().in_flight != expected {
            tokio::task::yield_now().await;
        }
    };
    let reached = timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "{} are in flight and not {expected}", layer.counts().in_flight);
}

#[tokio::test]
async fn of_fifty_requests_on_connections_of_their_own_five_are_allowed() {
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimit::per_client("1/hour burst 5"));
    let address = serve(app).await;
    let mut allowed = 0;
    for _ in 0..50 {
        let answer = exchange(address, "GET", "/").await;
        if answer.starts_with("HTTP/1.1 200 ") {
            allowed += 1;
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        } else {
            assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
            let wait = answer.split("\r\n").find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
            assert!((3500..=3600).contains(&wait.parse().unwrap()), "{answer}");
            assert!(answer.contains(&format!("\r\nratelimit: \"per-client\";r=0;t={wait}\r\n")), "{answer}");
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            assert!(serde_json::from_str::<serde_json::Value>(body).is_ok(), "{answer}");
        }
    }
    assert_eq!(allowed, 5);

    // The whole length and no body.
    let head = exchange(address, "HEAD", "/").await;
    assert!(head.starts_with("HTTP/1.1 429 ") && head.ends_with("\r\n\r\n"), "{head}");
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert!(length.parse::<u64>().unwrap() > 100, "{head}");
}

/// The other end of the stream that the app has begun last.
type Stream = Arc<Mutex<Option<Sender<Bytes, Infallible>>>>;

async fn stream(State(last): State<Stream>) -> Body {
    let (sender, body) = Channel::new(4);
    *last.lock().unwrap() = Some(sender);
    Body::new(body)
}

async fn streaming(layer: &RateLimit) -> (SocketAddr, Stream) {
    let last = Stream::default();
    let routes = Router::new().route("/stream", get(stream)).route("/", get(async || "hello"));
    (serve(routes.with_state(Arc::clone(&last)).layer(layer.clone())).await, last)
}

const GET_STREAM: &str = "GET /stream HTTP/1.1\r\nhost: a\r\n\r\n";

#[tokio::test]
async fn a_stream_holds_its_place_until_it_ends() {
    let layer = RateLimit::builder().max_in_flight(1).build().unwrap();
    let (address, last) = streaming(&layer).await;
    let mut connection = ask(address, GET_STREAM).await;
    let head = read_until(&mut connection, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(!head.contains("ratelimit"), "the places of the server are nobody's business: {head}");

    let mut sender = last.lock().unwrap().take().unwrap();
    sender.send_data("part".into()).await.unwrap();
    read_until(&mut connection, "part\r\n").await;
    assert_eq!(layer.counts().in_flight, 1);
    let shed = exchange(address, "GET", "/").await;
    assert!(shed.starts_with("HTTP/1.1 503 "), "{shed}");
    assert!(shed.contains("#temporary-reduced-capacity") && !shed.contains("retry-after"), "{shed}");

    drop(sender);
    read_until(&mut connection, "0\r\n\r\n").await;
    in_flight(&layer, 0).await;
    let answer = exchange(address, "GET", "/").await;
    assert!(answer.ends_with("hello"), "{answer}");
    in_flight(&layer, 0).await;
    assert_eq!((layer.counts().allowed, layer.counts().rejected, layer.counts().shed), (2, 0, 1));
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_its_place() {
    let layer = RateLimit::builder().max_in_flight(1).build().unwrap();
    let (address, last) = streaming(&layer).await;
    let mut connection = ask(address, GET_STREAM).await;
    read_until(&mut connection, "\r\n\r\n").await;
    let _open = last.lock().unwrap().take().unwrap();
    assert_eq!(layer.counts().in_flight, 1);
    drop(connection);
    in_flight(&layer, 0).await;
    assert!(exchange(address, "GET", "/").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn the_places_of_a_key_are_its_own() {
    let api_key = KeyBy::header("x-api-key");
    let layer = RateLimit::builder()
        .limit(RequestLimit::new("everyone", "1/hour burst 10").key(KeyBy::everyone()))
        .max_in_flight_per_key(api_key, 1)
        .clock(ManualClock::new())
        .max_in_flight(2)
        .build()
        .unwrap();
    let (address, last) = streaming(&layer).await;
    let get = |key: &str| format!("GET /stream HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n");

    let mut ann = ask(address, &get("ann")).await;
    let head = read_until(&mut ann, "\r\n\r\n").await;
    let state = "ratelimit: \"everyone\";r=9;t=3600, \"in-flight-per-key\";r=0\r\n";
    let policy = "\"in-flight-per-key\";q=1;qu=\"concurrent-requests\"\r\n";
    assert!(head.contains(state) && head.contains(policy), "{head}");
    let end_of_ann = last.lock().unwrap().take();

    // Her own places are taken: 429, and the quota is not charged.
    let again = read_until(&mut ask(address, &get("ann")).await, "\r\n\r\n").await;
    assert!(again.starts_with("HTTP/1.1 429 ") && !again.contains("retry-after"), "{again}");
    assert!(again.contains("ratelimit: \"in-flight-per-key\";r=0, \"everyone\";r=9;t=3600\r\n"), "{again}");

    // Bob has his; then the server has none left.
    let mut bob = ask(address, &get("bob")).await;
    assert!(read_until(&mut bob, "\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    let eve = read_until(&mut ask(address, &get("eve")).await, "\r\n\r\n").await;
    assert!(eve.starts_with("HTTP/1.1 503 ") && eve.contains("\"everyone\";r=8;"), "{eve}");

    drop(end_of_ann);
    in_flight(&layer, 1).await;
    let mut ann = ask(address, &get("ann")).await;
    assert!(read_until(&mut ann, "\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_handler_that_panics_leaves_its_place() {
    let layer = RateLimit::builder().max_in_flight(1).build().unwrap();
    let app = Router::new()
        .route("/panic", get(async || -> &'static str { panic!("as asked") }))
        .route("/", get(async || "hello"));
    let address = serve(app.layer(layer.clone())).await;
    for _ in 0..3 {
        assert_eq!(exchange(address, "GET", "/panic").await, "");
        in_flight(&layer, 0).await;
        assert!(exchange(address, "GET", "/").await.starts_with("HTTP/1.1 200 "));
    }
}
