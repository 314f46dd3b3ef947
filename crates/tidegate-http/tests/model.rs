//! The layer decides as the model does: the pure step of a policy of several limits.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::{Algorithm, Decision, Kind, Limit, Mode, Policy, State, Step as _};
use tidegate_http::fields::{parse_state, whole_ms, whole_seconds};
use tidegate_http::layer::{RequestHead, ShadowRejection};
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tower::{Layer as _, ServiceExt as _, service_fn};

/// The costs of a request in each limit, in its extensions.
#[derive(Clone)]
struct Costs(Vec<u64>);

fn limit() -> impl Strategy<Value = (Kind, u64, u64, u64, Mode)> {
    let kind = prop::sample::select(
        &[Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingLog, Kind::SlidingWindow, Kind::LeakyBucket][..],
    );
    let mode = prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)];
    (kind, 1..9_u64, 1..20_u64, 1..9_u64, mode)
}

fn status(decision: &Decision) -> u16 {
    match decision {
        Decision::Allowed { .. } => 200,
        Decision::Rejected { .. } => 429,
        Decision::Never { .. } => 400,
    }
}

proptest! {
    #[test]
    fn decisions_are_those_of_the_pure_policy(
        limits in prop::collection::vec(limit(), 1..4),
        calls in prop::collection::vec((0..3_000_u64, prop::collection::vec(0..7_u64, 4)), 1..40),
    ) {
        let limits = limits.iter().enumerate().map(|(index, (kind, count, per_s, burst, mode))| {
            let quota = format!("{count} per {per_s}s burst {burst}").parse().unwrap();
            Limit { name: format!("limit {index}").into(), algorithm: Algorithm::new(*kind, quota), mode: *mode }
        });
        let policy = Policy::new(limits.collect());
        let clock = ManualClock::new();
        let mut builder = RateLimit::builder().clock(&clock);
        for (index, limit) in policy.limits().iter().enumerate() {
            let cost = move |head: RequestHead<'_>| head.extensions().get::<Costs>().unwrap().0[index];
            let shadow = |limit: RequestLimit| if policy.limits()[index].mode == Mode::Shadow { limit.shadow() } else { limit };
            // Of several keys, so that the limits have nothing in common but the layer.
            let key = [KeyBy::everyone(), KeyBy::path(), KeyBy::method()][index % 3].clone();
            let request = RequestLimit::new(&limit.name, limit.algorithm).key(key).cost(cost);
            builder = builder.limit(shadow(request).capacity(16));
        }
        let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
        let layer = builder.build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

        let mut state = policy.fresh();
        let mut alone: Vec<State> = policy.limits().iter().map(|limit| limit.algorithm.fresh()).collect();
        for (ms, costs) in calls {
            clock.advance(Duration::from_millis(ms));
            let now = clock.now_ns();
            let expected;
            (state, expected) = policy.step_with(state, now, |limit| costs[limit]);
            if expected.decision.is_allowed() {
                for ((limit, state), cost) in policy.limits().iter().zip(&mut alone).zip(&costs) {
                    if limit.algorithm.look(state, now, *cost).is_allowed() {
                        limit.algorithm.charge(state, now, *cost);
                    }
                }
            }
            let refused = |index: usize, costs: &[u64]| {
                let decision = policy.limits()[index].algorithm.look(&alone[index], now, costs[index]);
                decision.retry_after().filter(|_| !expected.decision.is_allowed() || expected.shadow.is_some())
            };
            let waits: Vec<_> = (0..alone.len()).map(|index| refused(index, &costs)).collect();
            let mut request = Request::new(());
            request.extensions_mut().insert(Costs(costs));
            let response = runtime.block_on(layer.layer(inner).oneshot(request)).unwrap();

            prop_assert_eq!(response.status().as_u16(), status(&expected.decision));
            let number = |name: &str| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
            let wait = expected.decision.retry_after();
            prop_assert_eq!(number("retry-after-ms"), wait.map(whole_ms));
            prop_assert_eq!(number("retry-after"), wait.map(whole_seconds));
            // The field is always about the limit that bound, and its wait is that of the rejection.
            let states = parse_state(response.headers().get_all("ratelimit")).unwrap();
            prop_assert_eq!(states.len(), policy.limits().len());
            if let (Some(limit), Some(wait)) = (expected.limit, wait) {
                prop_assert_eq!(&states[0].name, &policy.limits()[limit].name);
                prop_assert_eq!(states[0].seconds, Some(whole_seconds(wait)));
            }
            for shown in &states {
                let index = policy.limits().iter().position(|limit| limit.name == shown.name).unwrap();
                let look = |cost| policy.limits()[index].algorithm.look(&alone[index], now, cost);
                let left = look(0).remaining();
                if policy.limits()[index].algorithm.kind() != Kind::TokenBucket {
                    prop_assert!(shown.remaining <= left);
                    continue;
                }
                prop_assert_eq!(shown.remaining, left);
                // When there is one more, or for a limit that refused when there is enough; a nanosecond later at most.
                let more = look(left + 1).retry_after();
                let told = [more, more.map(|more| more + Duration::from_nanos(1)), waits[index]];
                prop_assert!(told.map(|wait| wait.map(whole_seconds)).contains(&shown.seconds), "{shown:?} {told:?}");
            }
            if response.status() == 200 {
                let shadow = response.extensions().get::<ShadowRejection>().map(|shadow| shadow.limit.clone());
                prop_assert_eq!(shadow.as_deref(), expected.shadow.map(|limit| &*policy.limits()[limit].name));
            }
        }
    }
}
