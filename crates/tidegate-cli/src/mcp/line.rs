//! The waiting line for tool calls: several limits, some with a state for each tool, and places in flight.
//!
//! It is not the line of [`tidegate_core::queue`], in which everybody waits behind the head: there, a call that waits
//! for the limit of one tool would hold up the calls of all others. Here a call holds up those behind it only where
//! they need what it lacks for longest: each limit (of each tool) is given in the order of arrival to those who lack
//! nothing else. So a call that waits for two limits waits for one after the other at most, and nobody starves.
//!
//! All limits and places are taken together, at the instant of the grant. There is no clock in it: time is passed in,
//! in nanoseconds.

mod order;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tidegate_core::{State, Step as _};

use self::order::{Ahead, Lack};
use super::limits::Rule;

/// How many tools have states of their own; those that come later share one more. A server has tens of tools.
const MAX_TOOLS: usize = 1024;

/// How long a cancelled call keeps its place when it is not answered. The server may have stopped it without a word, or
/// not at all.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

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
}

/// What a limit has counted, for one tool or for all.
#[derive(Debug)]
struct Cell {
    state: State,
    running: u64,
    /// The costs of all that wait and are counted here.
    waiting: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    tool: usize,
    cost: u64,
    bytes: usize,
    deadline: u64,
    call: T,
}

#[derive(Debug)]
pub(crate) struct Line<T> {
    rules: Vec<Rule>,
    /// For each rule: one cell, or one for each tool.
    cells: Vec<Vec<Cell>>,
    tools: HashMap<Box<str>, usize>,
    room: Room,
    waiting: BTreeMap<Ticket, Waiting<T>>,
    /// Who waits for each tool. Only the first can start next: what holds it up holds up the others.
    by_tool: BTreeMap<usize, BTreeSet<Ticket>>,
    bytes: usize,
    /// The tool of each call in flight.
    running: HashMap<Ticket, usize>,
    /// When the places of cancelled calls come free, in order.
    graces: VecDeque<(u64, Ticket)>,
    next: Ticket,
}

impl<T> Line<T> {
    pub(crate) fn new(rules: Vec<Rule>, room: Room) -> Self {
        let cells = rules.iter().map(|_| Vec::new()).collect();
        let mut line = Self {
            rules,
            cells,
            tools: HashMap::new(),
            room,
            waiting: BTreeMap::new(),
            by_tool: BTreeMap::new(),
            bytes: 0,
            running: HashMap::new(),
            graces: VecDeque::new(),
            next: 0,
        };
        for (rule, cells) in line.rules.iter().zip(&mut line.cells) {
            // The first cell is that of all tools, or of the tools beyond the bound.
            cells.push(Cell { state: rule.algorithm.fresh(), running: 0, waiting: 0 });
        }
        line
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The calls that wait, in order.
    pub(crate) fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.values_mut().map(|waiting| &mut waiting.call)
    }

    /// Decides a call of `bytes` bytes: it starts, waits, or is refused if it cannot start in time.
    ///
    /// Who waits already and could start by now should have: [`Self::poll`] first.
    pub(crate) fn join(&mut self, now: u64, tool: &str, cost: u64, bytes: usize, call: T) -> Joined<T> {
        let tool = self.number(tool);
        let (ticket, lack) = (self.next, self.lacks_most(now, tool, cost, Ahead::Ignored));
        if let Some((limit, Lack::Capacity(capacity))) = lack {
            let why = Why::Never { capacity };
            return Joined::Refused(call, Refusal { limit: Some(limit), wait: Duration::ZERO, why });
        }
        self.next += 1;
        if lack.is_none() && !self.must_wait(now, tool) {
            let shadow = self.grant(now, ticket, tool, cost);
            return Joined::Granted(ticket, call, shadow);
        }
        let refusal = self.refusal(now, tool, cost, Ahead::All);
        if refusal.wait > self.room.max_wait || self.room.max_wait.is_zero() {
            return Joined::Refused(call, refusal);
        }
        if self.waiting.len() >= self.room.calls || self.bytes.saturating_add(bytes) > self.room.bytes {
            return Joined::Refused(call, Refusal { why: Why::Full, ..refusal });
        }
        let deadline = now.saturating_add(nanoseconds(self.room.max_wait));
        self.bytes = self.bytes.saturating_add(bytes);
        for rule in 0..self.rules.len() {
            let cell = self.cell(rule, tool);
            let sum = &mut self.cells[rule][cell].waiting;
            *sum = sum.saturating_add(cost);
        }
        self.by_tool.entry(tool).or_default().insert(ticket);
        self.waiting.insert(ticket, Waiting { ticket, tool, cost, bytes, deadline, call });
        Joined::Waiting(ticket)
    }

    /// The next thing that happened to a waiting call by `now`; `None` when that is all.
    pub(crate) fn poll(&mut self, now: u64) -> Option<Event<T>> {
        while let Some(&(until, ticket)) = self.graces.front()
            && until <= now
        {
            self.graces.pop_front();
            self.end(ticket);
        }
        if let Some(ticket) = self.scan(now).first {
            let waiting = self.take(ticket)?;
            let shadow = self.grant(now, ticket, waiting.tool, waiting.cost);
            return Some(Event::Granted(ticket, waiting.call, shadow));
        }
        // All wait for the same time, so the first has the first deadline.
        let (&ticket, first) = self.waiting.first_key_value()?;
        if first.deadline > now {
            return None;
        }
        let (tool, cost) = (first.tool, first.cost);
        let refusal = self.refusal(now, tool, cost, Ahead::Nobody);
        let waiting = self.take(ticket)?;
        Some(Event::Refused(waiting.call, refusal))
    }

    /// When [`Self::poll`] has something to tell if nothing else happens.
    pub(crate) fn next_event(&self, now: u64) -> Option<u64> {
        let grace = self.graces.front().map(|(until, _)| *until);
        let deadline = self.waiting.values().next().map(|first| first.deadline);
        [self.scan(now).next, grace, deadline].into_iter().flatten().min()
    }

    /// Takes a waiting call out, as if it had never come.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        self.take(ticket).map(|waiting| waiting.call)
    }

    /// A call in flight is no longer wanted: its place comes free when it is answered, or after [`GRACE`].
    pub(crate) fn cancel_running(&mut self, now: u64, ticket: Ticket) {
        self.graces.push_back((now.saturating_add(nanoseconds(GRACE)), ticket));
    }

    /// A call in flight has ended: its places are free. What it was charged stays.
    pub(crate) fn end(&mut self, ticket: Ticket) {
        let Some(tool) = self.running.remove(&ticket) else { return };
        for rule in 0..self.rules.len() {
            let cell = self.cell(rule, tool);
            let running = &mut self.cells[rule][cell].running;
            *running = running.saturating_sub(1);
        }
    }

    /// Takes all waiting calls out, in order.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        tickets.into_iter().filter_map(|ticket| self.cancel(ticket)).collect()
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.bytes = self.bytes.saturating_sub(waiting.bytes);
        for rule in 0..self.rules.len() {
            let cell = self.cell(rule, waiting.tool);
            let sum = &mut self.cells[rule][cell].waiting;
            *sum = sum.saturating_sub(waiting.cost);
        }
        if let Some(tickets) = self.by_tool.get_mut(&waiting.tool) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.by_tool.remove(&waiting.tool);
            }
        }
        Some(waiting)
    }

    /// The number of a tool, and cells for a new one.
    fn number(&mut self, tool: &str) -> usize {
        if let Some(number) = self.tools.get(tool) {
            return *number;
        }
        if self.tools.len() >= MAX_TOOLS {
            return 0;
        }
        for (rule, cells) in self.rules.iter().zip(&mut self.cells) {
            cells.push(Cell { state: rule.of(tool).fresh(), running: 0, waiting: 0 });
        }
        let number = self.tools.len() + 1;
        self.tools.insert(tool.into(), number);
        for rule in &mut self.rules {
            rule.note(tool, number);
        }
        number
    }

    /// Charges all limits and takes all places. A limit in shadow mode is charged if it allows the call.
    fn grant(&mut self, now: u64, ticket: Ticket, tool: usize, cost: u64) -> Option<Shadow> {
        let mut shadow = None;
        for limit in 0..self.rules.len() {
            let lacks = self.lack(now, limit, tool, cost) != Lack::Nothing;
            let cell = self.cell(limit, tool);
            if !lacks {
                self.rules[limit].numbered(tool).charge(&mut self.cells[limit][cell].state, now, cost);
            } else if shadow.is_none() {
                shadow = Some(Shadow { limit });
            }
            self.cells[limit][cell].running += 1;
        }
        self.running.insert(ticket, tool);
        shadow
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "line/tests.rs"]
mod tests;
