//! The budget of `--budget`: a file that all processes of the machine share which name it, or a bucket on a server that
//! those of many machines share.

use std::cell::RefCell;
use std::time::Duration;

use tidegate::budget::{BudgetError, Place};
use tidegate::{Budget, Decision};

use crate::store::{StoreBudget, StorePlace};

/// A budget, as the line asks it. It is asked under the lock of the line: a file takes microseconds, a server what a round trip
/// takes, and when it does not answer, its deadline until the breaker opens.
#[derive(Debug)]
pub(crate) enum SharedBudget {
    File(FileBudget),
    Store(StoreBudget),
}

impl SharedBudget {
    /// Why it could not be asked.
    pub(crate) fn fault(&self) -> String {
        match self {
            Self::File(budget) => budget.fault.borrow().clone().unwrap_or_default(),
            Self::Store(_) => String::new(),
        }
    }

    /// What it would answer now.
    pub(crate) fn look(&self, cost: u64) -> Result<Decision, Broken> {
        match self {
            Self::File(budget) => budget.noted(budget.budget.peek(cost)),
            Self::Store(budget) => Ok(budget.look_blocking(cost)),
        }
    }

    /// Whether a place in flight is free, or may be.
    pub(crate) fn has_place(&self) -> Result<bool, Broken> {
        match self {
            Self::File(budget) => budget.has_place(),
            Self::Store(_) => Ok(true),
        }
    }

    /// For how long it is no use to ask for a place and for tokens: a server that had no place a moment ago is left alone. `None`
    /// if that is not known.
    pub(crate) fn full_for(&self, cost: u64) -> Option<Duration> {
        match self {
            Self::Store(budget) if cost <= budget.quota().burst() => budget.full_for(),
            Self::File(_) | Self::Store(_) => None,
        }
    }

    /// How many calls may run at once, if that is limited.
    pub(crate) fn max_in_flight(&self) -> Option<u64> {
        match self {
            Self::File(budget) => budget.places,
            Self::Store(budget) => budget.max_in_flight(),
        }
    }

    /// Takes a place and the tokens, both or none.
    pub(crate) fn take(&self, cost: u64) -> Taken {
        match self {
            Self::File(budget) => budget.take(cost),
            Self::Store(budget) => {
                let Ok(place) = budget.enter_blocking() else { return Taken::Nothing };
                // A place without tokens is given back.
                if budget.check_blocking(cost).is_allowed() {
                    Taken::Charged(place.map(SharedPlace::Store))
                } else {
                    Taken::Nothing
                }
            }
        }
    }

    /// Waits a moment until the places are free for others that were let go here. To be called before the process ends.
    pub(crate) fn finish(&self) {
        match self {
            Self::File(_) => {}
            Self::Store(budget) => budget.finish_blocking(),
        }
    }
}

/// A place in flight of a budget. It comes free when this is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "it is held, and given back when it goes away")]
pub(crate) enum SharedPlace {
    File(Place),
    Store(StorePlace),
}

/// A budget in a file.
#[derive(Debug)]
pub(crate) struct FileBudget {
    budget: Budget,
    /// How many places in flight it has, if it has some.
    places: Option<u64>,
    /// Why it could not be asked the last time.
    fault: RefCell<Option<String>>,
}

/// What became of a call at the budget.
#[derive(Debug)]
pub(crate) enum Taken {
    Charged(Option<SharedPlace>),
    /// Others were first, or the budget is broken.
    Nothing,
}

/// The budget could not be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Broken;

impl FileBudget {
    pub(crate) const fn new(budget: Budget, places: Option<u64>) -> Self {
        Self { budget, places, fault: RefCell::new(None) }
    }

    fn has_place(&self) -> Result<bool, Broken> {
        let Some(places) = self.places else { return Ok(true) };
        self.noted(self.budget.running()).map(|running| running < places)
    }

    fn take(&self, cost: u64) -> Taken {
        let place = if self.places.is_some() {
            match self.noted(self.budget.enter()) {
                Ok(Some(place)) => Some(place),
                Ok(None) | Err(Broken) => return Taken::Nothing,
            }
        } else {
            None
        };
        match self.noted(self.budget.check_n(cost)) {
            Ok(decision) if decision.is_allowed() => Taken::Charged(place.map(SharedPlace::File)),
            Ok(_) | Err(Broken) => Taken::Nothing,
        }
    }

    fn noted<T>(&self, result: Result<T, BudgetError>) -> Result<T, Broken> {
        result.map_err(|error| {
            *self.fault.borrow_mut() = Some(error.to_string());
            Broken
        })
    }
}
