//! Try rate limits on generated or recorded traffic, in virtual time.
//!
//! The flow is [`Arrivals`] (from a [`Pattern`] or a trace) -> [`simulate`] (decisions by `tidegate-core`) ->
//! [`Tally`]. Nothing here reads a clock: every time comes from the arrivals.

mod arrivals;
mod book;
pub mod fit;
mod gate;
mod leased;
mod over;
mod pattern;
mod simulate;
mod tally;
pub mod trace;
mod worst;

pub use arrivals::{Arrivals, Costs, Keys};
pub use gate::{Gate, simulate_gate};
pub use leased::{Leased, simulate_leased};
pub use over::Over;
pub use pattern::{MAX_ARRIVALS, Pattern, PatternError, PatternSettings, UnknownPattern, arrivals_of};
pub use simulate::{OneBucket, Settings, Share, SimLimit, SplitError, Workers, part, simulate, split};
pub use tally::{Bin, KeyTally, LeaseTally, LimitTally, Tally, Timeline, Waits};
pub use trace::{TimeUnit, Trace, TraceError, TraceOptions};
pub use worst::WorstWindow;
