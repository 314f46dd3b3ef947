//! Try rate limits on generated or recorded traffic, in virtual time.
//!
//! The flow is [`Arrivals`] (from a pattern or a trace) -> limiter -> decisions -> report. Nothing here reads a
//! clock: every time comes from the arrivals.

mod arrivals;
mod trace;

pub use arrivals::{Arrivals, Costs, Keys};
pub use trace::{
    BadLine, Expected, FieldNames, Format, Found, SkippedLine, TimeReading, TimeUnit, Trace, TraceError,
    TraceOptions, UnknownTimeUnit, read,
};
