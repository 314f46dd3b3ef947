//! JSON as the most lenient of servers read it.
//!
//! A message that one server understands and the limits do not would be a call that nobody counts. So what JavaScript,
//! Python or Go take is taken here as well: text that is not quite UTF-8, UTF-16 and UTF-32, `NaN`, halves of surrogate
//! pairs, names in another case. Where readers differ in what they make of a message (a member that is there twice), that
//! is told. The bytes themselves pass as they came.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The text of a message. Its encoding is found as Python's `json` finds it, by where the zero bytes are.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let wide = |read: fn([u8; 2]) -> u16| {
        let units = bytes.chunks_exact(2).map(|pair| read([pair[0], pair[1]]));
        char::decode_utf16(units).map(|found| found.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    };
    let widest = |read: fn([u8; 4]) -> u32| {
        let units = bytes.chunks_exact(4).map(|four| read([four[0], four[1], four[2], four[3]]));
        units.map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    };
    let mut text: Cow<'_, str> = match bytes {
        [0, 0, 0, _, ..] | [0, 0, 0xfe, 0xff, ..] => Cow::Owned(widest(u32::from_be_bytes)),
        [_, 0, 0, 0, ..] | [0xff, 0xfe, 0, 0, ..] => Cow::Owned(widest(u32::from_le_bytes)),
        [0, _, ..] | [0xfe, 0xff, ..] => Cow::Owned(wide(u16::from_be_bytes)),
        [_, 0, ..] | [0xff, 0xfe, ..] => Cow::Owned(wide(u16::from_le_bytes)),
        _ => String::from_utf8_lossy(bytes),
    };
    if let Some(rest) = text.strip_prefix('\u{feff}') {
        text = Cow::Owned(rest.to_owned());
    }
    text
}

/// The JSON values in a text, one after the other, and whether something else follows them.
pub(super) fn values(text: &str) -> (Vec<&RawValue>, bool) {
    let mut values = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter() {
        match value {
            Ok(value) => values.push(value),
            Err(_) => return (values, true),
        }
    }
    (values, false)
}

/// The text with numbers in place of `NaN` and `Infinity`, which Python writes and reads; `None` if there are none.
pub(super) fn without_nan(text: &str) -> Option<String> {
    if !text.contains("NaN") && !text.contains("Infinity") {
        return None;
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_found = false;
    while let Some(at) = rest.find(['"', 'N', 'I']) {
        let (before, after) = rest.split_at(at);
        plain.push_str(before);
        let (taken, put) = if after.starts_with('"') {
            let length = string_length(after);
            (length, &after[..length])
        } else if after.starts_with("NaN") {
            is_found = true;
            (3, "0")
        } else if after.starts_with("Infinity") {
            is_found = true;
            (8, "1e999")
        } else {
            (1, &after[..1])
        };
        plain.push_str(put);
        rest = &after[taken..];
    }
    plain.push_str(rest);
    is_found.then_some(plain)
}

/// How long the string is with which the text begins, both quotes included.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Some members of an object.
#[derive(Debug)]
pub(super) struct Members<'a, const N: usize> {
    /// In the order of the object: which of the names, whether in its own case, and the value.
    found: Vec<(usize, bool, &'a RawValue)>,
}

impl<'a, const N: usize> Members<'a, N> {
    /// Those members of an object that have one of the names, whatever their case; `None` for what is no object.
    pub(super) fn of(object: &'a RawValue, names: [&str; N]) -> Option<Self> {
        let mut json = serde_json::Deserializer::from_str(object.get());
        json.deserialize_map(MembersVisitor(names)).ok()
    }

    /// All values of a name.
    pub(super) fn all(&self, name: usize) -> impl Iterator<Item = &'a RawValue> {
        self.found.iter().filter(move |found| found.0 == name).map(|found| found.2)
    }

    /// The value of a name: the last, as most readers do, and rather one in the case of the name.
    pub(super) fn get(&self, name: usize) -> Option<&'a RawValue> {
        let exact = self.found.iter().rev().find(|found| found.0 == name && found.1);
        exact.map(|found| found.2).or_else(|| self.all(name).last())
    }

    /// The value of a name, if it is not null.
    pub(super) fn some(&self, name: usize) -> Option<&'a RawValue> {
        self.get(name).filter(|value| value.get() != "null")
    }

    /// Whether a name is there more than once, so that readers may differ in what they take.
    pub(super) fn are_repeated(&self) -> bool {
        (0..N).any(|name| self.all(name).nth(1).is_some())
    }
}

struct MembersVisitor<'n, const N: usize>([&'n str; N]);

impl<'de, const N: usize> Visitor<'de> for MembersVisitor<'_, N> {
    type Value = Members<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some(name) = map.next_key_seed(Text)? {
            let number = self.0.iter().position(|wanted| folded(wanted).eq(folded(&name)));
            match number {
                Some(number) => found.push((number, *self.0[number] == *name, map.next_value()?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Members { found })
    }
}

/// A name without its case, as Go's `encoding/json` compares: two letters beyond ASCII become `s` and `k`.
fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    })
}

/// A string; half a surrogate pair in it is replaced.
pub(super) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    Text.deserialize(&mut serde_json::Deserializer::from_str(value.get())).ok()
}

struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        // As a string it would have to be well formed.
        deserializer.deserialize_bytes(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(String::from_utf8_lossy(bytes))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Cow::Owned(String::from_utf8_lossy(bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_a_message_is_found() {
        let message = "{\"a\":\"\u{e9}\u{1f30a}\"}";
        let units: Vec<u16> = message.encode_utf16().collect();
        let (big, little): (Vec<u8>, Vec<u8>) = (
            units.iter().flat_map(|unit| unit.to_be_bytes()).collect(),
            units.iter().flat_map(|unit| unit.to_le_bytes()).collect(),
        );
        let widest_big: Vec<u8> = message.chars().flat_map(|char| u32::from(char).to_be_bytes()).collect();
        let widest_little: Vec<u8> = message.chars().flat_map(|char| u32::from(char).to_le_bytes()).collect();
        for (mark, bytes) in [
            (&b"\xef\xbb\xbf"[..], message.as_bytes()),
            (b"\xfe\xff", &big),
            (b"\xff\xfe", &little),
            (b"\0\0\xfe\xff", &widest_big),
            (b"\xff\xfe\0\0", &widest_little),
        ] {
            assert_eq!(text(bytes), message);
            assert_eq!(text(&[mark, bytes].concat()), message);
        }
        assert_eq!(text(b"\"\xff\""), "\"\u{fffd}\"");
        assert_eq!(text(b"{"), "{");
        assert_eq!(text(b""), "");
    }

    #[test]
    fn only_numbers_that_are_none_are_replaced() {
        assert_eq!(
            without_nan(r#"{"NaN":NaN,"a\"Infinity":[Infinity,-Infinity],"I":"NaN"}"#).as_deref(),
            Some(r#"{"NaN":0,"a\"Infinity":[1e999,-1e999],"I":"NaN"}"#)
        );
        assert_eq!(without_nan(r#"{"a":"NaN"}"#), None);
        assert_eq!(without_nan("\"NaN\\"), None);
    }

    #[test]
    fn members_are_found_in_any_case_and_told_when_they_are_repeated() {
        let members = |text: &'static str| {
            let value: &RawValue = serde_json::from_str(text).unwrap();
            Members::of(value, ["params", "k"])
        };
        let found = members(r#"{"param\u017f":1,"x":{"params":2},"\u212a":null,"\ud800":3}"#).unwrap();
        assert_eq!(found.get(0).map(RawValue::get), Some("1"));
        assert!(found.get(1).is_some() && found.some(1).is_none() && !found.are_repeated());
        let found = members(r#"{"params":1,"PARAMS":2}"#).unwrap();
        assert_eq!((found.get(0).map(RawValue::get), found.are_repeated()), (Some("1"), true));
        assert!(members("[1]").is_none());
    }
}
