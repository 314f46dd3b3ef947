//! Numbers and durations as servers write them, in whole nanoseconds, rounded up and never wrapped.

/// A second, in nanoseconds.
pub(super) const SECOND: u64 = 1_000_000_000;

/// A millisecond, in nanoseconds.
pub(super) const MILLISECOND: u64 = 1_000_000;

/// Digits after the point that are read exactly; a rest that is not zero rounds up. With 18 the product with an hour
/// in nanoseconds stays far below 2^128.
const EXACT_DIGITS: usize = 18;

/// `digits[.digits]` of a `unit`, rounded up. `None` for anything else: no sign, no exponent, no words.
///
/// Whole parts above `u64::MAX` count as `u64::MAX`.
pub(super) fn decimal(text: &[u8], unit: u64) -> Option<u128> {
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        None => (text, None),
        Some(point) => (text.get(..point)?, Some(text.get(point + 1..)?)),
    };
    let whole = u128::from(whole_number(whole)?) * u128::from(unit);
    Some(match fraction {
        None => whole,
        Some(digits) => whole + part(digits, unit)?,
    })
}

/// `digits`, where more than fits is `u64::MAX`.
pub(super) fn whole_number(digits: &[u8]) -> Option<u64> {
    if !are_digits(digits) {
        return None;
    }
    let step = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, step))
}

/// `0.digits` of a `unit`, rounded up.
fn part(digits: &[u8], unit: u64) -> Option<u128> {
    if !are_digits(digits) {
        return None;
    }
    let (exact, rest) = digits.split_at(digits.len().min(EXACT_DIGITS));
    let mut scale = 1_u128;
    let mut numerator = 0_u128;
    for digit in exact {
        scale *= 10;
        numerator = numerator * 10 + u128::from(digit - b'0');
    }
    let has_rest = rest.iter().any(|digit| *digit != b'0');
    Some(((numerator + u128::from(has_rest)) * u128::from(unit)).div_ceil(scale))
}

fn are_digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// A number of JSON, which may have an exponent, as digits without one. `None` if it is negative or out of reach.
pub(super) fn without_exponent(number: &str) -> Option<String> {
    let Some((mantissa, exponent)) = number.split_once(['e', 'E']) else {
        return Some(number.to_owned());
    };
    // A number that `serde_json` accepts lies within 10^-400 and 10^400.
    let exponent: i32 = exponent.parse().ok().filter(|exponent| (-400..=400).contains(exponent))?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut digits = format!("{whole}{fraction}");
    let point = i32::try_from(whole.len()).ok()?.checked_add(exponent)?;
    let Ok(point) = usize::try_from(point) else {
        let zeros = "0".repeat(usize::try_from(point.unsigned_abs()).ok()?);
        return Some(format!("0.{zeros}{digits}"));
    };
    while digits.len() <= point {
        digits.push('0');
    }
    let (whole, fraction) = digits.split_at_checked(point)?;
    Some(format!("{}{whole}.{fraction}", if whole.is_empty() { "0" } else { "" }))
}

/// The units of a Go duration, longer names before those that they begin with.
const GO_UNITS: &[(&[u8], u64)] = &[
    (b"ns", 1),
    (b"us", 1_000),
    ("\u{b5}s".as_bytes(), 1_000),
    ("\u{3bc}s".as_bytes(), 1_000),
    (b"ms", MILLISECOND),
    (b"s", SECOND),
    (b"m", 60 * SECOND),
    (b"h", 3600 * SECOND),
];

/// A Go duration such as `6m0s`, `2m59.56s` or `17ms`: one or more numbers with a unit, without spaces or a sign.
pub(super) fn go_duration(text: &[u8]) -> Option<u128> {
    let mut rest = text;
    let mut total = 0_u128;
    loop {
        let (length, after) = leading_duration_part(rest)?;
        total = total.saturating_add(length);
        if after.is_empty() {
            return Some(total);
        }
        rest = after;
    }
}

/// The longest Go duration that a text begins with, as `7.66s` in `7.66s. Visit us`.
pub(super) fn leading_go_duration(text: &[u8]) -> Option<u128> {
    let (mut total, mut rest) = leading_duration_part(text)?;
    while let Some((length, after)) = leading_duration_part(rest) {
        total = total.saturating_add(length);
        rest = after;
    }
    let ends_a_word = rest.first().is_none_or(|byte| !byte.is_ascii_alphanumeric());
    ends_a_word.then_some(total)
}

fn leading_duration_part(text: &[u8]) -> Option<(u128, &[u8])> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let (number, rest) = text.split_at(end);
    GO_UNITS.iter().find_map(|(name, unit)| Some((decimal(number, *unit)?, rest.strip_prefix(*name)?)))
}

/// The number that a text begins with, such as `1.5` in `1.5 seconds.`, and what follows it.
pub(super) fn leading_number(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let whole = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let after = text.get(whole..)?;
    let fraction = match after.split_first() {
        Some((b'.', digits)) => match digits.iter().take_while(|byte| byte.is_ascii_digit()).count() {
            0 => 0,
            digits => digits + 1,
        },
        _ => 0,
    };
    (whole > 0).then(|| text.split_at(whole + fraction))
}

/// The JSON form of a protobuf duration: seconds with up to nine decimals and an `s`.
pub(super) fn proto_duration(text: &[u8]) -> Option<u128> {
    decimal(text.strip_suffix(b"s")?, SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_round_up() {
        for (text, unit, expected) in [
            ("0", SECOND, Some(0)),
            ("007", SECOND, Some(7_000_000_000)),
            ("1.5", SECOND, Some(1_500_000_000)),
            ("2.0", SECOND, Some(2_000_000_000)),
            ("57.238747106", SECOND, Some(57_238_747_106)),
            ("0.0000000001", SECOND, Some(1)),
            ("0.0000000000000000000000001", SECOND, Some(1)),
            ("0.0000000000000000000000000", SECOND, Some(0)),
            ("1340", MILLISECOND, Some(1_340_000_000)),
            ("0.1234567", MILLISECOND, Some(123_457)),
            ("99999999999999999999999", 1, Some(u128::from(u64::MAX))),
            ("", SECOND, None),
            (".", SECOND, None),
            (".5", SECOND, None),
            ("5.", SECOND, None),
            ("1.2.3", SECOND, None),
            ("-5", SECOND, None),
            ("+5", SECOND, None),
            ("1e3", SECOND, None),
            ("0x10", SECOND, None),
            ("NaN", SECOND, None),
            ("inf", SECOND, None),
            ("1 2", SECOND, None),
            ("\u{0663}", SECOND, None),
        ] {
            assert_eq!(decimal(text.as_bytes(), unit), expected, "{text}");
        }
    }

    #[test]
    fn go_durations() {
        for (text, ms) in [
            ("1s", Some(1_000)),
            ("6m0s", Some(360_000)),
            ("17ms", Some(17)),
            ("2m59.56s", Some(179_560)),
            ("7.66s", Some(7_660)),
            ("500ms", Some(500)),
            ("1h2m3s", Some(3_723_000)),
            ("1.5h", Some(5_400_000)),
            ("2000us", Some(2)),
            ("2000\u{b5}s", Some(2)),
            ("3000000ns", Some(3)),
            ("6m 0s", None),
            ("1m30", None),
            ("-1s", None),
            ("60", None),
            ("s", None),
            (".5s", None),
            ("1d", None),
            ("1.2.3s", None),
            ("", None),
        ] {
            assert_eq!(go_duration(text.as_bytes()), ms.map(|ms: u128| ms * 1_000_000), "{text}");
        }
        assert_eq!(go_duration(b"9.894791955s"), Some(9_894_791_955));
        assert_eq!(leading_go_duration(b"52.454646382s."), Some(52_454_646_382));
        assert_eq!(leading_go_duration(b"6m0s. Visit"), Some(360_000_000_000));
        assert_eq!(leading_go_duration(b"6 seconds"), None);
        assert_eq!(leading_go_duration(b"6subjects"), None);
    }

    #[test]
    fn numbers_of_json_lose_their_exponent() {
        for (text, expected) in [
            ("64.57", Some("64.57")),
            ("1e3", Some("1000.0")),
            ("1.5e1", Some("15.0")),
            ("1.25e1", Some("12.5")),
            ("1e23", Some("100000000000000000000000.0")),
            ("1.5e-7", Some("0.00000015")),
            ("12.5e-1", Some("1.25")),
            ("1.25e-1", Some("0.125")),
            ("1e500", None),
            ("-1e3", None),
        ] {
            assert_eq!(without_exponent(text).as_deref(), expected, "{text}");
        }
        assert_eq!(decimal(without_exponent("1e3").unwrap().as_bytes(), 1), Some(1000));
    }

    #[test]
    fn leading_numbers() {
        let number = |text: &'static str| leading_number(text.as_bytes()).map(|(number, _)| number);
        assert_eq!(number("6 seconds."), Some(&b"6"[..]));
        assert_eq!(number("1.5 s"), Some(&b"1.5"[..]));
        assert_eq!(number("6."), Some(&b"6"[..]));
        assert_eq!(number("soon"), None);
    }
}
