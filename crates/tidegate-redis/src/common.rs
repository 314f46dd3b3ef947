//! What all connections of a store share.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::counters::Counters;

/// What all connections of a store share.
pub(crate) struct Common {
    /// The text of the script.
    pub(crate) source: Box<str>,
    pub(crate) connect_timeout: Duration,
    pub(crate) durability: Option<Durability>,
    pub(crate) counters: Counters,
    last_refusal: Mutex<Option<Box<str>>>,
    /// What the epoch key held.
    epoch: Mutex<Option<String>>,
}

/// How many replicas must have a charge before it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durability {
    pub(crate) replicas: u32,
    pub(crate) within: Duration,
}

impl Common {
    pub(crate) fn new(source: &str, connect_timeout: Duration, durability: Option<Durability>) -> Self {
        Self {
            source: source.into(),
            connect_timeout,
            durability,
            counters: Counters::default(),
            last_refusal: Mutex::default(),
            epoch: Mutex::default(),
        }
    }

    pub(crate) fn last_refusal(&self) -> Option<Box<str>> {
        self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn refused(&self, text: &str) {
        *self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.into());
    }

    /// What the epoch key holds now. Another value than before means that the keys were lost.
    pub(crate) fn epoch(&self, now: &str) {
        let before = self.epoch.lock().unwrap_or_else(PoisonError::into_inner).replace(now.to_owned());
        if before.is_some_and(|before| before != now) {
            self.counters.lost_state.one();
        }
    }
}
