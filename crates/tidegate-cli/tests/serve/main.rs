//! `serve` as a process: asked, hammered, and told to read its limits again.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod admin;
mod hammer;
mod limits;
mod process;
mod resp;
mod rough;
