//! A call that names one limit for one key is decided by a single look-up. It is told and charged what the way of several limits
//! says, which looks at all of them before it charges one.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use http::HeaderMap;
use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::{Algorithm, Kind, Quota, WhenFull};
use tidegate_http::layer::{Checked, Key, Take};
use tidegate_http::{RateLimit, RequestLimit};

const KINDS: [Kind; 6] = [
    Kind::TokenBucket,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingLog,
    Kind::Unlimited,
];

#[derive(Debug, Clone, Copy)]
enum Way {
    Look,
    Charge,
    GiveBack,
    Settle(u64),
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![
        1 => Just(Way::Look),
        3 => Just(Way::Charge),
        1 => Just(Way::GiveBack),
        1 => (0..6_u64).prop_map(Way::Settle),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    // Some are too wide for the numbers of the flat table.
    let text = (1..9_u64, 1..20_u64, prop_oneof![9 => 1..9_u64, 1 => Just(1 << 40)]);
    text.prop_map(|(count, per_s, burst)| format!("{count} per {per_s}s burst {burst}").parse().unwrap())
}

fn fields(checked: &Checked) -> Vec<(String, String)> {
    let mut map = HeaderMap::new();
    checked.fields(&mut map);
    let mut one_by_one = HeaderMap::new();
    checked.each_field(|name, value| assert_eq!(one_by_one.insert(name, value), None));
    assert_eq!(map, one_by_one);
    map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

/// All that is told of the first limit.
fn told(checked: &Checked) -> impl PartialEq + std::fmt::Debug + use<> {
    let limit = checked.limits()[0].clone();
    let refused_by = checked.refused_by().map(str::to_owned);
    let shadow = checked.shadow().map(str::to_owned);
    let waits = (checked.retry_after(), checked.start_after());
    (checked.outcome(), limit, refused_by, shadow, waits, fields(checked))
}

async fn decide(limits: &RateLimit, takes: &[Take<'_>], way: Way) -> (Checked, Option<u64>) {
    let (checked, charged) = match way {
        Way::Look => (limits.check(takes, false).await.unwrap(), None),
        Way::Charge => (limits.check(takes, true).await.unwrap(), None),
        Way::GiveBack | Way::Settle(_) => limits.reserve(takes).await.unwrap(),
    };
    let missing = charged.map(|charged| match way {
        Way::Settle(cost) => charged.settle(|_| cost),
        _ => {
            charged.give_back();
            0
        }
    });
    (checked, missing)
}

fn take<'a>(key: &'a str, cost: u64) -> Take<'a> {
    Take { limit: "calls", key: Key::from(key), cost }
}

proptest! {
    #[test]
    fn one_limit_alone_says_what_it_says_beside_another(
        (kind, quota, of_ann) in (prop::sample::select(&KINDS[..]), quota(), quota()),
        (is_shadow, shown_max) in (any::<bool>(), prop::option::of(0..9_u64)),
        // One alone, as what comes back depends on which keys are in one set of the table.
        key in prop::sample::select(&["ann", "bob"][..]),
        calls in prop::collection::vec((0..3_000_u64, 0..10_u64, way()), 1..40),
    ) {
        let clock = ManualClock::new();
        let limit = || {
            let limit = RequestLimit::new("calls", Algorithm::new(kind, quota)).capacity(16);
            let limit = limit.quota_for(Key::from("ann"), of_ann);
            let limit = if is_shadow { limit.shadow() } else { limit };
            if let Some(most) = shown_max { limit.show_at_most(most) } else { limit }
        };
        let builder = || RateLimit::builder().limit(limit()).clock(&clock);
        let alone = builder().build();
        // A sliding log does not keep bursts of any size.
        prop_assume!(alone.is_ok());
        let alone = alone.unwrap();
        let nothing = Algorithm::new(Kind::Unlimited, quota);
        let beside = builder().limit(RequestLimit::new("nothing", nothing)).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (ms, cost, way) in calls {
            clock.advance(Duration::from_millis(ms));
            let both = [take(key, cost), Take { limit: "nothing", key: Key::from(key), cost: 1 }];
            let (one, missing) = runtime.block_on(decide(&alone, &both[..1], way));
            let (other, also_missing) = runtime.block_on(decide(&beside, &both, way));
            prop_assert_eq!(told(&one), told(&other));
            prop_assert_eq!(missing, also_missing);
            let level = |limits: &RateLimit| limits.level("calls", &Key::from(key)).unwrap();
            prop_assert_eq!(level(&alone), level(&beside));
            if matches!(way, Way::Look | Way::Charge) {
                prop_assert_eq!(one.limits()[0].left, Some(level(&alone)));
            }
        }
        let counts = |limits: &RateLimit| {
            let counts = limits.counts();
            (counts.allowed, counts.rejected, counts.shadow)
        };
        prop_assert_eq!(counts(&alone), counts(&beside));
    }

    #[test]
    fn what_is_left_is_what_a_call_of_cost_0_is_told_also_in_a_full_table(
        kind in prop::sample::select(&KINDS[..]),
        when_full in prop::sample::select(&[WhenFull::Evict, WhenFull::Share, WhenFull::Reject][..]),
        calls in prop::collection::vec((0..900_u64, 0..60_u64, 0..6_u64, any::<bool>()), 40..120),
    ) {
        let clock = ManualClock::new();
        let algorithm = Algorithm::new(kind, "1 per 5s burst 5".parse().unwrap());
        let limit = RequestLimit::new("calls", algorithm).capacity(4).when_full(when_full);
        let limits = RateLimit::builder().limit(limit).clock(&clock).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (ms, key, cost, charge) in calls {
            clock.advance(Duration::from_millis(ms));
            let key = key.to_string();
            let checked = runtime.block_on(limits.check(&[take(&key, cost)], charge)).unwrap();
            prop_assert_eq!(checked.limits()[0].left, limits.level("calls", &Key::from(&*key)));
        }
    }
}
