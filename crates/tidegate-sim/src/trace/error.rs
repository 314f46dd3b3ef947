//! What can be wrong with a recorded trace, in the words that the user sees.

use std::fmt;
use std::io;

use thiserror::Error;

use super::unit::TimeReading;

/// Why a trace could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The input itself failed.
    #[error("cannot read {file} beyond byte {bytes}")]
    Read {
        /// The name of the input.
        file: Box<str>,
        /// How many raw bytes had been read.
        bytes: u64,
        /// What the input said.
        source: io::Error,
    },
    /// The gzip data stops before its end mark.
    #[error("{file}:{line}: the gzip data ends early; the file is cut off, so fetch it again")]
    Truncated {
        /// The name of the input.
        file: Box<str>,
        /// The first line that is not whole.
        line: u64,
    },
    /// The gzip data is damaged, or something else follows it.
    #[error("{file}:{line}: the gzip data is damaged")]
    Corrupt {
        /// The name of the input.
        file: Box<str>,
        /// The first line that is not whole.
        line: u64,
        /// What the decoder said.
        source: io::Error,
    },
    /// There is no request: nothing at all, only blank lines, or a header alone.
    #[error("no requests in {file}{}", emptiness(*.lines))]
    Empty {
        /// The name of the input.
        file: Box<str>,
        /// How many lines it has.
        lines: u64,
    },
    /// Bad lines were to be skipped, and all of them were bad.
    #[error("no requests in {file}: {skipped} lines cannot be read, the first of them line {}: {}", .first.line, .first.reason)]
    AllSkipped {
        /// The name of the input.
        file: Box<str>,
        /// How many lines were skipped.
        skipped: u64,
        /// The first of them.
        first: SkippedLine,
    },
    /// The first lines are of no known format.
    #[error("{file}:{line}: expected an access log line, a JSON object or a CSV header, found {found}")]
    UnknownFormat {
        /// The name of the input.
        file: Box<str>,
        /// The first line that is not blank.
        line: u64,
        /// How it begins.
        found: Found,
    },
    /// A field that was asked for does not exist.
    #[error("{file}: no field `{field}`; this file has {has}")]
    NoField {
        /// The name of the input.
        file: Box<str>,
        /// What was asked for.
        field: Box<str>,
        /// What there is.
        has: FieldNames,
    },
    /// No field has a usual name for the time.
    #[error("{file}: no field is named like a time; pass `--time FIELD`; this file has {has}")]
    NoTimeField {
        /// The name of the input.
        file: Box<str>,
        /// What there is.
        has: FieldNames,
    },
    /// The time is a bare number and no unit was given.
    #[error(
        "{file}:{line}: time `{field}` is the number {found}, which could be of several units; \
         pass `--time-unit s|ms|us|ns`"
    )]
    AmbiguousTime {
        /// The name of the input.
        file: Box<str>,
        /// Where the number stands.
        line: u64,
        /// The time field.
        field: Box<str>,
        /// The number.
        found: Found,
    },
    /// A line cannot be read, and bad lines are not to be skipped.
    #[error("{file}:{line}: {reason}")]
    BadLine {
        /// The name of the input.
        file: Box<str>,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: BadLine,
    },
    /// More cost fields were asked for than one line may have.
    #[error("{count} cost fields exceed the bound of {max}; sum them before")]
    TooManyCosts {
        /// How many were asked for.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// There are more requests than 32 bits can number.
    #[error("{file}:{line}: more than {} requests; read the file in parts", u32::MAX)]
    TooManyRequests {
        /// The name of the input.
        file: Box<str>,
        /// The first line beyond the bound.
        line: u64,
    },
}

impl TraceError {
    /// Whether this is about one line, so that `skip_bad` would have passed over it.
    #[must_use]
    pub fn is_bad_line(&self) -> bool {
        matches!(self, Self::BadLine { reason, .. } if reason.can_be_skipped())
    }
}

/// What is wrong with a line: `expected ..., found ...`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected {expected}, found {found}")]
pub struct BadLine {
    /// What should have been there.
    pub expected: Expected,
    /// What is there.
    pub found: Found,
}

impl BadLine {
    /// Whether reading can go on behind it: not when it is unknown where the next row begins.
    pub(super) fn can_be_skipped(&self) -> bool {
        !matches!(self.expected, Expected::ClosingQuote | Expected::RowWithin(_))
    }
}

/// A line that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedLine {
    /// The line, from 1; of a row with several lines, the first.
    pub line: u64,
    /// What is wrong with it.
    pub reason: BadLine,
}

impl fmt::Display for SkippedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}, found {}", self.line, self.reason.expected, self.reason.found)
    }
}

/// What a line should have had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// The start of an access log line, up to its time.
    AccessLog,
    /// A JSON object that is whole.
    JsonObject,
    /// As many CSV fields as the header has.
    CsvFields(usize),
    /// The quote that ends a CSV field.
    ClosingQuote,
    /// A CSV row within the bound, in bytes; it is not known where it ends.
    RowWithin(usize),
    /// A line within the bound, in bytes.
    LineWithin(usize),
    /// A field of this name.
    Field(Box<str>),
    /// Text or a number in the field of this name.
    Scalar(Box<str>),
    /// A time, in any form.
    Time,
    /// A time in the form that the first row has.
    TimeAs(TimeReading),
    /// A time that 64 bits of nanoseconds since 1970 can hold.
    TimeInRange,
    /// A whole number in the cost field of this name.
    Cost(Box<str>),
    /// Cost fields whose sum fits in 64 bits.
    CostSum,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AccessLog => {
                f.write_str("an access log line such as `1.2.3.4 - - [17/May/2015:10:05:03 +0000] ...`")
            }
            Self::JsonObject => f.write_str("a JSON object"),
            Self::CsvFields(count) => write!(f, "{count} fields as in the header"),
            Self::ClosingQuote => write!(f, "a closing quote"),
            Self::RowWithin(bytes) => write!(f, "a row of at most {bytes} bytes (is a quote left open?)"),
            Self::LineWithin(bytes) => write!(f, "a line of at most {bytes} bytes"),
            Self::Field(name) => write!(f, "a field `{name}`"),
            Self::Scalar(name) => write!(f, "text or a number in `{name}`"),
            Self::Time => f.write_str(
                "a time (RFC 3339, `YYYY-MM-DD HH:MM:SS` for UTC, `17/May/2015:10:05:03 +0000` or a number)",
            ),
            Self::TimeAs(TimeReading::LogTime) => f.write_str("a time such as `17/May/2015:10:05:03 +0000`"),
            Self::TimeAs(TimeReading::Rfc3339) => f.write_str("a time as in RFC 3339, with a zone"),
            Self::TimeAs(TimeReading::DateTime) => {
                f.write_str("a time as `YYYY-MM-DD HH:MM:SS`, without a zone")
            }
            Self::TimeAs(TimeReading::Epoch(unit)) => {
                write!(f, "a time in epoch {unit} ({} digits), as in the first row", unit.epoch_digits())
            }
            Self::TimeAs(TimeReading::Number(unit)) => write!(f, "a time in {unit}"),
            Self::TimeInRange => f.write_str("a time from 1970 to July 2554"),
            Self::Cost(name) => write!(f, "a whole number up to {} in cost `{name}`", u64::MAX),
            Self::CostSum => write!(f, "costs that sum to at most {}", u64::MAX),
        }
    }
}

/// What a line has instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The text that stands there: printable, cut after [`Found::MAX_CHARS`] characters.
    Text(Box<str>),
    /// The field is there and empty.
    Empty,
    /// The field is not there.
    Nothing,
    /// The line ends.
    EndOfLine,
    /// The file ends.
    EndOfFile,
    /// A JSON null.
    Null,
    /// A JSON array.
    Array,
    /// A JSON object.
    Object,
    /// Broken JSON at this byte of the line, from 1.
    BrokenAt(usize),
    /// This many CSV fields.
    Fields(usize),
    /// More bytes than the bound.
    Longer,
}

impl Found {
    /// How much of a found text is kept: enough to find the place, short enough for one line of a terminal.
    pub const MAX_CHARS: usize = 60;

    /// A name in a message; it may be empty.
    fn name(name: &str) -> Self {
        if name.is_empty() { Self::Text(Box::default()) } else { Self::text(name.as_bytes()) }
    }

    /// What `bytes` look like in a message.
    pub(super) fn text(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::Empty;
        }
        // A character has at most four bytes, so nothing behind this can be shown.
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * (Self::MAX_CHARS + 1))]);
        let mut text = String::new();
        for (index, char) in head.chars().enumerate() {
            if index == Self::MAX_CHARS {
                text.push_str("...");
                break;
            }
            if char.is_control() { text.extend(char.escape_default()) } else { text.push(char) }
        }
        Self::Text(text.into())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "`{text}`"),
            Self::Empty => f.write_str("an empty field"),
            Self::Nothing => f.write_str("none"),
            Self::EndOfLine => f.write_str("the end of the line"),
            Self::EndOfFile => f.write_str("the end of the file"),
            Self::Null => f.write_str("null"),
            Self::Array => f.write_str("an array"),
            Self::Object => f.write_str("an object"),
            Self::BrokenAt(column) => write!(f, "broken JSON at byte {column}"),
            Self::Fields(count) => write!(f, "{count}"),
            Self::Longer => f.write_str("more"),
        }
    }
}

/// The names of the fields that a file has, for a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldNames(pub(super) Vec<Box<str>>);

impl FieldNames {
    /// How many names a message shows.
    pub const MAX_SHOWN: usize = 40;

    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(String::into_boxed_str).collect())
    }

    /// All of them, in the order of the file where it has one.
    #[must_use]
    pub fn names(&self) -> &[Box<str>] {
        &self.0
    }
}

impl fmt::Display for FieldNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().take(Self::MAX_SHOWN).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", Found::name(name))?;
        }
        match self.0.len().saturating_sub(Self::MAX_SHOWN) {
            0 if self.0.is_empty() => f.write_str("none"),
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn emptiness(lines: u64) -> String {
    match lines {
        0 => ": it is empty".to_owned(),
        1 => ": its one line holds none".to_owned(),
        lines => format!(": its {lines} lines hold none"),
    }
}
