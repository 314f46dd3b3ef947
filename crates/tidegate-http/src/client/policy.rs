//! Whether a call is sent once more, and when: pure, with time and randomness as arguments.
//!
//! ```text
//! what came back                             | sent again, if
//! -------------------------------------------|------------------------------------------------------
//! 429; a 403 whose hint tells a limit;       | any method: the server says that it did not run it
//!   a refusal in the body of a success       |
//! 408, 425, 5xx but 501 and 505; any other   | the call is idempotent: it may have run
//!   error with an instruction to wait        |
//! an error before the head of an answer      | the call is idempotent, or it was surely not sent
//! anything else                              | never: it is the answer
//! ```
//!
//! And in any case only if the answer does not forbid it, an attempt is left, the request can be repeated, and the wait
//! ends before the deadline.
//!
//! **The wait** of attempt `n` is the longer of what the server told and of our own backoff, which is uniform in
//! `0 ..= min(backoff · 2^(n-1), backoff_max)` ("full jitter"). After the first attempt a told wait counts alone. A server that
//! goes on to say `Retry-After: 0`, or always 1, meets a backoff that grows.

use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;

use super::report::Stopped;
use crate::hint::{Hint, Reason, Source};

/// How an error came about, for whether the call may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Nothing was sent, as when no connection came about: any call may be sent again.
    Unsent,
    /// It may have been sent: an idempotent call may be sent again.
    Unknown,
    /// It would fail again, as with an address that is none.
    Final,
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome<'a> {
    /// An answer, and for how long it closed the gate.
    Answer { status: StatusCode, hint: &'a Hint, pause: Option<Duration> },
    /// An error before the head of an answer.
    Failed(Failure),
}

/// What there is to know of a call after an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    /// How many attempts were made, this one included.
    pub(super) attempts: u32,
    /// The time until the deadline.
    pub(super) left: Duration,
    pub(super) is_idempotent: bool,
    /// Whether there is a request to send once more.
    pub(super) can_repeat: bool,
    /// Uniform in all of `u64`.
    pub(super) random: u64,
}

/// What follows from an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// This is the answer: nothing is to be sent again.
    Done,
    /// The call is sent again.
    Retry {
        /// When at the earliest: the longer of what the server told and the backoff.
        after: Duration,
    },
    /// It would be sent again, but for this.
    Stop(Stopped),
}

/// The numbers that decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    pub(super) max_attempts: NonZeroU32,
    pub(super) backoff: Duration,
    pub(super) backoff_max: Duration,
}

/// Whether something is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// It is the answer.
    Final,
    /// The server did not run it.
    NotRun,
    /// Nobody knows if it ran.
    MayHaveRun,
}

impl Policy {
    pub(super) fn judge(&self, outcome: Outcome<'_>, now: Situation) -> Verdict {
        let needs_idempotent = match outcome.class() {
            Class::Final => return Verdict::Done,
            Class::NotRun => false,
            Class::MayHaveRun => true,
        };
        let (told, signal) = match outcome {
            Outcome::Answer { hint, pause, .. } => {
                if let Some(why) = hint.no_retry {
                    return Verdict::Stop(Stopped::Forbidden(why));
                }
                (pause, hint.signal.as_ref())
            }
            Outcome::Failed(_) => (None, None),
        };
        if needs_idempotent && !now.is_idempotent {
            return Verdict::Stop(Stopped::NotIdempotent);
        }
        if now.attempts >= self.max_attempts.get() {
            return Verdict::Stop(Stopped::Attempts { max: self.max_attempts.get() });
        }
        if !now.can_repeat {
            return Verdict::Stop(Stopped::NotRepeatable);
        }
        let backoff = match told {
            Some(_) if now.attempts == 1 => Duration::ZERO,
            _ => self.full_jitter(now.attempts, now.random),
        };
        let after = told.unwrap_or_default().max(backoff);
        if after > now.left {
            return Verdict::Stop(Stopped::Deadline { wait: after, left: now.left, signal: signal.cloned() });
        }
        Verdict::Retry { after }
    }

    /// A part of the longest backoff after this many attempts.
    fn full_jitter(&self, attempts: u32, random: u64) -> Duration {
        let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1));
        part(self.backoff.saturating_mul(doubled).min(self.backoff_max), random)
    }
}

impl Outcome<'_> {
    fn class(&self) -> Class {
        let (status, hint) = match self {
            Self::Failed(Failure::Unsent) => return Class::NotRun,
            Self::Failed(Failure::Unknown) => return Class::MayHaveRun,
            Self::Failed(Failure::Final) => return Class::Final,
            Self::Answer { status, hint, .. } => (*status, hint),
        };
        let is_told = hint.reason == Reason::Instruction;
        let told_by = hint.signal.as_ref().map(|signal| signal.source);
        match status.as_u16() {
            429 => Class::NotRun,
            403 if hint.reason != Reason::Nothing => Class::NotRun,
            // GraphQL, JSON-RPC: the refusal is in the body.
            200..=299 if told_by == Some(Source::Body) && is_told => Class::NotRun,
            200..=299 if hint.no_retry == Some(crate::hint::NoRetry::CostAboveCapacity) => Class::NotRun,
            501 | 505 => Class::Final,
            408 | 425 | 500..=599 => Class::MayHaveRun,
            400..=499 if is_told => Class::MayHaveRun,
            _ => Class::Final,
        }
    }
}

/// Whether what an answer tells is about all calls of the budget. `Retry-After` on a redirect or on a 202 is about when to
/// ask for that one thing again (RFC 9110 10.2.3).
pub(super) fn is_for_all(status: StatusCode, hint: &Hint) -> bool {
    let is_about_one = status.is_redirection() || status == StatusCode::ACCEPTED;
    !(is_about_one && hint.reason == Reason::Instruction)
}

/// The most that jitter makes a told wait longer. After a quota of a day, six minutes for nothing would be too much; ten
/// seconds spread a thousand clients to a hundred a second.
const JITTER_MAX: Duration = Duration::from_secs(10);

/// A told wait and up to a tenth more, so that all who were told the same do not come back at once. Never less: a hint is a
/// promise of when the next call may be allowed, and not before.
pub(super) fn with_jitter(wait: Duration, random: u64) -> Duration {
    wait.saturating_add(part((wait / 10).min(JITTER_MAX), random))
}

/// `random / 2^64` of a time.
fn part(of: Duration, random: u64) -> Duration {
    // 2^64 ns are 584 years.
    let ns = of.as_nanos().min(u128::from(u64::MAX)) * u128::from(random);
    Duration::from_nanos_u128(ns >> 64)
}

/// Whether a method does no harm when it is sent twice (RFC 9110 9.2.2), or the request has a key by which the server
/// tells that it is the same (the field `Idempotency-Key`).
pub(super) fn is_idempotent(method: &http::Method, headers: &http::HeaderMap) -> bool {
    method.is_idempotent() || headers.get("idempotency-key").is_some_and(|key| !key.is_empty())
}

#[cfg(test)]
mod tests;
