//! RESP, the protocol of Redis: `CL.THROTTLE`, `TG.CHECK` for limits of the server's own, and what Redis clients say when they connect.
//!
//! ```
//! use tidegate_server::resp::{Resp, Settings};
//! use tokio::net::TcpListener;
//!
//! # async fn example() -> std::io::Result<()> {
//! let resp = Resp::new(Settings::default());
//! let listener = TcpListener::bind("127.0.0.1:6380").await?;
//! let connections = resp.serve(listener, std::future::pending()).await;
//! connections.shutdown().await;
//! println!("{} allowed", resp.counts().allowed);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Resp`]: the server; [`Settings`] its table, clock, password and bounds; [`Counts`] what it did.
//! - [`codec`]: bytes to requests and answers to bytes.
//! - [`throttle`]: the buckets of `CL.THROTTLE`.
//!
//! **Order.** What comes on one connection is decided and answered in its order. All that one read brings is decided at one
//! reading of the clock and answered with one write.
//!
//! **Bounds.** A request has at most [`REQUEST_MAX`](codec::request::REQUEST_MAX) bytes and
//! [`ARGS_MAX`](codec::request::ARGS_MAX) arguments, a key [`KEY_MAX`](throttle::KEY_MAX) bytes. While a client does not read its
//! answers nothing more of it is decided. Connections and silence are bounded by [`Bounds`].

#[cfg(any(test, fuzzing))]
pub mod any_bytes;
mod check;
pub mod codec;
mod command;
mod connection;
mod counts;
mod seldom;
mod server;
mod session;
pub mod throttle;

pub use check::Checks;
pub use counts::Counts;
pub use server::{Bounds, Connections, Resp, Settings};
