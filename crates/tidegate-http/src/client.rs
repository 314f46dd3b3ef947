//! Outgoing calls: paced, with the server's word obeyed, and sent again where that does no harm.
//!
//! ```text
//!              +------------------------------- retry, after a backoff --------------------------+
//!              v                                                                                 |
//! call -> turn in the gate -> attempt -> answer -> what it tells closes the gate for all -> sent again?
//!           |     (a place in flight)                                                            |
//!   refused: error `NotSent`                                       no: the answer, with a `Report`, or the error
//! ```
//!
//! [`Pace`] is a tower [`Layer`](tower_layer::Layer), and with the feature `reqwest` also a middleware of a reqwest client.
//! All that share its [`Gate`] share one budget.
//!
//! **Every attempt** takes its turn in the gate and pays its cost, so retries never exceed the quota, and there is no budget of
//! retries beside it. A call that was sent before goes before those that were not (it has priority 1 in the gate, and they 0),
//! so that it is not overtaken by all who came since.
//!
//! **A place in flight** is held until the body of the answer has ended, has failed or is dropped. Before a backoff it is
//! free.
//!
//! **Every answer** is read for what it tells (see [`hint`](crate::hint)), successes too, and closes the gate for all: those
//! that wait go on waiting, and those that cannot wait as long are refused at once. The closing is up to a tenth and at most
//! ten seconds longer than what was told, so that many processes do not come back together; never shorter, but for
//! what is above [`CEILING`](crate::hint::CEILING). What a redirect or a 202 instructs is about that one thing and closes
//! nothing.
//!
//! **Bodies** are read ahead only if they are JSON, not encoded, at most [`BODY_MAX`](crate::hint::BODY_MAX) long, and those
//! of errors; with [`PaceBuilder::read_successes`] those of successes as well, which GraphQL needs. A body that does not come
//! within 2 s is not waited for. The caller gets all of it in any case; streams of events are never held up.
//!
//! **What is sent again.** A 429 says that the call was not run (RFC 6585), and so it is sent again whatever its method; the
//! same holds for a 403 that tells a limit (GitHub) and for a refusal in the body of a success (Shopify). A 5xx, a 408 or a
//! lost connection leaves open if the call ran: it is sent again only if it is idempotent, by its method (RFC 9110 9.2.2), an
//! `Idempotency-Key`, [`PaceBuilder::idempotent`] or [`CallOptions`]. Nothing is sent again once the caller has the head of
//! an answer, nor if the answer forbids it: `x-should-retry: false`, no quota left to buy from, a cost that can never be
//! had. For other rules, put a layer of your own around or inside.
//!
//! **When.** Where the server told a wait, that is waited for. Otherwise, and beside it from the second refusal on, the
//! backoff is uniform between 0 and 0.5 s, 1 s, 2 s, … 30 s. So `Retry-After: 0` is obeyed once and does not make a loop.
//!
//! **The deadline** bounds when the last attempt may *start*. Where a told wait, a backoff or the turn in the gate is certain
//! to come later, the call ends at once: with the last answer, so that its status and body can be read, and in its
//! extensions a [`Report`] that says why; or, if nothing was sent, with a [`NotSent`] that says for how long and who told so.
//! An attempt that runs is not cut off: what it may take is for a timeout inside, and for all of it a timeout around the
//! layer, since a call that is dropped leaves nothing behind.
//!
//! **Not sent** is a call that was dropped while it waited, or whose connection did not come about where that is known
//! (reqwest, [`PaceBuilder::failure`]). It costs nothing: the tokens are back as if it had not been.
//!
//! # What it does not do
//!
//! One layer has one budget; calls to several, as Slack's methods or Discord's buckets are, need one layer each. It lowers no
//! limit in flight when a server complains of too many at once: [`PaceBuilder::observe`] gets the [`Hint`], and
//! [`Gate::set_max_in_flight`] does it. Trailers are passed on and not read, so of gRPC it knows the answers that are heads
//! only. It needs the timers of tokio.

mod body;
mod call;
mod head;
mod policy;
mod report;
#[cfg(feature = "reqwest")]
mod reqwest;
mod service;

use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use tidegate::Gate;
use tidegate::gate::Cost;

pub use self::body::PacedBody;
use self::call::Shared;
pub use self::head::{CallHead, CallOptions};
use self::policy::Policy;
pub use self::policy::{Failure, Verdict};
pub use self::report::{CallError, NotSent, Report, Stopped, Told};
pub use self::service::{Cloned, Once, PaceService, RepeatBody};
use crate::hint::Hint;
use crate::hint::profile::Profile;

/// How late after its begin a call may be sent last, unless the builder says otherwise: 2 min, which is the reset of a
/// quota a minute and as much again. With twice as much, a program seems to hang for four minutes at most.
const DEADLINE: Duration = Duration::from_mins(2);

/// How often a call is sent at most, unless the builder says otherwise. The backoffs between five attempts are 3.75 s
/// on average; each attempt more doubles the last of them.
const MAX_ATTEMPTS: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// The longest backoff after the first attempt, unless the builder says otherwise. Doubling it doubles all of them.
const BACKOFF: Duration = Duration::from_millis(500);

/// The longest backoff of all, unless the builder says otherwise. It matters from the eighth attempt on.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

type CostFn = Box<dyn Fn(CallHead<'_>) -> Cost + Send + Sync>;
type IdempotentFn = Box<dyn Fn(CallHead<'_>) -> bool + Send + Sync>;
type FailureFn = Box<dyn Fn(&dyn Any) -> Failure + Send + Sync>;
type ObserveFn = Box<dyn Fn(&Attempt<'_>) + Send + Sync>;

/// Paces outgoing calls: a tower [`Layer`](tower_layer::Layer), and with the feature `reqwest` a middleware. Clones share
/// one state.
///
/// See the [module](self) for what is sent again and when. `R` says how the body of a request is had again: without a word
/// it is cloned. Where it cannot be, see [`PaceBuilder::repeat_body`].
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tidegate::Gate;
/// use tidegate_http::client::{Pace, Report};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// // A server that refuses the first call.
/// let calls = std::sync::atomic::AtomicU32::new(0);
/// let calls: &_ = Box::leak(Box::new(calls));
/// let server = service_fn(async move |_: Request<String>| {
///     let first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
///     let response = Response::builder().status(if first { 429 } else { 200 });
///     let response = if first { response.header("retry-after-ms", "20") } else { response };
///     Ok::<_, Infallible>(response.body(Full::new(bytes::Bytes::from("hello"))).unwrap())
/// });
///
/// let gate = Gate::new("10/s".parse().unwrap());
/// let client = Pace::new(gate).layer(server);
/// let request = Request::post("http://127.0.0.1/v1/messages").body("hi".to_owned()).unwrap();
/// let response = client.oneshot(request).await.unwrap();
/// assert_eq!(response.status(), 200);
/// assert_eq!(response.extensions().get::<Report>().unwrap().attempts, 2);
/// # }
/// ```
#[derive(Debug)]
pub struct Pace<R = Cloned> {
    shared: Arc<Shared>,
    repeat: Arc<R>,
}

impl<R> Clone for Pace<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), repeat: Arc::clone(&self.repeat) }
    }
}

impl Pace {
    /// Calls through this gate, each of cost 1.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self::builder(gate).build()
    }

    /// Calls through this gate, where more can be said.
    pub fn builder(gate: Gate) -> PaceBuilder {
        PaceBuilder {
            shared: Shared {
                gate,
                policy: Policy { max_attempts: MAX_ATTEMPTS, backoff: BACKOFF, backoff_max: BACKOFF_MAX },
                deadline: DEADLINE,
                reads_successes: false,
                profile: None,
                cost: None,
                idempotent: None,
                failure: None,
                observe: None,
                told: Mutex::new(None),
            },
            repeat: Cloned,
        }
    }
}

impl<R> Pace<R> {
    /// The gate, to see how it stands.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.shared.gate
    }
}

/// What a [`Pace`] is to be, from [`Pace::builder`].
#[must_use = "`build` makes the layer"]
#[derive(Debug)]
pub struct PaceBuilder<R = Cloned> {
    shared: Shared,
    repeat: R,
}

impl<R> PaceBuilder<R> {
    /// How late after its begin a call may be sent last; 2 min without this. It goes before a
    /// [`max_wait`](tidegate::gate::Builder::max_wait) of the gate.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.shared.deadline = deadline;
        self
    }

    /// How often a call is sent at most; 5 without this. With 1, nothing is sent again.
    pub fn max_attempts(mut self, max: NonZeroU32) -> Self {
        self.shared.policy.max_attempts = max;
        self
    }

    /// The longest backoff after the first attempt, and the longest of all; 500 ms and 30 s without this.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        (self.shared.policy.backoff, self.shared.policy.backoff_max) = (first, max);
        self
    }

    /// What an attempt costs: in the gate's first limit, or in each. Without this, 1 in the first.
    pub fn cost<C: Into<Cost>>(mut self, cost: impl Fn(CallHead<'_>) -> C + Send + Sync + 'static) -> Self {
        self.shared.cost = Some(Box::new(move |head| cost(head).into()));
        self
    }

    /// Which calls do no harm when they run twice, beside those whose method or `Idempotency-Key` says so. A query of
    /// GraphQL or a completion of a language model is one if it may be paid for twice.
    pub fn idempotent(
        mut self,
        is_idempotent: impl Fn(CallHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.shared.idempotent = Some(Box::new(is_idempotent));
        self
    }

    /// Reads the JSON bodies of successes as well, before the caller gets them. GraphQL tells refusals there, and JSON-RPC.
    pub fn read_successes(mut self) -> Self {
        self.shared.reads_successes = true;
        self
    }

    /// A profile that goes before the known ones, for a service that gives a known name another meaning.
    pub fn profile(mut self, profile: &'static Profile) -> Self {
        self.shared.profile = Some(profile);
        self
    }

    /// What the errors of the service inside mean, by their type `E`. Without this, and for errors of another type, the
    /// call may have been sent. With reqwest it is known.
    ///
    /// ```
    /// use hyper_util::client::legacy;
    /// use tidegate::Gate;
    /// use tidegate_http::client::{Failure, Pace};
    ///
    /// let pace = Pace::builder(Gate::new("10/s".parse()?)).failure(|error: &legacy::Error| {
    ///     if error.is_connect() { Failure::Unsent } else { Failure::Unknown }
    /// });
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn failure<E: 'static>(mut self, failure: impl Fn(&E) -> Failure + Send + Sync + 'static) -> Self {
        let of_any = move |error: &dyn Any| error.downcast_ref().map_or(Failure::Unknown, &failure);
        self.shared.failure = Some(Box::new(of_any));
        self
    }

    /// Is told of every attempt, for logs and counters. It runs before the call goes on, so it should be short.
    ///
    /// ```
    /// use tidegate::Gate;
    /// use tidegate_http::client::{Pace, Verdict};
    ///
    /// let gate = Gate::builder("10/s".parse()?).max_in_flight(8.try_into()?).build()?;
    /// let lowered = gate.clone();
    /// let pace = Pace::builder(gate).observe(move |attempt| {
    ///     if let Verdict::Retry { after } = attempt.verdict {
    ///         eprintln!("attempt {}: {:?}, again in {after:?}", attempt.number, attempt.status);
    ///     }
    ///     if attempt.hint.is_some_and(|hint| hint.in_flight_refused) {
    ///         lowered.set_max_in_flight(std::num::NonZeroU64::MIN);
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(mut self, observe: impl Fn(&Attempt<'_>) + Send + Sync + 'static) -> Self {
        self.shared.observe = Some(Box::new(observe));
        self
    }

    /// How the body of a request is had again, for bodies that are not `Clone`: [`Once`], or a function. With reqwest it is
    /// known.
    ///
    /// ```
    /// use tidegate::Gate;
    /// use tidegate_http::client::Pace;
    ///
    /// enum Upload {
    ///     Text(String),
    ///     File(std::fs::File),
    /// }
    ///
    /// let pace = Pace::builder(Gate::new("10/s".parse()?)).repeat_body(|body: &Upload| match body {
    ///     Upload::Text(text) => Some(Upload::Text(text.clone())),
    ///     Upload::File(_) => None,
    /// });
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn repeat_body<N>(self, repeat: N) -> PaceBuilder<N> {
        PaceBuilder { shared: self.shared, repeat }
    }

    /// Makes the layer.
    #[must_use]
    pub fn build(self) -> Pace<R> {
        Pace { shared: Arc::new(self.shared), repeat: Arc::new(self.repeat) }
    }
}

/// An attempt, for [`PaceBuilder::observe`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// Its number within the call, 1 for the first.
    pub number: u32,
    /// The status of the answer; `None` if there was none.
    pub status: Option<StatusCode>,
    /// What the answer told.
    pub hint: Option<&'a Hint>,
    /// For how long the gate was closed because of it.
    pub closed_for: Option<Duration>,
    /// What follows.
    pub verdict: &'a Verdict,
}

impl fmt::Debug for Shared {
    /// Without the functions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Shared");
        debug.field("gate", &self.gate).field("policy", &self.policy).field("deadline", &self.deadline);
        debug.finish_non_exhaustive()
    }
}
