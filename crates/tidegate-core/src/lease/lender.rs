//! The side of the shared bucket: what it lends, and what it takes back.
//!
//! Where the bucket lives in a store, the store runs the same steps; this is their definition.

use core::time::Duration;

use super::{Terms, spares};
use crate::algorithm::TokenBucket;
use crate::algorithm::token_bucket::{Since, Tat};
use crate::arithmetic::{div_down, narrow};
use crate::{Decision, Quota, Step};

/// What a worker asks a shared bucket for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ask {
    /// The cost of the first call that waits for the answer; 0 if none does.
    pub first: u64,
    /// The cost of all calls that wait for it, the first among them.
    pub waiting: u64,
    /// Tokens that the worker would like beside it.
    pub chunk: u64,
    /// What it gives back on the way.
    pub returned: Option<Returned>,
}

/// Unspent tokens of one loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// How many.
    pub tokens: u64,
    /// The [`Loan::lent_at`] of their loan.
    pub lent_at: u64,
}

/// Tokens lent, charged to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// How many. Fewer than what waits if the bucket is empty with them: the calls that they do not pay, in their order,
    /// are rejected. 0 if nobody waits and the bucket is too low for a chunk.
    pub tokens: u64,
    /// When, on the clock of the bucket.
    pub lent_at: u64,
}

/// A bucket that lends.
///
/// ```
/// use tidegate_core::lease::{Ask, Lender, Returned, Terms};
///
/// let quota = "1000/s".parse()?;
/// let lender = Lender::new(quota, Terms::within(quota, 50).expect("50 ms"));
/// let mut lent = lender.fresh();
/// let ask = Ask { first: 1, waiting: 1, chunk: 9, returned: None };
/// let loan = lender.lend(&mut lent, 0, ask).expect("the bucket is full");
/// assert_eq!((loan.tokens, lender.level(&lent, 0)), (10, 990));
///
/// // Four are unspent. Later than the time to live they would not be taken back.
/// let returned = Returned { tokens: 4, lent_at: loan.lent_at };
/// assert_eq!(lender.take_back(&mut lent, 60_000_000, returned), 0);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lender {
    bucket: TokenBucket,
    terms: Terms,
}

/// The state of a [`Lender`]: the bucket, and for this time to live and the one before what it lent and how full it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lent {
    tat: Tat,
    /// The number of the present time to live, counted from the origin of the clock.
    period: u64,
    /// The most tokens in the bucket, rounded up: in this period, in the one before.
    most: [u64; 2],
    /// Tokens of chunks lent in this period and in the one before.
    chunks: [u64; 2],
}

impl Lender {
    /// A bucket of `quota` that lends under `terms`, from [`Terms::within`].
    #[must_use]
    pub fn new(quota: Quota, terms: Terms) -> Self {
        Self { bucket: TokenBucket::new(quota), terms }
    }

    /// The terms.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// A full bucket that lent nothing.
    #[must_use]
    pub fn fresh(&self) -> Lent {
        Lent { most: [self.bucket.burst(); 2], ..Lent::default() }
    }

    /// Whole tokens in the bucket at `now`.
    #[must_use]
    pub fn level(&self, lent: &Lent, now: u64) -> u64 {
        self.bucket.look(&lent.tat, now, 0).remaining()
    }

    /// Answers a worker: takes back what it returns, and lends what waits, with the chunk if the guard stays.
    ///
    /// Below the guard, which is what was lent in chunks in the last one to two times to live, as much of what waits is
    /// lent as is there.
    ///
    /// # Errors
    ///
    /// The decision about the first call, where the bucket cannot pay it: the wait holds for all calls that cost as much.
    pub fn lend(&self, lent: &mut Lent, now: u64, ask: Ask) -> Result<Loan, Decision> {
        if let Some(returned) = ask.returned {
            self.take_back(lent, now, returned);
        }
        self.look_back(lent, now);
        let first = self.bucket.look(&lent.tat, now, ask.first);
        if !first.is_allowed() {
            return Err(first);
        }
        let level = self.level(lent, now);
        let waiting = ask.waiting.max(ask.first);
        let [current, before] = lent.chunks;
        let chunk =
            if spares(level, current.saturating_add(before), waiting, ask.chunk) { ask.chunk } else { 0 };
        let tokens = waiting.saturating_add(chunk).min(level);
        if tokens > 0 {
            self.bucket.charge(&mut lent.tat, now, tokens);
        }
        lent.chunks[0] = current.saturating_add(chunk);
        Ok(Loan { tokens, lent_at: now })
    }

    /// Takes back unspent tokens, and tells how many the bucket got.
    ///
    /// None, if they were lent longer ago than the time to live. Otherwise those that the bucket had room for at all times
    /// since: where it was full in the meantime, or would have been with them, they would have been lost in it. Without
    /// this an early return could bring tokens twice, once by the refill and once by the return, and `E` would be
    /// `r·τ` and all that workers hold. The room is known for this time to live and the one before as a whole, and what
    /// was full a little before the loan counts too: fewer tokens may come back than could.
    ///
    /// A return is sent once. If it is not known whether it arrived, its tokens are lost.
    pub fn take_back(&self, lent: &mut Lent, now: u64, returned: Returned) -> u64 {
        self.look_back(lent, now);
        let Some(age) = now.checked_sub(returned.lent_at) else { return 0 };
        if Duration::from_nanos(age) > self.terms.ttl() {
            return 0;
        }
        let [current, before] = lent.most;
        let tokens = returned.tokens.min(self.bucket.burst().saturating_sub(current.max(before)));
        self.bucket.refund(&mut lent.tat, Since::default(), tokens);
        // As if they had not been lent: the bucket was fuller by as much.
        lent.most = [current.saturating_add(tokens), before.saturating_add(tokens)];
        tokens
    }

    /// Notes how full the bucket was until `now`. Between two looks it only gets fuller, so that looks are enough.
    fn look_back(&self, lent: &mut Lent, now: u64) {
        let missing = narrow(div_down(self.bucket.deficit(lent.tat, now), self.bucket.token_units()));
        let level = self.bucket.burst().saturating_sub(missing);
        let period = now.checked_div(self.terms.ttl_ns).unwrap_or(0);
        let [current, before] = lent.most;
        // A clock that went back stays in the period it was in.
        match period.saturating_sub(lent.period) {
            0 => lent.most = [current.max(level), before],
            1 => {
                lent.most = [level, current.max(level)];
                lent.chunks = [0, lent.chunks[0]];
            }
            _ => {
                lent.most = [level; 2];
                lent.chunks = [0; 2];
            }
        }
        lent.period = lent.period.max(period);
    }
}
