//! From limits in words to the layer that keeps them.

use tidegate::algorithm::Unlimited;
use tidegate::{Algorithm, Kind, Mode, Quota};
use tidegate_http::layer::{Key, RateLimitBuilder};
use tidegate_http::{RateLimit, RequestLimit};

use super::key::{Word, key, key_by};
use crate::fault::Hint;
use crate::limits::FileLimit;

/// A layer of these limits, each with room for `keys` keys. What is wrong with them is an error that names the limit.
pub(super) fn builder(limits: &[FileLimit], keys: usize) -> anyhow::Result<RateLimitBuilder> {
    let mut builder = RateLimit::builder();
    // Whose calls in flight are bounded already, and by which limit.
    let mut bounded: Vec<(&[String], &str)> = Vec::new();
    for limit in limits {
        let name = &*limit.limit.name;
        let words = words(limit)?;
        let mut request = request_limit(limit).key(key_by(&words)).capacity(keys);
        for other in &limit.overrides {
            let key = key(&words, &other.key).map_err(|why| {
                Hint::error(format!("limit `{name}`: an override has a wrong key: {why}"), "correct that key")
            })?;
            request = request.quota_for(key, other.quota);
        }
        builder = builder.limit(request);
        let Some(max) = limit.max_in_flight else { continue };
        if limit.limit.mode == Mode::Shadow {
            return Err(Hint::error(
                format!("limit `{name}` is a shadow, and calls in flight are not"),
                "take out `max_in_flight`, or `mode = \"shadow\"`",
            ));
        }
        let same = bounded.iter().find(|(words, _)| words.is_empty() == limit.key.is_empty());
        if let Some((_, other)) = same {
            return Err(Hint::error(
                format!("limits `{other}` and `{name}` both bound calls in flight{}", per_key(limit)),
                "take `max_in_flight` out of one; there can be one for all together, and one for each key",
            ));
        }
        bounded.push((&limit.key, name));
        builder = if words.is_empty() {
            builder.max_in_flight(max.get())
        } else {
            builder.max_in_flight_per_key(key_by(&words), max.get())
        };
    }
    Ok(builder)
}

/// The limit itself.
pub(super) fn request_limit(limit: &FileLimit) -> RequestLimit {
    let name = &*limit.limit.name;
    let request = match limit.limit.algorithm.kind() {
        // Rejections name the quota then.
        Kind::TokenBucket => RequestLimit::new(name, limit.quota),
        _ => RequestLimit::new(name, limit.limit.algorithm),
    };
    if limit.limit.mode == Mode::Shadow { request.shadow() } else { request }
}

/// What is in force where no limit is.
pub(super) fn nothing() -> RequestLimit {
    RequestLimit::new("none", Algorithm::Unlimited(Unlimited)).capacity(1)
}

/// The keys of a limit that have a quota of their own. Those that are wrong are left out, as [`builder`] says so of them.
pub(super) fn overrides(limit: &FileLimit) -> Vec<(Key<'static>, Quota)> {
    let Ok(words) = words(limit) else { return Vec::new() };
    let others = limit.overrides.iter();
    others.filter_map(|other| Some((key(&words, &other.key).ok()?, other.quota))).collect()
}

const fn per_key(limit: &FileLimit) -> &'static str {
    if limit.key.is_empty() { "" } else { " of a key" }
}

/// What keeps the limits, from their builder.
pub(super) fn cannot_build(error: &tidegate_http::RateLimitError) -> anyhow::Error {
    Hint::error(error.to_string(), "see what the limits mean with `tidegate check`, and change that one")
}

/// What the key of a limit is made of.
pub(super) fn words(limit: &FileLimit) -> anyhow::Result<Vec<Word>> {
    let word = |word: &String| {
        word.parse().map_err(|_| {
            Hint::error(
                format!("limit `{}` has the key `{word}`, which no request has", limit.limit.name),
                "write client-ip, header:NAME, path, method or none",
            )
        })
    };
    limit.key.iter().map(word).collect()
}
