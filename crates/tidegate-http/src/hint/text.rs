//! An error in words, as a tool or a library hands it on: what a server said is somewhere in it.

use std::time::SystemTime;

use serde_json::value::RawValue;

use super::evidence::Evidence;
use super::form::{Clock, told_in};
use super::number::leading_number;
use super::profile::{Form, PROFILES};
use super::{BODY_MAX, FIELDS_MAX, Hint, Note, Signal, Source, body, headers, since_1970};

/// The status that the text is taken for: it is that of an error.
const STATUS: u16 = 429;

/// How many places are tried at which JSON could begin.
const STARTS_MAX: usize = 8;

/// What the text of an error says about waiting, which came `now`.
///
/// Three things are looked for: sentences (`try again in 7 s`, `Retry-After: 7`), lines of the form `name: value` that are
/// known headers, and the first JSON in it, read as the body of a rejection. As with an answer of a server, the longest
/// instruction counts. Use it only for texts that are errors: a document about waiting says something too.
///
/// ```
/// # use std::time::{Duration, UNIX_EPOCH};
/// use tidegate_http::hint::in_text;
///
/// for text in [
///     "Error: 429 Too Many Requests (Retry-After: 7)",
///     "HTTP 429\nretry-after: 7\nserver: x",
///     r#"Request failed with status 429: {"error": {"message": "Please try again in 7s."}}"#,
/// ] {
///     assert_eq!(in_text(text, UNIX_EPOCH).wait, Some(Duration::from_secs(7)), "{text}");
/// }
/// ```
#[must_use]
pub fn in_text(text: &str, now: SystemTime) -> Hint {
    let mut evidence = Evidence::default();
    if text.len() > BODY_MAX {
        evidence.note(Note::TooMuch);
        return evidence.conclude(STATUS);
    }
    let clock = Clock(since_1970(now));
    for reading in [told_in(text), after_the_name(text, clock)].into_iter().flatten() {
        evidence.wait(reading, Signal::new(Source::Body, "text", text.as_bytes()));
    }
    let fields: Vec<_> = text.lines().filter_map(field).take(FIELDS_MAX).collect();
    headers::read(&fields, clock, false, &PROFILES.iter(), &mut evidence);
    if let Some(json) = json(text) {
        body::read(json.as_bytes(), STATUS, clock, PROFILES.iter(), &mut evidence);
    }
    evidence.conclude(STATUS)
}

/// `Retry-After: 7` or `retry-after=7` in the middle of a line.
fn after_the_name(text: &str, clock: Clock) -> Option<super::form::Reading> {
    const NAME: &[u8] = b"retry-after";
    let bytes = text.as_bytes();
    let at = bytes.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME))?;
    let rest = bytes.get(at + NAME.len()..)?;
    let start = rest.iter().position(|byte| !b" :='\"".contains(byte))?;
    let (number, rest) = leading_number(rest.get(start..)?)?;
    // `7ms`, `7-9` and the rest of a date are no seconds.
    if start == 0 || rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-/:".contains(byte)) {
        return None;
    }
    clock.read(Form::RetryAfter, number)
}

fn field(line: &str) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_once(':')?;
    let name = name.trim().as_bytes();
    let is_name =
        !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
    is_name.then(|| (name, value.trim().as_bytes()))
}

/// The first JSON object or array in the text.
fn json(text: &str) -> Option<&str> {
    let starts = text.match_indices(['{', '[']).take(STARTS_MAX);
    starts.filter_map(|(at, _)| text.get(at..)).find_map(|rest| {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        values.next()?.ok().map(RawValue::get)
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_text_is_read_as_people_and_libraries_write_it() {
        // 2026-11-30T12:00:00Z.
        let now = UNIX_EPOCH + Duration::from_secs(1_796_040_000);
        for (text, ms) in [
            ("API error 429: rate limited. Retry after 7 s; do not call it again before then.", Some(7_000)),
            ("Please wait 30 seconds before you try again.", Some(30_000)),
            ("Rate limit exceeded, try again in 2 min", Some(120_000)),
            ("429 (Retry-After: 7)", Some(7_000)),
            ("429 retry-after=7, sorry", Some(7_000)),
            ("{'Retry-After': '7'}", Some(7_000)),
            ("Retry-After: Mon, 30 Nov 2026 12:00:30 GMT", Some(30_000)),
            ("HTTP/1.1 429\nRetry-After: 5\nX-RateLimit-Remaining: 0\n\nbody", Some(5_000)),
            (
                "429 {\"retry_after\": 3, \"message\": \"You are being rate limited.\", \"global\": false}",
                Some(3_000),
            ),
            ("see [docs]: {\"error\":{\"message\":\"Please try again in 20s.\"}}", Some(20_000)),
            (
                r#"{"error":{"code":429,"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"9s"}]}}"#,
                Some(9_000),
            ),
            ("429 Too Many Requests", None),
            ("retry in 5 sheep", None),
            ("retry-after 7ms", None),
            ("the retry-after header is missing", None),
            ("no such file: retry.txt", None),
            ("{{{{[[[[[{\"retry_after\": 3}", None),
            ("", None),
        ] {
            let wait = in_text(text, now).wait.map(|wait| wait.as_millis());
            assert_eq!(wait, ms, "{text}");
        }
        assert_eq!(in_text(&"retry in 5s".repeat(BODY_MAX), now).notes, [Note::TooMuch]);
    }
}
