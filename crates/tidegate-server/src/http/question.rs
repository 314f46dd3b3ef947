//! What is asked, in JSON.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::StatusCode;
use axum::response::Response;
use http_body_util::BodyExt as _;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeOwned, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::answer::problem;
use super::{EXPIRES_MAX, KEY_MAX, LIMITS_MAX, QUESTION_MAX, QUESTION_TIME_MAX};

/// The bytes of a question of which there can be one on each connection. Larger ones, those of many limits, have to have one of
/// [`LARGE_MAX`](super::LARGE_MAX) places.
const SMALL: usize = 4096;

/// How long a call stays reserved when it is not said.
const EXPIRES: u64 = 60_000;

/// A call, and the limits that it is decided in.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) named: Vec<Named>,
    pub(super) peek: bool,
    pub(super) expires: Duration,
}

/// One limit that a question names.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) limit: String,
    pub(super) key: Vec<String>,
    pub(super) cost: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object, {\"limit\": …}")]
struct Question {
    #[serde(default, deserialize_with = "said")]
    limit: Option<String>,
    #[serde(default, deserialize_with = "said")]
    key: Option<KeyText>,
    #[serde(default, deserialize_with = "said")]
    cost: Option<Whole>,
    #[serde(default, deserialize_with = "said")]
    checks: Option<Vec<Check>>,
    #[serde(default)]
    peek: bool,
    #[serde(default, deserialize_with = "said")]
    expires_ms: Option<Whole>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    limit: String,
    #[serde(default, deserialize_with = "said")]
    key: Option<KeyText>,
    #[serde(default, deserialize_with = "said")]
    cost: Option<Whole>,
}

/// What is there, which cannot be `null`: a cost that the caller does not know is not 1.
fn said<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A whole number. Some languages write it as `3.0`, which is an integer of JSON too.
#[derive(Debug, Clone, Copy)]
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(AnyWhole)
    }
}

struct AnyWhole;

impl Visitor<'_> for AnyWhole {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Whole, E> {
        Ok(Whole(number))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Whole, E> {
        // Above 2^53 it is not known which one was meant.
        let is_exact = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is whole and in range"
        )]
        let whole = number as u64;
        is_exact.then_some(Whole(whole)).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
}

/// The parts of a key; a text is one.
#[derive(Debug)]
struct KeyText(Vec<String>);

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyKey)
    }
}

struct AnyKey;

impl<'de> Visitor<'de> for AnyKey {
    type Value = KeyText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text for `key`, or a list of texts where a limit has several parts")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<KeyText, E> {
        Ok(KeyText(vec![key.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<KeyText, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(parts)).map(KeyText)
    }
}

/// What a reserved call has cost.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settled {
    pub(super) id: String,
    #[serde(default, deserialize_with = "said")]
    cost: Option<Whole>,
    #[serde(default, deserialize_with = "said")]
    costs: Option<HashMap<String, Whole>>,
}

impl Asked {
    pub(super) async fn read(body: Body, large: &Semaphore) -> Result<Self, Box<Response>> {
        let question: Question = read(body, large).await?;
        let checks = match (question.limit, question.checks) {
            (Some(limit), None) => vec![Check { limit, key: question.key, cost: question.cost }],
            (None, Some(checks)) if question.key.is_none() && question.cost.is_none() => checks,
            _ => {
                return Err(wrong("name one limit as `limit`, or several as `checks`: [{\"limit\": …}, …]"));
            }
        };
        if checks.len() > LIMITS_MAX {
            return Err(wrong(&format!("{} limits are named, and {LIMITS_MAX} are the most", checks.len())));
        }
        let expires = Duration::from_millis(question.expires_ms.map_or(EXPIRES, |Whole(ms)| ms));
        if expires.is_zero() || expires > EXPIRES_MAX {
            return Err(wrong(&format!("`expires_ms` is from 1 to {}", EXPIRES_MAX.as_millis())));
        }
        let named = checks.into_iter().map(Named::new).collect::<Result<_, _>>()?;
        Ok(Self { named, peek: question.peek, expires })
    }
}

impl Named {
    fn new(check: Check) -> Result<Self, Box<Response>> {
        let key = check.key.map_or(Vec::new(), |KeyText(parts)| parts);
        if key.iter().map(String::len).sum::<usize>() > KEY_MAX {
            return Err(wrong(&format!("a key of `{}` is longer than {KEY_MAX} bytes", check.limit)));
        }
        Ok(Self { limit: check.limit, key, cost: check.cost.map_or(1, |Whole(cost)| cost) })
    }
}

impl Settled {
    /// Reads it, with costs or without.
    pub(super) async fn read(body: Body, large: &Semaphore, has_costs: bool) -> Result<Self, Box<Response>> {
        let settled: Self = read(body, large).await?;
        match (has_costs, settled.cost.is_some(), settled.costs.is_some()) {
            (true, true, false) | (true, false, true) | (false, false, false) => Ok(settled),
            (true, ..) => Err(wrong("say the `cost` of the call, or its `costs`: {\"LIMIT\": N, …}")),
            (false, ..) => Err(wrong("what is cancelled costs nothing; send the `id` alone")),
        }
    }

    /// A name for which it says a cost, and which is not one of these.
    pub(super) fn unknown<'a>(&self, limits: impl Iterator<Item = &'a str>) -> Option<&str> {
        let known: Vec<&str> = limits.collect();
        let mut names = self.costs.iter().flat_map(HashMap::keys).map(String::as_str);
        names.find(|name| !known.contains(name))
    }

    /// The cost in a limit; 0 in one that is not said.
    pub(super) fn cost(&self, limit: &str) -> u64 {
        let of_limit = |costs: &HashMap<String, Whole>| costs.get(limit).copied();
        self.costs.as_ref().map_or(self.cost, of_limit).map_or(0, |Whole(cost)| cost)
    }
}

async fn read<T: DeserializeOwned>(body: Body, large: &Semaphore) -> Result<T, Box<Response>> {
    // The place of a large one is held until it is read.
    let (bytes, _place) = match timeout(QUESTION_TIME_MAX, collect(body, large)).await {
        Ok(Ok(collected)) => collected,
        Ok(Err(Broken::TooLong)) => {
            let text = format!("a question has at most {QUESTION_MAX} bytes");
            return Err(Box::new(problem(StatusCode::PAYLOAD_TOO_LARGE, &text)));
        }
        Ok(Err(Broken::Off)) | Err(_) => {
            let text = format!("a question has to come within {} s", QUESTION_TIME_MAX.as_secs());
            return Err(Box::new(problem(StatusCode::REQUEST_TIMEOUT, &text)));
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| wrong(&format!("the JSON is not understood: {error}")))
}

/// Why a question is not whole.
enum Broken {
    TooLong,
    /// Its rest does not come.
    Off,
}

/// The bytes of a question. Each part is copied, as it would keep the buffer that it was read into: a question that comes byte by
/// byte would take many times its size.
async fn collect(
    mut body: Body,
    large: &Semaphore,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Broken> {
    let size = body.size_hint();
    if size.lower() > QUESTION_MAX as u64 {
        return Err(Broken::TooLong);
    }
    let size = size.exact().and_then(|size| usize::try_from(size).ok()).unwrap_or(QUESTION_MAX);
    let (mut bytes, mut place) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        let Ok(part) = frame.map_err(|_| Broken::Off)?.into_data() else { continue };
        let len = bytes.len() + part.len();
        if len > QUESTION_MAX {
            return Err(Broken::TooLong);
        }
        if len > SMALL && place.is_none() {
            place = Some(large.acquire().await.map_err(|_| Broken::Off)?);
            // Once: one that grows takes twice as much.
            bytes.reserve_exact(size.saturating_sub(bytes.len()));
        }
        bytes.extend_from_slice(&part);
    }
    Ok((bytes, place))
}

fn wrong(text: &str) -> Box<Response> {
    Box::new(problem(StatusCode::BAD_REQUEST, text))
}
