//! The server: connections are taken while there is room, and ended once they have their answers.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::clock::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::check::Checks;
use super::codec::reply;
use super::connection::Connection;
use super::counts::{Counters, Counts};
use super::throttle::Table;

/// The pause after a connection could not be taken, since the reason (no file descriptor is free) needs time to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a server is made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many keys with a debt the table has room for; 65,536 when it is not said, in 65 bytes each.
    pub keys: usize,
    /// What clients have to give with `AUTH` or `HELLO` before anything else, for the user `default`. Nothing when not said.
    pub password: Option<Box<[u8]>>,
    /// The limits of `TG.CHECK`; without them it is an error.
    pub checks: Option<Checks>,
    /// Where the time comes from.
    pub clock: Clock,
    /// How many clients there can be, and how long they may be silent.
    pub bounds: Bounds,
}

/// What clients may use of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at one time; further ones are told so and closed, as Redis does. An idle one takes about 1 KB, and one
    /// that sends much and reads nothing 60 KB: so all of the 10,000 take 600 MB in the worst case.
    pub connections: usize,
    /// How long a client may take for the rest of a request, for reading its answers, and for the password: between once and
    /// twice this, as it is looked at once in that time. 60 s when it is not said.
    pub slow: Duration,
    /// How many times [`Self::slow`] a client may say nothing at all. Pools of connections expect to find theirs open after
    /// a while. 60 when it is not said, an hour.
    pub idle: NonZeroU32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { keys: 65_536, password: None, checks: None, clock: Clock::new(), bounds: Bounds::default() }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        const IDLE: NonZeroU32 = NonZeroU32::new(60).expect("not zero");
        Self { connections: 10_000, slow: Duration::from_secs(60), idle: IDLE }
    }
}

/// A server that speaks RESP. Clones are the same server: its table can be served at several addresses.
#[derive(Debug, Clone)]
pub struct Resp {
    shared: Arc<Shared>,
}

/// What connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) table: Table,
    pub(super) clock: Clock,
    pub(super) checks: Option<Checks>,
    pub(super) password: Option<Box<[u8]>>,
    pub(super) counters: Counters,
    pub(super) bounds: Bounds,
}

impl Shared {
    pub(super) fn counts(&self) -> Counts {
        self.counters.read(self.table.evicted())
    }
}

impl Resp {
    /// A server with an empty table.
    ///
    /// # Panics
    ///
    /// When the memory for the table cannot be had.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { keys, password, checks, clock, bounds } = settings;
        let counters = Counters::default();
        Self {
            shared: Arc::new(Shared { table: Table::new(keys), clock, checks, password, counters, bounds }),
        }
    }

    /// The bytes of the table, which does not grow.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.table.bytes()
    }

    /// For how many keys the table has room.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.table.slots()
    }

    /// What it did since it was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Serves clients of `listener` until `stop` is ready; from then on no connection is taken.
    ///
    /// What is returned ends the connections that are left, each as soon as it has its answers.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) -> Connections {
        let (end, ended) = watch::channel(());
        let places = Arc::new(Semaphore::new(self.shared.bounds.connections.min(Semaphore::MAX_PERMITS)));
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => self.take(stream, place, ended.clone()),
                Err(_) => self.refuse(&stream),
            }
        }
        Connections { end }
    }

    fn take(&self, stream: TcpStream, place: OwnedSemaphorePermit, ended: watch::Receiver<()>) {
        let id = self.shared.counters.connections.fetch_add(1, Ordering::Relaxed) + 1;
        // Answers are small and complete; waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            Connection::new(stream, id, Arc::clone(&shared)).run(ended).await;
            shared.counters.connections_ended.fetch_add(1, Ordering::Relaxed);
            drop(place);
        });
    }

    /// Says why, if that can be said at once.
    fn refuse(&self, stream: &TcpStream) {
        self.shared.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
        let mut answer = Vec::new();
        reply::error(&mut answer, &"ERR max number of clients reached");
        let _ = stream.try_write(&answer);
    }
}

/// The connections that were taken.
#[derive(Debug)]
pub struct Connections {
    /// Each connection has a receiver until it ends.
    end: watch::Sender<()>,
}

impl Connections {
    /// Ends each connection as soon as it has answers to all that came; is ready when all have ended.
    pub async fn shutdown(self) {
        self.end.send_replace(());
        self.end.closed().await;
    }
}
