//! `--store`: limits whose buckets are on a server that other machines share.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::shared::{Made, OnFailure, SharedBuckets};
use tidegate_http::layer::RateLimitBuilder;
use tidegate_redis::{Store, StoreBuckets};

use crate::fault::{Hint, warn};
use crate::store::{connect, url_and_name};

/// What happens to requests while the store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Without {
    /// They are allowed.
    Open,
    /// They are refused with 503.
    Closed,
    /// This server decides alone, by its share: one of so many.
    Local(NonZeroU32),
}

impl FromStr for Without {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            _ => {
                let servers = text.strip_prefix("local:").and_then(|servers| servers.parse().ok());
                servers.map(Self::Local).ok_or_else(|| {
                    "write open, closed, or local:N with the number of servers that share the limits"
                        .to_owned()
                })
            }
        }
    }
}

/// A store, and what happens without it.
#[derive(Clone)]
pub(super) struct SharedStore {
    store: Store,
    buckets: Arc<StoreBuckets>,
    without: Without,
    /// For how many keys there is room in each limit while this server decides alone.
    keys: usize,
    /// Whether it did not answer the last time.
    is_away: Arc<AtomicBool>,
}

impl SharedStore {
    /// Connects to the store at `url`, which may be away unless requests are refused then.
    pub(super) async fn open(
        url: &str,
        deadline: Duration,
        without: Option<Without>,
        keys: usize,
    ) -> anyhow::Result<Self> {
        let (server, name) = url_and_name(url).ok_or_else(|| {
            Hint::error(
                "the limits on the store have no name",
                "write one behind a #, the same for all servers that share them, as in redis://127.0.0.1:6379#shop",
            )
        })?;
        let without = without.ok_or_else(|| {
            Hint::error(
                "what happens while the store does not answer is not said",
                "add --without-store open, closed, or local:N for N servers that go on with a share each",
            )
        })?;
        let without_it = match without {
            Without::Open => Some("requests are not limited until then"),
            Without::Local(_) => Some("this server limits alone until then"),
            Without::Closed => None,
        };
        let store = connect(server, deadline, without_it).await?;
        let buckets = store
            .buckets(name)
            .map_err(|error| Hint::error(error.to_string(), "write another name behind the # of --store"))?;
        // Budgets of `run` and `mcp` have this name.
        if name == "budget" {
            return Err(Hint::error(
                "limits on a store cannot be named `budget`, as budgets are",
                "write another name behind the # of --store",
            ));
        }
        Ok(Self { store, buckets: Arc::new(buckets), without, keys, is_away: Arc::default() })
    }

    /// A layer that decides by it.
    pub(super) fn decides(&self, builder: RateLimitBuilder) -> RateLimitBuilder {
        let on_failure = match self.without {
            Without::Open => OnFailure::Open,
            Without::Closed => OnFailure::Closed,
            Without::Local(machines) => OnFailure::Local { machines, keys: self.keys },
        };
        let buckets: Arc<dyn SharedBuckets> = Arc::<StoreBuckets>::clone(&self.buckets);
        builder.shared(buckets, on_failure)
    }

    /// Whether a call can be decided in buckets of several keys at once.
    pub(super) fn spans_keys(&self) -> bool {
        self.buckets.spans_keys()
    }

    /// Says once when the store goes away, and once when it is back.
    pub(super) fn noticed(&self, made: Made) {
        let is_away = matches!(made, Made::Open | Made::Closed | Made::Local);
        if self.is_away.swap(is_away, Ordering::Relaxed) == is_away {
            return;
        }
        let what = match (is_away, self.without) {
            (false, _) => "answers again",
            (true, Without::Open) => "does not answer; requests are not limited until it does",
            (true, Without::Closed) => "does not answer; requests are refused until it does",
            (true, Without::Local(_)) => "does not answer; this server limits alone until it does",
        };
        let why = self.store.last_refusal().filter(|_| is_away && self.store.is_connected());
        let why = why.map(|why| format!(" (its last error: {why})")).unwrap_or_default();
        warn(&format!("the store {what}{why}"));
    }

    /// Whether there is a connection to it.
    pub(super) fn is_connected(&self) -> bool {
        self.store.is_connected()
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("buckets", &self.buckets).field("without", &self.without).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_without_it_is_a_word() {
        let five = NonZeroU32::new(5).unwrap();
        for (text, without) in [
            ("open", Some(Without::Open)),
            ("closed", Some(Without::Closed)),
            ("local:5", Some(Without::Local(five))),
            ("local", None),
            ("local:0", None),
            ("local:-1", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), without, "{text}");
        }
    }
}
