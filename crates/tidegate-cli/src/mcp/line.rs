//! The waiting line for tool calls: several limits, some with a state for each tool or session, and places in flight.
//!
//! It is not the line of [`tidegate_core::queue`], in which everybody waits behind the head: there, a call that waits
//! for the limit of one tool would hold up the calls of all others. Here a call holds up those behind it only where
//! they need what it lacks for longest: each limit (of each key) is given in the order of arrival to those who lack
//! nothing else. So a call that waits for two limits waits for one after the other at most, and nobody starves.
//!
//! All limits and places are taken together, at the instant of the grant. There is no clock in it: time is passed in,
//! in nanoseconds.

mod classes;
mod order;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tidegate_core::Mode;

use self::classes::Classes;
use self::order::{Ahead, Lack};
use super::limits::{Rule, Subject};
use super::shared::{SharedBudget, SharedPlace, Taken};

/// How long a cancelled call keeps its place when it is not answered. The server may have stopped it without a word, or
/// not at all.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// When to look again after others were faster at a shared budget, in nanoseconds.
const AGAIN: u64 = 1_000_000;

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) calls: usize,
    /// The bytes of all messages that wait.
    pub(crate) bytes: usize,
    pub(crate) max_wait: Duration,
}

/// A number for a call, never used again.
pub(crate) type Ticket = u64;

/// What became of a call that came.
#[derive(Debug, PartialEq)]
pub(crate) enum Joined<T> {
    /// It may start.
    Granted(Ticket, T, Option<Shadow>),
    Waiting(Ticket),
    Refused(T, Refusal),
}

/// What happened to a call that waited.
#[derive(Debug, PartialEq)]
pub(crate) enum Event<T> {
    Granted(Ticket, T, Option<Shadow>),
    Refused(T, Refusal),
    /// A cancelled call in flight was not answered within [`GRACE`]: its places are free.
    Abandoned(Ticket),
}

/// A limit in shadow mode that would not have let the call start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shadow {
    pub(crate) limit: usize,
}

/// Why a call does not start: the limit that it lacks most of, and how long it would have to wait at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) limit: Option<usize>,
    pub(crate) wait: Duration,
    pub(crate) why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its cost is above the capacity.
    Never { capacity: u64 },
    /// The line is full.
    Full,
    /// The quota does not let it start in time.
    Late,
    /// No place in flight came free in time.
    NoPlace,
    /// The tool has asked to be left alone for longer.
    Closed,
    /// A shared budget cannot be asked.
    Broken,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    class: usize,
    cost: u64,
    bytes: usize,
    deadline: u64,
    call: T,
}

/// A call in flight. The place of a shared budget comes free when this goes away.
#[derive(Debug)]
struct Running {
    class: usize,
    _place: Option<SharedPlace>,
}

#[derive(Debug)]
pub(crate) struct Line<T> {
    rules: Vec<Rule>,
    classes: Classes,
    room: Room,
    waiting: BTreeMap<Ticket, Waiting<T>>,
    /// Who waits of each class. Only the first can start next: what holds it up holds up the others.
    by_class: BTreeMap<usize, BTreeSet<Ticket>>,
    bytes: usize,
    running: HashMap<Ticket, Running>,
    /// When the places of cancelled calls come free, in order.
    graces: VecDeque<(u64, Ticket)>,
    next: Ticket,
}

impl<T> Line<T> {
    pub(crate) fn new(rules: Vec<Rule>, room: Room) -> Self {
        let classes = Classes::new(&rules);
        Self {
            rules,
            classes,
            room,
            waiting: BTreeMap::new(),
            by_class: BTreeMap::new(),
            bytes: 0,
            running: HashMap::new(),
            graces: VecDeque::new(),
            next: 0,
        }
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many calls are in flight.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// The calls that wait, in order.
    pub(crate) fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.values_mut().map(|waiting| &mut waiting.call)
    }

    /// Decides a call of `bytes` bytes: it starts, waits, or is refused if it cannot start in time.
    ///
    /// Who waits already and could start by now should have: [`Self::poll`] first.
    pub(crate) fn join(
        &mut self,
        now: u64,
        subject: &Subject,
        cost: u64,
        bytes: usize,
        call: T,
    ) -> Joined<T> {
        let class = self.classes.of(&self.rules, now, subject, |class| self.by_class.contains_key(&class));
        let lack = self.lacks_most(now, class, cost, Ahead::Ignored);
        if let Some((_, Lack::Capacity(_) | Lack::Broken)) = lack {
            return Joined::Refused(call, self.refusal(now, class, cost, Ahead::Ignored));
        }
        let ticket = self.next;
        self.next += 1;
        if lack.is_none()
            && !self.must_wait(now, class)
            && let Some(shadow) = self.grant(now, ticket, class, cost)
        {
            return Joined::Granted(ticket, call, shadow);
        }
        let refusal = self.refusal(now, class, cost, Ahead::All);
        if refusal.wait > self.room.max_wait || self.room.max_wait.is_zero() || refusal.why == Why::Broken {
            return Joined::Refused(call, refusal);
        }
        if self.waiting.len() >= self.room.calls || self.bytes.saturating_add(bytes) > self.room.bytes {
            return Joined::Refused(call, Refusal { why: Why::Full, ..refusal });
        }
        let deadline = now.saturating_add(nanoseconds(self.room.max_wait));
        self.bytes = self.bytes.saturating_add(bytes);
        self.classes.cells_mut(class, |cell| cell.waiting = cell.waiting.saturating_add(cost));
        self.by_class.entry(class).or_default().insert(ticket);
        self.waiting.insert(ticket, Waiting { ticket, class, cost, bytes, deadline, call });
        Joined::Waiting(ticket)
    }

    /// The next thing that happened to a waiting call by `now`; `None` when that is all.
    pub(crate) fn poll(&mut self, now: u64) -> Option<Event<T>> {
        while let Some(&(until, ticket)) = self.graces.front()
            && until <= now
        {
            self.graces.pop_front();
            if self.end(ticket) {
                return Some(Event::Abandoned(ticket));
            }
        }
        let scan = self.scan(now);
        if let Some(ticket) = scan.hopeless {
            return self.refuse(now, ticket);
        }
        if let Some(ticket) = scan.first {
            let first = self.waiting.get(&ticket)?;
            // Others may have been faster at a shared budget: then it is still in line.
            if let Some(shadow) = self.grant(now, ticket, first.class, first.cost) {
                return self.take(ticket).map(|first| Event::Granted(ticket, first.call, shadow));
            }
        }
        // All wait for the same time, so the first has the first deadline.
        let (&ticket, first) = self.waiting.first_key_value()?;
        if first.deadline > now { None } else { self.refuse(now, ticket) }
    }

    /// When [`Self::poll`] has something to tell if nothing else happens.
    pub(crate) fn next_event(&self, now: u64) -> Option<u64> {
        let grace = self.graces.front().map(|(until, _)| *until);
        let deadline = self.waiting.values().next().map(|first| first.deadline);
        let scan = self.scan(now);
        // It lost a race a moment ago.
        let again = scan.first.or(scan.hopeless).map(|_| now.saturating_add(AGAIN));
        [scan.next, again, grace, deadline].into_iter().flatten().min()
    }

    /// Takes a waiting call out, as if it had never come.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        self.take(ticket).map(|waiting| waiting.call)
    }

    /// A call in flight is no longer wanted: its place comes free when it is answered, or after [`GRACE`].
    pub(crate) fn cancel_running(&mut self, now: u64, ticket: Ticket) {
        self.graces.push_back((now.saturating_add(nanoseconds(GRACE)), ticket));
    }

    /// A call in flight has ended: its places are free. What it was charged stays. Whether it was in flight.
    pub(crate) fn end(&mut self, ticket: Ticket) -> bool {
        let running = self.running.remove(&ticket);
        if let Some(running) = &running {
            self.classes.ended(running.class);
        }
        running.is_some()
    }

    /// The tool wants no call for `wait`.
    pub(crate) fn close(&mut self, now: u64, tool: &str, wait: Duration) {
        self.classes.close(now, tool, now.saturating_add(nanoseconds(wait)));
    }

    /// Takes all waiting calls out, in order.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        tickets.into_iter().filter_map(|ticket| self.cancel(ticket)).collect()
    }

    /// Gives back all places of shared budgets, and waits a moment until others see it: the end.
    pub(crate) fn finish(&mut self) {
        self.running.clear();
        self.rules.iter().filter_map(|rule| rule.budget.as_ref()).for_each(SharedBudget::finish);
    }

    fn refuse(&mut self, now: u64, ticket: Ticket) -> Option<Event<T>> {
        let waiting = self.waiting.get(&ticket)?;
        let refusal = self.refusal(now, waiting.class, waiting.cost, Ahead::Nobody);
        self.take(ticket).map(|waiting| Event::Refused(waiting.call, refusal))
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.bytes = self.bytes.saturating_sub(waiting.bytes);
        self.classes.cells_mut(waiting.class, |cell| {
            cell.waiting = cell.waiting.saturating_sub(waiting.cost);
        });
        if let Some(tickets) = self.by_class.get_mut(&waiting.class) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.by_class.remove(&waiting.class);
            }
        }
        Some(waiting)
    }

    /// Charges all limits and takes all places, or none if others were faster at a shared budget. A limit in shadow mode is
    /// charged if it allows the call.
    fn grant(&mut self, now: u64, ticket: Ticket, class: usize, cost: u64) -> Option<Option<Shadow>> {
        let mut shadow = None;
        let mut place = None;
        let mut allowed = Vec::with_capacity(self.rules.len());
        for cell in self.classes.cells_of(class) {
            let rule = &self.rules[cell.rule];
            let allows = match &rule.budget {
                Some(budget) => match budget.take(cost) {
                    Taken::Charged(taken) => {
                        place = taken;
                        true
                    }
                    Taken::Nothing if rule.mode == Mode::Enforce => return None,
                    Taken::Nothing => false,
                },
                None => self.lack(now, cell, cost) == Lack::Nothing,
            };
            if allows {
                allowed.push(cell.rule);
            } else if shadow.is_none() {
                shadow = Some(Shadow { limit: cell.rule });
            }
        }
        self.classes.cells_mut(class, |cell| {
            if allowed.contains(&cell.rule) {
                cell.charge(now, cost);
            }
        });
        self.classes.started(class);
        self.running.insert(ticket, Running { class, _place: place });
        Some(shadow)
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "line/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "line/class_tests.rs"]
mod class_tests;
