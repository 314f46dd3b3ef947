//! Any of the algorithms as one value, chosen by name, with time held still when a clock goes back.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::fixed_window::Used;
use super::sliding_log::Log;
use super::sliding_window::TwoCounts;
use super::token_bucket::{Since, Tat};
use super::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Step, TokenBucket, Unlimited};
use crate::{Decision, Quota};

/// The name of an algorithm, as in tables, flags and the limits file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// `none`: no limit.
    Unlimited,
    /// `fixed-window`: a count per aligned window.
    FixedWindow,
    /// `sliding-window`: two counts, the older one weighted.
    SlidingWindow,
    /// `sliding-log`: strict, an entry per call.
    SlidingLog,
    /// `token-bucket`: the default.
    TokenBucket,
    /// `leaky-bucket`: a queue that drains at the rate.
    LeakyBucket,
}

impl Kind {
    /// Every kind, in the order of the tables.
    pub const ALL: [Self; 6] = [
        Self::Unlimited,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
    ];

    /// The name as written in tables, flags and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "none",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingLog => "sliding-log",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownKind;

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown limiter; write one of ")?;
        for (index, kind) in Kind::ALL.iter().enumerate() {
            write!(f, "{}{kind}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownKind {}

impl FromStr for Kind {
    type Err = UnknownKind;

    /// Reads a name; `unlimited` is `none`.
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownKind)
    }
}

/// One limiter with its numbers: an algorithm and a quota.
///
/// A user of one known algorithm can take its own type ([`TokenBucket`] and so on); this one is for those who choose
/// at run time. It adds one thing: it remembers when it was last charged, and takes an earlier `now` for that instant.
/// So a clock that goes back makes no progress, and neither creates tokens nor punishes; the waits it gives are still
/// exact in the caller's own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// No limit.
    Unlimited(Unlimited),
    /// A count per aligned window.
    FixedWindow(FixedWindow),
    /// Two counts, the older one weighted.
    SlidingWindow(SlidingWindow),
    /// Strict, an entry per call.
    SlidingLog(SlidingLog),
    /// Tokens flow in, calls take them out.
    TokenBucket(TokenBucket),
    /// Calls flow in, and start at the rate.
    LeakyBucket(LeakyBucket),
}

/// What an [`Algorithm`] remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// When it was last charged.
    latest: u64,
    of: Of,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Of {
    Unlimited,
    FixedWindow(Used),
    SlidingWindow(TwoCounts),
    SlidingLog(Log),
    TokenBucket(Tat),
    LeakyBucket(Tat),
}

impl Algorithm {
    /// The algorithm `kind` for `quota`. A leaky bucket made here has no queue; for one, see [`LeakyBucket::new`].
    #[must_use]
    pub fn new(kind: Kind, quota: Quota) -> Self {
        match kind {
            Kind::Unlimited => Self::Unlimited(Unlimited),
            Kind::FixedWindow => Self::FixedWindow(FixedWindow::new(quota)),
            Kind::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(quota)),
            Kind::SlidingLog => Self::SlidingLog(SlidingLog::new(quota)),
            Kind::TokenBucket => Self::TokenBucket(TokenBucket::new(quota)),
            Kind::LeakyBucket => Self::LeakyBucket(LeakyBucket::new(quota, 0)),
        }
    }

    /// Which algorithm it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Unlimited(_) => Kind::Unlimited,
            Self::FixedWindow(_) => Kind::FixedWindow,
            Self::SlidingWindow(_) => Kind::SlidingWindow,
            Self::SlidingLog(_) => Kind::SlidingLog,
            Self::TokenBucket(_) => Kind::TokenBucket,
            Self::LeakyBucket(_) => Kind::LeakyBucket,
        }
    }

    /// Takes `cost` of a charge made at `charged_at` back, as if it had never been charged; `since` is the run of
    /// charges after it, which only the buckets need. For the windows, what has left the view changes nothing.
    pub(crate) fn refund(&self, state: &mut State, charged_at: u64, cost: u64, since: Since) {
        match (self, &mut state.of) {
            (Self::FixedWindow(limiter), Of::FixedWindow(state)) => limiter.refund(state, charged_at, cost),
            (Self::SlidingWindow(limiter), Of::SlidingWindow(state)) => {
                limiter.refund(state, charged_at, cost)
            }
            (Self::SlidingLog(limiter), Of::SlidingLog(state)) => limiter.refund(state, charged_at, cost),
            (Self::TokenBucket(limiter), Of::TokenBucket(state)) => limiter.refund(state, since, cost),
            _ => {}
        }
    }
}

impl State {
    /// The state of a token bucket; `None` if it is that of another algorithm.
    pub(crate) fn tat(&self) -> Option<Tat> {
        match self.of {
            Of::TokenBucket(tat) => Some(tat),
            _ => None,
        }
    }
}

impl Step for Algorithm {
    type State = State;

    fn fresh(&self) -> State {
        let of = match self {
            Self::Unlimited(_) => Of::Unlimited,
            Self::FixedWindow(limiter) => Of::FixedWindow(limiter.fresh()),
            Self::SlidingWindow(limiter) => Of::SlidingWindow(limiter.fresh()),
            Self::SlidingLog(limiter) => Of::SlidingLog(limiter.fresh()),
            Self::TokenBucket(limiter) => Of::TokenBucket(limiter.fresh()),
            Self::LeakyBucket(limiter) => Of::LeakyBucket(limiter.fresh()),
        };
        State { latest: 0, of }
    }

    /// A state that another kind of algorithm left counts as fresh.
    #[inline]
    fn look(&self, state: &State, now: u64, cost: u64) -> Decision {
        let time = state.latest.max(now);
        let decision = match (self, &state.of) {
            (Self::Unlimited(limiter), _) => limiter.look(&(), time, cost),
            (Self::FixedWindow(limiter), Of::FixedWindow(state)) => limiter.look(state, time, cost),
            (Self::SlidingWindow(limiter), Of::SlidingWindow(state)) => limiter.look(state, time, cost),
            (Self::SlidingLog(limiter), Of::SlidingLog(state)) => limiter.look(state, time, cost),
            (Self::TokenBucket(limiter), Of::TokenBucket(state)) => limiter.look(state, time, cost),
            (Self::LeakyBucket(limiter), Of::LeakyBucket(state)) => limiter.look(state, time, cost),
            _ => return self.look(&self.fresh(), now, cost),
        };
        decision.seen_earlier(Duration::from_nanos(time.saturating_sub(now)))
    }

    /// A state that another kind of algorithm left counts as fresh.
    #[inline]
    fn charge(&self, state: &mut State, now: u64, cost: u64) {
        let time = state.latest.max(now);
        match (self, &mut state.of) {
            (Self::Unlimited(_), _) => {}
            (Self::FixedWindow(limiter), Of::FixedWindow(state)) => limiter.charge(state, time, cost),
            (Self::SlidingWindow(limiter), Of::SlidingWindow(state)) => limiter.charge(state, time, cost),
            (Self::SlidingLog(limiter), Of::SlidingLog(state)) => limiter.charge(state, time, cost),
            (Self::TokenBucket(limiter), Of::TokenBucket(state)) => limiter.charge(state, time, cost),
            (Self::LeakyBucket(limiter), Of::LeakyBucket(state)) => limiter.charge(state, time, cost),
            _ => {
                *state = self.fresh();
                self.charge(state, now, cost);
            }
        }
        state.latest = time;
    }

    fn bound(&self, span: Duration) -> Option<u128> {
        match self {
            Self::Unlimited(limiter) => limiter.bound(span),
            Self::FixedWindow(limiter) => limiter.bound(span),
            Self::SlidingWindow(limiter) => limiter.bound(span),
            Self::SlidingLog(limiter) => limiter.bound(span),
            Self::TokenBucket(limiter) => limiter.bound(span),
            Self::LeakyBucket(limiter) => limiter.bound(span),
        }
    }
}
