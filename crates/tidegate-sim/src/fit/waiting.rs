//! Waiting instead of rejecting: how long each arrival waits when all are let through in order.
//!
//! With `W` the deficit of the pass for one rate, arrival `j` goes at the first instant at which the bucket of burst `B`
//! has room: it waits `max(0, W_j − B)/r`. `W` does not depend on `B`, so one pass and one sort answer every burst.
//!
//! An arrival that costs more than `B`, which a bucket would never allow, is taken all the same: it goes once what it
//! exceeds `B` by has been refilled too.

use super::{Demand, FitError, Rate};

/// How long arrivals wait at one rate and burst. Times in nanoseconds, rounded up; they saturate at 2⁶⁴ − 1 (584 years).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The whole burst.
    pub burst: u64,
    /// How many arrivals wait at all.
    pub delayed: usize,
    /// Half of all arrivals wait at most this long (nearest rank, those that do not wait included).
    pub p50: u64,
    /// 99 % of all arrivals wait at most this long.
    pub p99: u64,
    /// The longest wait.
    pub max: u64,
}

impl Demand<'_> {
    /// The waits at `rate` for each of `bursts`; with keys, each key waits in a line of its own.
    ///
    /// Takes 16 bytes an arrival while it runs. Bursts may be 0: then each arrival waits for its own cost.
    ///
    /// ```
    /// use tidegate_sim::fit::{Demand, Rate};
    /// use tidegate_sim::Arrivals;
    ///
    /// let arrivals = Arrivals { times: vec![0; 3], ..Arrivals::default() };
    /// let waits = Demand::new(&arrivals)?.waits(Rate::per_second(2), &[1])?;
    /// // They go at 0, 0.5 and 1 s.
    /// assert_eq!((waits[0].delayed, waits[0].p50, waits[0].max), (2, 500_000_000, 1_000_000_000));
    /// # Ok::<(), tidegate_sim::fit::FitError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FitError::NoRate`] if `rate` is 0.
    pub fn waits(&self, rate: Rate, bursts: &[u64]) -> Result<Vec<Waits>, FitError> {
        let (token, refill) = rate.units();
        if refill == 0 {
            return Err(FitError::NoRate);
        }
        let mut owed = self.owed(token, refill);
        owed.sort_unstable();
        let wait = |owed: u128, burst: u64| {
            let units = owed.saturating_sub(token * u128::from(burst));
            u64::try_from(units.div_ceil(refill)).unwrap_or(u64::MAX)
        };
        let rank = |percent: usize| {
            // Nearest rank: the smallest place with at least `percent` of all at or before it.
            let place = (owed.len() as u128 * percent as u128).div_ceil(100).saturating_sub(1);
            owed[usize::try_from(place).unwrap_or(usize::MAX).min(owed.len() - 1)]
        };
        let answers = bursts.iter().map(|&burst| Waits {
            burst,
            delayed: owed.len() - owed.partition_point(|owed| *owed <= token * u128::from(burst)),
            p50: wait(rank(50), burst),
            p99: wait(rank(99), burst),
            max: wait(rank(100), burst),
        });
        Ok(answers.collect())
    }

    /// `W` after each arrival, in units.
    fn owed(&self, token: u128, refill: u128) -> Vec<u128> {
        let mut all = Vec::with_capacity(self.len());
        for run in &self.runs {
            let mut owed = 0_u128;
            let mut last = self.times[run.from];
            for place in run.from..run.to {
                let now = self.times[place];
                owed = owed.saturating_sub(refill * u128::from(now - last))
                    + token * u128::from(self.cost(place));
                last = now;
                all.push(owed);
            }
        }
        all
    }
}
