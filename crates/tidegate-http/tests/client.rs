//! The client layer around a service that answers by a script, in time that is moved by hand.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::channel::Channel;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use tidegate::clock::ManualClock;
use tidegate::gate::{Builder, Drain};
use tidegate::{Gate, Refused};
use tidegate_http::client::{
    CallError, CallOptions, Failure, NotSent, Once, Pace, PaceBuilder, PacedBody, RepeatBody, Report,
    Stopped, Verdict,
};
use tidegate_http::hint::{BODY_MAX, NoRetry};
use tokio::task::JoinHandle;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

type Body = UnsyncBoxBody<Bytes, &'static str>;
type Answer = Result<Response<Body>, &'static str>;
type Called = Result<Response<PacedBody<Body>>, CallError<&'static str>>;

/// A gate, a clock for it, and a server with a script. When the script is at its end, the server says 200.
struct Stage {
    clock: ManualClock,
    gate: Gate,
    script: Arc<Mutex<VecDeque<Answer>>>,
    /// When requests came, in milliseconds.
    arrivals: Arc<Mutex<Vec<u64>>>,
}

impl Stage {
    fn new(gate: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = ManualClock::new();
        let gate = gate(Gate::builder("1000/s burst 100".parse().unwrap())).clock(&clock).build().unwrap();
        Self { clock, gate, script: Arc::default(), arrivals: Arc::default() }
    }

    fn answers(self, script: impl IntoIterator<Item = Answer>) -> Self {
        self.script.lock().unwrap().extend(script);
        self
    }

    fn server<B: Send + 'static>(
        &self,
    ) -> impl Service<Request<B>, Response = Response<Body>, Error = &'static str, Future: Send>
    + Clone
    + Send
    + 'static {
        let (script, arrivals, gate) =
            (Arc::clone(&self.script), Arc::clone(&self.arrivals), self.gate.clone());
        service_fn(move |_: Request<B>| {
            arrivals.lock().unwrap().push(gate.now_ns() / 1_000_000);
            let answer = script.lock().unwrap().pop_front().unwrap_or_else(|| answer(200, &[], "done"));
            async { answer }
        })
    }

    fn pace(&self) -> PaceBuilder {
        Pace::builder(self.gate.clone()).deadline(Duration::from_secs(60))
    }

    fn call(&self, pace: &Pace, request: Request<String>) -> JoinHandle<Called> {
        tokio::spawn(pace.layer(self.server()).oneshot(request))
    }

    /// Lets time pass, for the gate and for timers, in steps of 10 ms.
    async fn pass(&self, ms: u64) {
        // What has been started joins the line first.
        tokio::task::yield_now().await;
        for _ in 0..ms / 10 {
            self.clock.advance(Duration::from_millis(10));
            tokio::time::advance(Duration::from_millis(10)).await;
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn arrivals(&self) -> Vec<u64> {
        self.arrivals.lock().unwrap().clone()
    }

    /// How much of the burst is left, and how many are in flight.
    fn level(&self) -> (u64, u64) {
        let status = self.gate.status();
        assert_eq!(status.waiting, 0);
        (status.level, status.in_flight)
    }
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    let body = Full::new(Bytes::from(body.to_owned()));
    answer_with(status, headers, body.map_err(|never| match never {}).boxed_unsync())
}

fn answer_with(status: u16, headers: &[(&str, &str)], body: Body) -> Answer {
    let response = headers
        .iter()
        .fold(Response::builder().status(status), |response, (name, value)| response.header(*name, *value));
    Ok(response.body(body).unwrap())
}

/// A body in pieces, which does not tell its length.
struct Pieces(VecDeque<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");

fn get() -> Request<String> {
    Request::get("http://a/").body(String::new()).unwrap()
}

fn post() -> Request<String> {
    Request::post("http://a/").body("hello".to_owned()).unwrap()
}

async fn text(response: Response<PacedBody<Body>>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_hint_closes_the_gate_for_all_and_the_retry_waits_in_it() {
    let stage = Stage::new(|gate| gate).answers([answer(429, &[("retry-after-ms", "300")], "")]);
    let pace = stage.pace().build();
    let first = stage.call(&pace, post());
    stage.pass(10).await;
    assert_eq!(stage.arrivals(), [0]);
    let others: Vec<_> = (0..3).map(|_| stage.call(&pace, get())).collect();
    stage.pass(290).await;
    assert_eq!(stage.arrivals(), [0], "nothing is sent before the hint");
    stage.pass(40).await;
    let arrivals = stage.arrivals();
    assert!(arrivals.len() == 5 && arrivals[1..].iter().all(|ms| (300..=330).contains(ms)), "{arrivals:?}");
    let response = first.await.unwrap().unwrap();
    assert_eq!((response.status().as_u16(), report(&response).attempts), (200, 2));
    let waited = report(&response).waited.as_millis();
    assert!((300..=330).contains(&waited), "{waited}");
    assert_eq!(text(response).await, "done");
    for other in others {
        assert_eq!(report(&other.await.unwrap().unwrap()).attempts, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_counter_on_a_success_closes_the_gate() {
    let empty = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "200ms")];
    let stage = Stage::new(|gate| gate).answers([answer(200, &empty, "one")]);
    let pace = stage.pace().build();
    let first = stage.call(&pace, get()).await.unwrap().unwrap();
    assert_eq!((report(&first).attempts, &report(&first).stopped), (1, &None));
    assert_eq!(report(&first).hint.as_ref().unwrap().remaining("requests"), Some(0));
    let second = stage.call(&pace, get());
    stage.pass(190).await;
    assert_eq!(stage.arrivals(), [0]);
    stage.pass(40).await;
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
    assert_eq!(stage.arrivals().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_paced_and_pays() {
    let stage = Stage::new(|_| Gate::builder("1/s burst 1".parse().unwrap()));
    let stage = stage.answers((0..9).map(|_| answer(500, &[], "")));
    let pace = stage.pace().backoff(Duration::ZERO, Duration::ZERO).build();
    let call = stage.call(&pace, get());
    stage.pass(5000).await;
    assert_eq!(stage.arrivals(), [0, 1000, 2000, 3000, 4000]);
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.status(), 500);
    assert_eq!(report(&response).stopped, Some(Stopped::Attempts { max: 5 }));
    assert_eq!(report(&response).waited.as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_not_overtaken_by_those_who_came_since() {
    let stage = Stage::new(|_| Gate::builder("10/s burst 1".parse().unwrap()));
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    let server = service_fn(move |request: Request<String>| {
        let mut log = log.lock().unwrap();
        log.push(request.uri().path().to_owned());
        let first = log.len() == 1;
        async move {
            if first {
                // The others are in the line by then.
                tokio::time::sleep(Duration::from_millis(60)).await;
                return answer(429, &[("retry-after-ms", "250")], "");
            }
            answer(200, &[], "")
        }
    });
    let pace = stage.pace().build();
    for path in ["/a", "/b", "/c", "/d"] {
        let request = Request::get(path).body(String::new()).unwrap();
        tokio::spawn(pace.layer(server.clone()).oneshot(request));
        stage.pass(10).await;
    }
    stage.pass(1000).await;
    assert_eq!(*order.lock().unwrap(), ["/a", "/a", "/b", "/c", "/d"]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_zero_is_obeyed_once_and_then_backed_off() {
    let stage = Stage::new(|gate| gate).answers((0..4).map(|_| answer(429, &[("retry-after", "0")], "")));
    let verdicts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&verdicts);
    let pace =
        stage.pace().observe(move |attempt| seen.lock().unwrap().push(attempt.verdict.clone())).build();
    let call = stage.call(&pace, get());
    stage.pass(8000).await;
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    let verdicts = verdicts.lock().unwrap();
    assert_eq!(verdicts[0], Verdict::Retry { after: Duration::ZERO });
    // Drawn from 1, 2 and 4 s.
    let waits = verdicts[1..4].iter().map(|verdict| match verdict {
        Verdict::Retry { after } => *after,
        other => panic!("{other:?}"),
    });
    let waits: Vec<_> = waits.collect();
    assert!(waits.iter().zip([1, 2, 4]).all(|(wait, most)| *wait <= Duration::from_secs(most)), "{waits:?}");
    assert!(waits.iter().any(|wait| !wait.is_zero()), "{waits:?}");
    assert_eq!(verdicts[4], Verdict::Done);
}

#[tokio::test(start_paused = true)]
async fn a_hint_past_the_deadline_gives_the_answer_at_once_and_says_why() {
    let body = r#"{"error":{"message":"slow down"}}"#;
    let stage = Stage::new(|gate| gate).answers([answer(429, &[JSON, ("retry-after", "120")], body)]);
    let pace = stage.pace().build();
    let response = stage.call(&pace, get()).await.unwrap().unwrap();
    assert_eq!(response.status(), 429);
    let why = report(&response).stopped.as_ref().unwrap().to_string();
    assert!(why.starts_with("the next attempt would be in 12"), "{why}");
    assert!(
        why.ends_with(
            "s, as the server said (`retry-after: 120`), and the deadline is in 60s; call again later or allow a later deadline"
        ),
        "{why}"
    );
    assert_eq!(text(response).await, body);

    // The next call is not even sent, and knows who said so.
    let error = stage.call(&pace, get()).await.unwrap().unwrap_err();
    let CallError::NotSent(not_sent) = &error else { panic!("{error}") };
    assert_eq!((not_sent.attempts, not_sent.told.as_ref().unwrap().signal.name.as_str()), (0, "retry-after"));
    assert!(not_sent.retry_after().unwrap() >= Duration::from_secs(120));
    let why = error.to_string();
    assert!(why.starts_with("the call was not sent: an answer 429 said to wait 120s (`retry-after: 120`); not granted within 60s"), "{why}");
    assert_eq!(stage.arrivals(), [0]);
    // A call that may wait as long is sent then.
    let mut patient = get();
    patient.extensions_mut().insert(CallOptions::new().deadline(Duration::from_secs(150)));
    let patient = stage.call(&pace, patient);
    stage.pass(130_000).await;
    assert_eq!(patient.await.unwrap().unwrap().status(), 200);

    // What was told is over: who is refused now is not refused because of it.
    let mut dear = get();
    dear.extensions_mut().insert(CallOptions::new().cost(100).deadline(Duration::ZERO));
    let _charged = stage.gate.try_acquire(50).unwrap();
    let error = stage.call(&pace, dear).await.unwrap().unwrap_err().to_string();
    assert!(error.starts_with("the call was not sent: not granted within 0ns"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_run_is_sent_again_only_if_that_does_no_harm() {
    let with_key = || {
        let mut request = post();
        request.headers_mut().insert("idempotency-key", "1".parse().unwrap());
        request
    };
    let with_options = |is_idempotent| {
        let mut request = post();
        request.extensions_mut().insert(CallOptions::new().idempotent(is_idempotent));
        request
    };
    let by_path = || Request::post("http://a/search").body(String::new()).unwrap();
    for (request, attempts) in [
        (get(), 2),
        (post(), 1),
        (with_key(), 2),
        (with_options(true), 2),
        (with_options(false), 1),
        (by_path(), 2),
    ] {
        for failed in [answer(503, &[], "busy"), Err("reset")] {
            let is_error = failed.is_err();
            let stage = Stage::new(|gate| gate).answers([failed]);
            let pace = stage.pace().idempotent(|head| head.path() == "/search").build();
            let call = stage.call(&pace, request.clone());
            stage.pass(600).await;
            assert_eq!(stage.arrivals().len(), attempts, "{request:?}");
            match call.await.unwrap() {
                Ok(response) if attempts == 2 => assert_eq!(response.status(), 200),
                Ok(response) => {
                    assert_eq!(report(&response).stopped, Some(Stopped::NotIdempotent));
                    assert_eq!(text(response).await, "busy");
                }
                Err(error) => {
                    assert!(is_error && attempts == 1, "{error}");
                    assert!(
                        error.to_string().starts_with("reset (attempt 1; not sent again: it may have run")
                    );
                    assert_eq!(error.into_inner(), Some("reset"));
                }
            }
            assert_eq!(stage.level(), (100, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_server_forbids_is_not_sent_again() {
    let spent = r#"{"error":{"code":"insufficient_quota"}}"#;
    let stage = Stage::new(|gate| gate).answers([answer(429, &[JSON], spent)]);
    let response = stage.call(&stage.pace().build(), get()).await.unwrap().unwrap();
    assert_eq!(report(&response).stopped, Some(Stopped::Forbidden(NoRetry::QuotaSpent)));
    assert_eq!(text(response).await, spent);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_had_again_is_sent_once() {
    /// A body that is not `Clone`.
    struct Upload(bool);

    async fn attempts<R: RepeatBody<Upload>>(repeat: R, body: Upload) -> (usize, Option<Stopped>) {
        let stage = Stage::new(|gate| gate).answers([answer(429, &[("retry-after", "0")], "")]);
        let pace = stage.pace().repeat_body(repeat).build();
        let request = Request::put("http://a/").body(body).unwrap();
        let response = pace.layer(stage.server()).oneshot(request).await.unwrap();
        (stage.arrivals().len(), report(&response).stopped.clone())
    }

    let small = |body: &Upload| body.0.then_some(Upload(true));
    assert_eq!(attempts(Once, Upload(true)).await, (1, Some(Stopped::NotRepeatable)));
    assert_eq!(attempts(small, Upload(false)).await, (1, Some(Stopped::NotRepeatable)));
    assert_eq!(attempts(small, Upload(true)).await, (2, None));
}

#[tokio::test(start_paused = true)]
async fn a_place_in_flight_is_held_until_the_body_ends_and_is_free_in_a_backoff() {
    let one = |gate: Builder| gate.max_in_flight(1.try_into().unwrap());
    let (mut sender, body) = Channel::new(1);
    let stage = Stage::new(one).answers([answer_with(200, &[], body.boxed_unsync())]);
    let pace = stage.pace().build();
    let mut response = stage.call(&pace, get()).await.unwrap().unwrap();
    let second = stage.call(&pace, get());
    stage.pass(50).await;
    assert_eq!(stage.arrivals(), [0], "the first body has not ended");
    sender.send_data("a".into()).await.unwrap();
    assert_eq!(response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "a");
    stage.pass(50).await;
    assert_eq!(stage.arrivals(), [0]);
    drop(sender);
    assert!(response.body_mut().frame().await.is_none());
    stage.pass(10).await;
    assert_eq!(stage.arrivals(), [0, 100]);
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
    assert_eq!(stage.level(), (100, 0));

    // A refused answer whose body goes on: it is dropped before the backoff, and others use the place.
    let (_sender, endless) = Channel::new(1);
    let stage = Stage::new(one).answers([answer_with(500, &[], endless.boxed_unsync())]);
    let pace = stage
        .pace()
        .backoff(Duration::from_hours(1), Duration::from_hours(1))
        .deadline(Duration::MAX)
        .build();
    let backs_off = stage.call(&pace, get());
    stage.pass(10).await;
    let response = stage.call(&pace, get()).await.unwrap().unwrap();
    assert_eq!((response.status().as_u16(), stage.arrivals().len()), (200, 2));
    backs_off.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_nothing_behind() {
    // While it waits for its turn.
    let stage = Stage::new(|gate| gate);
    stage.gate.close_for(Duration::from_secs(1));
    let call = stage.call(&stage.pace().build(), get());
    stage.pass(10).await;
    assert_eq!(stage.gate.status().waiting, 1);
    call.abort();
    stage.pass(10).await;
    assert_eq!((stage.level(), stage.arrivals().len()), ((100, 0), 0));

    // While the service inside is not ready: it was granted and not sent.
    #[derive(Clone)]
    struct Busy;
    impl Service<Request<String>> for Busy {
        type Response = Response<Body>;
        type Error = &'static str;
        type Future = std::future::Pending<Answer>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Pending
        }
        fn call(&mut self, _: Request<String>) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let stage = Stage::new(|gate| gate);
    let call = tokio::spawn(stage.pace().build().layer(Busy).oneshot(get()));
    tokio::task::yield_now().await;
    assert_eq!(stage.level(), (99, 1));
    call.abort();
    tokio::task::yield_now().await;
    assert_eq!(stage.level(), (100, 0));

    // While the attempt runs: what was sent was sent, and the place is free.
    let stage = Stage::new(|gate| gate);
    let hangs = service_fn(|_: Request<String>| std::future::pending::<Answer>());
    let call = tokio::spawn(stage.pace().build().layer(hangs).oneshot(get()));
    tokio::task::yield_now().await;
    call.abort();
    tokio::task::yield_now().await;
    assert_eq!(stage.level(), (99, 0));

    // While it backs off.
    let stage = Stage::new(|gate| gate).answers([answer(503, &[], "")]);
    let pace = stage.pace().backoff(Duration::from_hours(1), Duration::from_hours(1)).deadline(Duration::MAX);
    let call = stage.call(&pace.build(), get());
    stage.pass(10).await;
    call.abort();
    stage.pass(10).await;
    assert_eq!((stage.level(), stage.arrivals().len()), ((100, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_costs_nothing_and_any_method_is_sent_again() {
    let stage = Stage::new(|_| Gate::builder("1/hour burst 1".parse().unwrap()));
    let stage = stage.answers([Err("no connection"), Err("no connection"), Err("no such address")]);
    let failure = |error: &&str| match *error {
        "no connection" => Failure::Unsent,
        _ => Failure::Final,
    };
    let call = stage.call(&stage.pace().failure(failure).build(), post());
    stage.pass(2000).await;
    // The third was sent with the one token that there is.
    assert_eq!(stage.arrivals().len(), 3);
    assert_eq!(call.await.unwrap().unwrap_err().to_string(), "no such address");
    assert_eq!(stage.level(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn costs_by_function_and_by_call() {
    let stage = Stage::new(|gate| gate.also("1000/s burst 50".parse().unwrap()));
    let pace = stage.pace().cost(|head| if head.path() == "/" { [2, 10] } else { [1, 0] }).build();
    let _ = stage.call(&pace, get()).await.unwrap().unwrap();
    assert_eq!((stage.gate.level(0), stage.gate.level(1)), (98, 40));
    let mut request = get();
    request.extensions_mut().insert(CallOptions::new().cost([1, 30]));
    let _ = stage.call(&pace, request.clone()).await.unwrap().unwrap();
    assert_eq!((stage.gate.level(0), stage.gate.level(1)), (97, 10));
    request.extensions_mut().insert(CallOptions::new().cost(101));
    let error = stage.call(&pace, request).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::NotSent(NotSent { refused: Refused::Never { .. }, .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn if_the_gate_does_not_take_it_again_the_last_answer_is_returned() {
    let draining = |stage: &Stage| {
        let gate = stage.gate.clone();
        stage.pace().observe(move |_| gate.drain(Drain::Serve)).build()
    };
    let refused = || answer(429, &[JSON, ("retry-after", "0")], r#"{"a":1}"#);
    let stage = Stage::new(|gate| gate).answers([refused()]);
    let response = stage.call(&draining(&stage), get()).await.unwrap().unwrap();
    assert_eq!(report(&response).stopped, Some(Stopped::Refused(Refused::Draining)));
    assert_eq!(text(response).await, r#"{"a":1}"#);

    // Of an answer whose body was not read there is nothing left to return.
    let stage = Stage::new(|gate| gate).answers([answer(429, &[("retry-after", "0")], "text")]);
    let error = stage.call(&draining(&stage), get()).await.unwrap().unwrap_err();
    assert!(
        error.to_string().starts_with("the call was not sent again: the gate is being drained"),
        "{error}"
    );
}

const THROTTLED: &str = r#"{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":
    {"requestedQueryCost":60,"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":50,"restoreRate":100}}}}"#;

#[tokio::test(start_paused = true)]
async fn bodies_of_successes_are_read_if_that_is_wanted() {
    let gzip = ("content-encoding", "gzip");
    let text_type = ("content-type", "text/plain");
    let graphql = ("content-type", "application/graphql-response+json; charset=utf-8");
    for (wanted, headers, attempts) in [
        (true, &[JSON][..], 2),
        (true, &[graphql], 2),
        (false, &[JSON], 1),
        (true, &[JSON, gzip], 1),
        (true, &[text_type], 1),
        (true, &[], 1),
    ] {
        let stage = Stage::new(|gate| gate).answers([answer(200, headers, THROTTLED)]);
        let pace = stage.pace();
        let call = stage.call(&if wanted { pace.read_successes() } else { pace }.build(), post());
        stage.pass(120).await;
        let response = call.await.unwrap().unwrap();
        let expected = if attempts == 1 { THROTTLED } else { "done" };
        assert_eq!(text(response).await, expected, "{headers:?}");
        let arrivals = stage.arrivals();
        assert!(
            arrivals.len() == attempts && arrivals[1..].iter().all(|ms| *ms >= 100),
            "{headers:?}: {arrivals:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_not_held_up_and_a_body_that_stalls_not_for_long() {
    // Events, with everything read that may be.
    let (mut sender, body) = Channel::new(1);
    let stage = Stage::new(|gate| gate).answers([answer_with(
        200,
        &[("content-type", "text/event-stream")],
        body.boxed_unsync(),
    )]);
    let mut response = stage.call(&stage.pace().read_successes().build(), post()).await.unwrap().unwrap();
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        sender.send_data(event.into()).await.unwrap();
        assert_eq!(response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), event);
    }

    // An error whose JSON does not come: after 2 s its head decides, which has closed the gate already.
    let (mut sender, body) = Channel::new(1);
    sender.send_data(r#"{"error":"#.into()).await.unwrap();
    let headers = [JSON, ("retry-after", "1")];
    let stage = Stage::new(|gate| gate).answers([answer_with(500, &headers, body.boxed_unsync())]);
    let stalls = stage.call(&stage.pace().build(), post());
    stage.pass(10).await;
    assert!(stage.gate.status().closed_until.is_some() && !stalls.is_finished());
    stage.pass(2010).await;
    let response = stalls.await.unwrap().unwrap();
    assert_eq!(report(&response).stopped, Some(Stopped::NotIdempotent));
    sender.send_data("1}".into()).await.unwrap();
    drop(sender);
    assert_eq!(text(response).await, r#"{"error":1}"#);
}

#[tokio::test(start_paused = true)]
async fn a_body_beyond_the_bound_goes_through_unchanged() {
    let long = format!("{{\"retry_after\": 5, \"text\": \"{}\"}}", "x".repeat(BODY_MAX));
    // With its length told beforehand, and in pieces.
    let pieces = |text: &str| {
        Pieces(text.as_bytes().chunks(1000).map(Bytes::copy_from_slice).collect()).boxed_unsync()
    };
    for body in [answer(500, &[JSON], &long), answer_with(500, &[JSON], pieces(&long))] {
        let stage = Stage::new(|gate| gate).answers([body]);
        let response = stage.call(&stage.pace().build(), post()).await.unwrap().unwrap();
        assert_eq!(report(&response).hint.as_ref().unwrap().wait, None);
        assert_eq!(stage.level().1, 1);
        assert_eq!(text(response).await, long);
        assert_eq!(stage.level().1, 0);
    }
}
