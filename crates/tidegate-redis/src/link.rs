//! The way to the server: one connection that all callers share, and a task that makes it anew.
//!
//! A connection that breaks, or that the breaker gave up, is thrown away: an old one can be dead for a quarter of an hour
//! without a sign (a machine that lost its power). The keeper makes the next one and proves that it can decide, by
//! loading the script, before any call is sent over it. No call ever waits for a connection to be made, except those that
//! the server sent away as a replica.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult};
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};

use crate::counters::Counters;
use crate::error::{StoreFault, Why};
use crate::fault::Fault;
use crate::health::{Backoff, Health};
use crate::warning::Warning;

/// The name of the key that says that the store has not lost its keys. It lives for ever, unlike buckets.
const EPOCH: &str = "tidegate:epoch";

/// How often the connection is tried. It also keeps servers and routers from closing it for being idle.
const PING_EVERY: Duration = Duration::from_secs(1);

/// A connection that has the script.
#[derive(Clone)]
pub(crate) struct Up {
    connection: MultiplexedConnection,
    sha: Arc<str>,
    /// Which connection it is.
    number: u64,
}

pub(crate) struct Link {
    client: Client,
    connect_timeout: Duration,
    source: Box<str>,
    up: watch::Sender<Option<Up>>,
    shared: Mutex<Shared>,
    pub(crate) counters: Counters,
}

#[derive(Default)]
struct Shared {
    health: Health,
    /// What the epoch key held.
    epoch: Option<String>,
    warnings: Vec<Warning>,
    last_refusal: Option<Box<str>>,
    /// When the keeper will try next.
    next_try: Option<Instant>,
    /// Whether the next try may be made at once.
    at_once: bool,
}

impl Link {
    pub(crate) fn new(client: Client, connect_timeout: Duration, source: Box<str>) -> Arc<Self> {
        let (up, _) = watch::channel(None);
        let counters = Counters::default();
        Arc::new(Self { client, connect_timeout, source, up, shared: Mutex::default(), counters })
    }

    /// Host and port, or the path of a socket.
    pub(crate) fn address(&self) -> Box<str> {
        self.client.get_connection_info().addr().to_string().into()
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

    pub(crate) fn last_refusal(&self) -> Option<Box<str>> {
        self.shared().last_refusal.clone()
    }

    pub(crate) fn refused(&self, text: &str) {
        self.shared().last_refusal = Some(text.into());
    }

    /// How long until the store is tried again, for those who are told to come back.
    pub(crate) fn until_next_try(&self) -> Duration {
        let next = self.shared().next_try;
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Waits for a connection other than `than`.
    pub(crate) async fn another(&self, than: &Up, deadline: tokio::time::Instant) -> Option<Up> {
        let mut up = self.up.subscribe();
        let other = up.wait_for(|up| up.as_ref().is_some_and(|up| up.number != than.number));
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
        self.up.send_if_modified(|current| {
            let same = current.as_ref().is_some_and(|current| current.number == up.number);
            if same {
                *current = None;
                self.counters.opened.one();
                self.shared().at_once = at_once;
            }
            same
        });
    }

    /// Finds out that a connection died while nobody used it, before a caller does.
    async fn ping(&self, up: &Up) {
        let mut connection = up.connection.clone();
        let ping: Result<RedisResult<()>, _> =
            timeout(self.connect_timeout, redis::cmd("PING").query_async(&mut connection)).await;
        match ping {
            Ok(Err(error)) if Fault::of(&error) == Fault::Broken => self.give_up(up, true),
            Ok(_) => {}
            Err(_) => self.give_up(up, false),
        }
    }

    /// Makes a connection that can decide.
    pub(crate) async fn connect(&self) -> Result<(), StoreFault> {
        let late = StoreFault(Why::Late(self.connect_timeout));
        match timeout(self.connect_timeout, self.prove()).await {
            Ok(result) => result,
            Err(_) => Err(late),
        }
    }

    async fn prove(&self) -> Result<(), StoreFault> {
        // No time-out of its own for replies: every use of the connection has a deadline.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let role: RedisResult<Vec<redis::Value>> = redis::cmd("ROLE").query_async(&mut connection).await;
        // Who may not ask has to trust the server to refuse writes.
        if let Ok(role) = role
            && let Some(redis::Value::BulkString(role)) = role.first()
            && role != b"master"
        {
            return Err(StoreFault(Why::Replica));
        }
        let sha = load(&mut connection, &self.source).await?;
        self.look_at_epoch(&mut connection).await;
        let policy: RedisResult<Vec<String>> =
            redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async(&mut connection).await;
        let warnings = Warning::of(policy.ok().as_ref().and_then(|pair| pair.get(1)).map(String::as_str));
        self.counters.connected.one();
        let mut shared = self.shared();
        shared.warnings = warnings;
        shared.next_try = None;
        shared.health = Health::default();
        drop(shared);
        let number = self.counters.read().connected;
        self.up.send_replace(Some(Up { connection, sha: sha.into(), number }));
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
            let before = self.shared().epoch.replace(epoch.clone());
            if before.is_some_and(|before| before != epoch) {
                self.counters.lost_state.one();
            }
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

impl Up {
    /// Runs a command.
    pub(crate) async fn run(&self, command: &Cmd) -> Result<Vec<i64>, Fault> {
        command.query_async(&mut self.connection.clone()).await.map_err(|error| Fault::of(&error))
    }

    /// Loads the script, which the server has lost.
    pub(crate) async fn load(&self, link: &Link) -> Result<(), Fault> {
        load(&mut self.connection.clone(), &link.source).await.map_err(|error| Fault::of(&error))?;
        link.counters.loads.one();
        Ok(())
    }

    /// Loads another script, and tells its SHA-1.
    pub(crate) async fn load_source(&self, source: &str) -> Result<String, Fault> {
        load(&mut self.connection.clone(), source).await.map_err(|error| Fault::of(&error))
    }

    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

/// `SCRIPT LOAD` and not `EVAL`: since Redis 7.4, scripts that came by `EVAL` are forgotten when there are many.
async fn load(connection: &mut MultiplexedConnection, source: &str) -> Result<String, RedisError> {
    redis::cmd("SCRIPT").arg("LOAD").arg(source).query_async(connection).await
}
