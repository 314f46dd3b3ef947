//! The limits file: several limits at once, in TOML.

pub(crate) mod tools;

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Unexpected;
use tidegate_core::algorithm::LeakyBucket;
use tidegate_core::{Algorithm, Kind, Limit, Mode, Quota};
use tidegate_server::rls;

use crate::fault::Hint;
use crate::quota_args::time;
use tools::{Pattern, ToolCost};

/// What a limits file says, checked.
#[derive(Debug)]
pub(crate) struct LimitsFile {
    pub(crate) limits: Vec<FileLimit>,
    /// The costs of tools; the first that fits counts.
    pub(crate) costs: Vec<ToolCost>,
}

/// A limit as the file says it, checked.
#[derive(Debug, Clone)]
pub(crate) struct FileLimit {
    /// The limit itself.
    pub(crate) limit: Limit,
    /// Its quota.
    pub(crate) quota: Quota,
    /// What a key is made of; empty when all calls share one state.
    pub(crate) key: Vec<String>,
    /// How many calls may run at once.
    pub(crate) max_in_flight: Option<NonZeroU64>,
    /// The quotas of single keys.
    pub(crate) overrides: Vec<Override>,
    /// The tools that it is for, together; empty when it is for all.
    pub(crate) tools: Vec<Pattern>,
    /// The descriptors of Envoy that it is for, together; empty when it is for none. Its key is made of their stars then.
    pub(crate) descriptors: Vec<rls::Pattern>,
}

impl FileLimit {
    /// Whether it is for the descriptors of Envoy, and not for requests.
    pub(crate) fn is_on_descriptors(&self) -> bool {
        !self.descriptors.is_empty()
    }

    /// Whether something can be above it.
    pub(crate) fn limits_something(&self) -> bool {
        self.limit.algorithm.kind() != Kind::Unlimited
    }
}

/// A key that has a quota of its own.
#[derive(Debug, Clone)]
pub(crate) struct Override {
    /// A value for each part of the limit's key.
    pub(crate) key: Vec<String>,
    pub(crate) quota: Quota,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    limit: Vec<Entry>,
    #[serde(default)]
    tool: Vec<ToolCost>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    key: Key,
    #[serde(deserialize_with = "quota")]
    quota: Quota,
    #[serde(default, deserialize_with = "kind")]
    algorithm: Option<Kind>,
    #[serde(default, deserialize_with = "above_zero")]
    max_in_flight: Option<NonZeroU64>,
    #[serde(default)]
    queue: Option<Queue>,
    #[serde(default)]
    mode: EntryMode,
    #[serde(default, rename = "override")]
    overrides: Vec<OverrideEntry>,
    #[serde(default)]
    tools: Option<Vec<Pattern>>,
    #[serde(default, deserialize_with = "descriptors")]
    descriptors: Option<Vec<rls::Pattern>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a quota of a key such as { key = \"ann\", quota = \"100/s\" }")]
struct OverrideEntry {
    key: Key,
    #[serde(deserialize_with = "quota")]
    quota: Quota,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged, expecting = "expected a key such as \"client-ip\", \"none\", or a list of them")]
enum Key {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EntryMode {
    #[default]
    Enforce,
    Shadow,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a queue such as { max = 100, max_wait = \"20s\" }")]
struct Queue {
    #[serde(deserialize_with = "whole")]
    max: u64,
    #[serde(default, deserialize_with = "duration")]
    max_wait: Option<Duration>,
}

fn quota<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Quota, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

fn kind<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Kind>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(|error| serde::de::Error::custom(format!("`{text}`: {error}")))
}

fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    time(&text).map(Some).map_err(serde::de::Error::custom)
}

fn descriptors<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<rls::Pattern>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let patterns: Result<_, _> = texts.iter().map(|text| text.parse()).collect();
    patterns.map(Some).map_err(serde::de::Error::custom)
}

fn whole<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_u64(Whole { least: 0 })
}

fn above_zero<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU64>, D::Error> {
    deserializer.deserialize_u64(Whole { least: 1 }).map(NonZeroU64::new)
}

/// Reads a whole number, and says so of anything else.
struct Whole {
    least: u64,
}

impl serde::de::Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number of at least {}", self.least)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        if number < self.least {
            return Err(E::invalid_value(Unexpected::Unsigned(number), &self));
        }
        Ok(number)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}

/// The longest file, in bytes: 100,000 keys with quotas of their own fit. Twice as much would be read slowly, and a device
/// without an end would fill the memory.
const MAX_BYTES: u64 = 8 << 20;

/// Reads the limits of a file that are on requests.
///
/// # Errors
///
/// As of [`read_all`], and what is about tools or descriptors.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<FileLimit>> {
    let limits = read_with_descriptors(path)?;
    without_descriptors(path, &limits)?;
    Ok(limits)
}

/// Whether no limit is on descriptors.
///
/// # Errors
///
/// One that is.
pub(crate) fn without_descriptors(path: &Path, limits: &[FileLimit]) -> anyhow::Result<()> {
    let Some(limit) = limits.iter().find(|limit| limit.is_on_descriptors()) else { return Ok(()) };
    let (file, name) = (path.display(), &limit.limit.name);
    Err(Hint::error(
        format!("{file}: limit `{name}` has `descriptors`, which are for Envoy alone"),
        "use the file with `tidegate serve --grpc ADDRESS`, or take that out",
    ))
}

/// Reads the limits of a file that are on requests, or on the descriptors that Envoy makes of requests.
///
/// # Errors
///
/// As of [`read_all`], and what is about tools.
pub(crate) fn read_with_descriptors(path: &Path) -> anyhow::Result<Vec<FileLimit>> {
    let file = read_all(path)?;
    let limit = file.limits.iter().find(|limit| !limit.tools.is_empty());
    if limit.is_some() || !file.costs.is_empty() {
        let what = limit.map_or("`[[tool]]` is".to_owned(), |limit| {
            format!("limit `{}` has `tools`, which are", limit.limit.name)
        });
        return Err(Hint::error(
            format!("{}: {what} for tool calls alone", path.display()),
            "use the file with `tidegate mcp`, or take that out",
        ));
    }
    Ok(file.limits)
}

/// Reads the limits of a file.
///
/// # Errors
///
/// A file that cannot be read, or a text in it that is no limit: the error names file, line and key.
pub(crate) fn read_all(path: &Path) -> anyhow::Result<LimitsFile> {
    let name = path.display().to_string();
    let text = fs::File::open(path).and_then(text).map_err(|error| {
        Hint::error(
            format!("cannot read the limits file `{name}`: {error}"),
            "name a TOML file that can be read, with one `[[limit]]` or more",
        )
    })?;
    parse(&name, &text)
}

/// Reads the limits of a file again. What is no file, such as a pipe, has nothing to say a second time, or never ends.
///
/// # Errors
///
/// As of the function that reads it.
pub(crate) fn again<T>(path: &Path, read: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let is_other = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    if is_other {
        return Err(Hint::error(
            format!("cannot read the limits file `{}` again: it is a pipe or a device", path.display()),
            "put a file in its place",
        ));
    }
    read(path)
}

fn text(file: fs::File) -> io::Result<String> {
    let mut text = String::new();
    // One byte more tells a file that is too long from one that just fits.
    let length = file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if length as u64 > MAX_BYTES {
        let why = format!("it is longer than {} MiB", MAX_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<LimitsFile> {
    const ADVICE: &str =
        "a limit is written as `[[limit]]`, `name = \"per-client\"`, `quota = \"10/s burst 20\"`";
    const OF_TOOLS: &str = "what a tool costs is written as `[[tool]]`, `name = \"search\"`, `cost = 5`";
    let deserializer = toml::Deserializer::parse(text).map_err(|error| {
        Hint::error(format!("{}{}", place(name, text, error.span()), error.message()), ADVICE)
    })?;
    let document: Document = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        let at = place(name, text, error.inner().span());
        let message = error.inner().message().to_owned();
        let advice = if path.starts_with("tool") { OF_TOOLS } else { ADVICE };
        Hint::error(
            if path == "." { format!("{at}{message}") } else { format!("{at}`{path}`: {message}") },
            advice,
        )
    })?;
    if document.limit.is_empty() {
        return Err(Hint::error(format!("{name}: there is no limit in it"), ADVICE));
    }
    let mut names: Vec<&str> = document.limit.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Hint::error(
            format!("{name}: two limits are named `{}`", pair[0]),
            "give each limit a name of its own",
        ));
    }
    let limits = document.limit.into_iter().map(|entry| entry.check(name)).collect::<Result<_, _>>()?;
    Ok(LimitsFile { limits, costs: document.tool })
}

/// `FILE:LINE: `, the line that a span begins in.
fn place(name: &str, text: &str, span: Option<std::ops::Range<usize>>) -> String {
    match span {
        Some(span) => {
            let line = text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1;
            format!("{name}:{line}: ")
        }
        None => format!("{name}: "),
    }
}

impl Entry {
    fn check(self, file: &str) -> anyhow::Result<FileLimit> {
        if self.name.is_empty() {
            return Err(Hint::error(
                format!("{file}: a limit has an empty name"),
                "give it a name that reports can show, such as `name = \"per-client\"`",
            ));
        }
        let kind = match (self.algorithm, self.queue) {
            (None | Some(Kind::TokenBucket | Kind::LeakyBucket), Some(_)) => Kind::LeakyBucket,
            (Some(kind), Some(_)) => {
                return Err(Hint::error(
                    format!("{file}: limit `{}`: the algorithm {kind} has no queue", self.name),
                    "take out `queue`, or use the algorithm `token-bucket` or `leaky-bucket`",
                ));
            }
            (kind, None) => kind.unwrap_or(Kind::TokenBucket),
        };
        let algorithm = match self.queue {
            Some(queue) => leaky_bucket(self.quota, queue.max, queue.max_wait),
            None => Algorithm::new(kind, self.quota),
        };
        let mode = match self.mode {
            EntryMode::Enforce => Mode::Enforce,
            EntryMode::Shadow => Mode::Shadow,
        };
        let listed = matches!(self.key, Key::Several(_));
        let key = match self.key {
            Key::None => Vec::new(),
            Key::One(key) if key == "none" => Vec::new(),
            Key::One(key) => vec![key],
            Key::Several(keys) => keys,
        };
        if listed && key.is_empty() || key.iter().any(String::is_empty) {
            return Err(Hint::error(
                format!("{file}: limit `{}` has an empty key", self.name),
                "write what the key is made of, such as `key = \"client-ip\"`, or leave `key` out",
            ));
        }
        if self.tools.as_ref().is_some_and(Vec::is_empty) {
            return Err(Hint::error(
                format!("{file}: limit `{}` is for no tool", self.name),
                "name tools, such as `tools = [\"search\", \"web_*\"]`, or leave `tools` out for all",
            ));
        }
        let key = match &self.descriptors {
            Some(patterns) => {
                let may_wait = kind == Kind::LeakyBucket || self.max_in_flight.is_some();
                let has = Besides { key: !key.is_empty(), tools: self.tools.is_some(), may_wait };
                stars(&self.name, self.quota, patterns, &has).map_err(|(why, advice)| {
                    Hint::error(format!("{file}: limit `{}` {why}", self.name), advice)
                })?
            }
            None => key,
        };
        let overrides = overrides(self.overrides, &key)
            .map_err(|(why, advice)| Hint::error(format!("{file}: limit `{}` {why}", self.name), advice))?;
        Ok(FileLimit {
            limit: Limit { name: self.name.into(), algorithm, mode },
            quota: self.quota,
            key,
            max_in_flight: self.max_in_flight,
            overrides,
            tools: self.tools.unwrap_or_default(),
            descriptors: self.descriptors.unwrap_or_default(),
        })
    }
}

/// What else a limit on descriptors says, and cannot have.
struct Besides {
    key: bool,
    tools: bool,
    may_wait: bool,
}

/// What the key of a limit on descriptors is made of, or what is wrong with it and what to do.
fn stars(
    name: &str,
    quota: Quota,
    patterns: &[rls::Pattern],
    has: &Besides,
) -> Result<Vec<String>, (String, &'static str)> {
    let wrong = |why: &str, advice| Err((why.to_owned(), advice));
    if let Err(error) = rls::Rule::new(name, quota, patterns.to_vec()) {
        return Err((
            format!("has wrong `descriptors`: {error}"),
            "name descriptors, such as `descriptors = [\"shop: path=/login, user=*\"]`",
        ));
    }
    if has.key {
        return wrong(
            "has `descriptors` and a `key`",
            "take out `key`: the stars of the descriptors say whose limit it is",
        );
    }
    if has.tools {
        return wrong("has `descriptors` and `tools`", "take one of them out, or make two limits");
    }
    if has.may_wait {
        return wrong(
            "is on descriptors, and Envoy neither waits nor says when a request ends",
            "take out `queue` and `max_in_flight`, and use an algorithm such as token-bucket",
        );
    }
    Ok(patterns.iter().take(1).flat_map(rls::Pattern::keys).map(str::to_owned).collect())
}

/// The quotas of single keys, or what is wrong with them and what to do.
fn overrides(entries: Vec<OverrideEntry>, key: &[String]) -> Result<Vec<Override>, (String, String)> {
    let mut overrides: Vec<Override> = Vec::new();
    let mut known = HashSet::new();
    for entry in entries {
        let values = match entry.key {
            Key::None => Vec::new(),
            Key::One(value) => vec![value],
            Key::Several(values) => values,
        };
        if key.is_empty() {
            let advice = "say with `key` whose limit it is, or take the override out";
            return Err(("has an override and no key".to_owned(), advice.to_owned()));
        }
        if values.len() != key.len() {
            return Err((
                format!("has an override for {values:?}, and its key has {} parts", key.len()),
                format!("write a value for each of {}", key.join(", ")),
            ));
        }
        if !known.insert(values.clone()) {
            return Err((format!("has two overrides for {}", values.join(" + ")), "take one out".to_owned()));
        }
        overrides.push(Override { key: values, quota: entry.quota });
    }
    Ok(overrides)
}

/// A token bucket whose callers may wait in line is a leaky bucket: the same arithmetic, with a start time in place of
/// a refusal.
pub(crate) fn leaky_bucket(quota: Quota, queue: u64, max_wait: Option<Duration>) -> Algorithm {
    let bucket = LeakyBucket::new(quota, queue);
    Algorithm::LeakyBucket(match max_wait {
        Some(max_wait) => bucket.with_max_wait(max_wait),
        None => bucket,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_design_writes_them() {
        let text = r#"
            [[limit]]
            name  = "per-client"
            key   = "client-ip"
            quota = "10/s burst 20"
            algorithm = "token-bucket"
            max_in_flight = 8
            queue = { max = 100, max_wait = "20s" }
            mode  = "enforce"

            [[limit]]
            name = "all"
            quota = "100/min"
            mode = "shadow"
        "#;
        let limits = parse("limits.toml", text).unwrap().limits;
        assert_eq!(limits[0].limit.algorithm.kind(), Kind::LeakyBucket);
        assert_eq!(limits[0].key, ["client-ip"]);
        assert_eq!(limits[0].max_in_flight, NonZeroU64::new(8));
        assert_eq!(limits[1].limit.mode, Mode::Shadow);
        assert!(limits[1].key.is_empty());
    }

    #[test]
    fn a_bad_file_is_refused_with_file_line_key_and_reason() {
        for (text, expected) in [
            ("", "f: there is no limit in it"),
            (
                "[[limit]]\nname = \"a\"\nquota = \"10\"",
                "f:3: `limit[0].quota`: the quota `10` does not say per what time; write for example `10/s` or `1 per 10s`",
            ),
            ("[[limit]]\nname = \"a\"", "f:1: `limit[0]`: missing field `quota`"),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\nbusrt = 3",
                "f:4: `limit[0].busrt`: unknown field `busrt`, expected one of `name`, `key`, `quota`, `algorithm`, `max_in_flight`, `queue`, `mode`, `override`, `tools`, `descriptors`",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\nmode = \"on\"",
                "f:4: `limit[0].mode`: unknown variant `on`, expected `enforce` or `shadow`",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\nalgorithm = \"bucket\"",
                "f:4: `limit[0].algorithm`: `bucket`: unknown limiter; write one of none, fixed-window, sliding-window, sliding-log, token-bucket, leaky-bucket",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\n[[limit]]\nname = \"a\"\nquota = \"2/s\"",
                "f: two limits are named `a`",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\nalgorithm = \"fixed-window\"\nqueue = { max = 3 }",
                "f: limit `a`: the algorithm fixed-window has no queue",
            ),
            ("[[limit]]\nname = \"a\"\nquota = \"1/s\"\ntools = []", "f: limit `a` is for no tool"),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\n[[tool]]\nname = \"x\"\ncost = \"count\"",
                "f:6: `tool[0].cost`: `count` is no cost; write a cost such as 5, or \"args.count\" for what the argument `count` says",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\n[[tool]]\nname = \"x\"\ncost = -1",
                "f:6: `tool[0].cost`: invalid value: integer `-1`, expected a cost of at least 0",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\ndescriptors = [\"path=/login\"]",
                "f:4: `limit[0].descriptors`: `path=/login` has no domain; write it in front, as in `shop: path=/login, user=*`",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\ndescriptors = []",
                "f: limit `a` has wrong `descriptors`: no descriptor is named",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\ndescriptors = [\"shop: a=*\"]\nkey = \"path\"",
                "f: limit `a` has `descriptors` and a `key`",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\ndescriptors = [\"shop: a=*\"]\ntools = [\"x\"]",
                "f: limit `a` has `descriptors` and `tools`",
            ),
            (
                "[[limit]]\nname = \"a\"\nquota = \"1/s\"\ndescriptors = [\"shop: a=*\"]\nqueue = { max = 3 }",
                "f: limit `a` is on descriptors, and Envoy neither waits nor says when a request ends",
            ),
            ("[[limit]\n", "f:1: unclosed array table, expected `]`"),
        ] {
            let error = parse("f", text).map(|_| ()).unwrap_err().to_string();
            assert_eq!(error, expected, "{text}");
        }
    }
}
