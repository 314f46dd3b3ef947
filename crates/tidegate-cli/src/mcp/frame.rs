//! Messages as they come: one JSON object in a line, of which only the head is looked at.
//!
//! Nothing is ever written again from what was read here: the bytes of a message pass as they came.

use std::borrow::Cow;
use std::io::{self, BufRead, Read as _};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::charges::{Charges, Method};
use super::limits::Subject;

/// The id of a request, so that `1` and `"1"` differ, and two ways of writing one text do not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    Text(Box<str>),
    /// A number as it was written.
    Number(Box<str>),
}

impl Id {
    /// `None` for anything that is no id.
    fn of(raw: &RawValue) -> Option<Self> {
        match raw.get().as_bytes() {
            [b'"', ..] => serde_json::from_str::<String>(raw.get()).ok().map(|text| Self::Text(text.into())),
            [b'-' | b'0'..=b'9', ..] => Some(Self::Number(raw.get().into())),
            _ => None,
        }
    }
}

/// What a message of the client is to the limits.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// A request that is charged.
    Call(Asked),
    /// The request of this id is no longer wanted.
    Cancelled(Id),
    /// Several messages in one, and one among them that is charged.
    Batch,
    /// Everything else, and what is not understood.
    Other,
}

/// A request that is charged, as far as the limits and our own answers need it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) id: Id,
    /// The id as it was written, for our own answer.
    pub(crate) raw_id: Box<str>,
    pub(crate) method: Method,
    pub(crate) subject: Subject,
    pub(crate) cost: u64,
    /// The token for notifications of progress as it was written, if they are wanted.
    pub(crate) progress_token: Option<Box<str>>,
    /// Whether the request is of the protocol from 2026-07-28 on.
    pub(crate) modern: bool,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallParams<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Meta<'a>>,
    #[serde(default)]
    input_responses: Option<IgnoredAny>,
    #[serde(default)]
    request_state: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
    #[serde(default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct CancelParams<'a> {
    #[serde(borrow, rename = "requestId")]
    request_id: &'a RawValue,
}

#[derive(Deserialize)]
struct AnswerHead<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(default)]
    method: Option<IgnoredAny>,
}

/// What the client's message `line` is. A call that the server will not understand either is none of our business.
pub(crate) fn message(line: &[u8], charges: &Charges) -> Message {
    if line.trim_ascii_start().first() == Some(&b'[') {
        let is_charged =
            |head: &Head<'_>| head.method.as_deref().is_some_and(|name| charges.method(name).is_some());
        let calls =
            serde_json::from_slice::<Vec<Head<'_>>>(line).is_ok_and(|heads| heads.iter().any(is_charged));
        return if calls { Message::Batch } else { Message::Other };
    }
    serde_json::from_slice(line).ok().and_then(|head| of_head(&head, charges)).unwrap_or(Message::Other)
}

fn of_head(head: &Head<'_>, charges: &Charges) -> Option<Message> {
    let name = head.method.as_deref()?;
    if let Some(method) = charges.method(name) {
        let raw_id = head.id?;
        let params: CallParams<'_> = serde_json::from_str(head.params?.get()).ok()?;
        let tool = if method == Method::CallTool { &*params.name? } else { name };
        let goes_on = params.input_responses.is_some() || params.request_state.is_some();
        let token = params.meta.as_ref().and_then(|meta| meta.progress_token);
        return Some(Message::Call(Asked {
            id: Id::of(raw_id)?,
            raw_id: raw_id.get().into(),
            method,
            subject: Subject { tool: tool.into(), session: "".into() },
            cost: charges.cost(tool, params.arguments, goes_on),
            progress_token: token.filter(|raw| Id::of(raw).is_some()).map(|raw| raw.get().into()),
            modern: params.meta.is_some_and(|meta| meta.version.is_some()),
        }));
    }
    if name == "notifications/cancelled" {
        let params: CancelParams<'_> = serde_json::from_str(head.params?.get()).ok()?;
        return Id::of(params.request_id).map(Message::Cancelled);
    }
    None
}

/// The request that the server's message `line` answers, if it is an answer.
pub(crate) fn answered(line: &[u8]) -> Option<Id> {
    let head: AnswerHead<'_> = serde_json::from_slice(line).ok()?;
    if head.method.is_some() { None } else { Id::of(head.id) }
}

/// Reads the next message into `line`, its line end included; `false` at the end.
///
/// # Errors
///
/// Those of the reader; and [`io::ErrorKind::FileTooLarge`] for a message of more than `max` bytes.
pub(crate) fn read(reader: &mut impl BufRead, line: &mut Vec<u8>, max: u64) -> io::Result<bool> {
    line.clear();
    let read = reader.take(max.saturating_add(1)).read_until(b'\n', line)?;
    if read as u64 > max && line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(read > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Asked {
        match message(line.as_bytes(), &Charges::default()) {
            Message::Call(asked) => asked,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_call_is_known_by_its_head() {
        let asked = call(
            r#"{"params":{"name":"a\"b","arguments":{"method":"x"},"_meta":{"progressToken":7}},"id":"q","method":"tools\/call","jsonrpc":"2.0"}"#,
        );
        assert_eq!((&*asked.subject.tool, &*asked.raw_id), ("a\"b", "\"q\""));
        assert_eq!(asked.progress_token.as_deref(), Some("7"));
        assert!(!asked.modern && asked.cost == 1);
        let asked = call(
            r#"{"id":1,"method":"tools/call","params":{"name":"t","requestState":"s","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        assert!(asked.modern && asked.cost == 0, "it was charged before");
    }

    #[test]
    fn everything_else_is_let_alone() {
        for line in [
            r#"{"id":1,"method":"initialize","params":{"name":"tools/call"}}"#,
            r#"{"id":1,"method":"tools/list"}"#,
            r#"{"method":"tools/call","params":{"name":"t"}}"#,
            r#"{"id":null,"method":"tools/call","params":{"name":"t"}}"#,
            r#"{"id":1,"method":"tools/call","params":{}}"#,
            r#"{"id":1,"method":"resources/read","params":{"uri":"x"}}"#,
            r#"{"id":1,"result":{}}"#,
            r#"{"id":1,"method":"tools/call","params":{"name":"t"}"#,
            r#"[{"id":1,"method":"ping"}]"#,
            "\n",
            "\u{feff}{}",
        ] {
            assert_eq!(message(line.as_bytes(), &Charges::default()), Message::Other, "{line}");
        }
        let charges = Charges::default();
        assert_eq!(message(b"{\"method\":\"tools/call\",\"id\":1,\"x\":\"\xff\"}", &charges), Message::Other);
        let batch = br#" [{"id":1,"method":"tools/call","params":{"name":"t"}}]"#;
        assert_eq!(message(batch, &charges), Message::Batch);
    }

    #[test]
    fn other_requests_are_charged_by_their_method_when_asked_for() {
        let line = br#"{"id":1,"method":"resources/read","params":{"uri":"file:///x"}}"#;
        assert_eq!(message(line, &Charges::default()), Message::Other);
        let charges = Charges { also: vec![Method::ReadResource], ..Charges::default() };
        let Message::Call(asked) = message(line, &charges) else { panic!("it is charged") };
        assert_eq!(
            (asked.method, &*asked.subject.tool, asked.cost),
            (Method::ReadResource, "resources/read", 1)
        );
        let prompt = br#"{"id":1,"method":"prompts/get","params":{"name":"x"}}"#;
        assert_eq!(message(prompt, &charges), Message::Other);
    }

    #[test]
    fn ids_are_told_apart_by_kind_and_not_by_spelling() {
        let cancelled = |id: &str| {
            message(
                format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#).as_bytes(),
                &Charges::default(),
            )
        };
        let answer = |id: &str| {
            Message::Cancelled(answered(format!(r#"{{"id":{id},"result":1}}"#).as_bytes()).unwrap())
        };
        assert_eq!(cancelled("1"), answer("1"));
        assert_ne!(cancelled("1"), answer("\"1\""));
        assert_eq!(cancelled("\"\u{e9}\""), answer("\"\\u00e9\""));
        assert_eq!(answered(br#"{"id":1,"method":"sampling/createMessage"}"#), None);
        assert_eq!(answered(br#"{"id":null,"error":{}}"#), None);
    }

    #[test]
    fn a_line_is_read_whole_up_to_its_bound() {
        let mut line = Vec::new();
        let mut text = &b"12345\n1234"[..];
        assert!(read(&mut text, &mut line, 5).unwrap());
        assert_eq!(line, b"12345\n");
        assert!(read(&mut text, &mut line, 5).unwrap());
        assert_eq!(line, b"1234");
        assert!(!read(&mut text, &mut line, 5).unwrap());
        let error = read(&mut &b"123456\n"[..], &mut line, 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
