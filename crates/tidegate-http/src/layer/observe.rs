//! What others may know of each decision, for metrics, logs and pages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Decision;
use tidegate::shared::{Made, Told};

use super::desk::{Ask, Desk};
use super::key::Key;

pub(super) type ObserverFn = Arc<dyn for<'a> Fn(&Observed<'a>) + Send + Sync>;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It goes to the service inside at once.
    Allowed,
    /// It goes to the service inside after this wait: a leaky bucket has a place in its queue for it.
    Queued(Duration),
    /// A limit refused it, and a wait helps: 429.
    Rejected,
    /// Its cost is above the capacity of a limit: 400.
    Never,
    /// Its key has all its places in flight: 429.
    KeyFull,
    /// The server has all its places in flight: 503.
    Shed,
    /// The shared buckets did not answer, and then requests are refused: 503.
    Unanswered,
}

impl Outcome {
    /// Whether it goes to the service inside, now or later.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed | Self::Queued(_))
    }
}

/// One decision, as the function of [`RateLimitBuilder::observe`](super::RateLimitBuilder::observe) sees it.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    desk: &'a Desk,
    asks: &'a [Ask<'a>],
    decisions: &'a [Decision],
    outcome: Outcome,
    binding: Option<usize>,
    shadow: Option<usize>,
    took: Duration,
    how: Option<How<'a>>,
}

/// How some of the limits, or shared buckets, decided.
#[derive(Debug, Clone, Copy)]
pub(super) struct How<'a> {
    /// `None` if the tables of this process did.
    pub(super) made: Option<Made>,
    /// What each limit said; empty if none was asked.
    pub(super) each: &'a [Option<Told>],
}

/// One limit of a decision.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SeenLimit<'a> {
    /// Its name.
    pub name: &'a Arc<str>,
    /// Whose limit it is.
    pub key: &'a Key<'a>,
    /// What the request costs in it.
    pub cost: u64,
    /// What it decided by itself.
    pub decision: Decision,
}

impl<'a> Observed<'a> {
    pub(super) const fn new(
        desk: &'a Desk,
        asks: &'a [Ask<'a>],
        decisions: &'a [Decision],
        outcome: Outcome,
        (binding, shadow): (Option<usize>, Option<usize>),
        took: Duration,
        how: Option<How<'a>>,
    ) -> Self {
        Self { desk, asks, decisions, outcome, binding, shadow, took, how }
    }

    /// What became of the request.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The name of the limit that refused; `None` if none did.
    #[must_use]
    pub fn refused_by(&self) -> Option<&'a Arc<str>> {
        let is_refused = matches!(self.outcome, Outcome::Rejected | Outcome::Never);
        self.binding.filter(|_| is_refused).map(|limit| &self.desk.limits[limit].name)
    }

    /// The name of the first shadow limit that would have refused.
    #[must_use]
    pub fn shadow(&self) -> Option<&'a Arc<str>> {
        self.shadow.map(|limit| &self.desk.limits[limit].name)
    }

    /// How long the decision took, on the clock of the layer.
    #[must_use]
    pub const fn took(&self) -> Duration {
        self.took
    }

    /// How it was made, if the layer has [shared buckets](super::RateLimitBuilder::shared).
    #[must_use]
    pub fn made(&self) -> Option<Made> {
        self.how?.made
    }

    /// The limits, in the order in which they were added; with shared buckets those whose buckets said something, and of a
    /// [check](super::RateLimit::check) those that it named.
    pub fn limits(&self) -> impl Iterator<Item = SeenLimit<'a>> + use<'a> {
        let how = self.how;
        let is_known = move |limit: usize| {
            how.is_none_or(|how| how.each.get(limit).map_or(how.made == Some(Made::Local), Option::is_some))
        };
        let limits = self.desk.limits.iter().zip(self.asks).zip(self.decisions).enumerate();
        let known = limits.filter(move |(limit, _)| is_known(*limit));
        known.map(|(_, ((entry, ask), decision))| SeenLimit {
            name: &entry.name,
            key: &ask.key,
            cost: ask.cost,
            decision: *decision,
        })
    }
}

impl fmt::Debug for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed")
            .field("outcome", &self.outcome)
            .field("refused_by", &self.refused_by())
            .field("limits", &self.limits().collect::<Vec<_>>())
            .field("took", &self.took)
            .finish()
    }
}
