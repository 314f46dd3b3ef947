//! `CL.THROTTLE key max_burst count period [quantity]`: a token bucket for each key, whose quota comes with each call.
//!
//! `max_burst + 1` tokens fit into the bucket, and `count` of them come in `period` seconds. The answer is five integers: 0
//! allowed or 1 rejected; the capacity; whole tokens that are left, rounded down; seconds until this quantity would be
//! allowed, rounded up, or -1 when it is allowed or never can be; seconds until the bucket is full, rounded up.
//!
//! **Another quota for a key.** The bucket of a key is under the quota of the last call that asked for tokens and could
//! have had them. When a call names another one, the bucket stays as full in proportion as it was
//! ([`TokenBucket::carry_over`]), as with every limit of Tidegate whose numbers change: an empty bucket is empty, a full one
//! full, and changing to and fro brings no token. A call that is rejected changes the quota too, since the wait that it is
//! told is under its own. A call of quantity 0 changes nothing, and so does one that never can be allowed.
//!
//! **Memory.** A table of fixed size: see [`Table`].
//!
//! **Source.** The command and its answer are those of redis-cell (github.com/brandur/redis-cell); the arithmetic is that of
//! [`tidegate_core::algorithm::token_bucket`], in exact integers.

mod table;

use std::time::Duration;

use thiserror::Error;
use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Quota, QuotaError};

pub use table::Table;

/// The most bytes of a key. Keys are not stored; a longer one would only take longer to read.
pub const KEY_MAX: usize = 4096;

/// The longest time in which a bucket may fill, and a period, in nanoseconds: 292 years. With it, every time of an answer and
/// of the table fits 64 bits until the server has run for as long.
const FILL_MAX_NS: u64 = i64::MAX as u64;

const SECOND_NS: u64 = 1_000_000_000;

/// Why a call has no answer. It changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// A key longer than [`KEY_MAX`].
    #[error("the key is longer than {KEY_MAX} bytes")]
    KeyTooLong,
    /// `max_burst` below -1.
    #[error("max_burst is below -1; a bucket holds max_burst + 1 tokens")]
    BurstTooSmall,
    /// `max_burst` above 2⁶³ - 2.
    #[error("max_burst is too large; write at most 9223372036854775806")]
    BurstTooLarge,
    /// `count` below 1: nothing would ever be allowed again.
    #[error("count per period is below 1; write at least 1, and a longer period for a lower rate")]
    NoCount,
    /// `period` below 1 s.
    #[error("period is below 1 second; write at least 1, and a higher count for a higher rate")]
    NoPeriod,
    /// A period or a fill of more than 292 years.
    #[error("period, or the time in which an empty bucket fills, is above 292 years; write a higher rate")]
    TooSlow,
    /// `quantity` below 0.
    #[error("quantity is below 0; tokens are not given back")]
    NegativeQuantity,
}

/// The quota that a call names, ready to decide with. Making it costs more than a decision, and most clients name few: keep
/// the last one, and ask it whether it [is for](Self::is_for) the next call too.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    max_burst: i64,
    count: i64,
    period_s: i64,
    /// `None` for a bucket of no tokens.
    bucket: Option<(Quota, TokenBucket)>,
}

impl Terms {
    /// A bucket of `max_burst + 1` tokens, of which `count` come in `period_s` seconds.
    ///
    /// # Errors
    ///
    /// Numbers out of range: see [`ThrottleError`].
    pub fn new(max_burst: i64, count: i64, period_s: i64) -> Result<Self, ThrottleError> {
        let burst = match max_burst.checked_add(1) {
            None => return Err(ThrottleError::BurstTooLarge),
            Some(burst) => u64::try_from(burst).map_err(|_| ThrottleError::BurstTooSmall)?,
        };
        let above_zero = |number: i64| u64::try_from(number).ok().filter(|&number| number > 0);
        let count_wide = above_zero(count).ok_or(ThrottleError::NoCount)?;
        let period_ns = above_zero(period_s).ok_or(ThrottleError::NoPeriod)?.checked_mul(SECOND_NS);
        let period_ns = period_ns.filter(|&ns| ns <= FILL_MAX_NS).ok_or(ThrottleError::TooSlow)?;
        let bucket = match burst {
            0 => None,
            _ => {
                let fill_ns = (u128::from(burst) * u128::from(period_ns)).div_ceil(u128::from(count_wide));
                if fill_ns > u128::from(FILL_MAX_NS) {
                    return Err(ThrottleError::TooSlow);
                }
                let quota = quota(count_wide, period_ns, burst).map_err(|_| ThrottleError::TooSlow)?;
                Some((quota, TokenBucket::new(quota)))
            }
        };
        Ok(Self { max_burst, count, period_s, bucket })
    }

    /// Whether these are made of the same numbers.
    #[inline]
    #[must_use]
    pub const fn is_for(&self, max_burst: i64, count: i64, period_s: i64) -> bool {
        self.max_burst == max_burst && self.count == count && self.period_s == period_s
    }
}

fn quota(count: u64, period_ns: u64, burst: u64) -> Result<Quota, QuotaError> {
    Quota::new(count, Duration::from_nanos(period_ns))?.with_burst(burst)
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Whether the tokens were not there. Then none was taken.
    pub rejected: bool,
    /// The capacity in tokens: `max_burst + 1`.
    pub capacity: u64,
    /// Whole tokens that are left, rounded down.
    pub remaining: u64,
    /// Nanoseconds until this quantity would be allowed, when it is not now but can be: then there is no call of its key
    /// sooner that would be, and at that time it is, if nobody else takes tokens.
    pub retry_after_ns: Option<u64>,
    /// Nanoseconds until the bucket is full if nobody takes tokens.
    pub reset_after_ns: u64,
}

impl Answer {
    /// What a bucket of no tokens answers: nothing is ever allowed but to ask for nothing.
    const fn without_tokens(quantity: u64) -> Self {
        Self { rejected: quantity > 0, capacity: 0, remaining: 0, retry_after_ns: None, reset_after_ns: 0 }
    }

    /// The five integers of `CL.THROTTLE`, times in seconds, rounded up: who comes back when told is allowed.
    #[inline]
    #[must_use]
    pub fn integers(&self) -> [i64; 5] {
        let seconds = |ns: u64| whole(ns.div_ceil(SECOND_NS));
        [
            i64::from(self.rejected),
            whole(self.capacity),
            whole(self.remaining),
            self.retry_after_ns.map_or(-1, seconds),
            seconds(self.reset_after_ns),
        ]
    }
}

/// All numbers here are below 2⁶³, as [`Terms`] bounds them.
#[inline]
fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
