//! The budget of `--budget`: a file that all processes of the machine share which name it.

use std::cell::RefCell;

use tidegate::budget::{BudgetError, Place};
use tidegate::{Budget, Decision};

/// A budget in a file, as the line asks it.
#[derive(Debug)]
pub(crate) struct SharedBudget {
    budget: Budget,
    /// How many places in flight it has, if it has some.
    places: Option<u64>,
    /// Why it could not be asked the last time.
    fault: RefCell<Option<String>>,
}

/// What became of a call at the budget.
#[derive(Debug)]
pub(crate) enum Taken {
    Charged(Option<Place>),
    /// Others were first, or the budget is broken.
    Nothing,
}

/// The budget could not be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Broken;

impl SharedBudget {
    pub(crate) const fn new(budget: Budget, places: Option<u64>) -> Self {
        Self { budget, places, fault: RefCell::new(None) }
    }

    /// Why it could not be asked.
    pub(crate) fn fault(&self) -> String {
        self.fault.borrow().clone().unwrap_or_default()
    }

    /// What it would answer now.
    pub(crate) fn look(&self, cost: u64) -> Result<Decision, Broken> {
        self.noted(self.budget.peek(cost))
    }

    /// Whether a place in flight is free.
    pub(crate) fn has_place(&self) -> Result<bool, Broken> {
        let Some(places) = self.places else { return Ok(true) };
        self.noted(self.budget.running()).map(|running| running < places)
    }

    /// Takes a place and the tokens, both or none.
    pub(crate) fn take(&self, cost: u64) -> Taken {
        let place = if self.places.is_some() {
            match self.noted(self.budget.enter()) {
                Ok(Some(place)) => Some(place),
                Ok(None) | Err(Broken) => return Taken::Nothing,
            }
        } else {
            None
        };
        match self.noted(self.budget.check_n(cost)) {
            Ok(decision) if decision.is_allowed() => Taken::Charged(place),
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
