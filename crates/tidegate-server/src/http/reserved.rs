//! Calls that are charged an estimate, and wait to be settled.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_http::layer::Charged;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::RESERVED_MAX;

/// What is reserved, by its id.
#[derive(Debug)]
pub(super) struct Reserved {
    calls: Mutex<Calls>,
    /// For how many more limits there is room.
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Calls {
    by_id: HashMap<Box<str>, Call>,
    /// When those whose time is over were last looked for.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Call {
    charged: Charged,
    until: Instant,
    _room: OwnedSemaphorePermit,
}

/// How often it is looked for those whose time is over, if there is room; at once if there is none.
const SWEEP: Duration = Duration::from_secs(1);

impl Default for Reserved {
    fn default() -> Self {
        Self { calls: Mutex::default(), room: Arc::new(Semaphore::new(RESERVED_MAX)) }
    }
}

impl Reserved {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        // Nothing in here panics between two changes that belong together.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for one call more in so many limits, if there is some.
    pub(super) fn room(&self, limits: usize) -> Option<OwnedSemaphorePermit> {
        let limits = u32::try_from(limits).ok()?;
        let take = || Arc::clone(&self.room).try_acquire_many_owned(limits).ok();
        take().or_else(|| {
            // At most so often, however many ask.
            self.lock().sweep(Instant::now(), SWEEP / 10);
            take()
        })
    }

    /// Keeps what a call was charged for so long, under a new id.
    pub(super) fn keep(&self, room: OwnedSemaphorePermit, charged: Charged, expires: Duration) -> String {
        // Two keys of a hash map of the standard library are from the system's generator: 128 bits that nobody can guess.
        let half = |which: u8| RandomState::new().hash_one(which);
        let id = format!("{:016x}{:016x}", half(0), half(1));
        let now = Instant::now();
        let mut calls = self.lock();
        calls.sweep(now, SWEEP);
        calls.by_id.insert(id.as_str().into(), Call { charged, until: now + expires, _room: room });
        id
    }

    /// As [`Self::take`], but the call stays reserved if something is wrong.
    pub(super) fn take_if<E>(
        &self,
        id: &str,
        right: impl FnOnce(&Charged) -> Result<(), E>,
    ) -> Result<Option<Charged>, E> {
        let mut calls = self.lock();
        let Some(call) = calls.by_id.get(id).filter(|call| call.until > Instant::now()) else {
            return Ok(None);
        };
        right(&call.charged)?;
        Ok(calls.by_id.remove(id).map(|call| call.charged))
    }

    /// What a call was charged, if its time is not over.
    pub(super) fn take(&self, id: &str) -> Option<Charged> {
        let call = self.lock().by_id.remove(id)?;
        (call.until > Instant::now()).then_some(call.charged)
    }
}

impl Calls {
    /// Forgets those whose time is over: they stay charged.
    fn sweep(&mut self, now: Instant, every: Duration) {
        if self.swept.is_some_and(|swept| now.duration_since(swept) < every) {
            return;
        }
        self.swept = Some(now);
        self.by_id.retain(|_, call| call.until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_limits_and_not_calls() {
        let reserved = Reserved::default();
        let most = reserved.room(RESERVED_MAX - 1).unwrap();
        assert!(reserved.room(2).is_none());
        let one = reserved.room(1);
        assert!(one.is_some() && reserved.room(1).is_none());
        drop(most);
        assert!(reserved.room(32).is_some());
    }
}
