//! The windows as lists: every charge with its time, added up as the definition says.

use tidegate_core::Quota;

use super::{Definition, Exact, Verdict};

/// Every charge there was: when, and how much.
#[derive(Clone)]
struct Charges<Q>(Vec<(Q, Q)>);

impl<Q: Exact> Charges<Q> {
    /// The cost of the charges at the instants that `holds` names.
    fn cost(&self, holds: impl Fn(&Q) -> bool) -> Q {
        self.0.iter().filter(|(at, _)| holds(at)).fold(Q::zero(), |sum, (_, cost)| sum + cost.clone())
    }

    fn push(&mut self, now: &Q, cost: &Q) {
        self.0.push((now.clone(), cost.clone()));
    }
}

/// The number of the aligned window that holds `now`.
fn number<Q: Exact>(now: &Q, window: &Q) -> Q {
    Q::whole((now.clone() / window.clone()).down())
}

/// `N` in each window `floor(t / W)`.
#[derive(Clone)]
pub(super) struct FixedWindow<Q> {
    count: u64,
    window: Q,
    charges: Charges<Q>,
}

impl<Q: Exact> FixedWindow<Q> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { count: quota.count(), window: Q::whole(quota.per_ns().get()), charges: Charges(Vec::new()) }
    }
}

impl<Q: Exact + 'static> Definition<Q> for FixedWindow<Q> {
    fn look(&self, now: &Q, cost: &Q) -> Verdict<Q> {
        let count = Q::whole(self.count);
        let current = number(now, &self.window);
        let used = self.charges.cost(|at| number(at, &self.window) == current);
        let to_end = (current + Q::one()) * self.window.clone() - now.clone();
        let reset = |used: &Q| if used.is_zero() { Q::zero() } else { to_end.clone() };
        let after = used.clone() + cost.clone();
        if after <= count {
            let reset_after = reset(&after);
            Verdict::Allowed { start_after: Q::zero(), remaining: count - after, reset_after }
        } else if *cost > count {
            Verdict::Never { capacity: self.count }
        } else {
            let reset_after = reset(&used);
            Verdict::Rejected { retry_after: to_end.clone(), remaining: count - used, reset_after }
        }
    }

    fn charge(&mut self, now: &Q, cost: &Q) {
        self.charges.push(now, cost);
    }

    fn copy(&self) -> Box<dyn Definition<Q>> {
        Box::new(self.clone())
    }
}

/// `previous·(W - e)/W + current`, at most `N`.
#[derive(Clone)]
pub(super) struct SlidingWindow<Q> {
    count: u64,
    window: Q,
    charges: Charges<Q>,
}

impl<Q: Exact> SlidingWindow<Q> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { count: quota.count(), window: Q::whole(quota.per_ns().get()), charges: Charges(Vec::new()) }
    }

    /// What was charged in the window of that number.
    fn charged_in(&self, window: &Q) -> Q {
        self.charges.cost(|at| number(at, &self.window) == *window)
    }

    /// The first instant in window `number`, at which it holds `current` and the one before `previous`, at which the
    /// estimate is at most `most`; it may be the instant at which the next one begins. `None` if there is none.
    fn falls_to(&self, number: &Q, previous: &Q, current: &Q, most: &Q) -> Option<Q> {
        let start = number.clone() * self.window.clone();
        if current > most {
            return None;
        }
        let free = most.clone() - current.clone();
        if *previous <= free {
            return Some(start);
        }
        // previous·(W - e)/W = free
        Some(start + self.window.clone() - free * self.window.clone() / previous.clone())
    }
}

impl<Q: Exact + 'static> Definition<Q> for SlidingWindow<Q> {
    fn look(&self, now: &Q, cost: &Q) -> Verdict<Q> {
        let count = Q::whole(self.count);
        let this = number(now, &self.window);
        let current = self.charged_in(&this);
        let previous = if this.is_zero() { Q::zero() } else { self.charged_in(&(this.clone() - Q::one())) };
        let start = this.clone() * self.window.clone();
        let in_view = (start + self.window.clone() - now.clone()) / self.window.clone();
        let estimate = previous.clone() * in_view + current.clone();

        // As good as new once neither window that was charged is in view.
        let reset = |current: &Q| {
            let windows = if !current.is_zero() {
                Q::whole(2_u64)
            } else if !previous.is_zero() {
                Q::one()
            } else {
                return Q::zero();
            };
            (this.clone() + windows) * self.window.clone() - now.clone()
        };
        if estimate.clone() + cost.clone() <= count {
            let reset_after = reset(&(current + cost.clone()));
            let remaining = count - estimate - cost.clone();
            return Verdict::Allowed { start_after: Q::zero(), remaining, reset_after };
        }
        if *cost > count {
            return Verdict::Never { capacity: self.count };
        }
        let most = count.clone() - cost.clone();
        let next = this.clone() + Q::one();
        let instant = self
            .falls_to(&this, &previous, &current, &most)
            .or_else(|| self.falls_to(&next, &current, &Q::zero(), &most))
            .expect("an estimate falls to 0");
        Verdict::Rejected {
            retry_after: instant - now.clone(),
            remaining: count - estimate,
            reset_after: reset(&current),
        }
    }

    fn charge(&mut self, now: &Q, cost: &Q) {
        self.charges.push(now, cost);
    }

    fn copy(&self) -> Box<dyn Definition<Q>> {
        Box::new(self.clone())
    }
}

/// At most `N` in `(t - W, t]`.
#[derive(Clone)]
pub(super) struct SlidingLog<Q> {
    count: u64,
    window: Q,
    charges: Charges<Q>,
}

impl<Q: Exact> SlidingLog<Q> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { count: quota.count(), window: Q::whole(quota.per_ns().get()), charges: Charges(Vec::new()) }
    }

    /// The cost in `(now - W, now]`. Nothing is charged later than now.
    fn in_view(&self, now: &Q) -> Q {
        self.charges.cost(|at| at.clone() + self.window.clone() > *now)
    }

    /// The instants after `now` at which something leaves the window, in order.
    fn leaves<'a>(&'a self, now: &'a Q) -> impl Iterator<Item = Q> + 'a {
        self.charges
            .0
            .iter()
            .map(|(at, _)| at.clone() + self.window.clone())
            .filter(move |leaves| leaves > now)
    }
}

impl<Q: Exact + 'static> Definition<Q> for SlidingLog<Q> {
    fn look(&self, now: &Q, cost: &Q) -> Verdict<Q> {
        let count = Q::whole(self.count);
        let used = self.in_view(now);
        let last_leaves = self.leaves(now).last().map_or(Q::zero(), |last| last - now.clone());
        if used.clone() + cost.clone() <= count {
            Verdict::Allowed {
                start_after: Q::zero(),
                remaining: count - used - cost.clone(),
                reset_after: if cost.is_zero() { last_leaves } else { self.window.clone() },
            }
        } else if *cost > count {
            Verdict::Never { capacity: self.count }
        } else {
            let fits = self
                .leaves(now)
                .find(|instant| self.in_view(instant) + cost.clone() <= count)
                .expect("a window empties");
            Verdict::Rejected {
                retry_after: fits - now.clone(),
                remaining: count - used,
                reset_after: last_leaves,
            }
        }
    }

    fn charge(&mut self, now: &Q, cost: &Q) {
        self.charges.push(now, cost);
    }

    fn copy(&self) -> Box<dyn Definition<Q>> {
        Box::new(self.clone())
    }
}
