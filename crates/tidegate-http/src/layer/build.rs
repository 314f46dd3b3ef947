//! How a layer is put together.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use http::Extensions;
use tidegate::clock::Clock;
use tidegate::shared::{OnFailure, SharedBuckets, Unsuited};
use tidegate::{Algorithm, Capacity, Kind, LimiterError, Mode, Policy, Quota, QuotaError, WhenFull};

use super::RateLimit;
use super::desk::{CostFn, Desk, ExemptFn, PerKey};
use super::key::{Key, KeyBy, PeerFn, RequestHead, Who, peer_in};
use super::limit::{Change, Entry, LayerClock, Table};
use super::observe::{Observed, ObserverFn};
use super::places::Places;
use super::respond::{IN_FLIGHT, IN_FLIGHT_PER_KEY};
use super::sharing::Sharing;
use crate::fields::{NameError, Unit};
use crate::identity::ClientIdentity;

/// Why a layer cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateLimitError {
    /// The text of a quota is none.
    #[error("limit `{limit}`: {source}")]
    Quota {
        /// The name of the limit.
        limit: Box<str>,
        /// What is wrong with it.
        source: QuotaError,
    },
    /// There is no limiter for a limit.
    #[error("limit `{limit}`: {source}")]
    Limiter {
        /// The name of the limit.
        limit: Box<str>,
        /// What is wrong with it.
        source: LimiterError,
    },
    /// A name cannot be sent.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two limits have one name, or a limit that of a limit in flight.
    #[error("two limits are named `{name}`; give each a name of its own")]
    NameTwice {
        /// The name.
        name: Box<str>,
    },
    /// One key has two quotas of its own in a limit.
    #[error("limit `{limit}` has two quotas for the key `{key}`; take one out")]
    KeyTwice {
        /// The name of the limit.
        limit: Box<str>,
        /// The key.
        key: Box<str>,
    },
    /// More quotas in one limit than can be told apart.
    #[error(
        "limit `{limit}` has {quotas} different quotas, and 256 are the most; give some keys the same one"
    )]
    TooManyQuotas {
        /// The name of the limit.
        limit: Box<str>,
        /// How many there are.
        quotas: usize,
    },
    /// The shared buckets cannot be those of a limit.
    #[error(transparent)]
    Unsuited(#[from] Unsuited),
    /// The share of a limit that one machine would have is no quota.
    #[error("the share of one machine of the limit `{limit}` is no quota: {source}")]
    Share {
        /// The name of the limit.
        limit: Box<str>,
        /// Why.
        #[source]
        source: QuotaError,
    },
    /// Limits of different keys, which the shared buckets cannot decide together.
    #[error(
        "the limits `{limit}` and `{other}` have different keys, and a cluster can decide those of one key only; give \
         them the same key, or share them on one server"
    )]
    KeysApart {
        /// The name of a limit.
        limit: Box<str>,
        /// That of another.
        other: Box<str>,
    },
    /// Nothing is limited.
    #[error("a layer needs a limit; add one with `limit` or `max_in_flight`")]
    NoLimit,
    /// No request could ever run.
    #[error("no request could run with 0 places in flight; write at least 1, or leave that limit out")]
    NoPlaces,
}

/// What a limit can be made from: a [`Quota`], its text such as `10/s burst 20`, or an [`Algorithm`].
///
/// A quota means a token bucket.
pub trait IntoAlgorithm: sealed::IntoAlgorithm {}

impl<T: sealed::IntoAlgorithm> IntoAlgorithm for T {}

mod sealed {
    use super::{Algorithm, Kind, Quota, QuotaError};

    #[expect(unnameable_types, reason = "nobody else can implement it")]
    pub trait IntoAlgorithm {
        /// The algorithm, and how people call it.
        fn into_algorithm(self) -> Result<(Algorithm, Box<str>), QuotaError>;
    }

    impl IntoAlgorithm for Algorithm {
        fn into_algorithm(self) -> Result<(Algorithm, Box<str>), QuotaError> {
            Ok((self, self.kind().name().into()))
        }
    }

    impl IntoAlgorithm for Quota {
        fn into_algorithm(self) -> Result<(Algorithm, Box<str>), QuotaError> {
            Ok((Algorithm::new(Kind::TokenBucket, self), self.to_string().into()))
        }
    }

    impl IntoAlgorithm for &str {
        fn into_algorithm(self) -> Result<(Algorithm, Box<str>), QuotaError> {
            self.parse::<Quota>()?.into_algorithm()
        }
    }
}

/// One limit of a layer: a name, a quota, and what requests count against it.
///
/// ```
/// use tidegate_http::{KeyBy, RateLimit, RequestLimit};
///
/// let layer = RateLimit::builder()
///     .limit(RequestLimit::new("per-client", "10/s burst 20"))
///     .limit(RequestLimit::new("searches", "100/min").key(KeyBy::everyone()).cost(|head| {
///         u64::from(head.uri().path() == "/search")
///     }))
///     .build()?;
/// # Ok::<(), tidegate_http::RateLimitError>(())
/// ```
pub struct RequestLimit {
    pub(super) name: Box<str>,
    pub(super) algorithm: Result<(Algorithm, Box<str>), QuotaError>,
    pub(super) overrides: Vec<(Key<'static>, Quota)>,
    pub(super) by: KeyBy,
    pub(super) cost: Option<CostFn>,
    pub(super) unit: Unit,
    pub(super) mode: Mode,
    pub(super) capacity: Capacity,
    pub(super) when_full: WhenFull,
    pub(super) shown_max: Option<u64>,
}

impl RequestLimit {
    /// A limit for each client of 1 for each request. The name is sent to clients. A text that is no quota is an error
    /// of [`RateLimitBuilder::build`].
    #[must_use]
    pub fn new(name: &str, quota: impl IntoAlgorithm) -> Self {
        Self {
            name: name.into(),
            algorithm: quota.into_algorithm(),
            overrides: Vec::new(),
            by: KeyBy::client(),
            cost: None,
            unit: Unit::Requests,
            mode: Mode::Enforce,
            capacity: Capacity::Keys(65_536),
            when_full: WhenFull::default(),
            shown_max: None,
        }
    }

    /// Whose limit it is; [`KeyBy::client`] when it is not said.
    #[must_use]
    pub fn key(self, by: KeyBy) -> Self {
        Self { by, ..self }
    }

    /// Another quota for one key; it can be said for several keys, with up to 255 different quotas. The algorithm is that of
    /// the limit.
    ///
    /// ```
    /// use tidegate_http::layer::Key;
    /// use tidegate_http::{KeyBy, RequestLimit};
    ///
    /// let limit = RequestLimit::new("per-account", "10/s")
    ///     .key(KeyBy::header("x-account"))
    ///     .quota_for(Key::from("ann"), "100/s burst 200".parse()?);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn quota_for(mut self, key: Key<'static>, quota: Quota) -> Self {
        self.overrides.push((key, quota));
        self
    }

    /// What a request costs; 1 when it is not said. A request of cost 0 takes nothing from this limit, and passes it
    /// however empty it is.
    #[must_use]
    pub fn cost<F>(self, cost: F) -> Self
    where
        F: for<'a> Fn(RequestHead<'a>) -> u64 + Send + Sync + 'static,
    {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// What the cost counts, for the response fields; requests when it is not said.
    #[must_use]
    pub fn unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// It is decided, counted and shown in the response fields, and refuses nothing: to try it on live requests.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { mode: Mode::Shadow, ..self }
    }

    /// How many keys it has room for, 65,536 when it is not said: those that have spent something lately. See
    /// [`Limiter::new`](tidegate::Limiter::new) for the memory.
    #[must_use]
    pub fn capacity(self, capacity: impl Into<Capacity>) -> Self {
        Self { capacity: capacity.into(), ..self }
    }

    /// What happens to a newcomer when there is no room; by default the key that is nearest to a full bucket is forgotten.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// The most that `RateLimit` shows as left. A client that is shown all of a large burst may send it at once; the limit
    /// allows that, whatever is shown.
    #[must_use]
    pub fn show_at_most(self, remaining: u64) -> Self {
        Self { shown_max: Some(remaining), ..self }
    }
}

impl fmt::Debug for RequestLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLimit")
            .field("name", &self.name)
            .field("algorithm", &self.algorithm)
            .field("key", &self.by)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A layer under construction, from [`RateLimit::builder`].
pub struct RateLimitBuilder {
    limits: Vec<RequestLimit>,
    max_in_flight: Option<u64>,
    per_key: Option<(KeyBy, u64)>,
    identity: ClientIdentity,
    peer: PeerFn,
    exempt: Option<ExemptFn>,
    preflights_count: bool,
    fields: bool,
    legacy_fields: bool,
    observer: Option<ObserverFn>,
    takes_back: bool,
    clock: Option<Clock>,
    sharing: Option<Sharing>,
}

impl RateLimitBuilder {
    pub(super) fn new() -> Self {
        Self {
            limits: Vec::new(),
            max_in_flight: None,
            per_key: None,
            identity: ClientIdentity::new(),
            peer: Arc::new(peer_in),
            exempt: None,
            preflights_count: false,
            fields: true,
            legacy_fields: false,
            observer: None,
            takes_back: false,
            clock: None,
            sharing: None,
        }
    }

    /// One more limit. A request is charged in all of them, or in none.
    #[must_use]
    pub fn limit(mut self, limit: RequestLimit) -> Self {
        self.limits.push(limit);
        self
    }

    /// How many requests may be in flight in all: beyond it they are shed, with 503. See [`RateLimit`] for when a request
    /// has ended.
    #[must_use]
    pub fn max_in_flight(self, max: u64) -> Self {
        Self { max_in_flight: Some(max), ..self }
    }

    /// How many requests of each key may be in flight: beyond it they are rejected, with 429.
    #[must_use]
    pub fn max_in_flight_per_key(self, key: KeyBy, max: u64) -> Self {
        Self { per_key: Some((key, max)), ..self }
    }

    /// How to tell the client behind proxies; by default the peer is the client.
    #[must_use]
    pub fn identity(self, identity: ClientIdentity) -> Self {
        Self { identity, ..self }
    }

    /// Where the address of the peer is, if not where [`KeyBy::client`] looks: for tonic its `TcpConnectInfo`, say.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tidegate_http::{RateLimit, RequestLimit};
    ///
    /// #[derive(Clone)]
    /// struct MyPeer(IpAddr);
    /// let layer = RateLimit::builder()
    ///     .limit(RequestLimit::new("per-client", "10/s burst 20"))
    ///     .peer(|extensions| extensions.get::<MyPeer>().map(|peer| peer.0))
    ///     .build()?;
    /// # Ok::<(), tidegate_http::RateLimitError>(())
    /// ```
    #[must_use]
    pub fn peer(self, peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { peer: Arc::new(peer), ..self }
    }

    /// Requests that pass without being decided, such as health checks.
    #[must_use]
    pub fn exempt<F>(self, exempt: F) -> Self
    where
        F: for<'a> Fn(RequestHead<'a>) -> bool + Send + Sync + 'static,
    {
        Self { exempt: Some(Arc::new(exempt)), ..self }
    }

    /// Decides CORS preflights like other requests. By default they pass: a browser asks before a request that will be
    /// decided itself, and does not tell its page why a preflight was rejected. A preflight is what has the method OPTIONS,
    /// an `Origin` and an `Access-Control-Request-Method`; anybody can send one, so it should be cheap to answer.
    #[must_use]
    pub fn count_preflights(self) -> Self {
        Self { preflights_count: true, ..self }
    }

    /// Whether responses carry `RateLimit` and `RateLimit-Policy`; they do when it is not said.
    #[must_use]
    pub fn fields(self, fields: bool) -> Self {
        Self { fields, ..self }
    }

    /// Whether responses carry `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds from now until all is there), of the
    /// limit that binds; they do not when it is not said. Those that a response has already stay.
    #[must_use]
    pub fn legacy_fields(self, legacy_fields: bool) -> Self {
        Self { legacy_fields, ..self }
    }

    /// Takes back what a request was charged whose response is marked as [`NotServed`](super::NotServed), as from a proxy
    /// whose service is down. It takes some 50 ns for a request that is allowed, so it is not done when it is not said.
    #[must_use]
    pub fn take_back_not_served(self) -> Self {
        Self { takes_back: true, ..self }
    }

    /// A function that is told of each decision, for metrics and logs, in the thread that decides and before the request
    /// goes on: it should be quick, and should not call this layer. Requests that are exempt are not decided.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use tidegate_http::RateLimit;
    /// use tidegate_http::RequestLimit;
    ///
    /// let slow = Arc::new(AtomicU64::new(0));
    /// let counter = Arc::clone(&slow);
    /// let layer = RateLimit::builder()
    ///     .limit(RequestLimit::new("per-client", "10/s"))
    ///     .observe(move |seen| {
    ///         if seen.took().as_micros() > 100 {
    ///             counter.fetch_add(1, Ordering::Relaxed);
    ///         }
    ///     })
    ///     .build()?;
    /// # Ok::<(), tidegate_http::RateLimitError>(())
    /// ```
    #[must_use]
    pub fn observe(self, observer: impl for<'a> Fn(&Observed<'a>) + Send + Sync + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Where the time comes from, a [`ManualClock`](tidegate::clock::ManualClock) for example. When it is not said: a clock
    /// of its own; windows begin with the minutes and hours of the wall clock (UTC).
    #[must_use]
    pub fn clock(self, clock: impl Into<Clock>) -> Self {
        Self { clock: Some(clock.into()), ..self }
    }

    /// Decides by buckets that other processes share, such as `StoreBuckets` of `tidegate-redis`, in the place of tables of
    /// this process, and as `on_failure` says when they do not answer.
    ///
    /// All limits have to be token buckets. Where the buckets do not [span keys](SharedBuckets::spans_keys), all limits need
    /// the same key. A request is charged in all limits or in none, as ever.
    ///
    /// - Places in flight are those of this process, as they are without it. A request has them while it is decided.
    /// - With [`OnFailure::Closed`] a request is answered 503 with `Retry-After`.
    /// - With [`OnFailure::Local`] each limit has a table for as many keys as that says, and else none to speak of.
    /// - What was not served is not taken back, and [`RateLimit::level`] knows nothing.
    /// - The service inside is cloned for each request, and called when it was decided.
    #[must_use]
    pub fn shared(self, buckets: Arc<dyn SharedBuckets>, on_failure: OnFailure) -> Self {
        Self { sharing: Some(Sharing { buckets, on_failure }), ..self }
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// A text that is no quota; a name or a key that is there twice; a name that is not printable ASCII; nothing that is
    /// limited; no places; a limit that shared buckets cannot have.
    pub fn build(self) -> Result<RateLimit, RateLimitError> {
        Ok(RateLimit::of(self.desk(None)?.0))
    }

    /// Where the layer decides, with the tables of `previous` for limits that are still there, and what is to be changed in
    /// them.
    pub(super) fn desk(self, previous: Option<&Desk>) -> Result<(Desk, Vec<Vec<Change>>), RateLimitError> {
        let places = |max: u64| NonZeroU64::new(max).ok_or(RateLimitError::NoPlaces);
        let max_in_flight = self.max_in_flight.map(places).transpose()?;
        let per_key = self.per_key.map(|(by, max)| Ok::<_, RateLimitError>(PerKey { by, max: places(max)? }));
        let per_key = per_key.transpose()?;
        if self.limits.is_empty() && max_in_flight.is_none() && per_key.is_none() {
            return Err(RateLimitError::NoLimit);
        }

        let clock = previous.map_or_else(|| LayerClock::new(self.clock), |desk| desk.clock.clone());
        let table = self.sharing.as_ref().map_or(Table::Decides, Sharing::table);
        let (mut entries, mut changes) = (Vec::new(), Vec::new());
        let mut names = vec![Box::from(IN_FLIGHT), Box::from(IN_FLIGHT_PER_KEY)];
        for limit in self.limits {
            if names.contains(&limit.name) {
                return Err(RateLimitError::NameTwice { name: limit.name });
            }
            names.push(limit.name.clone());
            let old = previous.and_then(|desk| desk.limit(&limit.name));
            let (entry, change) = Entry::new(limit, old, table, &clock)?;
            entries.push(entry);
            changes.push(change);
        }
        if let Some(sharing) = &self.sharing {
            sharing.accepts(&entries)?;
        }
        let max_per_key = per_key.as_ref().map(|per_key| per_key.max);
        let places = match previous {
            Some(desk) => Arc::clone(&desk.places),
            None => Arc::new(Places::new(max_in_flight, max_per_key)),
        };
        let mut desk = Desk {
            policy: Policy::new(entries.iter().map(Entry::as_limit).collect()),
            limits: entries.into(),
            clock,
            who: Who { identity: self.identity, peer: self.peer },
            places,
            max_in_flight,
            per_key,
            exempt: self.exempt,
            preflights_count: self.preflights_count,
            policy_field: None,
            legacy_fields: self.legacy_fields,
            observer: self.observer,
            takes_back: self.takes_back && self.sharing.is_none(),
            sharing: self.sharing,
            counters: previous.map(|desk| Arc::clone(&desk.counters)).unwrap_or_default(),
        };
        desk.policy_field = desk.advertised(|_| 0).filter(|_| self.fields);
        Ok((desk, changes))
    }
}

impl fmt::Debug for RateLimitBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBuilder")
            .field("limits", &self.limits)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_in_flight_per_key", &self.per_key)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
