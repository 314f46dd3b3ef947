//! The desk for calls over HTTP: each caller has a channel on which it hears what becomes of its call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::clock::Clock;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::mcp::call::{Call, CallId, Scope};
use crate::mcp::charges::Charges;
use crate::mcp::desk::{Desk, Gone, Todo};
use crate::mcp::frame::{Asked, Id};

/// What a caller hears: its progress every 5 s, and one end.
#[derive(Debug, PartialEq)]
pub(super) enum Told {
    /// The call starts; its message comes back.
    Start(Vec<u8>),
    /// The call does not start; this is the answer.
    Answer(Vec<u8>),
    /// It still waits; a notification.
    Progress(Vec<u8>),
}

type Caller = UnboundedSender<Told>;

#[derive(Debug)]
pub(super) struct Hall {
    desk: Mutex<Desk<Caller>>,
    /// Something has changed at the desk.
    changed: Notify,
    /// The last call may have ended.
    emptied: Notify,
    clock: Clock,
    pub(super) charges: Charges,
    /// The calls that their clients can name, and the numbers of their requests.
    names: Mutex<HashMap<Name, u64>>,
}

/// How a client tells its call from others: its session, and the id.
pub(super) type Name = (Box<str>, Id);

impl Hall {
    pub(super) fn new(desk: Desk<Caller>, charges: Charges) -> Self {
        Self {
            desk: Mutex::new(desk),
            changed: Notify::new(),
            emptied: Notify::new(),
            clock: Clock::unix(),
            charges,
            names: Mutex::default(),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk<Caller>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call may have to wait or be refused.
    pub(super) fn limits_something(&self) -> bool {
        self.desk().limits_something()
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Name, u64>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call came. `request` is a number that no other has. Its client can name it by its id in `session`, if there is one
    /// and no other call of that name.
    pub(super) fn arrive(
        self: &Arc<Self>,
        asked: Asked,
        session: Option<Box<str>>,
        request: u64,
        message: Vec<u8>,
    ) -> Visit {
        let (sender, told) = unbounded_channel();
        let scope = Scope::Request(request);
        let id = CallId { scope: scope.clone(), id: asked.id.clone() };
        let raw_id = asked.raw_id.clone();
        let name = session.map(|session| (session, asked.id.clone()));
        if let Some(name) = &name {
            self.names().entry(name.clone()).or_insert(request);
        }
        let visit = Visit { hall: Arc::clone(self), id, name, request, raw_id, told, state: State::Waiting };
        let todo = self.desk().arrive(Call::new(asked, scope, message, self.clock.now_ns(), sender));
        deliver(todo);
        self.changed.notify_one();
        visit
    }

    /// The client no longer wants an answer to the call of this name; whether the server is to be told.
    pub(super) fn cancel_named(&self, name: Name) -> bool {
        let request = self.names().get(&name).copied();
        request.is_none_or(|request| self.cancel(&CallId { scope: Scope::Request(request), id: name.1 }))
    }

    fn cancel(&self, id: &CallId) -> bool {
        let told = self.desk().cancel(self.clock.now_ns(), id);
        self.changed.notify_one();
        told
    }

    /// Lets waiting calls start when they may, refuses those that waited too long, and tells of progress. It never ends.
    pub(super) async fn attend(&self) {
        loop {
            let changed = self.changed.notified();
            let wait = {
                let mut desk = self.desk();
                let now = self.clock.now_ns();
                let due = desk.due(now);
                if desk.open() == 0 {
                    self.emptied.notify_one();
                }
                match due {
                    Todo::Nothing => {
                        desk.next_due(now).map(|next| Duration::from_nanos(next.saturating_sub(now)))
                    }
                    todo => {
                        deliver(todo);
                        continue;
                    }
                }
            };
            match wait {
                Some(wait) => {
                    let _ = tokio::time::timeout(wait, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// No call starts any more, and those that wait are answered.
    pub(super) fn close(&self) {
        for (caller, answer) in self.desk().close(self.clock.now_ns(), Gone::Proxy) {
            let _ = caller.send(Told::Answer(answer));
        }
    }

    /// Is ready when all calls have ended or were given up. One caller only.
    pub(super) async fn empty(&self) {
        while self.desk().open() > 0 {
            self.emptied.notified().await;
        }
    }

    /// What happened, when all is over.
    pub(super) fn finish(&self) -> Option<String> {
        self.desk().finish()
    }
}

/// A caller who has gone needs to hear nothing; what it leaves is put in order by its [`Visit`].
fn deliver(todo: Todo<Caller>) {
    match todo {
        Todo::Forward(caller, message) => drop(caller.send(Told::Start(message))),
        Todo::Answer(caller, message) => drop(caller.send(Told::Answer(message))),
        Todo::Progress(told) => {
            for (caller, message) in told {
                let _ = caller.send(Told::Progress(message));
            }
        }
        Todo::Nothing => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Ended,
}

/// A call from its arrival to its end. Who goes away takes it along: a call that waits leaves the line, and one that runs
/// keeps its place for a grace, as nobody knows what becomes of it.
#[derive(Debug)]
pub(super) struct Visit {
    hall: Arc<Hall>,
    id: CallId,
    name: Option<Name>,
    request: u64,
    raw_id: Box<str>,
    told: UnboundedReceiver<Told>,
    state: State,
}

impl Visit {
    pub(super) const fn id(&self) -> &CallId {
        &self.id
    }

    /// Whether nothing was told yet.
    pub(super) fn waits(&self) -> bool {
        self.told.is_empty()
    }

    /// The id as it was written.
    pub(super) fn raw_id(&self) -> Box<str> {
        self.raw_id.clone()
    }

    /// What the caller is told next; `None` when the call was cancelled while it waited.
    pub(super) async fn next(&mut self) -> Option<Told> {
        let told = self.told.recv().await;
        self.state = match told {
            Some(Told::Start(_)) => State::Running,
            Some(Told::Progress(_)) => State::Waiting,
            Some(Told::Answer(_)) | None => State::Ended,
        };
        told
    }

    /// The server has answered.
    pub(super) fn answered(&mut self, pause: Option<Duration>) {
        if self.state == State::Running {
            self.state = State::Ended;
            self.hall.desk().answered(self.hall.clock.now_ns(), &self.id, pause);
            self.hall.changed.notify_one();
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        while self.state == State::Waiting
            && let Ok(told) = self.told.try_recv()
        {
            if matches!(told, Told::Start(_)) {
                // It was let go a moment ago and never went to the server.
                self.state = State::Running;
                self.answered(None);
            }
        }
        if self.state != State::Ended {
            self.hall.cancel(&self.id);
        }
        if let Some(name) = &self.name {
            let mut names = self.hall.names();
            if names.get(name) == Some(&self.request) {
                names.remove(name);
            }
        }
    }
}
