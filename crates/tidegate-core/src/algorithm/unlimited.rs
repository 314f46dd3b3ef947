//! No limit, shown as `none`: every call is allowed.
//!
//! It is the row that the others are compared with. It promises nothing: its worst case is everything at once.

use core::time::Duration;

use crate::{Decision, Step};

/// Allows everything and remembers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unlimited;

impl Step for Unlimited {
    type State = ();

    fn fresh(&self) {}

    #[inline]
    fn look(&self, _state: &(), _now: u64, _cost: u64) -> Decision {
        Decision::Allowed { start_after: Duration::ZERO, remaining: u64::MAX, reset_after: Duration::ZERO }
    }

    #[inline]
    fn charge(&self, _state: &mut (), _now: u64, _cost: u64) {}

    fn bound(&self, _span: Duration) -> Option<u128> {
        None
    }
}
