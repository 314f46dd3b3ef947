//! Random quotas, costs and times, with the awkward ones made likely.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Decision, Kind, Quota};

use super::Subject;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
const YEAR: u64 = 365 * DAY;
/// More debt than this in one charge is not tried: a state counts up to 2⁶⁴.
const DEBT_MAX: u64 = 1 << 56;

/// Any legal quota: everyday rates, all small fractions, odd nanoseconds, and the ends of the range.
pub(crate) fn quotas() -> impl Strategy<Value = Quota> {
    let count_and_period = prop_oneof![
        3 => (1..200_u64, (1..200_u64).prop_map(|seconds| seconds * SECOND)),
        2 => (1..20_u64, 1..20_u64),
        2 => (1..1_u64 << 32, 1..1_u64 << 32),
        2 => (1..1_000_000_u64, (1..31 * 24_u64).prop_map(|hours| hours * (DAY / 24))),
        1 => (1..1_u64 << 32, Just(SECOND)),
        1 => (1..=i64::MAX as u64, 1..=u64::MAX),
    ];
    let burst = prop_oneof![
        2 => Just(None),
        3 => (1..21_u64).prop_map(Some),
        2 => (1..1_u64 << 32).prop_map(Some),
        1 => (1..=i64::MAX as u64).prop_map(Some),
    ];
    (count_and_period, burst).prop_filter_map("the bucket would never fill", |((count, per), burst)| {
        let quota = Quota::new(count, Duration::from_nanos(per)).ok()?;
        quota.with_burst(burst.unwrap_or(count)).ok()
    })
}

/// Any algorithm with any quota; a leaky bucket often has a queue, and sometimes a longest wait.
pub(crate) fn subjects() -> impl Strategy<Value = Subject> {
    let queue = prop_oneof![1 => Just(0), 3 => 1..20_u64, 1 => 0..1_u64 << 32, 1 => any::<u64>()];
    let max_wait = prop_oneof![
        2 => Just(None),
        1 => (0..20_u64).prop_map(Some),
        1 => (0..DAY).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ];
    (proptest::sample::select(Kind::ALL), quotas(), queue, max_wait).prop_map(
        |(kind, quota, queue, max_wait)| match kind {
            Kind::LeakyBucket => {
                Subject::queued(quota, queue.min(longest_queue(quota)), max_wait.map(Duration::from_nanos))
            }
            kind => Subject::new(kind, quota),
        },
    )
}

/// A queue that 128 bits can count at any time; a longer one is shortened, and the reference would not know.
fn longest_queue(quota: Quota) -> u64 {
    let units = u128::MAX - u128::from(u64::MAX) * u128::from(quota.count());
    let tokens = units / quota.per().as_nanos() - u128::from(quota.burst());
    u64::try_from(tokens).unwrap_or(u64::MAX)
}

/// What a call costs, relative to the limiter that it meets.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cost {
    None,
    One,
    Few(u64),
    /// The largest cost there is, less this much.
    Largest(u64),
    AboveLargest,
    /// A share of the largest, in 256ths.
    Share(u8),
    Any(u64),
}

impl Cost {
    pub(crate) fn of(self, subject: &Subject) -> u64 {
        let largest = subject.largest_cost();
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Few(cost) | Self::Any(cost) => cost,
            Self::Largest(less) => largest.saturating_sub(less),
            Self::AboveLargest => largest.saturating_add(1),
            Self::Share(share) => {
                let cost = u128::from(largest) * u128::from(share) / 256;
                u64::try_from(cost).expect("less than the largest")
            }
        }
    }

    /// The same cost, small enough that its debt can be counted however often it is charged.
    pub(crate) fn as_debt(self, subject: &Subject) -> u64 {
        self.of(subject).min(DEBT_MAX)
    }
}

pub(crate) fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        1 => Just(Cost::None),
        4 => Just(Cost::One),
        3 => (0..5_u64).prop_map(Cost::Few),
        2 => (0..3_u64).prop_map(Cost::Largest),
        1 => Just(Cost::AboveLargest),
        3 => any::<u8>().prop_map(Cost::Share),
        1 => any::<u64>().prop_map(Cost::Any),
    ]
}

/// How time goes on before a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gap {
    Same,
    /// A few nanoseconds.
    Jitter(u64),
    /// A share of the period, in 256ths of four periods.
    Share(u8),
    /// The time of so many tokens, rounded down.
    Tokens(u64),
    /// To a boundary of the aligned windows, and as far beyond it as 1 is beyond 0.
    Boundary {
        windows: u64,
        offset: i64,
    },
    /// To the end of the last wait that was told, and as far beyond it.
    Told {
        offset: i64,
    },
    Idle(u64),
    Back(u64),
}

pub(crate) fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        4 => Just(Gap::Same),
        2 => (1..5_u64).prop_map(Gap::Jitter),
        3 => any::<u8>().prop_map(Gap::Share),
        3 => (0..4_u64).prop_map(Gap::Tokens),
        2 => (1..4_u64, -1..=1_i64).prop_map(|(windows, offset)| Gap::Boundary { windows, offset }),
        4 => (-1..=1_i64).prop_map(|offset| Gap::Told { offset }),
        1 => (0..50 * YEAR).prop_map(Gap::Idle),
        1 => (1..5_u64).prop_map(Gap::Back),
        1 => (0..YEAR).prop_map(Gap::Back),
    ]
}

/// A call: when, how much, and whether it is charged without asking.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) gap: Gap,
    pub(crate) cost: Cost,
    pub(crate) forced: bool,
}

pub(crate) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (gaps(), costs(), proptest::bool::weighted(0.06));
    proptest::collection::vec(call.prop_map(|(gap, cost, forced)| Call { gap, cost, forced }), 1..40)
}

/// Time as the calls see it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    now: u64,
    told: u64,
}

impl Clock {
    pub(crate) fn at(now: u64) -> Self {
        Self { now, told: now }
    }

    /// The time of the next call.
    pub(crate) fn advance(&mut self, gap: Gap, quota: Quota) -> u64 {
        let per = quota.per_ns().get();
        let ahead = |ns: u128| self.now.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
        self.now = match gap {
            Gap::Same => self.now,
            Gap::Jitter(ns) | Gap::Idle(ns) => self.now.saturating_add(ns),
            Gap::Share(share) => ahead(u128::from(per) * u128::from(share) / 64),
            Gap::Tokens(tokens) => ahead(u128::from(tokens) * u128::from(per) / u128::from(quota.count())),
            Gap::Boundary { windows, offset } => {
                (self.now / per).saturating_add(windows).saturating_mul(per).saturating_add_signed(offset)
            }
            Gap::Told { offset } => self.told.saturating_add_signed(offset),
            Gap::Back(ns) => self.now.saturating_sub(ns),
        };
        self.now
    }

    /// Remembers the wait of a rejection.
    pub(crate) fn hear(&mut self, decision: &Decision) {
        if let Some(wait) = decision.retry_after() {
            self.told = after(self.now, wait).unwrap_or(self.now);
        }
    }
}

/// `now + wait`, if a clock can say it.
pub(crate) fn after(now: u64, wait: Duration) -> Option<u64> {
    now.checked_add(u64::try_from(wait.as_nanos()).ok()?)
}
