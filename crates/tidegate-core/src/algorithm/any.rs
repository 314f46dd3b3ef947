//! Any of the algorithms as one value, chosen by name, with time held still when a clock goes back.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::fixed_window::Used;
use super::sliding_log::Log;
use super::sliding_window::TwoCounts;
use super::token_bucket::{Since, Tat};
use super::{Charged, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Step, TokenBucket, Unlimited};
use crate::arithmetic::{narrow, part_up};
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
    pub const ALL: &'static [Self] = &[
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
        Self::ALL.iter().copied().find(|kind| kind.name() == text).ok_or(UnknownKind)
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

impl State {
    /// A token bucket's state that a store kept, from [`Self::as_token_bucket`].
    #[must_use]
    pub const fn from_token_bucket(latest: u64, tat: Tat) -> Self {
        Self { latest, of: Of::TokenBucket(tat) }
    }

    /// When a token bucket was last charged, and its own state: what a store has to keep. `None` for another kind.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Kind, State, Step};
    ///
    /// let bucket = Algorithm::new(Kind::TokenBucket, "2/s burst 3".parse()?);
    /// let (state, _) = bucket.step(bucket.fresh(), 7, 1);
    /// let (latest, tat) = state.as_token_bucket().ok_or("another kind")?;
    /// assert_eq!((latest, tat.units()), (7, 500_000_007));
    /// assert_eq!(State::from_token_bucket(latest, tat), state);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn as_token_bucket(&self) -> Option<(u64, Tat)> {
        match self.of {
            Of::TokenBucket(tat) => Some((self.latest, tat)),
            _ => None,
        }
    }
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

    /// The same kind of limiter for another quota. The queue of a leaky bucket stays the same number of tokens.
    #[must_use]
    pub fn with_quota(&self, quota: Quota) -> Self {
        match self {
            Self::LeakyBucket(bucket) => Self::LeakyBucket(bucket.with_quota(quota)),
            _ => Self::new(self.kind(), quota),
        }
    }

    /// The state of `to` that is as used in proportion as this limiter is in `state` at `now`, where a quota changes.
    ///
    /// A token bucket keeps its level exactly, see [`TokenBucket::carry_over`]. Of the others the part of the capacity
    /// that is used, in whole tokens rounded up, is used in the new one from `now` on. A state that another kind of
    /// algorithm left counts as fresh. To the same limiter nothing changes.
    #[must_use]
    pub fn carry_over(&self, state: &State, now: u64, to: &Self) -> State {
        if self == to {
            return state.clone();
        }
        let time = state.latest.max(now);
        if let (Self::TokenBucket(old), Self::TokenBucket(new), Of::TokenBucket(tat)) = (self, to, &state.of)
        {
            return State { latest: time, of: Of::TokenBucket(new.carry_over(old, *tat, time)) };
        }
        let capacity = |limiter: &Self| limiter.look(&limiter.fresh(), time, 0).remaining();
        let (old, new) = (capacity(self), capacity(to));
        let used = old.saturating_sub(self.look(state, time, 0).remaining());
        // What is fresh at this time may not have been so earlier, and the clock may go back.
        let mut carried = State { latest: time, ..to.fresh() };
        if used > 0 {
            let used = part_up(u128::from(new), u128::from(used), u128::from(old));
            to.charge(&mut carried, time, narrow(used));
        }
        carried
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

impl Algorithm {
    /// Takes a charge back whose later charges nobody has watched, at `now`: as if it had never been, or less, but not
    /// more. For a token bucket the units that came back are returned, to be told as [`Charged::earlier`] of others; for
    /// windows 0, as they need nothing else. `None` if nothing came back, as for a leaky bucket.
    ///
    /// ```
    /// use tidegate_core::algorithm::Charged;
    /// use tidegate_core::{Algorithm, Kind, Step};
    ///
    /// // Full, one call at 0, taken back at 1 ms: full again.
    /// let ms = 1_000_000;
    /// let bucket = Algorithm::new(Kind::TokenBucket, "10/s burst 20".parse()?);
    /// let (mut state, decision) = bucket.step(bucket.fresh(), 0, 1);
    /// let tidegate_core::Decision::Allowed { reset_after, .. } = decision else { return Err("allowed".into()) };
    /// let charged = Charged { at: 0, cost: 1, reset_after, earlier: Some(0) };
    /// assert_eq!(bucket.refund_unwatched(&mut state, &charged, ms), Some(99_000_000));
    /// assert_eq!(bucket.look(&state, ms, 0).remaining(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refund_unwatched(&self, state: &mut State, charged: &Charged, now: u64) -> Option<u128> {
        match (self, &mut state.of) {
            (Self::TokenBucket(bucket), Of::TokenBucket(tat)) => {
                let units = charged.units_in(bucket, now);
                TokenBucket::take_back(tat, units);
                (units > 0).then_some(units)
            }
            (Self::LeakyBucket(_) | Self::Unlimited(_), _) => None,
            _ => {
                let before = state.clone();
                self.refund(state, charged.at, charged.cost, Since::default());
                (*state != before).then_some(0)
            }
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

/// The rare paths of a step. They are out of line, so that a step can be inlined into its caller and leaves out what
/// the caller does not read.
impl Algorithm {
    /// A look at a time before the last charge.
    #[cold]
    #[inline(never)]
    fn look_back(&self, state: &State, now: u64, cost: u64) -> Decision {
        if !self.made(state) {
            return self.look_fresh(now, cost);
        }
        let lag = Duration::from_nanos(state.latest.saturating_sub(now));
        self.look(state, state.latest, cost).seen_earlier(lag)
    }

    /// Whether a state is one of this kind of algorithm.
    const fn made(&self, state: &State) -> bool {
        matches!(
            (self, &state.of),
            (Self::Unlimited(_), Of::Unlimited)
                | (Self::FixedWindow(_), Of::FixedWindow(_))
                | (Self::SlidingWindow(_), Of::SlidingWindow(_))
                | (Self::SlidingLog(_), Of::SlidingLog(_))
                | (Self::TokenBucket(_), Of::TokenBucket(_))
                | (Self::LeakyBucket(_), Of::LeakyBucket(_))
        )
    }

    /// A look at a state that another kind of algorithm left.
    #[cold]
    #[inline(never)]
    fn look_fresh(&self, now: u64, cost: u64) -> Decision {
        self.look(&self.fresh(), now, cost)
    }

    /// A charge to a state that another kind of algorithm left.
    #[cold]
    #[inline(never)]
    fn charge_fresh(&self, state: &mut State, now: u64, cost: u64) {
        *state = self.fresh();
        self.charge(state, now, cost);
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
        if now < state.latest {
            return self.look_back(state, now, cost);
        }
        match (self, &state.of) {
            (Self::Unlimited(limiter), _) => limiter.look(&(), now, cost),
            (Self::FixedWindow(limiter), Of::FixedWindow(state)) => limiter.look(state, now, cost),
            (Self::SlidingWindow(limiter), Of::SlidingWindow(state)) => limiter.look(state, now, cost),
            (Self::SlidingLog(limiter), Of::SlidingLog(state)) => limiter.look(state, now, cost),
            (Self::TokenBucket(limiter), Of::TokenBucket(state)) => limiter.look(state, now, cost),
            (Self::LeakyBucket(limiter), Of::LeakyBucket(state)) => limiter.look(state, now, cost),
            _ => self.look_fresh(now, cost),
        }
    }

    /// A state that another kind of algorithm left counts as fresh.
    #[inline]
    fn charge(&self, state: &mut State, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let time = state.latest.max(now);
        match (self, &mut state.of) {
            (Self::Unlimited(_), _) => {}
            (Self::FixedWindow(limiter), Of::FixedWindow(state)) => limiter.charge(state, time, cost),
            (Self::SlidingWindow(limiter), Of::SlidingWindow(state)) => limiter.charge(state, time, cost),
            (Self::SlidingLog(limiter), Of::SlidingLog(state)) => limiter.charge(state, time, cost),
            (Self::TokenBucket(limiter), Of::TokenBucket(state)) => limiter.charge(state, time, cost),
            (Self::LeakyBucket(limiter), Of::LeakyBucket(state)) => limiter.charge(state, time, cost),
            _ => return self.charge_fresh(state, now, cost),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_another_kind_counts_as_fresh() {
        let quota = "10/s".parse().unwrap();
        for (kind, other) in
            Kind::ALL.iter().flat_map(|kind| Kind::ALL.iter().map(move |other| (*kind, *other)))
        {
            if kind == other || kind == Kind::Unlimited {
                continue;
            }
            let (algorithm, other) = (Algorithm::new(kind, quota), Algorithm::new(other, quota));
            let mut foreign = other.fresh();
            other.charge(&mut foreign, 1_700_000_000, 7);
            for now in [0, 1_600_000_000, 1_700_000_000, 1_800_000_000] {
                let mut fresh = algorithm.fresh();
                assert_eq!(algorithm.look(&foreign, now, 3), algorithm.look(&fresh, now, 3), "{kind} {now}");
                let mut charged = foreign.clone();
                algorithm.charge(&mut charged, now, 3);
                algorithm.charge(&mut fresh, now, 3);
                assert_eq!(charged, fresh, "{kind} {now}");
            }
        }
    }

    #[test]
    fn a_change_to_the_same_quota_changes_nothing() {
        for &kind in Kind::ALL {
            let algorithm = Algorithm::new(kind, "10/s".parse().unwrap());
            let mut state = algorithm.fresh();
            algorithm.charge(&mut state, 1_500_000_000, 3);
            for now in [0, 1_500_000_000, 1_900_000_000, 2_400_000_000, 9_000_000_000] {
                assert_eq!(algorithm.carry_over(&state, now, &algorithm), state, "{kind} {now}");
            }
        }
    }

    #[test]
    fn charging_nothing_changes_nothing() {
        for &kind in Kind::ALL {
            let algorithm = Algorithm::new(kind, "10/s".parse().unwrap());
            let mut state = algorithm.fresh();
            algorithm.charge(&mut state, 1_500_000_000, 3);
            let before = state.clone();
            algorithm.charge(&mut state, 1_600_000_000, 0);
            assert_eq!(state, before, "{kind}");
        }
    }
}
