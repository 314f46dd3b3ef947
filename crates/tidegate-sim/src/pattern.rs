//! Generated arrivals: the patterns that show what a limiter does.
//!
//! Each is a pure function of its settings and its seed. The generator is named (PCG, `rand_pcg::Pcg64`), so a seed
//! gives the same arrivals in every version.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::RngExt;
use rand::SeedableRng;
use rand_pcg::Pcg64;
use thiserror::Error;
use tidegate_core::Quota;

use crate::{Arrivals, Costs};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// The most arrivals that a pattern makes: 8 bytes each are 8 GB here.
pub const MAX_ARRIVALS: u64 = 1_000_000_000;

/// The name of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// Evenly spaced arrivals.
    Steady,
    /// Many at once, a pause, and a few more at once.
    Burst,
    /// A window's worth just before a window boundary, and another just after it.
    Boundary,
    /// A pace that rises from nothing to twice the rate.
    Ramp,
    /// Independent arrivals: gaps from an exponential distribution.
    Poisson,
    /// Random busy and idle phases; twice the rate while busy.
    OnOff,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 6] =
        [Self::Steady, Self::Burst, Self::Boundary, Self::Ramp, Self::Poisson, Self::OnOff];

    /// The name as written in flags and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Burst => "burst",
            Self::Boundary => "boundary",
            Self::Ramp => "ramp",
            Self::Poisson => "poisson",
            Self::OnOff => "on-off",
        }
    }

    /// Whether the arrivals depend on the seed.
    #[must_use]
    pub const fn is_random(self) -> bool {
        matches!(self, Self::Poisson | Self::OnOff)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("unknown pattern; write one of steady, burst, boundary, ramp, poisson, on-off")]
pub struct UnknownPattern;

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(text: &str) -> Result<Self, UnknownPattern> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == text).ok_or(UnknownPattern)
    }
}

/// How a pattern is made. What a pattern does not use it ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatternSettings {
    /// Arrivals per time; its burst is not used.
    pub rate: Quota,
    /// How long arrivals go on. Ignored if `requests` is given.
    pub duration: Duration,
    /// How many arrivals there are. For `burst`, how many come at once.
    pub requests: Option<u64>,
    /// For the random patterns.
    pub seed: u64,
    /// The limit that `boundary` is about.
    pub limit: Quota,
}

/// Why a pattern cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// More arrivals than [`MAX_ARRIVALS`].
    #[error(
        "the pattern would have more than {MAX_ARRIVALS} requests; ask for a lower rate or a shorter duration"
    )]
    TooMany,
    /// No arrival fits into the duration.
    #[error("the pattern has no requests; ask for a higher rate, a longer duration or a number of requests")]
    None,
    /// The last arrival would be later than the clock can say.
    #[error("the pattern goes on for more than 584 years; ask for a higher rate or fewer requests")]
    TooLong,
}

/// Makes the arrivals of `pattern`, starting at 0.
///
/// # Errors
///
/// No arrival at all, or more than can be held.
///
/// ```
/// use std::time::Duration;
/// use tidegate_sim::{Pattern, PatternSettings, arrivals_of};
///
/// let settings = PatternSettings {
///     rate: "20/s".parse()?,
///     duration: Duration::from_secs(3),
///     requests: None,
///     seed: 1,
///     limit: "10/s".parse()?,
/// };
/// let arrivals = arrivals_of(Pattern::Steady, &settings)?;
/// assert_eq!(arrivals.times[..3], [0, 50_000_000, 100_000_000]);
/// assert_eq!(arrivals.len(), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn arrivals_of(pattern: Pattern, settings: &PatternSettings) -> Result<Arrivals, PatternError> {
    let end = match settings.requests {
        Some(_) => u64::MAX,
        None => u64::try_from(settings.duration.as_nanos()).map_err(|_| PatternError::TooLong)?,
    };
    let most = settings.requests.unwrap_or(u64::MAX);
    if settings.requests.is_some_and(|requests| requests > MAX_ARRIVALS) {
        return Err(PatternError::TooMany);
    }
    let endless = !matches!(pattern, Pattern::Burst | Pattern::Boundary);
    if endless && settings.requests.is_none() && expected(settings) > u128::from(MAX_ARRIVALS) {
        // Said at once, and not when memory is full of what was made so far.
        return Err(PatternError::TooMany);
    }
    let times = match pattern {
        Pattern::Steady => collect(most, end, (0..).map(|n| steady(settings.rate, n)))?,
        Pattern::Burst => burst(settings.requests.unwrap_or(30))?,
        Pattern::Boundary => boundary(settings.limit)?,
        Pattern::Ramp => {
            let over = u64::try_from(settings.duration.as_nanos()).map_err(|_| PatternError::TooLong)?;
            collect(most, end, (0..).map(|n| ramp(settings.rate, over, n)))?
        }
        Pattern::Poisson => collect(most, end, Poisson::new(settings))?,
        Pattern::OnOff => collect(most, end, OnOff::new(settings))?,
    };
    if times.is_empty() {
        return Err(PatternError::None);
    }
    Ok(Arrivals { times, costs: Costs::One, keys: None })
}

/// How many arrivals come in the duration, for a random pattern on average.
fn expected(settings: &PatternSettings) -> u128 {
    let count = settings.duration.as_nanos().saturating_mul(u128::from(settings.rate.count()));
    count.div_ceil(u128::from(settings.rate.per_ns().get()))
}

/// The arrivals before `end`, `most` of them at the most.
fn collect(most: u64, end: u64, times: impl Iterator<Item = Option<u64>>) -> Result<Vec<u64>, PatternError> {
    let mut collected = Vec::new();
    for time in times.take(usize::try_from(most).unwrap_or(usize::MAX)) {
        let time = match time {
            Some(time) if time < end => time,
            None if end == u64::MAX => return Err(PatternError::TooLong),
            _ => break,
        };
        if collected.len() as u64 >= MAX_ARRIVALS {
            return Err(PatternError::TooMany);
        }
        collected.push(time);
    }
    Ok(collected)
}

/// `n / rate`, rounded down: no error adds up.
fn steady(rate: Quota, n: u64) -> Option<u64> {
    u64::try_from(u128::from(n) * u128::from(rate.per_ns().get()) / u128::from(rate.count())).ok()
}

/// When the pace rises evenly to twice `rate` at the end of `over`, `rate/over·t²` have come by `t`; so arrival `n`
/// comes at `sqrt(n·over/rate)`.
fn ramp(rate: Quota, over: u64, n: u64) -> Option<u64> {
    let after = u128::from(steady(rate, n)?);
    u64::try_from((after * u128::from(over)).isqrt()).ok()
}

/// `size` at once, and after two quiet seconds a sixth of that.
fn burst(size: u64) -> Result<Vec<u64>, PatternError> {
    let times = |at: u64, n: u64| std::iter::repeat_n(at, usize::try_from(n).unwrap_or(usize::MAX));
    if size > MAX_ARRIVALS / 2 {
        return Err(PatternError::TooMany);
    }
    Ok(times(0, size).chain(times(2 * SECOND, size.div_ceil(6))).collect())
}

/// The count of `limit` in the last millisecond (or tenth) of the first window, and again at the start of the second.
fn boundary(limit: Quota) -> Result<Vec<u64>, PatternError> {
    if limit.count() > MAX_ARRIVALS / 2 {
        return Err(PatternError::TooMany);
    }
    let window = limit.per_ns().get();
    let before = window - (window / 10).clamp(1, MS);
    let n = usize::try_from(limit.count()).unwrap_or(usize::MAX);
    Ok([before, window].into_iter().flat_map(|at| std::iter::repeat_n(at, n)).collect())
}

/// Gaps from an exponential distribution, in nanoseconds.
///
/// The arrivals are random and need no exactness, so floats are fine here; what is decided about them is exact.
#[derive(Debug)]
struct Gaps {
    random: Pcg64,
}

impl Gaps {
    fn next(&mut self, mean_ns: f64) -> u64 {
        let uniform: f64 = self.random.random();
        whole_ns(-(1.0 - uniform).ln() * mean_ns)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float to integer casts saturate"
)]
fn whole_ns(ns: f64) -> u64 {
    ns.round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "a mean of random gaps")]
fn mean_gap_ns(rate: Quota) -> f64 {
    rate.per_ns().get() as f64 / rate.count() as f64
}

#[derive(Debug)]
struct Poisson {
    gaps: Gaps,
    mean_ns: f64,
    now: u64,
}

impl Poisson {
    fn new(settings: &PatternSettings) -> Self {
        Self {
            gaps: Gaps { random: Pcg64::seed_from_u64(settings.seed) },
            mean_ns: mean_gap_ns(settings.rate),
            now: 0,
        }
    }
}

impl Iterator for Poisson {
    type Item = Option<u64>;

    fn next(&mut self) -> Option<Option<u64>> {
        self.now = match self.now.checked_add(self.gaps.next(self.mean_ns)) {
            Some(now) => now,
            None => return Some(None),
        };
        Some(Some(self.now))
    }
}

/// Busy and idle phases of random length, each ten gaps of the rate on average.
#[derive(Debug)]
struct OnOff {
    arrivals: Poisson,
    busy_until: u64,
    phase_ns: f64,
}

impl OnOff {
    fn new(settings: &PatternSettings) -> Self {
        let mut arrivals = Poisson::new(settings);
        let phase_ns = arrivals.mean_ns * 10.0;
        arrivals.mean_ns /= 2.0;
        let busy_until = arrivals.gaps.next(phase_ns);
        Self { arrivals, busy_until, phase_ns }
    }
}

impl Iterator for OnOff {
    type Item = Option<u64>;

    fn next(&mut self) -> Option<Option<u64>> {
        loop {
            let Some(now) = self.arrivals.next()? else { return Some(None) };
            if now < self.busy_until {
                return Some(Some(now));
            }
            // The phase ended before this arrival: it is not made, and the next busy phase starts after an idle one.
            let idle = self.arrivals.gaps.next(self.phase_ns);
            let busy = self.arrivals.gaps.next(self.phase_ns);
            let Some(start) = self.busy_until.checked_add(idle) else { return Some(None) };
            let Some(until) = start.checked_add(busy) else { return Some(None) };
            self.arrivals.now = start;
            self.busy_until = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(rate: &str) -> PatternSettings {
        PatternSettings {
            rate: rate.parse().unwrap(),
            duration: Duration::from_secs(3),
            requests: None,
            seed: 7,
            limit: "10/s".parse().unwrap(),
        }
    }

    #[test]
    fn steady_arrivals_do_not_drift() {
        let long = PatternSettings { requests: Some(3_000_001), ..settings("3/s") };
        let arrivals = arrivals_of(Pattern::Steady, &long).unwrap();
        assert_eq!(arrivals.times.last(), Some(&(1_000_000 * SECOND)));
    }

    #[test]
    fn every_pattern_is_in_order_and_repeats_with_its_seed() {
        for pattern in Pattern::ALL {
            let arrivals = arrivals_of(pattern, &settings("20/s")).unwrap();
            assert!(arrivals.times.is_sorted(), "{pattern}");
            assert_eq!(arrivals_of(pattern, &settings("20/s")).unwrap(), arrivals, "{pattern}");
            let other_seed = PatternSettings { seed: 8, ..settings("20/s") };
            assert_eq!(
                arrivals_of(pattern, &other_seed).unwrap() != arrivals,
                pattern.is_random(),
                "{pattern}"
            );
            assert_eq!(pattern.name().parse(), Ok(pattern));
        }
    }

    #[test]
    fn patterns_keep_the_rate_they_are_asked_for() {
        let long = PatternSettings { duration: Duration::from_secs(10_000), ..settings("20/s") };
        for pattern in [Pattern::Steady, Pattern::Ramp, Pattern::Poisson, Pattern::OnOff] {
            let n = arrivals_of(pattern, &long).unwrap().len();
            assert!((190_000..=210_000).contains(&n), "{pattern}: {n}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_made_say_so() {
        let none = PatternSettings { duration: Duration::ZERO, ..settings("20/s") };
        assert_eq!(arrivals_of(Pattern::Steady, &none), Err(PatternError::None));
        let many = PatternSettings { requests: Some(MAX_ARRIVALS + 1), ..settings("20/s") };
        assert_eq!(arrivals_of(Pattern::Poisson, &many), Err(PatternError::TooMany));
        // Without going through them: this test takes no time.
        let long = PatternSettings { duration: Duration::from_secs(360_000_000), ..settings("1000000/s") };
        for pattern in [Pattern::Steady, Pattern::Ramp, Pattern::Poisson, Pattern::OnOff] {
            assert_eq!(arrivals_of(pattern, &long), Err(PatternError::TooMany), "{pattern}");
        }
        let slow = PatternSettings { requests: Some(1000), ..settings("1 per 30000d") };
        assert_eq!(arrivals_of(Pattern::Steady, &slow), Err(PatternError::TooLong));
    }
}
