//! The store: where it is, and what its limiters have in common.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::Policy;
use tokio::runtime::Handle;

use crate::address::{Address, Certificates, Login};
use crate::common::{Common, Durability};
use crate::counters::Counters;
use crate::error::Error;
use crate::limiter::SharedLimiter;
use crate::script;
use crate::servers::Servers;
use crate::shield::Shield;
use crate::{OnFailure, Stats, Warning};

/// Redis or Valkey, which keeps buckets, and the connections that all limiters on it share. A clone is the same store.
///
/// It is one server, the primary that sentinels tell, or a cluster. Redis 6.2 or later.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// What limiters need of it.
pub(crate) struct Inner {
    pub(crate) servers: Servers,
    pub(crate) shield: Shield,
    pub(crate) deadline: Duration,
    /// The limiters by name: a name means one set of buckets.
    policies: Mutex<HashMap<Box<str>, Policy>>,
}

/// A store to be, with what can be chosen about it, from [`Store::builder`].
#[must_use = "a store is made by `connect`"]
#[derive(Clone)]
pub struct StoreBuilder {
    url: Box<str>,
    certificates: Certificates,
    sentinel_login: Option<Login>,
    durability: Option<Durability>,
    deadline: Duration,
    connect_timeout: Duration,
    max_waiting: usize,
    remember: Duration,
}

impl Store {
    /// A store at `url`:
    ///
    /// | address | what it is |
    /// | --- | --- |
    /// | `redis://USER:PASSWORD@HOST:PORT/DB` | one server; only the host is needed |
    /// | `redis+sentinel://USER:PASSWORD@HOST,HOST,HOST/NAME/DB` | the primary that these sentinels know by this name; their port is 26379 if none is written |
    /// | `redis+cluster://USER:PASSWORD@HOST,HOST` | a cluster, of which these are some nodes |
    /// | `unix:///PATH?user=USER&pass=PASSWORD&db=DB` | one server, through its socket |
    ///
    /// `rediss` instead of `redis` is TLS, with the feature `tls`, which is on if it is not turned off. Characters with a
    /// meaning in addresses are written in percents in user and password.
    pub fn builder(url: &str) -> StoreBuilder {
        StoreBuilder {
            url: url.into(),
            certificates: Certificates::default(),
            sentinel_login: None,
            durability: None,
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            max_waiting: 4096,
            remember: Duration::from_millis(100),
        }
    }

    /// A limiter by the name of `name` for `policy`, a [`Quota`](tidegate::Quota) for example.
    ///
    /// Every process that gives this name, and this name of a limit, to the same store shares its buckets. All should give
    /// one quota. Where they do not, as while a new one is rolled out, each decision goes by the quota of the process that
    /// asks, and the bucket stays as full in proportion: a change brings no token.
    ///
    /// # Errors
    ///
    /// A limit that is no token bucket, or is too fine to be counted; a name that cannot be part of a key; a name that
    /// this store has with another policy.
    pub fn limiter(
        &self,
        name: &str,
        policy: impl Into<Policy>,
        on_failure: OnFailure,
    ) -> Result<SharedLimiter, Error> {
        SharedLimiter::new(Arc::clone(&self.inner), name, policy.into(), on_failure)
    }

    /// How decisions were made since the store was made, of all its limiters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters().read()
    }

    /// Whether there is a connection: in a cluster, to the primary of every slot. While there is none, every call on it is
    /// answered by [`OnFailure`] at once.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.servers.is_up()
    }

    /// What is wrong with the settings of the servers, as of the last time that a connection was made. Print them.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.inner.servers.warnings()
    }

    /// The text of the last error that the server answered with: a right that is missing, memory that is full.
    #[must_use]
    pub fn last_refusal(&self) -> Option<Box<str>> {
        self.inner.servers.common.last_refusal()
    }
}

impl StoreBuilder {
    /// The time in which every decision is made, by the store or without it; 50 ms if it is not set. 1 ms to 60 s.
    ///
    /// It counts from the call to the answer, whatever happens between: waiting for other calls, a script that has to be
    /// loaded, a server that is asked again. The timer of tokio adds up to 1 ms.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The time in which a connection is made and proved; 1 s if it is not set. 1 ms to 60 s. No decision waits for it.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How many calls may wait to be sent; 4096 if it is not set. The next are answered by [`OnFailure`] at once.
    pub const fn max_waiting(mut self, calls: usize) -> Self {
        self.max_waiting = calls;
        self
    }

    /// For how long at most a rejection is held against later calls on the same bucket without asking the store; 100 ms if it
    /// is not set, and 0 asks for each call.
    ///
    /// It is never longer than the wait that the store told, so nothing is rejected that the store would allow, unless
    /// somebody deletes the bucket or has given it another quota meanwhile.
    pub const fn remember_rejections(mut self, longest: Duration) -> Self {
        self.remember = longest;
        self
    }

    /// The authorities whose certificates are believed, in PEM, instead of those of the system. For `rediss` addresses.
    #[cfg(feature = "tls")]
    pub fn authorities(mut self, pem: &[u8]) -> Self {
        self.certificates.authorities = Some(pem.into());
        self
    }

    /// The certificate and the key, in PEM, by which servers know this client. For `rediss` addresses.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: &[u8], key: &[u8]) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// How to log in to the sentinels, which have users and passwords of their own. Without it, they are asked as they are.
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_login = Some(Login { user: user.map(Into::into), password: password.into() });
        self
    }

    /// Counts a charge only when `replicas` replicas are known to have it, within so many milliseconds as are in `within`;
    /// 1 ms to 60 s, and less than the deadline, to be of use.
    ///
    /// A call that was allowed and that fewer of them have in time is answered by [`OnFailure`], and counted as
    /// [`Stats::unreplicated`]; it is charged all the same. So a failover to one of these replicas forgets no call that was
    /// answered as exact. It costs the trip to the replicas, in which the connection does nothing else (`WAIT`).
    pub const fn wait_for_replicas(mut self, replicas: u32, within: Duration) -> Self {
        self.durability = Some(Durability { replicas, within });
        self
    }

    /// Connects, and makes the store if that works: in a cluster, with the primary of every slot.
    ///
    /// # Errors
    ///
    /// A setting or an address that is not understood, no tokio runtime, or a server that cannot be used now.
    pub async fn connect(self) -> Result<Store, Error> {
        let store = self.make()?;
        if let Err(fault) = store.inner.servers.connect().await {
            return Err(Error::Connect { address: store.inner.servers.address(), fault });
        }
        store.inner.servers.keep(false);
        Ok(store)
    }

    /// Makes the store and connects in the background, for programs that must start without it.
    ///
    /// # Errors
    ///
    /// A setting or an address that is not understood, or no tokio runtime.
    pub fn connect_later(self) -> Result<Store, Error> {
        let store = self.make()?;
        store.inner.servers.keep(true);
        Ok(store)
    }

    fn make(self) -> Result<Store, Error> {
        let within = self.durability.map(|durability| durability.within);
        for (what, value) in [
            ("deadline", Some(self.deadline)),
            ("time to connect", Some(self.connect_timeout)),
            ("time for replicas", within),
        ] {
            if let Some(value) = value
                && !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&value)
            {
                return Err(Error::OutOfRange { what, value, range: "1ms to 60s" });
            }
        }
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let address = Address::parse(&self.url, &self.certificates, self.sentinel_login.as_ref())?;
        let common = Arc::new(Common::new(script::SOURCE, self.connect_timeout, self.durability));
        let inner = Inner {
            servers: Servers::new(address, common, runtime, self.max_waiting)?,
            shield: Shield::new(self.remember),
            deadline: self.deadline,
            policies: Mutex::default(),
        };
        Ok(Store { inner: Arc::new(inner) })
    }
}

impl Inner {
    pub(crate) fn counters(&self) -> &Counters {
        &self.servers.common.counters
    }

    /// Keeps one name for one policy.
    pub(crate) fn register(&self, name: &str, policy: &Policy) -> Result<(), Error> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        if policies.get(name).is_some_and(|known| known != policy) {
            return Err(Error::OtherLimits { name: name.into() });
        }
        policies.insert(name.into(), policy.clone());
        Ok(())
    }
}

impl fmt::Debug for Inner {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("address", &self.servers.address())
            .field("connected", &self.servers.is_up())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreBuilder {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
