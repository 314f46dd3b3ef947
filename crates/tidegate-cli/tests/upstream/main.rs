//! `serve --upstream` as a process between clients and services of plain sockets, which see each byte that it sends.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod authority;
mod http;
mod proxy;
mod tls;
