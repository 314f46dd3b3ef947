//! What a server did, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a server did since its start, from [`Resp::counts`](super::Resp::counts). The fields are read one after the other,
/// while others count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were answered, errors among them.
    pub commands: u64,
    /// Calls that were allowed, those of quantity 0 among them.
    pub allowed: u64,
    /// Calls that were rejected.
    pub rejected: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Keys that were forgotten before their bucket was full, for want of room.
    pub evicted: u64,
    /// Connections that were taken.
    pub connections: u64,
    /// Connections that were refused because there were too many.
    pub connections_refused: u64,
    /// Connections that are open now.
    pub connections_open: u64,
}

/// What one connection did in one turn, before it is added for all: one addition for many commands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) commands: u64,
    pub(super) allowed: u64,
    pub(super) rejected: u64,
    pub(super) errors: u64,
}

/// The counters that connections share.
#[derive(Debug, Default)]
pub(super) struct Counters {
    commands: AtomicU64,
    allowed: AtomicU64,
    rejected: AtomicU64,
    errors: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) connections_refused: AtomicU64,
    pub(super) connections_ended: AtomicU64,
}

impl Counters {
    pub(super) fn add(&self, tally: &Tally) {
        for (counter, more) in [
            (&self.commands, tally.commands),
            (&self.allowed, tally.allowed),
            (&self.rejected, tally.rejected),
            (&self.errors, tally.errors),
        ] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn read(&self, evicted: u64) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // In this order, so that not more have ended than were taken.
        let ended = read(&self.connections_ended);
        let connections = read(&self.connections);
        Counts {
            commands: read(&self.commands),
            allowed: read(&self.allowed),
            rejected: read(&self.rejected),
            errors: read(&self.errors),
            evicted,
            connections,
            connections_refused: read(&self.connections_refused),
            connections_open: connections.saturating_sub(ended),
        }
    }
}
