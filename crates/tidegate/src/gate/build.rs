//! How a gate is made.

use std::hash::RandomState;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use tidegate_core::algorithm::TokenBucket;
use tidegate_core::queue::{Line, Unsuitable};
use tidegate_core::{Algorithm, Kind, Quota, QuotaError};

use super::asking::{Asker, Named, Sharing, Without};
use super::clock::{BootClock, Time};
use super::shared::Shared;
use super::{Gate, Life};
use crate::clock::{Driven, ManualClock};
use crate::shared::{OnFailure, SharedBuckets, Unsuited, share};

/// How many calls may wait unless the builder says otherwise. With keys and deadlines that is 0.7 MB at most.
const MAX_WAITING: usize = 1024;

/// How long a grant waits for its caller unless the builder says otherwise. An executor that does not come to a woken
/// task for that long makes the task queue again; a forgotten future delays the others by that much.
const COLLECT_WITHIN: Duration = Duration::from_secs(5);

/// Why there is no gate with these limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// A line cannot use them.
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
    /// The shared buckets cannot be of such a limit.
    #[error(transparent)]
    Unsuited(#[from] Unsuited),
    /// Only token buckets are shared.
    #[error("a shared gate has token buckets, and `{kind}` is another algorithm; use `token-bucket`")]
    NotTokenBucket {
        /// What was asked for.
        kind: Kind,
    },
    /// The share for [`OnFailure::Local`] is no quota.
    #[error("the share of one machine is no quota: {0}")]
    Share(#[from] QuotaError),
}

/// What a gate is to be, from [`Gate::builder`].
#[must_use = "`build` makes the gate"]
#[derive(Debug, Clone)]
pub struct Builder {
    quotas: Vec<Quota>,
    kind: Kind,
    max_waiting: usize,
    max_in_flight: NonZeroU64,
    max_wait: Option<Duration>,
    collect_within: Duration,
    clock: Option<ManualClock>,
    shared: Option<SharedWith>,
}

/// What [`Builder::shared`] was given.
#[derive(Debug, Clone)]
struct SharedWith {
    buckets: Arc<dyn SharedBuckets>,
    limit: Box<str>,
    key: Box<[u8]>,
    on_failure: OnFailure,
}

impl Builder {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            quotas: vec![quota],
            kind: Kind::TokenBucket,
            max_waiting: MAX_WAITING,
            max_in_flight: NonZeroU64::MAX,
            max_wait: None,
            collect_within: COLLECT_WITHIN,
            clock: None,
            shared: None,
        }
    }

    /// A further limit: a call waits until all of them allow it, and is charged in each; until then in none.
    /// [`GateCall::also`](super::GateCall::also) says what it costs there. A gate has 4 limits at most.
    pub fn also(mut self, quota: Quota) -> Self {
        self.quotas.push(quota);
        self
    }

    /// Another algorithm than the token bucket, for all limits. Not the leaky bucket, which keeps a queue of its own.
    pub fn algorithm(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// How many calls may wait; 1024 without this. With 0, a call is granted at once or refused; a shared gate refuses
    /// all, as who is asked about waits. Each that waits takes
    /// about 150 bytes beside its future, up to 700 with a key of its own and a deadline.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        Self { max_waiting, ..self }
    }

    /// How many calls may be in flight; without this there is no limit, and each permit that is held takes about 250
    /// bytes.
    pub fn max_in_flight(self, max_in_flight: NonZeroU64) -> Self {
        Self { max_in_flight, ..self }
    }

    /// The longest wait of a call that says nothing else; without this it waits for as long as it takes.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: Some(max_wait), ..self }
    }

    /// How long a grant waits for its caller to be polled before it is taken back; 5 s without this.
    pub fn collect_within(self, collect_within: Duration) -> Self {
        Self { collect_within, ..self }
    }

    /// A clock that is moved by hand, for tests. A shared gate then asks, and looks for the answer, when the clock is moved
    /// (by nothing too) and when something else happens at it.
    pub fn clock(self, clock: &ManualClock) -> Self {
        Self { clock: Some(clock.clone()), ..self }
    }

    /// Takes the tokens from buckets that other processes charge too, those of `key` in the limit of the name `limit`. In the
    /// limits of [`Self::also`] they are `limit-1`, `limit-2` and so on. All gates on them should have the same quotas.
    ///
    /// See the [module](super) for what such a gate promises. `on_failure` says what happens while the buckets do not answer:
    ///
    /// - [`OnFailure::Open`]: who is asked about goes, in order and within the places in flight.
    /// - [`OnFailure::Closed`]: everybody waits, until his deadline or until the buckets answer again.
    /// - [`OnFailure::Local`]: the share of this machine is waited for. A cost above the share waits as if closed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tidegate::shared::{Made, OnFailure, SharedBuckets};
    /// # fn example(buckets: Arc<dyn SharedBuckets>) -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::Gate;
    ///
    /// let gate = Gate::builder("10/s".parse()?).shared(buckets, "calls", "weather-api", OnFailure::Closed).build()?;
    /// let permit = gate.acquire_blocking(1)?;
    /// assert_eq!(permit.made(), Some(Made::Exact));
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(
        self,
        buckets: Arc<dyn SharedBuckets>,
        limit: &str,
        key: impl AsRef<[u8]>,
        on_failure: OnFailure,
    ) -> Self {
        let shared = SharedWith { buckets, limit: limit.into(), key: key.as_ref().into(), on_failure };
        Self { shared: Some(shared), ..self }
    }

    /// Makes the gate, with everything available.
    ///
    /// # Errors
    ///
    /// For the leaky bucket, and for more than 4 limits. Of a shared gate also for any other algorithm than the token bucket,
    /// what the buckets do not accept, and a share that is too slow to be a quota.
    pub fn build(self) -> Result<Gate, GateError> {
        let limits: Vec<_> = self.quotas.iter().map(|quota| Algorithm::new(self.kind, *quota)).collect();
        let mut line = Line::with_limits(&limits, self.max_waiting)?;
        line.set_max_in_flight(self.max_in_flight);
        let time = match &self.clock {
            Some(clock) => Time::Manual(clock.clone()),
            None => Time::Boot(BootClock::new()),
        };
        let collect_within = u64::try_from(self.collect_within.as_nanos()).unwrap_or(u64::MAX);
        let shared = match self.shared {
            None => Arc::new(Shared::new(line, time, collect_within, None)),
            Some(with) => {
                let (limits, without) = with.checked(&limits)?;
                Arc::new_cyclic(|gate| {
                    let waker = Waker::from(Arc::new(Asker(Weak::clone(gate))));
                    let SharedWith { buckets, key, .. } = with;
                    let sharing = Sharing { buckets, limits, key, without, waker };
                    Shared::new(line.asking(), time, collect_within, Some(sharing))
                })
            }
        };
        if let Some(clock) = &self.clock {
            let driven: Weak<dyn Driven> = Arc::<Shared>::downgrade(&shared);
            clock.add(driven);
        }
        Ok(Gate { life: Arc::new(Life { shared }), seed: RandomState::new(), max_wait: self.max_wait })
    }
}

impl SharedWith {
    /// The limits by name, and what happens without the buckets.
    fn checked(&self, algorithms: &[Algorithm]) -> Result<(Vec<Named>, Without), GateError> {
        let mut limits = Vec::new();
        let mut shares = Vec::new();
        for (index, algorithm) in algorithms.iter().enumerate() {
            let Algorithm::TokenBucket(bucket) = algorithm else {
                return Err(GateError::NotTokenBucket { kind: algorithm.kind() });
            };
            let name: Arc<str> = match index {
                0 => (*self.limit).into(),
                also => format!("{}-{also}", self.limit).into(),
            };
            self.buckets.accepts(&name, algorithm)?;
            if let OnFailure::Local { machines, .. } = self.on_failure {
                shares.push(TokenBucket::new(share(bucket, machines)?));
            }
            limits.push((name, *algorithm));
        }
        let without = match self.on_failure {
            OnFailure::Open => Without::Open,
            OnFailure::Closed => Without::Closed,
            OnFailure::Local { .. } => Without::Local(shares),
        };
        Ok((limits, without))
    }
}
