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

    /// What is missing from a full bucket at `now`, in units.
    #[inline]
    pub(crate) fn deficit(&self, state: Tat, now: u64) -> u128 {
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
