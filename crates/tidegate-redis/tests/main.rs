//! Everything that needs a server. One program, that one harness serves all.
//!
//! The server is `redis-server` of the path, or what `TIDEGATE_REDIS_SERVER` names; without one the tests fail.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test stops at the first surprise, in its helpers too"
)]

mod buckets;
mod cluster;
mod exact;
mod faults;
mod gate;
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only the tests of TLS use all of it"))]
mod harness;
mod leased;
mod places;
mod sentinel;
mod texts;
#[cfg(feature = "tls")]
mod tls;
