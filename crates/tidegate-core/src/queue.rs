//! The waiting line: calls join, and are granted in turn at the exact instant at which the limiter allows them.
//!
//! The line is a value without a clock, timer or thread. A driver passes the time in, asks [`Line::next_event`] when
//! to come back, and takes the outcomes from [`Line::poll`]. So a simulator and a program run the same line.
//!
//! **Order.** Within a key, first in, first out. Between keys, in turn: one call each (equal in calls, not in cost).
//! Between priorities, strictly: while calls of a higher priority wait, a lower one gets nothing, for as long as that
//! lasts. A line where that must not happen uses one priority.
//!
//! **The head waits for everybody's sake.** Only the call at the head is looked at, and whatever it needs is left to
//! it; so a large call is served within capacity / rate of becoming the head, however many small ones follow. Tokens
//! and the place in flight are taken together, at that instant: a line whose places are all taken uses up no tokens.
//!
//! **Worked examples.** `3 per 3s`, ten calls at 0. A token bucket refills all the time, so three start at 0 and then
//! one each second until 7 s. A fixed window (or a sliding log) starts three at 0, three at 3 s, three at 6 s and one
//! at 9 s. `10/s burst 10` with a level of 5: a call of cost 6 starts after 0.1 s.
//!
//! **Going back.** A call that was granted has a [`Receipt`]. [`Line::cancel_granted`] and [`Line::settle`] undo its
//! charge, or a part of it, as if it had not been made (see
//! [`TokenBucket::refund`](crate::algorithm::TokenBucket::refund)); more than was reserved is charged at the time of
//! settling, and what the limiter does not have is paid by its later refill.
//!
//! **Not promised.** Grants at instants when nobody polls: a grant is made at the `now` of a poll, never before the
//! exact instant, and after it when the driver is late. A driver that is late for a deadline refuses that call.
//!
//! **Tokens of others.** A line can leave the tokens to somebody else, who is asked for the head: [`Line::asking`].
//!
//! **Cost.** Everything is O(log n) in the calls that wait and are in flight. (With a sliding log, giving tokens back
//! looks at each entry of the log that is younger.)

mod asking;
mod budget;
mod cost;
mod limits;
mod order;
mod runs;

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

use self::asking::Asking;
pub use self::asking::MAX_ASKED;
use self::cost::Sum;
pub use self::cost::{Cost, MAX_LIMITS};
use self::limits::Limits;
use self::order::Order;
use crate::{Algorithm, InFlight, Kind};

/// A call that wants to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Call {
    /// The tokens it takes from each limit. 0 is decided and waits in turn like any other, and takes none.
    pub cost: Cost,
    /// Whose call it is: keys are served in turn. A caller with other keys numbers them.
    pub key: u64,
    /// Higher ones first, strictly.
    pub priority: u8,
    /// The last instant at which it may be granted, in nanoseconds; `None` to wait for as long as it takes.
    pub deadline: Option<u64>,
}

/// A call that waits. It is never used for another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    number: u64,
    key: u64,
    priority: u8,
}

/// A call that was granted and is in flight. It is never used for another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    number: u64,
}

/// What became of a call that joined.
#[must_use = "a call that was granted is in flight until its receipt is given back"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It may run now: its cost is charged and its place taken.
    Granted(Receipt),
    /// It waits.
    Waiting(Ticket),
    /// It does not wait, and nothing changed.
    Refused(Refusal),
}

/// What happened to a call that waited.
#[must_use = "a call that was granted is in flight until its receipt is given back"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It may run now: its cost is charged and its place taken.
    Granted(Ticket, Receipt),
    /// It no longer waits, and nothing else changed.
    Refused(Ticket, Refusal),
}

/// Why a call is not granted.
///
/// A `wait` is the least that the call would have had to wait if those ahead of it stay, and 0 if only a place in flight
/// is missing. For one token bucket, one key and no limit in flight it is the wait itself, less at most a nanosecond for
/// each call ahead that costs a whole burst (a full bucket loses what comes in the rest of its last nanosecond).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The cost is above the capacity: no wait can help.
    Never {
        /// The index of the limit.
        limit: usize,
        /// The cost that was asked for.
        cost: u64,
        /// The largest cost that can ever be granted; 0 for a limit that is not there.
        capacity: u64,
    },
    /// As many calls wait as may.
    QueueFull {
        /// How many that is.
        max_waiting: usize,
        /// The wait that would have been needed.
        wait: Duration,
    },
    /// It could not be granted by its deadline.
    Deadline {
        /// The wait that would have been needed.
        wait: Duration,
    },
    /// The line is drained: it takes no new calls.
    Draining,
}

/// What to do with the calls that wait when a line is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// They are granted in their turn.
    Serve,
    /// They are refused.
    Refuse,
}

/// How a line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whole tokens there now in the first limit, rounded down.
    pub level: u64,
    /// How many calls wait.
    pub waiting: usize,
    /// How many calls were granted and not given back.
    pub in_flight: u64,
    /// How many may be in flight.
    pub max_in_flight: u64,
    /// Until when nothing is granted, in nanoseconds; `None` when the line is open.
    pub closed_until: Option<u64>,
    /// Whether new calls are refused.
    pub draining: bool,
}

/// Limits that a line cannot use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsuitable {
    /// An algorithm grants ahead of time, and so keeps a queue of its own.
    OwnQueue {
        /// Which.
        kind: Kind,
    },
    /// There is no limit, or there are more than [`MAX_LIMITS`].
    Count {
        /// How many.
        limits: usize,
    },
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnQueue { kind } => write!(
                f,
                "the algorithm `{kind}` has a queue of its own and cannot be waited for in a line; use `token-bucket`",
            ),
            Self::Count { limits } => {
                write!(f, "a waiting line has 1 to {MAX_LIMITS} limits, not {limits}; join some into one")
            }
        }
    }
}

impl core::error::Error for Unsuitable {}

/// A bounded line of calls that wait for a limiter, or several, and a place in flight.
///
/// `now` is in nanoseconds since an origin of the caller's choice. Going back, it counts as the latest time seen.
///
/// Memory: what waits is at most `max_waiting`; what is in flight is at most [`Self::set_max_in_flight`], or as many
/// as the caller holds.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::queue::{Call, Event, Joined, Line, Refusal};
/// use tidegate_core::{Algorithm, Kind};
///
/// let bucket = Algorithm::new(Kind::TokenBucket, "10/s burst 10".parse()?);
/// let mut line = Line::new(bucket, 100)?;
/// let Joined::Granted(first) = line.join(0, Call { cost: 5.into(), ..Call::default() }) else { panic!() };
///
/// // Five are left. A call for six waits 0.1 s, and no call passes it meanwhile.
/// let Joined::Waiting(second) = line.join(0, Call { cost: 6.into(), ..Call::default() }) else { panic!() };
/// let hasty = Call { cost: 1.into(), deadline: Some(0), ..Call::default() };
/// let wait = Duration::from_millis(200);
/// assert_eq!(line.join(0, hasty), Joined::Refused(Refusal::Deadline { wait }));
///
/// assert_eq!(line.next_event(0), Some(100_000_000));
/// assert_eq!(line.poll(99_999_999), None);
/// assert!(matches!(line.poll(100_000_000), Some(Event::Granted(ticket, _)) if ticket == second));
///
/// // The first call turns out not to be needed. Then six of a full bucket's ten are taken: four are left. (Not five:
/// // the one that came meanwhile would not have fitted into the full bucket.)
/// assert!(line.cancel_granted(100_000_000, first));
/// assert_eq!(line.status(100_000_000).level, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Line {
    limits: Limits,
    order: Order,
    in_flight: InFlight,
    max_waiting: usize,
    closed_until: u64,
    draining: bool,
    /// If grants are decided elsewhere.
    asking: Option<Asking>,
    /// The latest time seen.
    latest: u64,
    /// The number of the next ticket.
    next: u64,
}

impl Line {
    /// A line in which up to `max_waiting` calls wait for `algorithm`; with 0, none do. It starts open, with
    /// everything available and no limit in flight.
    ///
    /// # Errors
    ///
    /// The leaky bucket grants ahead of time and so keeps a queue of its own; a line cannot take it.
    pub fn new(algorithm: Algorithm, max_waiting: usize) -> Result<Self, Unsuitable> {
        Self::with_limits(&[algorithm], max_waiting)
    }

    /// A line whose calls wait for several limits at once, such as requests and bytes: a call is granted when all of
    /// them allow it, and then charged in each.
    ///
    /// ```
    /// use tidegate_core::queue::{Call, Joined, Line};
    /// use tidegate_core::{Algorithm, Kind};
    ///
    /// let limit = |quota: &str| Algorithm::new(Kind::TokenBucket, quota.parse().unwrap());
    /// let mut line = Line::with_limits(&[limit("2/s"), limit("1000/s")], 10)?;
    /// let call = Call { cost: [1, 900].into(), ..Call::default() };
    /// assert!(matches!(line.join(0, call), Joined::Granted(_)));
    /// // A request is left, but 800 bytes are missing: 0.8 s. Nothing is charged until then.
    /// assert!(matches!(line.join(0, call), Joined::Waiting(_)));
    /// assert_eq!(line.next_event(0), Some(800_000_000));
    /// assert_eq!((line.level(0, 0), line.level(0, 1)), (1, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Self::new`]; and for no limit or more than [`MAX_LIMITS`].
    pub fn with_limits(algorithms: &[Algorithm], max_waiting: usize) -> Result<Self, Unsuitable> {
        Ok(Self {
            limits: Limits::new(algorithms)?,
            order: Order::default(),
            in_flight: InFlight::new(NonZeroU64::MAX),
            max_waiting,
            closed_until: 0,
            draining: false,
            asking: None,
            latest: 0,
            next: 0,
        })
    }

    /// Decides a call: it is granted at once if nobody goes before it and all it needs is there; else it waits, or is
    /// refused if it cannot.
    ///
    /// Whoever waits already and could be granted by now should have been: [`Self::poll`] first.
    pub fn join(&mut self, now: u64, call: Call) -> Joined {
        let now = self.tick(now);
        if self.draining {
            return Joined::Refused(Refusal::Draining);
        }
        if let Some(refusal) = self.limits.never(now, call.cost) {
            return Joined::Refused(refusal);
        }
        let in_time = call.deadline.is_none_or(|deadline| now <= deadline);
        if in_time && !self.order.any_before(call.priority) && self.can_grant(now, call.cost) {
            return Joined::Granted(self.grant(now, call.cost));
        }
        let wait = self.wait_at_least(now, &call);
        if let Some(deadline) = call.deadline {
            let left = deadline.saturating_sub(now);
            if left == 0 || wait > Duration::from_nanos(left) {
                return Joined::Refused(Refusal::Deadline { wait });
            }
        }
        if self.order.len() >= self.max_waiting {
            return Joined::Refused(Refusal::QueueFull { max_waiting: self.max_waiting, wait });
        }
        let ticket = Ticket { number: self.next, key: call.key, priority: call.priority };
        self.next = self.next.wrapping_add(1);
        self.order.insert(ticket, call.cost, call.deadline);
        Joined::Waiting(ticket)
    }

    /// The next thing that happened to a waiting call by `now`, in order; `None` when that is all.
    ///
    /// Call it until `None` after [`Self::next_event`] has come and after whatever may let the head go: a call that
    /// left, was cancelled or settled, or a new limit in flight.
    pub fn poll(&mut self, now: u64) -> Option<Event> {
        let now = self.tick(now);
        if self.draining_refuses() {
            let ticket = self.order.head()?.0;
            self.order.remove(ticket);
            return Some(Event::Refused(ticket, Refusal::Draining));
        }
        // While the line is closed, whoever has to start before it opens is told at once.
        let earliest = now.max(self.closed_until);
        if let Some((deadline, ticket)) = self.order.first_deadline()
            && deadline < earliest
        {
            return Some(self.refuse_late(now, ticket));
        }
        if let Some((ticket, cost)) = self.order.head()
            && self.can_grant(now, cost)
        {
            self.order.take(ticket);
            return Some(Event::Granted(ticket, self.grant(now, cost)));
        }
        match self.order.first_deadline() {
            // Its last instant may still bring an answer.
            Some((deadline, _)) if deadline == now && self.may_grant_at(now, now) => None,
            Some((deadline, ticket)) if deadline <= now => Some(self.refuse_late(now, ticket)),
            _ => None,
        }
    }

    /// When [`Self::poll`] has something to tell if nothing else happens: the exact instant of the next grant, or the
    /// next deadline. `None` if nobody waits, or only for a place in flight and without a deadline.
    #[must_use]
    pub fn next_event(&self, now: u64) -> Option<u64> {
        let now = now.max(self.latest);
        let Some((_, cost)) = self.order.head() else { return self.ask_at(now) };
        if self.draining_refuses() {
            return Some(now);
        }
        let open = now.max(self.closed_until);
        if self.asking.is_some() {
            let ask = self.ask_at(now);
            let late = self.order.first_deadline().map(|(deadline, _)| match deadline {
                _ if deadline < open => now,
                _ if self.may_grant_at(now, deadline) => deadline.saturating_add(1),
                _ => deadline,
            });
            return ask.into_iter().chain(late).min();
        }
        let all_allow = || open.saturating_add(nanoseconds(self.limits.retry_after(open, cost)));
        let grant = self.in_flight.has_place().then(all_allow);
        let deadline =
            self.order.first_deadline().map(|(deadline, _)| if deadline < open { now } else { deadline });
        match (grant, deadline) {
            (Some(grant), Some(deadline)) => Some(grant.min(deadline)),
            (grant, deadline) => grant.or(deadline),
        }
    }

    /// Takes a waiting call out of the line; the others move up. `false` if it does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.order.remove(ticket)
    }

    /// Ends a granted call: its place is free again, its cost stays charged. `false` if it had ended before.
    pub fn release(&mut self, receipt: Receipt) -> bool {
        let ended = self.limits.close(receipt.number);
        if ended {
            self.in_flight.leave();
        }
        ended
    }

    /// Undoes a grant: its place is free again, and its tokens are back as if it had not been made. `false` if it had
    /// ended before.
    pub fn cancel_granted(&mut self, now: u64, receipt: Receipt) -> bool {
        self.settle(now, receipt, Cost::default())
    }

    /// Ends a granted call whose true cost is known now: its place is free again, and `actual` is what it took.
    /// `false` if it had ended before.
    ///
    /// Less than was reserved: the rest is back as if it had not been charged. More: the difference is charged now,
    /// and if it is not there, nothing is granted until the refill has paid it.
    pub fn settle(&mut self, now: u64, receipt: Receipt, actual: Cost) -> bool {
        let now = self.tick(now);
        let ended = match &mut self.asking {
            Some(asking) => {
                asking.owe(self.limits.excess(receipt.number, actual));
                self.limits.close(receipt.number)
            }
            None => self.limits.settle(now, receipt.number, actual),
        };
        if ended {
            self.in_flight.leave();
        }
        ended
    }

    /// Grants nothing before `instant`. It only lengthens: an earlier instant than one that holds changes nothing.
    pub fn close_until(&mut self, instant: u64) {
        self.closed_until = self.closed_until.max(instant);
    }

    /// How many granted calls may be in flight. When more are already they stay, and nobody is granted until enough
    /// have ended.
    pub fn set_max_in_flight(&mut self, max: NonZeroU64) {
        self.in_flight.set_max(max);
    }

    /// Takes no new calls from now on. [`Drain::Refuse`] after [`Drain::Serve`] refuses who still waits; the other way
    /// round changes nothing.
    pub fn drain(&mut self, drain: Drain) {
        self.draining = true;
        if drain == Drain::Refuse {
            self.max_waiting = 0;
        }
    }

    /// Whole tokens at `now` in the limit with this index, rounded down; 0 if there is no such limit.
    #[must_use]
    pub fn level(&self, now: u64, limit: usize) -> u64 {
        self.limits.level(limit, now.max(self.latest))
    }

    /// Whether nobody waits and nobody is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.order.len() == 0 && self.in_flight.running() == 0
    }

    /// How the line stands at `now`.
    #[must_use]
    pub fn status(&self, now: u64) -> Status {
        let now = now.max(self.latest);
        Status {
            level: self.limits.level(0, now),
            waiting: self.order.len(),
            in_flight: self.in_flight.running(),
            max_in_flight: self.in_flight.max(),
            closed_until: (self.closed_until > now).then_some(self.closed_until),
            draining: self.draining,
        }
    }

    /// The time, held still when it goes back.
    fn tick(&mut self, now: u64) -> u64 {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn draining_refuses(&self) -> bool {
        self.draining && self.max_waiting == 0
    }

    /// Whether all that a call at the head needs is there.
    fn can_grant(&self, now: u64, cost: Cost) -> bool {
        self.asking.is_none()
            && now >= self.closed_until
            && self.in_flight.has_place()
            && self.limits.allow(now, cost)
    }

    fn grant(&mut self, now: u64, cost: Cost) -> Receipt {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        match self.asking {
            // It is charged elsewhere, and what is left there is told.
            Some(_) => self.limits.note(now, number, cost),
            None => self.limits.charge(now, number, cost),
        }
        let entered = self.in_flight.try_enter();
        debug_assert!(entered, "a call is granted only when there is a place");
        Receipt { number }
    }

    fn refuse_late(&mut self, now: u64, ticket: Ticket) -> Event {
        let cost = self.order.cost(ticket);
        self.order.remove(ticket);
        let asked = self.asking.as_ref().map_or(0, Asking::not_before);
        let open = now.max(self.closed_until).max(asked);
        let wait = self.limits.wait_at_least(open, &Sum::default(), cost);
        let closed = Duration::from_nanos(open.saturating_sub(now));
        Event::Refused(ticket, Refusal::Deadline { wait: closed.saturating_add(wait) })
    }

    /// The least that `call` waits if it joins and nobody leaves; see [`Refusal`].
    fn wait_at_least(&self, now: u64, call: &Call) -> Duration {
        let open = now.max(self.closed_until);
        let ahead = self.order.cost_ahead(call.priority, call.key);
        let closed = Duration::from_nanos(open.saturating_sub(now));
        closed.saturating_add(self.limits.wait_at_least(open, &ahead, call.cost))
    }
}

/// A wait as nanoseconds; more than 584 years stays that long.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
