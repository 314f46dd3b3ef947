//! How a layer is put together.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use http::Extensions;
use tidegate::clock::Clock;
use tidegate::{
    Algorithm, Capacity, Kind, Limit, Limiter, LimiterError, Mode, Policy, Quota, QuotaError, WhenFull,
};

use super::RateLimit;
use super::desk::{CostFn, Desk, Entry, ExemptFn, PerKey};
use super::key::{KeyBy, PeerFn, RequestHead, Who, peer_in};
use super::observe::{Observed, ObserverFn};
use super::places::Places;
use super::respond::{IN_FLIGHT, IN_FLIGHT_PER_KEY};
use super::shape::Shape;
use crate::fields::{NameError, PolicyItem, Unit, quoted, write_policy};
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
    name: Box<str>,
    algorithm: Result<(Algorithm, Box<str>), QuotaError>,
    by: KeyBy,
    cost: Option<CostFn>,
    unit: Unit,
    mode: Mode,
    capacity: Capacity,
    when_full: WhenFull,
    shown_max: Option<u64>,
}

impl RequestLimit {
    /// A limit for each client of 1 for each request. The name is sent to clients. A text that is no quota is an error
    /// of [`RateLimitBuilder::build`].
    #[must_use]
    pub fn new(name: &str, quota: impl IntoAlgorithm) -> Self {
        Self {
            name: name.into(),
            algorithm: quota.into_algorithm(),
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
    /// [`Limiter::new`] for the memory.
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
    clock: Option<Clock>,
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
            clock: None,
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
    /// of its own; that of the Unix epoch if a limit has windows, so that they begin with the minutes and hours (UTC).
    #[must_use]
    pub fn clock(self, clock: impl Into<Clock>) -> Self {
        Self { clock: Some(clock.into()), ..self }
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// A text that is no quota; a name that is there twice or is not printable ASCII; nothing that is limited; no places.
    pub fn build(self) -> Result<RateLimit, RateLimitError> {
        let places = |max: u64| NonZeroU64::new(max).ok_or(RateLimitError::NoPlaces);
        let max_in_flight = self.max_in_flight.map(places).transpose()?;
        let per_key = self.per_key.map(|(by, max)| Ok::<_, RateLimitError>(PerKey { by, max: places(max)? }));
        let per_key = per_key.transpose()?;
        if self.limits.is_empty() && max_in_flight.is_none() && per_key.is_none() {
            return Err(RateLimitError::NoLimit);
        }

        let clock = self.clock.unwrap_or_else(|| clock_for(&self.limits));
        let (mut entries, mut named, mut advertised) = (Vec::new(), Vec::new(), Vec::new());
        let mut names = vec![Box::from(IN_FLIGHT), Box::from(IN_FLIGHT_PER_KEY)];
        for limit in self.limits {
            if names.contains(&limit.name) {
                return Err(RateLimitError::NameTwice { name: limit.name });
            }
            names.push(limit.name.clone());
            let unit = limit.unit.clone();
            let (entry, algorithm, mode) = entry(limit, &clock)?;
            if let Some(shape) = &entry.shape {
                let window_seconds = NonZeroU64::new(shape.window_seconds);
                advertised.push(PolicyItem {
                    window_seconds,
                    unit,
                    ..PolicyItem::new(&entry.name, shape.capacity)
                });
            }
            named.push(Limit { name: (*entry.name).into(), algorithm, mode });
            entries.push(entry);
        }
        if let Some(per_key) = &per_key {
            let item = PolicyItem::new(IN_FLIGHT_PER_KEY, per_key.max.get());
            advertised.push(PolicyItem { unit: Unit::ConcurrentRequests, ..item });
        }
        let policy_field = write_policy(&advertised)?;
        let places = Places::new(max_in_flight, per_key.as_ref().map(|per_key| per_key.max));
        Ok(RateLimit::of(Desk {
            limits: entries.into(),
            policy: Policy::new(named),
            clock,
            who: Who { identity: self.identity, peer: self.peer },
            places: Arc::new(places),
            max_in_flight,
            per_key,
            exempt: self.exempt,
            preflights_count: self.preflights_count,
            policy_field: (self.fields && !advertised.is_empty()).then_some(policy_field),
            legacy_fields: self.legacy_fields,
            observer: self.observer,
            counters: Default::default(),
        }))
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

/// Buckets do not ask what time it is; windows begin with that of the wall clock.
fn clock_for(limits: &[RequestLimit]) -> Clock {
    let has_windows = |limit: &RequestLimit| match &limit.algorithm {
        Ok((algorithm, _)) => matches!(algorithm.kind(), Kind::FixedWindow | Kind::SlidingWindow),
        Err(_) => false,
    };
    if limits.iter().any(has_windows) { Clock::unix() } else { Clock::new() }
}

fn entry(limit: RequestLimit, clock: &Clock) -> Result<(Entry, Algorithm, Mode), RateLimitError> {
    let name = limit.name;
    let (algorithm, label) =
        limit.algorithm.map_err(|source| RateLimitError::Quota { limit: name.clone(), source })?;
    // The mode is kept here and not in the limiter, which decides about this one limit only.
    let limiter = Limiter::builder(algorithm)
        .capacity(limit.capacity)
        .when_full(limit.when_full)
        .clock(clock.clone())
        .build()
        .map_err(|source| RateLimitError::Limiter { limit: name.clone(), source })?;
    let entry = Entry {
        quoted: quoted(&name)?,
        name: Arc::from(name),
        label,
        limiter,
        by: limit.by,
        cost: limit.cost,
        shape: Shape::of(&algorithm, limit.shown_max),
    };
    Ok((entry, algorithm, limit.mode))
}
