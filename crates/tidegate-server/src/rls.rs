//! Envoy's rate limit service, version 3, over gRPC: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
//!
//! ```
//! use tidegate_http::{KeyBy, RateLimit, RequestLimit};
//! use tidegate_server::rls::{Rls, Rule, Rules};
//! use tokio::net::TcpListener;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let quota = "5/min".parse()?;
//! let rule = Rule::new("login", quota, vec!["shop: path=/login, user=*".parse()?])?;
//! let limits = RateLimit::builder().limit(RequestLimit::new("login", quota)).build()?;
//! let rls = Rls::new(limits, Rules::new(vec![rule]));
//! let listener = TcpListener::bind("127.0.0.1:8081").await?;
//! rls.serve(listener, std::future::pending()).await?;
//! println!("{} requests", rls.counts().requests);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Rls`]: the server; [`Counts`] what it did.
//! - [`Rules`]: which limits a descriptor is under; a [`Rule`] has [`Pattern`]s.
//! - [`proto`]: what goes over the wire.
//!
//! **All or none.** A request has descriptors; each is charged in its limits if none of them refuses, and nothing is charged
//! otherwise. A descriptor with a `hits_addend` of 0 only looks: it is over the limit when not one request is left. Looks that
//! come together with charges are made a moment before them. The `limit` that a descriptor may bring is not used: quotas are
//! those of the server.
//!
//! **No answer is an error.** A request that cannot be decided is answered `INVALID_ARGUMENT` or `UNAVAILABLE`, and never with
//! the code `UNKNOWN`, with which Envoy lets it pass whatever its settings are.
//!
//! **Bounds.** A message has at most [`MESSAGE_BYTES_MAX`] bytes, a request [`DESCRIPTORS_MAX`] descriptors of [`ENTRIES_MAX`]
//! entries, their keys [`KEY_BYTES_MAX`] bytes and their values [`VALUE_BYTES_MAX`]. There are at most
//! [`CONNECTIONS_MAX`] connections at one time with [`STREAMS_MAX`] requests each; further ones wait.

mod incoming;
pub mod proto;
mod rate;
mod rules;
mod service;
mod status;

pub use rate::Rate;
pub use rules::{Pattern, Rule, Rules, WrongRule};
pub use service::{
    CONNECTIONS_MAX, Counts, DESCRIPTORS_MAX, ENTRIES_MAX, KEY_BYTES_MAX, MESSAGE_BYTES_MAX, Rls,
    STREAMS_MAX, VALUE_BYTES_MAX,
};
