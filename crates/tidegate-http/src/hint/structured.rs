//! Structured fields (RFC 9651), as far as rate limit fields need them: lists of items and dictionaries of items.
//!
//! A field with any fault is none at all, which is the rule of the RFC. Inner lists are treated as a fault, since no
//! rate limit field has them.

/// A bare item. What no rate limit field means anything with is `Other`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    /// A string or a token.
    Text(String),
    Other,
}

/// An item with its parameters, or a member of a dictionary with its key as `name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) value: Bare,
    pub(super) parameters: Vec<(String, Bare)>,
}

impl Item {
    /// The last parameter of this name: a repeated one overwrites the earlier.
    pub(super) fn parameter(&self, name: &str) -> Option<&Bare> {
        self.parameters.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// A parameter that is an integer of at least 0.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        match self.parameter(name) {
            Some(Bare::Integer(count)) => u64::try_from(*count).ok(),
            _ => None,
        }
    }
}

/// A list of items.
pub(super) fn list(text: &[u8]) -> Option<Vec<Item>> {
    let mut parser = Parser { rest: trim_spaces(text) };
    let mut items = Vec::new();
    while !parser.rest.is_empty() {
        items.push(parser.item()?);
        parser.separator()?;
    }
    Some(items)
}

/// A dictionary of items.
pub(super) fn dictionary(text: &[u8]) -> Option<Vec<(String, Item)>> {
    let mut parser = Parser { rest: trim_spaces(text) };
    let mut members = Vec::new();
    while !parser.rest.is_empty() {
        let key = parser.key()?;
        let member = if parser.take(b'=') {
            parser.item()?
        } else {
            Item { value: Bare::Other, parameters: parser.parameters()? }
        };
        members.push((key, member));
        parser.separator()?;
    }
    Some(members)
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    fn take(&mut self, byte: u8) -> bool {
        match self.rest.split_first() {
            Some((first, rest)) if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn take_while(&mut self, is_in: impl Fn(u8) -> bool) -> &[u8] {
        let end = self.rest.iter().position(|byte| !is_in(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// The comma between members. After one there is another member.
    fn separator(&mut self) -> Option<()> {
        self.take_while(|byte| byte == b' ' || byte == b'\t');
        if self.rest.is_empty() {
            return Some(());
        }
        if !self.take(b',') {
            return None;
        }
        self.take_while(|byte| byte == b' ' || byte == b'\t');
        (!self.rest.is_empty()).then_some(())
    }

    fn item(&mut self) -> Option<Item> {
        Some(Item { value: self.bare()?, parameters: self.parameters()? })
    }

    fn parameters(&mut self) -> Option<Vec<(String, Bare)>> {
        let mut parameters = Vec::new();
        while self.take(b';') {
            self.take_while(|byte| byte == b' ');
            let key = self.key()?;
            let value = if self.take(b'=') { self.bare()? } else { Bare::Other };
            parameters.push((key, value));
        }
        Some(parameters)
    }

    fn key(&mut self) -> Option<String> {
        if !self.rest.first().is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'*') {
            return None;
        }
        let is_in = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
        Some(String::from_utf8_lossy(self.take_while(is_in)).into_owned())
    }

    fn bare(&mut self) -> Option<Bare> {
        match *self.rest.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_in = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                Some(Bare::Text(String::from_utf8_lossy(self.take_while(is_in)).into_owned()))
            }
            b':' => {
                self.take(b':');
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(Bare::Other)
            }
            b'?' => {
                self.take(b'?');
                (self.take(b'0') || self.take(b'1')).then_some(Bare::Other)
            }
            b'@' => {
                self.take(b'@');
                matches!(self.number()?, Bare::Integer(_)).then_some(Bare::Other)
            }
            _ => None,
        }
    }

    /// An integer of up to 15 digits, or a decimal of up to 12 and 3.
    fn number(&mut self) -> Option<Bare> {
        let is_negative = self.take(b'-');
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        let length = digits.len();
        if !(1..=15).contains(&length) {
            return None;
        }
        let number = i64::try_from(super::number::whole_number(digits)?).ok()?;
        if !self.take(b'.') {
            return Some(Bare::Integer(if is_negative { -number } else { number }));
        }
        let decimals = self.take_while(|byte| byte.is_ascii_digit()).len();
        (length <= 12 && (1..=3).contains(&decimals)).then_some(Bare::Other)
    }

    fn string(&mut self) -> Option<Bare> {
        self.take(b'"');
        let mut text = String::new();
        loop {
            let (first, rest) = self.rest.split_first()?;
            self.rest = rest;
            match first {
                b'"' => return Some(Bare::Text(text)),
                b'\\' => {
                    let (escaped, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    if !matches!(escaped, b'"' | b'\\') {
                        return None;
                    }
                    text.push(char::from(*escaped));
                }
                b' '..=b'~' => text.push(char::from(*first)),
                _ => return None,
            }
        }
    }
}

fn trim_spaces(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| *byte != b' ').unwrap_or(text.len());
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(start, |last| last + 1);
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_are_and_lists_that_are_not() {
        for (text, items) in [
            ("", Some(0)),
            ("\"a\";r=1;t=2", Some(1)),
            ("  \"a\"; r=1 , \"b\";r=0  ", Some(2)),
            ("quota;t=1", Some(1)),
            ("100;w=60", Some(1)),
            ("\"a\\\"b\";pk=:dHJpYWwxMjEzMjM=:;x=?1;y=1.5;z=@17;q", Some(1)),
            ("\"a\";r=1,", None),
            ("\"a\" ;r=1", None),
            ("\"a\";R=1", None),
            ("\"fixed window\";\"api\";q=500;w=300", None),
            ("\"a", None),
            ("\"a\\n\"", None),
            ("\"a\";r=1234567890123456", None),
            ("\"a\";r=1.2345", None),
            ("\"a\";r=", None),
            ("(\"a\")", None),
            ("\"\u{e4}\"", None),
            ("a b", None),
        ] {
            assert_eq!(list(text.as_bytes()).map(|items| items.len()), items, "{text}");
        }
    }

    #[test]
    fn parameters_have_types() {
        let items = list(b"\"burst\";r=0;t=7;r=3;x=-1;y=1.5;z").unwrap();
        assert_eq!(items[0].value, Bare::Text("burst".to_owned()));
        assert_eq!(items[0].count("r"), Some(3));
        assert_eq!(items[0].count("t"), Some(7));
        for none in ["x", "y", "z", "w"] {
            assert_eq!(items[0].count(none), None, "{none}");
        }
    }

    #[test]
    fn dictionaries() {
        let members = dictionary(b"limit=100, remaining=50, reset=30").unwrap();
        assert_eq!(members[1].0, "remaining");
        assert_eq!(members[1].1.value, Bare::Integer(50));
        assert!(dictionary(b"limit=100, remaining=50,").is_none());
        assert!(dictionary(b"Limit=100").is_none());
    }
}
