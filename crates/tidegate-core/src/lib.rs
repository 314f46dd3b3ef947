//! Exact rate limiting arithmetic: a quota, a state and a time go in, a new state and a decision come out.
//!
//! The crate is pure. It has no dependency, clock, thread, I/O or float; `now` is an argument, in nanoseconds since
//! an origin that the caller picks, and state is a value that the caller keeps. So every decision can be repeated,
//! and a table of inputs and answers is a complete test.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_core::{Algorithm, Decision, Kind, Quota, Step};
//!
//! // Two tokens a second, three at most.
//! let quota: Quota = "2/s burst 3".parse()?;
//! let bucket = Algorithm::new(Kind::TokenBucket, quota);
//! let mut state = bucket.fresh();
//!
//! for _ in 0..3 {
//!     let decision;
//!     (state, decision) = bucket.step(state, 0, 1);
//!     assert!(decision.is_allowed());
//! }
//! let (_, decision) = bucket.step(state, 0, 1);
//! assert_eq!(decision.retry_after(), Some(Duration::from_millis(500)));
//! # Ok::<(), tidegate_core::QuotaError>(())
//! ```
//!
//! - [`Quota`]: a rate (a fraction) and a burst, parsed from and printed as text such as `10/s burst 20`.
//! - [`Algorithm`]: the limiters behind one step function, [`Step`]; each in its own file under [`algorithm`].
//! - [`Decision`]: allowed, rejected until an exact time from now, or never.
//! - [`Policy`]: several limits on one call, decided together.
//! - [`InFlight`]: how many calls run at once, which no rate can bound.
//! - [`lease`]: chunks of a shared bucket that workers spend without asking.
//! - [`queue`]: the waiting line: calls that wait their turn for a limiter and a place in flight.

#![no_std]
#![deny(clippy::float_arithmetic, clippy::arithmetic_side_effects)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod algorithm;
mod arithmetic;
mod decision;
mod in_flight;
pub mod lease;
mod policy;
pub mod queue;
mod quota;

pub use algorithm::{Algorithm, Kind, State, Step, UnknownKind};
pub use decision::Decision;
pub use in_flight::InFlight;
pub use policy::{Limit, Mode, Policy, PolicyDecision, PolicyState};
pub use quota::{Quota, QuotaError, parse_duration};
