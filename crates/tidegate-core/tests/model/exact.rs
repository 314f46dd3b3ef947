//! Exact numbers of two sizes behind one name.

use num_bigint::BigInt;
use num_rational::{BigRational, Ratio};
use num_traits::{Num, ToPrimitive, Zero};

/// A number that is never rounded, except where it is asked for.
pub(crate) trait Exact: Num + Clone + PartialOrd {
    fn whole(number: impl Into<u128>) -> Self;
    /// Rounded down; what is below 0 is 0, what is above `u128` is its largest.
    fn down(&self) -> u128;
    /// Rounded up, within the same bounds.
    fn up(&self) -> u128;
}

impl Exact for BigRational {
    fn whole(number: impl Into<u128>) -> Self {
        Self::from_integer(BigInt::from(number.into()))
    }

    fn down(&self) -> u128 {
        narrow(&self.floor())
    }

    fn up(&self) -> u128 {
        narrow(&self.ceil())
    }
}

fn narrow(whole: &BigRational) -> u128 {
    if *whole < BigRational::zero() { 0 } else { whole.to_integer().to_u128().unwrap_or(u128::MAX) }
}

impl Exact for Ratio<i64> {
    fn whole(number: impl Into<u128>) -> Self {
        // The reference of `unlimited` speaks of the largest `u64`; in a small world the largest `i64` stands for it.
        Self::from_integer(i64::try_from(number.into()).unwrap_or(i64::MAX))
    }

    fn down(&self) -> u128 {
        match self.floor().to_integer() {
            i64::MAX => u128::from(u64::MAX),
            whole => u128::try_from(whole).unwrap_or(0),
        }
    }

    fn up(&self) -> u128 {
        u128::try_from(self.ceil().to_integer()).unwrap_or(0)
    }
}
