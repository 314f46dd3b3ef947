//! The buckets behind the port, as a layer asks them.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::server::Server;
use crate::harness::{policy, quota};
use tidegate::shared::{Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, SharedTake, Unanswered};
use tidegate::{Algorithm, Decision, Kind, Mode};
use tidegate_redis::{Store, StoreBuckets};

async fn buckets(server: &Server) -> (Store, StoreBuckets) {
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(10))
        // Longer than a busy machine takes between two calls.
        .remember_rejections(Duration::from_secs(60))
        .connect()
        .await
        .unwrap();
    let buckets = store.buckets("web").unwrap();
    (store, buckets)
}

fn take(limit: &str, key: &str, quota: &str, cost: u64) -> SharedTake {
    let algorithm = Algorithm::new(Kind::TokenBucket, quota.parse().unwrap());
    SharedTake { limit: limit.into(), key: key.as_bytes().into(), algorithm, cost, mode: Mode::Enforce }
}

async fn decide(
    buckets: &StoreBuckets,
    takes: impl Into<Vec<SharedTake>>,
) -> Result<SharedAnswer, Unanswered> {
    buckets.decide(SharedCall { takes: takes.into(), charge: true }).await
}

/// What is left in each bucket, and whether all allow.
fn left(answer: &SharedAnswer) -> (Vec<u64>, bool) {
    let told = answer.each.iter().map(|told| told.unwrap());
    let left = told.clone().map(|told| told.left.unwrap().remaining()).collect();
    (left, told.clone().all(|told| told.decision.is_allowed()))
}

#[tokio::test]
async fn buckets_of_several_keys_are_charged_together_or_not_at_all() {
    let server = Server::start(&[]);
    let (_store, buckets) = buckets(&server).await;
    assert!(buckets.spans_keys());
    let both = |key: &str, cost| {
        [take("per-client", key, "1/hour burst 3", cost), take("all", "*", "1/hour burst 4", cost)]
    };
    for (key, cost, expected) in [
        ("ann", 2, (vec![1, 2], true)),
        // Ann has one left: the other bucket keeps what it has.
        ("ann", 2, (vec![1, 2], false)),
        ("bob", 2, (vec![1, 0], true)),
        // All together have none, though Carl has three.
        ("carl", 1, (vec![3, 0], false)),
    ] {
        // Another store, which remembers no rejection.
        let (_fresh, buckets) = self::buckets(&server).await;
        let answer = decide(&buckets, both(key, cost)).await.unwrap();
        assert_eq!((left(&answer), answer.made), (expected, Made::Exact), "{key} {cost}");
    }
    // A rejection is remembered, and says nothing of the other bucket.
    for made in [Made::Exact, Made::Remembered] {
        let answer = decide(&buckets, both("bob", 2)).await.unwrap();
        assert_eq!(answer.made, made);
        let told = answer.each[usize::from(made == Made::Remembered)];
        assert!(told.is_some_and(|told| !told.decision.is_allowed()), "{answer:?}");
    }
    let answer = decide(&buckets, both("dora", 4)).await.unwrap();
    assert_eq!(answer.each[0].unwrap().decision, Decision::Never { capacity: 3 });
    assert_eq!((answer.each[0].unwrap().left, answer.each[1]), (None, None));
}

#[tokio::test]
async fn a_limiter_of_the_name_has_the_same_buckets() {
    let server = Server::start(&[]);
    let (store, buckets) = buckets(&server).await;
    let limiter =
        store.limiter("web", policy(&[("per-client", "1/hour burst 3")]), OnFailure::Closed).unwrap();
    assert!(limiter.check_n("ann", 2).await.is_allowed());
    let answer = decide(&buckets, [take("per-client", "ann", "1/hour burst 3", 1)]).await.unwrap();
    assert_eq!(left(&answer), (vec![0], true));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_mean_different_quotas_of_a_bucket_can_come_at_one_time() {
    let server = Server::start(&[]);
    let (_store, buckets) = buckets(&server).await;
    let buckets = Arc::new(buckets);
    // While other limits are put in force some callers still have the old ones. A full bucket of 70 is one of 10, so each call
    // takes a 70th or a 10th part of it: whatever their order, the parts that are allowed are not more than a whole.
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..600_u32 {
        let buckets = Arc::clone(&buckets);
        calls.spawn(async move {
            let (quota, part) = if index % 3 == 0 { ("1/day burst 10", 7) } else { ("10/day burst 70", 1) };
            let answer = decide(&buckets, [take("one", "ann", quota, 1)]).await.unwrap();
            u32::from(answer.each[0].unwrap().decision.is_allowed()) * part
        });
    }
    let parts: u32 = calls.join_all().await.into_iter().sum();
    assert!((60..=70).contains(&parts), "{parts} of 70");
}

#[tokio::test]
async fn what_cannot_be_kept_is_said_before() {
    let server = Server::start(&[]);
    let (store, buckets) = buckets(&server).await;
    for (limit, algorithm, text) in [
        ("a:b", Algorithm::new(Kind::TokenBucket, quota("1/s")), "`a:b` cannot be part of a key"),
        ("one", Algorithm::new(Kind::FixedWindow, quota("1/s")), "the limit `one` is a fixed-window"),
        (
            "one",
            Algorithm::new(Kind::TokenBucket, quota("1/day burst 200000")),
            "the limit `one` is too fine",
        ),
    ] {
        let error = buckets.accepts(limit, &algorithm).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
    assert!(store.buckets("a{b").is_err());
}

#[tokio::test]
async fn without_the_server_there_is_no_answer_and_a_time_to_come_back() {
    let mut server = Server::start(&[]);
    let store = Store::builder(&server.url()).deadline(Duration::from_millis(200)).connect().await.unwrap();
    let buckets = store.buckets("web").unwrap();
    server.kill();
    let begun = std::time::Instant::now();
    let answer = decide(&buckets, [take("one", "ann", "1/s", 1)]).await;
    let Unanswered { retry_after } = answer.unwrap_err();
    assert!(retry_after >= Duration::from_millis(200) && retry_after <= Duration::from_secs(3));
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[test]
fn whoever_has_no_runtime_is_answered_too() {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_store, buckets) = runtime.block_on(buckets(&server));
    let mut asked = buckets.decide(SharedCall { takes: vec![take("one", "ann", "1/hour", 1)], charge: true });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let end = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        if let std::task::Poll::Ready(answer) = asked.as_mut().poll(&mut context) {
            assert_eq!(left(&answer.unwrap()), (vec![0], true));
            return;
        }
        assert!(std::time::Instant::now() < end);
        std::thread::yield_now();
    }
}
