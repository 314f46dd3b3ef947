//! The decision server's protocols over the library.
//!
//! - [`http`]: JSON over HTTP, and the questions of proxies.
//! - [`resp`]: the protocol of Redis, with `CL.THROTTLE`, for the Redis clients of every language.
//! - [`rls`]: Envoy's rate limit service over gRPC.

pub mod http;
pub mod resp;
pub mod rls;
mod secret;

/// The example of the README, so that it is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
