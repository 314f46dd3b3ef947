//! What the clones of a gate share: the line, and who is to be woken for which ticket.
//!
//! Everything that happens to a call happens under one lock: it is granted, collected, given up or taken back while
//! nobody else looks. So a call that is granted while its future is dropped has either been collected or not, and
//! what was not collected goes back. Wakers are called and dropped after the lock is released, since both may run
//! code of an executor that drops a future of this very gate.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::queue::{Call, Event, Joined, Line, Receipt, Refusal, Ticket};

use super::asking::{Question, Sharing};
use super::clock::Time;
use super::sync::{Condvar, Mutex, MutexGuard, whole};
use super::timer;
use crate::clock::Driven;
use crate::shared::Made;

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Tells the timer that its next instant has changed.
    pub(super) changed: Condvar,
    pub(super) time: Time,
    /// How long a grant waits for its caller, in nanoseconds.
    pub(super) collect_within: u64,
    /// Where the tokens are, if not in the line.
    pub(super) sharing: Option<Sharing>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) line: Line,
    /// A waiting call, or one whose outcome has not been collected yet.
    slots: BTreeMap<Ticket, Slot>,
    /// The grants that nobody has collected, by the instant at which they are taken back.
    offers: BTreeSet<(u64, Ticket)>,
    /// Who waits until nobody waits or is in flight, by the number of an [`Idle`].
    idle: BTreeMap<u64, Waker>,
    next_idle: u64,
    /// What is asked, if the tokens are elsewhere.
    pub(super) question: Question,
    /// Whether the timer's thread runs, and until when it sleeps.
    pub(super) timer_runs: bool,
    pub(super) timer_until: u64,
    /// The last handle is gone.
    pub(super) ended: bool,
}

#[derive(Debug)]
enum Slot {
    Waiting(Waker),
    Granted { receipt: Receipt, made: Option<Made>, lapses: u64 },
    Refused { refusal: Refusal, at: u64 },
}

/// What came of asking.
#[derive(Debug)]
pub(super) enum Asked {
    Granted(Receipt),
    Waiting(Ticket),
    Refused(Refusal),
    NoTimer(io::ErrorKind),
}

/// What came of a call that waited.
#[derive(Debug)]
pub(super) enum Outcome {
    Granted(Receipt, Option<Made>),
    Refused {
        refusal: Refusal,
        at: u64,
    },
    /// It was granted, nobody collected that, and it was taken back.
    Lapsed,
}

impl Shared {
    pub(super) fn new(line: Line, time: Time, collect_within: u64, sharing: Option<Sharing>) -> Self {
        let state = State {
            line,
            slots: BTreeMap::new(),
            offers: BTreeSet::new(),
            idle: BTreeMap::new(),
            next_idle: 0,
            question: Question::default(),
            timer_runs: false,
            timer_until: u64::MAX,
            ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), time, collect_within, sharing }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        whole(self.state.lock())
    }

    /// Asks for a call. `waker` is kept if it waits.
    pub(super) fn join(self: &Arc<Self>, now: u64, call: Call, waker: &Waker) -> Asked {
        let waker = waker.clone();
        let mut woken = Vec::new();
        let mut state = self.lock();
        state.serve(now, self.collect_within, &mut woken);
        let asked = match state.line.join(now, call) {
            Joined::Granted(receipt) => Asked::Granted(receipt),
            Joined::Refused(refusal) => Asked::Refused(refusal),
            Joined::Waiting(ticket) => match timer::ensure(self, &mut state) {
                Ok(()) => {
                    state.slots.insert(ticket, Slot::Waiting(waker));
                    Asked::Waiting(ticket)
                }
                Err(error) => {
                    state.line.cancel(ticket);
                    Asked::NoTimer(error.kind())
                }
            },
        };
        self.leave(state, now, woken);
        asked
    }

    /// The outcome of a call that waits; without one, `waker` is kept for it.
    pub(super) fn collect(&self, ticket: Ticket, waker: &Waker) -> Poll<Outcome> {
        let mut new = waker.clone();
        let mut state = self.lock();
        if let Some(Slot::Waiting(waker)) = state.slots.get_mut(&ticket) {
            std::mem::swap(waker, &mut new);
            drop(state);
            return Poll::Pending;
        }
        Poll::Ready(match state.slots.remove(&ticket) {
            Some(Slot::Granted { receipt, made, lapses }) => {
                state.offers.remove(&(lapses, ticket));
                Outcome::Granted(receipt, made)
            }
            Some(Slot::Refused { refusal, at }) => Outcome::Refused { refusal, at },
            Some(Slot::Waiting(_)) | None => Outcome::Lapsed,
        })
    }

    /// The caller of a waiting call has gone: it leaves the line, or gives back what it was granted and had not
    /// collected.
    pub(super) fn give_up(&self, ticket: Ticket) {
        let now = self.time.now_ns();
        let mut state = self.lock();
        let slot = state.slots.remove(&ticket);
        match &slot {
            Some(Slot::Waiting(_)) => {
                state.line.cancel(ticket);
            }
            Some(Slot::Granted { receipt, lapses, .. }) => {
                state.offers.remove(&(*lapses, ticket));
                state.line.cancel_granted(now, *receipt);
            }
            Some(Slot::Refused { .. }) | None => {}
        }
        self.serve_and_leave(state, now);
        drop(slot);
    }

    /// Changes the line and serves who can go now.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Line, u64) -> T) -> T {
        let now = self.time.now_ns();
        let mut state = self.lock();
        let result = change(&mut state.line, now);
        self.serve_and_leave(state, now);
        result
    }

    fn serve_and_leave(&self, mut state: MutexGuard<'_, State>, now: u64) {
        let mut woken = Vec::new();
        state.serve(now, self.collect_within, &mut woken);
        self.leave(state, now, woken);
    }

    /// Tells the timer if it sleeps too long, unlocks, and wakes. Without a timer it asks.
    fn leave(&self, state: MutexGuard<'_, State>, now: u64, woken: Vec<Waker>) {
        self.release(state, now, woken);
        if self.sharing.is_some() && matches!(self.time, Time::Manual(_)) {
            self.ask();
        }
    }

    pub(super) fn release(&self, mut state: MutexGuard<'_, State>, now: u64, woken: Vec<Waker>) {
        if state.timer_runs
            && let Some(next) = state.next_event(now)
            && next < state.timer_until
        {
            state.timer_until = next;
            self.changed.notify_one();
        }
        drop(state);
        wake_all(woken);
    }

    /// One round of the timer: serves, wakes whom it served, and tells the next instant.
    #[cfg(not(loom))]
    pub(super) fn timer_round<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now: u64,
    ) -> (MutexGuard<'a, State>, Option<u64>) {
        let mut woken = Vec::new();
        state.serve(now, self.collect_within, &mut woken);
        if !woken.is_empty() || self.sharing.is_some() {
            drop(state);
            wake_all(woken);
            self.ask();
            state = self.lock();
        }
        let next = state.next_event(now);
        (state, next)
    }
}

/// Waits until nobody waits or is in flight. Nothing is kept of one that is dropped.
#[derive(Debug)]
pub(super) struct Idle<'a> {
    shared: &'a Shared,
    /// Which one it is, once its waker was kept.
    number: Option<u64>,
}

impl<'a> Idle<'a> {
    pub(super) const fn new(shared: &'a Shared) -> Self {
        Self { shared, number: None }
    }
}

impl Future for Idle<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.shared.lock();
        if state.line.is_idle() {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            state.next_idle = state.next_idle.wrapping_add(1);
            state.next_idle
        });
        let before = state.idle.insert(number, waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.shared.lock();
        let waker = state.idle.remove(&number);
        drop(state);
        drop(waker);
    }
}

/// Wakes each, also if the one before panics: the code of an executor must not leave the others asleep. What it panicked
/// with has been reported by the panic hook.
fn wake_all(woken: Vec<Waker>) {
    for waker in woken {
        let _ = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

impl Driven for Shared {
    fn serve(&self) {
        self.change(|_, _| ());
    }

    fn next_event(&self) -> Option<u64> {
        self.lock().next_event(self.time.now_ns())
    }
}

impl State {
    /// Grants and refuses what is due, and takes back what nobody collected.
    pub(super) fn serve(&mut self, now: u64, collect_within: u64, woken: &mut Vec<Waker>) {
        while let Some(&(lapses, ticket)) = self.offers.first()
            && lapses <= now
        {
            self.offers.pop_first();
            if let Some(Slot::Granted { receipt, .. }) = self.slots.remove(&ticket) {
                self.line.cancel_granted(now, receipt);
            }
        }
        while let Some(event) = self.line.poll(now) {
            self.happened(event, None, now, collect_within, woken);
        }
        if self.line.is_idle() {
            woken.extend(std::mem::take(&mut self.idle).into_values());
        }
    }

    /// Keeps what happened to a waiting call for its caller. `made` is how shared buckets decided.
    pub(super) fn happened(
        &mut self,
        event: Event,
        made: Option<Made>,
        now: u64,
        collect_within: u64,
        woken: &mut Vec<Waker>,
    ) {
        let (ticket, slot) = match event {
            Event::Granted(ticket, receipt) => {
                let lapses = now.saturating_add(collect_within);
                self.offers.insert((lapses, ticket));
                (ticket, Slot::Granted { receipt, made, lapses })
            }
            Event::Refused(ticket, refusal) => (ticket, Slot::Refused { refusal, at: now }),
        };
        if let Some(Slot::Waiting(waker)) = self.slots.insert(ticket, slot) {
            woken.push(waker);
        }
    }

    fn next_event(&self, now: u64) -> Option<u64> {
        if self.question.is_due() {
            return Some(now);
        }
        let line = self.line.next_event(now);
        let lapse = self.offers.first().map(|(lapses, _)| *lapses);
        match (line, lapse) {
            (Some(line), Some(lapse)) => Some(line.min(lapse)),
            (line, lapse) => line.or(lapse),
        }
    }
}
