//! Quotas to propose: the knees of the curve.
//!
//! Every point `(r, B(r))` rejects nothing; so do any two together. A knee is a rate where a slower one costs much
//! more burst and a faster one saves little: where `log B` against `log r` bends the most. Only pleasant rates are looked
//! at (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten, per second, minute, hour or day), and the burst is `B(r)`
//! rounded up, so what is proposed is what was judged.
//!
//! - **One bucket**: the knee among the rates from the mean of the trace to [`HEADROOM`] times that. A faster one would
//!   need less burst, and would let a caller take many times the traffic of the trace for good.
//! - **Two buckets**: the same, and the knee among the rates of at least [`HEADROOM`] times the first, up to where the
//!   curve is flat. The first bounds the long run, the second the moment. None if the curve is flat before.
//!
//! The logarithms are integers (binary, 16 bits after the point), so every machine proposes the same.

use std::fmt;

use super::rate::SECOND;
use super::{Curve, Rate};

/// How many times the mean rate a single bucket may have, and how far apart two are at least. With twice as much, the
/// long-run bound is looser and the second bucket rarer.
const HEADROOM: u64 = 4;

/// Pleasant numbers in tenths: one decade.
const PLEASANT_TENTHS: [u64; 9] = [10, 15, 20, 25, 30, 40, 50, 60, 80];

/// Beyond this many tokens per unit no rate is proposed; it keeps the products small.
const COUNT_MAX: u64 = 1_000_000_000_000_000_000;

/// A quota in whole tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// What it refills.
    pub rate: Rate,
    /// What it holds.
    pub burst: u64,
}

impl fmt::Display for Bucket {
    /// As a quota is written: `5/s burst 508`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} burst {}", self.rate, self.burst)
    }
}

/// What to propose for a trace; each rejects nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposals {
    /// The mean rate, [`Curve::mean`].
    pub mean: Option<Rate>,
    /// One bucket; `None` if everything comes at one instant, or faster than any rate that is proposed.
    pub one: Option<Bucket>,
    /// A second one for the moment, to be used together with [`Self::one`].
    pub short: Option<Bucket>,
}

impl Curve {
    /// The mean rate of the trace: the cost of the longest interval, without that of the largest instant, over its length.
    /// `None` if that is 0.
    ///
    /// Both ends of an interval count, so its whole cost over its length is too much: two requests a second apart are one
    /// a second.
    #[must_use]
    pub fn mean(&self) -> Option<Rate> {
        let (whole, instant) = (self.lines().first()?, self.lines().last()?);
        Rate::new(whole.cost.saturating_sub(instant.cost), whole.length).ok().map(Rate::reduced)
    }

    /// The burst at `rate` in whole tokens, with the rate.
    #[must_use]
    pub fn bucket(&self, rate: Rate) -> Bucket {
        Bucket { rate, burst: self.at(rate).whole_burst() }
    }

    /// What to propose.
    #[must_use]
    pub fn proposals(&self) -> Proposals {
        let Some(mean) = self.mean() else { return Proposals { mean: None, one: None, short: None } };
        let rates = pleasant_rates(mean, self.breaks().last().copied().unwrap_or(mean));
        let Some(one) = self.knee(&rates, mean, Some(times(mean, HEADROOM))) else {
            return Proposals { mean: Some(mean), one: None, short: None };
        };
        let short = self
            .breaks()
            .last()
            .filter(|flat| **flat > times(one, HEADROOM))
            .and_then(|_| self.knee(&rates, times(one, HEADROOM), None))
            .filter(|short| self.at(*short).whole_burst() < self.at(one).whole_burst());
        Proposals {
            mean: Some(mean),
            one: Some(self.bucket(one)),
            short: short.map(|rate| self.bucket(rate)),
        }
    }

    /// The rate between `from` and `to`, both allowed, at which the curve bends the most; the slowest of equals.
    fn knee(&self, rates: &[Rate], from: Rate, to: Option<Rate>) -> Option<Rate> {
        let allowed = |rate: &Rate| *rate >= from && to.is_none_or(|to| *rate <= to);
        let mut best: Option<(i64, Rate)> = None;
        for around in rates.windows(3) {
            let bend = self.slope(around[1], around[2]) - self.slope(around[0], around[1]);
            if allowed(&around[1]) && best.is_none_or(|(most, _)| bend > most) {
                best = Some((bend, around[1]));
            }
        }
        best.map(|(_, rate)| rate).or_else(|| rates.iter().copied().find(allowed))
    }

    /// `Δ log B / Δ log r` between two different rates above 0, in 1/65536.
    fn slope(&self, slow: Rate, fast: Rate) -> i64 {
        let log_burst = |rate: Rate| {
            let burst = self.at(rate).burst;
            log2(burst.numerator()) - log2(u128::from(burst.denominator()))
        };
        let log_rate = |rate: Rate| log2(u128::from(rate.count())) - log2(u128::from(rate.per()));
        ((log_burst(fast) - log_burst(slow)) << LOG_BITS) / (log_rate(fast) - log_rate(slow)).max(1)
    }
}

/// Pleasant rates in rising order, from the last below `from` to the second at or above `to`.
///
/// Per second, or per the first of minute, hour and day in which `from` is at least 1; at most a few hundred.
///
/// ```
/// use tidegate_sim::fit::{Rate, pleasant_rates};
///
/// let rates = pleasant_rates(Rate::per_second(2), Rate::per_second(4));
/// let text: Vec<String> = rates.iter().map(Rate::to_string).collect();
/// assert_eq!(text, ["3 per 2s", "2/s", "5 per 2s", "3/s", "4/s", "5/s"]);
/// ```
#[must_use]
pub fn pleasant_rates(from: Rate, to: Rate) -> Vec<Rate> {
    let units = [SECOND, 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND];
    let fits = |unit: &u64| Rate::new(1, *unit).is_ok_and(|one| from >= one);
    let unit = units.into_iter().find(fits).unwrap_or(86_400 * SECOND);
    // One decade below 1 per unit too, so that there is a rate below `from`.
    let decades = std::iter::successors(Some(1_u64), |scale| scale.checked_mul(10));
    let all = decades.flat_map(|scale| PLEASANT_TENTHS.map(|tenths| (tenths, scale)));
    let mut rates = Vec::new();
    let mut beyond = 0;
    for (tenths, scale) in all {
        // In hundredths, because the first decade is a tenth of the unit.
        let Some(hundredths) = tenths.checked_mul(scale).filter(|count| *count <= COUNT_MAX) else { break };
        let Some(rate) = in_hundredths(hundredths, unit) else { break };
        if rate < from {
            rates.clear();
        }
        rates.push(rate);
        if rate >= to {
            beyond += 1;
        }
        if beyond == 2 {
            break;
        }
    }
    rates
}

/// `hundredths / 100` tokens per `unit`: a whole number if it is one, otherwise the smallest fraction.
fn in_hundredths(hundredths: u64, unit: u64) -> Option<Rate> {
    if hundredths.is_multiple_of(100) {
        return Rate::new(hundredths / 100, unit).ok();
    }
    let divisor = super::rate::gcd(u128::from(hundredths), 100);
    Rate::new(hundredths / divisor, unit * (100 / divisor)).ok()
}

/// `rate` times `by`, saturating in its count.
fn times(rate: Rate, by: u64) -> Rate {
    Rate::new(rate.count().saturating_mul(by), rate.per()).unwrap_or(rate)
}

/// How many bits a logarithm has after the point.
const LOG_BITS: u32 = 16;

/// The binary logarithm of a number above 0, rounded down to [`LOG_BITS`] bits; 0 for 0.
fn log2(number: u128) -> i64 {
    let Some(whole) = number.checked_ilog2() else { return 0 };
    // The top 32 bits: the number as 1.x with 31 bits after the point.
    let mut mantissa = u64::try_from((number << (127 - whole)) >> 96).unwrap_or(0);
    let mut log = i64::from(whole);
    for _ in 0..LOG_BITS {
        // Squaring doubles the logarithm; whether the result reaches 2 is its next bit.
        mantissa = (mantissa * mantissa) >> 31;
        log <<= 1;
        if mantissa >= 1 << 32 {
            mantissa >>= 1;
            log |= 1;
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_close() {
        assert_eq!(log2(1), 0);
        assert_eq!(log2(1 << 100), 100 << LOG_BITS);
        // log2(10) = 3.321928…, times 65536 is 217705.9.
        assert!((log2(10) - 217_705).abs() <= 2, "{}", log2(10));
    }

    #[test]
    fn slow_rates_use_longer_units() {
        let rates = pleasant_rates(Rate::new(7, 60 * SECOND).unwrap(), Rate::new(11, 60 * SECOND).unwrap());
        let text: Vec<String> = rates.iter().map(Rate::to_string).collect();
        assert_eq!(text, ["6/min", "8/min", "10/min", "15/min", "20/min"]);
    }
}
