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

impl TokenBucket {
    /// The bucket that `quota` describes.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let (token, rate) = quota.units();
        Self { token, rate, burst: quota.burst(), capacity: product(quota.burst(), token.get()) }
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
    fn token_bucket_step_is_one_number() {
        assert_eq!(size_of::<Tat>(), 16);
    }
}
