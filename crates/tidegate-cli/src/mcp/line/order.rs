//! What calls lack of the limits, who goes before whom, and how long it takes.

use std::collections::HashSet;
use std::time::Duration;

use tidegate_core::{Decision, Mode};

use super::classes::Cell;
use super::{Line, Refusal, Ticket, Waiting, Why};
use crate::mcp::shared::Broken;

/// How often a place in flight is asked for that another process of the machine holds: nobody says when it comes free.
const LOOK: u64 = 20_000_000;

/// What a call lacks of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// Tokens, until so many nanoseconds from now.
    Time(u64),
    Place,
    /// A place that others hold, and which is looked for again in so many nanoseconds.
    SharedPlace(u64),
    Capacity(u64),
    /// The limit cannot be asked.
    Broken,
}

impl Lack {
    /// For how long, as far as the clock can tell.
    const fn nanoseconds(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Time(wait) => wait,
            Self::Place | Self::SharedPlace(_) | Self::Capacity(_) | Self::Broken => u64::MAX,
        }
    }

    /// Whether waiting cannot help.
    const fn is_hopeless(self) -> bool {
        matches!(self, Self::Capacity(_) | Self::Broken)
    }
}

impl From<Broken> for Lack {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// How the line stands at an instant.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The first call that can start.
    pub(super) first: Option<Ticket>,
    /// One that cannot start before its deadline.
    pub(super) hopeless: Option<Ticket>,
    /// The next instant at which one can, if time is all it lacks.
    pub(super) next: Option<u64>,
    /// The cells that those behind must leave to a call that waits for them.
    taken: HashSet<usize>,
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
    /// What a call lacks of a limit, whatever its mode.
    pub(super) fn lack(&self, now: u64, cell: &Cell, cost: u64) -> Lack {
        let rule = &self.rules[cell.rule];
        if let Some(again) = rule.budget.as_ref().and_then(|budget| budget.full_for(cost)) {
            return Lack::SharedPlace(super::nanoseconds(again));
        }
        let decision = match cell.look(rule, now, cost) {
            Ok(decision) => decision,
            Err(broken) => return broken.into(),
        };
        match decision {
            Decision::Never { capacity } => Lack::Capacity(capacity),
            _ if rule.max_in_flight.is_some_and(|max| cell.running >= max.get()) => Lack::Place,
            Decision::Rejected { retry_after, .. } => Lack::Time(super::nanoseconds(retry_after).max(1)),
            Decision::Allowed { .. } => {
                match rule.budget.as_ref().map_or(Ok(true), |budget| budget.has_place()) {
                    Ok(true) => Lack::Nothing,
                    Ok(false) => Lack::SharedPlace(LOOK),
                    Err(broken) => broken.into(),
                }
            }
        }
    }

    /// The cells of the limits that are enforced on a class.
    fn enforced(&self, class: usize) -> impl Iterator<Item = &Cell> {
        self.classes.cells_of(class).filter(|cell| self.rules[cell.rule].mode == Mode::Enforce)
    }

    /// How long the tool of a class still wants no call, in nanoseconds.
    fn closed_for(&self, now: u64, class: usize) -> u64 {
        self.classes.class(class).closed_until.saturating_sub(now)
    }

    /// What a call would wait for longest, when it goes behind those ahead: a limit, or the tool itself.
    pub(super) fn lacks_most(
        &self,
        now: u64,
        class: usize,
        cost: u64,
        ahead: Ahead,
    ) -> Option<(Option<usize>, Lack)> {
        let mut most: Option<(Option<usize>, Lack)> = match self.closed_for(now, class) {
            0 => None,
            wait => Some((None, Lack::Time(wait))),
        };
        for cell in self.enforced(class) {
            let mut lack = self.lack(now, cell, cost);
            if lack.is_hopeless() {
                return Some((Some(cell.rule), lack));
            }
            if ahead != Ahead::Ignored {
                let before = if ahead == Ahead::All { cell.waiting } else { 0 };
                lack = match cell.wait(&self.rules[cell.rule], now, before.saturating_add(cost)) {
                    Ok(0) if matches!(lack, Lack::Place | Lack::SharedPlace(_)) => lack,
                    Ok(0) => Lack::Nothing,
                    Ok(wait) => Lack::Time(wait),
                    Err(broken) => return Some((Some(cell.rule), broken.into())),
                };
            }
            // How long a place takes nobody knows, so a wait that is known tells more.
            let more = match (lack, most.map(|(_, lack)| lack)) {
                (Lack::Nothing, _) | (Lack::Place | Lack::SharedPlace(_), Some(_)) => false,
                (Lack::Time(new), Some(Lack::Time(old))) => new > old,
                _ => true,
            };
            if more {
                most = Some((Some(cell.rule), lack));
            }
        }
        most
    }

    pub(super) fn refusal(&self, now: u64, class: usize, cost: u64, ahead: Ahead) -> Refusal {
        let most = self.lacks_most(now, class, cost, ahead);
        let (wait, why) = match most {
            Some((Some(_), Lack::Time(wait))) => (wait, Why::Late),
            Some((None, Lack::Time(wait))) => (wait, Why::Closed),
            Some((_, Lack::Capacity(capacity))) => (0, Why::Never { capacity }),
            Some((_, Lack::Broken)) => (0, Why::Broken),
            _ => (0, Why::NoPlace),
        };
        let limit = most.and_then(|(limit, _)| limit);
        Refusal { limit, wait: Duration::from_nanos(wait), why }
    }

    /// The first who waits of each class, in order.
    fn heads(&self) -> Vec<&Waiting<T>> {
        let mut heads: Vec<Ticket> =
            self.by_class.values().filter_map(|tickets| tickets.first().copied()).collect();
        heads.sort_unstable();
        heads.iter().filter_map(|ticket| self.waiting.get(ticket)).collect()
    }

    /// Whether somebody who waits goes before a newcomer.
    pub(super) fn must_wait(&self, now: u64, class: usize) -> bool {
        self.by_class.contains_key(&class) || self.is_held_up(&self.scan(now).taken, class)
    }

    fn is_held_up(&self, taken: &HashSet<usize>, class: usize) -> bool {
        !taken.is_empty()
            && (0..self.rules.len())
                .filter_map(|rule| self.classes.cell(class, rule))
                .any(|cell| taken.contains(&cell))
    }

    /// Looks at who waits, in order.
    ///
    /// A call holds up those behind it at the limit that it lacks for longest, and at no other: what the others have
    /// until then may be used. One that is held up itself holds up nobody else. So whatever is held up is held up until
    /// an instant, or until a place comes free, and that call's own start ends it.
    pub(super) fn scan(&self, now: u64) -> Scan {
        let mut scan = Scan::default();
        for head in self.heads() {
            if self.is_held_up(&scan.taken, head.class) {
                continue;
            }
            let lacks: Vec<(usize, Lack)> =
                self.enforced(head.class).map(|cell| (cell.rule, self.lack(now, cell, head.cost))).collect();
            let closed = self.closed_for(now, head.class);
            if lacks.iter().any(|(_, lack)| lack.is_hopeless()) || now.saturating_add(closed) > head.deadline
            {
                scan.hopeless = scan.hopeless.or(Some(head.ticket));
                continue;
            }
            // A place is waited for without an end, so it is the longest.
            let longest = lacks.iter().map(|(_, lack)| lack.nanoseconds()).max().unwrap_or(0).max(closed);
            if longest == 0 {
                scan.first = scan.first.or(Some(head.ticket));
            } else if longest < u64::MAX {
                scan.next = scan.next.into_iter().chain([now.saturating_add(longest)]).min();
            } else {
                let again = lacks.iter().filter_map(|(_, lack)| match lack {
                    Lack::SharedPlace(again) => Some(now.saturating_add(*again)),
                    _ => None,
                });
                scan.next = scan.next.into_iter().chain(again).min();
            }
            let binding = lacks.iter().filter(|(_, lack)| lack.nanoseconds() == longest);
            scan.taken.extend(binding.filter_map(|(rule, _)| self.classes.cell(head.class, *rule)));
        }
        scan
    }
}
