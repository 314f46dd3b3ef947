//! Leases: a worker takes a chunk out of a shared bucket, charged at once, and spends it without asking.
//!
//! **Definition.** A worker with nothing left asks the shared bucket for `chunk + cost`, if the bucket then still holds the
//! guard; otherwise for `cost` alone. What it got it may spend until `time to live` after it asked; what is left then is
//! lost.
//!
//! **Promise.** Every token is charged before it is spent, so in the long run no more is allowed than by the one bucket. In
//! a closed interval of length `t` it is at most `B + r·t + E`, where `E` is what was charged before the interval and is
//! spent within it: at most `W·chunk` for `W` workers, and at most `r·τ + B` by what the bucket can give in a time to live
//! `τ`. Near empty the chunks stop, and the decisions are those of the bucket: exact where it matters.
//!
//! **Cost.** A worker that has a lease touches nothing shared. A token can be lost to a worker that took it and does not
//! spend it within the time to live: at most `W·chunk` in each `τ`.
//!
//! **Worked example.** `1000/s burst 1000`, 4 workers, at most 40 too many: chunk 10. A worker that calls 500 times a second
//! asks once in 11 calls. With 20 tokens left in the bucket, the guard, it asks for each call.
//!
//! **Source.** Leases: Gray and Cheriton, *Leases*, SOSP 1989; of quota: Google's Doorman and Envoy's RLQS.

use core::time::Duration;

use crate::arithmetic::narrow;

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

    /// Tokens that a worker takes beside the cost of the call at hand.
    #[must_use]
    pub const fn chunk(&self) -> u64 {
        self.chunk
    }

    /// The level of the shared bucket below which no chunk is given: what all workers may hold, twice.
    #[must_use]
    pub const fn guard(&self) -> u64 {
        self.guard
    }

    /// What to charge for a call of `cost` when the shared bucket holds `level` tokens. A call that costs nothing takes
    /// nothing.
    #[inline]
    #[must_use]
    pub const fn ask(&self, level: u64, cost: u64) -> u64 {
        let with_chunk = cost.saturating_add(self.chunk);
        if cost > 0 && level >= with_chunk.saturating_add(self.guard) { with_chunk } else { cost }
    }
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

    /// Tokens left, which may be too old to be spent.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }
}
