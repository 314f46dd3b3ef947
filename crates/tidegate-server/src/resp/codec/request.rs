//! Requests: an array of bulk strings, or a line of words for who types them.

use thiserror::Error;

/// The most bytes of a request, everything counted. It bounds what a connection keeps of a request that has not come to its
/// end; keys are shorter than [`KEY_MAX`](super::super::throttle::KEY_MAX).
pub const REQUEST_MAX: usize = 8 * 1024;

/// The most arguments of a request, its name among them. `HELLO` has seven.
pub const ARGS_MAX: usize = 32;

/// The most characters of a length as text: `REQUEST_MAX` has four, and clients may pad a little.
const LENGTH_DIGITS_MAX: usize = 10;

/// The arguments of one request, borrowed from where it was read. One is made for many requests, so that the next costs
/// nothing.
#[derive(Debug, Clone)]
pub struct Args<'a> {
    slots: [&'a [u8]; ARGS_MAX],
    len: usize,
}

impl<'a> Args<'a> {
    /// No arguments.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: [&[]; ARGS_MAX], len: 0 }
    }

    /// The arguments of the request that was read last: the first is its name. None for an empty request.
    #[must_use]
    pub fn get(&self) -> &[&'a [u8]] {
        &self.slots[..self.len]
    }

    fn push(&mut self, arg: &'a [u8]) -> Result<(), ProtocolError> {
        *self.slots.get_mut(self.len).ok_or(ProtocolError::TooManyArguments)? = arg;
        self.len += 1;
        Ok(())
    }
}

impl Default for Args<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Why what came is no request. What follows cannot be understood either, so the connection is closed after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The number of arguments is no number.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// More arguments than [`ARGS_MAX`].
    #[error("Protocol error: more than {ARGS_MAX} arguments")]
    TooManyArguments,
    /// The length of an argument is no number.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument is something else than a bulk string.
    #[error("Protocol error: expected '$'")]
    NoBulk,
    /// An argument is longer than it says.
    #[error("Protocol error: no CRLF where an argument should end")]
    BulkEnd,
    /// A request of more than [`REQUEST_MAX`] bytes.
    #[error("Protocol error: a request of more than {REQUEST_MAX} bytes")]
    TooLarge,
    /// What a browser sends when a page makes it talk to this port.
    #[error("Protocol error: this is HTTP, and not RESP")]
    Http,
}

/// Reads the first request of `input` into `args`: how many bytes it takes, or `None` if its end has not come.
///
/// The same bytes give the same answer, however they are cut: if a part of a request gives an error, the whole gives it too.
///
/// ```
/// use tidegate_server::resp::codec::request::{Args, read};
///
/// let mut args = Args::new();
/// assert_eq!(read(b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\nPING", &mut args), Ok(Some(22)));
/// assert_eq!(args.get(), [&b"PING"[..], b"hi"]);
/// assert_eq!(read(b"PING", &mut args), Ok(None));
/// ```
///
/// # Errors
///
/// Bytes that are no request, and requests that are too large.
#[inline]
pub fn read<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    args.len = 0;
    // What lies beyond is not of this request.
    let within = &input[..input.len().min(REQUEST_MAX)];
    let read = match within.first() {
        None => Ok(None),
        Some(b'*') => read_array(within, args),
        Some(_) => read_line(within, args),
    };
    match read {
        Ok(None) if within.len() == REQUEST_MAX => Err(ProtocolError::TooLarge),
        read => read,
    }
}

#[inline]
fn read_array<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    let Some((count, mut at)) = read_length(input, 1, ProtocolError::ArrayLength)? else { return Ok(None) };
    // A null array counts as an empty one, as with Redis.
    let count = count.unwrap_or(0);
    if count > ARGS_MAX {
        return Err(ProtocolError::TooManyArguments);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(ProtocolError::NoBulk),
        }
        let Some((length, start)) = read_length(input, at + 1, ProtocolError::BulkLength)? else {
            return Ok(None);
        };
        let length = length.ok_or(ProtocolError::BulkLength)?;
        if length > REQUEST_MAX || start + length + 2 > REQUEST_MAX {
            return Err(ProtocolError::TooLarge);
        }
        let end = start + length;
        match input.get(end..) {
            Some([b'\r', b'\n', ..]) => {}
            None | Some([] | [b'\r']) => return Ok(None),
            Some(_) => return Err(ProtocolError::BulkEnd),
        }
        args.push(&input[start..end])?;
        at = end + 2;
    }
    Ok(Some(at))
}

/// The number at `at`, and where what follows its line begins. The inner `None` is `-1`, a null.
#[inline]
fn read_length(
    input: &[u8],
    at: usize,
    wrong: ProtocolError,
) -> Result<Option<(Option<usize>, usize)>, ProtocolError> {
    let mut number = 0;
    let line = input.get(at..).unwrap_or_default();
    for (index, &byte) in line.iter().enumerate() {
        match byte {
            b'0'..=b'9' if index < LENGTH_DIGITS_MAX => number = number * 10 + usize::from(byte - b'0'),
            b'\r' if index > 0 => {
                return match line.get(index + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((Some(number), at + index + 2))),
                    Some(_) => Err(wrong),
                };
            }
            b'-' if index == 0 => return read_null(line, at, wrong),
            _ => return Err(wrong),
        }
    }
    Ok(None)
}

#[cold]
fn read_null(
    line: &[u8],
    at: usize,
    wrong: ProtocolError,
) -> Result<Option<(Option<usize>, usize)>, ProtocolError> {
    const NULL: &[u8] = b"-1\r\n";
    if line.starts_with(NULL) {
        Ok(Some((None, at + NULL.len())))
    } else if NULL.starts_with(line) {
        Ok(None)
    } else {
        Err(wrong)
    }
}

/// A line of words, as people type it and health checks send it. Without quotes: a key with a space needs an array.
#[cold]
fn read_line<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    for word in line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()) {
        args.push(word)?;
    }
    match args.get() {
        [name, ..] if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") => {
            Err(ProtocolError::Http)
        }
        _ => Ok(Some(end + 1)),
    }
}

/// Writes a request as clients do, an array of bulk strings.
pub fn write<T: AsRef<[u8]>>(args: &[T], out: &mut Vec<u8>) {
    super::reply::array(out, args.len());
    for arg in args {
        super::reply::bulk(out, arg.as_ref());
    }
}
