//! A layer whose buckets others share: it answers as one with tables of its own, and as it was told when they do not.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use proptest::prelude::*;
use serde_json::Value;
use tidegate::clock::ManualClock;
use tidegate::shared::{
    Deciding, Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, Told, Unanswered, Unsuited,
};
use tidegate::{Algorithm, Kind, Mode, Quota, State, Step as _};
use tidegate_http::layer::{Key, RateLimitBuilder};
use tidegate_http::{KeyBy, RateLimit, RateLimitError, RequestLimit};
use tokio::sync::Semaphore;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

/// Buckets in memory, that are there or not, and answer when they may.
#[derive(Debug)]
struct Fake {
    clock: ManualClock,
    states: Mutex<HashMap<(String, Vec<u8>), State>>,
    /// How many calls they may answer.
    may: Semaphore,
    is_away: Mutex<bool>,
    spans_keys: bool,
}

impl Fake {
    fn new(clock: &ManualClock) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            states: Mutex::default(),
            may: Semaphore::new(1_000_000),
            is_away: Mutex::new(false),
            spans_keys: true,
        })
    }

    fn go_away(&self) {
        *self.is_away.lock().unwrap() = true;
    }

    fn told(&self, call: &SharedCall) -> Vec<Option<Told>> {
        let now = self.clock.now_ns();
        let mut states = self.states.lock().unwrap();
        let name = |take: &tidegate::shared::SharedTake| (take.limit.to_string(), take.key.to_vec());
        let look = |state: Option<&State>, algorithm: &Algorithm, cost| {
            let fresh = algorithm.fresh();
            algorithm.look(state.unwrap_or(&fresh), now, cost)
        };
        let decisions: Vec<_> =
            call.takes.iter().map(|take| look(states.get(&name(take)), &take.algorithm, take.cost)).collect();
        let refuses = |(take, decision): (&tidegate::shared::SharedTake, &tidegate::Decision)| {
            take.mode == Mode::Enforce && !decision.is_allowed()
        };
        if !call.takes.iter().zip(&decisions).any(refuses) {
            for take in &call.takes {
                let state = states.remove(&name(take)).unwrap_or_else(|| take.algorithm.fresh());
                states.insert(name(take), take.algorithm.step(state, now, take.cost).0);
            }
        }
        let told = call.takes.iter().zip(decisions).map(|(take, decision)| {
            let left = look(states.get(&name(take)), &take.algorithm, 0);
            Some(Told { decision, left: Some(left) })
        });
        told.collect()
    }
}

/// The same buckets, as the layer has them.
#[derive(Debug)]
struct Handle(Arc<Fake>);

impl SharedBuckets for Handle {
    fn accepts(&self, limit: &str, algorithm: &Algorithm) -> Result<(), Unsuited> {
        let fits = algorithm.kind() == Kind::TokenBucket;
        if fits { Ok(()) } else { Err(Unsuited(format!("the limit `{limit}` is no token bucket").into())) }
    }

    fn spans_keys(&self) -> bool {
        self.0.spans_keys
    }

    fn decide(&self, call: SharedCall) -> Deciding {
        let fake = Arc::clone(&self.0);
        Box::pin(async move {
            fake.may.acquire().await.unwrap().forget();
            if *fake.is_away.lock().unwrap() {
                return Err(Unanswered { retry_after: Duration::from_millis(2_500) });
            }
            Ok(SharedAnswer { each: fake.told(&call), made: Made::Exact })
        })
    }
}

fn shared(builder: RateLimitBuilder, fake: &Arc<Fake>, on_failure: OnFailure) -> RateLimitBuilder {
    builder.shared(Arc::new(Handle(Arc::clone(fake))), on_failure)
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

/// Several limits, keys, costs, a shadow, another quota for one key, and places in flight.
fn limits(clock: &ManualClock) -> RateLimitBuilder {
    let cost = |head: tidegate_http::layer::RequestHead<'_>| {
        let cost = head.headers().get("x-cost").and_then(|cost| cost.to_str().ok());
        cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
    };
    let account = KeyBy::header("x-account");
    RateLimit::builder()
        .limit(
            RequestLimit::new("per-account", "10/s burst 20")
                .key(account.clone())
                .cost(cost)
                .quota_for(Key::from("ann"), quota("3/s burst 5")),
        )
        .limit(RequestLimit::new("all", "30/s burst 30").key(KeyBy::everyone()))
        .limit(RequestLimit::new("trial", "7/s burst 8").key(account.clone()).shadow())
        .max_in_flight_per_key(account, 3)
        .legacy_fields(true)
        .clock(clock.clone())
}

fn request(account: &'static str, cost: u64) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-account", HeaderValue::from_static(account));
    request.headers_mut().insert("x-cost", HeaderValue::from(cost));
    request
}

type Answered = Result<Response<tidegate_http::layer::RateLimitBody<Full<Bytes>>>, Infallible>;

fn hello()
-> impl Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone + Send
{
    service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::from("hello"))) })
}

/// All that a client sees.
async fn seen(answered: Answered) -> (u16, Vec<(String, String)>, Bytes) {
    let (head, body) = answered.unwrap().into_parts();
    let field = |(name, value): (&http::HeaderName, &HeaderValue)| {
        (name.to_string(), value.to_str().unwrap().to_owned())
    };
    let mut fields: Vec<_> = head.headers.iter().map(field).collect();
    fields.sort();
    (head.status.as_u16(), fields, body.collect().await.unwrap().to_bytes())
}

proptest! {
    #[test]
    fn it_answers_as_a_layer_with_tables(
        arrivals in prop::collection::vec((prop_oneof![Just(0), 0..400_u64], 0..3_usize, prop_oneof![3 => Just(1), 1 => 0..25_u64]), 1..60)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let clock = ManualClock::new();
            let fake = Fake::new(&clock);
            let tables = limits(&clock).build().unwrap();
            let others = shared(limits(&clock), &fake, OnFailure::Closed).build().unwrap();
            for (step, account, cost) in arrivals {
                clock.advance(Duration::from_millis(step));
                let account = ["ann", "bob", "carl"][account];
                let expected = seen(tables.layer(hello()).oneshot(request(account, cost)).await).await;
                let got = seen(others.layer(hello()).oneshot(request(account, cost)).await).await;
                assert_eq!(got, expected);
            }
            assert_eq!(others.counts(), tables.counts());
        });
    }
}

#[tokio::test]
async fn a_request_keeps_its_place_while_it_is_decided_and_gives_it_back() {
    let clock = ManualClock::new();
    let fake = Fake::new(&clock);
    fake.may.forget_permits(usize::MAX >> 4);
    let layer = shared(limits(&clock), &fake, OnFailure::Closed).build().unwrap();
    let service = layer.layer(hello());
    let ask = || Box::pin(service.clone().oneshot(request("bob", 1)));
    let mut asking: Vec<_> = (0..3).map(|_| ask()).collect();
    for asking in &mut asking {
        assert!(futures_poll(asking).is_pending());
    }
    assert_eq!(layer.counts().in_flight, 3);
    // The fourth has no place, and is told so though nobody answers.
    let (status, _, body) = seen(ask().await).await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status, 429);
    assert_eq!(body["violated-policies"], serde_json::json!(["in-flight-per-key"]));
    // A client that goes away.
    drop(asking.pop());
    assert_eq!(layer.counts().in_flight, 2);
    fake.may.add_permits(2);
    for asking in asking {
        assert_eq!(seen(asking.await).await.0, 200);
    }
    assert_eq!((layer.counts().in_flight, layer.counts().allowed), (0, 2));
}

fn futures_poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context)
}

#[tokio::test]
async fn without_the_buckets_it_answers_as_it_was_told() {
    let clock = ManualClock::new();
    let machines = 5.try_into().unwrap();
    for (on_failure, expected) in [
        (OnFailure::Open, [200; 5]),
        (OnFailure::Closed, [503; 5]),
        // A fifth of the burst of 20 is 4.
        (OnFailure::Local { machines, keys: 100 }, [200, 200, 200, 200, 429]),
    ] {
        let fake = Fake::new(&clock);
        fake.go_away();
        let made: Arc<Mutex<Vec<Option<Made>>>> = Arc::default();
        let note = Arc::clone(&made);
        let builder = limits(&clock).observe(move |seen| {
            note.lock().unwrap().push(seen.made());
        });
        let layer = shared(builder, &fake, on_failure).build().unwrap();
        let service = layer.layer(hello());
        for status in expected {
            let (got, fields, body) = seen(service.clone().oneshot(request("bob", 1)).await).await;
            assert_eq!(got, status, "{on_failure:?}");
            let field = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| &**value);
            // Nothing is said of what is left, as nobody knows.
            assert!(field("ratelimit").is_none_or(|state| !state.contains("per-account")), "{fields:?}");
            if status == 503 {
                assert_eq!((field("retry-after"), field("retry-after-ms")), (Some("3"), Some("2500")));
                let body: Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(
                    body["detail"],
                    "refused: what keeps the limits does not answer; retry after 2.500 s"
                );
            }
        }
        let word = match on_failure {
            OnFailure::Open => Made::Open,
            OnFailure::Closed => Made::Closed,
            OnFailure::Local { .. } => Made::Local,
        };
        let made = made.lock().unwrap();
        assert!(made.iter().all(|made| *made == Some(word)), "{made:?}");
        let counts = layer.counts();
        let statuses =
            |status: u16| u64::try_from(expected.iter().filter(|s| **s == status).count()).unwrap();
        assert_eq!(
            (counts.allowed, counts.rejected, counts.shed),
            (statuses(200), statuses(429), statuses(503))
        );
        assert_eq!(counts.in_flight, 0);
    }
}

#[tokio::test]
async fn a_share_refuses_what_the_quota_would_allow_with_a_time_to_come_back() {
    let clock = ManualClock::new();
    let fake = Fake::new(&clock);
    fake.go_away();
    let machines = 5.try_into().unwrap();
    let layer = shared(limits(&clock), &fake, OnFailure::Local { machines, keys: 10 }).build().unwrap();
    for (cost, status) in [(20, 429), (21, 400)] {
        let answered = layer.layer(hello()).oneshot(request("bob", cost)).await;
        assert_eq!(seen(answered).await.0, status, "{cost}");
    }
}

#[tokio::test]
async fn limits_can_be_replaced_and_the_buckets_stay() {
    let clock = ManualClock::new();
    let fake = Fake::new(&clock);
    let one = |quota| {
        let limit = RequestLimit::new("all", quota).key(KeyBy::everyone());
        shared(RateLimit::builder().limit(limit).clock(clock.clone()), &fake, OnFailure::Closed)
    };
    let layer = one("1/hour burst 2").build().unwrap();
    let status = async || seen(layer.layer(hello()).oneshot(request("bob", 1)).await).await.0;
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    let replaced = layer.replace(one("1/hour burst 2")).unwrap();
    assert_eq!(replaced.kept, ["all".into()]);
    assert_eq!(status().await, 429);
    assert_eq!(layer.level("all", &Key::everyone()), None);
}

#[test]
fn what_shared_buckets_cannot_do_is_an_error_of_the_builder() {
    let clock = ManualClock::new();
    let build = |limit: RequestLimit, spans_keys| {
        let fake = Arc::new(Fake { spans_keys, ..Arc::into_inner(Fake::new(&clock)).unwrap() });
        let builder = RateLimit::builder().limit(RequestLimit::new("first", "1/s")).limit(limit);
        shared(builder, &fake, OnFailure::Open).build().map(|_| ())
    };
    let window = Algorithm::new(Kind::FixedWindow, quota("1/s"));
    let error = build(RequestLimit::new("second", window), true).unwrap_err();
    assert_eq!(error.to_string(), "the limit `second` is no token bucket");
    let everyone = || RequestLimit::new("second", "1/s").key(KeyBy::everyone());
    assert_eq!(build(everyone(), true), Ok(()));
    let error = build(everyone(), false).unwrap_err();
    let apart = RateLimitError::KeysApart { limit: "first".into(), other: "second".into() };
    assert_eq!(error, apart);
}
