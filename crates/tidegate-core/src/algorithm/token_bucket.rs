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

use crate::arithmetic::{div_down, div_up, duration, narrow, product};
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

impl TokenBucket {
    /// The bucket that `quota` describes.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let (token, rate) = quota.units();
        Self { token, rate, burst: quota.burst(), capacity: product(quota.burst(), token.get()) }
    }

    /// The state of this bucket that holds the tokens which `old` holds in `state` at `now`, where the quota changes.
    ///
    /// Tokens that do not fit are lost, and what is less than a unit of this bucket is rounded away: a change brings
    /// no token, however often the quota is changed to and fro. So a bucket that was full is not full when its burst
    /// grows; the room that was added fills at the rate.
    ///
    /// Keeping the time until the bucket is full would bring tokens: an empty `10/s burst 10` is full in a second,
    /// and so would be `1/s burst 10` with 9 of 10 tokens.
    ///
    /// ```
    /// use tidegate_core::{Decision, Step, algorithm::TokenBucket};
    ///
    /// let (old, new) = (TokenBucket::new("10/s".parse()?), TokenBucket::new("1/s burst 1000".parse()?));
    /// let (state, _) = old.step(old.fresh(), 0, 4);
    /// let state = new.carry_over(&old, state, 0);
    /// assert_eq!(new.look(&state, 0, 0).remaining(), 6);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn carry_over(&self, old: &Self, state: Tat, now: u64) -> Tat {
        let level = old.capacity.saturating_sub(old.deficit(state, now));
        let whole = div_down(level, old.token);
        let part = narrow(level.saturating_sub(whole.saturating_mul(u128::from(old.token.get()))));
        // The whole tokens are at most a burst, and the part is less than a token: neither product overflows.
        let part = div_down(product(part, self.token.get()), old.token);
        let level = product(narrow(whole), self.token.get()).saturating_add(part).min(self.capacity);
        let deficit = self.capacity.saturating_sub(level);
        Tat(product(now, self.rate.get()).saturating_add(deficit))
    }

    /// What is missing from a full bucket at `now`, in units.
    #[inline]
    pub(super) fn deficit(&self, state: Tat, now: u64) -> u128 {
        state.0.saturating_sub(product(now, self.rate.get()))
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

    /// Units in a full bucket.
    #[inline]
    pub(super) const fn capacity(&self) -> u128 {
        self.capacity
    }

    /// The largest cost that can be allowed.
    #[inline]
    pub(super) const fn burst(&self) -> u64 {
        self.burst
    }
}

impl Step for TokenBucket {
    type State = Tat;

    fn fresh(&self) -> Tat {
        Tat::default()
    }

    #[inline]
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
        let now = product(now, self.rate.get());
        state.0 = state.0.max(now).saturating_add(self.units(cost));
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        Some(div_down(self.gained(span), self.token).saturating_add(u128::from(self.burst)))
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
    fn a_change_of_quota_keeps_the_tokens_and_brings_none() {
        let quotas = ["10/s", "1/s burst 10", "10/s burst 1000", "3 per 7s burst 2", "1/s burst 1"];
        for (from, into) in quotas.iter().flat_map(|from| quotas.iter().map(move |into| (from, into))) {
            let [old, new] = [from, into].map(|text| TokenBucket::new(text.parse().unwrap()));
            for now in [0, 1, 333_333_333, 5000 * MS] {
                for spent in 0..=old.burst {
                    let (state, _) = old.step(old.fresh(), now, spent);
                    // A part of a token has come back, or a whole burst.
                    for later in [now, now + 1, now + 123_456_789, now + 100_000 * MS] {
                        let before = old.look(&state, later, 0).remaining();
                        let carried = new.carry_over(&old, state, later);
                        let after = new.look(&carried, later, 0).remaining();
                        assert_eq!(after, before.min(new.burst), "{from} to {into}, {spent} spent");
                        let back = old.carry_over(&new, carried, later);
                        assert!(old.deficit(back, later) >= old.deficit(state, later), "{from} to {into}");
                        if from == into {
                            assert_eq!(old.deficit(back, later), old.deficit(state, later));
                        }
                    }
                }
            }
        }
        // An empty bucket does not become one with 990 tokens, as it would if its second until full were kept.
        let [old, new] = ["10/s", "10/s burst 1000"].map(|text| TokenBucket::new(text.parse().unwrap()));
        let (empty, _) = old.step(old.fresh(), 0, 10);
        assert_eq!(
            new.look(&new.carry_over(&old, empty, 0), 0, 1).retry_after(),
            Some(Duration::from_millis(100))
        );
    }

    #[test]
    fn the_largest_quotas_carry_over_without_overflow() {
        let largest = "9223372036854775807/ns";
        let slowest = "1 per 30000w burst 1000000000";
        for (from, into) in [(largest, slowest), (slowest, largest), (largest, largest), (slowest, slowest)] {
            let [old, new] = [from, into].map(|text| TokenBucket::new(text.parse().unwrap()));
            let (state, _) = old.step(old.fresh(), u64::MAX, 1);
            let carried = new.carry_over(&old, state, u64::MAX);
            assert_eq!(new.look(&carried, u64::MAX, 0).remaining(), (old.burst - 1).min(new.burst));
        }
    }

    #[test]
    fn token_bucket_step_is_one_number() {
        assert_eq!(size_of::<Tat>(), 16);
    }
}
