//! The API over HTTP: questions as they are sent, answers as they are read.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, Request, Response};
use http_body::Frame;
use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate_http::identity::ClientIdentity;
use tidegate_http::layer::{Key, RateLimitBuilder};
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tidegate_server::http::{Api, KEY_MAX, LimitInWords, QUESTION_MAX, QUESTION_TIME_MAX, router};
use tower::ServiceExt as _;

struct Server {
    clock: ManualClock,
    limits: RateLimit,
    router: Router,
}

impl Server {
    fn limits(bytes: &str) -> RateLimitBuilder {
        let account = KeyBy::header("x-account");
        RateLimit::builder()
            .limit(RequestLimit::new("calls", "1/s burst 3").key(account.clone()))
            .limit(RequestLimit::new("bytes", bytes).key(account).cost(|_| 10))
            .limit(RequestLimit::new("trial", "1/h").key(KeyBy::client()).shadow())
            .identity(ClientIdentity::new().trusted_proxies("10.0.0.0/8".parse().unwrap()))
    }

    fn new(token: Option<&str>) -> Self {
        let clock = ManualClock::new();
        let limits = Self::limits("10/s burst 100").clock(clock.clone()).build().unwrap();
        let key_of = |_: &str, parts: &[String]| match parts {
            [key] => Ok(Key::from(key.clone())),
            [] => Ok(Key::everyone()),
            _ => Err("a key of this limit has one part".to_owned()),
        };
        let words = || vec![LimitInWords { name: "calls".into(), words: vec!["one a second".to_owned()] }];
        let api = Api {
            limits: limits.clone(),
            key_of: Arc::new(key_of),
            words: Arc::new(words),
            token: token.map(Into::into),
        };
        Self { clock, limits, router: router(api) }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        Answer::of(self.router.clone().oneshot(request).await.unwrap()).await
    }

    async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(Request::post(path).body(body.into()).unwrap()).await
    }

    async fn ask(&self, path: &str, body: Value) -> Answer {
        self.post(path, body.to_string()).await
    }

    /// What is left of calls and bytes.
    fn left(&self, key: &'static str) -> [u64; 2] {
        ["calls", "bytes"].map(|limit| self.limits.level(limit, &Key::from(key)).unwrap().remaining())
    }
}

struct Answer {
    status: u16,
    response: Response<()>,
    body: Value,
}

impl Answer {
    async fn of(response: Response<Body>) -> Self {
        let (head, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Self { status: head.status.as_u16(), response: Response::from_parts(head, ()), body }
    }

    fn field(&self, name: &str) -> &str {
        self.response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn detail(&self) -> &str {
        assert_eq!(self.field("content-type"), "application/problem+json", "{}", self.body);
        assert_eq!(self.body["status"], self.status);
        self.body["detail"].as_str().unwrap()
    }
}

#[tokio::test]
async fn a_call_is_decided_in_the_limits_that_it_names() {
    let server = Server::new(None);
    let one = json!({"limit": "calls", "key": "ann"});
    let answer = server.ask("/v1/check", one.clone()).await;
    assert_eq!((answer.status, answer.field("ratelimit")), (200, "\"calls\";r=2;t=1"));
    assert_eq!(
        answer.body,
        json!({
            "allowed": true, "outcome": "allowed", "refused_by": null, "retry_after_ms": null,
            "start_after_ms": 0, "shadow": null, "made": null,
            "limits": [{
                "limit": "calls", "key": ["ann"], "cost": 1, "allowed": true, "remaining": 2, "capacity": 3,
                "retry_after_ms": null, "reset_after_ms": 1000,
            }],
        })
    );
    // A look takes nothing. A whole number with a point is one.
    for _ in 0..5 {
        let look = json!({"limit": "calls", "key": "ann", "cost": 2.0, "peek": true});
        assert_eq!(server.ask("/v1/check", look).await.status, 200);
    }
    let both = |cost| json!({"checks": [{"limit": "calls", "key": "ann"}, {"limit": "bytes", "key": "ann", "cost": cost}]});
    assert_eq!(server.ask("/v1/check", both(70)).await.status, 200);
    let answer = server.ask("/v1/check", both(70)).await;
    assert_eq!(
        (answer.status, answer.field("retry-after"), answer.field("retry-after-ms")),
        (429, "4", "4000")
    );
    assert_eq!(
        (&answer.body["refused_by"], &answer.body["retry_after_ms"], &answer.body["limits"][0]["remaining"]),
        (&json!("bytes"), &json!(4000), &json!(1))
    );
    assert_eq!(server.left("ann"), [1, 30]);
    let never = server.ask("/v1/check", both(101)).await;
    assert_eq!((never.status, never.field("retry-after")), (422, ""));
    assert_eq!((&never.body["outcome"], &never.body["retry_after_ms"]), (&json!("never"), &Value::Null));
    // One millisecond before the wait is over it is not allowed, and then it is.
    server.clock.advance(Duration::from_millis(3999));
    assert_eq!(server.ask("/v1/check", both(70)).await.status, 429);
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(server.ask("/v1/check", both(70)).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_is_settled_or_cancelled_once_and_in_time() {
    let server = Server::new(None);
    let reserve = json!({
        "checks": [{"limit": "calls", "key": "ann"}, {"limit": "bytes", "key": "ann", "cost": 60}],
    });
    let reserved = async || {
        let answer = server.ask("/v1/reserve", reserve.clone()).await;
        assert_eq!((answer.status, server.left("ann")), (200, [2, 40]));
        answer.body["id"].as_str().unwrap().to_owned()
    };
    let id = reserved().await;
    let settled = server.ask("/v1/settle", json!({"id": id, "costs": {"calls": 1, "bytes": 15}})).await;
    assert_eq!((settled.status, settled.body), (200, json!({"missing": 0})));
    assert_eq!(server.left("ann"), [2, 85]);
    let again = server.ask("/v1/cancel", json!({"id": id})).await;
    assert_eq!(again.status, 404);
    assert!(again.detail().starts_with("nothing is reserved by this id"));
    assert_eq!(server.left("ann"), [2, 85]);

    server.clock.advance(Duration::from_secs(100));
    let id = reserved().await;
    assert_eq!(server.ask("/v1/cancel", json!({"id": id})).await.body, json!({"cancelled": true}));
    assert_eq!(server.left("ann"), [3, 100]);

    let id = reserved().await;
    let settled = server.ask("/v1/settle", json!({"id": id, "costs": {"bytes": 130}})).await;
    assert_eq!(settled.body, json!({"missing": 30}));
    assert_eq!(server.left("ann"), [3, 0]);
    let rejected = server.ask("/v1/reserve", reserve.clone()).await;
    assert_eq!((rejected.status, rejected.body.get("id")), (429, None));

    // A time that is over: the estimate stays charged.
    server.clock.advance(Duration::from_secs(100));
    let short = json!({"limit": "bytes", "key": "ann", "cost": 60, "expires_ms": 1});
    let id = server.ask("/v1/reserve", short).await.body["id"].as_str().unwrap().to_owned();
    tokio::time::advance(Duration::from_millis(2)).await;
    assert_eq!(server.ask("/v1/cancel", json!({"id": id})).await.status, 404);
    assert_eq!(server.left("ann"), [3, 40]);
}

#[tokio::test]
async fn what_a_reserved_call_has_cost_is_charged_also_if_it_was_thought_to_cost_nothing() {
    let server = Server::new(None);
    let reserve =
        json!({"checks": [{"limit": "bytes", "key": "ann", "cost": 0}, {"limit": "calls", "key": "ann"}]});
    let id = server.ask("/v1/reserve", reserve).await.body["id"].as_str().unwrap().to_owned();
    // A name that is not right is not a cost of 0 in the limit that was meant.
    let wrong = server.ask("/v1/settle", json!({"id": id, "costs": {"byte": 30, "calls": 1}})).await;
    assert_eq!(
        (wrong.status, wrong.detail()),
        (400, "nothing is reserved in `byte`; it is in `bytes`, `calls`")
    );
    assert_eq!(server.left("ann"), [2, 100]);
    let settled = server.ask("/v1/settle", json!({"id": id, "costs": {"bytes": 130, "calls": 1}})).await;
    assert_eq!((settled.status, settled.body), (200, json!({"missing": 30})));
    assert_eq!(server.left("ann"), [2, 0]);
}

#[tokio::test]
async fn what_is_reserved_is_settled_also_after_the_limits_were_read_again() {
    let server = Server::new(None);
    let reserved = async || {
        server.clock.advance(Duration::from_secs(1000));
        let reserve = json!({"limit": "bytes", "key": "ann", "cost": 60});
        server.ask("/v1/reserve", reserve).await.body["id"].as_str().unwrap().to_owned()
    };
    let settle = async |id: String, cost: u64| {
        server.ask("/v1/settle", json!({"id": id, "cost": cost})).await.body["missing"].as_u64().unwrap()
    };
    for (bytes, cost, missing, left) in [
        // The same quota, and so the same bucket.
        ("10/s burst 100", 15, 0, 85),
        ("10/s burst 100", 90, 0, 10),
        // Another one: the estimate stays, and what is above it is said to be missing.
        ("20/s burst 200", 15, 0, 80),
        ("10/s burst 100", 90, 30, 70),
    ] {
        let id = reserved().await;
        let _replaced = server.limits.replace(Server::limits(bytes)).unwrap();
        assert_eq!(settle(id, cost).await, missing, "{bytes} {cost}");
        assert_eq!(server.left("ann")[1], left, "{bytes} {cost}");
    }
    // Those that are cancelled too.
    let id = reserved().await;
    let _replaced = server.limits.replace(Server::limits("10/s burst 100")).unwrap();
    assert_eq!(server.ask("/v1/cancel", json!({"id": id})).await.status, 200);
    assert_eq!(server.left("ann")[1], 100);
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_end_does_not_come_is_given_up() {
    /// The beginning of a question, and nothing after it.
    struct Endless(Option<Bytes>);

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.take().map_or(Poll::Pending, |part| Poll::Ready(Some(Ok(Frame::data(part)))))
        }
    }

    let server = Server::new(None);
    for path in ["/v1/check", "/v1/reserve", "/v1/settle", "/v1/cancel"] {
        let came = tokio::time::Instant::now();
        let answer = server.post(path, Body::new(Endless(Some(Bytes::from("{"))))).await;
        assert_eq!((answer.status, answer.detail()), (408, "a question has to come within 60 s"));
        assert!(came.elapsed() >= QUESTION_TIME_MAX);
    }
}

#[tokio::test]
async fn a_question_may_come_byte_by_byte_and_not_be_longer_for_it() {
    /// A body of parts of one byte.
    struct Bytewise(Bytes);

    impl HttpBody for Bytewise {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let is_left = !self.0.is_empty();
            Poll::Ready(is_left.then(|| Ok(Frame::data(self.0.split_to(1)))))
        }
    }

    let server = Server::new(None);
    let question = json!({"limit": "calls", "key": "ann"}).to_string();
    for (spaces, status) in [(0, 200), (QUESTION_MAX - question.len(), 200), (QUESTION_MAX, 413)] {
        let body = format!("{question}{}", " ".repeat(spaces));
        let answer = server.post("/v1/check", Body::new(Bytewise(body.into()))).await;
        assert_eq!(answer.status, status, "{spaces}");
    }
}

#[tokio::test]
async fn a_proxy_is_told_about_the_request_that_it_asks_about() {
    let server = Server::new(None);
    let ask = |path: &str, fields: &[(&'static str, &'static str)]| {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        for (name, value) in fields {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let peer: SocketAddr = "10.0.0.5:4711".parse().unwrap();
        request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
        request
    };
    let ann = [("x-account", "ann"), ("x-forwarded-uri", "/a?b"), ("x-forwarded-method", "POST")];
    for left in [2, 1, 0] {
        let answer = server.send(ask("/v1/auth", &ann)).await;
        assert_eq!(answer.status, 200);
        assert!(
            answer.field("ratelimit").contains(&format!("\"calls\";r={left}")),
            "{}",
            answer.field("ratelimit")
        );
    }
    let refused = server.send(ask("/v1/auth", &ann)).await;
    assert_eq!((refused.status, refused.field("retry-after")), (429, "1"));
    assert_eq!(refused.body["violated-policies"], json!(["calls"]));
    let refused = server.send(ask("/v1/auth?refuse=403", &ann)).await;
    assert_eq!((refused.status, refused.field("retry-after")), (403, "1"));
    assert_eq!(refused.detail(), "rejected by `calls` (1/s burst 3): retry after 1.000 s");
    // The client's HEAD has no body, but the question has: it would wait for one that is announced.
    for path in ["/v1/auth", "/v1/auth?refuse=403"] {
        let head = server.send(ask(path, &[ann[0], ("x-forwarded-method", "HEAD")])).await;
        assert_eq!(
            (head.field("retry-after"), head.field("content-length"), head.field("content-type")),
            ("1", "0", "")
        );
        assert_eq!(head.body, Value::Null);
    }
    let mut head = ask("/v1/auth", &ann[..1]);
    *head.method_mut() = Method::HEAD;
    let head = server.send(head).await;
    assert!(head.status == 429 && head.field("content-length").parse::<u64>().unwrap() > 0);
    // A query of the client, which Caddy keeps, is not one of the proxy.
    assert_eq!(server.send(ask("/v1/auth?a=b", &ann)).await.status, 429);
    assert_eq!(server.send(ask("/v1/auth?a=b&refuse=403", &ann)).await.status, 403);
    // A client that says it speaks gRPC is refused as others are: in its own form that would be 200.
    let grpc = [ann[0], ("content-type", "application/grpc")];
    assert_eq!(server.send(ask("/v1/auth", &grpc)).await.status, 429);
    // Signs that proxies let pass and that are not right in an address.
    for uri in ["/<b>", "/a?q=\"`", "/a b", "/^{|}\\"] {
        let bob = [("x-account", "bob"), ("x-forwarded-uri", uri)];
        server.clock.advance(Duration::from_secs(1000));
        assert_eq!(server.send(ask("/v1/auth?refuse=403", &bob)).await.status, 200, "{uri}");
    }
    for (path, fields) in [
        ("/v1/auth?refuse=200", &[][..]),
        ("/v1/auth?refuse=x", &[]),
        ("/v1/auth?refuse=500", &[]),
        ("/v1/auth", &[("x-forwarded-method", "G T")]),
        ("/v1/auth", &[("x-forwarded-uri", "a b")]),
        ("/v1/auth", &[("x-forwarded-uri", "a")]),
    ] {
        assert_eq!(server.send(ask(path, fields)).await.status, 400, "{path} {fields:?}");
    }
}

#[tokio::test]
async fn wrong_questions_are_said_and_charge_nothing() {
    let server = Server::new(None);
    let long = "k".repeat(KEY_MAX + 1);
    let many: Vec<Value> = (0..33).map(|_| json!({"limit": "calls"})).collect();
    for (path, body, detail) in [
        (
            "/v1/check",
            json!({"limit": "pages"}),
            "there is no limit `pages`; there are `calls`, `bytes`, `trial`",
        ),
        ("/v1/check", json!({}), "name one limit as `limit`"),
        (
            "/v1/check",
            json!({"limit": "calls", "key": "ann", "cost": null}),
            "the JSON is not understood: invalid type: null",
        ),
        (
            "/v1/check",
            json!({"limit": "calls", "key": "ann", "cost": 1.5}),
            "the JSON is not understood: invalid value: floating point `1.5`",
        ),
        (
            "/v1/check",
            json!({"limit": "calls", "key": "ann", "cost": 1e16}),
            "the JSON is not understood: invalid value: floating point `1",
        ),
        ("/v1/check", json!({"limit": "calls", "checks": []}), "name one limit as `limit`"),
        ("/v1/check", json!({"checks": []}), "no limit is named"),
        ("/v1/check", json!({"checks": many}), "33 limits are named, and 32 are the most"),
        (
            "/v1/check",
            json!({"checks": [{"limit": "calls"}, {"limit": "calls"}]}),
            "the limit `calls` is there twice",
        ),
        ("/v1/check", json!({"limit": "calls", "key": ["a", "b"]}), "a key of this limit has one part"),
        ("/v1/check", json!({"limit": "calls", "key": long}), "a key of `calls` is longer than 1024 bytes"),
        ("/v1/check", json!({"limit": "calls", "cost": -1}), "the JSON is not understood: "),
        (
            "/v1/check",
            json!({"limit": "calls", "key": 7}),
            "the JSON is not understood: invalid type: integer `7`, expected a text for `key`",
        ),
        (
            "/v1/check",
            json!({"limit": "calls", "kex": "ann"}),
            "the JSON is not understood: unknown field `kex`",
        ),
        ("/v1/reserve", json!({"limit": "calls", "peek": true}), "`peek` is for /v1/check"),
        ("/v1/reserve", json!({"limit": "calls", "expires_ms": 0}), "`expires_ms` is from 1 to 3600000"),
        ("/v1/settle", json!({"id": "x"}), "say the `cost` of the call"),
        ("/v1/settle", json!({"id": "x", "cost": 1, "costs": {}}), "say the `cost` of the call"),
        ("/v1/cancel", json!({"id": "x", "cost": 1}), "what is cancelled costs nothing"),
    ] {
        let answer = server.ask(path, body.clone()).await;
        assert_eq!(answer.status, 400, "{path} {body}");
        assert!(answer.detail().starts_with(detail), "{}", answer.detail());
    }
    let too_long = server.post("/v1/check", " ".repeat(QUESTION_MAX + 1)).await;
    assert_eq!((too_long.status, too_long.detail()), (413, "a question has at most 65536 bytes"));
    for (request, status) in [
        (Request::get("/v1/check"), 405),
        (Request::get("/v1/nothing"), 404),
        (Request::get("/v1"), 404),
        (Request::post("/v1/"), 404),
        (Request::post("/v1/limits"), 405),
    ] {
        let answer = server.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status);
        assert!(answer.detail().ends_with("; see /v1/openapi.json"), "{}", answer.detail());
    }
    assert_eq!(server.left("ann"), [3, 100]);
}

#[tokio::test]
async fn who_has_no_token_is_told_so() {
    let server = Server::new(Some("secret"));
    for (path, given, status) in [
        ("/v1/limits", None, 401),
        ("/v1/limits", Some("Bearer secre"), 401),
        ("/v1/limits", Some("Bearer secret2"), 401),
        ("/v1/limits", Some("secret"), 401),
        ("/v1/auth", None, 401),
        ("/v1/limits", Some("Bearer secret"), 200),
    ] {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        if let Some(given) = given {
            request.headers_mut().insert("authorization", given.parse().unwrap());
        }
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{path} {given:?}");
        if status == 401 {
            assert_eq!(answer.field("www-authenticate"), "Bearer");
        } else {
            assert_eq!(answer.body, json!({"limits": [{"name": "calls", "words": ["one a second"]}]}));
        }
    }
}

#[tokio::test]
async fn the_description_has_every_path() {
    let server = Server::new(None);
    let answer = server.send(Request::get("/v1/openapi.json").body(Body::empty()).unwrap()).await;
    let paths: Vec<&String> = answer.body["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/v1/auth",
            "/v1/cancel",
            "/v1/check",
            "/v1/limits",
            "/v1/openapi.json",
            "/v1/reserve",
            "/v1/settle"
        ]
    );
}
