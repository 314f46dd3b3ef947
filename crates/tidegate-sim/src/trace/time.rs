//! The time of each row: the first row decides how times are read, and all rows are read so.

use super::date::{DateError, Dates};
use super::error::{BadLine, Expected, Found};
use super::number::Decimal;
use super::unit::{TimeReading, TimeUnit};

/// Field names that are taken for the time when none is given: the first of this list that a file has, in any case.
pub(super) const TIME_NAMES: [&str; 10] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "start_time",
    "time_iso8601",
    "time_local",
    "msec",
    "datetime",
    "date",
];

/// The place among `names` of the one that is taken for the time.
pub(super) fn guess(names: &[impl AsRef<str>]) -> Option<usize> {
    TIME_NAMES
        .iter()
        .find_map(|usual| names.iter().position(|name| name.as_ref().eq_ignore_ascii_case(usual)))
}

/// Why a time cannot be read.
#[derive(Debug)]
pub(super) enum TimeFault {
    /// This row has no readable time.
    Bad(BadLine),
    /// It is a bare number of unknown unit, so no row of this file can be read.
    Ambiguous(Found),
}

/// Reads times in one form.
#[derive(Debug)]
pub(super) struct Times {
    unit: Option<TimeUnit>,
    reading: Option<TimeReading>,
    dates: Dates,
}

impl Times {
    pub(super) fn new(unit: Option<TimeUnit>) -> Self {
        Self { unit, reading: None, dates: Dates::default() }
    }

    /// How times are read; `None` before the first one.
    pub(super) fn reading(&self) -> Option<TimeReading> {
        self.reading
    }

    /// The nanoseconds of one time.
    pub(super) fn read(&mut self, text: &[u8]) -> Result<u64, TimeFault> {
        let text = text.trim_ascii();
        let reading = match self.reading {
            Some(reading) => reading,
            None => self.decide(text)?,
        };
        match self.read_as(reading, text) {
            Ok(nanos) => {
                self.reading = Some(reading);
                Ok(nanos)
            }
            Err(DateError::Range) => Err(bad(Expected::TimeInRange, text)),
            Err(DateError::Form) => Err(bad(Expected::TimeAs(reading), text)),
        }
    }

    fn read_as(&mut self, reading: TimeReading, text: &[u8]) -> Result<u64, DateError> {
        match reading {
            TimeReading::LogTime => self.dates.log_time(text),
            TimeReading::Rfc3339 => self.dates.rfc3339(text),
            TimeReading::DateTime => self.dates.utc(text),
            TimeReading::Number(unit) => {
                Decimal::split(text).ok_or(DateError::Form)?.nanos(unit).ok_or(DateError::Range)
            }
            TimeReading::Epoch(unit) => {
                let number = Decimal::split(text).ok_or(DateError::Form)?;
                // Another number of digits is another unit, or another origin: read as this one it would be far off.
                if number.whole_digits() != i64::from(unit.epoch_digits()) {
                    return Err(DateError::Form);
                }
                number.nanos(unit).ok_or(DateError::Range)
            }
        }
    }

    /// The reading that fits the first time.
    fn decide(&mut self, text: &[u8]) -> Result<TimeReading, TimeFault> {
        if let Some(number) = Decimal::split(text) {
            return match (self.unit, TimeUnit::from_epoch_digits(number.whole_digits())) {
                (Some(unit), _) => Ok(TimeReading::Number(unit)),
                (None, Some(unit)) => Ok(TimeReading::Epoch(unit)),
                (None, None) => Err(TimeFault::Ambiguous(Found::text(text))),
            };
        }
        [TimeReading::LogTime, TimeReading::Rfc3339, TimeReading::DateTime]
            .into_iter()
            .find(|reading| self.read_as(*reading, text) != Err(DateError::Form))
            .ok_or_else(|| bad(Expected::Time, text))
    }
}

fn bad(expected: Expected, text: &[u8]) -> TimeFault {
    TimeFault::Bad(BadLine { expected, found: Found::text(text) })
}
