//! A JSON body, and what its members say.
//!
//! Only members that a profile names are read, up to 32 KiB of them together, so a large `data` beside them takes no
//! memory, and the worst that can be sent as JSON takes some 3 MB. Fractions are held by
//! `serde_json` in binary and printed as the shortest decimal that means the same, which is what the server wrote (up to
//! 17 digits); from there on all is integers.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::evidence::Evidence;
use super::form::{Clock, told_in};
use super::number::{SECOND, decimal, without_exponent};
use super::profile::{BodyRule, BodySays, Profile, Step, When};
use super::{NoRetry, Note, Signal, Source};

/// Elements of an array that are looked at.
const ELEMENTS_MAX: usize = 64;

/// Bytes of all members that are read, together. An object of seven bytes takes 640 in memory, so this is the bound of
/// what a hostile body can take; error bodies have a few hundred bytes.
const MEMBERS_MAX: usize = 32 * 1024;

/// Reads what `profiles` know of `body` into `evidence`.
pub(super) fn read<'a>(
    body: &[u8],
    status: u16,
    clock: Clock,
    profiles: impl Iterator<Item = &'a Profile> + Clone,
    evidence: &mut Evidence,
) {
    let rules = profiles.flat_map(|profile| profile.body.iter().map(move |rule| (profile, rule)));
    let begins_with = |rule: &BodyRule, key: &str| match rule.path.first() {
        Some(Step::Key(name)) => *name == key,
        Some(Step::KeyEnding(ending)) => key.ends_with(ending),
        _ => false,
    };
    let is_wanted = |key: &str| key == "errors" || rules.clone().any(|(_, rule)| begins_with(rule, key));
    let Some(members) = members(body, is_wanted) else { return };
    let mut top = Map::new();
    let mut room = MEMBERS_MAX;
    for (key, text) in members {
        let Some(left) = room.checked_sub(text.get().len()) else {
            evidence.note(Note::TooMuch);
            continue;
        };
        room = left;
        // What is nested deeper than the parser goes is no error of a server.
        if let Ok(value) = serde_json::from_str(text.get()) {
            top.insert(key, value);
        }
    }
    let tool_failed = top.get("result").and_then(|result| result.get("isError")) == Some(&Value::Bool(true));
    for (profile, rule) in rules {
        let counts = match rule.when {
            When::Always => true,
            When::Failed => status >= 400,
            When::ToolFailed => tool_failed,
        };
        if counts {
            let mut found = Vec::new();
            collect_object(&top, rule.path, &mut found);
            for value in found {
                apply(rule, profile.name, value, &top, clock, evidence);
            }
        }
    }
}

fn apply(
    rule: &BodyRule,
    family: &'static str,
    value: &Value,
    top: &Map<String, Value>,
    clock: Clock,
    evidence: &mut Evidence,
) {
    let signal = |text: &str| Signal::new(Source::Body, &name(rule.path), text.as_bytes());
    match rule.says {
        BodySays::Wait(form) => {
            let Some(text) = text(value) else { return };
            match clock.read(form, text.trim_ascii().as_bytes()) {
                Some(reading) => evidence.wait(reading, signal(&text)),
                None => evidence.unreadable(signal(&text)),
            }
        }
        BodySays::Sentence => {
            if let Some(sentence) = value.as_str()
                && let Some(reading) = told_in(sentence)
            {
                evidence.wait(reading, signal(sentence));
            }
        }
        BodySays::Documented(wanted, seconds) => {
            if let Some(sentence) = value.as_str()
                && contains(sentence, wanted)
            {
                evidence.documented(u128::from(seconds) * u128::from(SECOND), signal(sentence));
            }
        }
        BodySays::Words(words) => {
            let Some(text) = text(value) else { return };
            for (_, meaning) in words.iter().filter(|(word, _)| text.eq_ignore_ascii_case(word)) {
                evidence.meaning(*meaning);
            }
        }
        BodySays::Cost => cost(family, value, top, &name(rule.path), evidence),
    }
}

/// Shopify's GraphQL: the query costs points of a leaky bucket. If it was refused, the wait is
/// `(requestedQueryCost - currentlyAvailable) / restoreRate`, as its documentation says.
fn cost(family: &'static str, cost: &Value, top: &Map<String, Value>, path: &str, evidence: &mut Evidence) {
    // Nano-points, so that decimals count.
    let points = |value: Option<&Value>| decimal(text(value?)?.as_bytes(), SECOND);
    let Some(status) = cost.get("throttleStatus") else { return };
    let Some(available) = status.get("currentlyAvailable").and_then(text) else { return };
    // Below zero it is a debt, which has to be restored as well.
    let debt = available.strip_prefix('-').map(|debt| decimal(debt.as_bytes(), SECOND));
    let (available, debt) = match debt {
        Some(debt) => (Some(0), debt),
        None => (decimal(available.as_bytes(), SECOND), Some(0)),
    };
    let (Some(available), Some(debt)) = (available, debt) else { return };
    let nano = u128::from(SECOND);
    let whole = |points: u128| u64::try_from(points / nano).unwrap_or(u64::MAX);
    let most = points(status.get("maximumAvailable"));
    evidence.counter(family, "points", |counter| {
        counter.lower_remaining(whole(available));
        counter.limit = counter.limit.or(most.map(whole));
    });
    let is_refused = top.get("errors").and_then(Value::as_array).is_some_and(|errors| {
        errors
            .iter()
            .take(ELEMENTS_MAX)
            .any(|error| error.pointer("/extensions/code").and_then(Value::as_str) == Some("THROTTLED"))
    });
    let Some(requested) = points(cost.get("requestedQueryCost")).filter(|_| is_refused) else { return };
    if most.is_some_and(|most| requested > most) {
        evidence.no_retry(NoRetry::CostAboveCapacity);
        return;
    }
    let Some(rate) = points(status.get("restoreRate")).filter(|rate| *rate > 0) else { return };
    let missing = (requested + debt).saturating_sub(available);
    let ns = missing.saturating_mul(nano).div_ceil(rate);
    let value = format!("{} missing, {} restored per second", missing.div_ceil(nano), rate / nano);
    evidence.wait(
        super::form::Reading { ns, is_coarse: false, is_odd_instant: false },
        Signal::new(Source::Body, path, value.as_bytes()),
    );
}

/// The text of a string, a number or a boolean.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => {
            let text = number.to_string();
            Some(without_exponent(&text).unwrap_or(text).into())
        }
        Value::Bool(truth) => Some(if *truth { "true" } else { "false" }.into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn contains(text: &str, wanted: &str) -> bool {
    text.as_bytes().windows(wanted.len()).any(|window| window.eq_ignore_ascii_case(wanted.as_bytes()))
}

fn collect<'a>(value: &'a Value, path: &[Step], found: &mut Vec<&'a Value>) {
    match (path.split_first(), value) {
        (None, value) if found.len() < ELEMENTS_MAX => found.push(value),
        (Some((Step::EachWhere(name, ending), rest)), Value::Array(elements)) => {
            let is_meant = |element: &&Value| {
                element.get(name).and_then(Value::as_str).is_some_and(|text| text.ends_with(ending))
            };
            for element in elements.iter().take(ELEMENTS_MAX).filter(is_meant) {
                collect(element, rest, found);
            }
        }
        (Some(_), Value::Object(object)) => collect_object(object, path, found),
        _ => {}
    }
}

fn collect_object<'a>(object: &'a Map<String, Value>, path: &[Step], found: &mut Vec<&'a Value>) {
    match path.split_first() {
        Some((Step::Key(key), rest)) => {
            if let Some(value) = object.get(*key) {
                collect(value, rest, found);
            }
        }
        Some((Step::KeyEnding(ending), rest)) => {
            for (_, value) in object.iter().filter(|(key, _)| key.ends_with(ending)) {
                collect(value, rest, found);
            }
        }
        _ => {}
    }
}

/// A path as people read it: `error.details[].retryDelay`.
fn name(path: &[Step]) -> String {
    let mut name = String::new();
    for step in path {
        match step {
            Step::EachWhere(..) => name.push_str("[]"),
            Step::Key(key) | Step::KeyEnding(key) => {
                if !name.is_empty() {
                    name.push('.');
                }
                if matches!(step, Step::KeyEnding(_)) {
                    name.push('*');
                }
                name.push_str(key);
            }
        }
    }
    name
}

/// Members of an object, unread.
type Members<'a> = Vec<(String, &'a RawValue)>;

/// The members of the document's object whose names are wanted, or of the first object in its array.
fn members(body: &[u8], is_wanted: impl Fn(&str) -> bool) -> Option<Members<'_>> {
    if !matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer.deserialize_any(Top { is_wanted: &is_wanted, is_nested: false }).ok()
}

struct Top<'a, F> {
    is_wanted: &'a F,
    is_nested: bool,
}

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Top<'_, F> {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = Members::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if (self.is_wanted)(&key) {
                kept.push((key.into_owned(), map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        if self.is_nested {
            return Err(serde::de::Error::custom("an array in an array"));
        }
        let first = elements.next_element_seed(First(Self { is_nested: true, ..self }))?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first.unwrap_or_default())
    }
}

/// The first element of an array: what is in an array is read like what is alone.
struct First<'a, F>(Top<'a, F>);

impl<'de, F: Fn(&str) -> bool> serde::de::DeserializeSeed<'de> for First<'_, F> {
    type Value = Members<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}
