//! Messages as they come: one JSON object in a line, of which only the head is looked at.
//!
//! Nothing is ever written again from what was read here: the bytes of a message pass as they came.

use std::io::{self, BufRead, Read as _};

use serde_json::value::RawValue;

use super::charges::{Charges, Method};
use super::lenient::{self, Members};
use super::limits::Subject;

/// The longest id of a call, the longest name of its tool, and the longest token for its progress, in bytes. They are kept
/// when the message has gone, and the token is said again and again.
const LABEL_MAX: usize = 1024;

/// The id of a request, so that `1` and `"1"` differ, and two ways of writing one text or number do not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    Text(Box<str>),
    /// A number as it is written most simply: a server that was asked `1.0` may answer `1`.
    Number(Box<str>),
}

impl Id {
    /// `None` for anything that is no id.
    fn of(raw: &RawValue) -> Option<Self> {
        match raw.get().as_bytes() {
            [b'"', ..] => lenient::string(raw).map(|text| Self::Text(text.into())),
            [b'-' | b'0'..=b'9', ..] => Some(Self::Number(number(raw.get()).into())),
            _ => None,
        }
    }
}

fn number(written: &str) -> String {
    if let Ok(whole) = written.parse::<i64>() {
        return whole.to_string();
    }
    match written.parse::<f64>() {
        Ok(0.0) => "0".to_owned(),
        Ok(number) => number.to_string(),
        Err(_) => written.to_owned(),
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
    /// A request that would be charged if it were clear what it is; its id as it was written, if that is clear.
    Unclear(Option<Box<str>>),
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

const ID: usize = 0;
const METHOD: usize = 1;
const PARAMS: usize = 2;

/// The members that say what a message is.
fn head(message: &RawValue) -> Option<Members<'_, 3>> {
    Members::of(message, ["id", "method", "params"])
}

/// What the client's message `line` is. A call that the server will not understand either is none of our business.
pub(crate) fn message(line: &[u8], charges: &Charges) -> Message {
    let text = lenient::text(line);
    match lenient::values(&text) {
        (_, true) => match lenient::without_nan(&text) {
            Some(plain) => of_values(&lenient::values(&plain), charges),
            None => of_values(&lenient::values(&text), charges),
        },
        values => of_values(&values, charges),
    }
}

fn of_values((values, is_followed): &(Vec<&RawValue>, bool), charges: &Charges) -> Message {
    match values.as_slice() {
        [array] if !is_followed && array.get().starts_with('[') => {
            let is_batch = elements(array).iter().any(|message| is_charged(message, charges));
            if is_batch { Message::Batch } else { Message::Other }
        }
        [message] if !is_followed => of_one(message, charges),
        // Some readers take the first, and others all.
        several => {
            let mut all = several
                .iter()
                .flat_map(|value| if value.get().starts_with('[') { elements(value) } else { vec![*value] });
            if all.any(|message| is_charged(message, charges)) {
                Message::Unclear(None)
            } else {
                Message::Other
            }
        }
    }
}

fn elements(array: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(array.get()).unwrap_or_default()
}

/// How a message is charged, by any of its methods.
fn charged(head: &Members<'_, 3>, charges: &Charges) -> Option<Method> {
    head.all(METHOD).find_map(|method| charges.method(&lenient::string(method)?))
}

fn is_charged(message: &RawValue, charges: &Charges) -> bool {
    head(message).is_some_and(|head| charged(&head, charges).is_some())
}

fn of_one(message: &RawValue, charges: &Charges) -> Message {
    let of = |head: &Members<'_, 3>| match charged(head, charges) {
        Some(method) => of_call(head, method, charges),
        None => cancelled(head),
    };
    head(message).as_ref().and_then(of).unwrap_or(Message::Other)
}

fn of_call(head: &Members<'_, 3>, method: Method, charges: &Charges) -> Option<Message> {
    const NAME: usize = 0;
    const ARGUMENTS: usize = 1;
    const META: usize = 2;
    const GOES_ON: [usize; 2] = [3, 4];
    let params =
        Members::of(head.get(PARAMS)?, ["name", "arguments", "_meta", "inputResponses", "requestState"]);
    let raw_id = head.get(ID)?;
    let is_clear = !head.are_repeated() && params.as_ref().is_none_or(|params| !params.are_repeated());
    if !is_clear || raw_id.get().len() > LABEL_MAX {
        let is_one = head.all(ID).count() == 1 && raw_id.get().len() <= LABEL_MAX;
        return Some(Message::Unclear(is_one.then(|| raw_id.get().into())));
    }
    let params = params?;
    let tool = match method {
        Method::CallTool => lenient::string(params.get(NAME)?)?,
        other => other.name().into(),
    };
    if tool.len() > LABEL_MAX {
        return Some(Message::Unclear(Some(raw_id.get().into())));
    }
    let goes_on = GOES_ON.into_iter().any(|name| params.some(name).is_some());
    let meta = params
        .get(META)
        .and_then(|meta| Members::of(meta, ["progressToken", "io.modelcontextprotocol/protocolVersion"]));
    let token = meta.as_ref().and_then(|meta| meta.get(0));
    let token = token.filter(|raw| raw.get().len() <= LABEL_MAX && Id::of(raw).is_some());
    Some(Message::Call(Asked {
        id: Id::of(raw_id)?,
        raw_id: raw_id.get().into(),
        method,
        cost: charges.cost(&tool, params.get(ARGUMENTS), goes_on),
        subject: Subject { tool: tool.into(), session: "".into() },
        progress_token: token.map(|raw| raw.get().into()),
        modern: meta.is_some_and(|meta| meta.some(1).is_some()),
    }))
}

fn cancelled(head: &Members<'_, 3>) -> Option<Message> {
    if lenient::string(head.get(METHOD)?)? != "notifications/cancelled" {
        return None;
    }
    let params = Members::of(head.get(PARAMS)?, ["requestId"])?;
    Id::of(params.get(0)?).map(Message::Cancelled)
}

/// The requests that the server's message `line` answers: one, or several if it is an array of answers.
pub(crate) fn answered(line: &[u8]) -> Vec<Id> {
    let text = lenient::text(line);
    let answers = |text: &str| -> Option<Vec<Id>> {
        let message: &RawValue = serde_json::from_str(text).ok()?;
        let messages = if message.get().starts_with('[') { elements(message) } else { vec![message] };
        Some(messages.into_iter().filter_map(answers_one).collect())
    };
    let plain = || answers(&lenient::without_nan(&text)?);
    answers(&text).or_else(plain).unwrap_or_default()
}

fn answers_one(message: &RawValue) -> Option<Id> {
    let head = head(message)?;
    if head.some(METHOD).is_some() { None } else { Id::of(head.get(ID)?) }
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
#[path = "frame/tests.rs"]
mod tests;
