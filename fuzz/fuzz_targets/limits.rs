//! Any text as a limits file: no panic, an error that names its place and has advice; and what is read is described, printed
//! and read again as the same, and made a layer or refused.
//!
//! How to run it is in `fuzz/README.md`.
//!
//! The files are those of the command, which has no library: nobody else needs one, and a target needs these few.

#![no_main]
#![expect(dead_code, reason = "the command uses more of its files")]

#[path = "../../crates/tidegate-cli/src"]
mod cli {
    pub(crate) mod check;
    pub(crate) mod explain;
    pub(crate) mod fault;
    pub(crate) mod limits;
    pub(crate) mod quota_args;
    pub(crate) mod report {
        pub(crate) mod table;
        pub(crate) mod text;
    }
    pub(crate) mod serve {
        pub(crate) mod any_limits;
        mod key;
        mod layer;
    }
}

// They name each other from the root.
use cli::{check, explain, fault, limits, quota_args, report, serve};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| serve::any_limits::check(text));
