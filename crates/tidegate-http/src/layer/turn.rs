//! The turn of a request that a leaky bucket lets wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use super::desk::Counters;

/// Comes once; whoever drops it before has given his turn away.
#[derive(Debug)]
pub(super) struct Turn {
    /// Tokio's timer wakes in whole milliseconds, and never early.
    sleep: Pin<Box<tokio::time::Sleep>>,
    counters: Arc<Counters>,
}

impl Turn {
    /// # Panics
    ///
    /// Outside of a runtime of tokio with its timer.
    pub(super) fn after(wait: Duration, counters: &Arc<Counters>) -> Self {
        let sleep = Box::pin(tokio::time::sleep(wait));
        counters.waiting.fetch_add(1, Ordering::Relaxed);
        Self { sleep, counters: Arc::clone(counters) }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.sleep.as_mut().poll(context)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
