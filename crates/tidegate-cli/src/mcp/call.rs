//! A call on its way: what came, whose it is, and where its caller is reached.

use std::time::Duration;

use super::frame::{Asked, Id};

/// When a waiting call is first told of, and how often after that.
const FIRST_PROGRESS: Duration = Duration::from_secs(1);
const NEXT_PROGRESS: Duration = Duration::from_secs(5);

/// Whose ids are told apart from those of others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// All who speak through one pipe.
    Pipe,
    /// One request over HTTP, which nobody else can name.
    Request(u64),
}

/// What tells the calls apart that have not ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallId {
    pub(crate) scope: Scope,
    pub(crate) id: Id,
}

/// A call that came, and where its caller is reached: `R`.
#[derive(Debug)]
pub(crate) struct Call<R> {
    pub(crate) asked: Asked,
    pub(crate) scope: Scope,
    /// The message as it came.
    pub(crate) message: Vec<u8>,
    /// When it came, in nanoseconds since 1970.
    pub(crate) arrived: u64,
    pub(crate) caller: R,
    /// How often its progress was told.
    pub(crate) steps: u32,
}

impl<R> Call<R> {
    pub(crate) const fn new(asked: Asked, scope: Scope, message: Vec<u8>, arrived: u64, caller: R) -> Self {
        Self { asked, scope, message, arrived, caller, steps: 0 }
    }

    pub(crate) fn id(&self) -> CallId {
        CallId { scope: self.scope.clone(), id: self.asked.id.clone() }
    }

    pub(crate) fn waited(&self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.arrived))
    }

    /// When it is to be told of next, if it asked for that.
    pub(crate) fn next_progress(&self) -> Option<u64> {
        self.asked.progress_token.as_ref()?;
        let after = FIRST_PROGRESS + NEXT_PROGRESS * self.steps;
        Some(self.arrived.saturating_add(super::line::nanoseconds(after)))
    }
}
