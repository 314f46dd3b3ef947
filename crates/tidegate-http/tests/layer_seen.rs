//! The layer as others see it: requests that wait for their turn, and the function that is told of each decision.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tidegate::Algorithm;
use tidegate::algorithm::LeakyBucket;
use tidegate::clock::ManualClock;
use tidegate_http::layer::{Key, Outcome};
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tokio::time::Instant;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

fn request(account: &'static str) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-account", HeaderValue::from_static(account));
    request
}

fn account() -> KeyBy {
    KeyBy::header("x-account")
}

fn ok() -> Response<Full<Bytes>> {
    Response::new(Full::from("hello"))
}

/// What a service here is called with, and what it answers.
trait Inner:
    Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}
impl<S> Inner for S where
    S: Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Notes when each request reaches the service.
fn noting(times: &Arc<Mutex<Vec<Duration>>>) -> impl Inner + use<> {
    let (start, times) = (Instant::now(), Arc::clone(times));
    service_fn(move |_: Request<()>| {
        let times = Arc::clone(&times);
        async move {
            times.lock().unwrap().push(start.elapsed());
            Ok(ok())
        }
    })
}

/// One a second, of which `queue` may wait.
fn leaky(queue: u64) -> RequestLimit {
    let bucket = LeakyBucket::new("1/s".parse().unwrap(), queue);
    RequestLimit::new("line", Algorithm::LeakyBucket(bucket)).key(KeyBy::everyone())
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_its_turn_and_no_longer() {
    let times = Arc::default();
    let layer = RateLimit::builder().limit(leaky(2)).clock(ManualClock::new()).build().unwrap();
    let service = layer.layer(noting(&times));
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(service.clone().oneshot(request("ann")))).collect();
    tokio::task::yield_now().await;
    let counts = layer.counts();
    assert_eq!((counts.allowed, counts.rejected, counts.waiting), (3, 1, 2));
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.unwrap().unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(*times.lock().unwrap(), [0, 1, 2].map(Duration::from_secs));
    assert_eq!(layer.counts().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_holds_its_place_and_gives_it_back() {
    let times = Arc::default();
    let builder = RateLimit::builder().limit(leaky(9)).max_in_flight(2).clock(ManualClock::new());
    let layer = builder.build().unwrap();
    let service = layer.layer(noting(&times));
    let first = service.clone().oneshot(request("ann")).await.unwrap();
    let waits = tokio::spawn(service.clone().oneshot(request("ann")));
    tokio::task::yield_now().await;
    assert_eq!((layer.counts().in_flight, layer.counts().waiting), (2, 1));
    assert_eq!(service.clone().oneshot(request("ann")).await.unwrap().status(), 503);
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    assert_eq!((layer.counts().in_flight, layer.counts().waiting), (1, 0));
    drop(first);
    assert_eq!(layer.counts().in_flight, 0);
    assert_eq!(times.lock().unwrap().len(), 1, "who went away was not served");
}

#[tokio::test]
async fn each_decision_is_told_once_with_its_limits_and_its_outcome() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let layer = RateLimit::builder()
        .limit(RequestLimit::new("account", "1/hour burst 2").key(account()))
        .limit(RequestLimit::new("all", "1/hour burst 9").key(KeyBy::everyone()).cost(|_| 3))
        .limit(RequestLimit::new("trial", "1/hour burst 1").key(account().and(KeyBy::path())).shadow())
        .max_in_flight_per_key(account(), 1)
        .clock(ManualClock::new())
        .exempt(|head| head.headers().get("x-account").is_some_and(|name| name == "health"))
        .observe(move |now| {
            let limits: Vec<_> = now
                .limits()
                .map(|limit| {
                    format!("{} {} {} {}", limit.name, limit.key, limit.cost, limit.decision.remaining())
                })
                .collect();
            let by = (now.refused_by().map(ToString::to_string), now.shadow().map(ToString::to_string));
            told.lock().unwrap().push((now.outcome(), by, limits.join(", ")));
        })
        .build()
        .unwrap();
    let service = layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(ok()) }));
    let send = |account| service.clone().oneshot(request(account));
    let held = send("ann").await.unwrap();
    drop(send("ann").await);
    drop(held);
    for account in ["ann", "ann", "health", "bob", "eve"] {
        drop(send(account).await);
    }
    let text = |limit: &str| Some(limit.to_owned());
    let seen = seen.lock().unwrap();
    let expected = [
        (Outcome::Allowed, (None, None), "account ann 1 1, all * 3 6, trial ann / 1 0"),
        (Outcome::KeyFull, (None, text("trial")), "account ann 1 0, all * 3 3, trial ann / 1 0"),
        (Outcome::Allowed, (None, text("trial")), "account ann 1 0, all * 3 3, trial ann / 1 0"),
        (Outcome::Rejected, (text("account"), text("trial")), "account ann 1 0, all * 3 0, trial ann / 1 0"),
        (Outcome::Allowed, (None, None), "account bob 1 1, all * 3 0, trial bob / 1 0"),
        (Outcome::Rejected, (text("all"), None), "account eve 1 1, all * 3 0, trial eve / 1 0"),
    ];
    assert_eq!(seen.len(), expected.len(), "{seen:#?}");
    for (seen, (outcome, by, limits)) in seen.iter().zip(expected) {
        assert_eq!((seen.0, &seen.1, seen.2.as_str()), (outcome, &by, limits));
    }
    let left = |limit: &str, key: &str| layer.level(limit, &Key::from(key)).map(|left| left.remaining());
    assert_eq!(
        (left("account", "ann"), left("account", "bob"), left("account", "zoe")),
        (Some(0), Some(1), Some(2))
    );
    assert_eq!(left("other", "ann"), None);
}
