//! Rate limiting in a program: many keys, many threads, memory that is fixed beforehand.
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let limiter = Limiter::new("10/s burst 20".parse::<Quota>()?, 65_536);
//! assert!(limiter.check("203.0.113.9").is_allowed());
//! # Ok::<(), tidegate::QuotaError>(())
//! ```
//!
//! - [`Limiter`]: one limit, or several, for each of many keys, shared by threads.
//! - [`Bucket`]: one bucket that threads share; [`LeasedBucket`]: one that they share without touching it at each call.
//! - [`Gate`]: one budget for calls that wait their turn, with or without an executor.
//! - [`Budget`]: one limit that all processes of a machine share, in a file (Unix).
//! - [`shared`]: the port to buckets that many machines share, as on a server.
//! - [`clock`]: where its time comes from; a clock for tests that goes on when it is told to.
//! - Everything of [`tidegate_core`] that its interface needs: [`Quota`], [`Policy`], [`Decision`] and so on.

mod bucket;
#[cfg(unix)]
pub mod budget;
pub mod clock;
pub mod gate;
mod limiter;
mod narrow;
pub mod shared;

pub use bucket::{Bucket, Handle, LeasedBucket};
#[cfg(unix)]
pub use budget::{Budget, BudgetError};
pub use gate::{Gate, Permit, Refused, Reservation};
pub use limiter::{Capacity, Limiter, LimiterBuilder, LimiterError, Receipt, Stats, Tier, WhenFull};
pub use tidegate_core::{
    Algorithm, Decision, InFlight, Kind, Limit, Mode, Policy, PolicyDecision, PolicyState, Quota, QuotaError,
    State, Step, UnknownKind, algorithm, parse_duration,
};

/// The examples of the README, so that they are compiled and run.
#[cfg(all(doctest, unix))]
#[doc = include_str!("../README.md")]
struct Readme;

/// All that threads share can be shared by threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Limiter>();
    shared::<Bucket>();
    shared::<LeasedBucket>();
    shared::<Gate>();
    shared::<Permit>();
    shared::<Reservation>();
    shared::<clock::ManualClock>();
    #[cfg(unix)]
    shared::<Budget>();
};
