//! Leases: a worker takes a chunk out of a shared bucket, charged at once, and spends it without asking.
//!
//! **Definition.** A worker that cannot pay a call asks the shared bucket for its cost and a chunk. It gets both if the
//! bucket then still holds the guard, otherwise the cost alone. What it got it may spend until a *time to live* `τ` after it
//! asked, on its own clock; what is left then is lost. It may give tokens back before, and the bucket takes back what it
//! lent less than `τ` ago, as if it had never been lent.
//!
//! **Promise.** Every token is charged before it is spent, so in the long run no more is allowed than by the one bucket. In
//! a closed interval of length `t` it is at most `B + r·t + E` with `E = min(r·τ, W·q)`, for `W` workers of which each
//! holds at most `q` at a time. The first does not depend on the workers: what is spent in an interval was charged in it
//! or in the `τ` before it. Near empty the chunks stop, and the decisions are those of the bucket: exact where it matters.
//!
//! **Cost.** A worker that has a lease touches nothing shared. Tokens are lost with a worker that crashes, with an answer that
//! does not arrive, and when they get too old: at most `q` each time, and the bucket refills them in `q/r`.
//!
//! **Two ways to agree.** Threads of a process, which can be counted, divide the overshoot: [`Terms::new`] and a
//! [`Lease`] each. Processes and machines, of which nobody knows how many there are, shorten the time: [`Terms::within`], a
//! [`Lender`] at the bucket, and a [`Borrower`] in each worker, which asks early, sizes its chunks by what it spends, and
//! gives back what it does not need.
//!
//! **Worked example.** `1000/s burst 1000`, 4 threads, at most 40 too many: chunk 10. A thread that calls 500 times a second
//! asks once in 11 calls. With 20 tokens left in the bucket, the guard, it asks for each call. For machines 40 too many are
//! 40 ms of the rate: `τ` is 40 ms, and no lease is above 20.
//!
//! **Source.** Leases: Gray and Cheriton, *Leases*, SOSP 1989; of quota: Google's Doorman and Envoy's RLQS.

mod borrower;
mod lender;

pub use borrower::Borrower;
pub use lender::{Ask, Lender, Lent, Loan, Returned};

use core::time::Duration;

use crate::Quota;
use crate::arithmetic::{div_down, div_up, narrow, product};

/// The shortest time to live between machines: a few calls to a store. Shorter leases would be dead on arrival.
const MIN_TTL_NS: u64 = 20_000_000;

/// The longest time to live between machines. Longer ones would leave the tokens of a worker that crashed out of reach for
/// as long.
const MAX_TTL_NS: u64 = 10_000_000_000;

/// For how long a chunk should last, at most: a busy worker then asks 20 times a second, whatever its load. Twice as much
/// halves the calls to the store, and doubles what idle workers hold.
const HORIZON_NS: u64 = 50_000_000;

/// What workers may take, chosen by the overshoot that is tolerable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    chunk: u64,
    guard: u64,
    ttl_ns: u64,
}

impl Terms {
    /// Terms under which `workers` workers allow at most `max_overshoot` more than one bucket would, and a chunk lives for
    /// `ttl`. An overshoot below the number of workers, or a `ttl` of 0, in which nothing can be spent, means chunks of 0:
    /// every call asks.
    #[must_use]
    pub fn new(max_overshoot: u64, workers: u64, ttl: Duration) -> Self {
        let chunk = if ttl.is_zero() { 0 } else { max_overshoot.checked_div(workers).unwrap_or(0) };
        let guard = chunk.saturating_mul(workers).saturating_mul(2);
        Self { chunk, guard, ttl_ns: narrow(ttl.as_nanos()) }
    }

    /// Terms under which any number of workers allow at most `max_overshoot` tokens more than one bucket of `quota` would.
    ///
    /// What the quota brings in the time to live is the overshoot: `τ = max_overshoot / r`, in whole microseconds and at most
    /// 10 s, and a worker holds at most half of it. `None` if that is less than 20 ms, which is too short for a store that is asked over a
    /// network: then ask for every call, or tolerate more.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::Quota;
    /// use tidegate_core::lease::Terms;
    ///
    /// let quota: Quota = "1000/s".parse()?;
    /// let terms = Terms::within(quota, 50).expect("50 tokens are 50 ms");
    /// assert_eq!((terms.ttl(), terms.chunk(), terms.overshoot(quota, 1000, 1)), (Duration::from_millis(50), 25, 50));
    /// assert_eq!(Terms::within(quota, 19), None);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn within(quota: Quota, max_overshoot: u64) -> Option<Self> {
        let (token, rate) = quota.units();
        let ttl_ns = narrow(div_down(product(max_overshoot, token.get()), rate)).min(MAX_TTL_NS);
        // Servers read their clocks in microseconds.
        let ttl_ns = ttl_ns.saturating_sub(ttl_ns % 1000);
        let earned = narrow(div_down(product(ttl_ns, rate.get()), token));
        (ttl_ns >= MIN_TTL_NS).then_some(Self { chunk: earned / 2, guard: 0, ttl_ns })
    }

    /// The most that `workers` workers allow beyond one bucket of `quota`, rounded up: `min(r·τ, W·q)`.
    ///
    /// `q` is [`Self::chunk`], or `most_cost`, the cost of the dearest call, where that is more.
    #[must_use]
    pub fn overshoot(&self, quota: Quota, workers: u64, most_cost: u64) -> u64 {
        let (token, rate) = quota.units();
        let earned = div_up(product(self.ttl_ns, rate.get()), token);
        narrow(earned.min(product(self.chunk.max(most_cost), workers)))
    }

    /// How long a worker may spend what it got: `τ`.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_ns)
    }

    /// For how long the chunk of a [`Borrower`] should last: half of the time to live, at most 50 ms.
    const fn horizon_ns(&self) -> u64 {
        let half = self.ttl_ns / 2;
        if half < HORIZON_NS { half } else { HORIZON_NS }
    }

    /// The most tokens that a worker takes beside the cost of the call at hand.
    #[must_use]
    pub const fn chunk(&self) -> u64 {
        self.chunk
    }

    /// The level of the shared bucket below which no chunk is given: what all workers may hold, twice. 0 where the workers
    /// are not counted; a [`Lender`] then finds the level out by what it lent.
    #[must_use]
    pub const fn guard(&self) -> u64 {
        self.guard
    }

    /// What to charge for a call of `cost` when the shared bucket holds `level` tokens. A call that costs nothing takes
    /// nothing.
    #[inline]
    #[must_use]
    pub const fn ask(&self, level: u64, cost: u64) -> u64 {
        if cost > 0 && spares(level, self.guard, cost, self.chunk) {
            cost.saturating_add(self.chunk)
        } else {
            cost
        }
    }
}

/// Whether a bucket that holds `level` still holds the guard after it gave `cost` and a chunk.
#[inline]
const fn spares(level: u64, guard: u64, cost: u64, chunk: u64) -> bool {
    level >= cost.saturating_add(chunk).saturating_add(guard)
}

/// What one worker holds.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::lease::{Lease, Terms};
///
/// let terms = Terms::new(40, 4, Duration::from_millis(100));
/// let mut lease = Lease::default();
/// assert!(!lease.spend(0, 1)); // nothing yet: ask the bucket
/// let asked = terms.ask(1000, 1);
/// assert_eq!(asked, 11);
/// lease.renew(&terms, 0, asked - 1);
/// assert!((0..10).all(|_| lease.spend(99_999_999, 1)));
/// assert!(!lease.spend(99_999_999, 1));
/// lease.renew(&terms, 99_999_999, 10);
/// assert!(!lease.spend(199_999_999, 1)); // too old
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lease {
    left: u64,
    until: u64,
}

impl Lease {
    /// Spends `cost` at `now` if the lease holds it. Otherwise the bucket must be asked, and the lease stays as it is.
    #[inline]
    pub const fn spend(&mut self, now: u64, cost: u64) -> bool {
        match self.left.checked_sub(cost) {
            Some(left) if now < self.until => {
                self.left = left;
                true
            }
            _ => false,
        }
    }

    /// Holds `tokens` that were charged to the bucket at `now`. What was left of the last lease is lost.
    #[inline]
    pub const fn renew(&mut self, terms: &Terms, now: u64, tokens: u64) {
        self.left = tokens;
        self.until = now.saturating_add(terms.ttl_ns);
    }

    /// Tokens that can be spent at `now`.
    const fn at(&self, now: u64) -> u64 {
        if now < self.until { self.left } else { 0 }
    }

    /// Tokens left, which may be too old to be spent.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }
}
