//! What a bucket rejects, and the smallest burst that rejects at most a share.
//!
//! A rejected arrival charges nothing. With `w` the deficit of the bucket, an arrival of cost `c` is allowed iff
//! `w + c ≤ B`.
//!
//! # Is a larger burst always better?
//!
//! With **equal costs**, yes. Let `D` be how many more arrivals the larger bucket has allowed so far; then `D ≥ 0` and
//! its tokens are at least those of the smaller one less `D·c`. Refilling keeps that. When only the smaller bucket
//! allows, the larger has less than `c` and the smaller at least `c`, so `D ≥ 1` before and `D ≥ 0` after. Hence
//! bisection finds the smallest.
//!
//! With **different costs**, no: a larger bucket may allow one large arrival and then reject several small ones. So
//! the search goes up from 1 through every burst that can differ. Between `B` and the smallest `w + c` among the
//! arrivals that `B` rejected, every decision is the same; it is enough to look at the arrivals up to the one that
//! exceeds the share, and to jump to the smallest `w + c` among those. The search stops after [`WORK_MAX`] arrivals and
//! then says that the burst it reports, found by bisection, may not be the smallest.

use super::{Demand, FitError, Fraction, Rate};

/// How many arrivals the search for the smallest burst looks at, over all its passes. Twice as many double the time of
/// the longest search (3 to 7 s on the machine this was written on) and settle it for traces that need it.
const WORK_MAX: u64 = 2_000_000_000;

/// A share of the arrivals, exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    numerator: u64,
    denominator: u64,
}

impl Share {
    /// `numerator` in `denominator`.
    ///
    /// # Errors
    ///
    /// [`FitError::NotAShare`] unless it lies between 0 and 1.
    pub const fn new(numerator: u64, denominator: u64) -> Result<Self, FitError> {
        if denominator == 0 || numerator > denominator {
            Err(FitError::NotAShare { numerator, denominator })
        } else {
            Ok(Self { numerator, denominator })
        }
    }

    /// How many of `all` the share is, rounded down: what is reported never exceeds it.
    ///
    /// ```
    /// use tidegate_sim::fit::Share;
    ///
    /// assert_eq!(Share::new(1, 1000)?.of(8819), 8);
    /// # Ok::<(), tidegate_sim::fit::FitError>(())
    /// ```
    #[must_use]
    pub fn of(&self, all: usize) -> usize {
        let part = all as u128 * u128::from(self.numerator) / u128::from(self.denominator);
        usize::try_from(part).unwrap_or(all)
    }
}

/// What a bucket rejects of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejections {
    /// How many arrivals.
    pub rejected: usize,
    /// The index of the first; with keys, the first of the key with the smallest id that has one.
    pub first: Option<usize>,
}

/// A burst that rejects at most a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tolerated {
    /// The whole burst.
    pub burst: u64,
    /// How many arrivals it rejects: counted by a run with this burst.
    pub rejected: usize,
    /// How many it may reject.
    pub rejected_max: usize,
    /// Whether every smaller whole burst is known to reject more. `false`: one less rejects more, and the search for
    /// a yet smaller one was too long.
    pub smallest: bool,
}

/// One run with one burst, ended early once it rejected more than asked.
struct Trial {
    rejected: usize,
    first: Option<usize>,
    /// The smallest `w + c` among the rejected, in units.
    next: u128,
    /// How many arrivals were looked at.
    seen: usize,
}

impl Demand<'_> {
    /// What a bucket of `rate` and `burst` that starts full rejects; with keys, one bucket for each.
    #[must_use]
    pub fn rejections(&self, rate: Rate, burst: u64) -> Rejections {
        let trial = self.trial(rate, burst, usize::MAX);
        Rejections { rejected: trial.rejected, first: trial.first.map(|place| self.index(place)) }
    }

    /// The smallest whole burst, at least 1, that rejects at most `share` of the arrivals at `rate`.
    ///
    /// [`Tolerated::smallest`] says whether it is known to be the smallest; it always is when all costs are equal.
    #[must_use]
    pub fn smallest_burst_rejecting(&self, rate: Rate, share: Share) -> Tolerated {
        let most = share.of(self.len());
        // Enough for no rejection at all, so enough; and at least 1, because something costs something.
        let enough = self.smallest_burst(rate).whole_burst();
        let (burst, smallest) = if self.costs_are_equal() {
            (self.bisect(rate, most, 0, enough), true)
        } else {
            self.climb(rate, most, enough)
        };
        let rejected = self.rejections(rate, burst).rejected;
        Tolerated { burst, rejected, rejected_max: most, smallest }
    }

    /// A burst that rejects at most `most`, while one less rejects more or is 0. The same holds of `high` and `low`.
    fn bisect(&self, rate: Rate, most: usize, mut low: u64, mut high: u64) -> u64 {
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.trial(rate, middle, most).rejected > most {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// Every burst from 1 that can differ, until one rejects at most `most`; whether that one is the smallest.
    fn climb(&self, rate: Rate, most: usize, enough: u64) -> (u64, bool) {
        let token = rate.reduced().per();
        let mut burst = 1;
        let mut work = 0_u64;
        while burst < enough {
            let trial = self.trial(rate, burst, most);
            if trial.rejected <= most {
                return (burst, true);
            }
            work = work.saturating_add(trial.seen as u64);
            if work > WORK_MAX {
                return (self.bisect(rate, most, burst, enough), false);
            }
            burst = u64::try_from(Fraction::new(trial.next, token).ceil()).unwrap_or(enough);
        }
        (enough, true)
    }

    fn trial(&self, rate: Rate, burst: u64, most: usize) -> Trial {
        let (token, refill) = rate.units();
        let full = u128::from(burst) * token;
        let mut trial = Trial { rejected: 0, first: None, next: u128::MAX, seen: 0 };
        for run in &self.runs {
            let mut deficit = 0_u128;
            let mut last = self.times[run.from];
            for place in run.from..run.to {
                let now = self.times[place];
                deficit = deficit.saturating_sub(refill * u128::from(now - last));
                last = now;
                trial.seen += 1;
                // The allowed cost is at most the total, so the sum is below 2¹²⁸.
                let after = deficit + token * u128::from(self.cost(place));
                if after <= full {
                    deficit = after;
                    continue;
                }
                trial.rejected += 1;
                trial.first = trial.first.or(Some(place));
                trial.next = trial.next.min(after);
                if trial.rejected > most {
                    return trial;
                }
            }
        }
        trial
    }

    /// Whether all costs above 0 are equal; a cost of 0 is always allowed and changes nothing.
    fn costs_are_equal(&self) -> bool {
        let Some(costs) = &self.costs else { return true };
        let mut above_zero = costs.iter().filter(|cost| **cost > 0);
        above_zero.next().is_none_or(|first| above_zero.all(|cost| cost == first))
    }
}
