//! The waiting line for tool calls: several limits, some with a state for each tool, and places in flight.
//!
//! It is not the line of [`tidegate_core::queue`], in which everybody waits behind the head: there, a call that waits
//! for the limit of one tool would hold up the calls of all others. Here a call holds up those behind it only where
//! they need what it lacks for longest: each limit (of each tool) is given in the order of arrival to those who lack
//! nothing else. So a call that waits for two limits waits for one after the other at most, and nobody starves.
//!
//! All limits and places are taken together, at the instant of the grant. There is no clock in it: time is passed in,
//! in nanoseconds.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tidegate_core::{Decision, Mode, State, Step as _};

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

/// What a call lacks of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Nothing,
    /// Tokens, until so many nanoseconds from now.
    Time(u64),
    Place,
    Capacity(u64),
}

impl Lack {
    /// For how long, as far as the clock can tell.
    const fn nanoseconds(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Time(wait) => wait,
            Self::Place | Self::Capacity(_) => u64::MAX,
        }
    }
}

/// How the line stands at an instant.
#[derive(Debug, Default)]
struct Scan {
    /// The first call that can start.
    first: Option<Ticket>,
    /// The next instant at which one can, if time is all it lacks.
    next: Option<u64>,
    /// The cells, by limit and tool, that those behind must leave to a call that waits for them.
    taken: HashSet<(usize, usize)>,
}

/// Whose tokens a wait is counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// What is there now.
    Ignored,
    /// The call is the first in line.
    Nobody,
    /// The call is the last.
    All,
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

    fn cell(&self, rule: usize, tool: usize) -> usize {
        if self.rules[rule].per_tool { tool } else { 0 }
    }

    /// What a call lacks of a limit, whatever its mode.
    fn lack(&self, now: u64, rule: usize, tool: usize, cost: u64) -> Lack {
        let cell = &self.cells[rule][self.cell(rule, tool)];
        let algorithm = self.rules[rule].numbered(tool);
        let decision = algorithm.look(&cell.state, now, cost);
        match decision {
            Decision::Never { capacity } => Lack::Capacity(capacity),
            _ if self.rules[rule].max_in_flight.is_some_and(|max| cell.running >= max.get()) => Lack::Place,
            Decision::Rejected { retry_after, .. } => Lack::Time(nanoseconds(retry_after).max(1)),
            Decision::Allowed { .. } => Lack::Nothing,
        }
    }

    fn enforced(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.rules.len()).filter(|rule| self.rules[*rule].mode == Mode::Enforce)
    }

    /// The limit that a call would wait for longest, when it goes behind those ahead.
    fn lacks_most(&self, now: u64, tool: usize, cost: u64, ahead: Ahead) -> Option<(usize, Lack)> {
        let mut most: Option<(usize, Lack)> = None;
        for rule in self.enforced() {
            let lack = match (self.lack(now, rule, tool, cost), ahead) {
                (Lack::Capacity(capacity), _) => return Some((rule, Lack::Capacity(capacity))),
                (lack, Ahead::Ignored) => lack,
                (lack, ahead) => match self.wait_behind(now, rule, tool, cost, ahead) {
                    0 if lack == Lack::Place => lack,
                    0 => Lack::Nothing,
                    wait => Lack::Time(wait),
                },
            };
            // How long a place takes nobody knows, so a wait that is known tells more.
            let more = match (lack, most.map(|(_, lack)| lack)) {
                (Lack::Nothing, _) | (Lack::Place, Some(_)) => false,
                (Lack::Time(new), Some(Lack::Time(old))) => new > old,
                _ => true,
            };
            if more {
                most = Some((rule, lack));
            }
        }
        most
    }

    /// The wait for the tokens of those ahead that are counted in the same cell, and for the call's own.
    fn wait_behind(&self, now: u64, rule: usize, tool: usize, cost: u64, ahead: Ahead) -> u64 {
        let cell = &self.cells[rule][self.cell(rule, tool)];
        let before = if ahead == Ahead::All { cell.waiting } else { 0 };
        self.rules[rule].wait(tool, &cell.state, now, before.saturating_add(cost))
    }

    fn refusal(&self, now: u64, tool: usize, cost: u64, ahead: Ahead) -> Refusal {
        match self.lacks_most(now, tool, cost, ahead) {
            Some((limit, Lack::Time(wait))) => {
                Refusal { limit: Some(limit), wait: Duration::from_nanos(wait), why: Why::Late }
            }
            most => Refusal { limit: most.map(|(limit, _)| limit), wait: Duration::ZERO, why: Why::NoPlace },
        }
    }

    /// The first who waits for each tool, in order.
    fn heads(&self) -> Vec<&Waiting<T>> {
        let mut heads: Vec<Ticket> =
            self.by_tool.values().filter_map(|tickets| tickets.first().copied()).collect();
        heads.sort_unstable();
        heads.iter().filter_map(|ticket| self.waiting.get(ticket)).collect()
    }

    /// Whether somebody who waits goes before a newcomer.
    fn must_wait(&self, now: u64, tool: usize) -> bool {
        self.by_tool.contains_key(&tool) || self.is_held_up(&self.scan(now).taken, tool)
    }

    fn is_held_up(&self, taken: &HashSet<(usize, usize)>, tool: usize) -> bool {
        !taken.is_empty() && self.enforced().any(|rule| taken.contains(&(rule, self.cell(rule, tool))))
    }

    /// Looks at who waits, in order.
    ///
    /// A call holds up those behind it at the limit that it lacks for longest, and at no other: what the others have
    /// until then may be used. One that is held up itself holds up nobody else. So whatever is held up is held up until
    /// an instant, or until a place comes free, and that call's own start ends it.
    fn scan(&self, now: u64) -> Scan {
        let mut scan = Scan::default();
        for head in self.heads() {
            if self.is_held_up(&scan.taken, head.tool) {
                continue;
            }
            let lacks: Vec<(usize, Lack)> =
                self.enforced().map(|rule| (rule, self.lack(now, rule, head.tool, head.cost))).collect();
            // A place is waited for without an end, so it is the longest.
            let longest = lacks.iter().map(|(_, lack)| lack.nanoseconds()).max().unwrap_or(0);
            if longest == 0 {
                scan.first = scan.first.or(Some(head.ticket));
            } else if longest < u64::MAX {
                scan.next = scan.next.into_iter().chain([now.saturating_add(longest)]).min();
            }
            let binding = lacks.iter().filter(|(_, lack)| lack.nanoseconds() == longest);
            scan.taken.extend(binding.map(|(rule, _)| (*rule, self.cell(*rule, head.tool))));
        }
        scan
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
