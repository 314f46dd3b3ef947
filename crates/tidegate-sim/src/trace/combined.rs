//! Lines of access logs in the common and the combined format of Apache, nginx and others.
//!
//! ```text
//! client ident user [time] "request" status bytes "referer" "user agent"
//! ```
//!
//! Only what is asked for is looked at, so a line may be damaged elsewhere. Text is kept as it was logged, with its escapes.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memmem};

use super::columns::{Row, Slot};
use super::date::Dates;
use super::error::{BadLine, Expected, FieldNames, Found};

/// A field of an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Time,
    Client,
    User,
    Method,
    Path,
    Status,
    Bytes,
    Referer,
    UserAgent,
}

impl Field {
    const ALL: [Self; 9] = [
        Self::Time,
        Self::Client,
        Self::User,
        Self::Method,
        Self::Path,
        Self::Status,
        Self::Bytes,
        Self::Referer,
        Self::UserAgent,
    ];

    /// The name first, then what nginx calls it and other words for it.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Time => &["time", "time_local"],
            Self::Client => &["client", "remote_addr", "ip"],
            Self::User => &["user", "remote_user"],
            Self::Method => &["method", "request_method"],
            Self::Path => &["path"],
            Self::Status => &["status"],
            Self::Bytes => &["bytes", "body_bytes_sent"],
            Self::Referer => &["referer", "http_referer"],
            Self::UserAgent => &["user_agent", "http_user_agent"],
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.names()[0]
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.names().contains(&name))
    }

    /// The fields that a log has: all, or those of the common format when its first line ends behind the bytes.
    pub(super) fn of(line: &LogLine<'_>) -> Vec<Self> {
        let count = if line.find(Self::Referer).is_ok() { Self::ALL.len() } else { Self::ALL.len() - 2 };
        Self::ALL[..count].to_vec()
    }
}

/// The names of these fields, for a message.
pub(super) fn field_names(fields: &[Field]) -> FieldNames {
    FieldNames(fields.iter().map(|field| field.name().into()).collect())
}

/// A line whose time has been found.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogLine<'a> {
    text: &'a [u8],
    /// The length of the client at the start.
    client: usize,
    /// Where the `[` of the time is.
    bracket: usize,
}

/// From `[` to `]`: `[17/May/2015:10:05:03 +0000]`.
const TIME_LENGTH: usize = 28;

impl<'a> LogLine<'a> {
    /// Finds client and time; `None` when this is no line of an access log.
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        let client = memchr(b' ', text).filter(|client| *client > 0)?;
        let mut bracket = client;
        // A user name may hold a `[` of its own, so what follows must have the length of a time.
        loop {
            bracket += 1 + memchr(b'[', text.get(bracket + 1..)?)?;
            if text[bracket - 1] == b' ' && text.get(bracket + TIME_LENGTH - 1) == Some(&b']') {
                return Some(Self { text, client, bracket });
            }
        }
    }

    /// Whether this is a whole line of an access log beyond doubt, up to the start of the request.
    pub(super) fn is_certain(text: &'a [u8]) -> bool {
        Self::parse(text).is_some_and(|line| {
            Dates::default().log_time(line.time()).is_ok()
                && line.identity().is_some()
                && line.behind_time().starts_with(b" \"")
        })
    }

    fn time(&self) -> &'a [u8] {
        &self.text[self.bracket + 1..self.bracket + TIME_LENGTH - 1]
    }

    fn behind_time(&self) -> &'a [u8] {
        &self.text[self.bracket + TIME_LENGTH..]
    }

    /// `ident user` between client and time. The user may hold spaces, the ident may not.
    fn identity(&self) -> Option<(&'a [u8], &'a [u8])> {
        let both = self.text.get(self.client + 1..self.bracket - 1)?;
        let space = memchr(b' ', both)?;
        Some((&both[..space], &both[space + 1..]))
    }

    /// The text of a field, or what is there in its place.
    pub(super) fn find(&self, field: Field) -> Result<&'a [u8], Found> {
        let request = self.behind_time();
        match field {
            Field::Time => Ok(self.time()),
            Field::Client => Ok(&self.text[..self.client]),
            Field::User => self.identity().map(|(_, user)| user).ok_or(Found::Nothing),
            Field::Method => Ok(method(quoted(request)?.0)),
            Field::Path => Ok(path(quoted(request)?.0)),
            Field::Status => Ok(word(quoted(request)?.1)?.0),
            Field::Bytes => Ok(word(word(quoted(request)?.1)?.1)?.0),
            Field::Referer => Ok(quoted(word(word(quoted(request)?.1)?.1)?.1)?.0),
            Field::UserAgent => {
                let rest = quoted(word(word(quoted(request)?.1)?.1)?.1)?.1;
                // Servers cut off a line that is too long, and then the last quote is missing.
                match quoted(rest) {
                    Ok((agent, _)) => Ok(agent),
                    Err(found) => rest.strip_prefix(b" \"").ok_or(found),
                }
            }
        }
    }
}

/// A line with the fields that were asked for.
pub(super) struct LogRow<'a> {
    pub(super) line: LogLine<'a>,
    pub(super) key: Option<Field>,
    pub(super) costs: &'a [Field],
}

impl Row for LogRow<'_> {
    fn field(&self, slot: Slot) -> Result<Cow<'_, [u8]>, BadLine> {
        let field = match slot {
            Slot::Time => Field::Time,
            Slot::Key => self.key.unwrap_or(Field::Client),
            Slot::Cost(index) => self.costs[index],
        };
        match self.line.find(field) {
            // Apache writes `-` when no byte was sent.
            Ok(b"-") if field == Field::Bytes && slot != Slot::Key => Ok(Cow::Borrowed(b"0")),
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(found) => Err(BadLine { expected: Expected::Field(field.name().into()), found }),
        }
    }
}

/// The text in quotes behind one space, and what follows. A backslash keeps a quote inside.
fn quoted(rest: &[u8]) -> Result<(&[u8], &[u8]), Found> {
    let Some(text) = rest.strip_prefix(b" \"") else { return Err(end_or_text(rest)) };
    let mut at = 0;
    loop {
        at += text.get(at..).and_then(|text| memchr2(b'"', b'\\', text)).ok_or(Found::EndOfLine)?;
        if text[at] == b'"' {
            return Ok((&text[..at], &text[at + 1..]));
        }
        at += 2;
    }
}

/// The word behind one space, and what follows.
fn word(rest: &[u8]) -> Result<(&[u8], &[u8]), Found> {
    match rest {
        [b' ', text @ ..] if !text.is_empty() => Ok(text.split_at(memchr(b' ', text).unwrap_or(text.len()))),
        _ => Err(end_or_text(rest)),
    }
}

fn end_or_text(rest: &[u8]) -> Found {
    if rest.trim_ascii().is_empty() { Found::EndOfLine } else { Found::text(rest) }
}

/// The first word of a request line.
fn method(request: &[u8]) -> &[u8] {
    &request[..memchr(b' ', request).unwrap_or(request.len())]
}

/// The path of a request line, without its query; `-` when there is none, as in noise that is not HTTP.
fn path(request: &[u8]) -> &[u8] {
    let Some(space) = memchr(b' ', request) else { return b"-" };
    let target = &request[space + 1..];
    let target = &target[..memmem::rfind(target, b" HTTP/").unwrap_or(target.len())];
    &target[..memchr(b'?', target).unwrap_or(target.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = br#"2001:db8::1 - Ann [x] Lee [17/May/2015:10:05:03 +0200] "GET /a%20b/c?q=\"1\" HTTP/1.1" 200 - "http://x/?\"y\"" "A \"b\" \\"#;

    #[test]
    fn each_field_is_found() {
        let line = LogLine::parse(LINE).unwrap();
        for (field, text) in [
            (Field::Time, r"17/May/2015:10:05:03 +0200"),
            (Field::Client, "2001:db8::1"),
            (Field::User, "Ann [x] Lee"),
            (Field::Method, "GET"),
            (Field::Path, "/a%20b/c"),
            (Field::Status, "200"),
            (Field::Bytes, "-"),
            (Field::Referer, r#"http://x/?\"y\""#),
            (Field::UserAgent, r#"A \"b\" \\"#),
        ] {
            assert_eq!(line.find(field).map(String::from_utf8_lossy), Ok(text.into()), "{field:?}");
        }
    }

    #[test]
    fn request_lines_of_all_sorts() {
        for (request, verb, target) in [
            ("GET / HTTP/1.0", "GET", "/"),
            ("GET /a b HTTP/1.1", "GET", "/a b"),
            ("GET /old", "GET", "/old"),
            ("OPTIONS * HTTP/1.1", "OPTIONS", "*"),
            ("CONNECT host:443 HTTP/1.1", "CONNECT", "host:443"),
            ("-", "-", "-"),
            (r"\x16\x03\x01", r"\x16\x03\x01", "-"),
            ("", "", "-"),
        ] {
            assert_eq!(method(request.as_bytes()), verb.as_bytes(), "{request}");
            assert_eq!(path(request.as_bytes()), target.as_bytes(), "{request}");
        }
    }
}
