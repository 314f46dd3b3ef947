//! One bucket that threads share, exact or leased.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::algorithm::TokenBucket;
use tidegate_core::algorithm::token_bucket::Tat;
use tidegate_core::lease::{Lease, Terms};
use tidegate_core::{Decision, Quota, Step};

use crate::clock::Clock;
use crate::narrow::{NarrowBucket, Parts};

/// One token bucket, shared by threads: every decision is exact.
///
/// A rejection writes nothing; an allowed call is one compare-and-swap. Threads that call at the same time take turns on
/// one cache line, some 40 ns a call; where that is too much, see [`LeasedBucket`].
///
/// ```
/// use tidegate::{Bucket, Quota};
///
/// let bucket = Bucket::new("10/h burst 2".parse::<Quota>()?);
/// assert!(bucket.check().is_allowed());
/// assert!(bucket.check().is_allowed());
/// assert!(!bucket.check().is_allowed());
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub struct Bucket {
    cell: Cell,
    clock: Clock,
}

/// The state, in a cache line of its own.
#[repr(align(128))]
enum Cell {
    Narrow(NarrowBucket, AtomicU64),
    /// For a quota whose unit-time does not fit 64 bits.
    Wide(TokenBucket, Mutex<Tat>),
}

impl Bucket {
    /// A full bucket for `quota`.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self::with_clock(quota, Clock::new())
    }

    /// A full bucket with a clock of one's own, a [`ManualClock`](crate::clock::ManualClock) for example.
    #[must_use]
    pub fn with_clock(quota: Quota, clock: impl Into<Clock>) -> Self {
        let (bucket, clock) = (TokenBucket::new(quota), clock.into());
        let cell = match NarrowBucket::of(&bucket, bucket.rate_units().get(), clock.now_ns()) {
            Some(narrow) => Cell::Narrow(narrow, AtomicU64::new(0)),
            None => Cell::Wide(bucket, Mutex::new(Tat::default())),
        };
        Self { cell, clock }
    }

    /// Decides a call of cost 1 now, and charges it if it is allowed.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a call of `cost` now, and charges it if it is allowed.
    #[inline(always)]
    pub fn check_n(&self, cost: u64) -> Decision {
        self.check_at(cost, self.clock.now_ns())
    }

    /// Decides a call of `cost` at `now_ns` on the bucket's own clock, and charges it if it is allowed.
    #[inline(always)]
    pub fn check_at(&self, cost: u64, now_ns: u64) -> Decision {
        self.charge_at(now_ns, cost, |_| cost)
    }

    /// The decision for a call of `cost` now, without charging it.
    pub fn peek(&self, cost: u64) -> Decision {
        self.charge_at(self.clock.now_ns(), cost, |_| 0)
    }

    /// The time on the bucket's own clock, for [`Self::check_at`].
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Decides a call of `cost`, and if it is allowed charges `charge` of the tokens that are there: at least `cost` if
    /// anything, and no more than are there.
    ///
    /// Inlined always, that the numbers of the decision which the caller does not read are not computed.
    #[inline(always)]
    fn charge_at(&self, now_ns: u64, cost: u64, mut charge: impl FnMut(u64) -> u64) -> Decision {
        match &self.cell {
            Cell::Narrow(bucket, full_at) => {
                let mut seen = full_at.load(Ordering::Relaxed);
                let look = loop {
                    let look = bucket.look(seen, now_ns, cost);
                    if !bucket.allows(look) {
                        break look;
                    }
                    let charged = charge(bucket.level(look));
                    if charged == 0 {
                        break look;
                    }
                    let next = look.now + look.deficit + charged * bucket.token;
                    match full_at.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => break look,
                        Err(changed) => seen = changed,
                    }
                };
                bucket.decision(look, cost)
            }
            Cell::Wide(bucket, tat) => charge_wide(bucket, tat, now_ns, cost, charge).decision(),
        }
    }
}

#[cold]
#[inline(never)]
fn charge_wide(
    bucket: &TokenBucket,
    tat: &Mutex<Tat>,
    now_ns: u64,
    cost: u64,
    mut charge: impl FnMut(u64) -> u64,
) -> Parts {
    let mut tat = tat.lock().unwrap_or_else(PoisonError::into_inner);
    let decision = bucket.look(&tat, now_ns, cost);
    if decision.is_allowed() {
        let charged = charge(decision.remaining().saturating_add(cost));
        if charged > 0 {
            bucket.charge(&mut tat, now_ns, charged);
        }
    }
    decision.into()
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("next", &self.peek(0)).finish_non_exhaustive()
    }
}

/// One token bucket that threads share by leases: each takes a chunk, charged at once, and spends it without touching
/// anything shared.
///
/// In any interval it allows at most `max_overshoot` more than the bucket would; in the long run no more. Near empty there
/// are no chunks, and every decision is the bucket's own. The definition is in [`tidegate_core::lease`].
///
/// ```
/// use std::time::Duration;
/// use tidegate::{LeasedBucket, Quota};
///
/// // At most 100 more than the bucket would allow, among at most 4 threads.
/// let bucket = LeasedBucket::new("10000/s".parse::<Quota>()?, 100, 4, Duration::from_millis(10));
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         let mut handle = bucket.handle().expect("two of four handles");
///         scope.spawn(move || assert!((0..1000).all(|_| handle.check().is_allowed())));
///     }
/// });
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct LeasedBucket {
    bucket: Bucket,
    terms: Terms,
    handles: AtomicU64,
    handles_max: u64,
}

impl LeasedBucket {
    /// A full bucket for `quota`, for at most `handles` handles at one time that together allow at most `max_overshoot`
    /// more than it. What a handle does not spend within `ttl` is lost.
    #[must_use]
    pub fn new(quota: Quota, max_overshoot: u64, handles: u64, ttl: Duration) -> Self {
        Self::with_clock(quota, max_overshoot, handles, ttl, Clock::new())
    }

    /// The same with a clock of one's own.
    #[must_use]
    pub fn with_clock(
        quota: Quota,
        max_overshoot: u64,
        handles: u64,
        ttl: Duration,
        clock: impl Into<Clock>,
    ) -> Self {
        Self {
            bucket: Bucket::with_clock(quota, clock),
            terms: Terms::new(max_overshoot, handles, ttl),
            handles: AtomicU64::new(0),
            handles_max: handles,
        }
    }

    /// A handle for one thread; `None` when as many are out as were agreed. Dropping it gives its place back, and what it
    /// had left is lost.
    #[must_use]
    pub fn handle(&self) -> Option<Handle<'_>> {
        self.handles
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |handles| {
                (handles < self.handles_max).then_some(handles + 1)
            })
            .ok()?;
        Some(Handle { shared: self, lease: Lease::default() })
    }

    /// The exact bucket under the leases.
    #[must_use]
    pub const fn bucket(&self) -> &Bucket {
        &self.bucket
    }
}

/// One thread's part of a [`LeasedBucket`].
#[derive(Debug)]
pub struct Handle<'a> {
    shared: &'a LeasedBucket,
    lease: Lease,
}

impl Handle<'_> {
    /// Decides a call of cost 1 now.
    #[inline(always)]
    pub fn check(&mut self) -> Decision {
        self.check_at(1, self.shared.bucket.now_ns())
    }

    /// Decides a call of `cost` at `now_ns` on the bucket's own clock. Of a call that the lease covers, `remaining` is what
    /// is left of the lease, and `reset_after` zero: the shared bucket was not asked.
    #[inline(always)]
    pub fn check_at(&mut self, cost: u64, now_ns: u64) -> Decision {
        if self.lease.spend(now_ns, cost) {
            return Decision::Allowed {
                start_after: Duration::ZERO,
                remaining: self.lease.left(),
                reset_after: Duration::ZERO,
            };
        }
        self.ask(cost, now_ns).decision()
    }

    #[cold]
    #[inline(never)]
    fn ask(&mut self, cost: u64, now_ns: u64) -> Parts {
        let terms = self.shared.terms;
        let mut charged = cost;
        let decision = self.shared.bucket.charge_at(now_ns, cost, |level| {
            charged = terms.ask(level, cost);
            charged
        });
        if decision.is_allowed() && charged > cost {
            self.lease.renew(&terms, now_ns, charged - cost);
        }
        decision.into()
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.shared.handles.fetch_sub(1, Ordering::Relaxed);
    }
}
