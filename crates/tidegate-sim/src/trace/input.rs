//! Raw input to lines: counts the bytes, unpacks gzip, and cuts lines out of one buffer of fixed size.

use std::io::{self, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

/// The longest line, in bytes without its end: 1 MiB, far above what servers write (8 to 64 KiB for a request line and its
/// fields). Doubling it doubles the buffer below; a longer line is a bad line.
pub(super) const MAX_LINE: usize = 1 << 20;

/// How much is asked of the input at once, and so how often progress is told. From 64 KiB to 1 MiB the speed measured the
/// same within its spread; doubling it adds as much to the buffer.
const READ_SIZE: usize = 128 << 10;

/// How much is read before the format is decided. The end of the input ends this too.
const HEAD_SIZE: usize = 64 << 10;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What went wrong with the input.
#[derive(Debug)]
pub(super) enum InputFault {
    /// The input itself, after this many raw bytes.
    Read(io::Error, u64),
    /// Its gzip data ends early.
    Truncated,
    /// Its gzip data is damaged.
    Corrupt(io::Error),
}

/// A reader that counts and reports what passes.
struct Counted<'a> {
    inner: &'a mut dyn Read,
    progress: &'a mut dyn FnMut(u64),
    bytes: u64,
    failed: bool,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(buffer) {
                Ok(count) => {
                    self.bytes += count as u64;
                    (self.progress)(self.bytes);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
    }
}

/// The input behind its first two bytes, which are looked at and put back.
type Raw<'a> = Chain<Cursor<Vec<u8>>, Counted<'a>>;

/// The input as text.
enum Source<'a> {
    Plain(Raw<'a>),
    Gzip(Box<MultiGzDecoder<BufReader<Raw<'a>>>>),
}

impl<'a> Source<'a> {
    fn open(inner: &'a mut dyn Read, progress: &'a mut dyn FnMut(u64)) -> Result<Self, InputFault> {
        let mut counted = Counted { inner, progress, bytes: 0, failed: false };
        let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
        if let Err(error) = counted.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic) {
            return Err(InputFault::Read(error, counted.bytes));
        }
        let gzip = magic == GZIP_MAGIC;
        let raw = Cursor::new(magic).chain(counted);
        Ok(if gzip {
            Self::Gzip(Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ_SIZE, raw))))
        } else {
            Self::Plain(raw)
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, InputFault> {
        match self {
            Self::Plain(raw) => {
                raw.read(buffer).map_err(|error| InputFault::Read(error, raw.get_ref().1.bytes))
            }
            Self::Gzip(decoder) => decoder.read(buffer).map_err(|error| {
                let counted = &decoder.get_ref().get_ref().get_ref().1;
                if counted.failed {
                    InputFault::Read(error, counted.bytes)
                } else if error.kind() == io::ErrorKind::UnexpectedEof {
                    InputFault::Truncated
                } else {
                    InputFault::Corrupt(error)
                }
            }),
        }
    }
}

/// One line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'b> {
    /// Its bytes.
    Whole(&'b [u8]),
    /// It is longer than [`MAX_LINE`]; it was passed over without being kept.
    TooLong,
}

/// The lines of an input.
pub(super) struct Lines<'a> {
    source: Source<'a>,
    /// Unread bytes are `start..end`; of these, `start..searched` hold no line end.
    buffer: Box<[u8]>,
    start: usize,
    searched: usize,
    end: usize,
    ended: bool,
    /// A fault that came up while the head was read.
    fault: Option<InputFault>,
    number: u64,
}

impl<'a> Lines<'a> {
    /// Opens an input, reads its head and passes over a UTF-8 byte order mark.
    pub(super) fn open(
        inner: &'a mut dyn Read,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self, InputFault> {
        let mut lines = Self {
            source: Source::open(inner, progress)?,
            buffer: vec![0; MAX_LINE + READ_SIZE].into(),
            start: 0,
            searched: 0,
            end: 0,
            ended: false,
            fault: None,
            number: 0,
        };
        while !lines.ended && lines.end < HEAD_SIZE {
            // The lines before the fault come first, so that its line number is right.
            if let Err(fault) = lines.fill() {
                lines.fault = Some(fault);
                break;
            }
        }
        if lines.head().starts_with(b"\xEF\xBB\xBF") {
            lines.start = 3;
            lines.searched = 3;
        }
        Ok(lines)
    }

    /// What was read but not yet taken: after [`Self::open`], the head of the file.
    pub(super) fn head(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn is_gzip(&self) -> bool {
        matches!(self.source, Source::Gzip(_))
    }

    /// The number of the line that was taken last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line, without `\n` or `\r\n`; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, InputFault> {
        let mut too_long = false;
        loop {
            let found = memchr(b'\n', &self.buffer[self.searched..self.end]);
            if found.is_none() && !self.ended {
                self.searched = self.end;
                if self.end - self.start > MAX_LINE + 1 {
                    too_long = true;
                    self.start = self.end;
                }
                self.fill()?;
                continue;
            }
            let (start, line_end) = (self.start, found.map_or(self.end, |at| self.searched + at));
            if found.is_none() && start == self.end && !too_long {
                return Ok(None);
            }
            self.start = self.end.min(line_end + 1);
            self.searched = self.start;
            self.number += 1;
            let line = &self.buffer[start..line_end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            return Ok(Some(if too_long || line.len() > MAX_LINE {
                Line::TooLong
            } else {
                Line::Whole(line)
            }));
        }
    }

    /// Copies unread bytes out, for a parser that finds its own rows; 0 at the end.
    pub(super) fn take(&mut self, target: &mut [u8]) -> Result<usize, InputFault> {
        if self.start == self.end && !self.ended {
            self.fill()?;
        }
        let count = target.len().min(self.end - self.start);
        target[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        self.searched = self.start;
        Ok(count)
    }

    /// Reads more behind the unread bytes, which move to the front when there is no room.
    fn fill(&mut self) -> Result<(), InputFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if self.buffer.len() - self.end < READ_SIZE || self.start == self.end {
            self.buffer.copy_within(self.start..self.end, 0);
            self.searched -= self.start;
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.len().min(self.end + READ_SIZE);
        let count = self.source.read(&mut self.buffer[self.end..room])?;
        self.end += count;
        self.ended = count == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of each line, `None` for one that is too long.
    fn lengths(mut input: &[u8]) -> Vec<Option<usize>> {
        let mut progress = |_| {};
        let mut lines = Lines::open(&mut input, &mut progress).unwrap();
        let mut lengths = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            lengths.push(if let Line::Whole(text) = line { Some(text.len()) } else { None });
        }
        assert_eq!(lines.number(), lengths.len() as u64);
        lengths
    }

    #[test]
    fn lines_end_in_each_way() {
        assert_eq!(lengths(b""), []);
        assert_eq!(lengths(b"\n"), [Some(0)]);
        assert_eq!(lengths(b"\r\n"), [Some(0)]);
        assert_eq!(lengths(b"one\ntwo4\r\n\nlast"), [Some(3), Some(4), Some(0), Some(4)]);
        assert_eq!(lengths(b"\xEF\xBB\xBFone\n"), [Some(3)]);
    }

    #[test]
    fn lines_up_to_the_bound_are_whole_and_longer_ones_are_passed_over() {
        for (length, whole) in [
            (MAX_LINE - 1, true),
            (MAX_LINE, true),
            (MAX_LINE + 1, false),
            (MAX_LINE + 2, false),
            (MAX_LINE + READ_SIZE, false),
            (5 * MAX_LINE, false),
        ] {
            let expected = whole.then_some(length);
            for end in ["\n", "\r\n", ""] {
                let input = format!("before\n{}{end}", "x".repeat(length));
                assert_eq!(lengths(input.as_bytes()), [Some(6), expected], "{length} {end:?}");
            }
            let input = format!("{}\nbehind\n", "x".repeat(length));
            assert_eq!(lengths(input.as_bytes()), [expected, Some(6)], "{length}");
        }
    }
}
