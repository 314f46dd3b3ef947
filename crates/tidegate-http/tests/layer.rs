//! The layer around services of its own: what is answered when.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::{Algorithm, Kind};
use tidegate_http::fields::{parse_policy, parse_state};
use tidegate_http::identity::ClientIdentity;
use tidegate_http::layer::{Key, NotServed, RateLimitBuilder, RateLimitService, Rejection, ShadowRejection};
use tidegate_http::{KeyBy, RateLimit, RateLimitError, RequestLimit};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

/// What a service here is called with, and what it answers.
trait Inner: Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible> + Clone {}
impl<S> Inner for S where S: Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible> + Clone
{}

fn hello() -> impl Inner {
    service_fn(|_: Request<()>| async { Ok(Response::new(Full::from("hello"))) })
}

fn built(builder: RateLimitBuilder) -> RateLimitService<impl Inner> {
    builder.build().unwrap().layer(hello())
}

/// A layer to build whose clock stands still.
fn limits() -> RateLimitBuilder {
    RateLimit::builder().clock(ManualClock::new())
}

/// A request from an address.
fn from(peer: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 4711));
    request
}

fn with(mut request: Request<()>, fields: &[(&'static str, &'static str)]) -> Request<()> {
    for (name, value) in fields {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    request
}

fn method(method: Method, mut request: Request<()>) -> Request<()> {
    *request.method_mut() = method;
    request
}

fn path(path: &'static str, mut request: Request<()>) -> Request<()> {
    *request.uri_mut() = path.parse().unwrap();
    request
}

/// Sends a request, and reads the whole body.
async fn send(service: &RateLimitService<impl Inner>, request: Request<()>) -> Response<Bytes> {
    let (head, body) = service.clone().oneshot(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

async fn status(service: &RateLimitService<impl Inner>, request: Request<()>) -> u16 {
    send(service, request).await.status().as_u16()
}

fn field<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn clones_and_services_of_one_layer_share_one_state() {
    let layer = RateLimit::per_client("1/hour burst 5");
    let mut allowed = 0;
    for _ in 0..50 {
        allowed += u32::from(status(&layer.clone().layer(hello()), from("203.0.113.9")).await == 200);
    }
    assert_eq!(allowed, 5);
    assert_eq!(status(&layer.layer(hello()), from("203.0.113.10")).await, 200);
    assert_eq!((layer.counts().allowed, layer.counts().rejected), (6, 45));
    assert_eq!(layer.stats("per-client").unwrap().used, 2);
    assert_eq!(layer.stats("other"), None);
}

#[tokio::test]
async fn a_rejection_says_how_long_and_after_that_it_is_allowed() {
    let clock = ManualClock::new();
    let service = built(limits().limit(RequestLimit::new("per-client", "2/s burst 3")).clock(&clock));
    for remaining in ["2", "1", "0"] {
        let response = send(&service, from("203.0.113.9")).await;
        assert_eq!(response.body(), "hello");
        assert_eq!(field(&response, "ratelimit-policy"), "\"per-client\";q=3;w=2");
        assert_eq!(field(&response, "ratelimit"), format!("\"per-client\";r={remaining};t=1"));
        for absent in ["retry-after", "retry-after-ms", "x-ratelimit-limit"] {
            assert_eq!(field(&response, absent), "", "{absent}");
        }
    }
    clock.advance(Duration::from_nanos(499_000_001));
    let response = send(&service, from("203.0.113.9")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    for (name, value) in [
        ("retry-after", "1"),
        ("retry-after-ms", "1"),
        ("ratelimit", "\"per-client\";r=0;t=1"),
        ("ratelimit-policy", "\"per-client\";q=3;w=2"),
        ("content-type", "application/problem+json"),
    ] {
        assert_eq!(field(&response, name), value, "{name}");
    }
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "rejected by `per-client` (2/s burst 3): retry after 0.001 s",
            "violated-policies": ["per-client"],
        })
    );
    let rejection = response.extensions().get::<Rejection>().unwrap();
    assert_eq!(
        (&*rejection.limit, rejection.retry_after),
        ("per-client", Some(Duration::from_nanos(999_999)))
    );
    clock.advance(Duration::from_nanos(999_998));
    assert_eq!(status(&service, from("203.0.113.9")).await, 429);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(status(&service, from("203.0.113.9")).await, 200);
}

#[tokio::test]
async fn of_several_limits_all_are_charged_or_none() {
    let clock = ManualClock::new();
    let everyone = RequestLimit::new("everyone", "1 per 100s burst 3").key(KeyBy::everyone());
    let builder = limits().limit(RequestLimit::new("per-client", "1 per 10s burst 2")).limit(everyone);
    let service = built(builder.clock(&clock).legacy_fields(true));
    let (ann, bob) = ("203.0.113.9", "203.0.113.10");

    // The limit with the least left comes first.
    let response = send(&service, from(ann)).await;
    assert_eq!(field(&response, "ratelimit"), "\"per-client\";r=1;t=10, \"everyone\";r=2;t=100");
    assert_eq!(field(&response, "ratelimit-policy"), "\"per-client\";q=2;w=20, \"everyone\";q=3;w=300");
    assert_eq!(status(&service, from(ann)).await, 200);

    // Ann's own limit refuses: that of everyone is not charged, and the numbers are those of hers.
    for _ in 0..10 {
        let response = send(&service, from(ann)).await;
        assert_eq!(response.status(), 429);
        assert_eq!(field(&response, "ratelimit"), "\"per-client\";r=0;t=10, \"everyone\";r=1;t=100");
        assert_eq!(field(&response, "retry-after"), "10");
        assert_eq!(field(&response, "x-ratelimit-limit"), "2");
        assert_eq!(field(&response, "x-ratelimit-remaining"), "0");
        assert_eq!(field(&response, "x-ratelimit-reset"), "20");
    }

    // Bob takes the last of everyone's; then that refuses him, and his own limit is not charged.
    assert_eq!(status(&service, from(bob)).await, 200);
    for _ in 0..10 {
        let response = send(&service, from(bob)).await;
        assert_eq!(field(&response, "ratelimit"), "\"everyone\";r=0;t=100, \"per-client\";r=1;t=10");
        assert_eq!(field(&response, "retry-after"), "100");
        assert_eq!(field(&response, "x-ratelimit-limit"), "3");
        let problem: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(problem["violated-policies"], json!(["everyone"]));
    }
    let both: Value = serde_json::from_slice(send(&service, from(ann)).await.body()).unwrap();
    assert_eq!(both["violated-policies"], json!(["per-client", "everyone"]));
    assert!(both["detail"].as_str().unwrap().starts_with("rejected by `everyone`"));
    clock.advance(Duration::from_secs(100));
    assert_eq!(status(&service, from(bob)).await, 200);
}

/// Two clients want the one token of a path at the same time, again and again: who does not get it is not charged in the
/// limit of his own, which is charged first.
#[test]
fn who_loses_a_race_for_one_limit_is_not_charged_in_another() {
    const PATHS: usize = 30_000;
    let client = RequestLimit::new("client", "1/hour burst 1000000");
    let builder = limits().limit(client).limit(RequestLimit::new("path", "1/hour").key(KeyBy::path()));
    let (layer, together) = (builder.build().unwrap(), std::sync::Barrier::new(2));
    let allowed = std::thread::scope(|threads| {
        let race = |peer: &'static str| {
            let (service, together) = (layer.layer(hello()), &together);
            threads.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let ask = |number: usize| {
                    let mut request = from(peer);
                    *request.uri_mut() = format!("/{number}").parse().unwrap();
                    runtime.block_on(send(&service, request))
                };
                let mut allowed = 0;
                for path in 0..PATHS {
                    together.wait();
                    allowed += u64::from(ask(path).status() == 200);
                }
                // A cost that nobody was allowed shows here.
                let last = ask(PATHS + peer.len());
                let states = parse_state(last.headers().get_all("ratelimit")).unwrap();
                let left = states.iter().find(|state| &*state.name == "client").unwrap().remaining;
                assert_eq!(left, 1_000_000 - allowed - 1, "{peer}");
                allowed
            })
        };
        [race("203.0.113.9"), race("203.0.113.10")].map(|thread| thread.join().unwrap())
    });
    assert_eq!(allowed.iter().sum::<u64>(), PATHS as u64);
}

#[tokio::test]
async fn what_nobody_served_is_taken_back_in_all_limits() {
    let of = |name: &str, quota: &str| RequestLimit::new(name, quota);
    let one = || limits().take_back_not_served().limit(of("one", "1/hour burst 2"));
    let many = || one().limit(of("all", "1/hour burst 3").key(KeyBy::everyone())).max_in_flight(5);
    for builder in [one(), one().limit(of("tried", "1/hour").shadow()), many()] {
        let layer = builder.build().unwrap();
        let down = layer.layer(service_fn(|_: Request<()>| async {
            let mut response = Response::new(Full::from("down"));
            response.extensions_mut().insert(NotServed);
            Ok(response)
        }));
        let up = layer.layer(hello());
        for _ in 0..9 {
            assert_eq!(status(&down, from("192.0.2.1")).await, 200);
        }
        assert_eq!(layer.counts().not_served, 9);
        for expected in [200, 200, 429] {
            assert_eq!(status(&up, from("192.0.2.1")).await, expected);
        }
        assert_eq!(layer.counts().not_served, 9);
    }
}

#[tokio::test]
async fn a_shadow_limit_shows_its_fields_and_refuses_nothing() {
    let service = built(limits().limit(RequestLimit::new("trial", "1 per 10s").shadow()));
    let first = send(&service, from("203.0.113.9")).await;
    assert_eq!(first.extensions().get::<ShadowRejection>(), None);
    for _ in 0..3 {
        let response = send(&service, from("203.0.113.9")).await;
        assert_eq!((response.status(), &response.body()[..]), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(field(&response, "ratelimit"), "\"trial\";r=0;t=10");
        assert_eq!(field(&response, "retry-after"), "");
        assert_eq!(response.extensions().get::<ShadowRejection>().unwrap().limit.as_ref(), "trial");
    }

    // Beside one that is enforced.
    let layer = limits()
        .limit(RequestLimit::new("trial", "1/hour burst 2").shadow())
        .limit(RequestLimit::new("per-client", "1/hour burst 3"))
        .build()
        .unwrap();
    let service = layer.layer(hello());
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(status(&service, from("203.0.113.9")).await);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(layer.counts().shadow, 2);
    let response = send(&service, from("203.0.113.9")).await;
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(problem["violated-policies"], json!(["per-client"]));
    assert_eq!(response.extensions().get::<ShadowRejection>(), None);
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_never_allowed() {
    let cost = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    let bytes = RequestLimit::new("bytes", "100/s burst 1000")
        .unit("content-bytes".into())
        .cost(move |head| head.headers().get("content-length").and_then(cost).unwrap_or(0));
    let service = built(limits().limit(bytes));
    let post = |length| with(from("203.0.113.9"), &[("content-length", length)]);

    let response = send(&service, post("700")).await;
    assert_eq!(field(&response, "ratelimit-policy"), "\"bytes\";q=1000;w=10;qu=\"content-bytes\"");
    assert_eq!(field(&response, "ratelimit"), "\"bytes\";r=300;t=1");
    assert_eq!(status(&service, post("700")).await, 429);
    let never = send(&service, post("1001")).await;
    assert_eq!((never.status(), field(&never, "retry-after")), (StatusCode::BAD_REQUEST, ""));
    assert_eq!(field(&never, "ratelimit"), "\"bytes\";r=300;t=1", "nothing was charged");
    let problem: Value = serde_json::from_slice(never.body()).unwrap();
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(
        problem["detail"],
        "cost 1001 exceeds the capacity 1000 of `bytes`, so it can never be allowed"
    );
    // A cost of 0 passes, and so does what needs no more than is left.
    assert_eq!(status(&service, from("203.0.113.9")).await, 200);
    assert_eq!(status(&service, post("300")).await, 200);
    assert_eq!(status(&service, from("203.0.113.9")).await, 200);
}

#[tokio::test]
async fn head_has_no_body_and_the_same_fields() {
    let service = built(limits().limit(RequestLimit::new("per-client", "1 per 10s")));
    let _ = send(&service, from("203.0.113.9")).await;
    let get = send(&service, from("203.0.113.9")).await;
    let head = send(&service, method(Method::HEAD, from("203.0.113.9"))).await;
    assert_eq!((head.status(), head.body().len()), (StatusCode::TOO_MANY_REQUESTS, 0));
    assert_eq!(field(&head, "content-length"), get.body().len().to_string());
    assert_eq!(field(&head, "retry-after"), "10");
}

#[tokio::test]
async fn preflights_pass_and_other_options_do_not() {
    let builder = || limits().limit(RequestLimit::new("per-client", "1/hour"));
    let service = built(builder());
    let asks = [("origin", "https://a.example"), ("access-control-request-method", "PUT")];
    let preflight = || with(method(Method::OPTIONS, from("203.0.113.9")), &asks);
    for _ in 0..5 {
        let response = send(&service, preflight()).await;
        assert_eq!((response.status(), field(&response, "ratelimit")), (StatusCode::OK, ""));
    }
    assert_eq!(status(&service, method(Method::OPTIONS, from("203.0.113.9"))).await, 200);
    for request in [
        method(Method::OPTIONS, from("203.0.113.9")),
        with(method(Method::OPTIONS, from("203.0.113.9")), &asks[..1]),
        with(from("203.0.113.9"), &asks),
    ] {
        assert_eq!(status(&service, request).await, 429);
    }
    assert_eq!(status(&service, preflight()).await, 200);

    let strict = built(builder().count_preflights());
    assert_eq!([status(&strict, preflight()).await, status(&strict, preflight()).await], [200, 429]);
}

#[tokio::test]
async fn what_is_exempt_passes() {
    let builder = limits().limit(RequestLimit::new("per-client", "1/hour"));
    let service = built(builder.exempt(|head| head.uri().path() == "/health"));
    for _ in 0..5 {
        assert_eq!(status(&service, path("/health", from("203.0.113.9"))).await, 200);
    }
    assert_eq!(status(&service, path("/", from("203.0.113.9"))).await, 200);
    assert_eq!(status(&service, path("/", from("203.0.113.9"))).await, 429);
}

#[tokio::test]
async fn keys_come_from_the_head_of_the_request() {
    #[derive(Clone)]
    struct Account(u64);
    let limit = |key: KeyBy| built(limits().limit(RequestLimit::new("it", "1/hour").key(key)));
    let account = |account| {
        let mut request = from("203.0.113.9");
        request.extensions_mut().insert(Account(account));
        request
    };
    let api_key = |key| with(from("203.0.113.9"), &[("x-api-key", key)]);

    let service = limit(KeyBy::header("X-Api-Key").or(KeyBy::client()));
    for (request, expected) in [
        (api_key("ann"), 200),
        (api_key("bob"), 200),
        (api_key("ann"), 429),
        (from("203.0.113.9"), 200),
        (from("203.0.113.9"), 429),
    ] {
        assert_eq!(status(&service, request).await, expected);
    }

    let service = limit(KeyBy::function(|head| Some(Key::from(head.extensions().get::<Account>()?.0))));
    for (request, expected) in [
        (account(1), 200),
        (account(2), 200),
        (account(1), 429),
        // Requests without a key share one.
        (from("203.0.113.9"), 200),
        (from("203.0.113.10"), 429),
    ] {
        assert_eq!(status(&service, request).await, expected);
    }

    let service = limit(KeyBy::method().and(KeyBy::path()));
    for (request, expected) in [
        (path("/a", from("203.0.113.9")), 200),
        (path("/b", from("203.0.113.9")), 200),
        (path("/a?x=1", from("203.0.113.9")), 429),
        (method(Method::PUT, path("/a", from("203.0.113.9"))), 200),
    ] {
        assert_eq!(status(&service, request).await, expected);
    }
}

#[tokio::test]
async fn a_key_may_be_any_bytes() {
    let service = built(limits().limit(RequestLimit::new("it", "1/hour").key(KeyBy::header("x-key"))));
    for (value, expected) in [(&b"\xff\xfe"[..], 200), (b"\xff\xfd", 200), (b"\xff\xfe", 429), (b"", 200)] {
        let mut request = from("203.0.113.9");
        request.headers_mut().insert("x-key", HeaderValue::from_bytes(value).unwrap());
        assert_eq!(status(&service, request).await, expected, "{value:?}");
    }
}

#[tokio::test]
async fn who_spoofs_an_address_is_not_another_client() {
    let proxied = ClientIdentity::new().trusted_proxies("10.0.0.0/8".parse().unwrap());
    let spoofed = ["1.1.1.1", "2.2.2.2", "\u{7f}", "", "::1", "10.0.0.1, 9.9.9.9"];

    // Without a trusted proxy the field does not count.
    let service = built(limits().limit(RequestLimit::new("per-client", "1/hour")));
    assert_eq!(status(&service, from("203.0.113.9")).await, 200);
    for value in spoofed {
        let mut request = from("203.0.113.9");
        if let Ok(value) = HeaderValue::from_str(value) {
            request.headers_mut().insert("x-forwarded-for", value);
        }
        assert_eq!(status(&service, request).await, 429, "{value}");
    }

    // Behind one, what it added counts, and not what was there.
    let service = built(limits().limit(RequestLimit::new("per-client", "1/hour")).identity(proxied));
    let via = |list: &str| {
        let mut request = from("10.0.0.5");
        request.headers_mut().insert("x-forwarded-for", HeaderValue::from_bytes(list.as_bytes()).unwrap());
        request
    };
    assert_eq!(status(&service, via("203.0.113.9")).await, 200);
    assert_eq!(status(&service, via("1.1.1.1, 203.0.113.9")).await, 429);
    assert_eq!(status(&service, via("1.1.1.1, \u{e9}, 203.0.113.9")).await, 429);
    assert_eq!(status(&service, via("203.0.113.10")).await, 200);
    // One subscriber's network is one client.
    assert_eq!(status(&service, via("2001:db8:1:2::1")).await, 200);
    assert_eq!(status(&service, via("2001:db8:1:2:ffff::2")).await, 429);
}

#[tokio::test]
async fn without_the_address_of_the_peer_all_clients_are_one_and_are_told() {
    let layer = RateLimit::per_client("1/hour");
    let service = layer.layer(hello());
    assert_eq!(status(&service, Request::new(())).await, 200);
    let response = send(&service, Request::new(())).await;
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert!(problem["detail"].as_str().unwrap().ends_with("so all of them share this limit"));
    assert_eq!(layer.counts().without_peer, 2);
    let response = send(&service, from("203.0.113.9")).await;
    assert_eq!((response.status(), layer.counts().without_peer), (StatusCode::OK, 2));

    // Another place for it.
    let service = built(
        limits()
            .limit(RequestLimit::new("per-client", "1/hour"))
            .peer(|extensions| extensions.get::<IpAddr>().copied()),
    );
    for (peer, expected) in [("203.0.113.9", 200), ("203.0.113.10", 200), ("203.0.113.9", 429)] {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
        assert_eq!(status(&service, request).await, expected);
    }
}

#[derive(Debug, PartialEq)]
struct OwnError(u8);

#[tokio::test]
async fn the_error_of_the_service_inside_stays_what_it_is() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let inner = service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err::<Response<Full<Bytes>>, _>(OwnError(7)) }
    });
    let builder = limits().limit(RequestLimit::new("per-client", "1/hour burst 2")).max_in_flight(1);
    let layer = builder.build().unwrap();
    let service = layer.layer(inner);
    for _ in 0..2 {
        assert_eq!(service.clone().oneshot(from("203.0.113.9")).await.unwrap_err(), OwnError(7));
        assert_eq!(layer.counts().in_flight, 0, "the place of a request that failed is free");
    }
    let response = service.clone().oneshot(from("203.0.113.9")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "a rejected request does not reach the service");
}

#[tokio::test]
async fn other_algorithms_and_the_fields_of_another_layer_are_shown_too() {
    let window = Algorithm::new(Kind::FixedWindow, "10/min".parse().unwrap());
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(54));
    let outer = limits().limit(RequestLimit::new("window", window)).clock(&clock).legacy_fields(true);
    let inner = limits().limit(RequestLimit::new("per-client", "1 per 10s burst 2").show_at_most(0));
    let service =
        outer.build().unwrap().layer(inner.clock(&clock).legacy_fields(true).build().unwrap().layer(hello()));
    let response = service.oneshot(from("203.0.113.9")).await.unwrap();
    let lines = |name: &str| response.headers().get_all(name.to_owned()).iter().cloned().collect::<Vec<_>>();
    let states = parse_state(&lines("ratelimit")).unwrap();
    // Six seconds before the end of the window a tenth of its quota is shown.
    let numbers = states.iter().map(|state| (&*state.name, state.remaining, state.seconds));
    assert_eq!(numbers.collect::<Vec<_>>(), [("per-client", 0, Some(10)), ("window", 1, Some(6))]);
    let policies = parse_policy(&lines("ratelimit-policy")).unwrap();
    assert_eq!((policies[1].quota, policies[1].window_seconds.unwrap().get()), (10, 60));
    assert_eq!(lines("x-ratelimit-limit"), ["2"], "the layer further in knows better");

    let none = built(limits().limit(RequestLimit::new("a", "1/hour")).fields(false));
    assert_eq!(field(&send(&none, from("203.0.113.9")).await, "ratelimit"), "");
    let rejected = send(&none, from("203.0.113.9")).await;
    assert_eq!((field(&rejected, "ratelimit"), field(&rejected, "retry-after")), ("", "3600"));
}

#[tokio::test]
async fn a_call_of_grpc_gets_its_status_in_fields() {
    let layer = limits().limit(RequestLimit::new("per-client", "1 per 10s burst 1")).build().unwrap();
    let service = layer.layer(hello());
    let call =
        || with(method(Method::POST, from("203.0.113.9")), &[("content-type", "application/grpc+proto")]);
    let _ = send(&service, call()).await;
    let response = send(&service, call()).await;
    assert_eq!((response.status(), response.body().len()), (StatusCode::OK, 0));
    assert_eq!(field(&response, "content-type"), "application/grpc");
    assert_eq!(field(&response, "grpc-status"), "8");
    assert!(
        field(&response, "grpc-message").starts_with("rejected by `per-client` (1 per 10s): retry after ")
    );
    let wait: u64 = field(&response, "grpc-retry-pushback-ms").parse().unwrap();
    assert!((9_000..=10_000).contains(&wait), "{wait}");
    assert_eq!(field(&response, "retry-after"), "10");
}

#[test]
fn what_cannot_be_built_says_what_to_do() {
    let build = |list: Vec<RequestLimit>| {
        list.into_iter().fold(limits(), RateLimitBuilder::limit).build().unwrap_err().to_string()
    };
    let limit = |name: &str| RequestLimit::new(name, "10/s");
    for (error, expected) in [
        (build(vec![]), "a layer needs a limit; add one with `limit` or `max_in_flight`"),
        (
            build(vec![RequestLimit::new("a", "10")]),
            "limit `a`: the quota `10` does not say per what time; write for example `10/s` or `1 per 10s`",
        ),
        (build(vec![limit("a"), limit("a")]), "two limits are named `a`; give each a name of its own"),
        (build(vec![limit("in-flight")]), "two limits are named `in-flight`; give each a name of its own"),
        (build(vec![limit("ä")]), "`ä` cannot be sent in a response field; write it in printable ASCII"),
        (
            limits().max_in_flight(0).build().unwrap_err().to_string(),
            "no request could run with 0 places in flight; write at least 1, or leave that limit out",
        ),
    ] {
        assert_eq!(error, expected);
    }
    assert_eq!(limits().build().unwrap_err(), RateLimitError::NoLimit);
}

#[test]
#[should_panic(expected = "limit `per-client`: the quota `10` does not say per what time")]
fn per_client_panics_at_a_text_that_is_no_quota() {
    let _ = RateLimit::per_client("10");
}
