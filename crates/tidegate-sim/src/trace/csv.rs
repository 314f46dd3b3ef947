//! CSV with a header line: commas, fields in double quotes where needed, and line ends inside quotes.
//!
//! The `csv` crate finds the fields. What it lets pass is checked here: rows with another number of fields than the
//! header, a quote that is never closed, and rows beyond the bound.

use std::borrow::Cow;
use std::io::{self, Read};

use csv::{ByteRecord, Terminator};
use memchr::memchr_iter;

use super::columns::{Row, Slot};
use super::error::{BadLine, Expected, FieldNames, Found};
use super::input::{InputFault, Lines, MAX_LINE};
use super::time;

/// How much the parser reads ahead.
const BUFFER: usize = 64 << 10;

/// The rows of a CSV file.
pub(super) struct Rows<'a> {
    reader: csv::Reader<Bytes<'a>>,
    record: ByteRecord,
    header: Vec<Box<str>>,
    line: u64,
}

/// Why there is no next row.
#[derive(Debug)]
pub(super) enum RowsFault {
    Input(InputFault),
    Bad(BadLine),
}

impl<'a> Rows<'a> {
    /// Reads the header; fields without a name are there, but cannot be asked for.
    pub(super) fn open(lines: Lines<'a>) -> Result<Self, (RowsFault, u64)> {
        let source =
            Bytes { lines, since_row: 0, quotes: 0, total: 0, last: b'\n', ended: false, fault: None };
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(BUFFER)
            // The `\r` of a `\r\n` is taken off below. With the crate's own rule the line numbers would lag behind.
            .terminator(Terminator::Any(b'\n'))
            .from_reader(source);
        let mut rows = Self { reader, record: ByteRecord::new(), header: Vec::new(), line: 1 };
        if rows.advance().map_err(|fault| (fault, rows.line))? {
            let fields = (0..rows.record.len()).map(|index| rows.field(index));
            rows.header = fields.map(|name| String::from_utf8_lossy(name.trim_ascii()).into()).collect();
        }
        Ok(rows)
    }

    /// The column of this name.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| **column == *name && !name.is_empty())
    }

    /// The column that is taken for the time when none is given.
    pub(super) fn time_column(&self) -> Option<usize> {
        time::guess(&self.header)
    }

    pub(super) fn name(&self, column: usize) -> &str {
        &self.header[column]
    }

    pub(super) fn names(&self) -> FieldNames {
        FieldNames::new(self.header.iter().map(|name| String::from(&**name)))
    }

    /// Goes to the next row; `false` at the end. A fault about one row leaves the reader at the one behind it.
    pub(super) fn next(&mut self) -> Result<bool, RowsFault> {
        if !self.advance()? {
            return Ok(false);
        }
        if self.record.len() != self.header.len() {
            return Err(RowsFault::Bad(BadLine {
                expected: Expected::CsvFields(self.header.len()),
                found: Found::Fields(self.record.len()),
            }));
        }
        Ok(true)
    }

    fn advance(&mut self) -> Result<bool, RowsFault> {
        loop {
            self.line = self.reader.position().line();
            let read = self.reader.read_byte_record(&mut self.record);
            let source = self.reader.get_mut();
            source.since_row = 0;
            if let Some(fault) = source.fault.take() {
                return Err(fault);
            }
            match read {
                Ok(false) => return Ok(false),
                Ok(true) if self.record.len() == 1 && self.record.as_slice().trim_ascii().is_empty() => {}
                Ok(true) => break,
                // Any record of bytes is well formed, so only the source can fail.
                Err(error) => return Err(RowsFault::Input(InputFault::Read(io::Error::other(error), 0))),
            }
        }
        // The parser passes over blank lines, so the line before the row is no guide to where the row begins.
        self.line = self.lines() - self.inner_lines();
        // An open quote takes the rest of the file into one field, and with it the line end of the row.
        let source = self.reader.get_ref();
        let is_last = source.ended && self.reader.position().byte() == source.total;
        if is_last && source.quotes % 2 == 1 && self.record.as_slice().ends_with(b"\n") {
            self.line += 1;
            return Err(RowsFault::Bad(BadLine {
                expected: Expected::ClosingQuote,
                found: Found::EndOfFile,
            }));
        }
        if self.record.as_slice().len() > MAX_LINE {
            let expected = Expected::LineWithin(MAX_LINE);
            return Err(RowsFault::Bad(BadLine { expected, found: Found::Longer }));
        }
        Ok(true)
    }

    /// Where the row begins, from 1.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// How many lines have been read up to the end of this row.
    pub(super) fn lines(&self) -> u64 {
        self.reader.position().line() - 1
    }

    fn inner_lines(&self) -> u64 {
        memchr_iter(b'\n', self.record.as_slice()).count() as u64
    }

    /// A field of the row, without the `\r` of the line end.
    fn field(&self, index: usize) -> &[u8] {
        let field = self.record.get(index).unwrap_or_default();
        if index + 1 == self.record.len() { field.strip_suffix(b"\r").unwrap_or(field) } else { field }
    }
}

/// A row with the columns that were asked for.
pub(super) struct CsvRow<'a, 'l> {
    pub(super) rows: &'a Rows<'l>,
    pub(super) time: usize,
    pub(super) key: Option<usize>,
    pub(super) costs: &'a [usize],
}

impl Row for CsvRow<'_, '_> {
    fn field(&self, slot: Slot) -> Result<Cow<'_, [u8]>, BadLine> {
        let column = match slot {
            Slot::Time => self.time,
            Slot::Key => self.key.unwrap_or(self.time),
            Slot::Cost(index) => self.costs[index],
        };
        Ok(Cow::Borrowed(self.rows.field(column)))
    }
}

/// The bytes of the file for the parser, which would else take in a row of any length.
struct Bytes<'a> {
    lines: Lines<'a>,
    /// Bytes given since the last row was complete.
    since_row: usize,
    /// Quotes in all.
    quotes: u64,
    /// Bytes in all.
    total: u64,
    last: u8,
    ended: bool,
    fault: Option<RowsFault>,
}

impl Read for Bytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = match self.lines.take(buffer) {
            Ok(count) => count,
            Err(fault) => return Err(self.fail(RowsFault::Input(fault))),
        };
        if count == 0 {
            self.ended = true;
            // Every row then ends with a line end, also the last, and the line numbers need no exception.
            if self.last != b'\n' && !buffer.is_empty() {
                buffer[0] = b'\n';
                count = 1;
            }
        }
        let bytes = &buffer[..count];
        self.last = bytes.last().copied().unwrap_or(self.last);
        self.total += count as u64;
        self.quotes += memchr_iter(b'"', bytes).count() as u64;
        // Blank lines are no part of a row, however many there are.
        if !bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
            self.since_row += count;
        }
        if self.since_row > MAX_LINE + BUFFER {
            let expected = Expected::RowWithin(MAX_LINE);
            return Err(self.fail(RowsFault::Bad(BadLine { expected, found: Found::Longer })));
        }
        Ok(count)
    }
}

impl Bytes<'_> {
    /// Keeps the fault, which an I/O error cannot carry as it is.
    fn fail(&mut self, fault: RowsFault) -> io::Error {
        self.fault = Some(fault);
        io::ErrorKind::Other.into()
    }
}
