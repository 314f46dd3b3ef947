//! A layer whose limits are replaced while it is in use, and keys with quotas of their own.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tidegate::algorithm::LeakyBucket;
use tidegate::clock::ManualClock;
use tidegate::{Algorithm, Kind, Quota};
use tidegate_http::layer::{Key, NotServed, RateLimitBody, RateLimitBuilder, Take};
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn by_account(quota: &str) -> RequestLimit {
    RequestLimit::new("account", quota).key(KeyBy::header("x-account"))
}

fn with(limit: RequestLimit) -> RateLimitBuilder {
    RateLimit::builder().limit(limit)
}

fn still(builder: RateLimitBuilder) -> RateLimit {
    builder.clock(ManualClock::new()).build().unwrap()
}

/// One request through a service of the layer.
async fn send(layer: &RateLimit, account: &'static str) -> Response<RateLimitBody<Full<Bytes>>> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-account", HeaderValue::from_static(account));
    let inner =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::from("hello"))) });
    layer.layer(inner).oneshot(request).await.unwrap()
}

/// How many of `calls` requests are allowed.
async fn allowed(layer: &RateLimit, account: &'static str, calls: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..calls {
        allowed += usize::from(send(layer, account).await.status() == 200);
    }
    allowed
}

fn left(layer: &RateLimit, account: &'static str) -> u64 {
    layer.level("account", &Key::from(account)).unwrap().remaining()
}

fn names(list: &[std::sync::Arc<str>]) -> Vec<&str> {
    list.iter().map(|name| &**name).collect()
}

#[tokio::test]
async fn who_has_spent_his_quota_has_spent_it_after_a_replacement() {
    let layer = still(with(by_account("1/hour burst 10")));
    let clone = layer.clone();
    assert_eq!(allowed(&layer, "ann", 11).await, 10);
    assert_eq!(allowed(&layer, "bob", 5).await, 5);
    let replaced = layer.replace(with(by_account("1/hour burst 100"))).unwrap();
    assert_eq!((names(&replaced.kept), names(&replaced.fresh)), (vec!["account"], vec![]));
    assert_eq!((left(&clone, "ann"), left(&clone, "bob"), left(&clone, "eve")), (0, 50, 100));
    assert_eq!(layer.counts().allowed, 15);
    let response = send(&clone, "bob").await;
    assert_eq!(response.headers()["ratelimit-policy"], "\"account\";q=100;w=360000");
}

#[tokio::test]
async fn limits_that_are_counted_another_way_start_anew_and_are_named() {
    let other = |builder: RateLimitBuilder| {
        builder.limit(RequestLimit::new("all", "1/hour burst 50").key(KeyBy::everyone()))
    };
    let layer = still(other(with(by_account("1/hour burst 10"))));
    assert_eq!(allowed(&layer, "ann", 3).await, 3);
    for (limit, kept) in [
        (by_account("1/hour burst 10").shadow().cost(|_| 2), vec!["account", "all"]),
        (by_account("1/hour burst 10").key(KeyBy::header("x-account").and(KeyBy::path())), vec!["all"]),
        (by_account("1/hour burst 10").capacity(100), vec!["all"]),
    ] {
        let replaced = layer.replace(other(with(limit))).unwrap();
        assert_eq!(names(&replaced.kept), kept);
        assert_eq!(left(&layer, "ann"), if kept.len() == 2 { 7 } else { 10 });
    }
    let window = Algorithm::new(Kind::FixedWindow, quota("10/hour"));
    let window = RequestLimit::new("account", window).key(KeyBy::header("x-account"));
    assert_eq!(names(&layer.replace(with(window)).unwrap().fresh), ["account"]);
    // The other limit is gone, and comes back as a new one.
    let replaced = layer.replace(other(with(by_account("1/hour burst 10")))).unwrap();
    assert_eq!(names(&replaced.fresh), ["account", "all"]);
    assert_eq!(layer.level("all", &Key::everyone()).unwrap().remaining(), 50);
}

#[tokio::test]
async fn a_quota_that_does_not_fit_the_table_has_a_new_one() {
    let layer = still(with(by_account("1/hour burst 10")));
    assert_eq!(allowed(&layer, "ann", 3).await, 3);
    let wide = "1000000007/s burst 9";
    assert_eq!(names(&layer.replace(with(by_account(wide))).unwrap().fresh), ["account"]);
    assert_eq!((left(&layer, "ann"), allowed(&layer, "ann", 10).await), (9, 9));
}

#[tokio::test]
async fn quotas_that_went_do_not_make_new_ones_a_bad_fit() {
    let with_boss = |main: &str, boss: &str| by_account(main).quota_for(Key::from("boss"), quota(boss));
    let layer = still(with(by_account("7/s burst 10")));
    assert_eq!(allowed(&layer, "ann", 3).await, 3);
    // Each fits alone, and not beside the one before.
    for (main, boss) in [
        ("11/s burst 10", None),
        ("13/s burst 10", Some("13/s burst 20")),
        ("1/hour burst 10", Some("11/s burst 20")),
        ("1/hour burst 10", Some("7/s burst 20")),
        ("1/hour burst 10", None),
        ("1/hour burst 10", Some("9/s burst 20")),
        ("1/hour burst 10", Some("1/hour burst 20")),
    ] {
        let limit = boss.map_or_else(|| by_account(main), |boss| with_boss(main, boss));
        assert_eq!(names(&layer.replace(with(limit)).unwrap().kept), ["account"], "{main} {boss:?}");
        assert_eq!(left(&layer, "ann"), 7);
        if boss.is_some() {
            allowed(&layer, "boss", 30).await;
            assert_eq!(left(&layer, "boss"), 0);
        }
    }
    let _ = layer.replace(with(by_account("1/hour burst 10"))).unwrap();
    assert_eq!((left(&layer, "ann"), left(&layer, "boss"), left(&layer, "eve")), (7, 0, 10));
}

#[tokio::test]
async fn what_cannot_be_built_changes_nothing() {
    let layer = still(with(by_account("1/hour burst 10")).max_in_flight(5));
    assert_eq!(allowed(&layer, "ann", 4).await, 4);
    let twice =
        by_account("5/s").quota_for(Key::from("ann"), quota("1/s")).quota_for(Key::from("ann"), quota("2/s"));
    let many = |count: u64| {
        (0..count).fold(by_account("5/s"), |limit, rate| {
            limit.quota_for(Key::from(format!("key {rate}")), quota(&format!("{}/hour", rate + 1)))
        })
    };
    for (builder, expected) in [
        (
            with(by_account("5 a second")),
            "limit `account`: `a second` is no part of a quota in `5 a second`; write for example `10/s burst 20`",
        ),
        (RateLimit::builder(), "a layer needs a limit; add one with `limit` or `max_in_flight`"),
        (
            with(by_account("5/s")).max_in_flight(0),
            "no request could run with 0 places in flight; write at least 1, or leave that limit out",
        ),
        (
            with(by_account("5/s")).limit(by_account("5/s")),
            "two limits are named `account`; give each a name of its own",
        ),
        (with(twice), "limit `account` has two quotas for the key `ann`; take one out"),
        (
            with(many(256)),
            "limit `account` has 257 different quotas, and 256 are the most; give some keys the same one",
        ),
    ] {
        assert_eq!(layer.replace(builder).unwrap_err().to_string(), expected);
        assert_eq!(left(&layer, "ann"), 6);
    }
    assert!(layer.replace(with(many(255))).is_ok());
}

#[tokio::test]
async fn a_key_can_have_a_quota_of_its_own_and_get_another_without_a_burst_for_nothing() {
    let gold = |quota_of_ann: &str| {
        by_account("1/hour burst 10")
            .quota_for(Key::from("ann"), quota(quota_of_ann))
            .quota_for(Key::from("zoe"), quota("1/hour burst 20"))
    };
    let layer = still(with(gold("1/hour burst 20")));
    assert_eq!((allowed(&layer, "ann", 10).await, left(&layer, "bob"), left(&layer, "zoe")), (10, 10, 20));
    let response = send(&layer, "ann").await;
    assert_eq!(response.headers()["ratelimit-policy"], "\"account\";q=20;w=72000");
    assert_eq!(response.headers()["ratelimit"], "\"account\";r=9;t=3600");
    for (quota_of_ann, left_to_ann) in [
        ("1/hour burst 40", 18),
        ("1/hour burst 100", 45),
        // That of everyone.
        ("1/hour burst 10", 4),
        ("2/hour burst 20", 9),
    ] {
        let replaced = layer.replace(with(gold(quota_of_ann))).unwrap();
        assert_eq!(names(&replaced.kept), ["account"]);
        // A level counts whole tokens: that of the burst of 10 is 4.5.
        assert_eq!((left(&layer, "ann"), left(&layer, "zoe")), (left_to_ann, 20), "{quota_of_ann}");
        let response = send(&layer, "bob").await;
        assert_eq!(response.headers()["ratelimit-policy"], "\"account\";q=10;w=36000");
    }
    assert_eq!(left(&layer, "bob"), 6);
    assert_eq!(allowed(&layer, "ann", 100).await, 9, "nine of twenty were left");
    let rejected = send(&layer, "ann").await;
    assert_eq!(rejected.status(), 429);
    let detail = http_body_util::BodyExt::collect(rejected.into_body()).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&detail).contains("(2/hour burst 20)"), "{detail:?}");
}

#[tokio::test]
async fn more_quotas_than_there_is_room_for_make_a_new_table() {
    let layer = still(with(by_account("1/hour burst 10")));
    let many = |count: u64| {
        let quota = |index| quota(&format!("1/hour burst {}", index + 20));
        (0..count).fold(by_account("1/hour burst 10"), |limit, index| {
            limit.quota_for(Key::from(format!("key {index}")), quota(index))
        })
    };
    assert_eq!(allowed(&layer, "ann", 4).await, 4);
    for (count, kept) in [(31, true), (20, true), (32, false), (31, true)] {
        let replaced = layer.replace(with(many(count))).unwrap();
        assert_eq!(replaced.kept.len(), usize::from(kept), "{count}");
        let of = |index: u64| layer.level("account", &Key::from(format!("key {index}"))).unwrap().remaining();
        assert_eq!((of(0), of(19), of(count - 1)), (20, 39, count + 19), "{count}");
    }
}

#[tokio::test]
async fn places_in_flight_are_those_that_they_were() {
    let account = || KeyBy::header("x-account");
    let places = |all: u64, each: u64| {
        with(by_account("1000/s")).max_in_flight(all).max_in_flight_per_key(account(), each)
    };
    let layer = still(places(4, 2));
    let first = (send(&layer, "ann").await, send(&layer, "ann").await, send(&layer, "bob").await);
    layer.replace(places(4, 3)).unwrap();
    let fourth = send(&layer, "ann").await;
    assert_eq!((fourth.status().as_u16(), send(&layer, "bob").await.status().as_u16()), (200, 503));
    layer.replace(places(2, 3)).unwrap();
    assert_eq!(layer.counts().in_flight, 4, "who is in flight stays");
    drop(first.0);
    assert_eq!(send(&layer, "ann").await.status(), 503);
    drop((first.1, first.2));
    assert_eq!(send(&layer, "ann").await.status(), 200);
    // Without the limits they leave all the same.
    layer.replace(with(by_account("1000/s"))).unwrap();
    drop(fourth);
    layer.replace(places(1, 1)).unwrap();
    let held = send(&layer, "ann").await;
    assert_eq!((held.status().as_u16(), layer.counts().in_flight), (200, 1));
}

#[tokio::test]
async fn a_queue_can_change_while_it_is_used() {
    let line = |queue| {
        RequestLimit::new("account", Algorithm::LeakyBucket(LeakyBucket::new(quota("1/hour burst 2"), queue)))
    };
    let layer = still(with(line(2).key(KeyBy::everyone())));
    assert_eq!(layer.replace(with(line(4).key(KeyBy::everyone()))).unwrap().fresh, []);
    assert_eq!(layer.level("account", &Key::everyone()).unwrap().remaining(), 6);
}

#[test]
fn replacements_under_load_lose_nothing_and_give_nothing() {
    let layer = still(
        with(by_account("1/hour burst 20000"))
            .limit(RequestLimit::new("all", "1/hour burst 50000").key(KeyBy::everyone())),
    );
    let (is_over, total) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    total.fetch_add(runtime.block_on(allowed(&layer, "ann", 100)), Ordering::Relaxed);
                }
            });
        }
        let mut replacements = 0;
        while layer.counts().rejected < 1000 {
            // Other rates for the same burst: no token comes, as the clock stands still.
            let (rate, key) = (replacements % 7 + 1, format!("key {}", replacements % 3));
            let limit =
                by_account(&format!("{rate}/hour burst 20000")).quota_for(Key::from(key), quota("5/s"));
            let all = RequestLimit::new("all", "1/hour burst 50000").key(KeyBy::everyone());
            assert_eq!(layer.replace(with(limit).limit(all)).unwrap().fresh, []);
            replacements += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(total.into_inner(), 20_000);
}

#[tokio::test]
async fn windows_begin_with_those_of_the_wall_clock_beside_buckets_too() {
    let window = |name| {
        RequestLimit::new(name, Algorithm::new(Kind::FixedWindow, quota("10/hour"))).key(KeyBy::everyone())
    };
    let layer = with(by_account("1/s")).build().unwrap();
    // It comes later, when the layer has a clock already.
    layer.replace(with(by_account("1/s")).limit(window("hour"))).unwrap();
    let unix = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let before = unix();
    assert_eq!(send(&layer, "ann").await.status(), 200);
    assert_eq!(layer.level("hour", &Key::everyone()).unwrap().remaining(), 9);
    let key = KeyBy::header("x-account");
    layer.replace(with(window("account").key(key))).unwrap();
    let now = layer.level("account", &Key::from("ann")).unwrap();
    assert_eq!(now.remaining(), 10);
    drop(send(&layer, "ann").await);
    let Some(tidegate::Decision::Allowed { reset_after, .. }) = layer.level("account", &Key::from("ann"))
    else {
        panic!("a cost of 0 is allowed");
    };
    let hour = Duration::from_secs(3600);
    let end = |time: Duration| hour - Duration::from_nanos_u128(time.as_nanos() % hour.as_nanos());
    let (first, last) = (end(before), end(unix()));
    // An hour may have begun meanwhile.
    assert!(reset_after <= first || last > first, "{reset_after:?} of {first:?}");
    assert!(reset_after + Duration::from_millis(10) >= last.min(first), "{reset_after:?} of {last:?}");
}

#[test]
fn a_request_is_charged_in_all_limits_or_in_none_while_they_are_replaced() {
    const CALLS: u64 = 50_000_000;
    let limits = |other: Option<&str>| {
        let all = RequestLimit::new("all", format!("1/min burst {CALLS}").as_str());
        let builder = RateLimit::builder().limit(all.key(KeyBy::everyone()).capacity(8));
        match other {
            Some(other) => {
                let other = RequestLimit::new("other", other).key(KeyBy::everyone()).capacity(8);
                builder.limit(other.cost(|_| 10))
            }
            None => builder,
        }
    };
    // A request costs more than the second quota has at all.
    let others = [Some("1/s burst 4000000000"), Some("1/s burst 5"), None];
    let layer = limits(others[0]).build().unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            while !end.load(Ordering::Relaxed) {
                runtime.block_on(send(&layer, "ann"));
            }
        };
        scope.spawn(ask);
        scope.spawn(ask);
        for round in 0..20_000 {
            let _ = layer.replace(limits(others[round % if round < 15_000 { 2 } else { 3 }])).unwrap();
        }
        end.store(true, Ordering::Relaxed);
    });
    let left = layer.level("all", &Key::everyone()).unwrap().remaining();
    assert_eq!(CALLS - left, layer.counts().allowed);
}

#[tokio::test]
async fn a_charge_from_before_a_replacement_is_not_taken_back() {
    let clock = ManualClock::new();
    let fast = "3600/s burst 4";
    let limits = |boss: &str| {
        let vip = by_account("1/hour burst 4").quota_for(Key::from("vip"), quota(fast));
        with(vip.quota_for(Key::from("boss"), quota(boss))).take_back_not_served()
    };
    let layer = limits("1/hour burst 4").clock(clock.clone()).build().unwrap();
    let down = service_fn(|_: Request<()>| async {
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(NotServed);
        Ok::<_, Infallible>(response)
    });
    let charged = [(); 3].map(|()| {
        let mut request = Request::new(());
        request.headers_mut().insert("x-account", HeaderValue::from_static("boss"));
        layer.layer(down).call(request)
    });
    assert_eq!(left(&layer, "boss"), 1);

    // With the fast quota the debt wears off. With the slow one again, all is spent a second time.
    let bytes = layer.bytes();
    let _ = layer.replace(limits(fast)).unwrap();
    assert_eq!(allowed(&layer, "boss", 9).await, 1);
    clock.advance(Duration::from_secs(1));
    let _ = layer.replace(limits("1/hour burst 4")).unwrap();
    assert_eq!((allowed(&layer, "boss", 9).await, layer.bytes()), (4, bytes));
    for answer in charged {
        answer.await.unwrap();
    }
    assert_eq!((left(&layer, "boss"), layer.counts().not_served), (0, 3));
}

/// What is told of a call: the wait, or nothing if it is allowed.
async fn wait(layer: &RateLimit, charge: bool) -> Option<Duration> {
    let take = [Take { limit: "account", key: Key::from("ann"), cost: 1 }];
    layer.check(&take, charge).await.unwrap().retry_after()
}

#[tokio::test]
async fn who_is_refused_after_his_quota_changed_is_allowed_when_told() {
    for kind in
        [Kind::TokenBucket, Kind::LeakyBucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog]
    {
        for how in ["a request", "asked", "looked at"] {
            let clock = ManualClock::new();
            let of_kind = |text: &str| Algorithm::new(kind, quota(text));
            let limits = |ann: &str| {
                let limit = RequestLimit::new("account", of_kind("10/h")).key(KeyBy::header("x-account"));
                let limit = limit.quota_for(Key::from("ann"), quota(ann));
                // Several limits, so that they are looked at before one is charged.
                with(limit).limit(RequestLimit::new("all", "1000000/s").key(KeyBy::everyone()))
            };
            let layer = limits("10/h").clock(clock.clone()).build().unwrap();
            assert_eq!(allowed(&layer, "ann", 11).await, 10, "{kind:?}");
            let replaced = layer.replace(limits("100/100s")).unwrap();
            assert_eq!(names(&replaced.kept), ["account", "all"]);
            let told = match how {
                "a request" => {
                    let told =
                        send(&layer, "ann").await.headers()["retry-after-ms"].to_str().unwrap().parse();
                    Duration::from_millis(told.unwrap())
                }
                how => wait(&layer, how == "asked").await.unwrap(),
            };
            assert!(told <= Duration::from_secs(200), "{kind:?} {how} {told:?}");
            clock.advance(told - Duration::from_millis(1));
            assert!(wait(&layer, true).await.is_some(), "{kind:?} {how} {told:?}");
            clock.advance(Duration::from_millis(1));
            assert_eq!(wait(&layer, true).await, None, "{kind:?} {how} {told:?}");
        }
    }
}
