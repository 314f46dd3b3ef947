//! `serve` as a process: asked, hammered, and told to read its limits again.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod admin;
mod api;
mod dashboard;
mod deploy;
mod grpc;
mod hammer;
mod limits;
mod process;
#[path = "../../../tidegate-redis/tests/harness/server.rs"]
#[expect(dead_code, reason = "the tests of the store use all of it")]
mod redis_server;
mod resp;
mod rough;
mod shared;
mod sides;
