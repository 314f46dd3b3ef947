//! Recorded traffic to [`Arrivals`]: access logs, JSON lines and CSV, plain or gzip-compressed.
//!
//! [`read`] takes any reader. It tells the format by how the input begins, takes from each line only what is asked for,
//! and puts the arrivals in time order. Nothing is left out in silence: a line that cannot be read is an error that names
//! it, or is counted when the caller chose to skip such lines.
//!
//! What is guessed, and said so in the [`Trace`]: the format, which field holds the time when none is named, and how
//! times are written. What is never guessed: the key, the cost, and the unit of a number that could be of several.
//!
//! Times are read exactly, without floats. Numbers finer than a nanosecond are cut off; dates have up to 9 digits of
//! fraction. The first row decides how times are written, and a row that is written otherwise is a bad line.
//!
//! Bounds: a line of 1 MiB, 14 cost fields, 2^32 - 1 requests. Memory is 8 bytes per request, 4 more with keys and 8 more
//! with costs, at most 34 while lines that are out of order are sorted; each distinct key adds its text and about 40
//! bytes; and 2 MiB of buffers.

mod columns;
mod combined;
mod csv;
mod date;
mod error;
mod format;
mod input;
mod json;
mod keys;
mod number;
mod time;
mod unit;

use std::io::Read;

use self::columns::{Columns, Row, RowFault};
use self::combined::{Field, LogLine, LogRow};
use self::csv::{CsvRow, Rows, RowsFault};
use self::input::{InputFault, Line, Lines, MAX_LINE};
use self::json::{JsonFields, JsonRow, MAX_FIELDS, Paths};
use self::time::Times;
use crate::Arrivals;

pub use self::error::{BadLine, Expected, FieldNames, Found, SkippedLine, TraceError};
pub use self::format::Format;
pub use self::unit::{TimeReading, TimeUnit, UnknownTimeUnit};

/// What to take from a trace.
///
/// A field is named by its header in CSV; by its name, or a path such as `request.remote_ip`, in JSON; and in access logs
/// it is one of `time`, `client` (also `remote_addr` or `ip`), `user`, `method`, `path` (without the query), `status`,
/// `bytes` (`-` is 0), `referer` and `user_agent`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceOptions {
    /// The field with the time. `None` takes, of JSON and CSV, the first field of this list, in any case: `time`,
    /// `timestamp`, `@timestamp`, `ts`, `start_time`, `time_iso8601`, `time_local`, `msec`, `datetime`, `date`.
    pub time: Option<String>,
    /// The field whose text is the key. `None` lets all arrivals share one bucket.
    pub key: Option<String>,
    /// The fields whose sum is the cost, whole numbers each, at most 14. None at all makes every arrival cost 1.
    pub cost: Vec<String>,
    /// The unit of times that are bare numbers. `None` accepts numbers that can only be of one unit, as times since 1970
    /// from 2001 to 2286: 10 digits before the point are seconds, 13 milliseconds, 16 microseconds, 19 nanoseconds. It
    /// changes nothing for times that are not numbers.
    pub time_unit: Option<TimeUnit>,
    /// Whether to count and pass over lines that cannot be read, instead of stopping at the first. A CSV row that has no
    /// end stops either way: where the next one begins is not known.
    pub skip_bad: bool,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// The requests in time order; there is at least one.
    pub arrivals: Arrivals,
    /// The format of the lines.
    pub format: Format,
    /// Whether the input was compressed with gzip.
    pub gzip: bool,
    /// The field that the times come from.
    pub time_field: String,
    /// How its times are written.
    pub time_reading: TimeReading,
    /// Whether the time field was chosen by its name because none was given; never for access logs, which have one.
    pub time_guessed: bool,
    /// How many lines the input has, with blank ones and a header.
    pub lines: u64,
    /// How many rows could not be read and were passed over; always 0 without [`TraceOptions::skip_bad`].
    pub skipped: u64,
    /// The first of them.
    pub first_skipped: Option<SkippedLine>,
    /// How many rows are earlier than the one before; the arrivals are sorted, with ties as in the file.
    pub out_of_order: u64,
}

/// Reads a whole trace. `name` stands for the input in messages; `progress` is told how many raw bytes have been read,
/// about once per 128 KiB.
///
/// # Errors
///
/// [`TraceError`] when the input fails, its format is unknown, a field that was asked for does not exist, a line cannot be
/// read (unless such lines are to be skipped), or there is no request at all.
///
/// # Examples
///
/// ```
/// use tidegate_sim::TraceOptions;
/// use tidegate_sim::trace::read;
///
/// let log = "2024-05-17 10:00:00.5,ann,7\n2024-05-17 10:00:00,bob,8\n";
/// let csv = format!("date,user,tokens\n{log}");
/// let options = TraceOptions {
///     key: Some("user".to_owned()),
///     cost: vec!["tokens".to_owned()],
///     ..TraceOptions::default()
/// };
/// let trace = read(csv.as_bytes(), "log.csv", &options, &mut |_| {})?;
/// assert_eq!(trace.arrivals.times, [1_715_940_000_000_000_000, 1_715_940_000_500_000_000]);
/// assert_eq!(trace.arrivals.cost(0), 8);
/// assert_eq!(trace.time_field, "date");
/// assert_eq!(trace.time_reading.to_string(), "date and time in UTC");
/// assert_eq!(trace.out_of_order, 1);
/// # Ok::<(), tidegate_sim::TraceError>(())
/// ```
pub fn read(
    mut input: impl Read,
    name: &str,
    options: &TraceOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Trace, TraceError> {
    let max_costs = MAX_FIELDS - 2;
    if options.cost.len() > max_costs {
        return Err(TraceError::TooManyCosts { count: options.cost.len(), max: max_costs });
    }
    let mut reading = Reading::new(name, options);
    let lines = Lines::open(&mut input, progress).map_err(|fault| reading.input_fault(fault, 1))?;
    let gzip = lines.is_gzip();
    let Some(format) = Format::detect(lines.head()) else {
        return Err(reading.unknown_format(lines));
    };
    match format {
        Format::AccessLog => reading.access_log(lines)?,
        Format::JsonLines => reading.json_lines(lines)?,
        Format::Csv => reading.csv(lines)?,
    }
    reading.finish(format, gzip)
}

/// A trace while it is read.
struct Reading<'o> {
    file: &'o str,
    options: &'o TraceOptions,
    columns: Columns<'o>,
    time_field: String,
    time_guessed: bool,
    lines: u64,
    skipped: u64,
    first_skipped: Option<SkippedLine>,
    /// Why the first row did not have the fields that were asked for; the error when no row ever has.
    unresolved: Option<TraceError>,
}

impl<'o> Reading<'o> {
    fn new(file: &'o str, options: &'o TraceOptions) -> Self {
        Self {
            file,
            options,
            columns: Columns::new(Times::new(options.time_unit), options.key.is_some(), &options.cost),
            time_field: options.time.clone().unwrap_or_default(),
            time_guessed: false,
            lines: 0,
            skipped: 0,
            first_skipped: None,
            unresolved: None,
        }
    }

    fn access_log(&mut self, lines: Lines<'_>) -> Result<(), TraceError> {
        let mut fields: Option<(Option<Field>, Vec<Field>)> = None;
        self.each_line(lines, |this, number, text| {
            let Some(line) = LogLine::parse(text) else {
                return this.bad(number, BadLine { expected: Expected::AccessLog, found: Found::text(text) });
            };
            let (key, costs) = match &fields {
                Some(fields) => fields,
                None => fields.insert(this.log_fields(&line)?),
            };
            this.row(number, &LogRow { line, key: *key, costs })
        })
    }

    /// The key and the costs, when the first line has them.
    fn log_fields(&mut self, line: &LogLine<'_>) -> Result<(Option<Field>, Vec<Field>), TraceError> {
        let has = Field::of(line);
        let find = |name: &String| {
            let field = Field::from_name(name).filter(|field| has.contains(field));
            field.ok_or_else(|| self.no_field(name, combined::field_names(&has)))
        };
        if let Some(name) = &self.options.time
            && Field::from_name(name) != Some(Field::Time)
        {
            return Err(self.no_field(name, combined::field_names(&[Field::Time])));
        }
        let key = self.options.key.as_ref().map(find).transpose()?;
        let costs = self.options.cost.iter().map(find).collect::<Result<_, _>>()?;
        Field::Time.name().clone_into(&mut self.time_field);
        Ok((key, costs))
    }

    fn json_lines(&mut self, lines: Lines<'_>) -> Result<(), TraceError> {
        let mut paths: Option<Paths> = None;
        self.each_line(lines, |this, number, text| {
            let text = text.trim_ascii();
            if paths.is_none() {
                paths = this.json_paths(number, text)?;
            }
            // Without paths the line was bad, and that has been said.
            let Some(paths) = &paths else { return Ok(()) };
            match JsonRow::parse(text, paths) {
                Ok(row) => this.row(number, &row),
                Err(bad) => this.bad(number, bad),
            }
        })
    }

    /// The paths to the fields, when this object has them; `None` when it has not and bad lines are skipped.
    fn json_paths(&mut self, number: u64, text: &[u8]) -> Result<Option<Paths>, TraceError> {
        let fields = match JsonFields::of(text) {
            Ok(fields) => fields,
            Err(bad) => return self.bad(number, bad).map(|()| None),
        };
        let guess = fields.time().map(str::to_owned);
        let Some(time) = self.options.time.clone().or(guess) else {
            let error = TraceError::NoTimeField { file: self.file.into(), has: fields.into_names() };
            return self.unresolved(number, error, time::TIME_NAMES[0]);
        };
        let paths = Paths::new(&time, self.options.key.as_deref(), &self.options.cost);
        let missing = match JsonRow::parse(text, &paths) {
            Ok(row) => paths.missing_in(&row),
            Err(bad) => return self.bad(number, bad).map(|()| None),
        };
        if let Some(missing) = missing {
            let error = self.no_field(missing, fields.into_names());
            return self.unresolved(number, error, missing);
        }
        self.time_guessed = self.options.time.is_none();
        self.time_field = time;
        Ok(Some(paths))
    }

    /// A row before the first good one lacks a field: an error, or a line to skip, as servers log other events too.
    fn unresolved<T>(
        &mut self,
        number: u64,
        error: TraceError,
        field: &str,
    ) -> Result<Option<T>, TraceError> {
        if !self.options.skip_bad {
            return Err(error);
        }
        self.unresolved.get_or_insert(error);
        let bad = BadLine { expected: Expected::Field(field.into()), found: Found::Nothing };
        self.bad(number, bad).map(|()| None)
    }

    fn csv(&mut self, lines: Lines<'_>) -> Result<(), TraceError> {
        let mut rows = match Rows::open(lines) {
            Ok(rows) => rows,
            Err((fault, line)) => return Err(self.rows_fault(fault, line)),
        };
        let column = |name: &String| rows.column(name).ok_or_else(|| self.no_field(name, rows.names()));
        let time = match &self.options.time {
            Some(name) => column(name)?,
            None => rows
                .time_column()
                .ok_or_else(|| TraceError::NoTimeField { file: self.file.into(), has: rows.names() })?,
        };
        let key = self.options.key.as_ref().map(column).transpose()?;
        let costs: Vec<usize> = self.options.cost.iter().map(column).collect::<Result<_, _>>()?;
        self.time_guessed = self.options.time.is_none();
        rows.name(time).clone_into(&mut self.time_field);
        loop {
            match rows.next() {
                Ok(true) => self.row(rows.line(), &CsvRow { rows: &rows, time, key, costs: &costs })?,
                Ok(false) => break,
                Err(RowsFault::Bad(bad)) => self.bad(rows.line(), bad)?,
                Err(fault) => return Err(self.rows_fault(fault, rows.line())),
            }
        }
        self.lines = rows.lines();
        Ok(())
    }

    /// Hands over each line that is not blank.
    fn each_line(
        &mut self,
        mut lines: Lines<'_>,
        mut take: impl FnMut(&mut Self, u64, &[u8]) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        loop {
            let number = lines.number() + 1;
            match lines.next() {
                Ok(Some(Line::Whole(text))) if text.trim_ascii_start().is_empty() => {}
                Ok(Some(Line::Whole(text))) => take(self, number, text)?,
                Ok(Some(Line::TooLong)) => {
                    self.bad(
                        number,
                        BadLine { expected: Expected::LineWithin(MAX_LINE), found: Found::Longer },
                    )?;
                }
                Ok(None) => break,
                Err(fault) => return Err(self.input_fault(fault, number)),
            }
        }
        self.lines = lines.number();
        Ok(())
    }

    fn row(&mut self, line: u64, row: &impl Row) -> Result<(), TraceError> {
        let file = self.file;
        match self.columns.push(row) {
            Ok(()) => Ok(()),
            Err(RowFault::Bad(bad)) => self.bad(line, bad),
            Err(RowFault::AmbiguousTime(found)) => {
                let field = self.time_field.as_str().into();
                Err(TraceError::AmbiguousTime { file: file.into(), line, field, found })
            }
            Err(RowFault::TooMany) => Err(TraceError::TooManyRequests { file: file.into(), line }),
        }
    }

    /// Counts a bad line, or stops at it.
    fn bad(&mut self, line: u64, reason: BadLine) -> Result<(), TraceError> {
        if !self.options.skip_bad || !reason.can_be_skipped() {
            return Err(TraceError::BadLine { file: self.file.into(), line, reason });
        }
        self.skipped += 1;
        self.first_skipped.get_or_insert(SkippedLine { line, reason });
        Ok(())
    }

    fn finish(self, format: Format, gzip: bool) -> Result<Trace, TraceError> {
        let (false, Some(time_reading)) = (self.columns.is_empty(), self.columns.time_reading()) else {
            return Err(match (self.unresolved, self.first_skipped) {
                (Some(unresolved), _) => unresolved,
                (None, Some(first)) => {
                    TraceError::AllSkipped { file: self.file.into(), skipped: self.skipped, first }
                }
                (None, None) => TraceError::Empty { file: self.file.into(), lines: self.lines },
            });
        };
        Ok(Trace {
            out_of_order: self.columns.out_of_order(),
            arrivals: self.columns.finish(),
            format,
            gzip,
            time_field: self.time_field,
            time_reading,
            time_guessed: self.time_guessed,
            lines: self.lines,
            skipped: self.skipped,
            first_skipped: self.first_skipped,
        })
    }

    fn no_field(&self, field: &str, has: FieldNames) -> TraceError {
        TraceError::NoField { file: self.file.into(), field: field.into(), has }
    }

    fn rows_fault(&self, fault: RowsFault, line: u64) -> TraceError {
        match fault {
            RowsFault::Input(fault) => self.input_fault(fault, line),
            RowsFault::Bad(reason) => TraceError::BadLine { file: self.file.into(), line, reason },
        }
    }

    fn input_fault(&self, fault: InputFault, line: u64) -> TraceError {
        let file = self.file.into();
        match fault {
            InputFault::Read(source, bytes) => TraceError::Read { file, bytes, source },
            InputFault::Truncated => TraceError::Truncated { file, line },
            InputFault::Corrupt(source) => TraceError::Corrupt { file, line, source },
        }
    }

    /// Why the format is not known: there is no line that is not blank, or the first one is of none.
    fn unknown_format(&mut self, lines: Lines<'_>) -> TraceError {
        if let Some((line, text)) = format::first_line(lines.head()) {
            return TraceError::UnknownFormat { file: self.file.into(), line, found: Found::text(text) };
        }
        // More than the head may be blank.
        let file = self.file;
        let rest = self.each_line(lines, |_, line, text| {
            Err(TraceError::UnknownFormat { file: file.into(), line, found: Found::text(text) })
        });
        match rest {
            Ok(()) => TraceError::Empty { file: file.into(), lines: self.lines },
            Err(error) => error,
        }
    }
}
