//! Integer arithmetic that cannot overflow, and the two directions of rounding.

use core::num::{NonZeroU64, NonZeroU128};
use core::time::Duration;

/// `a * b`, exact: the product of two 64-bit numbers fits into 128 bits.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "(2^64 - 1)^2 is below 2^128")]
pub(crate) const fn product(a: u64, b: u64) -> u128 {
    (a as u128) * (b as u128)
}

/// `x / d`, rounded down. Almost every value fits into 64 bits, where the division is many times faster.
#[inline]
pub(crate) fn div_down(x: u128, d: NonZeroU64) -> u128 {
    match u64::try_from(x) {
        Ok(x) => u128::from(x / d),
        Err(_) => x / NonZeroU128::from(d),
    }
}

/// `x / d`, rounded up.
#[inline]
pub(crate) fn div_up(x: u128, d: NonZeroU64) -> u128 {
    match u64::try_from(x) {
        Ok(x) => u128::from(x.div_ceil(d.get())),
        Err(_) => x.div_ceil(u128::from(d.get())),
    }
}

/// Nanoseconds as a [`Duration`]; saturates at [`Duration::MAX`], 585 billion years.
#[inline]
pub(crate) fn duration(ns: u128) -> Duration {
    const SECOND: NonZeroU64 = NonZeroU64::new(1_000_000_000).expect("not zero");
    if let Ok(ns) = u64::try_from(ns) {
        return Duration::from_nanos(ns);
    }
    let seconds = div_down(ns, SECOND);
    match (u64::try_from(seconds), u32::try_from(ns.wrapping_sub(seconds.wrapping_mul(1_000_000_000)))) {
        // The rest is below a second. Saying so once more lets the compiler see that `new` cannot panic, so that it
        // leaves out the divisions for a time that nobody reads.
        (Ok(seconds), Ok(rest)) => Duration::new(seconds, rest % 1_000_000_000),
        _ => Duration::MAX,
    }
}

/// A count for the caller: `x`, or the largest `u64` when it does not fit.
#[inline]
pub(crate) fn narrow(x: u128) -> u64 {
    u64::try_from(x).unwrap_or(u64::MAX)
}

/// The greatest common divisor (Euclid, Elements VII.2).
pub(crate) fn gcd(a: NonZeroU64, b: NonZeroU64) -> NonZeroU64 {
    let (mut a, mut b) = (a, b.get());
    while let Some(divisor) = NonZeroU64::new(b) {
        b = a.get() % divisor;
        a = divisor;
    }
    a
}
