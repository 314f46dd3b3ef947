//! Structured fields (RFC 9651), as far as a List of Items needs them: the reader takes every kind of bare item, since an
//! unknown parameter may have any, and the writer writes strings, integers and byte sequences.
//!
//! A field is read whole or not at all: after the first mistake nothing of it counts. Time and memory are linear in the
//! length of the field, which the HTTP library bounds.

use crate::base64;

/// The largest integer of a structured field: 15 digits (RFC 9651, section 3.3.1).
pub(super) const INTEGER_MAX: u64 = 999_999_999_999_999;

/// One member of a list, with its parameters. Of a parameter that is there twice the last one counts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) value: Bare,
    pub(super) parameters: Vec<(Box<str>, Bare)>,
}

/// A value without parameters.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Bare {
    Integer(i64),
    String(Box<str>),
    Token(Box<str>),
    Bytes(Box<[u8]>),
    /// A decimal, boolean, date or display string: legal, and nothing that the two fields use.
    Other,
}

impl Item {
    pub(super) fn parameter(&self, key: &str) -> Option<&Bare> {
        self.parameters.iter().rev().find(|(name, _)| name.as_ref() == key).map(|(_, value)| value)
    }
}

/// Reads a List whose members are Items; `None` for anything else, inner lists included. Nothing at all is an empty list.
pub(super) fn parse_list(field: &[u8]) -> Option<Vec<Item>> {
    let mut rest = Reader(field);
    let mut items = Vec::new();
    rest.skip(b" ");
    if rest.0.is_empty() {
        return Some(items);
    }
    loop {
        items.push(Item { value: rest.bare()?, parameters: rest.parameters()? });
        rest.skip(b" \t");
        if rest.0.is_empty() {
            return Some(items);
        }
        rest.expect(b',')?;
        rest.skip(b" \t");
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn skip(&mut self, bytes: &[u8]) {
        self.take_while(|byte| bytes.contains(&byte));
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn eats(&mut self, byte: u8) -> bool {
        let eats = self.0.first() == Some(&byte);
        if eats {
            self.0 = &self.0[1..];
        }
        eats
    }

    fn take_while(&mut self, good: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !good(*byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string().map(Bare::String),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => Some(Bare::Token(ascii(self.take_while(is_token)))),
            b':' => self.bytes().map(Bare::Bytes),
            b'?' => {
                self.next();
                matches!(self.next()?, b'0' | b'1').then_some(Bare::Other)
            }
            b'@' => {
                self.next();
                matches!(self.number()?, Bare::Integer(_)).then_some(Bare::Other)
            }
            b'%' => self.display_string().map(|()| Bare::Other),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Bare> {
        let negative = self.eats(b'-');
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if !self.eats(b'.') {
            if !(1..=15).contains(&digits.len()) {
                return None;
            }
            let magnitude = digits.iter().fold(0_i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
            return Some(Bare::Integer(if negative { -magnitude } else { magnitude }));
        }
        let decimals = self.take_while(|byte| byte.is_ascii_digit());
        ((1..=12).contains(&digits.len()) && (1..=3).contains(&decimals.len())).then_some(Bare::Other)
    }

    fn string(&mut self) -> Option<Box<str>> {
        self.expect(b'"')?;
        let mut text = String::new();
        loop {
            match self.next()? {
                b'"' => return Some(text.into()),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => text.push(escaped.into()),
                    _ => return None,
                },
                plain @ b' '..=b'~' => text.push(plain.into()),
                _ => return None,
            }
        }
    }

    fn bytes(&mut self) -> Option<Box<[u8]>> {
        self.expect(b':')?;
        let encoded = self.take_while(|byte| byte != b':');
        self.expect(b':')?;
        base64::decode(encoded)
    }

    fn display_string(&mut self) -> Option<()> {
        self.expect(b'%')?;
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return std::str::from_utf8(&text).ok().map(|_| ()),
                b'%' => text.push(hex(self.next()?)? << 4 | hex(self.next()?)?),
                plain @ b' '..=b'~' => text.push(plain),
                _ => return None,
            }
        }
    }

    fn parameters(&mut self) -> Option<Vec<(Box<str>, Bare)>> {
        let mut parameters = Vec::new();
        while self.eats(b';') {
            self.skip(b" ");
            if !matches!(self.0.first()?, b'*' | b'a'..=b'z') {
                return None;
            }
            let key = ascii(
                self.take_while(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')),
            );
            let value = if self.eats(b'=') { self.bare()? } else { Bare::Other };
            parameters.push((key, value));
        }
        Some(parameters)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

fn ascii(bytes: &[u8]) -> Box<str> {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Lower-case hexadecimal only, as the RFC has it.
const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Writes a string in quotes. `None` if it holds what a structured string cannot: anything but printable ASCII.
pub(super) fn write_string(out: &mut String, text: &str) -> Option<()> {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => return None,
        }
    }
    out.push('"');
    Some(())
}

/// Writes `;key=number`. A number above 15 digits is written as the largest that there is.
pub(super) fn write_integer(out: &mut String, key: &str, number: u64) {
    out.push(';');
    out.push_str(key);
    out.push('=');
    // By hand: this is written for every response, and the machinery of `write!` costs more than the digits.
    let (mut digits, mut start, mut rest) = ([0; 15], 15, number.min(INTEGER_MAX));
    while start > 0 && (rest > 0 || start == 15) {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.push_str(std::str::from_utf8(&digits[start..]).unwrap_or_default());
}

/// Writes a byte sequence, in base64 between colons.
pub(super) fn write_bytes(out: &mut String, bytes: &[u8]) {
    out.push(':');
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place) & 63) as usize;
            out.push(if place <= chunk.len() { char::from(BASE64[sextet]) } else { '=' });
        }
    }
    out.push(':');
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mistake_anywhere_spoils_the_whole_list() {
        for good in [
            "",
            "  ",
            "a",
            "a,b",
            "a \t,\t b",
            "a;x;y=?0 ",
            "1, -2, 1.5, :YQ==:, ?1, @-1, %\"%c3%bc\"",
            "*a/b:c",
        ] {
            assert!(parse_list(good.as_bytes()).is_some(), "{good}");
        }
        for bad in [
            ",",
            "a,",
            "a b",
            "a,,b",
            "\"a",
            "\"a\\b\"",
            "\"\u{7f}\"",
            "a ;x",
            "a;X",
            "a; =1",
            "a;x=",
            "-",
            "1.",
            ".5",
            "1.2345",
            "1234567890123456",
            "1234567890123.1",
            "--1",
            ":Y:",
            ":YQ=:",
            ":Y Q:",
            ":YQ==",
            "?2",
            "@1.5",
            "@a",
            "%\"%C3\"",
            "%\"%ff\"",
            "%a",
            "(a b)",
            "\ta",
            "ä",
            "a;\tx",
        ] {
            assert_eq!(parse_list(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_last_of_two_equal_parameters_counts() {
        let list = parse_list(b"a;r=1;r=2").unwrap();
        assert_eq!(list[0].parameter("r"), Some(&Bare::Integer(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_ignored(field in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_list(&field);
        }

        #[test]
        fn any_text_of_the_grammar_is_read_or_ignored(field in "[\"a;=,: ?%@*.\\\\()0-9-]{0,40}") {
            let _ = parse_list(field.as_bytes());
        }

        #[test]
        fn bytes_are_read_as_they_were_written(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut out = String::new();
            write_bytes(&mut out, &bytes);
            let list = parse_list(out.as_bytes()).unwrap();
            prop_assert_eq!(&list[0].value, &Bare::Bytes(bytes.into()));
        }

        #[test]
        fn strings_are_read_as_they_were_written(text in "[ -~]{0,40}") {
            let mut out = String::new();
            write_string(&mut out, &text).unwrap();
            let list = parse_list(out.as_bytes()).unwrap();
            prop_assert_eq!(&list[0].value, &Bare::String(text.into()));
        }
    }
}
