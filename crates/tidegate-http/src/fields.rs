//! The response fields `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10), written and read.
//!
//! ```text
//! RateLimit-Policy: "per-client";q=20;w=2, "daily";q=1000;w=86400
//! RateLimit: "per-client";r=12;t=1
//! ```
//!
//! Both are structured fields: lists of names with parameters. A field with a mistake in it is ignored whole, as is one
//! whose parameters have the wrong type; an entry that lacks its number (`q`, `r`) is left out. Parameters that are not
//! known are skipped. The draft's own slips are read: a name without quotes, and the unit `request`.
//!
//! ```
//! use http::HeaderValue;
//! use tidegate_http::fields::{PolicyItem, StateItem, parse_policy, parse_state, write_policy, write_state};
//!
//! let state = StateItem { seconds: Some(1), ..StateItem::new("per-client", 12) };
//! let field = write_state(&[state.clone()])?;
//! assert_eq!(field, "\"per-client\";r=12;t=1");
//! assert_eq!(parse_state([&field]), Some(vec![state]));
//!
//! let policy = PolicyItem { window_seconds: 2.try_into().ok(), ..PolicyItem::new("per-client", 20) };
//! assert_eq!(write_policy(&[policy])?, "\"per-client\";q=20;w=2");
//! assert_eq!(parse_policy([&HeaderValue::from_static("\"a\";q=-1")]), None);
//! # Ok::<(), tidegate_http::fields::NameError>(())
//! ```

mod structured;

use std::num::NonZeroU64;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use structured::{Bare, Item, parse_list};

/// What is left: `RateLimit`.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// What is allowed at all: `RateLimit-Policy`.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The wait of a rejection in milliseconds, for callers to whom a second is long: `retry-after-ms`.
pub const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// The older form of what is allowed: `X-RateLimit-Limit`.
pub const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// The older form of what is left: `X-RateLimit-Remaining`.
pub const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// The older form of when all of it is there again, here always seconds from now: `X-RateLimit-Reset`.
pub const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// An entry of `RateLimit`: what is left of one limit now.
///
/// Numbers above 999,999,999,999,999 are written as that, the largest of a structured field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateItem {
    /// The name of the limit: printable ASCII.
    pub name: Box<str>,
    /// `r`: how much is left, in the unit of the policy.
    pub remaining: u64,
    /// `t`: whole seconds until there is more.
    pub seconds: Option<u64>,
    /// `pk`: whose limit it is. It is sent to the client, so it must not say who that is.
    pub partition_key: Option<Box<[u8]>>,
}

/// An entry of `RateLimit-Policy`: what one limit allows.
///
/// Numbers above 999,999,999,999,999 are written as that, the largest of a structured field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyItem {
    /// The name of the limit: printable ASCII.
    pub name: Box<str>,
    /// `q`: how much there can be, in `unit`.
    pub quota: u64,
    /// `w`: the whole seconds in which that comes.
    pub window_seconds: Option<NonZeroU64>,
    /// `qu`: what is counted.
    pub unit: Unit,
    /// `pk`: whose limit it is. It is sent to the client, so it must not say who that is.
    pub partition_key: Option<Box<[u8]>>,
}

/// What a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unit {
    /// `requests`; it is not written, as it is what holds when nothing is said.
    #[default]
    Requests,
    /// `content-bytes`.
    ContentBytes,
    /// `concurrent-requests`: requests in flight.
    ConcurrentRequests,
    /// Any other, in printable ASCII.
    Other(Box<str>),
}

/// A name or a unit that is not printable ASCII, which these fields cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` cannot be sent in a response field; write it in printable ASCII")]
pub struct NameError {
    /// The name or unit.
    pub name: Box<str>,
}

impl StateItem {
    /// The entry of a limit of which `remaining` is left.
    #[must_use]
    pub fn new(name: &str, remaining: u64) -> Self {
        Self { name: name.into(), remaining, seconds: None, partition_key: None }
    }
}

impl PolicyItem {
    /// The entry of a limit that allows `quota` requests.
    #[must_use]
    pub fn new(name: &str, quota: u64) -> Self {
        Self { name: name.into(), quota, window_seconds: None, unit: Unit::Requests, partition_key: None }
    }
}

impl Unit {
    /// The name on the wire.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::ContentBytes => "content-bytes",
            Self::ConcurrentRequests => "concurrent-requests",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Unit {
    fn from(name: &str) -> Self {
        match name {
            "requests" | "request" => Self::Requests,
            "content-bytes" => Self::ContentBytes,
            "concurrent-requests" => Self::ConcurrentRequests,
            other => Self::Other(other.into()),
        }
    }
}

/// The field `RateLimit`. Put the limit that binds first.
///
/// # Errors
///
/// A name that is not printable ASCII.
pub fn write_state(items: &[StateItem]) -> Result<HeaderValue, NameError> {
    let mut out = String::new();
    for item in items {
        push_state(&mut out, &quoted(&item.name)?, item.remaining, item.seconds);
        push_partition_key(&mut out, item.partition_key.as_deref());
    }
    Ok(value(&out))
}

/// The field `RateLimit-Policy`.
///
/// # Errors
///
/// A name or a unit that is not printable ASCII.
pub fn write_policy(items: &[PolicyItem]) -> Result<HeaderValue, NameError> {
    let mut out = String::new();
    for item in items {
        separate(&mut out);
        out.push_str(&quoted(&item.name)?);
        structured::write_integer(&mut out, "q", item.quota);
        if let Some(seconds) = item.window_seconds {
            structured::write_integer(&mut out, "w", seconds.get());
        }
        if item.unit != Unit::Requests {
            out.push_str(";qu=");
            out.push_str(&quoted(item.unit.name())?);
        }
        push_partition_key(&mut out, item.partition_key.as_deref());
    }
    Ok(value(&out))
}

/// Reads the lines of the field `RateLimit`, which count as one list; `None` if it has a mistake and is to be ignored.
pub fn parse_state<'a>(lines: impl IntoIterator<Item = &'a HeaderValue>) -> Option<Vec<StateItem>> {
    let read = |item: &Item| -> Result<_, Mistake> {
        let remaining = integer(item, "r")?;
        let (seconds, partition_key) = (integer(item, "t")?, partition_key(item)?);
        let name = name(&item.value)?;
        Ok(remaining.map(|remaining| StateItem { name, remaining, seconds, partition_key }))
    };
    parse_list(&joined(lines))?
        .iter()
        .filter_map(|item| read(item).transpose())
        .collect::<Result<_, _>>()
        .ok()
}

/// Reads the lines of the field `RateLimit-Policy`, which count as one list; `None` if it has a mistake and is to be
/// ignored.
pub fn parse_policy<'a>(lines: impl IntoIterator<Item = &'a HeaderValue>) -> Option<Vec<PolicyItem>> {
    let read = |item: &Item| -> Result<_, Mistake> {
        let quota = integer(item, "q")?;
        let window_seconds = match integer(item, "w")? {
            Some(seconds) => Some(NonZeroU64::new(seconds).ok_or(Mistake)?),
            None => None,
        };
        let unit = match item.parameter("qu") {
            Some(unit) => Unit::from(name(unit)?.as_ref()),
            None => Unit::Requests,
        };
        let (name, partition_key) = (name(&item.value)?, partition_key(item)?);
        Ok(quota.map(|quota| PolicyItem { name, quota, window_seconds, unit, partition_key }))
    };
    parse_list(&joined(lines))?
        .iter()
        .filter_map(|item| read(item).transpose())
        .collect::<Result<_, _>>()
        .ok()
}

/// A wait in whole seconds for `Retry-After` and `t`: rounded up and at least 1, so that it still keeps its promise.
#[must_use]
pub const fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs().saturating_add((wait.subsec_nanos() > 0) as u64);
    if seconds == 0 { 1 } else { seconds }
}

/// A wait in whole milliseconds for `retry-after-ms`: rounded up and at least 1.
#[must_use]
pub fn whole_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// A name as it stands in the fields: in quotes, with what needs it escaped.
pub(crate) fn quoted(name: &str) -> Result<Box<str>, NameError> {
    let mut out = String::with_capacity(name.len() + 2);
    structured::write_string(&mut out, name).ok_or_else(|| NameError { name: name.into() })?;
    Ok(out.into())
}

/// Adds an entry of `RateLimit` for a name that is quoted already.
pub(crate) fn push_state(out: &mut String, quoted: &str, remaining: u64, seconds: Option<u64>) {
    separate(out);
    out.push_str(quoted);
    structured::write_integer(out, "r", remaining);
    if let Some(seconds) = seconds {
        structured::write_integer(out, "t", seconds);
    }
}

/// A field from a text of visible ASCII, which everything in this module writes.
pub(crate) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static(""))
}

fn separate(out: &mut String) {
    if !out.is_empty() {
        out.push_str(", ");
    }
}

fn push_partition_key(out: &mut String, key: Option<&[u8]>) {
    if let Some(key) = key {
        out.push_str(";pk=");
        structured::write_bytes(out, key);
    }
}

/// Several lines of a list field are one list.
fn joined<'a>(lines: impl IntoIterator<Item = &'a HeaderValue>) -> Vec<u8> {
    lines.into_iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..])
}

/// A part of a field has the wrong type.
struct Mistake;

fn name(value: &Bare) -> Result<Box<str>, Mistake> {
    match value {
        Bare::String(name) | Bare::Token(name) => Ok(name.clone()),
        _ => Err(Mistake),
    }
}

/// The parameter as a number that is not negative.
fn integer(item: &Item, key: &str) -> Result<Option<u64>, Mistake> {
    match item.parameter(key) {
        None => Ok(None),
        Some(Bare::Integer(number)) => u64::try_from(*number).map(Some).map_err(|_| Mistake),
        Some(_) => Err(Mistake),
    }
}

fn partition_key(item: &Item) -> Result<Option<Box<[u8]>>, Mistake> {
    match item.parameter("pk") {
        None => Ok(None),
        Some(Bare::Bytes(key)) => Ok(Some(key.clone())),
        Some(_) => Err(Mistake),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::option;
    use proptest::prelude::*;

    fn states(lines: &[&'static str]) -> Option<Vec<StateItem>> {
        let lines: Vec<_> = lines.iter().map(|line| HeaderValue::from_static(line)).collect();
        parse_state(&lines)
    }

    fn policies(line: &'static str) -> Option<Vec<PolicyItem>> {
        parse_policy([&HeaderValue::from_static(line)])
    }

    #[test]
    fn the_examples_of_the_draft_are_read() {
        let two = policies("\"burst\";q=100;w=60, \"daily\";q=1000;w=86400").unwrap();
        assert_eq!(two[0].window_seconds, NonZeroU64::new(60));
        assert_eq!((two[1].name.as_ref(), two[1].quota), ("daily", 1000));
        let one = states(&["\"burst\";r=12;t=1;pk=:dHJpYWwxMjEzMjM=:"]).unwrap();
        assert_eq!((one[0].remaining, one[0].seconds), (12, Some(1)));
        assert_eq!(one[0].partition_key.as_deref(), Some(&b"trial121323"[..]));
        let conc = policies("\"conc\";q=10;qu=\"concurrent-requests\"").unwrap();
        assert_eq!((&conc[0].unit, conc[0].window_seconds), (&Unit::ConcurrentRequests, None));
    }

    #[test]
    fn slips_of_the_draft_are_read_and_mistakes_spoil_the_field() {
        assert_eq!(states(&["quota;r=3;t=1"]).unwrap()[0].name.as_ref(), "quota");
        assert_eq!(states(&["quota;t=1, \"b\";r=1"]).unwrap(), [StateItem::new("b", 1)]);
        assert_eq!(policies("\"a\";q=1;qu=\"request\"").unwrap()[0].unit, Unit::Requests);
        assert_eq!(states(&["\"a\"; r=1"]).unwrap().len(), 1);
        assert_eq!(states(&["\"a\";r=1", "\"b\";r=2;x=(1)"]), None);
        assert_eq!(states(&["\"a\";r=1", "\"b\";r=2;x=?1"]).unwrap().len(), 2);
        assert_eq!(states(&[]), Some(vec![]));
        for bad in [
            "\"a\" ;r=1",
            "\"a\";r=1,",
            "\"a\";R=1",
            "\"a\";r=1.5",
            "\"a\";r=-1",
            "\"a\";r",
            "7;r=1",
            "\"a\";r=1;t=\"1\"",
        ] {
            assert_eq!(states(&[bad]), None, "{bad}");
        }
        for bad in [
            "\"a\";q=1;w=0",
            "\"a\";q=1;w=-1",
            "\"a\";q=1;w=1.5",
            "\"a\";q=?1",
            "\"a\";q=1;pk=\"x\"",
            "\"a\";q=1;qu=1",
        ] {
            assert_eq!(policies(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_a_field_cannot_hold_is_an_error() {
        let error = write_state(&[StateItem::new("grün", 1)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`grün` cannot be sent in a response field; write it in printable ASCII"
        );
        assert!(
            write_policy(&[PolicyItem { unit: Unit::Other("é".into()), ..PolicyItem::new("a", 1) }]).is_err()
        );
        assert_eq!(write_state(&[StateItem::new("a", u64::MAX)]).unwrap(), "\"a\";r=999999999999999");
    }

    #[test]
    fn waits_are_rounded_up_and_never_zero() {
        for (ns, ms, seconds) in [
            (0, 1, 1),
            (1, 1, 1),
            (1_000_001, 2, 1),
            (999_999_999, 1000, 1),
            (1_000_000_000, 1000, 1),
            (1_000_000_001, 1001, 2),
        ] {
            let wait = Duration::from_nanos(ns);
            assert_eq!((whole_ms(wait), whole_seconds(wait)), (ms, seconds), "{ns} ns");
        }
        assert_eq!((whole_ms(Duration::MAX), whole_seconds(Duration::MAX)), (u64::MAX, u64::MAX));
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..50_u64, 0..=structured::INTEGER_MAX]
    }

    prop_compose! {
        fn state()(name in "[ -~]{0,12}", remaining in number(), seconds in option::of(number()),
            key in option::of(prop::collection::vec(any::<u8>(), 0..9))) -> StateItem {
            StateItem { name: name.into(), remaining, seconds, partition_key: key.map(Into::into) }
        }
    }

    prop_compose! {
        fn policy()(name in "[ -~]{0,12}", quota in number(), window in option::of(number()), unit in "[ -~]{0,22}",
            known in 0..4_usize, key in option::of(prop::collection::vec(any::<u8>(), 0..9))) -> PolicyItem {
            let unit = ["requests", "content-bytes", "concurrent-requests", unit.as_str()][known].into();
            let window_seconds = window.and_then(NonZeroU64::new);
            PolicyItem { name: name.into(), quota, window_seconds, unit, partition_key: key.map(Into::into) }
        }
    }

    proptest! {
        #[test]
        fn states_are_read_as_they_were_written(items in prop::collection::vec(state(), 0..5), cut in 0..5_usize) {
            let whole = write_state(&items).unwrap();
            prop_assert_eq!(parse_state([&whole]), Some(items.clone()));
            // In two lines it is the same list. An empty line is none; a joined one would have a comma too many.
            let (first, second) = items.split_at(cut.min(items.len()));
            let lines: Vec<_> = [first, second].iter().filter(|part| !part.is_empty())
                .map(|part| write_state(part).unwrap()).collect();
            prop_assert_eq!(parse_state(&lines), Some(items));
        }

        #[test]
        fn policies_are_read_as_they_were_written(items in prop::collection::vec(policy(), 0..5)) {
            prop_assert_eq!(parse_policy([&write_policy(&items).unwrap()]), Some(items));
        }

        #[test]
        fn any_value_is_read_or_ignored(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let _ = (parse_state([&value]), parse_policy([&value]));
            }
        }
    }
}
