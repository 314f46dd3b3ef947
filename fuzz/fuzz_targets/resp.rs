//! Any bytes from a client that speaks RESP: the same requests and the same answers however the bytes are cut into reads, one
//! answer for each request, and a bound on what is kept.
//!
//! How to run it is in `fuzz/README.md`. The input is as `unfolded` in
//! `crates/tidegate-server/src/resp/any_bytes.rs` says; the first bit says whether there is a password.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::resp::any_bytes::{check, unfolded};
use tidegate_server::resp::throttle::{Table, Terms};

fuzz_target!(|data: &[u8]| {
    let (input, cuts) = unfolded(data);
    check(&input, &cuts, data.first().is_some_and(|first| first & 0x80 != 0));

    // The bytes as the numbers of a call, whatever they are.
    let mut numbers = data.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, i64::from_le_bytes));
    let mut number = || numbers.next().unwrap_or_default();
    let Ok(terms) = Terms::new(number(), number(), number()) else { return };
    if let Ok(answer) = Table::new(7).decide(b"key", &terms, number(), number().unsigned_abs()) {
        assert!(answer.remaining <= answer.capacity);
        assert!(answer.integers().iter().all(|&number| number >= -1));
        assert!(answer.rejected || answer.retry_after_ns.is_none());
    }
});
