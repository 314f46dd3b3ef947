//! The buckets as levels: `T = min(B, T + r·elapsed)` and `W = max(0, W - r·elapsed)`.

use std::time::Duration;

use tidegate_core::Quota;

use super::{Definition, Exact, Verdict};

/// Tokens per nanosecond.
fn rate<Q: Exact>(quota: Quota) -> Q {
    Q::whole(quota.count()) / Q::whole(quota.per_ns().get())
}

fn min<Q: Exact>(a: Q, b: Q) -> Q {
    if b < a { b } else { a }
}

fn max<Q: Exact>(a: Q, b: Q) -> Q {
    if b > a { b } else { a }
}

/// A level that rises at the rate up to the capacity; a call takes its cost out.
#[derive(Clone)]
pub(super) struct TokenBucket<Q> {
    burst: u64,
    rate: Q,
    level: Q,
    at: Q,
}

impl<Q: Exact> TokenBucket<Q> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { burst: quota.burst(), rate: rate(quota), level: Q::whole(quota.burst()), at: Q::zero() }
    }

    fn level(&self, now: &Q) -> Q {
        let elapsed = now.clone() - self.at.clone();
        min(Q::whole(self.burst), self.level.clone() + self.rate.clone() * elapsed)
    }

    fn time_for(&self, tokens: Q) -> Q {
        tokens / self.rate.clone()
    }
}

impl<Q: Exact + 'static> Definition<Q> for TokenBucket<Q> {
    fn look(&self, now: &Q, cost: &Q) -> Verdict<Q> {
        let full = Q::whole(self.burst);
        let level = self.level(now);
        if *cost <= level {
            let left = level - cost.clone();
            Verdict::Allowed {
                start_after: Q::zero(),
                remaining: left.clone(),
                reset_after: self.time_for(full - left),
            }
        } else if *cost > full {
            Verdict::Never { capacity: self.burst }
        } else {
            Verdict::Rejected {
                retry_after: self.time_for(cost.clone() - level.clone()),
                remaining: level.clone(),
                reset_after: self.time_for(full - level),
            }
        }
    }

    fn charge(&mut self, now: &Q, cost: &Q) {
        self.level = self.level(now) - cost.clone();
        self.at = now.clone();
    }

    fn copy(&self) -> Box<dyn Definition<Q>> {
        Box::new(self.clone())
    }
}

/// A backlog that drains at the rate; a call adds its cost and starts when what is above the capacity has drained.
#[derive(Clone)]
pub(super) struct LeakyBucket<Q> {
    burst: u64,
    queue: u64,
    /// The longest wait, in nanoseconds.
    longest: u128,
    rate: Q,
    backlog: Q,
    at: Q,
}

impl<Q: Exact> LeakyBucket<Q> {
    pub(super) fn new(quota: Quota, queue: u64, max_wait: Option<Duration>) -> Self {
        Self {
            burst: quota.burst(),
            queue,
            longest: max_wait.unwrap_or(Duration::MAX).as_nanos(),
            rate: rate(quota),
            backlog: Q::zero(),
            at: Q::zero(),
        }
    }

    fn backlog(&self, now: &Q) -> Q {
        let elapsed = now.clone() - self.at.clone();
        max(Q::zero(), self.backlog.clone() - self.rate.clone() * elapsed)
    }

    fn time_for(&self, cost: Q) -> Q {
        cost / self.rate.clone()
    }

    /// The largest backlog: what may wait is bounded by the queue, and by what drains in the longest wait.
    fn room(&self) -> Q {
        let queue = Q::whole(self.queue);
        let wait = self.time_for(queue.clone()).up();
        let queue = if wait > self.longest { self.rate.clone() * Q::whole(self.longest) } else { queue };
        Q::whole(self.burst) + queue
    }
}

impl<Q: Exact + 'static> Definition<Q> for LeakyBucket<Q> {
    fn look(&self, now: &Q, cost: &Q) -> Verdict<Q> {
        let burst = Q::whole(self.burst);
        let before = self.backlog(now);
        let after = before.clone() + cost.clone();
        if *cost > burst {
            return Verdict::Never { capacity: self.burst };
        }
        let room = self.room();
        if after <= room {
            Verdict::Allowed {
                start_after: self.time_for(max(Q::zero(), after.clone() - burst)),
                remaining: room - after.clone(),
                reset_after: self.time_for(after),
            }
        } else {
            Verdict::Rejected {
                retry_after: self.time_for(after - room.clone()),
                remaining: room - before.clone(),
                reset_after: self.time_for(before),
            }
        }
    }

    fn charge(&mut self, now: &Q, cost: &Q) {
        self.backlog = self.backlog(now) + cost.clone();
        self.at = now.clone();
    }

    fn copy(&self) -> Box<dyn Definition<Q>> {
        Box::new(self.clone())
    }
}
