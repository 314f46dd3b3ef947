//! What this process has of one bucket: its lease, and the calls that wait for the store. No clock and no I/O.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate::Decision;
use tidegate_core::lease::{Ask, Borrower, Returned, Terms};
use tokio::sync::oneshot;

use crate::Made;
use crate::answer::Answer;
use crate::fault::Fault;
use crate::lend::Told;
use crate::units::Units;

/// What all desks of a limiter have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) terms: Terms,
    pub(super) units: Units,
    /// For how long at most a rejection is held against later calls.
    pub(super) remember_ns: u64,
}

/// Times are nanoseconds since the limiter was made.
#[derive(Debug, Default)]
pub(super) struct Desk {
    borrower: Borrower,
    waiting: VecDeque<Waiting>,
    /// The cost of all that wait.
    waiting_cost: u64,
    /// When the ask under way was sent, what for, and how many of those who wait it is for.
    asked: Option<(u64, Ask, usize)>,
    /// The last rejection by the store, and when it was asked.
    rejected: Option<(Decision, u64)>,
    /// Whether somebody sees to it that what is not spent is given back.
    watched: bool,
}

#[derive(Debug)]
struct Waiting {
    cost: u64,
    answer: oneshot::Sender<Result<Answer, Fault>>,
}

/// How a call goes.
#[derive(Debug)]
pub(super) enum Way {
    Answered(Answer),
    /// The store has to be asked.
    Waits,
}

impl Desk {
    /// Decides a call by what is held and known here.
    pub(super) fn decide(&mut self, now: u64, cost: u64) -> Way {
        // Nobody overtakes those who wait.
        if self.waiting.is_empty() {
            if self.borrower.spend(now, cost) {
                return Way::Answered(allowed(self.borrower.held(now), Duration::ZERO, Made::Leased));
            }
            if let Some(answer) = self.recall(now, cost) {
                return Way::Answered(answer);
            }
        }
        Way::Waits
    }

    /// Puts a call at the end of those that wait.
    pub(super) fn wait(&mut self, cost: u64) -> oneshot::Receiver<Result<Answer, Fault>> {
        let (answer, answered) = oneshot::channel();
        self.waiting.push_back(Waiting { cost, answer });
        self.waiting_cost = self.waiting_cost.saturating_add(cost);
        answered
    }

    /// What to ask the store for now: if somebody waits, or if little is left of the lease.
    pub(super) fn ask(&mut self, rules: &Rules, now: u64) -> Option<(u64, Ask)> {
        let first = self.waiting.front().map_or(0, |waiting| waiting.cost);
        if first == 0 && !self.borrower.wants_more(now) {
            return None;
        }
        let held = self.borrower.held(now);
        let ask = self.borrower.ask(&rules.terms, now, first, self.waiting_cost)?;
        let mut room = held.saturating_add(ask.waiting);
        let fits = |waiting: &&Waiting| {
            let left = room.checked_sub(waiting.cost);
            room = left.unwrap_or(0);
            left.is_some()
        };
        let count = self.waiting.iter().take_while(fits).count();
        self.asked = Some((now, ask, count));
        Some((now, ask))
    }

    /// The store has answered the ask that was sent at `asked_at`. Says how many calls wait no more.
    pub(super) fn answered(&mut self, rules: &Rules, now: u64, asked_at: u64, told: &Told) -> usize {
        let Some((_, ask, asked)) = self.asked.take_if(|(at, ..)| *at == asked_at) else { return 0 };
        let wait = |cost| rules.units.decision(told.level.units, told.level.lag, rules.units.cost(cost));
        let answer = told.loan.ok_or_else(|| {
            let rejection = wait(ask.first);
            self.rejected = Some((rejection, asked_at));
            remembered(rejection, rules.remember_ns)
        });
        self.borrower.answer(&rules.terms, now, asked_at, answer);
        let waited = self.waiting.len();
        // Where the bucket had less than what waited, it is empty: who was asked for and cannot be paid is rejected.
        let short = told.loan.is_none_or(|loan| loan.tokens < ask.waiting);
        for _ in 0..if short { asked.max(1) } else { 0 } {
            let Some(waiting) = self.next() else { break };
            if waiting.answer.is_closed() {
                continue;
            }
            let answer = if self.borrower.spend(now, waiting.cost) {
                self.of_store(rules, now, told)
            } else {
                exact(wait(waiting.cost), rules, told)
            };
            // Whoever has left gets no answer; that is their affair.
            let _ = waiting.answer.send(Ok(answer));
        }
        while let Some(first) = self.waiting.front() {
            let cost = first.cost;
            let answer = if first.answer.is_closed() {
                None
            } else if self.borrower.spend(now, cost) {
                Some(self.of_store(rules, now, told))
            } else if let Some(answer) = self.recall(now, cost) {
                Some(answer)
            } else {
                break;
            };
            if let (Some(waiting), Some(answer)) = (self.next(), answer) {
                let _ = waiting.answer.send(Ok(answer));
            }
        }
        waited - self.waiting.len()
    }

    /// The ask that was sent at `asked_at` came to nothing, as far as is known. Says how many calls wait no more.
    pub(super) fn failed(&mut self, asked_at: u64, fault: &Fault) -> usize {
        if self.asked.take_if(|(at, ..)| *at == asked_at).is_none() {
            return 0;
        }
        self.borrower.give_up();
        let waited = self.waiting.len();
        while let Some(waiting) = self.next() {
            let _ = waiting.answer.send(Err(fault.clone()));
        }
        waited
    }

    /// When what is held should be given back, if nobody sees to that yet. Whoever is told sees to it from then on.
    pub(super) fn unwatched(&mut self, rules: &Rules) -> Option<u64> {
        if self.watched {
            return None;
        }
        let at = self.borrower.return_at(&rules.terms);
        self.watched = at.is_some();
        at
    }

    /// For who sees to it: when to come again, and what to give back now. If nothing is held, nobody sees to it any more.
    pub(super) fn look_after(&mut self, rules: &Rules, now: u64) -> (Option<u64>, Option<Returned>) {
        let due = self.borrower.return_at(&rules.terms).is_some_and(|at| at <= now);
        let returned = if due { self.borrower.give_back(now) } else { None };
        let next = self.borrower.return_at(&rules.terms);
        self.watched = next.is_some();
        (next, returned)
    }

    /// Gives back all that is held.
    pub(super) fn give_back(&mut self, now: u64) -> impl Iterator<Item = Returned> {
        // There are two leases at most.
        [self.borrower.give_back(now), self.borrower.give_back(now)].into_iter().flatten()
    }

    /// Whether it would not be missed.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        self.waiting.is_empty() && self.asked.is_none() && !self.watched && self.borrower.held(now) == 0
    }

    fn next(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.waiting_cost = self.waiting_cost.saturating_sub(waiting.cost);
        Some(waiting)
    }

    /// What the last rejection by the store says to this call.
    fn recall(&self, now: u64, cost: u64) -> Option<Answer> {
        self.borrower.refusal(now, cost)?;
        let (rejection, asked_at) = self.rejected?;
        let Decision::Rejected { retry_after, remaining, reset_after } = rejection else { return None };
        let since = Duration::from_nanos(now.saturating_sub(asked_at));
        let decision = Decision::Rejected {
            retry_after: retry_after.saturating_sub(since),
            remaining,
            reset_after: reset_after.saturating_sub(since),
        };
        Some(Answer { decision, limit: Some(0), shadow: None, remaining: Vec::new(), made: Made::Remembered })
    }

    /// A call that waited was paid.
    fn of_store(&self, rules: &Rules, now: u64, told: &Told) -> Answer {
        let left = rules.units.decision(told.level.units, told.level.lag, 0);
        let reset_after = match left {
            Decision::Allowed { reset_after, .. } => reset_after,
            _ => Duration::ZERO,
        };
        let held = self.borrower.held(now);
        let remaining = held.saturating_add(left.remaining());
        let remaining_of = vec![rules.units.tokens(told.level.units)];
        Answer { remaining: remaining_of, ..allowed(remaining, reset_after, Made::Exact) }
    }
}

fn allowed(remaining: u64, reset_after: Duration, made: Made) -> Answer {
    let decision = Decision::Allowed { start_after: Duration::ZERO, remaining, reset_after };
    Answer { decision, limit: Some(0), shadow: None, remaining: Vec::new(), made }
}

/// A call that waited was rejected.
fn exact(decision: Decision, rules: &Rules, told: &Told) -> Answer {
    let remaining = vec![rules.units.tokens(told.level.units)];
    Answer { decision, limit: Some(0), shadow: None, remaining, made: Made::Exact }
}

/// The rejection as it is held against later calls.
fn remembered(rejection: Decision, longest_ns: u64) -> Decision {
    match rejection {
        Decision::Rejected { retry_after, remaining, reset_after } => {
            let retry_after = retry_after.min(Duration::from_nanos(longest_ns));
            Decision::Rejected { retry_after, remaining, reset_after }
        }
        other => other,
    }
}
