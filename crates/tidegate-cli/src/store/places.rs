//! Places in flight of a budget on a server: how many calls run at once on all machines that name it.
//!
//! A task of the store's runtime asks for a place, keeps it, and releases it. So who stops waiting for one, or lets go of one,
//! has nothing more to do, and [`StorePlaces::finish`] knows before the process ends what is still to be released.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_redis::{Made, Place, Places, PlacesSettings, Store, WithoutPlaces};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::{LIMITER, WithoutStore};
use crate::fault::warn;

/// How long a place is held without being renewed, which is done every third of it. Less than the `--max-wait` that
/// `tidegate mcp` has by itself, so a call that waits while another machine dies still gets its place; and enough to live
/// through a failover of a few seconds.
const TTL: Duration = Duration::from_secs(15);

/// How often a place is asked for while all are taken, on average: a waiting process costs the server ten to twenty short scripts
/// a second. It is the same however long somebody has waited, so that all who wait are as likely to be next.
const LOOK: Duration = Duration::from_millis(100);

/// How long others wait for a place to be released here: twice the store's deadline. What takes longer goes on beside them.
const RELEASE: Duration = Duration::from_millis(100);

/// How long the end of the process waits for places to be released. Those that are not by then end by themselves.
const FINISH: Duration = Duration::from_millis(500);

/// The places of a budget.
pub(crate) struct StorePlaces {
    shared: Arc<Shared>,
}

struct Shared {
    places: Places,
    budget: Box<str>,
    runtime: Handle,
    counts: watch::Sender<Counts>,
    /// Until when a place is not asked for, as there was none.
    full_until: Mutex<Option<Instant>>,
    /// Whether it was told that a place was lost, since the store gave the last one.
    is_lost: AtomicBool,
}

/// What the process must not end before.
#[derive(Debug, Default)]
struct Counts {
    /// The places that are asked for, or still to be released.
    open: usize,
    /// Those of them that somebody who asks waits for.
    releasing: usize,
}

/// What became of who wanted a place.
pub(super) enum Entered {
    Place(StorePlace),
    /// All are taken.
    Full,
    /// The store did not answer; when it is tried again.
    Away(Duration),
}

/// A place in flight. It is released when it is dropped.
pub(crate) struct StorePlace {
    shared: Arc<Shared>,
    made: Made,
    /// Its end tells the task that keeps the place.
    _held: oneshot::Sender<()>,
}

impl StorePlaces {
    /// The places of the budget `name`, `limit` of them.
    pub(super) fn new(
        store: &Store,
        name: &str,
        limit: NonZeroU64,
        without: WithoutStore,
        runtime: Handle,
    ) -> Result<Self, tidegate_redis::Error> {
        let without_store = match without {
            WithoutStore::Open => WithoutPlaces::Open,
            WithoutStore::Closed => WithoutPlaces::Closed,
        };
        let places = store.places(LIMITER, PlacesSettings { limit, ttl: TTL, without_store })?;
        let shared = Shared {
            places,
            budget: name.into(),
            runtime,
            counts: watch::Sender::default(),
            full_until: Mutex::default(),
            is_lost: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// How many there are.
    pub(super) fn limit(&self) -> u64 {
        self.shared.places.settings().limit.get()
    }

    /// Takes a place if there is one. What was released here before is free by then.
    pub(super) async fn enter(&self) -> Entered {
        let (answer, answered) = oneshot::channel();
        self.shared.counts.send_modify(|counts| counts.open += 1);
        self.shared.runtime.spawn(Arc::clone(&self.shared).ask(answer));
        // It is dropped without an answer only if the runtime ends, which it does not.
        let entered = answered.await.unwrap_or(Entered::Away(LOOK));
        let full_until = match entered {
            Entered::Place(_) => None,
            Entered::Full | Entered::Away(_) => Some(Instant::now() + look()),
        };
        self.shared.set_full_until(full_until);
        entered
    }

    /// For how long it is no use to ask; `None` if there may be a place.
    pub(super) fn full_for(&self) -> Option<Duration> {
        let until = *self.shared.full_until.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Waits until all places that nobody holds are released, for a moment at most.
    pub(super) async fn finish(&self) {
        let mut counts = self.shared.counts.subscribe();
        let none_left = counts.wait_for(|counts| counts.open == 0);
        let _ = timeout(FINISH, none_left).await;
    }
}

impl Shared {
    /// Asks for a place, and keeps it for whoever `answer` goes to.
    async fn ask(self: Arc<Self>, answer: oneshot::Sender<Entered>) {
        let mut counts = self.counts.subscribe();
        let _ = timeout(RELEASE, counts.wait_for(|counts| counts.releasing == 0)).await;
        let acquired = if answer.is_closed() { None } else { Some(self.places.acquire(&*self.budget).await) };
        let (held, end) = oneshot::channel();
        let (place, entered) = match acquired {
            Some(Ok(place)) => {
                let made = place.made();
                if made != Made::Open {
                    self.is_lost.store(false, Ordering::Relaxed);
                }
                let entered = StorePlace { shared: Arc::clone(&self), made, _held: held };
                (Some(place), Some(Entered::Place(entered)))
            }
            Some(Err(none)) if none.made == Made::Closed => (None, Some(Entered::Away(none.retry_after))),
            Some(Err(_)) => (None, Some(Entered::Full)),
            None => (None, None),
        };
        // If nobody waits for it any more it is dropped here, and so released.
        entered.map(|entered| answer.send(entered).map_err(drop));
        self.counts.send_modify(|counts| counts.open -= 1);
        if let Some(place) = place {
            self.keep(place, end).await;
        }
    }

    /// Holds a place until its [`StorePlace`] is dropped.
    async fn keep(&self, place: Place, mut end: oneshot::Receiver<()>) {
        tokio::select! {
            // Nothing is ever sent.
            _ = &mut end => {}
            () = place.lost() => {
                if !self.is_lost.swap(true, Ordering::Relaxed) {
                    warn(&format!(
                        "a place in flight of the budget `{}` was lost, since it was not renewed in time; what runs in it goes on, and more may run at once than --max-in-flight says",
                        self.budget
                    ));
                }
                let _ = end.await;
            }
        }
        let mut release = pin!(place.release());
        let in_time = timeout(RELEASE, &mut release).await;
        // Those who ask have waited long enough, and the end of the process still waits.
        self.counts.send_modify(|counts| counts.releasing -= 1);
        if in_time.is_err() {
            release.await;
        }
        self.counts.send_modify(|counts| counts.open -= 1);
    }

    fn set_full_until(&self, until: Option<Instant>) {
        *self.full_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl StorePlace {
    /// Whether it was given without the store.
    pub(super) fn is_uncounted(&self) -> bool {
        self.made == Made::Open
    }
}

impl Drop for StorePlace {
    fn drop(&mut self) {
        self.shared.counts.send_modify(|counts| {
            counts.open += 1;
            counts.releasing += 1;
        });
        // There is one now.
        self.shared.set_full_until(None);
    }
}

/// When to look again: [`LOOK`], spread by chance, so that those who wait do not all ask at one time.
pub(crate) fn look() -> Duration {
    let chance = RandomState::new().hash_one(()) % 100;
    LOOK / 2 + LOOK * u32::try_from(chance).unwrap_or(0) / 100
}

impl fmt::Debug for StorePlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorePlaces").field("budget", &self.shared.budget).finish_non_exhaustive()
    }
}

impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorePlace").field("made", &self.made).finish_non_exhaustive()
    }
}
