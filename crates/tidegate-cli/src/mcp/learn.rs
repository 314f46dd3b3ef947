//! What an answer says about waiting: a tool that was refused by whatever is behind it hands that on.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tidegate_http::hint::{self, Response, in_text};

/// How much of the text of one answer is read, in blocks.
const BLOCKS_MAX: usize = 16;

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    result: Option<ToolResult<'a>>,
    #[serde(borrow, default)]
    error: Option<Failure<'a>>,
}

#[derive(Deserialize)]
struct ToolResult<'a> {
    #[serde(default, rename = "isError")]
    is_error: bool,
    #[serde(borrow, default)]
    content: Vec<Block<'a>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    text: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Failure<'a> {
    #[serde(borrow, default)]
    message: Option<std::borrow::Cow<'a, str>>,
}

/// For how long a JSON-RPC answer wants its tool to be left alone. Only an error says so: a result of a tool with
/// `isError`, in its `_meta` or its text, or an error of the protocol, in its `data` or its message.
pub(crate) fn pause(answer: &[u8], now: SystemTime) -> Option<Duration> {
    // Most answers are no errors; looking for the words is faster than reading. Errors are short.
    if answer.len() > hint::BODY_MAX || !contains(answer, b"\"isError\"") && !contains(answer, b"\"error\"") {
        return None;
    }
    let read: Answer<'_> = serde_json::from_slice(answer).ok()?;
    let texts: Vec<_> = match (read.result, read.error) {
        (Some(result), None) if result.is_error => {
            result.content.into_iter().filter_map(|block| block.text).take(BLOCKS_MAX).collect()
        }
        (None, Some(error)) => error.message.into_iter().collect(),
        _ => return None,
    };
    // The status of HTTP says nothing here.
    let whole = Response::new(200, now).body(answer).hint();
    let hints = texts.iter().map(|text| in_text(text, now)).chain([whole]);
    let pauses = hints.filter_map(|hint| hint.pause(hint::CEILING)).map(|pause| pause.wait);
    pauses.max().filter(|wait| !wait.is_zero())
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn an_error_says_how_long_and_nothing_else_does() {
        for (answer, seconds) in [
            (
                r#"{"id":1,"result":{"isError":true,"content":[{"type":"text","text":"Error: 429. Retry-After: 7"}]}}"#,
                Some(7),
            ),
            (
                r#"{"id":1,"result":{"isError":true,"content":[{"type":"image","data":"x"},{"type":"text","text":"OpenAI: {\"error\":{\"message\":\"Please try again in 20s.\"}}"}]}}"#,
                Some(20),
            ),
            (
                r#"{"id":1,"result":{"isError":true,"content":[],"_meta":{"io.github.tidegate/rateLimit":{"retryAfterMs":9000}}}}"#,
                Some(9),
            ),
            (
                r#"{"id":1,"error":{"code":429,"message":"Rate limit exceeded","data":{"retryAfterSeconds":3}}}"#,
                Some(3),
            ),
            (r#"{"id":1,"error":{"code":-32603,"message":"upstream said: retry after 4 seconds"}}"#, Some(4)),
            (
                r#"{"id":1,"result":{"isError":false,"content":[{"type":"text","text":"Retry-After: 7"}]}}"#,
                None,
            ),
            (
                r#"{"id":1,"result":{"content":[{"type":"text","text":"\"isError\":true Retry-After: 7"}]}}"#,
                None,
            ),
            (r#"{"id":1,"result":{"isError":true,"content":[{"type":"text","text":"no such file"}]}}"#, None),
            (
                r#"{"id":1,"result":{"isError":true,"content":[{"type":"text","text":"429 Too Many Requests"}]}}"#,
                None,
            ),
            (r#"{"id":1,"result":{"isError":true,"content":"Retry-After: 7"}}"#, None),
            (r#"{"id":1,"error":"Retry-After: 7"}"#, None),
        ] {
            assert_eq!(pause(answer.as_bytes(), UNIX_EPOCH), seconds.map(Duration::from_secs), "{answer}");
        }
        let day = br#"{"error":{"message":"retry after 999999 hours"}}"#;
        assert_eq!(pause(day, UNIX_EPOCH), Some(hint::CEILING));
    }
}
