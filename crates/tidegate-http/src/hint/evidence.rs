//! What was found in a response, and what follows from it.

use std::time::Duration;

use super::form::Reading;
use super::number::SECOND;
use super::profile::Meaning;
use super::{Dimension, Hint, NoRetry, Note, Reason, Scope, Signal, WAIT_MAX};

/// How many dimensions are kept; further ones are not looked at.
const DIMENSIONS_MAX: usize = 32;

/// How many notes are kept.
const NOTES_MAX: usize = 16;

/// What was found, while it is found.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The longest instruction in whole seconds, and the longest that is finer.
    coarse: Option<(u128, Signal)>,
    fine: Option<(u128, Signal)>,
    /// What the provider's documentation says about such an answer.
    documented: Option<(u128, Signal)>,
    counters: Vec<Counter>,
    buckets: Vec<(&'static str, String)>,
    no_retry: Option<NoRetry>,
    is_global: bool,
    in_flight_refused: bool,
    in_flight_limit: Option<u64>,
    is_rounded_down: bool,
    notes: Vec<Note>,
}

/// A dimension, while it is found.
#[derive(Debug)]
pub(super) struct Counter {
    family: &'static str,
    name: String,
    pub(super) limit: Option<u64>,
    remaining: Option<u64>,
    reset: Option<(u128, Signal)>,
    reset_after: Option<(u128, Signal)>,
}

impl Counter {
    /// What is left. If it is said twice, less counts.
    pub(super) fn lower_remaining(&mut self, remaining: u64) {
        self.remaining = Some(self.remaining.map_or(remaining, |known| known.min(remaining)));
    }

    pub(super) fn reset(&mut self, ns: u128, signal: Signal) {
        raise(&mut self.reset, ns, signal);
    }

    pub(super) fn reset_after(&mut self, ns: u128, signal: Signal) {
        raise(&mut self.reset_after, ns, signal);
    }

    /// Time from now, which was sent as such, is preferred to an instant.
    fn resets(&self) -> Option<&(u128, Signal)> {
        self.reset_after.as_ref().or(self.reset.as_ref())
    }
}

/// Keeps the longer of two times; of equal ones the first.
fn raise(slot: &mut Option<(u128, Signal)>, ns: u128, signal: Signal) {
    if slot.as_ref().is_none_or(|(known, _)| *known < ns) {
        *slot = Some((ns, signal));
    }
}

impl Evidence {
    /// An instruction.
    pub(super) fn wait(&mut self, reading: Reading, signal: Signal) {
        if reading.is_odd_instant {
            self.note(Note::Instant(signal.clone()));
        }
        let slot = if reading.is_coarse { &mut self.coarse } else { &mut self.fine };
        raise(slot, reading.ns, signal);
    }

    pub(super) fn documented(&mut self, ns: u128, signal: Signal) {
        raise(&mut self.documented, ns, signal);
    }

    /// The counter of a dimension, to say something about it.
    pub(super) fn counter(&mut self, family: &'static str, name: &str, change: impl FnOnce(&mut Counter)) {
        let known = self.counters.iter_mut().find(|known| known.family == family && known.name == name);
        if let Some(counter) = known {
            change(counter);
        } else if self.counters.len() < DIMENSIONS_MAX {
            let mut counter = Counter {
                family,
                name: name.to_owned(),
                limit: None,
                remaining: None,
                reset: None,
                reset_after: None,
            };
            change(&mut counter);
            self.counters.push(counter);
        } else {
            self.note(Note::TooMuch);
        }
    }

    /// The name of the dimension that is `default` in a family.
    pub(super) fn bucket(&mut self, family: &'static str, name: &str) {
        if self.buckets.len() < DIMENSIONS_MAX && !self.buckets.iter().any(|(known, _)| *known == family) {
            self.buckets.push((family, name.to_owned()));
        }
    }

    pub(super) fn no_retry(&mut self, why: NoRetry) {
        self.no_retry.get_or_insert(why);
    }

    pub(super) fn in_flight_limit(&mut self, limit: u64) {
        self.in_flight_limit = Some(self.in_flight_limit.map_or(limit, |known| known.min(limit)));
    }

    pub(super) fn meaning(&mut self, meaning: Meaning) {
        match meaning {
            Meaning::NoRetry => self.no_retry(NoRetry::ServerSaysSo),
            Meaning::QuotaSpent => self.no_retry(NoRetry::QuotaSpent),
            Meaning::Global => self.is_global = true,
            Meaning::InFlight => self.in_flight_refused = true,
            Meaning::RoundedDown => self.is_rounded_down = true,
        }
    }

    pub(super) fn unreadable(&mut self, signal: Signal) {
        self.note(Note::Unreadable(signal));
    }

    pub(super) fn note(&mut self, note: Note) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// What follows from it all.
    pub(super) fn conclude(mut self, status: u16) -> Hint {
        let (reason, told) = self.told();
        if reason == Reason::Nothing && status == 403 && self.has_quota_left() {
            self.no_retry(NoRetry::NotALimit);
        }
        if self.is_rounded_down && matches!(reason, Reason::Empty { .. }) {
            self.note(Note::RoundedDown);
        }
        let most = WAIT_MAX.as_nanos();
        if told.as_ref().is_some_and(|(ns, _)| *ns > most) {
            self.note(Note::Saturated);
        }
        let (wait, signal) = told.map(|(ns, signal)| (bounded(ns), signal)).unzip();
        let scope = if self.is_global {
            Some(Scope::Global)
        } else {
            self.buckets.first().map(|(_, name)| Scope::Bucket(name.clone()))
        };
        Hint {
            wait,
            reason,
            signal,
            no_retry: self.no_retry,
            scope,
            dimensions: self.dimensions(),
            in_flight_limit: self.in_flight_limit,
            in_flight_refused: self.in_flight_refused,
            notes: self.notes,
        }
    }

    /// The wait, from the strongest kind of signal that is there.
    fn told(&mut self) -> (Reason, Option<(u128, Signal)>) {
        if let Some(told) = self.instruction() {
            return (Reason::Instruction, Some(told));
        }
        let empty = self.counters.iter().filter(|counter| counter.remaining == Some(0));
        let resets = empty.filter_map(|counter| Some((counter, counter.resets()?)));
        // Of equal waits the first, as servers list what binds first.
        let latest = resets.reduce(|latest, next| if next.1.0 > latest.1.0 { next } else { latest });
        if let Some((counter, (ns, signal))) = latest {
            let dimension = self.name(counter).to_owned();
            return (Reason::Empty { dimension }, Some((*ns, signal.clone())));
        }
        match self.documented.take() {
            Some(told) => (Reason::Documented, Some(told)),
            None => (Reason::Nothing, None),
        }
    }

    /// The longest instruction; but one in whole seconds that is merely the ceiling of a finer one gives way to it.
    fn instruction(&mut self) -> Option<(u128, Signal)> {
        match (self.coarse.take(), self.fine.take()) {
            (Some(coarse), Some(fine)) => {
                let is_ceiling = coarse.0.checked_sub(fine.0).is_some_and(|more| more < u128::from(SECOND));
                Some(if is_ceiling || fine.0 > coarse.0 { fine } else { coarse })
            }
            (coarse, fine) => coarse.or(fine),
        }
    }

    fn has_quota_left(&self) -> bool {
        let mut known = self.counters.iter().filter_map(|counter| counter.remaining).peekable();
        known.peek().is_some() && known.all(|remaining| remaining > 0)
    }

    fn name<'a>(&'a self, counter: &'a Counter) -> &'a str {
        let bucket = self.buckets.iter().find(|(family, _)| *family == counter.family);
        match bucket {
            Some((_, name)) if counter.name == "default" => name,
            _ => &counter.name,
        }
    }

    /// The counters by name. Of two with the same name, that with less left.
    fn dimensions(&self) -> Vec<Dimension> {
        let mut dimensions: Vec<Dimension> = Vec::new();
        for counter in &self.counters {
            let dimension = Dimension {
                name: self.name(counter).to_owned(),
                limit: counter.limit,
                remaining: counter.remaining,
                reset: counter.resets().map(|(ns, _)| bounded(*ns)),
            };
            let left = |dimension: &Dimension| dimension.remaining.unwrap_or(u64::MAX);
            match dimensions.iter_mut().find(|known| known.name == dimension.name) {
                None => dimensions.push(dimension),
                Some(known) if left(&dimension) < left(known) => *known = dimension,
                Some(_) => {}
            }
        }
        dimensions
    }
}

/// A time that is not longer than [`WAIT_MAX`].
fn bounded(ns: u128) -> Duration {
    u64::try_from(ns).map_or(WAIT_MAX, |ns| Duration::from_nanos(ns).min(WAIT_MAX))
}
