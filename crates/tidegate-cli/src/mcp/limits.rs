//! The limits on tool calls: from the flags or the limits file to rules that the line decides by.

use std::collections::HashMap;
use std::num::NonZeroU64;

use tidegate_core::{Kind, Mode, Quota};

use super::shared::SharedBudget;
use crate::fault::Hint;
use crate::limits::FileLimit;
use crate::limits::tools::Pattern;
use crate::quota_args::in_words;

/// The name of the limit that the flags describe.
const OF_FLAGS: &str = "all-tools";

/// Between the parts of a key. No session has it in its id.
const BETWEEN: &str = "\n";

/// Who calls what.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Subject {
    pub(crate) tool: Box<str>,
    /// Over HTTP; empty for the one session of a pipe.
    pub(crate) session: Box<str>,
}

/// What of a call its key is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Tool,
    Session,
}

/// One limit on tool calls.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: Box<str>,
    pub(crate) mode: Mode,
    pub(crate) kind: Kind,
    pub(crate) max_in_flight: Option<NonZeroU64>,
    /// The tokens, and the places if it has some, are those of a budget that other processes use too.
    pub(crate) budget: Option<SharedBudget>,
    /// `None` when there are only places in flight.
    quota: Option<Quota>,
    key: Vec<Part>,
    /// The tools it is for; all if there is none.
    tools: Vec<Pattern>,
    /// Keys with a quota of their own.
    overrides: HashMap<Box<str>, Quota>,
}

impl Rule {
    /// The limit of `--limit`, `--burst` and `--max-in-flight`; `None` if there is none.
    pub(crate) fn of_flags(quota: Option<Quota>, max_in_flight: Option<NonZeroU64>) -> Option<Self> {
        if quota.is_none() && max_in_flight.is_none() {
            return None;
        }
        Some(Self { max_in_flight, ..Self::of_all(OF_FLAGS, quota) })
    }

    /// The limit of `--budget`: its places are in the budget.
    pub(crate) fn of_budget(name: &str, quota: Quota, budget: SharedBudget) -> Self {
        Self { budget: Some(budget), ..Self::of_all(name, Some(quota)) }
    }

    /// One limit of all calls together.
    fn of_all(name: &str, quota: Option<Quota>) -> Self {
        Self {
            name: name.into(),
            mode: Mode::Enforce,
            kind: if quota.is_some() { Kind::TokenBucket } else { Kind::Unlimited },
            max_in_flight: None,
            budget: None,
            quota,
            key: Vec::new(),
            tools: Vec::new(),
            overrides: HashMap::new(),
        }
    }

    /// A limit of a file.
    ///
    /// # Errors
    ///
    /// A key that a tool call does not have.
    pub(crate) fn of_file(file: &str, limit: &FileLimit) -> anyhow::Result<Self> {
        let name = &limit.limit.name;
        let part = |word: &String| match word.as_str() {
            "tool" => Ok(Part::Tool),
            "session" => Ok(Part::Session),
            _ => Err(Hint::error(
                format!("{file}: limit `{name}` has the key `{word}`, which a tool call does not have"),
                "write `key = \"tool\"`, `\"session\"` or both in a list, or leave `key` out for one limit of all calls",
            )),
        };
        // In a line of ours, a leaky bucket is a token bucket.
        let kind = match limit.limit.algorithm.kind() {
            Kind::LeakyBucket => Kind::TokenBucket,
            kind => kind,
        };
        let overrides = limit.overrides.iter();
        Ok(Self {
            name: name.to_string().into(),
            mode: limit.limit.mode,
            kind,
            max_in_flight: limit.max_in_flight,
            budget: None,
            quota: (kind != Kind::Unlimited).then_some(limit.quota),
            key: limit.key.iter().map(part).collect::<Result<_, _>>()?,
            tools: limit.tools.clone(),
            overrides: overrides.map(|own| (own.key.join(BETWEEN).into(), own.quota)).collect(),
        })
    }

    /// Whether it is for this tool.
    pub(crate) fn applies(&self, tool: &str) -> bool {
        self.tools.is_empty() || self.tools.iter().any(|pattern| pattern.fits(tool))
    }

    /// Whether sessions have states of their own.
    pub(crate) fn tells_sessions_apart(&self) -> bool {
        self.key.contains(&Part::Session)
    }

    /// Whether all calls have one state.
    pub(crate) fn is_for_all_together(&self) -> bool {
        self.key.is_empty()
    }

    /// What tells the states of this limit apart.
    pub(crate) fn key(&self, subject: &Subject) -> Box<str> {
        let part = |part: &Part| match part {
            Part::Tool => &*subject.tool,
            Part::Session => &*subject.session,
        };
        let parts: Vec<&str> = self.key.iter().map(part).collect();
        parts.join(BETWEEN).into()
    }

    /// The quota of a key; `None` when there are only places in flight.
    pub(crate) fn quota(&self, key: &str) -> Option<Quota> {
        self.overrides.get(key).copied().or(self.quota)
    }

    /// How many calls may run at once: those of the budget, if it is one.
    pub(crate) fn places(&self) -> Option<u64> {
        let shared = self.budget.as_ref().and_then(SharedBudget::max_in_flight);
        self.max_in_flight.map(NonZeroU64::get).or(shared)
    }

    /// The quota of a caller in words, or the places.
    pub(crate) fn words(&self, subject: &Subject) -> String {
        match (self.quota(&self.key(subject)), self.max_in_flight) {
            (Some(quota), _) => in_words(quota),
            (None, Some(max)) => format!("{max} in flight"),
            (None, None) => "no limit".to_owned(),
        }
    }
}
