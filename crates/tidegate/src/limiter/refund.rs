//! Calls that were allowed, did nothing and are taken back.
//!
//! What comes back is computed in `tidegate_core::algorithm::unwatched`, which needs to know what was taken back of the same
//! key since the call. That is kept in a short list that only refunds touch; decisions pay nothing for it.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hash};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::Decision;
use tidegate_core::algorithm::Charged;

use super::{Limiter, Table, Tier};

/// How many refunds are remembered, of all keys. A call with more refunds since gets back its cost without what came in since
/// it was made. Each takes 48 bytes, and a refund looks at those since its call.
const REMEMBERED: usize = 1024;

/// How often what is there is looked at anew when others were charged in between. Each of them got further meanwhile; twice as
/// many would make no difference that was seen.
const TRIES: u32 = 64;

/// A call that was allowed and can be taken back or settled, once: from [`Limiter::receipt`], for [`Limiter::refund`] and
/// [`Limiter::settle`].
#[derive(Debug)]
#[must_use = "to take the call back, pass it to `Limiter::refund`"]
pub struct Receipt {
    hash: u64,
    tier: Tier,
    charged: Charged,
}

/// What was taken back lately.
#[derive(Debug, Default)]
pub(super) struct Refunds {
    recent: VecDeque<Recent>,
    /// The refunds up to then are not remembered any more.
    forgotten_to: Option<u64>,
    /// When a quota last changed. A call made before counted in other units, maybe, and stays charged.
    changed_at: Option<u64>,
}

#[derive(Debug)]
struct Recent {
    hash: u64,
    at: u64,
    units: u128,
}

impl Refunds {
    pub(super) fn lock(refunds: &Mutex<Self>) -> MutexGuard<'_, Self> {
        // Nothing in here panics between two changes that belong together.
        refunds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn changed(&mut self, now_ns: u64) {
        self.changed_at = Some(now_ns);
    }

    /// The units that were taken back of a key at `since` or later.
    fn since(&self, hash: u64, since: u64) -> Option<u128> {
        if self.forgotten_to.is_some_and(|to| to >= since) {
            return None;
        }
        let late = self.recent.iter().rev().take_while(|recent| recent.at >= since);
        Some(late.filter(|recent| recent.hash == hash).map(|recent| recent.units).sum())
    }

    fn remember(&mut self, recent: Recent) {
        if self.recent.len() == REMEMBERED {
            self.forgotten_to = self.recent.pop_front().map(|oldest| oldest.at);
        }
        self.recent.push_back(recent);
    }
}

impl Limiter {
    /// What [`Self::refund`] and [`Self::settle`] need to know of a call, which was decided for `key` at `charged_ns` as
    /// `decision` says.
    ///
    /// `None` if the call was not allowed, and for a limiter of several limits. One in shadow and a leaky bucket take nothing
    /// back.
    pub fn receipt(
        &self,
        key: &(impl Hash + ?Sized),
        cost: u64,
        charged_ns: u64,
        decision: &Decision,
    ) -> Option<Receipt> {
        let hash = self.hasher.hash_one(key);
        self.receipt_of(hash, self.tier_of(hash), cost, charged_ns, decision)
    }

    /// As [`Self::receipt`], for a call that was decided in `tier`.
    pub fn receipt_in(
        &self,
        tier: Tier,
        key: &(impl Hash + ?Sized),
        cost: u64,
        charged_ns: u64,
        decision: &Decision,
    ) -> Option<Receipt> {
        self.receipt_of(self.hasher.hash_one(key), self.own(tier), cost, charged_ns, decision)
    }

    fn receipt_of(
        &self,
        hash: u64,
        tier: Tier,
        cost: u64,
        charged_ns: u64,
        decision: &Decision,
    ) -> Option<Receipt> {
        let Decision::Allowed { reset_after, .. } = *decision else { return None };
        let charged = Charged { at: charged_ns, cost, reset_after, earlier: None };
        (self.limits == 1).then_some(Receipt { hash, tier, charged })
    }

    /// Takes back a call that was allowed and then did nothing, such as a request to a service that was not there: as if it had
    /// never been, or less. Whether anything came back is returned.
    ///
    /// It never gives back more than that, whatever was decided in between: what a full bucket would have lost stays lost. If
    /// others were charged in between and the bucket was nearly full, up to the refill since the call can be missing. Nothing
    /// comes back after the key, or another one of its set, lost its slot; after the quota changed; and where newcomers share
    /// a state. Its time has to be of the limiter's own clock.
    ///
    /// ```
    /// # use tidegate::{Limiter, Quota};
    /// let limiter = Limiter::new("1/hour burst 2".parse::<Quota>()?, 1000);
    /// let now = limiter.now_ns();
    /// let decision = limiter.check_at("ann", 2, now);
    /// let receipt = limiter.receipt("ann", 2, now, &decision).ok_or("it was allowed")?;
    /// assert!(!limiter.check("ann").is_allowed());
    ///
    /// // What was called was not there.
    /// assert!(limiter.refund(receipt));
    /// assert!(limiter.check("ann").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a call is taken back once")]
    pub fn refund(&self, receipt: Receipt) -> bool {
        let mut refunds = Refunds::lock(&self.refunds);
        let Receipt { hash, tier: Tier(tier), charged } = receipt;
        if refunds.changed_at.is_some_and(|changed_at| changed_at >= charged.at) {
            return false;
        }
        let charged = Charged { earlier: refunds.since(hash, charged.at), ..charged };
        // The time is read when the state is locked, so that no charge in it is of a later one.
        let now = || self.clock.now_ns();
        let refunded = match &self.table {
            Table::One(table) => table.refund(hash, tier, &charged, now),
            Table::Many(_) => None,
            Table::Sets(table) => table.refund(hash, tier, &charged, now),
        };
        let Some((at, units)) = refunded else { return false };
        refunds.remember(Recent { hash, at, units });
        true
    }

    /// Makes what a call was charged `cost` in place of what it was when it was allowed, such as the tokens that a model has
    /// used. Says how much of it was not there to be charged.
    ///
    /// What is too much comes back as by [`Self::refund`], as if the call had cost less from the beginning. What is too little is
    /// charged now, as far as it is there.
    ///
    /// ```
    /// # use tidegate::{Limiter, Quota};
    /// let limiter = Limiter::new("1/hour burst 100".parse::<Quota>()?, 1000);
    /// let now = limiter.now_ns();
    /// let decision = limiter.check_at("ann", 60, now);
    /// let receipt = limiter.receipt("ann", 60, now, &decision).ok_or("it was allowed")?;
    /// assert_eq!(limiter.settle(receipt, 15), 0);
    /// assert_eq!(limiter.peek("ann", 0).remaining(), 85);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a call is settled once")]
    pub fn settle(&self, receipt: Receipt, cost: u64) -> u64 {
        let Receipt { hash, tier, charged } = receipt;
        if let Some(more) = cost.checked_sub(charged.cost) {
            return more - self.charge_what_is_there(hash, tier, more);
        }
        // A call is as two at one instant, and the second is taken back.
        let less = Charged { cost: charged.cost - cost, ..charged };
        self.refund(Receipt { hash, tier, charged: less });
        0
    }

    /// Charges `cost` or as much of it as is there, and says how much.
    fn charge_what_is_there(&self, hash: u64, tier: Tier, cost: u64) -> u64 {
        for _ in 0..TRIES {
            let now = self.clock.now_ns();
            let there = self.decide(hash, tier, |_| 0, now, false).decision.remaining().min(cost);
            // Others may have been charged since.
            if there == 0 || self.check_hashed(hash, tier, there, now).is_allowed() {
                return there;
            }
        }
        0
    }
}
