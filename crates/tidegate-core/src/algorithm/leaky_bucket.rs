//! The leaky bucket as a queue: calls go in at any pace and come out at a rate.
//!
//! **Definition.** The backlog `W` drains at `r`: `W = max(0, W - r·elapsed)`. A call of cost `c` is accepted iff
//! `W + c <= B + Q`, where `Q` is the queue; then `W = W + c`, and the call starts after `max(0, W - B)/r`. A full
//! queue rejects. With a longest wait `D`, the queue is also at most `r·D`. A cost above `B` is never accepted, however
//! long the queue: all of it starts in one instant, and more than `B` must not.
//!
//! **Promise.** Of the calls *started* in any closed interval of length `t`, the cost is at most `B + r·t`, and if
//! more than one whole token can come in `a` nanoseconds (`b` above 1 in the token bucket's terms), less than
//! `B + r·(t + 1 ns)`, since a start is rounded up to a nanosecond. It is the token bucket's twin, with the same `W`
//! (what the token bucket calls its deficit). Where the token bucket says "no, come
//! back in 0.3 s", this one says "yes, start in 0.3 s", so nobody has to come back, and the order is kept. Nobody
//! waits longer than `Q/r`. Worst case: `10/s burst 10` starts 20 in one second; with `burst 1` one call each 0.1 s.
//!
//! **State.** One number, as for the [token bucket](super::token_bucket): the time in units at which the backlog is
//! gone.
//!
//! **Worked example.** `2/s burst 1` with a queue of 2: four calls at 0. The first starts at once, the second after
//! 0.5 s, the third after 1 s, and the fourth is rejected: in 0.5 s there is a place.
//!
//! **Not promised.** That accepted work is bounded by `B + r·t` when it *arrives* (that is `B + Q + r·t`), or that a
//! caller who went away frees its place: the queue here is arithmetic, it holds no callers.
//!
//! **Source.** Turner 1986 (as the token bucket); as a queue that shapes, Tanenbaum, *Computer Networks*, 5th ed.,
//! section 5.4.2. Elsewhere the name also means a meter that refuses: that is the token bucket.

use core::time::Duration;

use super::token_bucket::{Tat, TokenBucket};
use crate::{Decision, Quota, Step};

/// A leaky bucket for one quota, with a bounded queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    bucket: TokenBucket,
    /// The queue in tokens, and the longest wait, as they were asked for.
    tokens: u64,
    max_wait: Duration,
    /// How far the backlog may go above the capacity, in units: the queue and the longest wait, whichever is less.
    queue: u128,
}

impl LeakyBucket {
    /// The bucket that `quota` describes, where up to `queue` of cost may wait.
    ///
    /// With `queue` 0 nothing waits, and the decisions are those of the token bucket. However long the queue, no call
    /// waits longer than a [`Duration`] can say, since that start could not be told; and for a rate that is a fraction of
    /// two numbers near 2⁶⁴, the queue is no longer than 128 bits can count.
    #[must_use]
    pub fn new(quota: Quota, queue: u64) -> Self {
        let bucket = TokenBucket::new(quota);
        let room = bucket.units(queue).min(bucket.headroom());
        Self { bucket, tokens: queue, max_wait: Duration::MAX, queue: room }.with_max_wait(Duration::MAX)
    }

    /// The bucket of another quota with a queue of as many tokens and the same longest wait.
    pub(super) fn with_quota(self, quota: Quota) -> Self {
        Self::new(quota, self.tokens).with_max_wait(self.max_wait)
    }

    /// The same bucket where no call waits longer than `max_wait`; a call that would is rejected at once.
    #[must_use]
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Self {
            max_wait: self.max_wait.min(max_wait),
            queue: self.queue.min(self.bucket.gained(max_wait)),
            ..self
        }
    }
}

impl Step for LeakyBucket {
    type State = Tat;

    fn fresh(&self) -> Tat {
        Tat::default()
    }

    #[inline]
    fn look(&self, state: &Tat, now: u64, cost: u64) -> Decision {
        let backlog = self.bucket.deficit(*state, now);
        let needed = backlog.saturating_add(self.bucket.units(cost));
        let burst = self.bucket.capacity();
        let room = burst.saturating_add(self.queue);
        if cost > self.bucket.burst() {
            Decision::Never { capacity: self.bucket.burst() }
        } else if needed <= room {
            Decision::Allowed {
                start_after: self.bucket.time_for(needed.saturating_sub(burst)),
                remaining: self.bucket.tokens(room.saturating_sub(needed)),
                reset_after: self.bucket.time_for(needed),
            }
        } else {
            Decision::Rejected {
                retry_after: self.bucket.time_for(needed.saturating_sub(room)),
                remaining: self.bucket.tokens(room.saturating_sub(backlog)),
                reset_after: self.bucket.time_for(backlog),
            }
        }
    }

    #[inline]
    fn charge(&self, state: &mut Tat, now: u64, cost: u64) {
        self.bucket.charge(state, now, cost);
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        // A start time is rounded up to a nanosecond, so two starts may be less than that closer than they are exactly.
        let hidden = self.bucket.less_than_a_nanosecond();
        Some(self.bucket.full_and(self.bucket.gained(span).saturating_add(hidden)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::tests::{Row, check_table};

    const MS: u64 = 1_000_000;

    #[test]
    fn leaky_bucket_follows_the_worked_example() {
        let bucket = LeakyBucket::new("2/s burst 1".parse().unwrap(), 2);
        check_table(
            &bucket,
            &[
                Row::starts(0, 1, 0, 2),
                Row::starts(0, 1, 500 * MS, 1),
                Row::starts(0, 1, 1000 * MS, 0),
                Row::rejected(0, 1, 500 * MS),
                Row::rejected(500 * MS - 1, 1, 1),
                Row::starts(500 * MS, 1, 1000 * MS, 0),
                Row::never(500 * MS, 2, 1),
            ],
        );
    }

    #[test]
    fn leaky_bucket_promises_no_start_that_it_cannot_tell() {
        let bucket = LeakyBucket::new("1 per 1000000000s".parse().unwrap(), u64::MAX);
        let mut state = bucket.fresh();
        bucket.charge(&mut state, 0, u64::MAX / 1_000_000_000);
        assert!(bucket.look(&state, 0, 1).is_allowed());
        bucket.charge(&mut state, 0, 1);
        // It would start after more than 2^64 seconds.
        assert!(!bucket.look(&state, 0, 1).is_allowed());
    }

    #[test]
    fn leaky_bucket_counts_the_longest_queue_to_the_end_of_the_clock() {
        // Two large numbers without a common factor: a call is 2^63 units and more, a nanosecond nearly as many.
        let quota =
            Quota::new(8_148_511_216_354_612_675, Duration::from_nanos(14_601_146_804_166_825_288)).unwrap();
        let bucket = LeakyBucket::new(quota, u64::MAX);
        let (mut state, mut accepted, mut last) = (bucket.fresh(), 0_u128, 0);
        while let Decision::Allowed { start_after, .. } = bucket.look(&state, u64::MAX, 1 << 60) {
            bucket.charge(&mut state, u64::MAX, 1 << 60);
            accepted += 1 << 60;
            let above = accepted.saturating_sub(u128::from(quota.burst()));
            let exact = (above * quota.per().as_nanos()).div_ceil(u128::from(quota.count()));
            assert_eq!(start_after.as_nanos(), exact);
            assert!(start_after.as_nanos() >= last);
            last = start_after.as_nanos();
        }
        assert!(accepted >= u128::from(quota.burst()));
    }

    #[test]
    fn leaky_bucket_refuses_at_once_what_would_wait_too_long() {
        let bucket =
            LeakyBucket::new("2/s burst 1".parse().unwrap(), 100).with_max_wait(Duration::from_millis(750));
        check_table(
            &bucket,
            &[
                Row::starts(0, 1, 0, 1),
                Row::starts(0, 1, 500 * MS, 0),
                // It would start after 1 s; in 0.25 s it would start after 0.75 s.
                Row::rejected(0, 1, 250 * MS),
                Row::starts(250 * MS, 1, 750 * MS, 0),
            ],
        );
    }
}
