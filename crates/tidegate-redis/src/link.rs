//! The way to the server: one connection that all callers share, and a task that makes it anew.
//!
//! A connection that breaks, or that the breaker gave up, is thrown away: an old one can be dead for a quarter of an hour
//! without a sign (a machine that lost its power). The keeper makes the next one and proves that it can decide, by
//! loading the script, before any call is sent over it. No call ever waits for a connection to be made, except those that
//! the server sent away as a replica, or to a node of a cluster that was not known.
//!
//! Behind sentinels, the keeper asks them where the primary is before it connects, and again every second while it is
//! connected: a primary that was cut off from them does not know that there is another.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};

use crate::common::Common;
use crate::error::{StoreFault, Why};
use crate::fault::Fault;
use crate::health::{Backoff, Health};
use crate::sentinel::Sentinels;
use crate::up::{Up, load, open};
use crate::warning::Warning;

/// The name of the key that says that the store has not lost its keys. It lives for ever, unlike buckets.
const EPOCH: &str = "tidegate:epoch";

/// How often the connection is tried. It also keeps servers and routers from closing it for being idle.
const PING_EVERY: Duration = Duration::from_secs(1);

/// Where the server of a link is.
pub(crate) enum Place {
    Fixed(ConnectionInfo),
    Told(Sentinels),
}

pub(crate) struct Link {
    place: Place,
    up: watch::Sender<Option<Up>>,
    /// Told when a connection is lost.
    lost: Option<watch::Sender<()>>,
    shared: Mutex<Shared>,
    pub(crate) common: Arc<Common>,
}

#[derive(Default)]
struct Shared {
    health: Health,
    /// How many connections there were.
    connected: u64,
    /// Why the last one was not made.
    fault: Option<StoreFault>,
    warnings: Vec<Warning>,
    /// When the keeper will try next.
    next_try: Option<Instant>,
    /// Whether the next try may be made at once.
    at_once: bool,
}

impl Link {
    pub(crate) fn new(place: Place, common: Arc<Common>, lost: Option<watch::Sender<()>>) -> Arc<Self> {
        let (up, _) = watch::channel(None);
        Arc::new(Self { place, up, lost, shared: Mutex::default(), common })
    }

    /// Host and port, the path of a socket, or the name of the primary and its sentinels.
    pub(crate) fn address(&self) -> Box<str> {
        match &self.place {
            Place::Fixed(info) => info.addr().to_string().into(),
            Place::Told(sentinels) => sentinels.address(),
        }
    }

    /// How to connect to it, if that is fixed.
    pub(crate) fn info(&self) -> Option<&ConnectionInfo> {
        match &self.place {
            Place::Fixed(info) => Some(info),
            Place::Told(_) => None,
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn up(&self) -> Option<Up> {
        self.up.borrow().clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.borrow().is_some()
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        self.shared().warnings.clone()
    }

    pub(crate) fn last_fault(&self) -> Option<StoreFault> {
        self.shared().fault.clone()
    }

    /// How long until the store is tried again, for those who are told to come back.
    pub(crate) fn until_next_try(&self) -> Duration {
        let next = self.shared().next_try;
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Waits for a connection other than `than`.
    pub(crate) async fn another(&self, than: Option<&Up>, deadline: tokio::time::Instant) -> Option<Up> {
        let than = than.map(|than| than.number);
        let mut up = self.up.subscribe();
        let other = up.wait_for(|up| up.as_ref().is_some_and(|up| Some(up.number) != than));
        timeout_at(deadline, other).await.ok()?.ok()?.clone()
    }

    /// The next connection is not waited for.
    pub(crate) fn try_at_once(&self) {
        self.shared().at_once = true;
    }

    /// A script was answered, whatever the answer.
    pub(crate) fn answered(&self) {
        self.shared().health.answered(Instant::now());
    }

    /// A script was not answered in time.
    pub(crate) fn late(&self, up: &Up) {
        if self.shared().health.late(Instant::now()) {
            self.give_up(up, false);
        }
    }

    /// The connection is of no use: broken, or to a replica. The next is tried at once.
    pub(crate) fn broken(&self, up: &Up) {
        self.give_up(up, true);
    }

    fn give_up(&self, up: &Up, at_once: bool) {
        // Many callers may report one connection; the next one is not theirs to give up.
        let lost = self.up.send_if_modified(|current| {
            let same = current.as_ref().is_some_and(|current| current.number == up.number);
            if same {
                *current = None;
                self.common.counters.opened.one();
                self.shared().at_once = at_once;
            }
            same
        });
        if lost && let Some(told) = &self.lost {
            told.send_replace(());
        }
    }

    /// Finds out that a connection died while nobody used it, before a caller does.
    async fn ping(&self, up: &Up) {
        let mut connection = up.connection.clone();
        let ping: Result<RedisResult<()>, _> =
            timeout(self.common.connect_timeout, redis::cmd("PING").query_async(&mut connection)).await;
        match ping {
            Ok(Err(error)) if Fault::of(&error) == Fault::Broken => return self.give_up(up, true),
            Ok(_) => {}
            Err(_) => return self.give_up(up, false),
        }
        // Sentinels that cannot be asked say nothing against a primary that works.
        if let Place::Told(sentinels) = &self.place
            && let Ok(primary) = sentinels.primary(self.common.connect_timeout).await
            && primary.addr().to_string() != *up.address
        {
            self.give_up(up, true);
        }
    }

    /// Makes a connection that can decide.
    pub(crate) async fn connect(&self) -> Result<(), StoreFault> {
        let late = StoreFault(Why::Late(self.common.connect_timeout));
        let proved = timeout(self.common.connect_timeout, self.prove()).await.unwrap_or(Err(late));
        self.shared().fault = proved.as_ref().err().cloned();
        proved
    }

    async fn prove(&self) -> Result<(), StoreFault> {
        let info = match &self.place {
            Place::Fixed(info) => info.clone(),
            // Half of the time, so that some is left for the primary if a sentinel does not answer.
            Place::Told(sentinels) => sentinels.primary(self.common.connect_timeout / 2).await?,
        };
        let address = info.addr().to_string().into();
        let mut connection = open(info, self.common.connect_timeout).await?;
        let role: RedisResult<Vec<Value>> = redis::cmd("ROLE").query_async(&mut connection).await;
        // Who may not ask has to trust the server to refuse writes.
        if let Ok(role) = role
            && let Some(Value::BulkString(role)) = role.first()
            && role != b"master"
        {
            return Err(StoreFault(Why::Replica));
        }
        let sha = load(&mut connection, &self.common.source).await?;
        self.look_at_epoch(&mut connection).await;
        let policy: RedisResult<Vec<String>> =
            redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async(&mut connection).await;
        let warnings = Warning::of(policy.ok().as_ref().and_then(|pair| pair.get(1)).map(String::as_str));
        self.common.counters.connected.one();
        let mut shared = self.shared();
        shared.connected += 1;
        let number = shared.connected;
        shared.warnings = warnings;
        shared.next_try = None;
        shared.health = Health::default();
        drop(shared);
        self.up.send_replace(Some(Up { connection, sha: sha.into(), number, address }));
        Ok(())
    }

    /// Counts when the store has lost its keys since this process last saw it. Where this key may not be written it is not
    /// known, and limits work all the same.
    async fn look_at_epoch(&self, connection: &mut MultiplexedConnection) {
        let fresh = format!("{:016x}", RandomState::new().hash_one(0));
        let set: RedisResult<()> =
            redis::cmd("SET").arg(EPOCH).arg(&fresh).arg("NX").query_async(connection).await;
        let epoch: RedisResult<String> = redis::cmd("GET").arg(EPOCH).query_async(connection).await;
        if let (Ok(()), Ok(epoch)) = (set, epoch) {
            self.common.epoch(&epoch);
        }
    }

    /// Makes connections until the store is dropped. Starts with one if there is none.
    pub(crate) async fn keep(link: Weak<Self>) {
        loop {
            // Only a weak reference is held while it waits, so that the last user ends the task.
            let Some(lost) = link.upgrade() else { return };
            if let Some(now) = lost.up() {
                let mut up = lost.up.subscribe();
                drop(lost);
                let lost = up.wait_for(Option::is_none);
                match timeout(PING_EVERY, lost).await.map(|lost| lost.map(drop)) {
                    // The store is gone.
                    Ok(Err(_)) => return,
                    Ok(Ok(_)) => {}
                    Err(_) => {
                        let Some(link) = link.upgrade() else { return };
                        link.ping(&now).await;
                    }
                }
                continue;
            }
            let mut at_once = std::mem::take(&mut lost.shared().at_once);
            drop(lost);
            let mut backoff = Backoff::new();
            loop {
                if !std::mem::take(&mut at_once) {
                    let wait = backoff.wait();
                    let Some(link) = link.upgrade() else { return };
                    link.shared().next_try = Some(Instant::now() + wait);
                    drop(link);
                    tokio::time::sleep(wait).await;
                }
                let Some(link) = link.upgrade() else { return };
                if link.connect().await.is_ok() {
                    break;
                }
            }
        }
    }
}
