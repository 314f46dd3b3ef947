//! Places in flight that many machines share: how many calls run at once, on all of them together.
//!
//! **Definition.** A key has `limit` places. Whoever has one holds it for a time to live, and renews it at a third of it in
//! the background. One that is not renewed ends by itself, so a machine that dies gives its places back after that time.
//!
//! **Promise.** While one primary lives, at most `limit` holders have a place that has not ended, by the clock of the server.
//! A holder counts its time from before it asked, and ends a tenth earlier: so that it knows before another gets its place.
//!
//! **What it cannot promise.** A process that is stopped in the midst of its work goes on with it when it wakes, and looks
//! at its place afterwards. What must not be done twice needs a resource that checks the [`Place::fence`] number: it is
//! larger than that of every place that was given before. A failover to a replica that had not got the last places can give
//! `limit` more; a clock of the server that is set ahead ends places early, and their holders are told when they renew.
//!
//! **Source.** Leases: Gray and Cheriton, *Leases*, SOSP 1989. Fence numbers: Burrows, *The Chubby lock service*, OSDI 2006
//! (sequencers).

mod held;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub use self::held::Place;
use self::held::{Held, Holder};
use crate::Made;
use crate::error::Error;
use crate::fault::Fault;
use crate::limiter::part_of_a_key;
use crate::route::Route;
use crate::runner::{Arguments, Script};
use crate::store::{Inner as StoreInner, Store};

static SCRIPT: Script = Script::new(include_str!("places.lua"));

/// What is answered without the store when a place is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutPlaces {
    /// Everybody gets one, which is not counted.
    Open,
    /// Nobody gets one, until the store will be tried again.
    Closed,
}

/// How many places there are, and what becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacesSettings {
    /// How many calls may run at once, for each key.
    pub limit: NonZeroU64,
    /// How long a place is held without being renewed: after this a place of a machine that died is free again. 1 s to 1 h.
    pub ttl: Duration,
    /// What is answered without the store.
    pub without_store: WithoutPlaces,
}

/// Places in flight for each of many keys, shared by all processes that name the same store and the same places.
///
/// The key on the server is `{tidegate:NAME:KEY}::places`, beside the buckets of a limiter of this name.
pub struct Places {
    shared: Arc<Shared>,
}

/// What places need after they were given.
pub(crate) struct Shared {
    store: Arc<StoreInner>,
    name: Box<str>,
    settings: PlacesSettings,
}

/// Why there was no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoPlace {
    /// When the first of the places ends if it is neither renewed nor released: at the latest a holder that died is gone
    /// then, and one that lives may release it before. Without the store, when that is tried again.
    pub retry_after: Duration,
    /// How many are held; `None` if the store was not asked.
    pub held: Option<u64>,
    /// [`Made::Exact`], or [`Made::Closed`] for want of the store.
    pub made: Made,
}

impl Store {
    /// Places in flight by the name of `name`. Every process that gives this name to the same store shares them; all should
    /// give the same settings, and each goes by its own.
    ///
    /// # Errors
    ///
    /// A name that cannot be part of a key; a time to live out of its range.
    pub fn places(&self, name: &str, settings: PlacesSettings) -> Result<Places, Error> {
        part_of_a_key(name)?;
        if !(Duration::from_secs(1)..=Duration::from_hours(1)).contains(&settings.ttl) {
            let what = "time to live of a place";
            return Err(Error::OutOfRange { what, value: settings.ttl, range: "1s to 1h" });
        }
        let shared = Shared { store: Arc::clone(&self.inner), name: name.into(), settings };
        Ok(Places { shared: Arc::new(shared) })
    }
}

impl Places {
    /// Takes a place for `key` if there is one. It is released when what is returned is dropped.
    ///
    /// It answers before the deadline of the store. If it is not known whether the store gave the place, it is released in
    /// the background.
    ///
    /// # Errors
    ///
    /// There is none. Who wants to wait asks again, at times spread by chance.
    ///
    /// # Cancel safety
    ///
    /// A place that was given to nobody is released in the background.
    pub async fn acquire(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Result<Place, NoPlace> {
        let shared = &self.shared;
        let sent = std::time::Instant::now();
        let deadline = Instant::from_std(sent + shared.store.deadline);
        let key = key.as_ref().into();
        let held = Arc::new(Held { shared: Arc::clone(shared), key, holder: Holder::random() });
        let asking = Asking(Some(Arc::clone(&held)));
        let reply = loop {
            let reply = held.run(b"acquire", deadline).await;
            // The connection broke, and it is not known whether this holder has a place. It does not get a second one.
            if reply != Err(Fault::Broken) || !shared.is_up_again(&held.key, deadline).await {
                break reply;
            }
        };
        match reply.as_deref() {
            Ok(&[1, fence, ..]) => {
                asking.forget();
                shared.store.counters().exact.one();
                Ok(Place::keep(held, sent, u64::try_from(fence).unwrap_or(0)))
            }
            Ok(&[0, _, running, retry_us]) => {
                asking.forget();
                shared.store.counters().exact.one();
                Err(NoPlace {
                    retry_after: Duration::from_micros(u64::try_from(retry_us).unwrap_or(0)),
                    held: u64::try_from(running).ok(),
                    made: Made::Exact,
                })
            }
            other => {
                let fault = match other {
                    Err(fault) => fault.clone(),
                    Ok(_) => Fault::Refused("the reply is none of this script's".into()),
                };
                match fault {
                    // The guard releases what may have been given.
                    Fault::Late | Fault::Broken | Fault::Unreplicated => drop(asking),
                    _ => asking.forget(),
                }
                shared.store.counters().fault(&fault);
                match shared.settings.without_store {
                    WithoutPlaces::Open => {
                        shared.store.counters().open.one();
                        Ok(Place::uncounted())
                    }
                    WithoutPlaces::Closed => {
                        shared.store.counters().closed.one();
                        Err(shared.no_place(&held.key))
                    }
                }
            }
        }
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &PlacesSettings {
        &self.shared.settings
    }
}

/// A place that may be given, and of which nobody knows yet.
struct Asking(Option<Arc<Held>>);

impl Asking {
    /// There is nothing to release, or somebody else sees to it.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            let runtime = held.shared.store.servers.runtime.clone();
            runtime.spawn(async move {
                let end = Instant::now() + held.shared.settings.ttl;
                held.release(end).await;
            });
        }
    }
}

impl Shared {
    /// A key on the server. Both have one hash tag.
    fn key(&self, key: &[u8], suffix: &[u8]) -> Box<[u8]> {
        [b"{tidegate:", self.name.as_bytes(), b":", key, b"}::", suffix].concat().into()
    }

    fn no_place(&self, key: &[u8]) -> NoPlace {
        let server = self.store.servers.until_next_try(&self.key(key, b"places"));
        let until_next_try = server.max(self.store.deadline);
        NoPlace { retry_after: until_next_try, held: None, made: Made::Closed }
    }

    /// Whether there is a connection before `deadline`.
    async fn is_up_again(&self, key: &[u8], deadline: Instant) -> bool {
        let key = self.key(key, b"places");
        while !self.store.servers.route(&key).is_some_and(Route::is_up) {
            let again = Instant::now() + Duration::from_millis(1);
            if again >= deadline {
                return false;
            }
            tokio::time::sleep_until(again).await;
        }
        true
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { name, settings, .. } = &*self.shared;
        f.debug_struct("Places").field("name", name).field("settings", settings).finish_non_exhaustive()
    }
}

impl Holder {
    /// 128 bits that nobody else has: the keys of two hash maps of the standard library are from the system's generator, and
    /// a count tells those of one thread apart.
    fn random() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let half = |which: u8| RandomState::new().hash_one((which, count));
        Self(format!("{:016x}{:016x}", half(0), half(1)).into())
    }
}

/// What a script is run with.
fn arguments(shared: &Shared, key: &[u8], what: &[u8], holder: &Holder) -> Arguments {
    let number = |number: u64| number.to_string().into_bytes();
    let ttl_us = u64::try_from(shared.settings.ttl.as_micros()).unwrap_or(u64::MAX);
    Arguments {
        keys: vec![shared.key(key, b"places"), shared.key(key, b"fence")],
        values: vec![
            what.into(),
            holder.0.as_bytes().into(),
            number(shared.settings.limit.get()),
            number(ttl_us),
        ],
    }
}
