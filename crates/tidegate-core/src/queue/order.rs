//! Who waits, and in which order.
//!
//! A class is a priority. In a class, keys that have somebody waiting stand in a rotation; the head is the oldest call
//! of the key in front. When it is served, its key goes to the back; when it is cancelled, its key keeps its turn. A key
//! with nobody waiting is in no rotation and is forgotten, so memory follows the number of calls that wait.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::Ticket;
use super::cost::{Cost, Sum};

/// The calls that wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Order {
    /// By priority. Each has somebody waiting.
    classes: BTreeMap<u8, Class>,
    /// By priority and key. Each has somebody waiting.
    flows: BTreeMap<(u8, u64), Flow>,
    deadlines: BTreeSet<(u64, Ticket)>,
    waiting: usize,
}

/// The calls of one priority.
#[derive(Debug, Clone, Default)]
struct Class {
    /// Turn and key, the next one first.
    rotation: BTreeMap<u64, u64>,
    next_turn: u64,
    /// The cost of all calls.
    cost: Sum,
    /// The cost of the oldest call of each key.
    heads_cost: Sum,
}

/// The calls of one priority and key.
#[derive(Debug, Clone)]
struct Flow {
    turn: u64,
    /// By the number of the ticket, the oldest first.
    calls: BTreeMap<u64, Waiting>,
    cost: Sum,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    cost: Cost,
    deadline: Option<u64>,
}

impl Flow {
    fn head_cost(&self) -> Cost {
        self.calls.first_key_value().map_or(Cost::default(), |(_, call)| call.cost)
    }
}

impl Order {
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Whether somebody waits whom a newcomer of this priority, whatever its key, must let go first.
    pub(super) fn any_before(&self, priority: u8) -> bool {
        self.classes.range(priority..).next().is_some()
    }

    /// The call whose turn it is, and its cost.
    pub(super) fn head(&self) -> Option<(Ticket, Cost)> {
        let (&priority, class) = self.classes.last_key_value()?;
        let (_, &key) = class.rotation.first_key_value()?;
        let (&number, call) = self.flows.get(&(priority, key))?.calls.first_key_value()?;
        Some((Ticket { number, key, priority }, call.cost))
    }

    /// The calls that come first, in the order in which they would be served, and at most `most`.
    pub(super) fn first(&self, most: usize) -> Vec<(Ticket, Cost)> {
        let mut first = Vec::new();
        for (&priority, class) in self.classes.iter().rev() {
            let keys = class.rotation.values().take(most.saturating_sub(first.len()));
            let flow = |&key: &u64| Some((key, self.flows.get(&(priority, key))?.calls.iter()));
            let mut turns: Vec<_> = keys.filter_map(flow).collect();
            // Each key in turn has one served, until none has another.
            while !turns.is_empty() {
                turns.retain_mut(|(key, calls)| {
                    let next = calls.next().filter(|_| first.len() < most);
                    first.extend(
                        next.map(|(&number, call)| (Ticket { number, key: *key, priority }, call.cost)),
                    );
                    next.is_some()
                });
            }
        }
        first
    }

    /// Whether a call waits, and may still be granted at `now`.
    pub(super) fn waits(&self, ticket: Ticket, now: u64) -> bool {
        let flow = self.flows.get(&(ticket.priority, ticket.key));
        let call = flow.and_then(|flow| flow.calls.get(&ticket.number));
        call.is_some_and(|call| call.deadline.is_none_or(|deadline| now <= deadline))
    }

    pub(super) fn first_deadline(&self) -> Option<(u64, Ticket)> {
        self.deadlines.first().copied()
    }

    /// The cost of a call that waits; 0 if it does not.
    pub(super) fn cost(&self, ticket: Ticket) -> Cost {
        let flow = self.flows.get(&(ticket.priority, ticket.key));
        flow.and_then(|flow| flow.calls.get(&ticket.number)).map_or(Cost::default(), |call| call.cost)
    }

    /// The cost that is surely served before a newcomer: all of higher priorities and of its own key, and of each
    /// other key the call that is next.
    pub(super) fn cost_ahead(&self, priority: u8, key: u64) -> Sum {
        let mut ahead = Sum::default();
        for (_, higher) in self.classes.range(priority..).filter(|(other, _)| **other > priority) {
            ahead.add_sum(higher.cost);
        }
        if let Some(class) = self.classes.get(&priority) {
            ahead.add_sum(class.heads_cost);
        }
        if let Some(own) = self.flows.get(&(priority, key)) {
            ahead.subtract(own.head_cost());
            ahead.add_sum(own.cost);
        }
        ahead
    }

    /// Adds a call at the end of its key's calls.
    pub(super) fn insert(&mut self, ticket: Ticket, cost: Cost, deadline: Option<u64>) {
        let class = self.classes.entry(ticket.priority).or_default();
        let flow = self.flows.entry((ticket.priority, ticket.key)).or_insert_with(|| {
            let turn = class.next_turn;
            class.next_turn = turn.wrapping_add(1);
            class.rotation.insert(turn, ticket.key);
            class.heads_cost.add(cost);
            Flow { turn, calls: BTreeMap::new(), cost: Sum::default() }
        });
        flow.calls.insert(ticket.number, Waiting { cost, deadline });
        flow.cost.add(cost);
        class.cost.add(cost);
        self.waiting = self.waiting.saturating_add(1);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, ticket));
        }
    }

    /// Takes the call at the head out and sends its key to the back of the rotation.
    pub(super) fn take(&mut self, ticket: Ticket) {
        let place = (ticket.priority, ticket.key);
        if let (Some(flow), Some(class)) =
            (self.flows.get_mut(&place), self.classes.get_mut(&ticket.priority))
        {
            class.rotation.remove(&flow.turn);
            flow.turn = class.next_turn;
            class.next_turn = flow.turn.wrapping_add(1);
            class.rotation.insert(flow.turn, ticket.key);
        }
        self.remove(ticket);
    }

    /// Takes a call out. Its key keeps its turn, if it has other calls. `false` if it does not wait.
    pub(super) fn remove(&mut self, ticket: Ticket) -> bool {
        let place = (ticket.priority, ticket.key);
        let (Some(flow), Some(class)) = (self.flows.get_mut(&place), self.classes.get_mut(&ticket.priority))
        else {
            return false;
        };
        let head_before = flow.head_cost();
        let Some(call) = flow.calls.remove(&ticket.number) else {
            return false;
        };
        flow.cost.subtract(call.cost);
        class.cost.subtract(call.cost);
        class.heads_cost.subtract(head_before);
        class.heads_cost.add(flow.head_cost());
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(deadline) = call.deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        if flow.calls.is_empty() {
            class.rotation.remove(&flow.turn);
            if class.rotation.is_empty() {
                self.classes.remove(&ticket.priority);
            }
            self.flows.remove(&place);
        }
        true
    }
}
