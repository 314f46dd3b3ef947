//! What one answer says of its limits, read from its header fields.

use std::time::UNIX_EPOCH;

use axum::http::header::{AGE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_http::fields::{
    PolicyItem, RATE_LIMIT, RATE_LIMIT_POLICY, RETRY_AFTER_MS, Unit, X_RATE_LIMIT_LIMIT,
    X_RATE_LIMIT_REMAINING, parse_policy, parse_state,
};
use tidegate_http::hint::Response;

/// How many characters of a field are shown. Twice as many would not fit on a line.
const SHOWN: usize = 60;

/// What an answer says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// The limits of `RateLimit`, or the one of the older fields.
    pub(crate) limits: Vec<Limit>,
    /// `Retry-After`, if it is a number of seconds.
    pub(crate) seconds: Option<u64>,
    /// `retry-after-ms`.
    pub(crate) ms: Option<u64>,
    /// Fields that cannot be read.
    pub(crate) malformed: Vec<String>,
}

/// What is left of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) name: Box<str>,
    pub(crate) partition_key: Option<Box<[u8]>>,
    pub(crate) remaining: u64,
    /// `t`.
    pub(crate) seconds: Option<u64>,
    pub(crate) quota: Option<u64>,
    pub(crate) unit: Unit,
}

/// Reads the fields of an answer. What a cache has kept for a while says nothing about now, and is not read.
pub(crate) fn read(headers: &HeaderMap) -> Said {
    let mut said = Said::default();
    if number(headers, &AGE).is_some_and(|age| age > 0) {
        return said;
    }
    said.limits = limits(headers, &mut said.malformed);
    said.seconds = wait(headers, &RETRY_AFTER, &mut said.malformed);
    said.ms = wait(headers, &RETRY_AFTER_MS, &mut said.malformed);
    said
}

fn limits(headers: &HeaderMap, malformed: &mut Vec<String>) -> Vec<Limit> {
    let policies = parse_policy(headers.get_all(RATE_LIMIT_POLICY)).unwrap_or_else(|| {
        // The draft before the lists wrote `100;w=60`.
        if !first(headers, &RATE_LIMIT_POLICY)
            .is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()))
        {
            malformed.push(shown(headers, &RATE_LIMIT_POLICY));
        }
        Vec::new()
    });
    let Some(text) = first(headers, &RATE_LIMIT) else { return older(headers, malformed) };
    let states = parse_state(headers.get_all(RATE_LIMIT)).unwrap_or_default();
    if states.is_empty() {
        if let Some(limit) = dictionary(text) {
            return vec![limit];
        }
        malformed.push(shown(headers, &RATE_LIMIT));
    }
    let limits = states.into_iter().map(|state| {
        let is_same = |policy: &&PolicyItem| {
            policy.name == state.name
                && (policy.partition_key.is_none() || policy.partition_key == state.partition_key)
        };
        let policy = policies.iter().find(is_same);
        Limit {
            quota: policy.map(|policy| policy.quota),
            unit: policy.map_or(Unit::Requests, |policy| policy.unit.clone()),
            name: state.name,
            partition_key: state.partition_key,
            remaining: state.remaining,
            seconds: state.seconds,
        }
    });
    limits.collect()
}

/// The form before the lists: `limit=100, remaining=50, reset=30`. Its reset is not when there is more, but when all is.
fn dictionary(text: &str) -> Option<Limit> {
    let member = |name: &str| {
        let mut members = text.split(',').filter_map(|member| member.trim().split_once('='));
        members.find(|(key, _)| *key == name)?.1.parse().ok()
    };
    Some(unnamed(member("remaining")?, member("limit")))
}

/// The fields with `X-`, of which the reset has too many meanings to judge it.
fn older(headers: &HeaderMap, malformed: &mut Vec<String>) -> Vec<Limit> {
    if !headers.contains_key(X_RATE_LIMIT_REMAINING) {
        return Vec::new();
    }
    let Some(remaining) = number(headers, &X_RATE_LIMIT_REMAINING) else {
        malformed.push(shown(headers, &X_RATE_LIMIT_REMAINING));
        return Vec::new();
    };
    vec![unnamed(remaining, number(headers, &X_RATE_LIMIT_LIMIT))]
}

fn unnamed(remaining: u64, quota: Option<u64>) -> Limit {
    Limit { name: "".into(), partition_key: None, remaining, seconds: None, quota, unit: Unit::Requests }
}

/// A wait as a whole number. A date is well formed, but no wait that can be judged, since clocks differ.
fn wait(headers: &HeaderMap, name: &HeaderName, malformed: &mut Vec<String>) -> Option<u64> {
    let value = headers.get(name)?;
    let number = number(headers, name);
    if number.is_none() && Response::new(429, UNIX_EPOCH).headers([(name, value)]).hint().wait.is_none() {
        malformed.push(shown(headers, name));
    }
    number
}

fn first<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim).or(Some(""))
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    first(headers, name)?.parse().ok()
}

fn shown(headers: &HeaderMap, name: &HeaderName) -> String {
    let lines: Vec<_> =
        headers.get_all(name).iter().map(HeaderValue::as_bytes).map(String::from_utf8_lossy).collect();
    let text: String = lines.join(", ").chars().take(SHOWN).collect();
    format!("{name}: {}", text.escape_debug())
}
