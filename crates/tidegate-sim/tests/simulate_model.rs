//! The simulation against a slow model of it, which is written from the definitions alone: buckets in exact fractions,
//! windows and logs as lists of calls, every count taken again at each step. It shares no code with the limiters.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{ToPrimitive as _, Zero as _};
use proptest::prelude::*;
use tidegate_core::algorithm::LeakyBucket;
use tidegate_core::{Algorithm, Kind, Limit, Mode, Quota};
use tidegate_sim::{
    Arrivals, Costs, KeyTally, Keys, Settings, Share, SimLimit, Waits, Workers, part, simulate, split,
};

type Fraction = BigRational;

fn whole(n: impl Into<BigInt>) -> Fraction {
    Fraction::from_integer(n.into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Allowed, to start after so many nanoseconds.
    After(u128),
    /// Rejected, with the wait.
    Rejected(u128),
    /// The cost is above this capacity.
    Never(u64),
}

/// One limit with one state.
#[derive(Debug, Clone)]
struct Slow {
    kind: Kind,
    quota: Quota,
    /// For the leaky bucket: how much cost may wait, and how long.
    queue: (u64, Option<Duration>),
    /// Every charged call: time and cost.
    log: Vec<(u64, u64)>,
    /// The token bucket's level, or the leaky bucket's backlog, at `since`.
    level: Fraction,
    since: u64,
}

impl Slow {
    fn new(kind: Kind, quota: Quota, queue: (u64, Option<Duration>)) -> Self {
        let level = if kind == Kind::TokenBucket { whole(quota.burst()) } else { whole(0) };
        Self { kind, quota, queue, log: Vec::new(), level, since: 0 }
    }

    fn rate(&self) -> Fraction {
        Fraction::new(self.quota.count().into(), self.quota.per_ns().get().into())
    }

    fn capacity(&self) -> Option<u64> {
        match self.kind {
            Kind::Unlimited => None,
            Kind::TokenBucket | Kind::LeakyBucket => Some(self.quota.burst()),
            _ => Some(self.quota.count()),
        }
    }

    fn level_at(&self, now: u64) -> Fraction {
        let flowed = self.rate() * whole(now - self.since);
        match self.kind {
            Kind::TokenBucket => (&self.level + flowed).min(whole(self.quota.burst())),
            _ => (&self.level - flowed).max(whole(0)),
        }
    }

    /// What counts against `N` at `at`.
    fn used(&self, at: u128) -> Fraction {
        let window = u128::from(self.quota.per_ns().get());
        let cost_in = |in_view: &dyn Fn(u128) -> bool| -> Fraction {
            let inside = self.log.iter().filter(|(time, _)| in_view(u128::from(*time)));
            whole(inside.map(|(_, cost)| u128::from(*cost)).sum::<u128>())
        };
        match self.kind {
            Kind::FixedWindow => cost_in(&|time| time / window == at / window),
            Kind::SlidingLog => cost_in(&|time| time + window > at),
            _ => {
                let previous = cost_in(&|time| time / window + 1 == at / window);
                let left = Fraction::new((window - at % window).into(), window.into());
                cost_in(&|time| time / window == at / window) + previous * left
            }
        }
    }

    fn look(&self, now: u64, cost: u64) -> Answer {
        let Some(capacity) = self.capacity() else { return Answer::After(0) };
        if cost > capacity {
            return Answer::Never(capacity);
        }
        let up = |wait: Fraction| wait.ceil().to_integer().to_u128().unwrap();
        match self.kind {
            Kind::TokenBucket => match whole(cost) - self.level_at(now) {
                missing if missing > Fraction::zero() => Answer::Rejected(up(missing / self.rate())),
                _ => Answer::After(0),
            },
            Kind::LeakyBucket => {
                let backlog = self.level_at(now) + whole(cost);
                let burst = whole(self.quota.burst());
                let queue = self.queue.1.map(|longest| self.rate() * whole(longest.as_nanos()));
                let queue = queue.map_or(whole(self.queue.0), |queue| queue.min(whole(self.queue.0)));
                if backlog <= &burst + &queue {
                    Answer::After(up((backlog - burst).max(whole(0)) / self.rate()))
                } else {
                    Answer::Rejected(up((backlog - burst - queue) / self.rate()))
                }
            }
            _ => {
                let fits = |at: u128| self.used(at) + whole(cost) <= whole(capacity);
                let now = u128::from(now);
                if fits(now) {
                    return Answer::After(0);
                }
                // From two windows on nothing is in view; between, what is in view only falls, but for the start of the
                // next window, where a fixed window is empty and a sliding one as full as it was.
                let window = u128::from(self.quota.per_ns().get());
                let (mut no, mut yes) = (now, (now / window + 2) * window + window);
                while yes - no > 1 {
                    let middle = no + (yes - no) / 2;
                    *(if fits(middle) { &mut yes } else { &mut no }) = middle;
                }
                Answer::Rejected(yes - now)
            }
        }
    }

    fn charge(&mut self, now: u64, cost: u64) {
        match self.kind {
            Kind::TokenBucket => self.level = self.level_at(now) - whole(cost),
            Kind::LeakyBucket => self.level = self.level_at(now) + whole(cost),
            _ => self.log.push((now, cost)),
        }
        self.since = now;
    }
}

/// A limit as the tests describe it.
#[derive(Debug, Clone)]
struct Described {
    kind: Kind,
    quota: Quota,
    queue: (u64, Option<Duration>),
    per_key: bool,
    mode: Mode,
    max_in_flight: Option<u64>,
}

impl Described {
    fn real(&self) -> SimLimit {
        let algorithm = match (self.kind, self.queue) {
            (Kind::LeakyBucket, (queue, None)) => Algorithm::LeakyBucket(LeakyBucket::new(self.quota, queue)),
            (Kind::LeakyBucket, (queue, Some(longest))) => {
                Algorithm::LeakyBucket(LeakyBucket::new(self.quota, queue).with_max_wait(longest))
            }
            (kind, _) => Algorithm::new(kind, self.quota),
        };
        SimLimit {
            limit: Limit { name: self.kind.name().into(), algorithm, mode: self.mode },
            per_key: self.per_key,
            max_in_flight: self.max_in_flight.and_then(NonZeroU64::new),
            overrides: Default::default(),
        }
    }
}

#[derive(Debug, Clone)]
struct Case {
    /// Time, key and cost, in time order.
    arrivals: Vec<(u64, u32, u64)>,
    workers: Vec<Vec<Described>>,
    service_time: Option<Duration>,
    max_in_flight: Option<u64>,
    window: u64,
}

/// What a run counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counted {
    allowed: u64,
    rejected: u64,
    never: u64,
    shed: u64,
    allowed_cost: u128,
    rejected_cost: u128,
    worst: u128,
    first_rejected: Option<usize>,
    waits: Option<Waits>,
    peak_in_flight: Option<u64>,
    refused: Vec<u64>,
    by_key: Vec<KeyTally>,
}

/// What became of one call of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It starts, or would start, at this time.
    Starts(u128),
    Rejected,
    Never,
    Shed,
}

impl Case {
    fn keys(&self) -> usize {
        self.arrivals.iter().map(|arrival| arrival.1 as usize + 1).max().unwrap_or(1)
    }

    fn model(&self) -> Counted {
        let mut states: BTreeMap<(usize, usize, u32), Slow> = BTreeMap::new();
        let mut refused = vec![0; self.workers[0].len()];
        let mut fates: Vec<Fate> = Vec::new();
        let mut first_rejected = None;
        for (index, &(now, key, cost)) in self.arrivals.iter().enumerate() {
            self.settle(&mut fates, u128::from(now));
            let worker = index % self.workers.len();
            let limits = &self.workers[worker];
            let mut looks = Vec::new();
            for (number, limit) in limits.iter().enumerate() {
                let state = (worker, number, if limit.per_key { key } else { 0 });
                let slow =
                    states.entry(state).or_insert_with(|| Slow::new(limit.kind, limit.quota, limit.queue));
                looks.push((state, slow.look(now, cost)));
            }
            let enforced = || (0..looks.len()).filter(|&number| limits[number].mode == Mode::Enforce);
            let never = enforced().filter_map(|number| match looks[number].1 {
                Answer::Never(capacity) => Some((capacity, number)),
                _ => None,
            });
            let longest = enforced().filter_map(|number| match looks[number].1 {
                Answer::Rejected(wait) => Some((std::cmp::Reverse(wait), number)),
                _ => None,
            });
            let wait = enforced().filter_map(|number| match looks[number].1 {
                Answer::After(wait) => Some(wait),
                _ => None,
            });
            let mut fate = match (never.min(), longest.min()) {
                (Some((_, number)), _) => {
                    refused[number] += 1;
                    Fate::Never
                }
                (None, Some((_, number))) => {
                    refused[number] += 1;
                    Fate::Rejected
                }
                (None, None) => Fate::Starts(u128::from(now) + wait.max().unwrap_or(0)),
            };
            if fate == Fate::Starts(now.into()) && !self.has_place(&fates, now.into(), index) {
                fate = Fate::Shed;
            }
            for (number, (state, look)) in looks.iter().enumerate() {
                let fits = matches!(look, Answer::After(_));
                refused[number] += u64::from(limits[number].mode == Mode::Shadow && !fits);
                if matches!(fate, Fate::Starts(_)) && fits && cost > 0 {
                    states.get_mut(state).unwrap().charge(now, cost);
                }
            }
            if !matches!(fate, Fate::Starts(_)) && first_rejected.is_none() {
                first_rejected = Some(index);
            }
            fates.push(fate);
        }
        self.settle(&mut fates, u64::MAX.into());
        Counted { first_rejected, ..self.count(&fates, refused) }
    }

    /// Sheds the calls whose turn comes by `now` and finds no place, in the order of their turns.
    fn settle(&self, fates: &mut [Fate], now: u128) {
        let mut turns: Vec<(u128, usize)> = Vec::new();
        for (index, fate) in fates.iter().enumerate() {
            if let Fate::Starts(at) = *fate
                && at <= now
            {
                turns.push((at, index));
            }
        }
        turns.sort_unstable();
        // Calls that have their place keep it: what was settled before stays as it was.
        for (turn, &(at, index)) in turns.iter().enumerate() {
            let before: Vec<Fate> = (0..fates.len())
                .map(
                    |other| {
                        if turns[..turn].iter().any(|t| t.1 == other) { fates[other] } else { Fate::Shed }
                    },
                )
                .collect();
            if at > self.arrivals[index].0.into() && !self.has_place(&before, at, index) {
                fates[index] = Fate::Shed;
            }
        }
    }

    /// Whether a call can run from `at` on, beside the calls that run then.
    fn has_place(&self, fates: &[Fate], at: u128, index: usize) -> bool {
        let Some(service) = self.service_time else { return true };
        let key = self.arrivals[index].1;
        let running: Vec<u32> = (0..fates.len())
            .filter(|&other| {
                matches!(fates[other], Fate::Starts(start) if start <= at && start + service.as_nanos() > at)
            })
            .map(|other| self.arrivals[other].1)
            .collect();
        let of_limits = self.workers[0].iter().filter(|limit| limit.mode == Mode::Enforce).all(|limit| {
            let with_it = running.iter().filter(|&&other| !limit.per_key || other == key).count();
            limit.max_in_flight.is_none_or(|max| (with_it as u64) < max)
        });
        of_limits && self.max_in_flight.is_none_or(|max| (running.len() as u64) < max)
    }

    fn count(&self, fates: &[Fate], refused: Vec<u64>) -> Counted {
        let mut counted =
            Counted { refused, by_key: vec![KeyTally::default(); self.keys()], ..Counted::default() };
        let mut starts: Vec<(u64, u64)> = Vec::new();
        let mut waits: Vec<u64> = Vec::new();
        for (&(time, key, cost), fate) in self.arrivals.iter().zip(fates) {
            if let Fate::Starts(at) = *fate {
                counted.allowed += 1;
                counted.allowed_cost += u128::from(cost);
                counted.by_key[key as usize].allowed += 1;
                waits.push(u64::try_from(at - u128::from(time)).unwrap());
                starts.extend(u64::try_from(at).ok().map(|at| (at, cost)));
            } else {
                counted.rejected += 1;
                counted.rejected_cost += u128::from(cost);
                counted.by_key[key as usize].rejected += 1;
                counted.never += u64::from(*fate == Fate::Never);
                counted.shed += u64::from(*fate == Fate::Shed);
            }
        }
        for &(last, _) in &starts {
            let inside = starts.iter().filter(|(at, _)| *at <= last && last - *at < self.window);
            counted.worst = counted.worst.max(inside.map(|(_, cost)| u128::from(*cost)).sum());
        }
        waits.sort_unstable();
        let percentile =
            |percent: usize| Duration::from_nanos(waits[(waits.len() * percent).div_ceil(100).max(1) - 1]);
        if waits.last().is_some_and(|longest| *longest > 0) {
            counted.waits = Some(Waits { p50: percentile(50), p99: percentile(99), max: percentile(100) });
        }
        counted.peak_in_flight = self.service_time.map(|service| {
            let running = |at: u64| {
                let at = u128::from(at);
                let runs =
                    |start: u64| u128::from(start) <= at && u128::from(start) + service.as_nanos() > at;
                // With a service time of 0 a call runs for its own instant, alone.
                starts.iter().filter(|(start, _)| runs(*start)).count().max(1) as u64
            };
            starts.iter().map(|(at, _)| running(*at)).max().unwrap_or(0)
        });
        counted
    }

    fn real(&self) -> (Counted, tidegate_sim::Tally) {
        let arrivals = Arrivals {
            times: self.arrivals.iter().map(|arrival| arrival.0).collect(),
            costs: Costs::Each(self.arrivals.iter().map(|arrival| arrival.2).collect()),
            keys: Some(Keys {
                ids: self.arrivals.iter().map(|arrival| arrival.1).collect(),
                names: (0..self.keys()).map(|key| key.to_string().into()).collect(),
            }),
        };
        let limits = self.workers.iter().map(|limits| limits.iter().map(Described::real).collect()).collect();
        let settings = Settings {
            one_bucket: None,
            worst_window: Duration::from_nanos(self.window),
            service_time: self.service_time,
            max_in_flight: self.max_in_flight.and_then(NonZeroU64::new),
            by_key: true,
            bins: 7,
        };
        let tally = simulate(&arrivals, &Workers { limits }, &settings, &mut |_| {});
        let counted = Counted {
            allowed: tally.allowed,
            rejected: tally.rejected,
            never: tally.never,
            shed: tally.shed,
            allowed_cost: tally.allowed_cost,
            rejected_cost: tally.rejected_cost,
            worst: tally.worst,
            first_rejected: tally.first_rejected,
            waits: tally.waits,
            peak_in_flight: tally.peak_in_flight,
            refused: tally.limits.iter().map(|limit| limit.refused).collect(),
            by_key: tally.by_key.clone(),
        };
        (counted, tally)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let (real, tally) = self.real();
        prop_assert_eq!(&real, &self.model());
        let bins = &tally.timeline.as_ref().unwrap().bins;
        prop_assert_eq!(bins.iter().map(|bin| bin.allowed).sum::<u64>(), real.allowed);
        prop_assert_eq!(bins.iter().map(|bin| bin.rejected).sum::<u64>(), real.rejected);
        let per_worker = self.workers[0].len() == 1 && !self.workers[0][0].per_key;
        if per_worker && self.workers[0][0].mode == Mode::Enforce {
            let window = Duration::from_nanos(self.window - 1);
            let bounds = self.workers.iter().map(|limits| {
                use tidegate_core::Step as _;
                limits[0].real().limit.algorithm.bound(window)
            });
            let bound: Option<u128> = bounds.sum();
            prop_assert!(bound.is_none_or(|bound| real.worst <= bound), "{} of {:?}", real.worst, bound);
        }
        Ok(())
    }
}

fn quotas() -> impl Strategy<Value = Quota> {
    let rate = prop::sample::select(vec![
        "7 per 11ms",
        "1 per 10s",
        "90000/min",
        "10/s",
        "3/s",
        "2/ns",
        "5 per 7ns",
        "1/h",
        "13 per 17s",
    ]);
    let burst = prop::sample::select(vec![0_u64, 0, 1, 2, 5, 100]);
    (rate, burst).prop_map(|(rate, burst)| {
        let quota: Quota = rate.parse().unwrap();
        quota.with_burst(burst).unwrap_or(quota)
    })
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

fn described(quota: Quota) -> impl Strategy<Value = Described> {
    let quota = prop_oneof![3 => Just(quota), 1 => quotas()];
    let queue = prop::sample::select(vec![0, 1, 3, 50]);
    let longest =
        prop::option::weighted(0.3, prop::sample::select(vec![0_u64, 1, 11_000_000, 1_000_000_000]));
    let shadow = prop::bool::weighted(0.2);
    (kinds(), quota, queue, longest, any::<bool>(), shadow, prop::option::weighted(0.3, 1..4_u64)).prop_map(
        |(kind, quota, queue, longest, per_key, shadow, max_in_flight)| Described {
            kind,
            quota,
            queue: (queue, longest.map(Duration::from_nanos)),
            per_key,
            mode: if shadow { Mode::Shadow } else { Mode::Enforce },
            max_in_flight,
        },
    )
}

/// Times near what matters: the same instant, a token's time, the edges of windows; and the two ends of the clock.
fn arrivals(quota: Quota) -> impl Strategy<Value = Vec<(u64, u32, u64)>> {
    let per = quota.per_ns().get();
    let origin = prop::sample::select(vec![
        0,
        per - 1,
        1_700_000_000_000_000_000,
        u64::MAX - 1,
        u64::MAX.saturating_sub(per.saturating_mul(3)),
    ]);
    let token = per / quota.count();
    let gap = prop_oneof![
        4 => Just(0),
        2 => 0..3_u64,
        4 => 0..=token.saturating_mul(2),
        1 => prop::sample::select(vec![per - 1, per, per + 1]),
        1 => 0..=per.saturating_mul(3),
    ];
    let edge = prop::option::weighted(0.2, 0..3_u64);
    let cost = prop_oneof![
        6 => Just(1),
        1 => Just(0),
        3 => 0..=quota.burst() + 1,
        1 => prop::sample::select(vec![quota.count(), quota.burst(), 1 << 63, u64::MAX]),
    ];
    let arrival = (gap, edge, 0..3_u32, cost);
    (origin, prop::collection::vec(arrival, 1..60)).prop_map(move |(origin, arrivals)| {
        let mut now = origin;
        let at = arrivals.into_iter().map(|(gap, edge, key, cost)| {
            now = now.saturating_add(gap);
            if let Some(beside) = edge {
                // One nanosecond before, at or after the next edge of a window.
                now = now.max(
                    (now / per)
                        .saturating_add(1)
                        .saturating_mul(per)
                        .saturating_add(beside)
                        .saturating_sub(1),
                );
            }
            (now, key, cost)
        });
        at.collect()
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let service = prop::option::weighted(0.5, prop::sample::select(vec![0_u64, 1, 1_571_429, 1_000_000_000]));
    let of_quota = |quota: Quota| {
        let workers = (described(quota), 1..4_usize, prop::sample::select(Share::ALL.to_vec()))
            .prop_map(|(limit, workers, share)| share_among(&limit, workers, share));
        let several = prop::collection::vec(described(quota), 1..4).prop_map(|limits| vec![limits]);
        (arrivals(quota), prop_oneof![workers, several])
    };
    let window = prop::sample::select(vec![1_u64, 2, 11_000_000, 1_000_000_000, 20_000_000_001]);
    (quotas().prop_flat_map(of_quota), service, prop::option::of(1..5_u64), window).prop_map(
        |((arrivals, workers), service, max_in_flight, window)| Case {
            arrivals,
            workers,
            service_time: service.map(Duration::from_nanos),
            max_in_flight: max_in_flight.filter(|_| service.is_some()),
            window,
        },
    )
}

fn share_among(limit: &Described, workers: usize, share: Share) -> Vec<Vec<Described>> {
    let windowed = matches!(limit.kind, Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog);
    let parts = (0..workers).map(|worker| split(limit.quota, windowed, worker, workers));
    match share {
        Share::Split if limit.kind != Kind::Unlimited => {
            // What cannot be split is left to one.
            let Ok(parts) = parts.collect::<Result<Vec<_>, _>>() else { return vec![vec![limit.clone()]] };
            let of_worker = |(worker, quota)| {
                let queue = (part(limit.queue.0, worker, workers), limit.queue.1);
                vec![Described { quota, queue, ..limit.clone() }]
            };
            parts.into_iter().enumerate().map(of_worker).collect()
        }
        Share::Shared | Share::Leased => vec![vec![limit.clone()]],
        Share::Copied | Share::Split => vec![vec![limit.clone()]; workers],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_simulation_does_what_the_slow_model_does(case in cases()) {
        case.check()?;
    }
}

fn one(kind: Kind, quota: &str, queue: u64) -> Described {
    let quota = quota.parse().unwrap();
    Described { kind, quota, queue: (queue, None), per_key: false, mode: Mode::Enforce, max_in_flight: None }
}

#[test]
fn starts_after_the_end_of_the_clock_are_not_heaped_up_at_its_end() {
    let arrivals = (0..33).map(|_| (u64::MAX - 1, 0, 1)).collect();
    let workers = vec![vec![one(Kind::LeakyBucket, "10/s burst 5", 50)]];
    let case = Case { arrivals, workers, service_time: None, max_in_flight: None, window: 1_000_000_000 };
    let (real, _) = case.real();
    assert_eq!((real.allowed, real.worst), (33, 5));
    assert_eq!(real.waits.unwrap().max, Duration::from_millis(2800));
    case.check().unwrap();
}

#[test]
fn a_call_runs_on_beyond_the_end_of_the_clock() {
    let arrivals = vec![(u64::MAX - 1, 0, 1), (u64::MAX, 0, 1)];
    let workers = vec![vec![one(Kind::Unlimited, "1/s", 0)]];
    let service_time = Some(Duration::from_secs(1));
    let case = Case { arrivals, workers, service_time, max_in_flight: Some(1), window: 1 };
    let (real, _) = case.real();
    assert_eq!((real.allowed, real.shed, real.peak_in_flight), (1, 1, Some(1)));
    case.check().unwrap();
}

#[test]
fn a_call_that_waited_and_was_shed_is_rejected_in_every_count() {
    // The second waits for 1 s; the third, which needs no token, takes the place just before.
    let arrivals = vec![(0, 0, 1), (0, 1, 1), (999_999_999, 2, 0)];
    let workers = vec![vec![one(Kind::LeakyBucket, "1/s burst 1", 5)]];
    let case = Case {
        arrivals: arrivals.clone(),
        workers: workers.clone(),
        service_time: Some(Duration::from_secs(2)),
        max_in_flight: Some(1),
        window: 1,
    };
    let (real, tally) = case.real();
    assert_eq!((real.allowed, real.rejected, real.shed, real.waits), (1, 2, 2, None));
    assert_eq!(real.by_key[1], KeyTally { allowed: 0, rejected: 1 });
    assert_eq!(tally.timeline.unwrap().bins.iter().map(|bin| bin.rejected).sum::<u64>(), 2);
    case.check().unwrap();
}

#[test]
fn calls_that_may_start_together_start_in_the_order_in_which_they_came() {
    // A call of cost 0 may start with the one before it, which came first and has the one place.
    let arrivals = vec![(0, 0, 1), (0, 1, 1), (0, 2, 0)];
    let workers = vec![vec![one(Kind::LeakyBucket, "1/s burst 1", 5)]];
    let case = Case {
        arrivals,
        workers,
        service_time: Some(Duration::from_secs(1)),
        max_in_flight: Some(1),
        window: 1,
    };
    let (real, _) = case.real();
    let fates: Vec<u64> = real.by_key.iter().map(|key| key.allowed).collect();
    assert_eq!(fates, [1, 1, 0]);
    case.check().unwrap();
}
