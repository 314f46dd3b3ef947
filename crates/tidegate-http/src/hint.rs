//! What a server says about waiting: in its headers, its JSON body or its gRPC trailers.
//!
//! [`Response::hint`] reads an answer of any of the known providers (see [`profile::PROFILES`]) and says how long to wait,
//! which signal said so, and what is left. It is pure: the time is an argument, there is no clock and no float.
//!
//! **Two kinds of signal.** An *instruction* (`Retry-After`, `retry-after-ms`, a `RetryInfo`, a body's `retry_after`, …)
//! decides alone. *Counters* (`…-remaining` with `…-reset`, `RateLimit`) bind without an instruction only, and only
//! through a dimension that is empty: the latest reset of the empty ones. A dimension with quota left never makes anyone
//! wait, even on a 429.
//!
//! **Of several instructions** the longest counts. But `Retry-After: 2` beside `retry-after-ms: 1340` is merely its
//! ceiling: if an instruction in whole seconds is less than a second above the longest finer one, the finer one counts.
//!
//! **Instants** (dates, seconds since 1970) are compared with the response's own `Date`, so the clocks of client and server
//! need not agree. A response with an `Age` above 0 comes from a cache: its counters and its `Date` are not used.
//!
//! **Rounding** is up. A past instant is a wait of 0. What cannot be read is as if it were not there, and is noted.
//!
//! # With a gate
//!
//! A hint only lengthens what the local limit makes a call wait, which is what [`Gate::close_for`] does. Close the gate for
//! the whole budget, on successes too: a counter at zero means that the next call would be refused.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use tidegate::Gate;
//! use tidegate_http::hint::{self, Response};
//!
//! let gate = Gate::new("10/s".parse()?);
//! let hint = Response::new(429, SystemTime::now())
//!     .headers([("retry-after-ms", "1340"), ("retry-after", "2")])
//!     .body(br#"{"error": {"message": "slow down"}}"#)
//!     .hint();
//! assert_eq!(hint.wait, Some(Duration::from_millis(1340)));
//! if let Some(pause) = hint.pause(hint::CEILING) {
//!     gate.close_for(pause.wait);
//! }
//! assert!(gate.try_acquire(1).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not promise
//!
//! It does not say whether an answer *is* a rejection, nor whether a call may be sent twice without harm. `Retry-After` on
//! a redirect or a 202 is about that one resource; the hint is the same. A body that is an event stream is not read: hand in
//! the JSON of the event. Without a wait ([`Reason::Nothing`]) back off on your own. Where the server always says the same
//! (Kubernetes: 1 s), grow the backoff as well. Add jitter upward only.
//!
//! # Bounds
//!
//! [`FIELDS_MAX`] header lines, [`NAME_MAX`] bytes of a name, [`VALUE_MAX`] of a value, [`BODY_MAX`] of a body and 32 KiB of
//! its members that mean something, 32 dimensions and 16 notes are looked at or kept. What is beyond is not read, and that
//! is noted. No bytes make it panic.
//!
//! [`Gate::close_for`]: tidegate::Gate::close_for

mod body;
mod date;
mod evidence;
mod form;
mod grpc;
mod headers;
mod number;
pub mod profile;
mod structured;
mod tables;
mod text;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::evidence::Evidence;
use self::form::Clock;
use self::profile::{PROFILES, Profile};

pub use self::text::in_text;

/// The longest wait that a hint tells: 2^31 s, 68 years. RFC 9111 1.2.2 has larger numbers of seconds saturate there.
pub const WAIT_MAX: Duration = Duration::from_secs(1 << 31);

/// A ceiling for [`Hint::pause`] against a server that is hostile or broken: 24 h, the longest reset of common quotas
/// (per day). Doubling it lets such a server stop a client for two days.
pub const CEILING: Duration = Duration::from_secs(86_400);

/// How many header lines are read. Servers send some 30.
pub const FIELDS_MAX: usize = 256;

/// How many bytes the name of a header or a dimension may have.
pub const NAME_MAX: usize = 64;

/// How many bytes the value of a header may have, all lines of a list together: 8 KiB, what servers accept for all headers.
pub const VALUE_MAX: usize = 8192;

/// How many bytes a body may have to be read: 256 KiB. A longer one is not read, since half a JSON document is none.
pub const BODY_MAX: usize = 256 * 1024;

/// An answer of a server, as far as it is known.
#[derive(Debug, Clone)]
pub struct Response<'a> {
    status: u16,
    now: SystemTime,
    fields: Vec<(&'a [u8], &'a [u8])>,
    has_more_fields: bool,
    body: &'a [u8],
    profile: Option<&'a Profile>,
}

impl<'a> Response<'a> {
    /// An answer with this status, which came `now`. Instants are compared with `now` if the answer has no `Date`.
    #[must_use]
    pub fn new(status: u16, now: SystemTime) -> Self {
        Self { status, now, fields: Vec::new(), has_more_fields: false, body: &[], profile: None }
    }

    /// Adds header lines, in any order. Trailers are added the same way.
    ///
    /// An `http::HeaderMap` fits as it is:
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// let mut headers = http::HeaderMap::new();
    /// headers.insert("retry-after", http::HeaderValue::from_static("Thu, 01 Jan 1970 00:00:30 GMT"));
    /// let hint = tidegate_http::hint::Response::new(503, UNIX_EPOCH).headers(&headers).hint();
    /// assert_eq!(hint.wait, Some(Duration::from_secs(30)));
    /// ```
    #[must_use]
    pub fn headers<N, V>(mut self, headers: impl IntoIterator<Item = (&'a N, &'a V)>) -> Self
    where
        N: AsRef<[u8]> + ?Sized + 'a,
        V: AsRef<[u8]> + ?Sized + 'a,
    {
        for (name, value) in headers {
            if self.fields.len() == FIELDS_MAX {
                self.has_more_fields = true;
                break;
            }
            self.fields.push((name.as_ref(), value.as_ref()));
        }
        self
    }

    /// The body, of any kind. Without it, what a body says is not known.
    #[must_use]
    pub fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    /// A profile that goes before the known ones, for a service that gives a known name another meaning.
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// use tidegate_http::hint::Response;
    /// use tidegate_http::hint::profile::{Form, Profile, Rule, Says};
    ///
    /// const OURS: Profile = Profile {
    ///     name: "ours",
    ///     providers: &["ours"],
    ///     headers: &[
    ///         Rule { header: "x-ratelimit-remaining", says: Says::Remaining("default") },
    ///         Rule { header: "x-ratelimit-reset", says: Says::Reset("default", Form::Milliseconds) },
    ///     ],
    ///     body: &[],
    /// };
    /// let hint = Response::new(429, UNIX_EPOCH)
    ///     .headers([("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "600000")])
    ///     .profile(&OURS)
    ///     .hint();
    /// assert_eq!(hint.wait, Some(Duration::from_secs(600)));
    /// ```
    #[must_use]
    pub fn profile(mut self, profile: &'a Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// What the answer says about waiting.
    #[must_use]
    pub fn hint(&self) -> Hint {
        let profiles = self.profile.into_iter().chain(PROFILES);
        let mut evidence = Evidence::default();
        let stale = self.first("age", number::whole_number).is_some_and(|seconds| seconds > 0);
        let now = since_1970(self.now);
        let date = self.first("date", |text| date::http_date(text, now)).filter(|_| !stale);
        let clock = Clock(date.unwrap_or(now));
        if self.has_more_fields {
            evidence.note(Note::TooMuch);
        }
        headers::read(&self.fields, clock, stale, &profiles, &mut evidence);
        if self.body.len() > BODY_MAX {
            evidence.note(Note::TooMuch);
        } else {
            body::read(self.body, self.status, clock, profiles, &mut evidence);
        }
        evidence.conclude(self.status)
    }

    /// The first header of a name that can be read.
    fn first<T>(&self, name: &str, read: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let is_named = |field: &&(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
        let values = self.fields.iter().filter(is_named).map(|(_, value)| value.trim_ascii());
        values.filter(|value| value.len() <= VALUE_MAX).find_map(read)
    }
}

/// Nanoseconds since 1970, negative before.
fn since_1970(time: SystemTime) -> i128 {
    let ns = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => ns(after),
        Err(before) => -ns(before.duration()),
    }
}

/// What a server says about waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hint {
    /// How long to wait before the next call of this budget, as the server told it, at most [`WAIT_MAX`]. 0 means now.
    /// `None` if it told nothing. Use [`Self::pause`] to close a gate.
    pub wait: Option<Duration>,
    /// What kind of signal told the wait.
    pub reason: Reason,
    /// The header or member of the body that told it.
    pub signal: Option<Signal>,
    /// Why this call must not be sent again. The wait is for other calls then.
    pub no_retry: Option<NoRetry>,
    /// Which calls are meant, if the answer says so.
    pub scope: Option<Scope>,
    /// What is counted, and what is left of it.
    pub dimensions: Vec<Dimension>,
    /// How many calls may be in flight, if the answer says so.
    pub in_flight_limit: Option<u64>,
    /// Whether the limit that refused is one of calls in flight: lower those, and not the rate.
    pub in_flight_refused: bool,
    /// What else is worth knowing, such as a hint that could not be read.
    pub notes: Vec<Note>,
}

impl Hint {
    /// For how long to close a gate: the wait, with a second more if it was rounded down, and `ceiling` at most.
    ///
    /// A wait above the ceiling is reported as such ([`Pause::is_cut`]), since the server will likely refuse the next call.
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// use tidegate_http::hint::{self, Response};
    ///
    /// let hint = Response::new(429, UNIX_EPOCH).headers([("retry-after", "1000000")]).hint();
    /// let pause = hint.pause(hint::CEILING).unwrap();
    /// assert_eq!(hint.wait, Some(Duration::from_secs(1_000_000)));
    /// assert_eq!((pause.wait, pause.is_cut), (hint::CEILING, true));
    /// ```
    #[must_use]
    pub fn pause(&self, ceiling: Duration) -> Option<Pause> {
        let more =
            if self.notes.contains(&Note::RoundedDown) { Duration::from_secs(1) } else { Duration::ZERO };
        let wait = self.wait?.saturating_add(more);
        Some(Pause { wait: wait.min(ceiling), is_cut: wait > ceiling })
    }

    /// What is left in a dimension, if that is known.
    #[must_use]
    pub fn remaining(&self, dimension: &str) -> Option<u64> {
        self.dimensions.iter().find(|known| known.name == dimension)?.remaining
    }
}

/// For how long a gate is closed because of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// How long.
    pub wait: Duration,
    /// Whether the server told a longer wait than the ceiling.
    pub is_cut: bool,
}

/// What kind of signal told the wait.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The server said how long.
    Instruction,
    /// A dimension is empty until its reset.
    Empty {
        /// Its name.
        dimension: String,
    },
    /// The server said what it is, and its documentation how long that takes.
    Documented,
    /// Nothing told a wait: back off on your own, longer each time and with jitter.
    Nothing,
}

/// A header or a member of a body that said something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// Where it was.
    pub source: Source,
    /// The name of the header in lower case, or the path of the member, such as `error.details[].retryDelay`.
    pub name: String,
    /// Its value, up to 80 bytes of it, with what is not printable ASCII written out.
    pub value: String,
}

/// Where a signal was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In a header or a trailer.
    Header,
    /// In the body.
    Body,
}

impl Signal {
    /// How much of a value is kept.
    const VALUE_SHOWN: usize = 80;

    fn new(source: Source, name: &str, value: &[u8]) -> Self {
        let shown = value.get(..Self::VALUE_SHOWN).unwrap_or(value);
        let mut text = String::with_capacity(shown.len());
        for byte in shown {
            match byte {
                b' '..=b'~' => text.push(char::from(*byte)),
                _ => text.extend(std::ascii::escape_default(*byte).map(char::from)),
            }
        }
        Self { source, name: name.to_owned(), value: text }
    }
}

/// Why a call must not be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoRetry {
    /// A header says that the server does not want it again.
    ServerSaysSo,
    /// gRPC's pushback is negative or no number.
    Pushback,
    /// The account has nothing left to spend.
    QuotaSpent,
    /// It costs more than the bucket can ever hold.
    CostAboveCapacity,
    /// It is a 403, and the counters show quota left: it was not refused for a limit.
    NotALimit,
}

/// Which calls a hint is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Those of the bucket with this name. Discord's also depends on the channel, guild or webhook in the path.
    Bucket(String),
    /// All that this client makes.
    Global,
}

/// Something that is counted: requests, tokens, the default of a provider that names nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dimension {
    /// Its name, such as `input_tokens`; `default` if there is none.
    pub name: String,
    /// How much there is in all.
    pub limit: Option<u64>,
    /// What is left, rounded down.
    pub remaining: Option<u64>,
    /// The time until there is more, 0 if that is past.
    pub reset: Option<Duration>,
}

/// What else is worth knowing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A signal about waiting that could not be read, and so counts as not there.
    Unreadable(Signal),
    /// An instant since 1970 stood where a delay is written. It was taken for the instant.
    Instant(Signal),
    /// The wait was longer than [`WAIT_MAX`].
    Saturated,
    /// The wait was rounded down to whole seconds: the quota may come back up to a second later.
    RoundedDown,
    /// The answer comes from a cache, so its counters were not used.
    Stale,
    /// There was more than is looked at.
    TooMuch,
}
