//! The words for how a time is written: the unit of a bare number, and the form that one file uses.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The unit of a time that is written as a bare number.
///
/// # Examples
///
/// ```
/// use tidegate_sim::TimeUnit;
///
/// assert_eq!("ms".parse(), Ok(TimeUnit::Millis));
/// let error = "sec".parse::<TimeUnit>().unwrap_err();
/// assert_eq!(error.to_string(), "unknown time unit `sec`; use s, ms, us or ns");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    /// Seconds, written `s`.
    Seconds,
    /// Milliseconds, written `ms`.
    Millis,
    /// Microseconds, written `us`.
    Micros,
    /// Nanoseconds, written `ns`.
    Nanos,
}

impl TimeUnit {
    /// The power of ten that turns this unit into nanoseconds.
    pub(super) fn nanos_exponent(self) -> u8 {
        match self {
            Self::Seconds => 9,
            Self::Millis => 6,
            Self::Micros => 3,
            Self::Nanos => 0,
        }
    }

    /// How many digits the whole part of a time since 1970 has in this unit, from 2001-09-09 to 2286-11-20.
    pub(super) fn epoch_digits(self) -> u8 {
        19 - self.nanos_exponent()
    }

    /// The unit in which a whole part of this many digits is a time since 1970 from 2001 to 2286, if any.
    pub(super) fn from_epoch_digits(digits: i64) -> Option<Self> {
        [Self::Seconds, Self::Millis, Self::Micros, Self::Nanos]
            .into_iter()
            .find(|unit| i64::from(unit.epoch_digits()) == digits)
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seconds => "seconds",
            Self::Millis => "milliseconds",
            Self::Micros => "microseconds",
            Self::Nanos => "nanoseconds",
        })
    }
}

impl FromStr for TimeUnit {
    type Err = UnknownTimeUnit;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "s" => Ok(Self::Seconds),
            "ms" => Ok(Self::Millis),
            "us" => Ok(Self::Micros),
            "ns" => Ok(Self::Nanos),
            _ => Err(UnknownTimeUnit { found: text.into() }),
        }
    }
}

/// A text that names no [`TimeUnit`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown time unit `{found}`; use s, ms, us or ns")]
pub struct UnknownTimeUnit {
    /// The text.
    pub found: Box<str>,
}

/// How the times of one file are read: decided on the first row, and the same for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeReading {
    /// `17/May/2015:10:05:03 +0000`, as access logs write it.
    LogTime,
    /// A date and a time with `Z` or an offset: `2024-05-17T10:05:03.25+02:00`.
    Rfc3339,
    /// A date and a time without a zone, `2024-05-17 10:05:03.25`, taken as UTC.
    DateTime,
    /// A number of units since 1970; the unit was told by the number of digits.
    Epoch(TimeUnit),
    /// A number of units since the origin of the file; the unit was given.
    Number(TimeUnit),
}

impl fmt::Display for TimeReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogTime => f.write_str("log time"),
            Self::Rfc3339 => f.write_str("RFC 3339"),
            Self::DateTime => f.write_str("date and time in UTC"),
            Self::Epoch(unit) => write!(f, "epoch {unit}"),
            Self::Number(unit) => write!(f, "{unit}"),
        }
    }
}
