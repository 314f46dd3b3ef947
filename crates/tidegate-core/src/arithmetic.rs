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

/// `whole * part / of`, rounded up, for a `part` of at most `of` and an `of` below 2^127: exact, though the product may
/// need 256 bits. One bit of `whole` after the other, with quotient and remainder (Knuth, TAOCP 4.3.1, in base 2).
pub(crate) fn part_up(whole: u128, part: u128, of: u128) -> u128 {
    if let Some(quotient) = whole.checked_mul(part).and_then(|product| product.checked_next_multiple_of(of)) {
        return quotient.checked_div(of).unwrap_or(0);
    }
    let (mut quotient, mut rest) = (0_u128, 0_u128);
    for bit in (0..u128::BITS).rev() {
        // The quotient is at most `whole`, and the remainder below `of`: neither doubles beyond 128 bits.
        quotient = quotient.wrapping_shl(1);
        rest = rest.wrapping_shl(1);
        if rest >= of {
            rest = rest.wrapping_sub(of);
            quotient = quotient.wrapping_add(1);
        }
        if whole.wrapping_shr(bit) & 1 == 1 {
            rest = rest.wrapping_add(part);
            if rest >= of {
                rest = rest.wrapping_sub(of);
                quotient = quotient.wrapping_add(1);
            }
        }
    }
    quotient.saturating_add(u128::from(rest > 0))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_exact_where_the_product_is_not() {
        let large = (1_u128 << 127) - 1;
        for (whole, part, of, expected) in [
            (10, 3, 4, 8),
            (10, 4, 4, 10),
            (10, 0, 4, 0),
            (large, large, large, large),
            (large, 1, large, 1),
            (large, large - 1, large, large - 1),
            (large, 1 << 126, (1 << 127) - 2, (1 << 126) + 1),
            (1 << 126, large / 3, large, ((1_u128 << 126) / 3) + 1),
        ] {
            assert_eq!(part_up(whole, part, of), expected, "{whole} * {part} / {of}");
        }
    }
}
