//! The limits of a line, decided together: all are charged, or none.

use alloc::vec::Vec;
use core::time::Duration;

use super::budget::Budget;
use super::cost::{Cost, MAX_LIMITS, Sum};
use super::{Refusal, Unsuitable};
use crate::{Algorithm, Decision, Kind};

/// At least one limit and at most [`MAX_LIMITS`].
#[derive(Debug, Clone)]
pub(super) struct Limits {
    budgets: Vec<Budget>,
}

impl Limits {
    pub(super) fn new(algorithms: &[Algorithm]) -> Result<Self, Unsuitable> {
        if algorithms.is_empty() || algorithms.len() > MAX_LIMITS {
            return Err(Unsuitable::Count { limits: algorithms.len() });
        }
        if let Some(algorithm) = algorithms.iter().find(|algorithm| algorithm.kind() == Kind::LeakyBucket) {
            return Err(Unsuitable::OwnQueue { kind: algorithm.kind() });
        }
        Ok(Self { budgets: algorithms.iter().map(|algorithm| Budget::new(*algorithm)).collect() })
    }

    /// Whole tokens in a limit; 0 in one that is not there.
    pub(super) fn level(&self, limit: usize, now: u64) -> u64 {
        self.budgets.get(limit).map_or(0, |budget| budget.look(now, 0).remaining())
    }

    /// The first limit that can never hold the cost. One that is not there holds nothing.
    pub(super) fn never(&self, now: u64, cost: Cost) -> Option<Refusal> {
        cost.each().find_map(|(limit, cost)| {
            let capacity = match self.budgets.get(limit).map(|budget| budget.look(now, cost)) {
                Some(Decision::Never { capacity }) => capacity,
                None if cost > 0 => 0,
                _ => return None,
            };
            Some(Refusal::Never { limit, cost, capacity })
        })
    }

    pub(super) fn allow(&self, now: u64, cost: Cost) -> bool {
        self.each(cost).all(|(budget, cost)| budget.look(now, cost).is_allowed())
    }

    /// The exact wait until all allow it, if nobody else is charged.
    pub(super) fn retry_after(&self, now: u64, cost: Cost) -> Duration {
        self.each(cost)
            .filter_map(|(budget, cost)| budget.look(now, cost).retry_after())
            .max()
            .unwrap_or_default()
    }

    /// The least wait until all allow it after `ahead` of others.
    pub(super) fn wait_at_least(&self, now: u64, ahead: &Sum, cost: Cost) -> Duration {
        let waits = self.each(cost).enumerate();
        waits
            .map(|(limit, (budget, cost))| budget.wait_at_least(now, ahead.of(limit), cost))
            .max()
            .unwrap_or_default()
    }

    pub(super) fn charge(&mut self, now: u64, number: u64, cost: Cost) {
        for (limit, budget) in self.budgets.iter_mut().enumerate() {
            budget.charge(now, number, cost.of(limit));
        }
    }

    /// Keeps an open charge that is made elsewhere.
    pub(super) fn note(&mut self, now: u64, number: u64, cost: Cost) {
        for (limit, budget) in self.budgets.iter_mut().enumerate() {
            budget.note(now, number, cost.of(limit));
        }
    }

    /// What `actual` is above an open charge, in each limit.
    pub(super) fn excess(&self, number: u64, actual: Cost) -> Cost {
        let excess = |(limit, budget): (usize, &Budget)| (limit, budget.excess(number, actual.of(limit)));
        let each = self.budgets.iter().enumerate().map(excess);
        each.fold(Cost::default(), |cost, (limit, excess)| cost.with(limit, excess))
    }

    /// The same, but in no limit more than it can hold.
    pub(super) fn at_most_full(&self, cost: Cost) -> Cost {
        let full = |(limit, (budget, of)): (usize, (&Budget, u64))| (limit, budget.at_most_full(of));
        self.each(cost).enumerate().map(full).fold(cost, |cost, (limit, of)| cost.with(limit, of))
    }

    /// Sets what is known of a limit: at `at` it was full again `reset_after` later.
    pub(super) fn set(&mut self, limit: usize, at: u64, reset_after: Duration) {
        if let Some(budget) = self.budgets.get_mut(limit) {
            budget.set(at, reset_after);
        }
    }

    pub(super) fn close(&mut self, number: u64) -> bool {
        // Each must be told, so this does not stop at the first.
        self.budgets.iter_mut().filter_map(|budget| budget.close(number).then_some(())).count() > 0
    }

    pub(super) fn settle(&mut self, now: u64, number: u64, actual: Cost) -> bool {
        let budgets = self.budgets.iter_mut().enumerate();
        budgets
            .filter_map(|(limit, budget)| budget.settle(now, number, actual.of(limit)).then_some(()))
            .count()
            > 0
    }

    fn each(&self, cost: Cost) -> impl Iterator<Item = (&Budget, u64)> {
        self.budgets.iter().zip(cost.each().map(|(_, cost)| cost))
    }
}
