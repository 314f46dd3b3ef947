//! The side of a worker: what it spends, when it asks and for how much, and what it gives back.

use core::time::Duration;

use super::{Ask, Lease, Loan, Returned, Terms};
use crate::Decision;
use crate::arithmetic::{narrow, product};

/// What one worker holds of a bucket that it has to ask for, and what it learned.
///
/// All times are the worker's own: it counts the time to live from before it asked, so that its clock need not agree with
/// the bucket's, as long as both run at the same speed. One ask is under way at a time. It never holds more than
/// [`Terms::chunk`], or the cost of the first call that waits.
///
/// ```
/// use tidegate_core::lease::{Borrower, Lender, Terms};
///
/// let quota = "1000/s".parse()?;
/// let terms = Terms::within(quota, 50).expect("50 ms");
/// let lender = Lender::new(quota, terms);
/// let (mut lent, mut worker, mut asks) = (lender.fresh(), Borrower::default(), 0);
/// for now in (0..1_000_000_000).step_by(2_000_000) {
///     if !worker.spend(now, 1) {
///         asks += 1;
///         let ask = worker.ask(&terms, now, 1, 1).expect("none is under way");
///         worker.answer(&terms, now, now, lender.lend(&mut lent, now, ask));
///         assert!(worker.spend(now, 1));
///     }
/// }
/// // 500 calls a second, half of what is allowed: one ask in each 25 ms, not one for each call.
/// assert!(asks < 50, "{asks}");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Borrower {
    /// What is spent first.
    old: Held,
    new: Held,
    /// Tokens that a lease should bring beside what waits.
    chunk: u64,
    /// What was spent since the last ask, but for the calls that it was for.
    spent: u64,
    /// What those calls have not spent yet.
    owed: u64,
    asked_at: Option<u64>,
    /// The pace: what was spent, in `1/SCALE` tokens, and in which time, both fading.
    demand: u64,
    time: u64,
    under_way: Option<UnderWay>,
    /// Until when, and from which cost on, the bucket has said that it cannot pay.
    refused: (u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Held {
    lease: Lease,
    lent_at: u64,
    /// How many tokens were lent, if a chunk was among them: a quarter of it left is the time to ask again.
    lent: u64,
}

/// An ask whose answer has not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UnderWay {
    since: u64,
    /// What was asked for: for the first call that waits, and for all of them.
    first: u64,
    waiting: u64,
}

impl Borrower {
    /// Spends `cost` at `now` if it is held. Otherwise nothing changes. A call that costs nothing needs nothing.
    #[inline]
    pub fn spend(&mut self, now: u64, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let old = self.old.lease.at(now);
        let paid = if old >= cost {
            self.old.lease.spend(now, cost)
        } else {
            // What the older one lacks, the newer one pays.
            self.new.lease.spend(now, cost.saturating_sub(old))
                && (old == 0 || self.old.lease.spend(now, old))
        };
        if paid {
            let owed = self.owed.min(cost);
            self.owed = self.owed.saturating_sub(owed);
            self.spent = self.spent.saturating_add(cost.saturating_sub(owed));
        }
        paid
    }

    /// How long the bucket cannot pay `cost`, as far as is known: a call that comes before needs no ask.
    #[must_use]
    pub fn refusal(&self, now: u64, cost: u64) -> Option<Duration> {
        let (until, from) = self.refused;
        (now < until && cost.saturating_sub(self.held(now)) >= from)
            .then(|| Duration::from_nanos(until.saturating_sub(now)))
    }

    /// Whether it is time to ask for another chunk, before this one is spent: three quarters are.
    #[must_use]
    pub fn wants_more(&self, now: u64) -> bool {
        let lent = self.old.lent.max(self.new.lent);
        self.under_way.is_none() && lent > 0 && self.held(now) <= lent / 4
    }

    /// What to ask for when calls of cost `waiting` cannot be paid, the first of cost `first`; 0 when none waits.
    ///
    /// `None` if an ask is under way. The answer goes to [`Self::answer`]; if there is none in time, call
    /// [`Self::give_up`].
    pub fn ask(&mut self, terms: &Terms, now: u64, first: u64, waiting: u64) -> Option<Ask> {
        if self.under_way.is_some() {
            return None;
        }
        self.learn(terms, now, waiting);
        if self.old.lease.at(now) == 0 {
            self.old = core::mem::take(&mut self.new);
        }
        // Two leases are live: the answer needs a place.
        let returned = if self.new.lease.at(now) > 0 { self.give_back(now) } else { None };
        let held = self.held(now);
        let first = first.saturating_sub(held);
        let room = terms.chunk.saturating_sub(held);
        let waiting = waiting.saturating_sub(held).min(room.max(first));
        let chunk = self.chunk.min(room.saturating_sub(waiting));
        self.under_way = Some(UnderWay { since: now, first, waiting });
        // What is held by now is spent by the calls that wait.
        self.old.lent = 0;
        Some(Ask { first, waiting, chunk, returned })
    }

    /// The answer to the ask that was sent at `asked_at`; `now` is when it came.
    ///
    /// What comes later than the time to live, or after [`Self::give_up`], is lost.
    pub fn answer(&mut self, terms: &Terms, now: u64, asked_at: u64, answer: Result<Loan, Decision>) {
        let Some(under_way) = self.under_way.filter(|under_way| under_way.since == asked_at) else { return };
        self.under_way = None;
        match answer {
            Ok(loan) => {
                self.refused = (0, 0);
                let mut lease = Lease::default();
                lease.renew(terms, asked_at, loan.tokens);
                if lease.at(now) > 0 {
                    let lent = if loan.tokens > under_way.waiting { loan.tokens } else { 0 };
                    self.new = Held { lease, lent_at: loan.lent_at, lent };
                }
            }
            Err(Decision::Rejected { retry_after, .. }) => {
                self.owed = 0;
                // The bucket was asked later than this: an ask that is sent then does not come too early.
                let until = asked_at.saturating_add(narrow(retry_after.as_nanos()));
                self.refused = (until, under_way.first);
            }
            Err(_) => self.owed = 0,
        }
    }

    /// The answer did not come in time. If the bucket lent something, it is lost.
    pub fn give_up(&mut self) {
        self.under_way = None;
        self.owed = 0;
    }

    /// When to give back what is left, if it is not spent before: after three quarters of the time to live, that it
    /// arrives within it. `None` if nothing is held.
    #[must_use]
    pub fn return_at(&self, terms: &Terms) -> Option<u64> {
        let at =
            |held: &Held| (held.lease.left > 0).then(|| held.lease.until.saturating_sub(terms.ttl_ns / 4));
        match (at(&self.old), at(&self.new)) {
            (Some(old), Some(new)) => Some(old.min(new)),
            (old, new) => old.or(new),
        }
    }

    /// Gives back what is left of the older lease, for an ask or to be sent alone; `None` if nothing can be spent. Called
    /// until then, nothing is left, as is right before the worker ends.
    pub fn give_back(&mut self, now: u64) -> Option<Returned> {
        if self.old.lease.at(now) == 0 {
            self.old = core::mem::take(&mut self.new);
        }
        let held = core::mem::take(&mut self.old);
        self.old = core::mem::take(&mut self.new);
        let tokens = held.lease.at(now);
        if tokens > held.lent / 2 {
            // More than half comes back: so much is not needed.
            self.demand /= 2;
        }
        (tokens > 0).then_some(Returned { tokens, lent_at: held.lent_at })
    }

    /// Tokens that can be spent at `now`.
    #[must_use]
    pub fn held(&self, now: u64) -> u64 {
        self.old.lease.at(now).saturating_add(self.new.lease.at(now))
    }

    /// Sizes the chunk by what was spent and what waits: as much as the horizon needs at that pace, or twice as much as
    /// before where that did not last so long. The last asks count a quarter less each; a pause counts as four horizons.
    ///
    /// The quotient of two sums, and not the mean of quotients: two calls that come together by chance are no pace.
    fn learn(&mut self, terms: &Terms, now: u64, waiting: u64) {
        let horizon = terms.horizon_ns();
        let pause = horizon.saturating_mul(4);
        let elapsed = self.asked_at.map_or(pause, |asked_at| now.saturating_sub(asked_at));
        let fresh = self.spent.saturating_add(waiting).saturating_mul(SCALE);
        self.demand = fade(self.demand).saturating_add(fresh);
        self.time = fade(self.time).saturating_add(elapsed.min(pause));
        let over = product(self.time.max(horizon).max(1), SCALE);
        let pace = narrow(product(self.demand, horizon).checked_div(over).unwrap_or(0));
        let did_not_last = waiting > 0 && elapsed < horizon;
        self.chunk = if did_not_last { pace.max(self.chunk.saturating_mul(2)) } else { pace };
        self.chunk = self.chunk.min(terms.chunk);
        (self.spent, self.owed, self.asked_at) = (0, waiting, Some(now));
    }
}

/// Parts of a token in which a pace is counted, so that it does not fade away in whole ones.
const SCALE: u64 = 256;

const fn fade(sum: u64) -> u64 {
    sum.saturating_sub(sum / 4)
}
