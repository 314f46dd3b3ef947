//! The script that lends: its text, its arguments and its reply.
//!
//! **Promise.** It does what [`Lender`](tidegate_core::lease::Lender) does at the same times, in whole microseconds; see
//! `lend/tests.rs`. It works on the bucket that a [`SharedLimiter`](crate::SharedLimiter) of the same name has, so those who
//! ask for every call and those who lease can share one.
//!
//! **State.** What has to be known of the last two times to live lives in a key beside the bucket, and longer than any loan.
//! If it is lost, no loan is taken back.

use tidegate_core::lease::{Ask, Loan};

use crate::runner::{Arguments, Script};
use crate::script::Level;
use crate::units::Units;

const SOURCE: &str = concat!(include_str!("bucket.lua"), include_str!("lend.lua"));

pub(crate) static SCRIPT: Script = Script::new(SOURCE);

/// What the bucket said to an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// What was lent; `None` if the first call that waits cannot be paid.
    pub(crate) loan: Option<Loan>,
    /// The bucket after the loan, or before the refusal.
    pub(crate) level: Level,
    /// Tokens that it took back.
    pub(crate) returned: u64,
}

/// The key of what was lent of a bucket. No name of a limit has a colon, so it is no bucket.
pub(crate) fn lent_key(bucket: &[u8]) -> Box<[u8]> {
    [bucket, b":lent"].concat().into()
}

/// What the script is run with, for a bucket at `key` whose loans live for `ttl_us`.
pub(crate) fn arguments(key: &[u8], units: &Units, ttl_us: u64, ask: &Ask) -> Arguments {
    let (returned, lent_at) = ask.returned.map_or((0, 0), |returned| (returned.tokens, returned.lent_at));
    let numbers = [
        units.capacity(),
        units.rate(),
        units.token(),
        ttl_us,
        ask.first,
        ask.waiting,
        ask.chunk,
        returned,
        lent_at / 1000,
    ];
    Arguments {
        keys: vec![key.into(), lent_key(key)],
        values: numbers.map(|number| number.to_string().into_bytes()).into(),
    }
}

/// The reply; `None` when a key holds something else, or it is none of this script's.
pub(crate) fn told(reply: &[i64]) -> Option<Told> {
    let &[paid, tokens, now_us, level, lag, returned] = reply else { return None };
    let number = |number: i64| u64::try_from(number).ok();
    let loan = Loan { tokens: number(tokens)?, lent_at: number(now_us)?.checked_mul(1000)? };
    Some(Told {
        loan: (paid == 1).then_some(loan),
        level: Level { units: number(level)?, lag: number(lag)? },
        returned: number(returned)?,
    })
}

#[cfg(test)]
mod tests;
