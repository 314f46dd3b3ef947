//! The token bucket: tokens flow in at a rate up to a capacity, and a call takes its cost out.
//!
//! **Definition.** With capacity `B` and rate `r`, the level is `T = min(B, T + r·elapsed)`; a call of cost `c` is
//! allowed iff `c <= T`, and then `T = T - c`. The bucket starts full. If `c > B` no wait helps, else the wait is
//! `(c - T)/r`.
//!
//! **Promise.** In any closed interval of length `t`, at most `B + r·t` is allowed. Worst case: `10/s burst 10` lets
//! 20 through in one second (10 saved up, 10 earned), so one second may hold twice the rate.
//!
//! **State.** One number. Write the rate as `b/a` tokens per nanosecond with integers `a`, `b` that share no factor,
//! and count in units of `1/a` token: a token is `a` units, a nanosecond brings `b` units. Instead of the level keep
//! `TAT`, the time in units (`now·b`) at which the bucket would be full again. Then with `n = now·b`:
//!
//! ```text
//! deficit = max(0, TAT - n)              what is missing from a full bucket
//! allowed iff deficit + c·a <= B·a
//! TAT     = max(TAT, n) + c·a            after an allowed call
//! wait    = ceil((deficit + c·a - B·a) / b) ns
//! ```
//!
//! This is the recurrence above solved for the moment of fullness; nothing is rounded except the wait, once, upwards.
//! A full bucket has `TAT <= n`, as a bucket that was never used has: so an idle key needs no state.
//!
//! **Worked example.** `B = 3`, `r = 2/s`: `a = 500,000,000`, `b = 1`. Three calls at 0 make `TAT = 1.5 s`. A fourth
//! needs `1.5 + 0.5 - 1.5 = 0.5 s`. At 0.25 s it is still refused, with 0.25 s to wait; at 0.5 s exactly one passes.
//!
//! **Not promised.** That a second holds no more than the rate (that is the [sliding log](super::sliding_log)), or
//! that few calls run at once (that is [`InFlight`](crate::InFlight)).
//!
//! **Source.** Turner, *New directions in communications*, IEEE Communications Magazine 24(10), 1986; the form with
//! one number is the virtual scheduling algorithm (GCRA) of ITU-T I.371, annex A, and ATM Forum TM 4.0.

use core::num::NonZeroU64;
use core::time::Duration;

use crate::arithmetic::{div_down, div_up, duration, narrow, part_up, product};
use crate::{Decision, Quota, Step};

/// A token bucket for one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// `a`: units in a token.
    token: NonZeroU64,
    /// `b`: units that a nanosecond brings.
    rate: NonZeroU64,
    /// `B`, in tokens.
    burst: u64,
    /// `B·a`, in units.
    capacity: u128,
}

/// The time, in units, at which the bucket is full again (the theoretical arrival time of GCRA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Tat(u128);

impl Tat {
    /// A state that a store kept, from [`Self::units`]. It means something only with the quota it was written under.
    #[must_use]
    pub const fn from_units(units: u128) -> Self {
        Self(units)
    }

    /// The state as a number, for a store to keep.
    #[must_use]
    pub const fn units(self) -> u128 {
        self.0
    }
}

/// What a run of charges does to a bucket, as one value: `TAT` becomes `max(TAT + units, tat)`.
///
/// The default is a run of none. [`TokenBucket::refund`] needs the run since the charge that is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Since {
    units: u128,
    /// What a bucket that was full all the time before would have.
    tat: Tat,
}

impl Since {
    /// Adds a charge at the end of the run.
    pub fn charge(&mut self, bucket: &TokenBucket, now: u64, cost: u64) {
        bucket.charge(&mut self.tat, now, cost);
        self.units = self.units.saturating_add(bucket.units(cost));
    }

    /// This run, and then `later`.
    #[must_use]
    pub fn then(self, later: Self) -> Self {
        let tat = if self == Self::default() {
            later.tat
        } else {
            Tat(self.tat.0.saturating_add(later.units)).max(later.tat)
        };
        Self { units: self.units.saturating_add(later.units), tat }
    }
}

impl TokenBucket {
    /// The bucket that `quota` describes.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let (token, rate) = quota.units();
        Self { token, rate, burst: quota.burst(), capacity: product(quota.burst(), token.get()) }
    }

    /// The state of this bucket that is as full in proportion as `old` is in `state` at `now`, where the quota changes.
    ///
    /// An empty bucket stays empty, a half full one half full, and a full one is full, as one that was never used is: so
    /// it makes no difference whether a full bucket is stored or not. What is less than a unit is rounded away: a change
    /// brings no token, however often the quota is changed to and fro.
    ///
    /// Keeping what is missing instead would bring tokens: an empty `10/s burst 10` would hold 990 as `10/s burst 1000`.
    ///
    /// ```
    /// use tidegate_core::{Decision, Step, algorithm::TokenBucket};
    ///
    /// let (old, new) = (TokenBucket::new("10/s".parse()?), TokenBucket::new("1/s burst 1000".parse()?));
    /// let (state, _) = old.step(old.fresh(), 0, 4);
    /// let state = new.carry_over(&old, state, 0);
    /// assert_eq!(new.look(&state, 0, 0).remaining(), 600);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn carry_over(&self, old: &Self, state: Tat, now: u64) -> Tat {
        let deficit = old.deficit(state, now).min(old.capacity);
        let deficit = part_up(self.capacity, deficit, old.capacity);
        Tat(product(now, self.rate.get()).saturating_add(deficit))
    }

    /// Units in a token: `a`.
    #[must_use]
    pub const fn token_units(&self) -> NonZeroU64 {
        self.token
    }

    /// Units that a nanosecond brings: `b`.
    #[must_use]
    pub const fn rate_units(&self) -> NonZeroU64 {
        self.rate
    }

    /// The largest cost that can be allowed: `B`, in tokens.
    #[inline]
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// What is missing from a full bucket at `now`, in units.
    #[inline]
    pub(crate) fn deficit(&self, state: Tat, now: u64) -> u128 {
        state.0.saturating_sub(product(now, self.rate.get()))
    }

    /// The state that at `at` is full again `reset_after` later.
    pub(crate) fn full_after(&self, at: u64, reset_after: Duration) -> Tat {
        Tat(product(at, self.rate.get()).saturating_add(self.gained(reset_after).min(self.headroom())))
    }

    /// `tokens` in units.
    #[inline]
    pub(super) fn units(&self, tokens: u64) -> u128 {
        product(tokens, self.token.get())
    }

    /// Units as whole tokens, rounded down.
    #[inline]
    pub(super) fn tokens(&self, units: u128) -> u64 {
        narrow(div_down(units, self.token))
    }

    /// How long the bucket takes to gain `units`, rounded up to a nanosecond.
    #[inline]
    pub(super) fn time_for(&self, units: u128) -> Duration {
        duration(div_up(units, self.rate))
    }

    /// Units gained in `span`, rounded down.
    pub(super) fn gained(&self, span: Duration) -> u128 {
        span.as_nanos().saturating_mul(u128::from(self.rate.get()))
    }

    /// Units less than those of a nanosecond: what rounding a time up to a nanosecond can hide.
    pub(super) const fn less_than_a_nanosecond(&self) -> u128 {
        (self.rate.get() as u128).saturating_sub(1)
    }

    /// How many units more than the capacity can be owed at any time that a clock can say, so that `TAT` fits.
    pub(super) const fn headroom(&self) -> u128 {
        u128::MAX.saturating_sub(product(u64::MAX, self.rate.get())).saturating_sub(self.capacity)
    }

    /// Whole tokens in a full bucket and `gained` units.
    pub(super) fn full_and(&self, gained: u128) -> u128 {
        div_down(gained, self.token).saturating_add(u128::from(self.burst))
    }

    /// The wait until `tokens` more than are there can be taken out, rounded up: what calls in a line, one after the
    /// other, need in total. It may be more than the burst.
    pub(crate) fn time_for_all(&self, state: Tat, now: u64, tokens: u128) -> Duration {
        let units = tokens.saturating_mul(u128::from(self.token.get()));
        self.time_for(self.deficit(state, now).saturating_add(units).saturating_sub(self.capacity))
    }

    /// Takes `cost` of an earlier charge back, as if it had never been charged.
    ///
    /// `since` is what the charges *after* that one do to a bucket. Without it a refund could give back too much: of
    /// tokens that came in the meantime, those that a full bucket would have lost are not there without the charge
    /// either. So the state becomes `max(TAT - c·a, since)`, exactly what it would be (the recurrence above is
    /// `TAT = max` over all calls `j` of `n_j` plus the costs from `j` on; `since` is the part of it after the call).
    /// A cost above what was charged gives back at most everything before `since`.
    ///
    /// ```
    /// use tidegate_core::algorithm::token_bucket::{Since, TokenBucket};
    /// use tidegate_core::Step;
    ///
    /// // Five at most, one a second. Five are taken at 0, two more at 3 s.
    /// let second = 1_000_000_000;
    /// let bucket = TokenBucket::new("1/s burst 5".parse()?);
    /// let (mut state, mut since) = (bucket.fresh(), Since::default());
    /// bucket.charge(&mut state, 0, 5);
    /// bucket.charge(&mut state, 3 * second, 2);
    /// since.charge(&bucket, 3 * second, 2);
    ///
    /// // The first call is cancelled. There are three, not five: the two of 3 s stay taken.
    /// bucket.refund(&mut state, since, 5);
    /// assert_eq!(bucket.look(&state, 3 * second, 0).remaining(), 3);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn refund(&self, state: &mut Tat, since: Since, cost: u64) {
        state.0 = state.0.saturating_sub(self.units(cost)).max(since.tat.0);
    }

    pub(super) fn take_back(state: &mut Tat, units: u128) {
        state.0 = state.0.saturating_sub(units);
    }

    /// Units in a full bucket.
    #[inline]
    pub(super) const fn capacity(&self) -> u128 {
        self.capacity
    }
}

impl Step for TokenBucket {
    type State = Tat;

    fn fresh(&self) -> Tat {
        Tat::default()
    }

    // Always inlined: a caller who reads only whether the call is allowed then pays for no division. Left to itself the
    // compiler looks at the size before it finds out what is not read, and the step takes twice as long.
    #[inline(always)]
    fn look(&self, state: &Tat, now: u64, cost: u64) -> Decision {
        let deficit = self.deficit(*state, now);
        let needed = deficit.saturating_add(self.units(cost));
        if needed <= self.capacity {
            Decision::Allowed {
                start_after: Duration::ZERO,
                remaining: self.tokens(self.capacity.saturating_sub(needed)),
                reset_after: self.time_for(needed),
            }
        } else if cost > self.burst {
            Decision::Never { capacity: self.burst }
        } else {
            Decision::Rejected {
                retry_after: self.time_for(needed.saturating_sub(self.capacity)),
                remaining: self.tokens(self.capacity.saturating_sub(deficit)),
                reset_after: self.time_for(deficit),
            }
        }
    }

    #[inline]
    fn charge(&self, state: &mut Tat, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let now = product(now, self.rate.get());
        state.0 = state.0.max(now).saturating_add(self.units(cost));
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        Some(self.full_and(self.gained(span)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::tests::{Row, check_table};

    const MS: u64 = 1_000_000;

    #[test]
    fn token_bucket_follows_the_worked_example() {
        // B = 3, r = 2/s: three at once, the fourth needs 0.5 s.
        let bucket = TokenBucket::new("2/s burst 3".parse().unwrap());
        check_table(
            &bucket,
            &[
                Row::allowed(0, 1, 2),
                Row::allowed(0, 1, 1),
                Row::allowed(0, 1, 0),
                Row::rejected(0, 1, 500 * MS),
                Row::rejected(250 * MS, 1, 250 * MS),
                Row::rejected(500 * MS - 1, 1, 1),
                Row::allowed(500 * MS, 1, 0),
                Row::rejected(500 * MS, 1, 500 * MS),
                Row::rejected(500 * MS, 3, 1500 * MS),
                Row::never(500 * MS, 4, 3),
                Row::allowed(500 * MS, 0, 0),
                Row::allowed(2000 * MS, 3, 0),
            ],
        );
    }

    #[test]
    fn token_bucket_stays_as_full_in_proportion_when_its_quota_changes() {
        let quotas = ["10/s", "1/s burst 10", "10/s burst 1000", "3 per 7s burst 2", "1/s burst 1"];
        for (from, into) in quotas.iter().flat_map(|from| quotas.iter().map(move |into| (from, into))) {
            let [old, new] = [from, into].map(|text| TokenBucket::new(text.parse().unwrap()));
            for now in [0, 1, 333_333_333, 5000 * MS] {
                for spent in 0..=old.burst {
                    let (state, _) = old.step(old.fresh(), now, spent);
                    let carried = new.carry_over(&old, state, now);
                    let after = new.look(&carried, now, 0).remaining();
                    assert_eq!(
                        after,
                        (old.burst - spent) * new.burst / old.burst,
                        "{from} to {into}, {spent} spent"
                    );
                    // A part of a token has come back, or a whole burst.
                    for later in [now, now + 1, now + 123_456_789, now + 100_000 * MS] {
                        let carried = new.carry_over(&old, state, later);
                        let back = old.carry_over(&new, carried, later);
                        assert!(old.deficit(back, later) >= old.deficit(state, later), "{from} to {into}");
                        if from == into {
                            assert_eq!(old.deficit(back, later), old.deficit(state, later));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn token_bucket_refund_in_any_order_lets_the_next_call_in_at_once() {
        // Three are taken at 0 from a bucket for one: they would run at 0, 1 and 2 s. Whichever order they are
        // cancelled in, one token is there afterwards, as before.
        let bucket = TokenBucket::new("1/s burst 1".parse().unwrap());
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut state = bucket.fresh();
            let mut held = [true; 3];
            (0..3).for_each(|_| bucket.charge(&mut state, 0, 1));
            for cancelled in order {
                held[cancelled] = false;
                let mut since = Since::default();
                held[cancelled..].iter().filter(|held| **held).for_each(|_| since.charge(&bucket, 0, 1));
                bucket.refund(&mut state, since, 1);
            }
            assert_eq!(state, bucket.fresh(), "{order:?}");
        }
    }

    #[test]
    fn the_largest_quotas_carry_over_without_overflow() {
        let largest = "9223372036854775807/ns";
        let slowest = "1 per 30000w burst 1000000000";
        for (from, into) in [(largest, slowest), (slowest, largest), (largest, largest), (slowest, slowest)] {
            let [old, new] = [from, into].map(|text| TokenBucket::new(text.parse().unwrap()));
            let (state, _) = old.step(old.fresh(), u64::MAX, 1);
            let carried = new.carry_over(&old, state, u64::MAX);
            let expected = u128::from(old.burst - 1) * u128::from(new.burst) / u128::from(old.burst);
            assert_eq!(u128::from(new.look(&carried, u64::MAX, 0).remaining()), expected);
        }
    }

    #[test]
    fn token_bucket_refund_never_gives_back_what_a_full_bucket_would_have_lost() {
        let bucket = TokenBucket::new("1/s burst 5".parse().unwrap());
        let mut state = bucket.fresh();
        bucket.charge(&mut state, 0, 5);
        // Ten seconds later the bucket is full again: the refund changes nothing.
        let mut late = state;
        bucket.refund(&mut late, Since::default(), 5);
        assert_eq!(bucket.look(&late, 10_000 * MS, 0).remaining(), 5);
        // At 3 s two more are taken. Without the first call there would be three left, and so there are.
        bucket.charge(&mut state, 3000 * MS, 2);
        let mut since = Since::default();
        since.charge(&bucket, 3000 * MS, 2);
        bucket.refund(&mut state, since, 5);
        assert_eq!(bucket.look(&state, 3000 * MS, 0).remaining(), 3);
    }

    #[test]
    fn token_bucket_runs_join() {
        let bucket = TokenBucket::new("3/s burst 5".parse().unwrap());
        let run = |calls: &[(u64, u64)]| {
            let mut run = Since::default();
            calls.iter().for_each(|&(now, cost)| run.charge(&bucket, now, cost));
            run
        };
        let calls = [(0, 5), (10, 1), (5000 * MS, 2), (5001 * MS, 0), (6000 * MS, 3)];
        for at in 0..=calls.len() {
            assert_eq!(run(&calls[..at]).then(run(&calls[at..])), run(&calls), "{at}");
        }
    }

    #[test]
    fn token_bucket_step_is_one_number() {
        assert_eq!(size_of::<Tat>(), 16);
    }
}
