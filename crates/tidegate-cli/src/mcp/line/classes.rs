//! Who is counted where: callers that are counted alike are a class, and each limit has a cell for each of its keys.

use std::collections::HashMap;

use tidegate_core::algorithm::Unlimited;
use tidegate_core::{Algorithm, Decision, Quota, State, Step as _};

use super::nanoseconds;
use crate::mcp::limits::{Rule, Subject};
use crate::mcp::shared::Broken;

/// How many classes have cells of their own; those that come while all are in use share one, which is under all limits. A
/// server has tens of tools; each session that its limits tell apart has as many.
pub(super) const MAX_CLASSES: usize = 10_000;

/// The class of all that find no other.
pub(super) const OVERFLOW: usize = 0;

/// The longest session that has a class of its own, in bytes.
const SESSION_MAX: usize = 1024;

/// How often unused classes are looked for, at most, in nanoseconds.
const SWEEP_EVERY: u64 = 1_000_000_000;

/// What a limit has counted for one of its keys.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) rule: usize,
    key: Box<str>,
    algorithm: Algorithm,
    quota: Option<Quota>,
    state: State,
    pub(super) running: u64,
    /// The costs of all that wait and are counted here.
    pub(super) waiting: u64,
    /// How many classes are counted here.
    classes: usize,
}

impl Cell {
    fn new(number: usize, rule: &Rule, key: Box<str>) -> Self {
        let quota = rule.quota(&key);
        let algorithm = match quota {
            Some(quota) if rule.budget.is_none() => Algorithm::new(rule.kind, quota),
            _ => Algorithm::Unlimited(Unlimited),
        };
        let state = algorithm.fresh();
        Self { rule: number, key, algorithm, quota, state, running: 0, waiting: 0, classes: 0 }
    }

    /// What the limit would answer.
    pub(super) fn look(&self, rule: &Rule, now: u64, cost: u64) -> Result<Decision, Broken> {
        match &rule.budget {
            Some(budget) => budget.look(cost),
            None => Ok(self.algorithm.look(&self.state, now, cost)),
        }
    }

    /// Charges what was seen to be there. A budget is charged where it is asked.
    pub(super) fn charge(&mut self, now: u64, cost: u64) {
        self.algorithm.charge(&mut self.state, now, cost);
    }

    /// How long `needs` tokens take in nanoseconds, more than the capacity too: exact for a token bucket, for windows
    /// at least that.
    pub(super) fn wait(&self, rule: &Rule, now: u64, needs: u64) -> Result<u64, Broken> {
        let wait = |cost| -> Result<u64, Broken> {
            Ok(self.look(rule, now, cost)?.retry_after().map_or(0, nanoseconds))
        };
        match (self.look(rule, now, needs)?, self.quota) {
            (Decision::Never { capacity }, Some(quota)) => {
                let beyond = u128::from(needs.saturating_sub(capacity)) * u128::from(quota.per_ns().get());
                let beyond = beyond.div_ceil(u128::from(quota.count()));
                Ok(wait(capacity)?.saturating_add(u64::try_from(beyond).unwrap_or(u64::MAX)))
            }
            _ => wait(needs),
        }
    }

    /// Whether nothing would be lost if it were made anew.
    fn is_fresh(&self, now: u64) -> bool {
        let look = self.algorithm.look(&self.state, now, 0);
        self.running == 0 && matches!(look, Decision::Allowed { reset_after, .. } if reset_after.is_zero())
    }
}

/// Callers that are counted in the same cells.
#[derive(Debug)]
pub(super) struct Class {
    subject: Subject,
    /// For each limit the cell; `None` if the limit is not for them.
    cells: Box<[Option<usize>]>,
    /// Until when the tool has asked to be left alone.
    pub(super) closed_until: u64,
    running: u64,
}

#[derive(Debug)]
pub(super) struct Classes {
    by_subject: HashMap<Subject, usize>,
    slots: Vec<Class>,
    free: Vec<usize>,
    cells: Vec<Cell>,
    by_key: HashMap<(usize, Box<str>), usize>,
    free_cells: Vec<usize>,
    /// Tools that have asked to be left alone, and until when.
    closed: HashMap<Box<str>, u64>,
    tells_sessions_apart: bool,
    next_sweep: u64,
}

impl Classes {
    pub(super) fn new(rules: &[Rule]) -> Self {
        // The class of all that find no other is one of those that use each of them.
        let overflow = rules
            .iter()
            .enumerate()
            .map(|(number, rule)| Cell { classes: 1, ..Cell::new(number, rule, "".into()) });
        let cells: Vec<Cell> = overflow.collect();
        // A limit of all together has one cell, of which strangers take like others.
        let together = rules.iter().enumerate().filter(|(_, rule)| rule.is_for_all_together());
        let by_key = together.map(|(number, _)| ((number, "".into()), number)).collect();
        let class = Class {
            subject: Subject::default(),
            cells: (0..cells.len()).map(Some).collect(),
            closed_until: 0,
            running: 0,
        };
        Self {
            by_subject: HashMap::new(),
            slots: vec![class],
            free: Vec::new(),
            cells,
            by_key,
            free_cells: Vec::new(),
            closed: HashMap::new(),
            tells_sessions_apart: rules.iter().any(Rule::tells_sessions_apart),
            next_sweep: 0,
        }
    }

    pub(super) fn class(&self, class: usize) -> &Class {
        &self.slots[class]
    }

    pub(super) fn cell(&self, class: usize, rule: usize) -> Option<usize> {
        self.slots[class].cells[rule]
    }

    /// The cells that a class is counted in.
    pub(super) fn cells_of(&self, class: usize) -> impl Iterator<Item = &Cell> {
        self.slots[class].cells.iter().flatten().map(|cell| &self.cells[*cell])
    }

    pub(super) fn cells_mut(&mut self, class: usize, mut change: impl FnMut(&mut Cell)) {
        for cell in self.slots[class].cells.iter().flatten() {
            change(&mut self.cells[*cell]);
        }
    }

    /// A call of the class has started, or ended.
    pub(super) fn started(&mut self, class: usize) {
        self.slots[class].running += 1;
        self.cells_mut(class, |cell| cell.running += 1);
    }

    pub(super) fn ended(&mut self, class: usize) {
        let running = &mut self.slots[class].running;
        *running = running.saturating_sub(1);
        self.cells_mut(class, |cell| cell.running = cell.running.saturating_sub(1));
    }

    /// The class of a caller. `waits` tells of a class whether somebody of it waits.
    pub(super) fn of(
        &mut self,
        rules: &[Rule],
        now: u64,
        subject: &Subject,
        waits: impl Fn(usize) -> bool,
    ) -> usize {
        let shared;
        let subject = if self.tells_sessions_apart || subject.session.is_empty() {
            subject
        } else {
            shared = Subject { tool: subject.tool.clone(), session: "".into() };
            &shared
        };
        if let Some(class) = self.by_subject.get(subject) {
            return *class;
        }
        if subject.session.len() > SESSION_MAX {
            return OVERFLOW;
        }
        if self.by_subject.len() >= MAX_CLASSES && now >= self.next_sweep {
            self.next_sweep = now.saturating_add(SWEEP_EVERY);
            self.sweep(now, waits);
        }
        if self.by_subject.len() >= MAX_CLASSES {
            return OVERFLOW;
        }
        let cells: Box<[Option<usize>]> = rules
            .iter()
            .enumerate()
            .map(|(number, rule)| rule.applies(&subject.tool).then(|| self.cell_for(number, rule, subject)))
            .collect();
        let closed_until = self.closed.get(&subject.tool).copied().unwrap_or(0);
        let class = Class { subject: subject.clone(), cells, closed_until, running: 0 };
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number] = class;
                number
            }
            None => {
                self.slots.push(class);
                self.slots.len() - 1
            }
        };
        self.by_subject.insert(subject.clone(), number);
        number
    }

    /// The tool wants no call before `until`. A sooner time than one it has told is not heard.
    pub(super) fn close(&mut self, now: u64, tool: &str, until: u64) {
        if self.closed.len() >= MAX_CLASSES {
            self.closed.retain(|_, until| *until > now);
        }
        if self.closed.len() >= MAX_CLASSES && !self.closed.contains_key(tool) {
            return;
        }
        let told = self.closed.entry(tool.into()).or_insert(0);
        *told = until.max(*told);
        // The class of all that find no other is of no tool, and not of one without a name.
        let own = self.slots.iter_mut().skip(OVERFLOW + 1);
        for class in own.filter(|class| *class.subject.tool == *tool) {
            class.closed_until = class.closed_until.max(until);
        }
    }

    fn cell_for(&mut self, number: usize, rule: &Rule, subject: &Subject) -> usize {
        let key = rule.key(subject);
        if let Some(cell) = self.by_key.get(&(number, key.clone())) {
            self.cells[*cell].classes += 1;
            return *cell;
        }
        let mut cell = Cell::new(number, rule, key.clone());
        cell.classes = 1;
        let place = match self.free_cells.pop() {
            Some(place) => {
                self.cells[place] = cell;
                place
            }
            None => {
                self.cells.push(cell);
                self.cells.len() - 1
            }
        };
        self.by_key.insert((number, key), place);
        place
    }

    /// Forgets the classes that nobody misses: those without calls whose limits are as good as new.
    fn sweep(&mut self, now: u64, waits: impl Fn(usize) -> bool) {
        let Self { by_subject, slots, free, cells, by_key, free_cells, .. } = self;
        by_subject.retain(|_, number| {
            let class = &slots[*number];
            let mut of_class = class.cells.iter().flatten().map(|cell| &cells[*cell]);
            let is_used = class.running > 0
                || waits(*number)
                || !of_class.all(|cell| cell.classes > 1 || cell.is_fresh(now));
            if is_used {
                return true;
            }
            for place in class.cells.iter().flatten() {
                let cell = &mut cells[*place];
                cell.classes -= 1;
                if cell.classes == 0 {
                    by_key.remove(&(cell.rule, cell.key.clone()));
                    free_cells.push(*place);
                }
            }
            free.push(*number);
            false
        });
    }
}
