//! Any bytes from a client that speaks RESP: no panic, a bound on what is waited for, and the same requests however the
//! bytes are cut.
//!
//! Run as `hint.rs` says: `cargo +nightly fuzz run resp`. An input begins with a byte: where the rest is cut in two. Where
//! cargo-fuzz cannot run, `crates/tidegate-server/tests/codec_properties.rs` checks the same with `PROPTEST_CASES` set to a
//! large number.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::resp::codec::request::{ARGS_MAX, Args, ProtocolError, REQUEST_MAX, read, write};
use tidegate_server::resp::throttle::{Table, Terms};

/// All requests of an input, what is left of it, and the error that ended it.
fn read_all(input: &[u8]) -> (Vec<Vec<Vec<u8>>>, usize, Option<ProtocolError>) {
    let mut args = Args::new();
    let (mut requests, mut at) = (Vec::new(), 0);
    loop {
        match read(&input[at..], &mut args) {
            Ok(Some(used)) => {
                assert!(used > 0 && used <= REQUEST_MAX && args.get().len() <= ARGS_MAX);
                requests.push(args.get().iter().map(|arg| arg.to_vec()).collect());
                at += used;
            }
            Ok(None) => {
                assert!(input.len() - at < REQUEST_MAX, "what is waited for has a bound");
                return (requests, at, None);
            }
            Err(error) => return (requests, at, Some(error)),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [cut, input @ ..] = data else { return };
    let whole = read_all(input);
    let (mut requests, used, mut error) = read_all(&input[..usize::from(*cut).min(input.len())]);
    let mut at = used;
    if error.is_none() {
        let (more, used, later) = read_all(&input[at..]);
        requests.extend(more);
        (at, error) = (at + used, later);
    }
    assert_eq!((&requests, at, error), (&whole.0, whole.1, whole.2));

    let table = Table::new(7);
    for args in requests {
        let mut written = Vec::new();
        write(&args, &mut written);
        if written.len() <= REQUEST_MAX {
            assert_eq!(read_all(&written), (vec![args.clone()], written.len(), None));
        }
        // The arguments as numbers of a call, whatever they are.
        let number = |index: usize| {
            let arg = args.get(index).map(Vec::as_slice).unwrap_or_default();
            let bytes = std::array::from_fn(|byte| arg.get(byte).copied().unwrap_or_default());
            i64::from_le_bytes(bytes)
        };
        let Ok(terms) = Terms::new(number(0), number(1), number(2)) else { continue };
        let now_ns = number(3).unsigned_abs();
        if let Ok(answer) = table.decide(b"key", &terms, number(4), now_ns) {
            assert!(answer.remaining <= answer.capacity);
            assert!(answer.integers().iter().all(|&number| number >= -1));
            assert!(answer.rejected || answer.retry_after_ns.is_none());
        }
    }
});
