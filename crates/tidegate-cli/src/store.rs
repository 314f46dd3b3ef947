//! A budget that several machines share: one bucket on a Redis or Valkey server, named `redis://HOST:PORT#NAME`.

use std::ffi::OsStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tidegate::{Decision, Quota};
use tidegate_redis::{Answer, Made, OnFailure, SharedLimiter, Store};
use tokio::runtime::{Builder, Handle};

use crate::fault::{Hint, warn};

/// What all budgets are limits of, in the names of the keys.
const LIMITER: &str = "budget";

/// What happens to calls while the store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WithoutStore {
    /// They go on without a limit
    Open,
    /// They wait, or are refused, until it answers again
    Closed,
}

/// Connects to the server at `url`. If it cannot be reached that is an error, unless there is something that happens
/// `without_it`.
pub(crate) async fn connect(url: &str, without_it: Option<&str>) -> anyhow::Result<Store> {
    let store = match (Store::builder(url).connect().await, without_it) {
        (Ok(store), _) => store,
        (Err(error @ tidegate_redis::Error::Connect { .. }), Some(without_it)) => {
            warn(&format!("{error}; {without_it}"));
            Store::builder(url).connect_later()?
        }
        (Err(error), _) => {
            return Err(Hint::error(
                error.to_string(),
                "name a server that runs, as in redis://USER:PASSWORD@HOST:PORT/DB#NAME",
            ));
        }
    };
    for warning in store.warnings() {
        warn(&warning.to_string());
    }
    Ok(store)
}

/// The server's URL and the name behind it.
pub(crate) fn url_and_name(text: &str) -> Option<(&str, &str)> {
    text.split_once('#').filter(|(_, name)| !name.is_empty())
}

/// A bucket on a server.
pub(crate) struct StoreBudget {
    limiter: SharedLimiter,
    /// What tells it from other budgets on the server.
    name: String,
    /// The runtime of the connection. It lives as long as the process.
    runtime: Handle,
    quota: Quota,
    without: WithoutStore,
    /// Whether the store did not answer the last time.
    is_away: AtomicBool,
}

impl StoreBudget {
    /// Whether a budget's name is that of a store.
    pub(crate) fn is_meant(name: &OsStr) -> bool {
        name.to_str().is_some_and(|name| name.contains("://"))
    }

    /// Opens the budget at `url`. The server need not be there if calls may go on without it.
    ///
    /// # Errors
    ///
    /// A URL that is none, flags that are missing, and a server that cannot be used.
    pub(crate) fn open(
        url: &OsStr,
        quota: Option<Quota>,
        without: Option<WithoutStore>,
    ) -> anyhow::Result<Self> {
        let (server, name) = url.to_str().and_then(url_and_name).ok_or_else(|| {
            Hint::error(
                "the budget of a server has no name",
                "write it behind a #, as in redis://127.0.0.1:6379#search-account",
            )
        })?;
        let quota = quota.ok_or_else(|| {
            Hint::error(
                format!("the limit of the budget `{name}` is not said, and a server does not keep it"),
                "add it, such as --limit 2/s, the same for all who share the budget",
            )
        })?;
        let without = without.ok_or_else(|| {
            Hint::error(
                "what happens while the server does not answer is not said",
                "add --without-store closed for a budget that costs money, or --without-store open to go on without a limit",
            )
        })?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start what speaks to the server")?;
        let without_it = (without == WithoutStore::Open).then_some("calls go on without a limit until then");
        let store = runtime.block_on(connect(server, without_it))?;
        let on_failure = match without {
            WithoutStore::Open => OnFailure::Open,
            WithoutStore::Closed => OnFailure::Closed,
        };
        let limiter = store.limiter(LIMITER, quota, on_failure)?;
        let handle = runtime.handle().clone();
        // A runtime must not be dropped by a thread of another.
        std::mem::forget(runtime);
        let is_away = AtomicBool::new(false);
        Ok(Self { limiter, name: name.to_owned(), runtime: handle, quota, without, is_away })
    }

    /// What tells it from other budgets.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn quota(&self) -> Quota {
        self.quota
    }

    /// Decides a call of `cost` now.
    pub(crate) async fn check(&self, cost: u64) -> Decision {
        self.told(&self.limiter.check_n(&self.name, cost).await)
    }

    /// As [`Self::check`], and stops the thread until then. From a task it must be one of a runtime with several threads.
    pub(crate) fn check_blocking(&self, cost: u64) -> Decision {
        tokio::task::block_in_place(|| self.runtime.block_on(self.check(cost)))
    }

    /// What [`Self::check_blocking`] would answer.
    pub(crate) fn look_blocking(&self, cost: u64) -> Decision {
        let answer =
            tokio::task::block_in_place(|| self.runtime.block_on(self.limiter.peek(&self.name, cost)));
        self.told(&answer)
    }

    /// Says once when the store goes away, and once when it is back.
    fn told(&self, answer: &Answer) -> Decision {
        let is_away = matches!(answer.made, Made::Open | Made::Closed);
        if self.is_away.swap(is_away, Ordering::Relaxed) != is_away {
            let what = match (is_away, self.without) {
                (false, _) => "answers again",
                (true, WithoutStore::Open) => "does not answer; calls go on without a limit",
                (true, WithoutStore::Closed) => "does not answer; calls wait or are refused until it does",
            };
            warn(&format!("the server of the budget `{}` {what}", self.name));
        }
        answer.decision
    }
}

/// The fault of a number of places for a budget that has none.
pub(crate) fn no_places() -> anyhow::Error {
    Hint::error(
        "--max-in-flight is not kept by a server",
        "leave it out, or name a budget of this machine; `max_in_flight` in a limits file holds for one process",
    )
}

impl fmt::Debug for StoreBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBudget").field("name", &self.name).finish_non_exhaustive()
    }
}
