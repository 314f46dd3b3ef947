//! Envoy's rate limit service, asked by a gRPC client.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::shared::{Deciding, OnFailure, SharedBuckets, SharedCall, Unanswered, Unsuited};
use tidegate_http::layer::{Key, RateLimitBuilder};
use tidegate_http::{RateLimit, RequestLimit};
use tidegate_server::rls::proto::rate_limit_descriptor::Entry;
use tidegate_server::rls::proto::rate_limit_response::{Code, DescriptorStatus};
use tidegate_server::rls::proto::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit};
use tidegate_server::rls::{Rls, Rule, Rules, VALUE_BYTES_MAX};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// The limits of most tests: name, quota, pattern.
const LIMITS: [(&str, &str, &str); 4] = [
    ("user", "1/s burst 3", "shop: user=*"),
    ("login", "2/min burst 2", "shop: path=/login, address=*"),
    ("all", "10/s burst 100", "shop: all=yes"),
    ("daily", "4/day", "shop: all=yes"),
];

/// A server and its client.
struct Served {
    clock: ManualClock,
    rls: Rls,
    client: RateLimitServiceClient<Channel>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Served {
    async fn new() -> Self {
        Self::with(|builder| builder, |rule| rule).await
    }

    async fn with(
        build: impl FnOnce(RateLimitBuilder) -> RateLimitBuilder,
        change: impl Fn(Rule) -> Rule,
    ) -> Self {
        let clock = ManualClock::new();
        let mut builder = RateLimit::builder().clock(clock.clone());
        for (name, quota, _) in LIMITS {
            builder = builder.limit(RequestLimit::new(name, quota));
        }
        let rules = Rules::new(LIMITS.map(|limit| change(rule(limit))).into());
        let rls = Rls::new(build(builder).build().unwrap(), rules);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = rls.clone();
        let serving = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            served.serve(listener, stopped).await
        });
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { clock, rls, client: RateLimitServiceClient::new(channel), stop, serving }
    }

    async fn ask(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
        self.client.clone().should_rate_limit(request).await.unwrap().into_inner()
    }

    /// The code, what is left, and the seconds, of each descriptor.
    async fn codes(&self, descriptors: Vec<RateLimitDescriptor>) -> (Code, Vec<(Code, u32, f64)>) {
        let response = self.ask(descriptors).await;
        (response.overall_code(), response.statuses.iter().map(numbers).collect())
    }
}

fn rule((name, quota, pattern): (&str, &str, &str)) -> Rule {
    Rule::new(name, quota.parse().unwrap(), vec![pattern.parse().unwrap()]).unwrap()
}

fn numbers(status: &DescriptorStatus) -> (Code, u32, f64) {
    let seconds =
        status.duration_until_reset.map_or(-1.0, |reset| Duration::try_from(reset).unwrap().as_secs_f64());
    (status.code(), status.limit_remaining, seconds)
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), hits_addend: None }
}

fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

fn costing(descriptor: RateLimitDescriptor, cost: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(cost), ..descriptor }
}

fn field(response: &RateLimitResponse, name: &str) -> Option<String> {
    let found = response.response_headers_to_add.iter().find(|field| field.key == name);
    found.map(|field| field.value.clone())
}

#[tokio::test]
async fn a_descriptor_is_told_its_limit_and_what_is_left_of_it() {
    let served = Served::new().await;
    let login = || vec![descriptor(&[("path", "/login"), ("address", "10.0.0.7")])];
    let response = served.ask(login()).await;
    assert_eq!(response.overall_code(), Code::Ok);
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((&*limit.name, limit.requests_per_unit, limit.unit()), ("login", 2, RateLimitUnit::Minute));
    assert_eq!(numbers(&response.statuses[0]), (Code::Ok, 1, 30.0));
    assert_eq!(field(&response, "ratelimit").unwrap(), "\"login\";r=1;t=30");
    assert_eq!(field(&response, "ratelimit-policy").unwrap(), "\"login\";q=2;w=60");
    assert_eq!((field(&response, "retry-after"), response.raw_body.len()), (None, 0));

    assert_eq!(served.codes(login()).await, (Code::Ok, vec![(Code::Ok, 0, 60.0)]));
    served.clock.advance(Duration::from_millis(600));
    let response = served.ask(login()).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(numbers(&response.statuses[0]), (Code::OverLimit, 0, 29.4));
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "login");
    assert_eq!(field(&response, "retry-after").unwrap(), "30");
    assert_eq!(field(&response, "ratelimit").unwrap(), "\"login\";r=0;t=30");
    assert_eq!(response.raw_body, b"rate limit `login` is reached; retry after 30 s");
    // Another value has tokens of its own, and who comes when he was told to is allowed.
    let other = descriptor(&[("path", "/login"), ("address", "10.0.0.8")]);
    assert_eq!(served.codes(vec![other]).await, (Code::Ok, vec![(Code::Ok, 1, 30.0)]));
    served.clock.advance(Duration::from_millis(29_400));
    assert_eq!(served.codes(login()).await.0, Code::Ok);
    let counts = served.rls.counts();
    assert_eq!((counts.requests, counts.allowed, counts.rejected), (5, 4, 1));
}

#[tokio::test]
async fn a_descriptor_that_no_rule_fits_is_allowed_without_a_limit() {
    let served = Served::new().await;
    for entries in [
        &[("path", "/login")][..],
        &[("address", "10.0.0.7"), ("path", "/login")],
        &[("path", "/buy"), ("address", "10.0.0.7")],
        &[("user", "ann"), ("user", "ann")],
    ] {
        let response = served.ask(vec![descriptor(entries)]).await;
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(response.statuses, [DescriptorStatus { code: Code::Ok.into(), ..Default::default() }]);
        assert!(response.response_headers_to_add.is_empty());
    }
}

#[tokio::test]
async fn all_descriptors_of_a_request_are_charged_or_none() {
    let served = Served::new().await;
    let all = || descriptor(&[("all", "yes")]);
    let both = || vec![user("ann"), all(), user("bob"), descriptor(&[("nobody", "knows")])];
    let three = |ann, all, bob| (Code::Ok, vec![ann, all, bob, (Code::Ok, 0, -1.0)]);
    // Of two limits with the same descriptors the one with less is told.
    let expected = three((Code::Ok, 2, 1.0), (Code::Ok, 3, 21_600.0), (Code::Ok, 2, 1.0));
    assert_eq!(served.codes(both()).await, expected);
    let (code, _) = served.codes(vec![costing(user("bob"), 2)]).await;
    assert_eq!(code, Code::Ok);
    for _ in 0..3 {
        let expected = (
            Code::OverLimit,
            vec![(Code::Ok, 2, 1.0), (Code::Ok, 3, 21_600.0), (Code::OverLimit, 0, 1.0), (Code::Ok, 0, -1.0)],
        );
        assert_eq!(served.codes(both()).await, expected);
    }
    // Two keys of one limit, in one request, and the same one twice.
    served.clock.advance(Duration::from_secs(1));
    assert_eq!(served.codes(vec![user("ann"), user("bob")]).await.0, Code::Ok);
    let twice = served.codes(vec![user("ann"), user("ann"), user("ann")]).await;
    assert_eq!(twice, (Code::OverLimit, vec![(Code::OverLimit, 2, 1.0); 3]));
    assert_eq!(served.codes(vec![user("ann"), user("ann")]).await, (Code::Ok, vec![(Code::Ok, 0, 3.0); 2]));
}

#[tokio::test]
async fn what_a_request_costs_is_its_hits_addend() {
    let served = Served::new().await;
    let request =
        |hits_addend, descriptors| RateLimitRequest { domain: "shop".into(), descriptors, hits_addend };
    let ask = async |request| {
        let response = served.client.clone().should_rate_limit(request).await.unwrap().into_inner();
        (response.overall_code(), response.statuses[0].limit_remaining)
    };
    assert_eq!(ask(request(2, vec![user("ann")])).await, (Code::Ok, 1));
    assert_eq!(ask(request(2, vec![user("ann")])).await, (Code::OverLimit, 1));
    assert_eq!(ask(request(0, vec![user("ann")])).await, (Code::Ok, 0));
    // The descriptor's own is taken first.
    assert_eq!(ask(request(3, vec![costing(user("bob"), 1)])).await, (Code::Ok, 2));
    // Above the capacity no wait helps, and none is told.
    let response = served.ask(vec![costing(user("cid"), 4)]).await;
    assert_eq!((response.overall_code(), field(&response, "retry-after")), (Code::OverLimit, None));
    assert_eq!(numbers(&response.statuses[0]), (Code::OverLimit, 3, 0.0));
    assert_eq!(response.raw_body, b"rate limit `user` never allows 4 at once, only 3; do not retry");
    assert_eq!(ask(request(u32::MAX, vec![user("cid"), user("cid")])).await.0, Code::OverLimit);
}

#[tokio::test]
async fn a_look_takes_nothing_and_is_over_when_nothing_is_left() {
    let served = Served::new().await;
    let look = |name| costing(user(name), 0);
    for _ in 0..5 {
        assert_eq!(served.codes(vec![look("ann")]).await, (Code::Ok, vec![(Code::Ok, 3, 0.0)]));
    }
    assert_eq!(served.codes(vec![costing(user("ann"), 3)]).await.0, Code::Ok);
    assert_eq!(served.codes(vec![look("ann")]).await, (Code::OverLimit, vec![(Code::OverLimit, 0, 1.0)]));
    // A look that finds nothing keeps the others from being charged; one that finds something does not.
    let (code, each) = served.codes(vec![user("bob"), look("ann")]).await;
    assert_eq!((code, each), (Code::OverLimit, vec![(Code::Ok, 3, 0.0), (Code::OverLimit, 0, 1.0)]));
    let (code, each) = served.codes(vec![user("bob"), look("cid")]).await;
    assert_eq!((code, each), (Code::Ok, vec![(Code::Ok, 2, 1.0), (Code::Ok, 3, 0.0)]));
}

#[tokio::test]
async fn limits_in_shadow_are_told_and_refuse_nothing() {
    let shadow = |builder: RateLimitBuilder| {
        let quota = "1/s burst 3";
        builder.limit(RequestLimit::new("tried", quota).shadow())
    };
    let served = Served::with(shadow, |rule| rule).await;
    let tried = rule(("tried", "1/s burst 3", "shop: user=*")).shadow();
    served.rls.replace_rules(Rules::new(vec![tried]));
    for expected in [(2, 1.0), (1, 2.0), (0, 3.0), (0, 3.0), (0, 3.0)] {
        let (remaining, seconds) = expected;
        let expected = (Code::Ok, vec![(Code::Ok, remaining, seconds)]);
        assert_eq!(served.codes(vec![user("ann")]).await, expected);
    }
}

#[tokio::test]
async fn a_key_with_a_quota_of_its_own_is_told_that() {
    let clock = ManualClock::new();
    let quota = "100/min burst 10";
    let limit = RequestLimit::new("user", "1/s burst 3").quota_for(Key::from("ann"), quota.parse().unwrap());
    let limits = RateLimit::builder().clock(clock).limit(limit);
    let served = Served::new().await;
    served.rls.limits().replace(limits).unwrap();
    let rule = rule(LIMITS[0]).quota_for(Key::from("ann"), quota.parse().unwrap());
    served.rls.replace_rules(Rules::new(vec![rule]));
    let response = served.ask(vec![user("ann"), user("bob")]).await;
    let limits = response.statuses.iter().map(|status| {
        let limit = status.current_limit.clone().unwrap();
        (limit.requests_per_unit, limit.unit(), status.limit_remaining)
    });
    assert_eq!(limits.collect::<Vec<_>>(), [(100, RateLimitUnit::Minute, 9), (1, RateLimitUnit::Second, 2)]);
}

#[tokio::test]
async fn what_is_no_request_is_told_so() {
    let served = Served::new().await;
    let request =
        |domain: &str, descriptors| RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 };
    let long = "x".repeat(VALUE_BYTES_MAX + 1);
    for (request, expected) in [
        (request("", vec![user("ann")]), "the request has no domain"),
        (request("shop", vec![]), "the request has no descriptor"),
        (request("shop", vec![descriptor(&[])]), "a descriptor has no entries, or one without a key"),
        (
            request("shop", vec![user("ann"), descriptor(&[("", "x")])]),
            "a descriptor has no entries, or one without a key",
        ),
        (request("shop", vec![user("ann"); 65]), "the request has more than 64 descriptors"),
        (request("shop", vec![descriptor(&[("a", "b"); 17])]), "a descriptor has more than 16 entries"),
        (request(&long[..257], vec![user("ann")]), "the domain is longer than 256 bytes"),
        (
            request("shop", vec![descriptor(&[(&long[..257], "")])]),
            "the key of an entry is longer than 256 bytes",
        ),
        (request("shop", vec![user(&long)]), "the value of an entry is longer than 8192 bytes"),
    ] {
        let status = served.client.clone().should_rate_limit(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, expected));
    }
    // As much as there can be is answered.
    let most = vec![descriptor(&[("user", &long[1..])]); 31];
    assert_eq!(served.codes(most).await.0, Code::OverLimit);
    assert_eq!(served.codes(vec![user("ann")]).await, (Code::Ok, vec![(Code::Ok, 2, 1.0)]));
    let counts = served.rls.counts();
    assert_eq!((counts.requests, counts.allowed, counts.rejected, counts.errors), (11, 1, 1, 9));
    assert_eq!((counts.in_flight, counts.connections, counts.connections_open), (0, 1, 1));
}

/// Buckets that nobody reaches.
#[derive(Debug)]
struct Away;

impl SharedBuckets for Away {
    fn accepts(&self, _: &str, _: &tidegate::Algorithm) -> Result<(), Unsuited> {
        Ok(())
    }

    fn spans_keys(&self) -> bool {
        true
    }

    fn decide(&self, _: SharedCall) -> Deciding {
        Box::pin(std::future::ready(Err(Unanswered { retry_after: Duration::from_secs(1) })))
    }
}

/// Buckets that take their time.
#[derive(Debug)]
struct Slow;

impl SharedBuckets for Slow {
    fn accepts(&self, _: &str, _: &tidegate::Algorithm) -> Result<(), Unsuited> {
        Ok(())
    }

    fn spans_keys(&self) -> bool {
        true
    }

    fn decide(&self, _: SharedCall) -> Deciding {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_client_gives_it_up() {
    let served = Served::with(|builder| builder.shared(Arc::new(Slow), OnFailure::Closed), |rule| rule).await;
    let until = async |in_flight| {
        while served.rls.counts().in_flight != in_flight {
            tokio::task::yield_now().await;
        }
    };
    let mut client = served.client.clone();
    let request = RateLimitRequest { domain: "shop".into(), descriptors: vec![user("ann")], hits_addend: 0 };
    let asked = tokio::spawn(async move { client.should_rate_limit(request).await });
    tokio::time::timeout(Duration::from_secs(10), until(1)).await.unwrap();
    asked.abort();
    tokio::time::timeout(Duration::from_secs(10), until(0)).await.unwrap();
    let counts = served.rls.counts();
    assert_eq!((counts.requests, counts.allowed, counts.rejected, counts.errors), (1, 0, 0, 0));
}

#[tokio::test]
async fn without_the_shared_buckets_a_closed_server_is_unavailable_and_an_open_one_allows() {
    let closed = Served::with(|builder| builder.shared(Arc::new(Away), OnFailure::Closed), |rule| rule).await;
    let request =
        || RateLimitRequest { domain: "shop".into(), descriptors: vec![user("ann")], hits_addend: 0 };
    let status = closed.client.clone().should_rate_limit(request()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (tonic::Code::Unavailable, "the limits cannot be asked now")
    );
    // What no limit is for is not asked.
    assert_eq!(closed.codes(vec![descriptor(&[("nobody", "knows")])]).await.0, Code::Ok);

    let open = Served::with(|builder| builder.shared(Arc::new(Away), OnFailure::Open), |rule| rule).await;
    for _ in 0..5 {
        assert_eq!(open.codes(vec![user("ann")]).await, (Code::Ok, vec![(Code::Ok, 0, -1.0)]));
    }

    let local = OnFailure::Local { machines: 1.try_into().unwrap(), keys: 100 };
    let local = Served::with(|builder| builder.shared(Arc::new(Away), local), |rule| rule).await;
    let both = || vec![user("ann"), user("bob")];
    for _ in 0..3 {
        assert_eq!(local.codes(vec![costing(user("ann"), 0)]).await.0, Code::Ok);
        assert_eq!(local.codes(both()).await, (Code::Ok, vec![(Code::Ok, 0, -1.0); 2]));
    }
    let rejected = local.ask(both()).await;
    assert_eq!(rejected.overall_code(), Code::OverLimit);
    assert_eq!(numbers(&rejected.statuses[0]), (Code::OverLimit, 0, 1.0));
}

#[tokio::test]
async fn rules_that_are_replaced_are_in_force_at_once() {
    let served = Served::new().await;
    assert_eq!(served.codes(vec![user("ann")]).await.0, Code::Ok);
    // Old rules that speak of limits which are gone wait for the new ones.
    let limits = RateLimit::builder().clock(served.clock.clone()).limit(RequestLimit::new("new", "1/h"));
    served.rls.limits().replace(limits).unwrap();
    let asked = tokio::spawn({
        let mut client = served.client.clone();
        let request =
            RateLimitRequest { domain: "shop".into(), descriptors: vec![user("ann")], hits_addend: 0 };
        async move { client.should_rate_limit(request).await }
    });
    served.rls.replace_rules(Rules::new(vec![rule(("new", "1/h", "shop: user=*"))]));
    let response = asked.await.unwrap().unwrap().into_inner();
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "new");
    assert_eq!(served.codes(vec![user("ann")]).await.0, Code::OverLimit);
}

#[tokio::test]
async fn a_server_that_is_stopped_ends_its_connections() {
    let served = Served::new().await;
    assert_eq!(served.codes(vec![user("ann")]).await.0, Code::Ok);
    let Served { client, stop, serving, rls, .. } = served;
    drop(stop);
    // The client is connected still.
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap().unwrap();
    let request = RateLimitRequest { domain: "shop".into(), descriptors: vec![user("ann")], hits_addend: 0 };
    assert_eq!(client.clone().should_rate_limit(request).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert_eq!((rls.counts().connections, rls.counts().connections_open), (1, 0));
}
