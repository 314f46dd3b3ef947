//! Both clients against servers that play providers, over real connections and in real time.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod providers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use reqwest_middleware::ClientWithMiddleware;
use tidegate::Gate;
use tidegate_http::client::{
    CallError, CallOptions, Failure, NotSent, Pace, PaceBuilder, PaceService, Report, Stopped,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{Layer as _, ServiceExt as _};

use self::providers::{Playing, Provider, serve};

/// How long a test waits for what must happen: far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tower,
    Reqwest,
}

/// One of the two clients, behind the same layer.
#[derive(Clone)]
enum Client {
    Tower(Box<PaceService<legacy::Client<HttpConnector, Full<Bytes>>>>),
    Reqwest(ClientWithMiddleware),
}

/// What came of a call: status, body and report, or the text of the error and the report.
type Called = Result<(StatusCode, Bytes, Report), (String, Option<Report>)>;

impl Client {
    fn new(kind: Kind, pace: PaceBuilder) -> Self {
        match kind {
            Kind::Tower => {
                let inner = legacy::Client::builder(TokioExecutor::new()).build_http();
                let pace = pace.failure(
                    |error: &legacy::Error| {
                        if error.is_connect() { Failure::Unsent } else { Failure::Unknown }
                    },
                );
                Self::Tower(Box::new(pace.build().layer(inner)))
            }
            Kind::Reqwest => {
                let inner = reqwest::Client::builder().no_proxy().build().unwrap();
                Self::Reqwest(reqwest_middleware::ClientBuilder::new(inner).with(pace.build()).build())
            }
        }
    }

    async fn call(&self, method: Method, address: SocketAddr) -> Called {
        let url = format!("http://{address}/v1/call?a=b");
        match self {
            Self::Tower(service) => {
                let request = Request::builder().method(method).uri(url);
                let result = service.clone().oneshot(request.body(Full::from("hello")).unwrap()).await;
                let response = result.map_err(|error| match error {
                    CallError::NotSent(not_sent) => (not_sent.to_string(), None),
                    CallError::Failed { error, report } => (format!("{error:?}"), Some(*report)),
                    other => panic!("{other}"),
                })?;
                let (status, report) = (response.status(), response.extensions().get().cloned().unwrap());
                let body =
                    response.into_body().collect().await.map_err(|error| (format!("{error:?}"), None))?;
                Ok((status, body.to_bytes(), report))
            }
            Self::Reqwest(client) => {
                let request = client.request(method, &url).body("hello").build().unwrap();
                let mut extensions = http::Extensions::new();
                let result = client.execute_with_extensions(request, &mut extensions).await;
                let response = result.map_err(|error| match error {
                    reqwest_middleware::Error::Middleware(error) => {
                        (error.downcast_ref::<NotSent>().unwrap().to_string(), None)
                    }
                    error @ reqwest_middleware::Error::Reqwest(_) => {
                        (format!("{error:?}"), extensions.remove())
                    }
                })?;
                assert_eq!(response.url().as_str(), url, "a response keeps its address");
                let (status, report) = (response.status(), response.extensions().get().cloned().unwrap());
                let body = response.bytes().await.map_err(|error| (format!("{error:?}"), None))?;
                Ok((status, body, report))
            }
        }
    }
}

/// Seven calls at once to a provider that allows three before it refuses.
async fn play(provider: Provider, kind: Kind) {
    const CALLS: usize = 7;

    let (playing, address) = Playing::start(provider).await;
    // One at a time, so that none is on its way to the server while a refusal is on its way back.
    let gate = Gate::builder("1000/s".parse().unwrap()).max_in_flight(1.try_into().unwrap()).build().unwrap();
    let client = Client::new(kind, Pace::builder(gate.clone()).deadline(PATIENCE).read_successes());
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let client = client.clone();
        calls.spawn(async move { client.call(Method::POST, address).await });
    }
    let mut attempts = 0;
    while let Some(called) = timeout(PATIENCE, calls.join_next()).await.unwrap() {
        let (status, body, report) = called.unwrap().unwrap();
        assert_eq!((status.as_u16(), &body[..]), (200, &br#"{"data":"done"}"#[..]), "{provider:?} {kind:?}");
        assert_eq!(report.stopped, None);
        attempts += report.attempts as usize;
    }
    let log = playing.log();
    assert!(log.iter().all(|arrival| arrival.early_by.is_zero()), "{provider:?} {kind:?}: {log:?}");
    let refused = log.iter().filter(|arrival| arrival.is_refused).count();
    // OpenAI's first window ends with a success that says so.
    let expected = if provider == Provider::OpenAi { 1 } else { 2 };
    assert_eq!(refused, expected, "{provider:?} {kind:?}: {log:?}");
    assert_eq!((log.len(), attempts), (CALLS + expected, CALLS + expected));
    assert_eq!((gate.status().in_flight, gate.status().waiting), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_comes_before_its_hint_and_none_is_lost() {
    let mut plays = JoinSet::new();
    for provider in Provider::ALL {
        for kind in [Kind::Tower, Kind::Reqwest] {
            plays.spawn(play(provider, kind));
        }
    }
    while let Some(played) = plays.join_next().await {
        played.unwrap();
    }
}

/// Four are on their way when one of them is refused; eight more wait behind them.
#[tokio::test]
async fn those_who_wait_are_held_back_when_one_of_many_is_refused() {
    const CALLS: usize = 12;
    const TOGETHER: usize = 4;
    const HINT: Duration = Duration::from_millis(250);

    for kind in [Kind::Tower, Kind::Reqwest] {
        let (seen, seeing) = watch::channel(false);
        let (together, count) = (Arc::new(Barrier::new(TOGETHER)), Arc::new(AtomicUsize::new(0)));
        let times = Arc::new(std::sync::Mutex::new((None, Vec::new())));
        let log = Arc::clone(&times);
        let app = Router::new().fallback(async move || {
            let at = Instant::now();
            let number = count.fetch_add(1, Ordering::Relaxed);
            if number >= TOGETHER {
                log.lock().unwrap().1.push(at);
                return "done".into_response();
            }
            if together.wait().await.is_leader() {
                log.lock().unwrap().0 = Some(Instant::now());
                return (StatusCode::TOO_MANY_REQUESTS, [("retry-after-ms", "250")]).into_response();
            }
            // The others end when the client has read the refusal: each frees a place that nobody may take.
            seeing.clone().wait_for(|seen| *seen).await.unwrap();
            "done".into_response()
        });
        let address = serve(app).await;
        let gate = Gate::builder("1000/s burst 100".parse().unwrap())
            .max_in_flight((TOGETHER as u64).try_into().unwrap());
        let pace = Pace::builder(gate.build().unwrap()).observe(move |attempt| {
            if attempt.closed_for.is_some() {
                seen.send_replace(true);
            }
        });
        let client = Client::new(kind, pace);
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let client = client.clone();
            calls.spawn(async move { client.call(Method::POST, address).await });
        }
        while let Some(called) = timeout(PATIENCE, calls.join_next()).await.unwrap() {
            assert_eq!(called.unwrap().unwrap().0, 200);
        }
        let times = times.lock().unwrap();
        let (Some(refused), later) = &*times else { panic!("one is refused") };
        assert_eq!(later.len(), CALLS - TOGETHER + 1, "the others and the retry");
        assert!(
            later.iter().all(|at| at.duration_since(*refused) >= HINT),
            "{kind:?}: {refused:?} {later:?}"
        );
    }
}

/// Answers each connection with the next of these bytes, and closes it. Then with a proper answer.
async fn garbage(answers: Vec<Vec<u8>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let (mut head, mut part) = (Vec::new(), [0; 1024]);
            while !head.windows(4).any(|window| window == b"\r\n\r\n") {
                match connection.read(&mut part).await {
                    Ok(length) if length > 0 => head.extend_from_slice(&part[..length]),
                    // A connection that was opened ahead and not used.
                    _ => break,
                }
            }
            if head.is_empty() {
                continue;
            }
            let proper = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone".to_vec();
            let answer = answers.get(counter.fetch_add(1, Ordering::Relaxed)).unwrap_or(&proper);
            // The client may have gone already.
            let _ = connection.write_all(answer).await;
            let _ = connection.shutdown().await;
        }
    });
    (address, count)
}

fn quick(gate: &Gate) -> PaceBuilder {
    let ms = Duration::from_millis;
    Pace::builder(gate.clone()).backoff(ms(2), ms(5)).deadline(Duration::from_secs(20)).read_successes()
}

#[tokio::test]
async fn garbage_is_no_hint_and_the_call_is_made_again() {
    let rows: &[(&str, &[u8])] = &[
        ("closed at once", b""),
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"),
        ("half a head", b"HTTP/1.1 429 Too Many Requests\r\nretry-af"),
        ("bytes for a wait", b"HTTP/1.1 429 x\r\nretry-after: \xff\xfe\x80\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        ("a zero byte", b"HTTP/1.1 429 x\r\nretry-after: 9\x009\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        ("words", b"HTTP/1.1 429 x\r\nretry-after: soon\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        ("less than nothing", b"HTTP/1.1 429 x\r\nretry-after: -5\r\nretry-after-ms: NaN\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        ("half a body", b"HTTP/1.1 503 x\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"retry_after\": 5"),
        ("no JSON", b"HTTP/1.1 500 x\r\ncontent-type: application/json\r\ncontent-length: 4\r\nconnection: close\r\n\r\n\xff[{\""),
        ("bad chunks", b"HTTP/1.1 500 x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
    ];
    for kind in [Kind::Tower, Kind::Reqwest] {
        for (name, row) in rows {
            let gate = Gate::new("1000/s burst 100".parse().unwrap());
            let client = Client::new(kind, quick(&gate));
            let (address, count) = garbage(vec![row.to_vec(), row.to_vec()]).await;
            let called = timeout(PATIENCE, client.call(Method::GET, address)).await.unwrap();
            let (status, body, report) = called.unwrap_or_else(|error| panic!("{name}, {kind:?}: {error:?}"));
            assert_eq!(
                (status.as_u16(), &body[..], report.attempts),
                (200, &b"done"[..], 3),
                "{name}, {kind:?}"
            );
            assert_eq!(count.load(Ordering::Relaxed), 3, "{name}, {kind:?}");
            assert_eq!((gate.status().closed_until, gate.status().in_flight), (None, 0), "{name}, {kind:?}");
        }
    }
}

#[tokio::test]
async fn a_success_that_breaks_off_is_not_sent_again() {
    let broken =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"data\":"
            .to_vec();
    for kind in [Kind::Tower, Kind::Reqwest] {
        let gate = Gate::new("1000/s burst 100".parse().unwrap());
        let (address, count) = garbage(vec![broken.clone()]).await;
        let called = Client::new(kind, quick(&gate)).call(Method::GET, address).await;
        assert!(called.is_err(), "{kind:?}: {called:?}");
        assert_eq!((count.load(Ordering::Relaxed), gate.status().in_flight), (1, 0), "{kind:?}");
    }
}

#[tokio::test]
async fn an_absurd_wait_gives_up_at_once_and_does_not_close_the_gate_for_years() {
    let absurd = b"HTTP/1.1 429 x\r\nretry-after: 99999999999999999999\r\ncontent-length: 4\r\nconnection: close\r\n\r\nslow";
    for kind in [Kind::Tower, Kind::Reqwest] {
        let gate = Gate::new("1000/s burst 100".parse().unwrap());
        let client = Client::new(kind, quick(&gate));
        let (address, count) = garbage(vec![absurd.to_vec()]).await;
        let (status, body, report) = client.call(Method::GET, address).await.unwrap();
        assert_eq!((status.as_u16(), &body[..]), (429, &b"slow"[..]));
        assert!(matches!(report.stopped, Some(Stopped::Deadline { .. })), "{report:?}");
        let closed_for = Duration::from_nanos(gate.status().closed_until.unwrap() - gate.now_ns());
        assert!(closed_for <= Duration::from_hours(24) + Duration::from_secs(10), "{closed_for:?}");
        let (error, _) = client.call(Method::GET, address).await.unwrap_err();
        let why = "the call was not sent: an answer 429 said to wait 2147483648s (`retry-after: 99999999999999999999`)";
        assert!(error.starts_with(why), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

/// Random changes to an answer: whatever comes of the call, it ends and leaves nothing behind.
#[tokio::test]
async fn any_bytes_end_the_call_and_leave_nothing_behind() {
    let answer = b"HTTP/1.1 429 Too Many\r\ncontent-type: application/json\r\nretry-after-ms: 1\r\ncontent-length: 25\r\n\r\n{\"error\":{\"retryAfter\":1}}";
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for round in 0..40 {
        let mutants = (0..3).map(|_| {
            let mut bytes = answer.to_vec();
            for _ in 0..=random(6) {
                let at = random(bytes.len());
                bytes[at] = u8::try_from(random(256)).unwrap();
            }
            bytes.truncate(bytes.len() - random(2) * random(bytes.len()));
            bytes
        });
        let mutants: Vec<_> = mutants.collect();
        for kind in [Kind::Tower, Kind::Reqwest] {
            let gate = Gate::new("1000/s burst 100".parse().unwrap());
            let pace = quick(&gate).deadline(Duration::from_millis(100));
            let (address, _) = garbage(mutants.clone()).await;
            let called = timeout(PATIENCE, Client::new(kind, pace).call(Method::GET, address)).await;
            assert!(called.is_ok(), "round {round}, {kind:?}: {mutants:?}");
            let status = gate.status();
            assert_eq!((status.in_flight, status.waiting), (0, 0), "round {round}, {kind:?}: {mutants:?}");
        }
    }
}

#[tokio::test]
async fn where_nobody_listens_nothing_is_charged() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for kind in [Kind::Tower, Kind::Reqwest] {
        let gate = Gate::new("1/hour burst 1".parse().unwrap());
        let (_, report) = Client::new(kind, quick(&gate)).call(Method::POST, address).await.unwrap_err();
        let report = report.unwrap();
        assert_eq!((report.attempts, report.stopped), (5, Some(Stopped::Attempts { max: 5 })), "{kind:?}");
        assert_eq!((gate.status().level, gate.status().in_flight), (1, 0), "{kind:?}");
    }
}

#[tokio::test]
async fn what_a_caller_of_reqwest_says_about_one_call() {
    let app = Router::new().fallback(async || StatusCode::SERVICE_UNAVAILABLE);
    let address = serve(app).await;
    let gate = Gate::new("1/hour burst 100".parse().unwrap());
    let Client::Reqwest(client) = Client::new(Kind::Reqwest, quick(&gate)) else { panic!("it is reqwest's") };
    let request = || client.post(format!("http://{address}/"));
    let response = request().send().await.unwrap();
    assert_eq!(response.extensions().get::<Report>().unwrap().stopped, Some(Stopped::NotIdempotent));
    assert_eq!(gate.status().level, 99);
    let options = CallOptions::new().idempotent(true).cost(10);
    let response = request().with_extension(options).send().await.unwrap();
    assert_eq!(response.extensions().get::<Report>().unwrap().attempts, 5);
    assert_eq!(gate.status().level, 49);
    // 49 tokens are left, and one more in an hour.
    let error = request().with_extension(options.cost(50)).send().await.unwrap_err();
    assert!(
        error.is_middleware()
            && error.to_string().starts_with("the call was not sent: not granted within 20s"),
        "{error}"
    );
}
