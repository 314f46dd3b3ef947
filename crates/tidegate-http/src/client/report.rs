//! What became of a call: how often it was sent, how long it waited, and why it was not sent again.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use tidegate::Refused;

use crate::hint::{Hint, NoRetry, Signal, Source};

/// What became of a call, in the extensions of its response.
///
/// ```
/// use tidegate_http::client::{Report, Stopped};
///
/// /// A line for the log.
/// fn line<B>(response: &http::Response<B>) -> Option<String> {
///     let report = response.extensions().get::<Report>()?;
///     let stopped = report.stopped.as_ref()?;
///     Some(format!("{} after {} attempts: {stopped}", response.status(), report.attempts))
/// }
/// # assert_eq!(line(&http::Response::new(())), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// How often the call was sent, attempts whose connection did not come about included.
    pub attempts: u32,
    /// How long it waited in all: for its turn in the gate, and between attempts.
    pub waited: Duration,
    /// Why it was not sent again although it was refused or failed. `None` where there was nothing to send again.
    pub stopped: Option<Stopped>,
    /// What the last answer said about waiting, and what is left of its quotas.
    pub hint: Option<Hint>,
}

/// Why a call that was refused or failed is not sent again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// The next attempt would come after the deadline.
    #[error("{}, and the deadline is in {left:?}; call again later or allow a later deadline", who(*wait, signal.as_ref()))]
    Deadline {
        /// The wait that would have been needed.
        wait: Duration,
        /// The time until the deadline.
        left: Duration,
        /// What told the wait; `None` if it is our own backoff.
        signal: Option<Signal>,
    },
    /// The answer says that the same call must not be sent again.
    #[error("{}", why(*.0))]
    Forbidden(NoRetry),
    /// It may have run, and to run it twice may do harm.
    #[error(
        "it may have run, and its method is not idempotent; send an `Idempotency-Key`, or say that it is idempotent"
    )]
    NotIdempotent,
    /// It was sent as often as it may be.
    #[error("it was sent {max} times, as often as it may be; call again later or raise `max_attempts`")]
    Attempts {
        /// How often a call may be sent.
        max: u32,
    },
    /// The body of the request is gone, as with a stream.
    #[error("the body of the request cannot be sent twice; give one that is all in memory")]
    NotRepeatable,
    /// The gate does not take it again.
    #[error("{0}")]
    Refused(Refused),
}

fn who(wait: Duration, signal: Option<&Signal>) -> String {
    match signal {
        Some(signal) => {
            format!("the next attempt would be in {wait:?}, as the server said ({})", Shown(signal))
        }
        None => format!("the next attempt would be in {wait:?}"),
    }
}

const fn why(no_retry: NoRetry) -> &'static str {
    match no_retry {
        NoRetry::ServerSaysSo | NoRetry::Pushback => "the server does not want it again",
        NoRetry::QuotaSpent => "the account has nothing left to spend; add to it or wait for its next period",
        NoRetry::CostAboveCapacity => "it costs more than the server's bucket can ever hold; ask for less",
        NoRetry::NotALimit => "it was not refused for a limit",
    }
}

/// A signal as people write it: `retry-after: 30`.
struct Shown<'a>(&'a Signal);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Signal { source, name, value } = self.0;
        match source {
            Source::Header => write!(f, "`{name}: {value}`"),
            Source::Body => write!(f, "`{name}` in the body: {value}"),
        }
    }
}

/// What closed a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// The status of the answer.
    pub status: StatusCode,
    /// The header or member of the body that told the wait.
    pub signal: Signal,
    /// The wait that it told.
    pub wait: Duration,
}

/// A call that was not sent, or not once more, since the gate did not take it.
///
/// Where the last answer is still there, that is returned instead, with [`Stopped::Refused`] in its [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct NotSent {
    /// Why the gate did not take it.
    pub refused: Refused,
    /// What an earlier answer told, to this or another call, if that holds the gate closed.
    pub told: Option<Box<Told>>,
    /// How often it was sent before.
    pub attempts: u32,
    /// How long it waited before.
    pub waited: Duration,
}

impl NotSent {
    /// How long to wait before calling again, from now, if that can help and is known.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.refused.wait()
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attempts {
            0 => f.write_str("the call was not sent: ")?,
            1 => f.write_str("the call was not sent again: ")?,
            sent => write!(f, "the call was sent {sent} times and not again: ")?,
        }
        match self.told.as_deref() {
            None => write!(f, "{}", self.refused),
            Some(Told { status, signal, wait }) => {
                let status = status.as_u16();
                write!(f, "an answer {status} said to wait {wait:?} ({}); {}", Shown(signal), self.refused)
            }
        }
    }
}

/// The error of a call through a [`PaceService`](super::PaceService).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// It was not sent, or not once more.
    #[error(transparent)]
    NotSent(NotSent),
    /// The service inside failed.
    #[error("{error}{}", after(.report))]
    Failed {
        /// Its error, of the last attempt.
        error: E,
        /// What became of the call.
        report: Box<Report>,
    },
}

impl<E> CallError<E> {
    /// The error of the service inside, if it was that.
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Failed { error, .. } => Some(error),
            Self::NotSent(_) => None,
        }
    }
}

fn after(report: &Report) -> String {
    match &report.stopped {
        Some(stopped) => format!(" (attempt {}; not sent again: {stopped})", report.attempts),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(name: &str, value: &str, source: Source) -> Signal {
        Signal { source, name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn every_text_says_what_to_do() {
        let refused = Refused::Draining;
        let told = Told {
            status: StatusCode::TOO_MANY_REQUESTS,
            signal: signal("retry-after", "30", Source::Header),
            wait: Duration::from_secs(30),
        };
        let not_sent =
            |attempts, told| NotSent { refused, told, attempts, waited: Duration::ZERO }.to_string();
        let deadline = |signal| Stopped::Deadline {
            wait: Duration::from_secs(30),
            left: Duration::from_millis(1500),
            signal,
        };
        let failed = CallError::Failed {
            error: "connection reset",
            report: Box::new(Report {
                attempts: 3,
                stopped: Some(Stopped::Attempts { max: 3 }),
                ..Report::default()
            }),
        };
        let texts = [
            (
                deadline(Some(signal("retry-after", "30", Source::Header))).to_string(),
                "the next attempt would be in 30s, as the server said (`retry-after: 30`), and the deadline is in 1.5s; \
                 call again later or allow a later deadline",
            ),
            (
                deadline(None).to_string(),
                "the next attempt would be in 30s, and the deadline is in 1.5s; call again later or allow a later \
                 deadline",
            ),
            (
                Stopped::Forbidden(NoRetry::QuotaSpent).to_string(),
                "the account has nothing left to spend; add to it or wait for its next period",
            ),
            (
                Stopped::NotIdempotent.to_string(),
                "it may have run, and its method is not idempotent; send an `Idempotency-Key`, or say that it is \
                 idempotent",
            ),
            (
                Stopped::NotRepeatable.to_string(),
                "the body of the request cannot be sent twice; give one that is all in memory",
            ),
            (not_sent(0, None), "the call was not sent: the gate is being drained and takes no new calls"),
            (
                not_sent(1, Some(Box::new(told))),
                "the call was not sent again: an answer 429 said to wait 30s (`retry-after: 30`); the gate is being \
                 drained and takes no new calls",
            ),
            (
                failed.to_string(),
                "connection reset (attempt 3; not sent again: it was sent 3 times, as often as it may be; call again \
                 later or raise `max_attempts`)",
            ),
        ];
        for (text, expected) in texts {
            assert_eq!(text, expected);
        }
    }
}
