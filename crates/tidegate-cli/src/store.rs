//! A budget that several machines share: one bucket on a Redis or Valkey server, and places in flight beside it, named
//! `redis://HOST:PORT#NAME`.

mod places;

use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tidegate::{Decision, Quota};
use tidegate_redis::{Answer, Error, Made, OnFailure, SharedLimiter, Store};
use tokio::runtime::{Builder, Handle};

use self::places::{Entered, StorePlaces};
pub(crate) use self::places::{StorePlace, look};
use crate::fault::{Hint, warn};

/// How long a server has for an answer.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);

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
pub(crate) async fn connect(
    url: &str,
    deadline: Duration,
    without_it: Option<&str>,
) -> anyhow::Result<Store> {
    let builder = Store::builder(url).deadline(deadline);
    let store = match (builder.clone().connect().await, without_it) {
        (Ok(store), _) => store,
        // What its text says to do is for who writes a program.
        (Err(Error::Connect { address, fault }), without_it) => {
            let text = format!("cannot use the store at {address}: {fault}");
            let Some(without_it) = without_it else {
                return Err(Hint::error(
                    text,
                    "start it, or name a server that runs, as in redis://USER:PASSWORD@HOST:PORT/DB#NAME",
                ));
            };
            warn(&format!("{text}; {without_it}"));
            builder.connect_later()?
        }
        (Err(error @ Error::OutOfRange { .. }), _) => {
            return Err(Hint::error(error.to_string(), "give --store-deadline another time"));
        }
        (Err(error), _) => {
            return Err(Hint::error(
                error.to_string(),
                "name a server as in redis://USER:PASSWORD@HOST:PORT/DB#NAME",
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

/// For what the store did not answer the last time: the bits of [`StoreBudget::away`].
const TOKENS: u8 = 1;
const PLACES: u8 = 2;

/// A bucket on a server, and perhaps places in flight.
pub(crate) struct StoreBudget {
    limiter: SharedLimiter,
    /// `None` if this process did not ask for places. Then it is not counted by the others.
    places: Option<StorePlaces>,
    /// What tells it from other budgets on the server.
    name: String,
    /// The runtime of the connection. It lives as long as the process.
    runtime: Handle,
    quota: Quota,
    without: WithoutStore,
    /// For what the store did not answer the last time.
    away: AtomicU8,
}

/// Why there is no place in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All are taken.
    Full,
    /// The store does not answer, and nothing goes on without it; when it is tried again.
    Away(Duration),
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
        max_in_flight: Option<NonZeroU64>,
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
        let store = runtime.block_on(connect(server, DEADLINE, without_it))?;
        let on_failure = match without {
            WithoutStore::Open => OnFailure::Open,
            WithoutStore::Closed => OnFailure::Closed,
        };
        let limiter = store.limiter(LIMITER, quota, on_failure)?;
        let handle = runtime.handle().clone();
        let places = max_in_flight
            .map(|limit| StorePlaces::new(&store, name, limit, without, handle.clone()))
            .transpose()?;
        // A runtime must not be dropped by a thread of another.
        std::mem::forget(runtime);
        let away = AtomicU8::new(0);
        Ok(Self { limiter, places, name: name.to_owned(), runtime: handle, quota, without, away })
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

    /// What [`Self::check`] would answer.
    pub(crate) async fn look(&self, cost: u64) -> Decision {
        self.told(&self.limiter.peek(&self.name, cost).await)
    }

    /// Takes a place in flight; `None` if this process did not ask for places. It does not wait for one that is taken.
    pub(crate) async fn enter(&self) -> Result<Option<StorePlace>, NoPlace> {
        let Some(places) = &self.places else { return Ok(None) };
        let (entered, is_away) = match places.enter().await {
            Entered::Place(place) => {
                let is_away = place.is_uncounted();
                (Ok(Some(place)), is_away)
            }
            Entered::Full => (Err(NoPlace::Full), false),
            Entered::Away(retry_after) => (Err(NoPlace::Away(retry_after)), true),
        };
        self.note(PLACES, is_away);
        entered
    }

    /// For how long it is no use to ask for a place; `None` if there may be one.
    pub(crate) fn full_for(&self) -> Option<Duration> {
        self.places.as_ref().and_then(StorePlaces::full_for)
    }

    /// How many calls may run at once, if that is limited.
    pub(crate) fn max_in_flight(&self) -> Option<u64> {
        self.places.as_ref().map(StorePlaces::limit)
    }

    /// Waits a moment until the places are released that were let go. To be called before the process ends.
    pub(crate) async fn finish(&self) {
        if let Some(places) = &self.places {
            places.finish().await;
        }
    }

    /// As [`Self::check`], and stops the thread until then, as do those below.
    pub(crate) fn check_blocking(&self, cost: u64) -> Decision {
        self.blocking(self.check(cost))
    }

    /// As [`Self::look`].
    pub(crate) fn look_blocking(&self, cost: u64) -> Decision {
        self.blocking(self.look(cost))
    }

    /// As [`Self::enter`].
    pub(crate) fn enter_blocking(&self) -> Result<Option<StorePlace>, NoPlace> {
        self.blocking(self.enter())
    }

    /// As [`Self::finish`].
    pub(crate) fn finish_blocking(&self) {
        self.blocking(self.finish());
    }

    /// From a task it must be one of a runtime with several threads.
    fn blocking<T>(&self, future: impl Future<Output = T>) -> T {
        tokio::task::block_in_place(|| self.runtime.block_on(future))
    }

    fn told(&self, answer: &Answer) -> Decision {
        self.note(TOKENS, matches!(answer.made, Made::Open | Made::Closed));
        answer.decision
    }

    /// Says once when the store goes away, and once when it is back.
    fn note(&self, what: u8, is_away: bool) {
        let (before, after) = if is_away {
            let before = self.away.fetch_or(what, Ordering::Relaxed);
            (before, before | what)
        } else {
            let before = self.away.fetch_and(!what, Ordering::Relaxed);
            (before, before & !what)
        };
        if (before == 0) == (after == 0) {
            return;
        }
        let what = match (after != 0, self.without) {
            (false, _) => "answers again",
            (true, WithoutStore::Open) => "does not answer; calls go on without a limit",
            (true, WithoutStore::Closed) => "does not answer; calls wait or are refused until it does",
        };
        warn(&format!("the server of the budget `{}` {what}", self.name));
    }
}

impl fmt::Debug for StoreBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBudget").field("name", &self.name).finish_non_exhaustive()
    }
}
