//! Rate limiting in a program: many keys, many threads, memory that is fixed beforehand.
//!
//! ```
//! use tidegate::{Algorithm, Kind, Limiter};
//!
//! let limiter = Limiter::new(Algorithm::new(Kind::TokenBucket, "10/s burst 20".parse()?), 65_536);
//! assert!(limiter.check("203.0.113.9").is_allowed());
//! # Ok::<(), tidegate::QuotaError>(())
//! ```
//!
//! - [`Limiter`]: one limit for each of many keys, shared by threads.
//! - [`Gate`]: one budget for calls that wait their turn, with or without an executor.
//! - [`clock`]: where a limiter's time comes from.
//! - Everything of [`tidegate_core`] that its interface needs: [`Quota`], [`Algorithm`], [`Decision`] and so on.

pub mod clock;
pub mod gate;
mod limiter;

pub use gate::{Gate, ManualClock, Permit, Refused, Reservation};
pub use limiter::{Limiter, Stats};
pub use tidegate_core::{
    Algorithm, Decision, InFlight, Kind, Limit, Mode, Policy, PolicyDecision, PolicyState, Quota, QuotaError,
    State, Step, UnknownKind, algorithm, parse_duration,
};

/// The examples of the README, so that they are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
