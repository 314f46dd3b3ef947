//! Decimal numbers read exactly: text to whole nanoseconds, without floats.
//!
//! A number is the digits of its whole part followed by those of its fraction, and a place for the point. A unit moves
//! the point to the right: `1700000000.1235` seconds is the digits `17000000001235` with the point after digit 10 + 9.
//! So nanoseconds are the digits before the point, filled up with zeros. Digits below a nanosecond are cut off.

use super::unit::TimeUnit;

/// A number that is not negative, split but not yet computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimal<'a> {
    /// Digits before the point, without leading zeros.
    whole: &'a [u8],
    /// Digits after the point.
    fraction: &'a [u8],
    /// The power of ten behind `e`; held within a million either way, far beyond what fits.
    exponent: i64,
}

impl<'a> Decimal<'a> {
    /// Splits `digits[.digits][e[+-]digits]`; `None` when the text is anything else.
    pub(super) fn split(text: &'a [u8]) -> Option<Self> {
        let (whole, rest) = digits(text);
        if whole.is_empty() {
            return None;
        }
        let (fraction, rest) = match rest.strip_prefix(b".") {
            Some(rest) => match digits(rest) {
                ([], _) => return None,
                split => split,
            },
            None => (&[][..], rest),
        };
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', rest @ ..] => exponent(rest)?,
            _ => return None,
        };
        let zeros = whole.iter().take_while(|&&digit| digit == b'0').count();
        Some(Self { whole: &whole[zeros..], fraction, exponent })
    }

    /// How many digits stand before the point; 0 or less when the number is below 1.
    pub(super) fn whole_digits(&self) -> i64 {
        match self.whole {
            [] => 0,
            whole => length(whole) + self.exponent,
        }
    }

    /// The number in nanoseconds, rounded down; `None` above `u64::MAX`.
    pub(super) fn nanos(&self, unit: TimeUnit) -> Option<u64> {
        let mut places = length(self.whole) + self.exponent + i64::from(unit.nanos_exponent());
        let mut nanos = 0_u64;
        for &digit in self.whole.iter().chain(self.fraction) {
            if places <= 0 {
                return Some(nanos);
            }
            nanos = nanos.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            places -= 1;
        }
        // A zero stays zero, and anything else leaves 64 bits within 20 places, so this ends soon for any exponent.
        while places > 0 && nanos != 0 {
            nanos = nanos.checked_mul(10)?;
            places -= 1;
        }
        Some(nanos)
    }
}

/// A whole number of decimal digits only; `None` for anything else and above `u64::MAX`.
pub(super) fn whole(text: &[u8]) -> Option<u64> {
    match digits(text) {
        ([], _) => None,
        (number, []) => number
            .iter()
            .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))),
        _ => None,
    }
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let ([_, ..], []) = digits(text) else { return None };
    let size = text.iter().fold(0_i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(1_000_000));
    Some(if negative { -size } else { size })
}

fn length(text: &[u8]) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TimeUnit::{Micros, Millis, Nanos, Seconds};

    #[test]
    fn numbers_are_exact() {
        for (text, unit, nanos) in [
            ("0", Seconds, Some(0)),
            ("27", Millis, Some(27_000_000)),
            ("1700000000.123", Seconds, Some(1_700_000_000_123_000_000)),
            ("1700000000.1234567", Seconds, Some(1_700_000_000_123_456_700)),
            ("1700000000.123456789", Seconds, Some(1_700_000_000_123_456_789)),
            ("1700000000.1234567899", Seconds, Some(1_700_000_000_123_456_789)),
            ("0.30000000000000004", Seconds, Some(300_000_000)),
            ("1700000000123.5", Millis, Some(1_700_000_000_123_500_000)),
            ("1700000000123456", Micros, Some(1_700_000_000_123_456_000)),
            ("1700000000123456789", Nanos, Some(1_700_000_000_123_456_789)),
            ("1.7e9", Seconds, Some(1_700_000_000_000_000_000)),
            ("17E+8", Seconds, Some(1_700_000_000_000_000_000)),
            ("15e-1", Seconds, Some(1_500_000_000)),
            ("1e-400", Seconds, Some(0)),
            ("0e999999999999", Seconds, Some(0)),
            ("1e999999999999", Seconds, None),
            ("000001", Nanos, Some(1)),
            ("18446744073709551615", Nanos, Some(u64::MAX)),
            ("18446744073709551616", Nanos, None),
            ("18446744073.709551615", Seconds, Some(u64::MAX)),
            ("18446744073.709551616", Seconds, None),
        ] {
            let number = Decimal::split(text.as_bytes()).unwrap();
            assert_eq!(number.nanos(unit), nanos, "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_numbers() {
        for text in ["", "-1", "+1", ".5", "5.", "1e", "1e+", "1.5.2", "0x10", "1_000", "NaN", "1 "] {
            assert_eq!(Decimal::split(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_digits_only() {
        for (text, number) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1.0", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(whole(text.as_bytes()), number, "{text}");
        }
    }
}
