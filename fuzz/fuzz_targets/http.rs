//! Any bytes as bodies and fields of questions over HTTP: no panic, no 5xx, an answer that can be read, nothing charged by
//! what is refused, and never more than the quota.
//!
//! How to run it is in `fuzz/README.md`. An input is a script as
//! `crates/tidegate-server/tests/any_questions/asked.rs` says.

#![no_main]

#[path = "../../crates/tidegate-server/tests/any_questions/asked.rs"]
mod asked;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| asked::check(data));
