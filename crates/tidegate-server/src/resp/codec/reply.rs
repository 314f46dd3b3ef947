//! Answers. What differs between the two versions of the protocol takes the [`Version`].

use std::fmt;
use std::io::Write as _;

/// The version of the protocol that a client speaks: 2 until it says `HELLO 3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// RESP2.
    #[default]
    Two,
    /// RESP3, which has maps and a null of its own.
    Three,
}

/// The longest number with its type, sign and line end: `:-9223372036854775808\r\n`.
const INTEGER_MAX: usize = 23;

/// `+text`, which has no line end in it.
pub fn simple(out: &mut Vec<u8>, text: &'static str) {
    line(out, b'+', text.as_bytes());
}

/// `-text`: the first word is the kind, `ERR` mostly. What would end the line is written as a space.
pub fn error(out: &mut Vec<u8>, text: &dyn fmt::Display) {
    out.push(b'-');
    let start = out.len();
    // Writing to a vector does not fail.
    let _ = write!(out, "{text}");
    for byte in &mut out[start..] {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// `:number`.
pub fn integer(out: &mut Vec<u8>, number: i64) {
    integers_into(out, &[], [number]);
}

/// An array of integers.
#[inline]
pub fn integers<const N: usize>(out: &mut Vec<u8>, numbers: [i64; N]) {
    const { assert!(N < 10, "the count is one digit") };
    #[expect(clippy::cast_possible_truncation, reason = "one digit")]
    let head = [b'*', b'0' + N as u8, b'\r', b'\n'];
    integers_into(out, &head, numbers);
}

/// Put together on the stack, so that the vector grows once.
#[inline]
fn integers_into<const N: usize>(out: &mut Vec<u8>, head: &[u8], numbers: [i64; N]) {
    out.reserve(head.len() + N * INTEGER_MAX);
    out.extend_from_slice(head);
    for number in numbers {
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => out.extend_from_slice(&[b':', b'0' + digit, b'\r', b'\n']),
            _ => long_integer(out, number),
        }
    }
}

fn long_integer(out: &mut Vec<u8>, number: i64) {
    let mut text = [0; INTEGER_MAX];
    let mut at = INTEGER_MAX - 2;
    text[at..].copy_from_slice(b"\r\n");
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        let digit = (rest % 10) as u8;
        text[at] = b'0' + digit;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    at -= 1;
    text[at] = b':';
    out.extend_from_slice(&text[at..]);
}

/// `$length` and the bytes.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// The head of an array of `count`; what is in it follows.
pub fn array(out: &mut Vec<u8>, count: usize) {
    head(out, b'*', count);
}

/// The head of a map of `count` pairs, which in RESP2 is an array of keys and values in turn.
pub fn map(out: &mut Vec<u8>, version: Version, count: usize) {
    match version {
        Version::Two => head(out, b'*', count * 2),
        Version::Three => head(out, b'%', count),
    }
}

/// Nothing where a text could be.
pub fn null(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(match version {
        Version::Two => b"$-1\r\n",
        Version::Three => b"_\r\n",
    });
}

fn head(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    // Writing to a vector does not fail.
    let _ = write!(out, "{count}\r\n");
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_written_with_all_their_digits() {
        for number in [0, 1, 9, 10, 99, 100, 12345, -1, -9, -10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            integer(&mut out, number);
            assert_eq!(out, format!(":{number}\r\n").into_bytes());
        }
        let mut out = Vec::new();
        integers(&mut out, [0, 16, 15, -1, i64::MIN]);
        assert_eq!(out, b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:-9223372036854775808\r\n");
    }

    #[test]
    fn an_error_is_one_line_whatever_it_quotes() {
        let mut out = Vec::new();
        error(&mut out, &"ERR unknown command 'a\r\n+OK'");
        assert_eq!(out, b"-ERR unknown command 'a  +OK'\r\n");
    }
}
