//! The limits on tool calls: from the flags or the limits file to rules that the line decides by.

use std::collections::HashMap;
use std::num::NonZeroU64;

use tidegate_core::algorithm::Unlimited;
use tidegate_core::{Algorithm, Decision, Kind, Mode, Quota, State, Step as _};

use super::line::nanoseconds;
use crate::fault::Hint;
use crate::limits::FileLimit;
use crate::quota_args::in_words;

/// The name of the limit that the flags describe.
const OF_FLAGS: &str = "all-tools";

/// One limit on tool calls.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) name: Box<str>,
    pub(crate) mode: Mode,
    /// Whether each tool has a state of its own.
    pub(crate) per_tool: bool,
    pub(crate) algorithm: Algorithm,
    pub(crate) max_in_flight: Option<NonZeroU64>,
    /// `None` when there are only places in flight.
    quota: Option<Quota>,
    /// Tools with a quota of their own.
    overrides: HashMap<Box<str>, (Algorithm, Quota)>,
    /// The same by the numbers that the line gives to tools.
    numbers: HashMap<usize, (Algorithm, Quota)>,
}

impl Rule {
    /// The limit of `--limit`, `--burst` and `--max-in-flight`; `None` if there is none.
    pub(crate) fn of_flags(quota: Option<Quota>, max_in_flight: Option<NonZeroU64>) -> Option<Self> {
        if quota.is_none() && max_in_flight.is_none() {
            return None;
        }
        Some(Self {
            name: OF_FLAGS.into(),
            mode: Mode::Enforce,
            per_tool: false,
            algorithm: quota
                .map_or(Algorithm::Unlimited(Unlimited), |quota| waitable(Kind::TokenBucket, quota)),
            max_in_flight,
            quota,
            overrides: HashMap::new(),
            numbers: HashMap::new(),
        })
    }

    /// A limit of a file.
    ///
    /// # Errors
    ///
    /// A key that a tool call does not have.
    pub(crate) fn of_file(file: &str, limit: &FileLimit) -> anyhow::Result<Self> {
        let name = &limit.limit.name;
        let per_tool = match &limit.key[..] {
            [] => false,
            [key] if key == "tool" => true,
            key => {
                return Err(Hint::error(
                    format!(
                        "{file}: limit `{name}` has the key `{}`, which a tool call does not have",
                        key.join(" + ")
                    ),
                    "write `key = \"tool\"` for a limit of each tool, or leave `key` out for one of all tools",
                ));
            }
        };
        let kind = limit.limit.algorithm.kind();
        let overrides = limit
            .overrides
            .iter()
            .map(|tool| (tool.key.concat().into_boxed_str(), (waitable(kind, tool.quota), tool.quota)));
        Ok(Self {
            name: name.to_string().into(),
            mode: limit.limit.mode,
            per_tool,
            algorithm: waitable(kind, limit.quota),
            max_in_flight: limit.max_in_flight,
            quota: (kind != Kind::Unlimited).then_some(limit.quota),
            overrides: overrides.collect(),
            numbers: HashMap::new(),
        })
    }

    /// The algorithm for a tool.
    pub(crate) fn of(&self, tool: &str) -> &Algorithm {
        self.overrides.get(tool).map_or(&self.algorithm, |(algorithm, _)| algorithm)
    }

    /// From now on the tool has this number.
    pub(crate) fn note(&mut self, tool: &str, number: usize) {
        if let Some(own) = self.overrides.get(tool) {
            self.numbers.insert(number, *own);
        }
    }

    /// The algorithm for the tool of this number.
    pub(crate) fn numbered(&self, tool: usize) -> &Algorithm {
        self.numbers.get(&tool).map_or(&self.algorithm, |(algorithm, _)| algorithm)
    }

    /// How long `needs` tokens take in nanoseconds, more than the capacity too: exact for a token bucket, for windows
    /// at least that.
    pub(crate) fn wait(&self, tool: usize, state: &State, now: u64, needs: u64) -> u64 {
        let own = self.numbers.get(&tool);
        let quota = own.map(|(_, quota)| *quota).or(self.quota);
        let algorithm = self.numbered(tool);
        let wait = |cost| algorithm.look(state, now, cost).retry_after().map_or(0, nanoseconds);
        match (algorithm.look(state, now, needs), quota) {
            (Decision::Never { capacity }, Some(quota)) => {
                let beyond = u128::from(needs.saturating_sub(capacity)) * u128::from(quota.per_ns().get());
                let beyond = beyond.div_ceil(u128::from(quota.count()));
                wait(capacity).saturating_add(u64::try_from(beyond).unwrap_or(u64::MAX))
            }
            _ => wait(needs),
        }
    }

    /// The quota of a tool in words, or the places.
    pub(crate) fn words(&self, tool: &str) -> String {
        let quota = self.overrides.get(tool).map(|(_, quota)| *quota).or(self.quota);
        match (quota, self.max_in_flight) {
            (Some(quota), _) => in_words(quota),
            (None, Some(max)) => format!("{max} in flight"),
            (None, None) => "no limit".to_owned(),
        }
    }
}

/// The limiter as callers wait for it in a line of ours. A leaky bucket is a token bucket with a line of its own.
fn waitable(kind: Kind, quota: Quota) -> Algorithm {
    Algorithm::new(if kind == Kind::LeakyBucket { Kind::TokenBucket } else { kind }, quota)
}
