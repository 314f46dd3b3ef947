//! The burst curve against its definition, a plain token bucket, and figures worked out by hand or on real traces.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tidegate_sim::fit::{Demand, FitError, Rate, Share};
use tidegate_sim::{Arrivals, Costs, Keys};

const S: u64 = 1_000_000_000;

fn arrivals(times: Vec<u64>, costs: Costs) -> Arrivals {
    Arrivals { times, costs, keys: None }
}

/// Events at 0, 0, 1 s, 1 s, 4 s, cost 1: the worked example.
fn worked() -> Arrivals {
    arrivals(vec![0, 0, S, S, 4 * S], Costs::One)
}

/// Reads a UTC time `YYYY-MM-DD HH:MM:SS.fffffff` of November 2023 and the two token columns.
fn azure(tokens: bool) -> Arrivals {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/azure_llm_2023_code.csv");
    let text = fs::read_to_string(path).unwrap();
    let mut result = Arrivals::default();
    let mut costs = Vec::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (date, time) = fields[0].split_once(' ').unwrap();
        let day: u64 = date.strip_prefix("2023-11-").unwrap().parse().unwrap();
        let (clock, fraction) = time.split_once('.').unwrap();
        let parts: Vec<u64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
        let seconds = ((day * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2];
        result.times.push(seconds * S + fraction.parse::<u64>().unwrap() * 100);
        costs.push(fields[1].parse::<u64>().unwrap() + fields[2].parse::<u64>().unwrap());
    }
    if tokens {
        result.costs = Costs::Each(costs);
    }
    result
}

/// A token bucket as the textbook has it: tokens rise, and are taken. Independent of the library's deficit form.
/// Returns what it rejects; tokens are counted in units of `1/(rate.per() * scale)`.
fn bucket(arrivals: &Arrivals, rate: Rate, burst: (u128, u128)) -> Vec<usize> {
    let (numerator, denominator) = burst;
    let token = u128::from(rate.per()) * denominator;
    let refill = u128::from(rate.count()) * denominator;
    let full = numerator * u128::from(rate.per());
    let mut tokens = full;
    let mut last = arrivals.times[0];
    let mut rejected = Vec::new();
    for (index, &now) in arrivals.times.iter().enumerate() {
        tokens = full.min(tokens + refill * u128::from(now - last));
        last = now;
        let cost = u128::from(arrivals.cost(index)) * token;
        if cost <= tokens {
            tokens -= cost;
        } else {
            rejected.push(index);
        }
    }
    rejected
}

/// `max over i <= j of S - r*L`, as a numerator over `rate.per()`, straight from the definition.
fn by_definition(arrivals: &Arrivals, rate: Rate) -> i128 {
    let mut best = 0;
    for i in 0..arrivals.len() {
        let mut cost = 0;
        for j in i..arrivals.len() {
            cost += i128::from(arrivals.cost(j));
            let length = i128::from(arrivals.times[j] - arrivals.times[i]);
            best = best.max(cost * i128::from(rate.per()) - length * i128::from(rate.count()));
        }
    }
    best
}

#[test]
fn the_worked_example() {
    let arrivals = worked();
    let demand = Demand::new(&arrivals).unwrap();
    let curve = demand.curve().unwrap();
    let lines: Vec<(u64, u64)> = curve.lines().iter().map(|line| (line.cost, line.length)).collect();
    assert_eq!(lines, [(5, 4 * S), (4, S), (2, 0)]);
    assert_eq!(curve.breaks(), [Rate::new(1, 3 * S).unwrap(), Rate::per_second(2)]);
    let rows = [
        (Rate::per_second(0), "5"),
        (Rate::new(1, 4 * S).unwrap(), "4"),
        (Rate::new(1, 3 * S).unwrap(), "11/3"),
        (Rate::per_second(1), "3"),
        (Rate::per_second(2), "2"),
        (Rate::per_second(3), "2"),
    ];
    for (rate, burst) in rows {
        assert_eq!(demand.smallest_burst(rate).burst.to_string(), burst, "at {rate}");
        assert_eq!(curve.at(rate).burst.to_string(), burst, "on the curve at {rate}");
    }
}

#[test]
fn the_worked_example_in_a_bucket() {
    let arrivals = worked();
    let demand = Demand::new(&arrivals).unwrap();
    // (rate, burst, rejected, first)
    let rows = [
        (Rate::per_second(1), 3, 0, None),
        (Rate::per_second(1), 2, 1, Some(3)),
        (Rate::new(1, 3 * S).unwrap(), 3, 1, Some(3)),
        (Rate::per_second(2), 2, 0, None),
        (Rate::per_second(2), 1, 2, Some(1)),
    ];
    for (rate, burst, rejected, first) in rows {
        let found = demand.rejections(rate, burst);
        assert_eq!((found.rejected, found.first), (rejected, first), "{rate} burst {burst}");
        let plain = bucket(&arrivals, rate, (burst.into(), 1));
        assert_eq!(
            (plain.len(), plain.first().copied()),
            (rejected, first),
            "{rate} burst {burst}, textbook"
        );
    }
}

#[test]
fn azure_needs_these_bursts() {
    let arrivals = azure(false);
    let demand = Demand::new(&arrivals).unwrap();
    let curve = demand.curve().unwrap();
    assert_eq!(curve.lines().len(), 39);
    for (rate, text, whole) in [(5, "507.925165", 508), (10, "318.43561", 319)] {
        let rate = Rate::per_second(rate);
        let needed = demand.smallest_burst(rate);
        let decimal = needed.burst.decimal(9);
        assert_eq!((decimal.text.as_str(), decimal.exact), (text, true));
        assert_eq!(needed.whole_burst(), whole);
        assert_eq!(curve.at(rate).burst, needed.burst);
        // Exactly this much rejects nothing, the least bit less rejects something.
        let exact = (needed.burst.numerator(), u128::from(needed.burst.denominator()));
        assert!(bucket(&arrivals, rate, exact).is_empty());
        assert!(!bucket(&arrivals, rate, (exact.0 * 1_000 - 1, exact.1 * 1_000)).is_empty());
        assert_eq!(needed.interval.burst_at(rate), needed.burst);
        let cost: u64 = (needed.interval.from..=needed.interval.to).map(|index| arrivals.cost(index)).sum();
        assert_eq!(cost, needed.interval.cost);
    }
}

#[test]
fn the_azure_curve_is_complete() {
    // `B` is convex and the curve, the largest of some of its lines, is never above it. Where both agree at every
    // break, at 0 and beyond the last, `B` lies on or below the straight pieces between, so both agree everywhere.
    for tokens in [false, true] {
        let arrivals = azure(tokens);
        let demand = Demand::new(&arrivals).unwrap();
        let curve = demand.curve().unwrap();
        let ends = [Rate::per_second(0), Rate::new(u64::MAX, 1).unwrap()];
        for rate in curve.breaks().iter().chain(&ends) {
            assert_eq!(curve.at(*rate).burst, demand.smallest_burst(*rate).burst, "at {rate}");
        }
    }
}

#[test]
fn azure_proposals_reject_nothing_in_a_bucket() {
    for (tokens, one, short) in [
        (false, "4/s burst 593", Some("60/s burst 19")),
        (true, "8000/s burst 1232221", Some("150000/s burst 35279")),
    ] {
        let arrivals = azure(tokens);
        let curve = Demand::new(&arrivals).unwrap().curve().unwrap();
        let proposals = curve.proposals();
        assert_eq!(proposals.one.map(|bucket| bucket.to_string()).as_deref(), Some(one));
        assert_eq!(proposals.short.map(|bucket| bucket.to_string()).as_deref(), short);
        for proposed in [proposals.one, proposals.short].into_iter().flatten() {
            assert!(bucket(&arrivals, proposed.rate, (proposed.burst.into(), 1)).is_empty(), "{proposed}");
        }
    }
}

#[test]
fn azure_with_a_few_rejections() {
    let share = Share::new(1, 1_000).unwrap();
    for (tokens, rate) in [(false, 5), (true, 8_000)] {
        let arrivals = azure(tokens);
        let found = Demand::new(&arrivals).unwrap().smallest_burst_rejecting(Rate::per_second(rate), share);
        assert!(found.smallest);
        assert_eq!(found.rejected_max, 8);
        let rejected = |burst: u64| bucket(&arrivals, Rate::per_second(rate), (burst.into(), 1)).len();
        assert_eq!(rejected(found.burst), found.rejected);
        assert!(found.rejected <= 8 && rejected(found.burst - 1) > 8, "{found:?}");
    }
}

#[test]
fn waits_are_those_of_a_queue() {
    // At 2/s and burst 2 the worked example waits nowhere; at burst 1 every second arrival waits half a second.
    let arrivals = worked();
    let waits = Demand::new(&arrivals).unwrap().waits(Rate::per_second(2), &[2, 1]).unwrap();
    assert_eq!((waits[0].delayed, waits[0].max), (0, 0));
    assert_eq!((waits[1].delayed, waits[1].p50, waits[1].p99, waits[1].max), (2, 0, S / 2, S / 2));
}

#[test]
fn a_key_has_its_own_bucket() {
    let keys = Keys { ids: vec![0, 1, 0, 1, 1], names: vec!["a".into(), "b".into()] };
    let arrivals = Arrivals { times: vec![0, 0, S, S, 4 * S], costs: Costs::One, keys: Some(keys) };
    let demand = Demand::new(&arrivals).unwrap();
    let needed = demand.smallest_burst(Rate::new(1, 2 * S).unwrap());
    assert_eq!(needed.burst.to_string(), "3/2");
    assert_eq!((needed.interval.from, needed.interval.to, needed.interval.requests), (0, 2, 2));
    let slow = demand.smallest_burst(Rate::new(1, 100 * S).unwrap());
    assert_eq!((slow.interval.key, slow.interval.from, slow.interval.to), (Some(1), 1, 4));
    assert_eq!(demand.curve().unwrap().at(Rate::per_second(0)).burst.to_string(), "3");
    assert_eq!(demand.rejections(Rate::per_second(1), 1).rejected, 0);
}

#[test]
fn a_larger_burst_may_reject_more_when_costs_differ() {
    // Burst 1 rejects the 5 only; burst 5 takes it and then has nothing left for the four small ones.
    let arrivals = arrivals(vec![0; 5], Costs::Each(vec![5, 1, 1, 1, 1]));
    let demand = Demand::new(&arrivals).unwrap();
    let rate = Rate::per_second(1);
    let rejected: Vec<usize> = (1..=9).map(|burst| demand.rejections(rate, burst).rejected).collect();
    assert_eq!(rejected, [4, 3, 2, 1, 4, 3, 2, 1, 0]);
    let found = demand.smallest_burst_rejecting(rate, Share::new(1, 5).unwrap());
    assert_eq!((found.burst, found.rejected, found.smallest), (4, 1, true));
}

#[test]
fn what_cannot_be_fitted_is_an_error() {
    let new = |arrivals: &Arrivals| Demand::new(arrivals).map(|_| ()).unwrap_err();
    let rows = [
        (
            new(&Arrivals::default()),
            "there is no arrival, so every burst fits; give a trace with at least one",
        ),
        (
            new(&arrivals(vec![1], Costs::Each(vec![0]))),
            "every arrival costs 0, so every burst fits; choose another cost column",
        ),
        (
            new(&arrivals(vec![1, 2], Costs::Each(vec![1 << 62, 1 << 62]))),
            "the costs up to arrival 1 add up to more than 9223372036854775807; use a larger unit or a part of the trace",
        ),
        (
            new(&arrivals(vec![2, 1], Costs::One)),
            "arrival 1 is before the one that precedes it; sort the arrivals by time",
        ),
        (
            new(&arrivals(vec![1, 2], Costs::Each(vec![1]))),
            "there are 2 times and 1 costs or keys; every arrival needs one of each",
        ),
        (Rate::new(1, 0).unwrap_err(), "a rate per 0 ns has no value; give a time above 0"),
        (
            Demand::new(&worked()).unwrap().waits(Rate::per_second(0), &[1]).unwrap_err(),
            "at rate 0 nobody who waits is ever served; give a rate above 0",
        ),
        (Share::new(3, 2).unwrap_err(), "a share of 3 in 2 is not between 0 and 1; give at most 100%"),
        (
            FitError::TooManyPieces { max: 10 },
            "the curve has more than 10 pieces; ask for single rates, or fit a part of the trace",
        ),
    ];
    for (error, text) in rows {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn the_largest_numbers_fit() {
    // The whole range of times, the largest cost, and rates at both ends.
    let arrivals = arrivals(vec![0, u64::MAX], Costs::Each(vec![(1 << 63) - 2, 1]));
    let demand = Demand::new(&arrivals).unwrap();
    for rate in [
        Rate::new(1, u64::MAX).unwrap(),
        Rate::new(u64::MAX, 1).unwrap(),
        Rate::new(u64::MAX - 1, u64::MAX).unwrap(),
    ] {
        let needed = demand.smallest_burst(rate);
        assert_eq!(needed.whole_burst(), (1 << 63) - 2, "at {rate}");
        assert_eq!(demand.curve().unwrap().at(rate).burst, needed.burst);
        assert_eq!(demand.rejections(rate, u64::MAX).rejected, 0);
        assert_eq!(demand.rejections(rate, needed.whole_burst()).rejected, 0);
        assert_eq!(demand.waits(rate, &[u64::MAX]).unwrap()[0].max, 0);
    }
}

/// Up to 12 arrivals on a grid that makes ties and exact crossings common.
fn small() -> impl Strategy<Value = Arrivals> {
    prop::collection::vec((0_u64..6, 0_u64..5, 0_u32..3), 1..12).prop_map(|rows| {
        let mut result = Arrivals::default();
        let mut now = 0;
        let mut costs = Vec::new();
        let mut ids = Vec::new();
        for (gap, cost, key) in rows {
            now += gap;
            result.times.push(now);
            costs.push(cost);
            ids.push(key);
        }
        costs[0] = costs[0].max(1);
        result.costs = Costs::Each(costs);
        result.keys = Some(Keys { ids, names: (0..3).map(|key| key.to_string().into()).collect() });
        result
    })
}

fn rates() -> impl Strategy<Value = Rate> {
    (0_u64..12, 1_u64..12).prop_map(|(count, per)| Rate::new(count, per).unwrap())
}

/// The arrivals of one key, without keys.
fn of_key(all: &Arrivals, key: u32) -> Arrivals {
    let ids = &all.keys.as_ref().unwrap().ids;
    let places: Vec<usize> = (0..all.len()).filter(|index| ids[*index] == key).collect();
    arrivals(
        places.iter().map(|index| all.times[*index]).collect(),
        Costs::Each(places.iter().map(|index| all.cost(*index)).collect()),
    )
}

proptest! {
    #[test]
    fn one_pass_finds_what_the_definition_says(mut arrivals in small(), rate in rates()) {
        arrivals.keys = None;
        let needed = Demand::new(&arrivals).unwrap().smallest_burst(rate);
        let burst = needed.burst;
        let (numerator, denominator) = (burst.numerator(), u128::from(burst.denominator()));
        prop_assert_eq!(numerator * u128::from(rate.per()), u128::try_from(by_definition(&arrivals, rate)).unwrap() * denominator);
        prop_assert_eq!(needed.interval.burst_at(rate), burst);
        prop_assert!(bucket(&arrivals, rate, (numerator, denominator)).is_empty());
        prop_assert!(!bucket(&arrivals, rate, (numerator * 1_000 - 1, denominator * 1_000)).is_empty());
    }

    #[test]
    fn the_curve_is_one_pass_at_every_rate(mut arrivals in small(), rate in rates(), keyed: bool) {
        if !keyed {
            arrivals.keys = None;
        }
        let demand = Demand::new(&arrivals).unwrap();
        let curve = demand.curve().unwrap();
        prop_assert_eq!(curve.lines().len(), curve.breaks().len() + 1);
        prop_assert!(curve.breaks().windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(curve.lines().windows(2).all(|pair| pair[0].length > pair[1].length));
        for at in curve.breaks().iter().chain([&rate, &Rate::per_second(0), &Rate::new(1_000, 1).unwrap()]) {
            prop_assert_eq!(curve.at(*at).burst, demand.smallest_burst(*at).burst);
        }
        for (index, at) in curve.breaks().iter().enumerate() {
            prop_assert_eq!(curve.lines()[index].burst_at(*at), curve.lines()[index + 1].burst_at(*at));
        }
    }

    #[test]
    fn keys_are_fitted_as_if_each_were_alone(arrivals in small(), rate in rates(), burst in 1_u64..20) {
        let demand = Demand::new(&arrivals).unwrap();
        let alone: Vec<Arrivals> = (0..3).map(|key| of_key(&arrivals, key)).collect();
        let largest = alone.iter().filter_map(|arrivals| Demand::new(arrivals).ok()).map(|demand| demand.smallest_burst(rate).burst).max();
        prop_assert_eq!(Some(demand.smallest_burst(rate).burst), largest);
        let rejected: usize =
            alone.iter().filter(|arrivals| !arrivals.is_empty()).map(|arrivals| bucket(arrivals, rate, (burst.into(), 1)).len()).sum();
        prop_assert_eq!(demand.rejections(rate, burst).rejected, rejected);
    }

    #[test]
    fn the_burst_for_a_share_is_the_smallest(mut arrivals in small(), rate in rates(), part in 0_u64..=10, equal: bool) {
        arrivals.keys = None;
        if equal {
            arrivals.costs = Costs::Each(vec![2; arrivals.len()]);
        }
        let most = Share::new(part, 10).unwrap();
        let found = Demand::new(&arrivals).unwrap().smallest_burst_rejecting(rate, most);
        let rejected = |burst: u64| bucket(&arrivals, rate, (burst.into(), 1)).len();
        prop_assert!(found.smallest);
        prop_assert_eq!(rejected(found.burst), found.rejected);
        prop_assert!(found.rejected <= most.of(arrivals.len()));
        prop_assert!((1..found.burst).all(|burst| rejected(burst) > most.of(arrivals.len())));
    }
}
