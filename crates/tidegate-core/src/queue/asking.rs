//! A line whose grants are decided elsewhere: by buckets that others charge too.
//!
//! The line keeps the order, the places and the deadlines, and somebody else has the tokens. So nobody is granted when he
//! joins: [`Line::ask`] tells what the first calls cost, the driver asks for it, and says what came of it by
//! [`Line::granted`], [`Line::rejected`], [`Line::never`] or [`Line::ask_not_before`].
//!
//! **The limits of the line are what is known of the others.** They begin full and are set by [`Line::told`]; a bucket that
//! others charge holds that or less. So a call that they do not allow need not be asked about, the waits that refusals
//! tell are still the least, and a line that shares with nobody answers as one with limits of its own.
//!
//! **One question at a time,** about as many of the first calls as are known to fit, at most [`MAX_ASKED`]: they are charged
//! together or not at all, and after a rejection the head is asked about alone. Who is asked about keeps his turn; newcomers
//! of a higher priority go before him only in the next question.
//!
//! **What may be lost.** A charge cannot be taken back. If a call leaves while it is asked about, its charge goes to the head of
//! the line if that costs the same, and is lost otherwise; it is not kept, as a charge of earlier would let more start in an
//! interval than the limit allows. All charges of a question are lost if the line is closed meanwhile.

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::{Cost, Event, Line, Refusal, Ticket, nanoseconds};

/// The most calls of one question. Twice as many would halve the trips of a line that has thousands a second; the more,
/// the likelier it is that they are rejected together and one of them would not have been.
pub const MAX_ASKED: usize = 64;

/// The question under way, and when the next is worth it.
#[derive(Debug, Clone, Default)]
pub(super) struct Asking {
    /// What is asked for; `None` when no question is under way.
    sum: Option<Cost>,
    /// For whom, in order; for nobody if it is what earlier calls owe.
    calls: Vec<(Ticket, Cost)>,
    /// What was rejected last, and until when.
    rejected: Option<(Cost, u64)>,
    /// Nothing at all is asked before.
    not_before: u64,
    /// The next question is about the head alone.
    alone: bool,
    /// What calls took beyond their estimates, and is not charged yet.
    owed: Cost,
}

impl Asking {
    pub(super) fn owe(&mut self, cost: Cost) {
        self.owed = self.owed.plus(cost);
    }

    pub(super) const fn not_before(&self) -> u64 {
        self.not_before
    }
}

impl Line {
    /// The same line, whose grants are decided elsewhere; see the methods [`Self::ask`] and [`Self::granted`].
    ///
    /// No call is granted when it joins, so with a `max_waiting` of 0 none ever is. A place in flight is taken by the
    /// grant. What was charged is not given back: [`Self::cancel_granted`] and [`Self::settle`] with less end the call, and with
    /// more the difference is asked for before the next call is. The limits have to be token buckets, as only those can be
    /// [told](Self::told).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::queue::{Call, Event, Joined, Line};
    /// use tidegate_core::{Algorithm, Kind};
    ///
    /// let bucket = Algorithm::new(Kind::TokenBucket, "10/s burst 10".parse()?);
    /// let mut line = Line::new(bucket, 100)?.asking();
    /// let call = |cost: u64| Call { cost: cost.into(), ..Call::default() };
    /// assert!(matches!(line.join(0, call(4)), Joined::Waiting(_)));
    /// assert!(matches!(line.join(0, call(5)), Joined::Waiting(_)));
    /// assert!(matches!(line.join(0, call(6)), Joined::Waiting(_)));
    ///
    /// // As far as is known there are ten, enough for the first two. Others have taken all but five.
    /// assert_eq!(line.ask(0), Some(9.into()));
    /// line.told(0, 0, Duration::from_millis(500));
    /// assert_eq!(line.rejected(0, 400_000_000), None);
    ///
    /// // Then the first alone.
    /// assert_eq!(line.ask(0), Some(4.into()));
    /// line.told(0, 0, Duration::from_millis(900));
    /// assert!(matches!(line.granted(0, 1)[..], [Event::Granted(..)]));
    /// assert_eq!((line.ask(0), line.next_event(0)), (None, Some(400_000_000)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn asking(self) -> Self {
        Self { asking: Some(Asking::default()), ..self }
    }

    /// Begins a question, if there is something to ask now: what the calls of [`Self::asked`] cost together. `None` also while
    /// one is under way.
    ///
    /// [`Self::poll`] first, so that nobody is asked about whose deadline is over.
    pub fn ask(&mut self, now: u64) -> Option<Cost> {
        let now = self.tick(now);
        if self.ask_at(now)? > now {
            return None;
        }
        let owed = self.owed();
        let asking = self.asking.as_mut()?;
        let sum = match owed {
            Some(owed) => owed,
            None => {
                let most = if asking.alone { 1 } else { MAX_ASKED };
                let free = usize::try_from(self.in_flight.free()).unwrap_or(usize::MAX);
                let mut sum = Cost::default();
                for (ticket, cost) in self.order.first(most.min(free)) {
                    let with = sum.plus(cost);
                    if !asking.calls.is_empty() && !self.limits.allow(now, with) {
                        break;
                    }
                    sum = with;
                    asking.calls.push((ticket, cost));
                }
                sum
            }
        };
        asking.sum = Some(sum);
        Some(sum)
    }

    /// The calls that are asked about, in order. Empty if what earlier calls owe is asked for, or nothing is.
    #[must_use]
    pub fn asked(&self) -> &[(Ticket, Cost)] {
        self.asking.as_ref().map_or(&[], |asking| &asking.calls)
    }

    /// Sets what is known of a limit: at the instant `at` it was full again `reset_after` later.
    pub fn told(&mut self, limit: usize, at: u64, reset_after: Duration) {
        self.limits.set(limit, at, reset_after);
    }

    /// Ends the question: the first `count` of its calls may go, or what is owed has been charged if `count` is not 0. The
    /// grants; a call that has left meanwhile passes its charge on to the head if that costs as much.
    pub fn granted(&mut self, now: u64, count: usize) -> Vec<Event> {
        let now = self.tick(now);
        let mut events = Vec::new();
        let Some((sum, calls)) = self.end_question() else { return events };
        if count == 0 {
            return events;
        }
        if let Some(asking) = &mut self.asking {
            (asking.rejected, asking.alone) = (None, false);
            if calls.is_empty() {
                asking.owed = asking.owed.minus(sum);
                return events;
            }
        }
        if now < self.closed_until {
            return events;
        }
        let mut spare = Vec::new();
        for (ticket, cost) in calls.into_iter().take(count) {
            if !self.order.waits(ticket, now) {
                spare.push(cost);
            } else if self.in_flight.has_place() {
                self.order.take(ticket);
                events.push(Event::Granted(ticket, self.grant(now, cost)));
            }
        }
        while !spare.is_empty()
            && self.in_flight.has_place()
            && let Some((ticket, cost)) = self.order.head()
            && self.order.waits(ticket, now)
            && let Some(index) = spare.iter().position(|spare| *spare == cost)
        {
            spare.swap_remove(index);
            self.order.take(ticket);
            events.push(Event::Granted(ticket, self.grant(now, cost)));
        }
        events
    }

    /// Ends the question: nothing was charged, and the same cost is worth asking for again at `until`. A call that was asked
    /// about alone and has to start before is refused.
    pub fn rejected(&mut self, now: u64, until: u64) -> Option<Event> {
        let now = self.tick(now);
        let (sum, calls) = self.end_question()?;
        let asking = self.asking.as_mut()?;
        asking.rejected = Some((sum, until));
        asking.alone = true;
        match calls[..] {
            [(ticket, _)] if self.order.waits(ticket, now) && !self.order.waits(ticket, until) => {
                self.order.remove(ticket);
                let wait = Duration::from_nanos(until.saturating_sub(now));
                Some(Event::Refused(ticket, Refusal::Deadline { wait }))
            }
            _ => None,
        }
    }

    /// Ends the question: nothing was charged, and a limit can never hold what was asked for. A call that was asked about
    /// alone is refused.
    pub fn never(&mut self, limit: usize, capacity: u64) -> Option<Event> {
        let (sum, calls) = self.end_question()?;
        let asking = self.asking.as_mut()?;
        asking.alone = true;
        if calls.is_empty() {
            asking.owed = asking.owed.minus(sum);
        }
        match calls[..] {
            [(ticket, cost)] if self.order.remove(ticket) => {
                Some(Event::Refused(ticket, Refusal::Never { limit, cost: cost.of(limit), capacity }))
            }
            _ => None,
        }
    }

    /// Asks nothing before `instant`: there is nobody to answer. It lengthens and shortens.
    pub fn ask_not_before(&mut self, instant: u64) {
        if let Some(asking) = &mut self.asking {
            asking.not_before = instant;
        }
    }

    /// When the next question is due, if one is.
    pub(super) fn ask_at(&self, now: u64) -> Option<u64> {
        let asking = self.asking.as_ref().filter(|asking| asking.sum.is_none())?;
        let cost = match self.owed() {
            Some(owed) => owed,
            None if self.in_flight.has_place() && !self.draining_refuses() => self.order.head()?.1,
            None => return None,
        };
        let open = now.max(self.closed_until).max(asking.not_before);
        let at = match asking.rejected {
            Some((rejected, until)) if rejected == cost => open.max(until),
            _ => open.saturating_add(nanoseconds(self.limits.retry_after(open, cost))),
        };
        // What is later than a clock can say never comes.
        (at < u64::MAX).then_some(at)
    }

    /// Whether a call may still be granted at `instant` if nothing else happens: it may be under way.
    pub(super) fn may_grant_at(&self, now: u64, instant: u64) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.sum.is_some())
            || self.ask_at(now).is_some_and(|at| at <= instant)
    }

    /// As much of what is owed as a limit can hold at once.
    fn owed(&self) -> Option<Cost> {
        let owed = self.asking.as_ref()?.owed;
        (owed != Cost::default()).then(|| self.limits.at_most_full(owed))
    }

    fn end_question(&mut self) -> Option<(Cost, Vec<(Ticket, Cost)>)> {
        let asking = self.asking.as_mut()?;
        Some((asking.sum.take()?, mem::take(&mut asking.calls)))
    }
}
