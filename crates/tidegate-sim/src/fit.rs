//! The smallest burst with which a token bucket rejects nothing of a trace, for one rate and for every rate.
//!
//! # Definition
//!
//! A bucket with rate `r` and burst `B` that starts full allows every arrival iff, for all arrivals `i ≤ j`,
//!
//! ```text
//! c_i + … + c_j  ≤  B + r·(t_j − t_i)
//! ```
//!
//! so the smallest burst is `B(r) = max over i ≤ j of  S_ij − r·L_ij`, with `S` the cost and `L` the length from the
//! first to the last arrival of the interval, both inclusive. Read as a function of `r` this is the upper envelope of
//! lines: convex, falling, made of straight pieces. With keys every key has its own bucket and all have the same
//! burst: `B(r)` is the largest over keys, an envelope again.
//!
//! # One rate
//!
//! `W = max(0, W − r·elapsed) + c` (Lindley) is what a bucket without a floor would owe; its largest value is `B(r)`.
//! State: `W` and the arrival at which `W` was last 0. With `r = refill/token` in lowest terms (tokens per nanosecond),
//! `W` is kept in units of `1/token`, so that every number is an integer. Bound: [`Demand::new`] refuses a
//! total cost above `2⁶³ − 1`, so `W ≤ 2⁶³·2⁶⁴ = 2¹²⁷`, and `refill·elapsed < 2¹²⁸`.
//!
//! # Worked example
//!
//! Cost 1 at 0, 0, 1, 1 and 4 s. Lines: `5 − 4r` up to 1/3 per second (all five), `4 − r` up to 2 (the first four), `2`
//! beyond (a tie). So `B(0) = 5`, `B(1/4) = 4`, `B(1/3) = 11/3`, `B(1) = 3`, `B(2) = 2`, `B(3) = 2`.
//!
//! ```
//! use tidegate_sim::fit::{Demand, Rate};
//! use tidegate_sim::Arrivals;
//!
//! let s = 1_000_000_000;
//! let arrivals = Arrivals { times: vec![0, 0, s, s, 4 * s], ..Arrivals::default() };
//! let demand = Demand::new(&arrivals)?;
//! let needed = demand.smallest_burst(Rate::per_second(1));
//! assert_eq!(needed.whole_burst(), 3);
//! assert_eq!((needed.interval.from, needed.interval.to, needed.interval.length), (0, 3, s));
//! assert_eq!(demand.curve()?.lines().len(), 3);
//! # Ok::<(), tidegate_sim::fit::FitError>(())
//! ```
//!
//! # Sources
//!
//! Cruz 1991 (arrival curves); Low and Varaiya 1993 (the burstiness curve); Tang and Tai, "Network traffic
//! characterization using token bucket model", INFOCOM 1999.
//!
//! # What it does not promise
//!
//! The burst fits this trace. Another day has another curve.

mod curve;
mod proposal;
mod rate;
mod rejecting;
mod waiting;

use std::borrow::Cow;

use crate::{Arrivals, Costs};

pub use curve::{Curve, PIECES_MAX};
pub use proposal::{Bucket, Proposals, pleasant_rates};
pub use rate::{Decimal, Fraction, Rate};
pub use rejecting::{Rejections, Share, Tolerated};
pub use waiting::Waits;

/// The largest total cost of a trace, in tokens; with it no sum below leaves 128 bits.
pub const COST_MAX: u64 = i64::MAX.unsigned_abs();

/// Why a trace could not be fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// There is no arrival.
    #[error("there is no arrival, so every burst fits; give a trace with at least one")]
    Empty,
    /// Every arrival costs 0.
    #[error("every arrival costs 0, so every burst fits; choose another cost column")]
    NoCost,
    /// The costs add up to more than [`COST_MAX`].
    #[error(
        "the costs up to arrival {index} add up to more than {COST_MAX}; use a larger unit or a part of the trace"
    )]
    CostTooLarge {
        /// The arrival with which the sum passes the bound.
        index: usize,
    },
    /// The times go back.
    #[error("arrival {index} is before the one that precedes it; sort the arrivals by time")]
    Unsorted {
        /// The arrival that is too early.
        index: usize,
    },
    /// The columns of the arrivals differ in length.
    #[error("there are {times} times and {found} costs or keys; every arrival needs one of each")]
    Columns {
        /// How many times there are.
        times: usize,
        /// How many entries the other column has.
        found: usize,
    },
    /// A rate per no time.
    #[error("a rate per 0 ns has no value; give a time above 0")]
    NoPer,
    /// A wait at rate zero would never end.
    #[error("at rate 0 nobody who waits is ever served; give a rate above 0")]
    NoRate,
    /// A share outside of 0 to 1.
    #[error("a share of {numerator} in {denominator} is not between 0 and 1; give at most 100%")]
    NotAShare {
        /// The asked part.
        numerator: u64,
        /// Of how many.
        denominator: u64,
    },
    /// The curve has too many pieces.
    #[error("the curve has more than {max} pieces; ask for single rates, or fit a part of the trace")]
    TooManyPieces {
        /// The bound, [`PIECES_MAX`].
        max: usize,
    },
}

/// Arrivals laid out for fitting: those of one key beside each other, checked for order and for sums that fit.
///
/// Without keys nothing is copied; with keys a copy costs at most 24 bytes an arrival.
#[derive(Debug, Clone)]
pub struct Demand<'a> {
    times: Cow<'a, [u64]>,
    /// `None`: each costs 1.
    costs: Option<Cow<'a, [u64]>>,
    /// From a place here to the index in the arrivals; `None` when they are the same.
    order: Option<Vec<usize>>,
    runs: Vec<Run>,
}

/// The arrivals that share one bucket: a stretch of [`Demand::times`].
#[derive(Debug, Clone, Copy)]
struct Run {
    key: Option<u32>,
    from: usize,
    to: usize,
}

/// The interval that forces a burst: from arrival `from` to arrival `to`, both inclusive, of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Index of the first arrival.
    pub from: usize,
    /// Index of the last arrival.
    pub to: usize,
    /// How many arrivals of the key lie in it.
    pub requests: usize,
    /// What they cost together, in tokens.
    pub cost: u64,
    /// When it begins, in nanoseconds since the origin of the arrivals.
    pub begin: u64,
    /// Nanoseconds from its first to its last arrival; 0 when all come at one instant.
    pub length: u64,
    /// The key, as an index into the names; `None` when all share one bucket.
    pub key: Option<u32>,
}

impl Interval {
    /// The burst this interval alone forces at `rate`: `cost − rate·length`, or 0 if that is negative.
    #[must_use]
    pub fn burst_at(&self, rate: Rate) -> Fraction {
        let (token, refill) = rate.units();
        let owed = (u128::from(self.cost) * token).saturating_sub(refill * u128::from(self.length));
        Fraction::new(owed, rate.reduced().per())
    }
}

/// The smallest burst at one rate, and why it cannot be smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// The burst, exact: this much rejects nothing, any less rejects something.
    pub burst: Fraction,
    /// The interval that forces it; the earliest that ends first if several do.
    pub interval: Interval,
}

impl Needed {
    /// The burst that a quota in whole tokens needs: [`Self::burst`] rounded up.
    #[must_use]
    pub fn whole_burst(&self) -> u64 {
        // At most the total cost, which is below 2⁶³.
        u64::try_from(self.burst.ceil()).unwrap_or(u64::MAX)
    }
}

/// The largest deficit of one pass, in units, and where it was.
#[derive(Debug, Clone, Copy)]
struct Peak {
    owed: u128,
    key: Option<u32>,
    from: usize,
    to: usize,
}

impl<'a> Demand<'a> {
    /// Checks `arrivals` and lays them out.
    ///
    /// # Errors
    ///
    /// [`FitError::Empty`], [`FitError::NoCost`], [`FitError::CostTooLarge`], [`FitError::Unsorted`] and
    /// [`FitError::Columns`].
    pub fn new(arrivals: &'a Arrivals) -> Result<Self, FitError> {
        check(arrivals)?;
        let costs = match &arrivals.costs {
            Costs::One => None,
            Costs::Each(costs) => Some(costs.as_slice()),
        };
        let Some(keys) = &arrivals.keys else {
            let runs = vec![Run { key: None, from: 0, to: arrivals.len() }];
            let times = Cow::Borrowed(arrivals.times.as_slice());
            return Ok(Self { times, costs: costs.map(Cow::Borrowed), order: None, runs });
        };
        let mut order: Vec<usize> = (0..arrivals.len()).collect();
        order.sort_by_key(|&index| keys.ids[index]);
        let mut runs: Vec<Run> = Vec::new();
        for (place, &index) in order.iter().enumerate() {
            let key = Some(keys.ids[index]);
            match runs.last_mut() {
                Some(run) if run.key == key => run.to = place + 1,
                _ => runs.push(Run { key, from: place, to: place + 1 }),
            }
        }
        let by_key = |column: &[u64]| order.iter().map(|&index| column[index]).collect();
        let times = Cow::Owned(by_key(&arrivals.times));
        Ok(Self { times, costs: costs.map(|costs| Cow::Owned(by_key(costs))), order: Some(order), runs })
    }

    /// How many arrivals there are; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a demand is never empty")]
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// The smallest burst that rejects nothing at `rate`; one pass over the arrivals.
    #[must_use]
    pub fn smallest_burst(&self, rate: Rate) -> Needed {
        let peak = self.peak(rate);
        Needed { burst: Fraction::new(peak.owed, rate.reduced().per()), interval: self.interval(peak, rate) }
    }

    /// The pass of one rate.
    fn peak(&self, rate: Rate) -> Peak {
        match &self.costs {
            None => self.peak_with(rate, |_| 1),
            Some(costs) => self.peak_with(rate, |place| costs[place]),
        }
    }

    fn peak_with(&self, rate: Rate, cost: impl Fn(usize) -> u64) -> Peak {
        let (token, refill) = rate.units();
        let mut best = Peak { owed: 0, key: None, from: 0, to: 0 };
        for run in &self.runs {
            let mut owed = 0_u128;
            let mut from = run.from;
            let mut last = self.times[run.from];
            for place in run.from..run.to {
                let now = self.times[place];
                owed = owed.saturating_sub(refill * u128::from(now - last));
                last = now;
                if owed == 0 {
                    from = place;
                }
                owed += token * u128::from(cost(place));
                if owed > best.owed {
                    best = Peak { owed, key: run.key, from, to: place };
                }
            }
        }
        best
    }

    /// The interval of a peak. Its cost follows from `owed = cost·token − refill·length`.
    fn interval(&self, peak: Peak, rate: Rate) -> Interval {
        let (token, refill) = rate.units();
        let begin = self.times[peak.from];
        let length = self.times[peak.to] - begin;
        // Below 2¹²⁷ when divided out: it is the cost of the interval times `token`.
        let cost = (peak.owed + refill * u128::from(length)) / token;
        Interval {
            from: self.index(peak.from),
            to: self.index(peak.to),
            requests: peak.to - peak.from + 1,
            cost: u64::try_from(cost).unwrap_or(u64::MAX),
            begin,
            length,
            key: peak.key,
        }
    }

    /// The index in the arrivals of a place here.
    fn index(&self, place: usize) -> usize {
        self.order.as_ref().map_or(place, |order| order[place])
    }

    /// The cost at a place here.
    fn cost(&self, place: usize) -> u64 {
        self.costs.as_ref().map_or(1, |costs| costs[place])
    }
}

/// Checks what [`Demand::new`] promises.
fn check(arrivals: &Arrivals) -> Result<(), FitError> {
    let times = arrivals.len();
    if times == 0 {
        return Err(FitError::Empty);
    }
    let costs = match &arrivals.costs {
        Costs::One => times,
        Costs::Each(costs) => costs.len(),
    };
    let keys = arrivals.keys.as_ref().map_or(times, |keys| keys.ids.len());
    if let Some(found) = [costs, keys].into_iter().find(|found| *found != times) {
        return Err(FitError::Columns { times, found });
    }
    if let Some(index) = arrivals.times.windows(2).position(|pair| pair[1] < pair[0]) {
        return Err(FitError::Unsorted { index: index + 1 });
    }
    let mut total = 0_u64;
    for index in 0..times {
        total = total
            .checked_add(arrivals.cost(index))
            .filter(|total| *total <= COST_MAX)
            .ok_or(FitError::CostTooLarge { index })?;
    }
    if total == 0 { Err(FitError::NoCost) } else { Ok(()) }
}
