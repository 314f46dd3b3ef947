//! Rate limiting for HTTP, in both directions: a server that limits its clients, and a client that obeys its servers.
//!
//! - [`RateLimit`]: a tower layer that limits the requests of a server; see [`layer`].
//! - [`identity`]: who the client is, behind proxies too.
//! - [`client`]: a tower layer and a middleware of reqwest, for the calls that a program makes.
//! - [`fields`]: the response fields `RateLimit` and `RateLimit-Policy`, written and read.
//! - [`problem`]: the bodies of rejections.
//! - [`hint`]: what a server says about waiting.
//!
//! # Features
//!
//! - `axum`: the address of the peer is found where axum keeps it, in its `ConnectInfo<SocketAddr>`.
//! - `reqwest`: [`client::Pace`] is a middleware of reqwest-middleware, too.

mod base64;
pub mod client;
pub mod fields;
pub mod hint;
pub mod identity;
pub mod layer;
pub mod problem;

pub use layer::{KeyBy, RateLimit, RateLimitError, RequestLimit};

/// The examples of the README, so that they are compiled and run.
#[cfg(all(doctest, feature = "axum", feature = "reqwest"))]
#[doc = include_str!("../README.md")]
struct Readme;
