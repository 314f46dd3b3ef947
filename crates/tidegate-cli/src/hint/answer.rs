//! An answer as `curl -i` prints it: a status line, headers, an empty line, the body.

use crate::fault::Hint;

/// How much of a line an error shows.
const SHOWN_MAX: usize = 60;

/// The parts of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// Reads the last answer of `text`: redirects and `100 Continue` come before it, each with headers of its own.
    ///
    /// # Errors
    ///
    /// A text that does not begin with a status line, or has something else than headers below one.
    pub(super) fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let mut rest = text.trim_ascii_start();
        if rest.is_empty() {
            return Err(Hint::error("no answer in stdin: it is empty", ADVICE));
        }
        let skipped = text.get(..text.len() - rest.len()).unwrap_or_default();
        let mut number = skipped.iter().filter(|byte| **byte == b'\n').count();
        loop {
            number += 1;
            let (first, after) = line(rest);
            let Some(status) = status(first) else {
                return Err(Hint::error(
                    format!("line {number} is no status line such as `HTTP/2 429`: `{}`", shown(first)),
                    ADVICE,
                ));
            };
            let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
            rest = after;
            while !rest.is_empty() {
                number += 1;
                let (text, after) = line(rest);
                rest = after;
                if text.is_empty() {
                    break;
                }
                if let (Some(b' ' | b'\t'), Some((_, value))) = (text.first(), headers.last_mut()) {
                    // A line that goes on: RFC 9112 5.2 has it joined with a space.
                    value.push(b' ');
                    value.extend_from_slice(text.trim_ascii());
                } else if let Some(header) = split(text) {
                    headers.push(header);
                } else {
                    return Err(Hint::error(
                        format!("line {number} is no header such as `Retry-After: 5`: `{}`", shown(text)),
                        ADVICE,
                    ));
                }
            }
            if self::status(line(rest).0).is_none() {
                return Ok(Self { status, headers, body: rest.to_vec() });
            }
        }
    }
}

const ADVICE: &str =
    "print the whole answer with `curl -si URL`, or say it with --status, --header and --body";

/// A header in a flag.
///
/// # Errors
///
/// A text without a name or a colon.
pub(super) fn header(text: &str) -> Result<(String, Vec<u8>), String> {
    split(text.as_bytes()).ok_or_else(|| "a header is a name, a colon and a value".to_owned())
}

fn split(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = line.split_at(colon);
    let name = std::str::from_utf8(name).ok()?.trim_ascii_end();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    is_name.then(|| (name.to_owned(), value.get(1..).unwrap_or_default().trim_ascii().to_vec()))
}

/// The status of `HTTP/1.1 429 Too Many Requests`.
fn status(line: &[u8]) -> Option<u16> {
    let mut words = line.strip_prefix(b"HTTP/")?.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let version = words.next()?;
    let code = std::str::from_utf8(words.next()?).ok()?;
    let is_version = version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    code.parse().ok().filter(|status| is_version && (100..=999).contains(status))
}

/// The first line without its end, and what is below it.
fn line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b'\n');
    let (line, rest) = match end {
        Some(end) => (text.get(..end).unwrap_or_default(), text.get(end + 1..).unwrap_or_default()),
        None => (text, &[][..]),
    };
    (line.strip_suffix(b"\r").unwrap_or(line), rest)
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    if text.chars().nth(SHOWN_MAX).is_none() {
        return text.into_owned();
    }
    text.chars().take(SHOWN_MAX).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts = (u16, Vec<(String, String)>, String);

    fn parsed(text: &str) -> Result<Parts, String> {
        let answer = Answer::parse(text.as_bytes()).map_err(|error| error.to_string())?;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let headers = answer.headers.into_iter().map(|(name, value)| (name, text(value))).collect();
        Ok((answer.status, headers, text(answer.body)))
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn the_last_answer_counts() {
        let plain = "HTTP/1.1 429 Too Many Requests\r\nRetry-After:  5 \r\nx-a:\r\n\r\n{}\n\nx";
        let headers = vec![header("Retry-After", "5"), header("x-a", "")];
        assert_eq!(parsed(plain), Ok((429, headers, "{}\n\nx".to_owned())));
        let several = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 302 Found\r\nlocation: /\r\n\r\nHTTP/2 503 \r\na: b\r\n\r\nbody";
        assert_eq!(parsed(several), Ok((503, vec![header("a", "b")], "body".to_owned())));
    }

    #[test]
    fn what_people_paste() {
        for (text, status, headers, body) in [
            ("HTTP/2 429", 429, vec![], ""),
            ("HTTP/2 429\n", 429, vec![], ""),
            ("\n\nHTTP/2 429\nRetry-After: 5\n", 429, vec![header("Retry-After", "5")], ""),
            ("HTTP/2 429\n\nHTTP is a protocol", 429, vec![], "HTTP is a protocol"),
            ("HTTP/1.1 200 OK\na: 1\n  2\nb : 3\n\n", 200, vec![header("a", "1 2"), header("b", "3")], ""),
        ] {
            assert_eq!(parsed(text), Ok((status, headers, body.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_is_said_with_its_line() {
        for (text, expected) in [
            ("", "no answer in stdin: it is empty"),
            (" \r\n", "no answer in stdin: it is empty"),
            ("{\"a\": 1}", "line 1 is no status line such as `HTTP/2 429`: `{\"a\": 1}`"),
            ("\nHTTP/2 99", "line 2 is no status line such as `HTTP/2 429`: `HTTP/2 99`"),
            ("HTTP/x 429", "line 1 is no status line such as `HTTP/2 429`: `HTTP/x 429`"),
            ("HTTP/2", "line 1 is no status line such as `HTTP/2 429`: `HTTP/2`"),
            ("HTTP/2 429\na: b\n{}\n", "line 3 is no header such as `Retry-After: 5`: `{}`"),
            ("HTTP/2 429\n: b\n", "line 2 is no header such as `Retry-After: 5`: `: b`"),
            ("HTTP/2 429\n b\n", "line 2 is no header such as `Retry-After: 5`: ` b`"),
        ] {
            assert_eq!(parsed(text), Err(expected.to_owned()), "{text:?}");
        }
        let long = parsed(&"\u{e4}".repeat(100)).unwrap_err();
        assert!(long.ends_with(&format!("`{}...`", "\u{e4}".repeat(60))), "{long}");
    }
}
