//! Places in flight: of the server as a whole, and of each key.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::InFlight;

use super::key::Key;

/// How many requests run. There is one entry for each key that has a request in flight, and none for others: memory is
/// bounded by the requests in flight, 24 bytes for each key or so.
#[derive(Debug)]
pub(super) struct Places {
    running: Mutex<Running>,
    hasher: RandomState,
}

#[derive(Debug)]
pub(super) struct Running {
    /// Of the server as a whole.
    all: InFlight,
    /// Of each key, by its hash: two of 100,000 keys share one with a chance of 1 in 10⁹.
    keys: HashMap<u64, InFlight>,
    max_per_key: Option<NonZeroU64>,
}

/// Why a request cannot run though no limit refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The key has all of its own.
    Key,
    /// The server has no more.
    Server,
    /// There may be, but the buckets that others share do not answer, and will be tried again after that.
    Unanswered(Duration),
}

impl Places {
    pub(super) fn new(max: Option<NonZeroU64>, max_per_key: Option<NonZeroU64>) -> Self {
        let all = InFlight::new(max.unwrap_or(NonZeroU64::MAX));
        let running = Running { all, keys: HashMap::new(), max_per_key };
        Self { running: Mutex::new(running), hasher: RandomState::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Running> {
        // Nothing in here panics between two changes that belong together.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hash(&self, key: &Key<'_>) -> u64 {
        self.hasher.hash_one(key)
    }
}

impl Running {
    /// Other limits from now on. Who is in flight stays.
    pub(super) fn set_max(&mut self, max: Option<NonZeroU64>, max_per_key: Option<NonZeroU64>) {
        self.all.set_max(max.unwrap_or(NonZeroU64::MAX));
        self.max_per_key = max_per_key;
        self.keys.values_mut().for_each(|places| places.set_max(max_per_key.unwrap_or(NonZeroU64::MAX)));
    }

    /// Whether there is a place; the key's own first, as a client that is over its own limit is not the server's trouble.
    pub(super) fn look(&self, key: Option<u64>) -> Result<(), Full> {
        if let (Some(key), Some(max)) = (key, self.max_per_key) {
            let free = self.keys.get(&key).is_none_or(|places| places.running() < max.get());
            if !free {
                return Err(Full::Key);
            }
        }
        if self.all.has_place() { Ok(()) } else { Err(Full::Server) }
    }

    /// Takes the place that [`Self::look`] has found, and says which key it was counted for: none if keys have no places of
    /// their own any more.
    pub(super) fn enter(&mut self, key: Option<u64>) -> Option<u64> {
        let _found = self.all.try_enter();
        let (key, max) = (key?, self.max_per_key?);
        let _found = self.keys.entry(key).or_insert_with(|| InFlight::new(max)).try_enter();
        Some(key)
    }

    fn leave(&mut self, key: Option<u64>) {
        self.all.leave();
        if let Some(key) = key
            && let Some(places) = self.keys.get_mut(&key)
        {
            places.leave();
            if places.running() == 0 {
                self.keys.remove(&key);
            }
        }
    }

    /// How many requests run that were counted.
    pub(super) const fn running(&self) -> u64 {
        self.all.running()
    }

    /// The places that a key has left.
    pub(super) fn free(&self, key: u64) -> u64 {
        let max = self.max_per_key.map_or(0, NonZeroU64::get);
        max - self.keys.get(&key).map_or(0, InFlight::running).min(max)
    }
}

/// A place in flight, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    places: Arc<Places>,
    key: Option<u64>,
}

impl Permit {
    /// The permit for a place that was entered, and the key that it was counted for.
    pub(super) const fn new(places: Arc<Places>, key: Option<u64>) -> Self {
        Self { places, key }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.places.lock().leave(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_goes_back_to_the_key_that_it_was_counted_for() {
        let places = Arc::new(Places::new(None, NonZeroU64::new(2)));
        let enter = || Permit::new(Arc::clone(&places), places.lock().enter(Some(7)));
        let counted = enter();
        let free_and_running = || {
            let running = places.lock();
            (running.free(7), running.running())
        };
        // Keys have no places of their own for a while, and somebody still asks as if they had.
        places.lock().set_max(None, None);
        let uncounted = enter();
        places.lock().set_max(None, NonZeroU64::new(2));
        assert_eq!(free_and_running(), (1, 2));
        drop(uncounted);
        assert_eq!(free_and_running(), (1, 1));
        drop(counted);
        assert_eq!(free_and_running(), (2, 0));
    }
}
