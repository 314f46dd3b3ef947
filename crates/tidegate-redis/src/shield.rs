//! What the store rejected a moment ago, so that a key at its limit does not cost a trip for each rejected call.
//!
//! A bucket that rejected a cost with a wait rejects every cost as large until then: tokens only come at the rate, and
//! others only take them. The wait is counted from before the question was sent, so it ends here before it does there. It
//! is cut at the longest time that was chosen, after which the store is asked again. Bounded: [`ROOM`] buckets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Decision;

/// How many buckets are remembered. When all are in use, no other is until one ends.
const ROOM: usize = 4096;

#[derive(Debug)]
pub(crate) struct Shield {
    longest: Duration,
    /// How many there are, so that nobody takes the lock when there are none.
    len: AtomicUsize,
    rejected: Mutex<HashMap<Box<[u8]>, Rejected>>,
}

#[derive(Debug, Clone, Copy)]
struct Rejected {
    /// The smallest cost that was rejected, in units.
    cost: u64,
    /// When the question was sent.
    sent: Instant,
    /// When the store is asked again.
    until: Instant,
    retry_after: Duration,
    remaining: u64,
    reset_after: Duration,
}

impl Shield {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, len: AtomicUsize::new(0), rejected: Mutex::default() }
    }

    /// For how long at most a rejection is remembered.
    pub(crate) const fn longest(&self) -> Duration {
        self.longest
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Rejected>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that a bucket rejected `cost` units when asked at `sent`.
    pub(crate) fn remember(&self, key: &[u8], cost: u64, sent: Instant, decision: &Decision) {
        let Decision::Rejected { retry_after, remaining, reset_after } = *decision else { return };
        let until = sent + retry_after.min(self.longest);
        let now = Instant::now();
        if until <= now {
            return;
        }
        let mut rejected = self.lock();
        if let Some(before) = rejected.get(key)
            && before.until > now
            && (before.cost < cost || (before.cost == cost && before.until >= until))
        {
            // What is known already says more.
            return;
        }
        if rejected.len() >= ROOM {
            rejected.retain(|_, old| old.until > now);
        }
        if rejected.len() < ROOM || rejected.contains_key(key) {
            rejected.insert(key.into(), Rejected { cost, sent, until, retry_after, remaining, reset_after });
        }
        self.len.store(rejected.len(), Ordering::Relaxed);
    }

    /// The rejection that is known for `cost` units of this bucket.
    pub(crate) fn recall(&self, key: &[u8], cost: u64) -> Option<Decision> {
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = Instant::now();
        let mut rejected = self.lock();
        let known = *rejected.get(key)?;
        if known.until <= now {
            rejected.remove(key);
            self.len.store(rejected.len(), Ordering::Relaxed);
            return None;
        }
        drop(rejected);
        let since = now.saturating_duration_since(known.sent);
        (cost >= known.cost).then_some(Decision::Rejected {
            retry_after: known.retry_after.saturating_sub(since),
            remaining: known.remaining,
            reset_after: known.reset_after.saturating_sub(since),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn rejection(retry_after: Duration) -> Decision {
        Decision::Rejected { retry_after, remaining: 2, reset_after: retry_after }
    }

    #[test]
    fn a_rejection_holds_for_costs_as_large_and_not_for_smaller_ones() {
        let shield = Shield::new(LONG);
        shield.remember(b"a", 5, Instant::now(), &rejection(LONG));
        assert_eq!(shield.recall(b"a", 4), None);
        assert_eq!(shield.recall(b"b", 5), None);
        for cost in [5, 6] {
            let wait = shield.recall(b"a", cost).unwrap().retry_after().unwrap();
            assert!(wait <= LONG && wait > LONG - Duration::from_secs(60), "{wait:?}");
        }
        // A smaller one that is rejected says more.
        shield.remember(b"a", 3, Instant::now(), &rejection(LONG / 2));
        assert!(shield.recall(b"a", 4).is_some());
    }

    #[test]
    fn a_rejection_ends_with_its_wait_and_at_the_longest() {
        let now = Instant::now();
        let Some(before) = now.checked_sub(Duration::from_secs(10)) else { return };
        let shield = Shield::new(LONG);
        shield.remember(b"a", 1, before, &rejection(Duration::from_secs(9)));
        assert_eq!(shield.recall(b"a", 1), None);
        let shield = Shield::new(Duration::from_secs(9));
        shield.remember(b"a", 1, before, &rejection(LONG));
        assert_eq!(shield.recall(b"a", 1), None);
        shield.remember(b"a", 1, now, &rejection(LONG));
        assert!(shield.recall(b"a", 1).is_some());
    }

    #[test]
    fn the_memory_is_bounded() {
        let shield = Shield::new(LONG);
        for number in 0..ROOM + 10 {
            shield.remember(&number.to_le_bytes(), 1, Instant::now(), &rejection(LONG));
        }
        assert_eq!(shield.lock().len(), ROOM);
        assert!(shield.recall(&0_usize.to_le_bytes(), 1).is_some());
        assert!(shield.recall(&ROOM.to_le_bytes(), 1).is_none());
    }
}
