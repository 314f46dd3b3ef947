//! What can be wrong with a store or a limiter before it decides anything.

use std::fmt;
use std::time::Duration;

use tidegate::{Kind, QuotaError};

/// Why a store or a limiter cannot be made. Once it is made, what goes wrong is answered by its
/// [`OnFailure`](crate::OnFailure) and counted.
///
/// No text of it holds a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is none that the client understands.
    #[error(
        "the address of the store is not understood: {0}; write redis://HOST:PORT, \
         redis+sentinel://HOST,HOST/NAME or redis+cluster://HOST,HOST, with rediss for TLS and USER:PASSWORD@ before hosts"
    )]
    Address(#[source] StoreFault),
    /// The store did not answer as it should when it was first connected to.
    #[error("cannot use the store at {address}: {fault}; start it, or make the limiter with `connect_later`")]
    Connect {
        /// Host and port.
        address: Box<str>,
        /// What went wrong.
        #[source]
        fault: StoreFault,
    },
    /// There is no tokio runtime, which the connection needs.
    #[error("a store needs a tokio runtime with its timer and its I/O enabled; connect within one")]
    NoRuntime,
    /// The policy has no limit.
    #[error("a limiter needs at least one limit; give it a quota such as `10/s burst 20`")]
    NoLimit,
    /// A limit is not a token bucket.
    #[error("the limit `{limit}` is a {kind}; only token-bucket limits can be shared through a store")]
    NotTokenBucket {
        /// The name of the limit.
        limit: Box<str>,
        /// What it is.
        kind: Kind,
    },
    /// The capacity of a limit in its smallest units is above what a script can count.
    #[error(
        "the limit `{limit}` is too fine to be counted exactly by a script, which counts to 2^53 (burst times the \
         microseconds of a token, in lowest terms); lower the burst, or write a rate with a shorter time"
    )]
    TooFine {
        /// The name of the limit.
        limit: Box<str>,
    },
    /// Two limits of a policy have the same name, so they would be one bucket.
    #[error("two limits are named `{limit}`; a name is the key of its bucket, so give each its own")]
    SameName {
        /// The name.
        limit: Box<str>,
    },
    /// A name that cannot be part of a key.
    #[error("`{name}` cannot be part of a key; write a name that is not empty and has no `:`, `{{` or `}}`")]
    Name {
        /// The name.
        name: Box<str>,
    },
    /// Another limiter of this store has the same name and other limits.
    #[error(
        "the store has a limiter named `{name}` with other limits; one name means one set of buckets, so use another"
    )]
    OtherLimits {
        /// The name.
        name: Box<str>,
    },
    /// The share of a limit that one machine would have is no quota.
    #[error("the share of one machine of the limit `{limit}` is no quota: {source}")]
    Share {
        /// The name of the limit.
        limit: Box<str>,
        /// Why.
        #[source]
        source: QuotaError,
    },
    /// A limiter that leases has several limits, or one in shadow.
    #[error(
        "the limiter `{name}` leases, and needs one limit that is enforced; share several with `limiter`"
    )]
    NotOneLimit {
        /// The name of the limiter.
        name: Box<str>,
    },
    /// Leases would end too soon to be of use.
    #[error(
        "an overshoot of {overshoot} tokens of the limit `{limit}` is {life:?} of its rate, and a lease has to live for \
         {least:?}; allow {tokens} or more, or ask the store for every call with `limiter`"
    )]
    LeaseTooShort {
        /// The name of the limit.
        limit: Box<str>,
        /// What was asked for.
        overshoot: u64,
        /// How long leases would live.
        life: Duration,
        /// How long they have to: 20 ms, or three trips to the store.
        least: Duration,
        /// The smallest overshoot that is long enough.
        tokens: u64,
    },
    /// A number of the builder is out of its range.
    #[error("{what} of {value:?} is out of range; write {range}")]
    OutOfRange {
        /// What it is.
        what: &'static str,
        /// What it was set to.
        value: Duration,
        /// What is possible.
        range: &'static str,
    },
}

/// What the store or the way to it said, as text. The client's own types stay out of this interface.
#[derive(Clone)]
pub struct StoreFault(pub(crate) Why);

#[derive(Clone, Debug)]
pub(crate) enum Why {
    Client(redis::RedisError),
    Late(Duration),
    Replica,
    Address(&'static str),
    NoSentinel,
    NoCluster,
}

impl fmt::Debug for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreFault({self})")
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Why::Client(error) => write!(f, "{error}"),
            Why::Late(after) => write!(f, "no answer within {after:?}"),
            Why::Replica => f.write_str("it is a replica, and decisions need the primary"),
            Why::Address(why) => f.write_str(why),
            Why::NoSentinel => f.write_str("it does not answer as a sentinel does"),
            Why::NoCluster => f.write_str("it tells no slots, as the nodes of a cluster do"),
        }
    }
}

impl std::error::Error for StoreFault {}

impl From<redis::RedisError> for StoreFault {
    fn from(error: redis::RedisError) -> Self {
        Self(Why::Client(error))
    }
}
