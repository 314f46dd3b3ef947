//! Taking a charge back when nobody has watched what was charged after it.
//!
//! An exact refund of a token bucket ([`TokenBucket::refund`](super::TokenBucket::refund)) needs `since`, what the charges
//! after the call alone would leave. A table of many keys has no room for that, so here `since` is bounded from above. Let
//! the call of cost `c` be made at `n`, with `A` the `TAT` right after it; let `R` units of earlier charges have been
//! taken back since, and let `n'` be now. Later charges that stand add up to `S`, and
//!
//! ```text
//! since <= n' + S             each was made at n' or before
//! S     <= TAT - A + R        TAT >= A + S - R, with equality unless the bucket was full in between
//! S     <= TAT - n - c·a      the same, where all that was before the call has been taken back
//! ```
//!
//! So `max(TAT - c·a, n' + min of both)` is at least what an exact refund leaves: what comes back is
//!
//! ```text
//! min(c·a, max(A - R - n', n + c·a - n'))
//! ```
//!
//! or nothing where that is negative. A refund made so is never too much, also after others of its kind. It is exact where
//! no charge came after the call or the bucket was at no time full since; else at most the refill between call and
//! refund is missing, and less than a nanosecond of it for the rounding of `reset_after`.
//!
//! Example: `10/s burst 20`, a token is 100 ms. Full, one call at 0, refused by the service behind at 1 ms: 99 ms of its
//! 100 come back, since without it the bucket would have been full and lost the 1 ms: there are 20 again.

use core::time::Duration;

use super::token_bucket::TokenBucket;

/// A charge that is to be taken back, and what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charged {
    /// When the call was decided.
    pub at: u64,
    /// What it cost.
    pub cost: u64,
    /// The `reset_after` of its decision.
    pub reset_after: Duration,
    /// At least the units of charges to the same state before `at` that were taken back since; `None` if that is not known.
    pub earlier: Option<u128>,
}

impl Charged {
    /// The units that come back at `now` to a bucket of `token` units a token and `rate` units a nanosecond.
    #[must_use]
    pub fn units(&self, token: u64, rate: u64, now: u64) -> u128 {
        let rate = u128::from(rate);
        let cost = u128::from(self.cost).saturating_mul(u128::from(token));
        let passed = u128::from(now.saturating_sub(self.at)).saturating_mul(rate);
        let alone = cost.saturating_sub(passed);
        // The wait was rounded up to a nanosecond; here it counts as the least that it can have been.
        let owed = match (self.earlier, self.reset_after.as_nanos().checked_sub(1)) {
            (Some(earlier), Some(ns)) => {
                ns.saturating_mul(rate).saturating_add(1).saturating_sub(earlier).saturating_sub(passed)
            }
            _ => 0,
        };
        cost.min(alone.max(owed))
    }

    pub(super) fn units_in(&self, bucket: &TokenBucket, now: u64) -> u128 {
        self.units(bucket.token_units().get(), bucket.rate_units().get(), now)
    }
}
