//! What calls lack of the limits, who goes before whom, and how long it takes.

use std::collections::HashSet;
use std::time::Duration;

use tidegate_core::{Decision, Mode, Step as _};

use super::{Line, Refusal, Ticket, Waiting, Why, nanoseconds};

/// What a call lacks of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
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
pub(super) struct Scan {
    /// The first call that can start.
    pub(super) first: Option<Ticket>,
    /// The next instant at which one can, if time is all it lacks.
    pub(super) next: Option<u64>,
    /// The cells, by limit and tool, that those behind must leave to a call that waits for them.
    taken: HashSet<(usize, usize)>,
}

/// Whose tokens a wait is counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// What is there now.
    Ignored,
    /// The call is the first in line.
    Nobody,
    /// The call is the last.
    All,
}

impl<T> Line<T> {
    pub(super) fn cell(&self, rule: usize, tool: usize) -> usize {
        if self.rules[rule].per_tool { tool } else { 0 }
    }

    /// What a call lacks of a limit, whatever its mode.
    pub(super) fn lack(&self, now: u64, rule: usize, tool: usize, cost: u64) -> Lack {
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

    pub(super) fn enforced(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.rules.len()).filter(|rule| self.rules[*rule].mode == Mode::Enforce)
    }

    /// The limit that a call would wait for longest, when it goes behind those ahead.
    pub(super) fn lacks_most(&self, now: u64, tool: usize, cost: u64, ahead: Ahead) -> Option<(usize, Lack)> {
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

    pub(super) fn refusal(&self, now: u64, tool: usize, cost: u64, ahead: Ahead) -> Refusal {
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
    pub(super) fn must_wait(&self, now: u64, tool: usize) -> bool {
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
    pub(super) fn scan(&self, now: u64) -> Scan {
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
}
