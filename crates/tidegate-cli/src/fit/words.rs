//! How rates and shares are read, and how exact numbers, times and durations are written.

use tidegate_sim::fit::{Decimal, Fraction, Rate, Share};

/// The units a rate may be given per, in nanoseconds.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("min", 60 * SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
];

const SECOND: u64 = 1_000_000_000;

/// Decimals of a fraction that ends; one more would only be digits of nanoseconds.
const PLACES_EXACT: usize = 9;

/// Decimals of a fraction that does not end.
const PLACES_ROUNDED: usize = 6;

/// 1980-01-01 in nanoseconds since the Unix epoch: a trace that begins before has times from zero, not dates.
const DATED_FROM: u64 = 315_532_800 * SECOND;

/// Reads `5`, `0.5`, `5/s`, `100/min` or `1 per 10s`; a number alone is per second.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let help = || format!("`{text}` is not a rate; write `5`, `0.5/s`, `100/min` or `1 per 10s`");
    let (count, per) = text.split_once(" per ").or_else(|| text.split_once('/')).unwrap_or((text, "s"));
    let per = per.trim();
    let digits = per.len() - per.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (many, unit) = per.split_at(digits);
    let many: u64 = if many.is_empty() { 1 } else { many.parse().map_err(|_| help())? };
    let (_, unit) = UNITS.iter().find(|(word, _)| *word == unit.trim()).ok_or_else(help)?;
    let (count, scale) = decimal(count.trim()).ok_or_else(help)?;
    let per = many.checked_mul(*unit).and_then(|per| per.checked_mul(scale)).ok_or_else(help)?;
    if count == 0 {
        return Err("a rate is above 0".to_owned());
    }
    Rate::new(count, per).map_err(|error| error.to_string())
}

/// Reads `0.1%` or `0.001`.
pub(super) fn share(text: &str) -> Result<Share, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1), |number| (number, 100));
    let (numerator, denominator) =
        decimal(number.trim()).ok_or_else(|| format!("`{text}` is not a share; write `0.1%` or `0.001`"))?;
    let denominator = denominator.checked_mul(scale).ok_or("a share has at most 17 decimals")?;
    Share::new(numerator, denominator).map_err(|error| error.to_string())
}

/// A decimal number as a fraction whose numerator is as small as its decimals allow: `0.5` is `(1, 2)`.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(decimals) {
        return None;
    }
    let decimals = decimals.trim_end_matches('0');
    let mut scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let mut number: u64 = format!("{whole}{decimals}").parse().ok()?;
    for factor in [2, 5] {
        while scale.is_multiple_of(factor) && number.is_multiple_of(factor) {
            scale /= factor;
            number /= factor;
        }
    }
    Some((number, scale))
}

/// The digits of a fraction: all of them if they end soon, otherwise six decimals, rounded up.
pub(super) fn digits(fraction: Fraction) -> Decimal {
    let exact = fraction.decimal(PLACES_EXACT);
    if exact.exact { exact } else { fraction.decimal(PLACES_ROUNDED) }
}

/// A fraction as text; `≤` marks one that was rounded up.
pub(super) fn number(fraction: Fraction) -> String {
    let Decimal { text, exact } = digits(fraction);
    if exact { text } else { format!("≤ {text}") }
}

/// A duration at a glance, rounded up: `0 s`, `250 us`, `31.5 ms`, `12.345 s`, `57.27 min`, `26.5 h`.
pub(super) fn duration(ns: u64) -> String {
    // (used below, unit, word, decimals)
    let steps: [(u64, u64, &str, u32); 5] = [
        (1_000_000, 1_000, "us", 0),
        (SECOND, 1_000_000, "ms", 1),
        (120 * SECOND, SECOND, "s", 3),
        (7_200 * SECOND, 60 * SECOND, "min", 2),
        (172_800 * SECOND, 3_600 * SECOND, "h", 2),
    ];
    if ns == 0 {
        return "0 s".to_owned();
    }
    let (_, unit, word, places) =
        steps.into_iter().find(|step| ns < step.0).unwrap_or((0, 86_400 * SECOND, "d", 2));
    let scale = 10_u128.pow(places);
    let parts = (u128::from(ns) * scale).div_ceil(unit.into());
    let (whole, rest) = (parts / scale, parts % scale);
    if rest == 0 {
        return format!("{whole} {word}");
    }
    let rest = format!("{rest:0width$}", width = places as usize);
    format!("{whole}.{} {word}", rest.trim_end_matches('0'))
}

/// The date and time of `ns`, if the times of the trace are dates.
pub(super) fn date(ns: u64) -> Option<String> {
    if ns < DATED_FROM {
        return None;
    }
    jiff::Timestamp::from_nanosecond(ns.into()).ok().map(|at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_exactly() {
        let rows = [
            ("5", "5/s"),
            ("0.5", "1 per 2s"),
            ("5/s", "5/s"),
            ("100/min", "100/min"),
            ("1 per 10s", "1 per 10s"),
            ("2.5/h", "5 per 2h"),
            ("3 per 1 min", "3/min"),
        ];
        for (text, printed) in rows {
            assert_eq!(rate(text).map(|rate| rate.to_string()).as_deref(), Ok(printed), "{text}");
        }
        for wrong in
            ["", "x", "5/", "5/x", "-1", "0", "1e3", "1 per 0s", "5/s/s", ".5", "99999999999999999999"]
        {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_read_exactly() {
        assert_eq!(share("0.1%"), Ok(Share::new(1, 1_000).unwrap()));
        assert_eq!(share("0.001"), Ok(Share::new(1, 1_000).unwrap()));
        assert_eq!(share("0"), Ok(Share::new(0, 1).unwrap()));
        assert!(share("101%").is_err() && share("2").is_err() && share("some").is_err());
    }

    #[test]
    fn durations_are_rounded_up() {
        let rows = [
            (0, "0 s"),
            (1, "1 us"),
            (31_460_001, "31.5 ms"),
            (12 * SECOND + 1, "12.001 s"),
            (3_436 * SECOND, "57.27 min"),
            (95_400 * SECOND, "26.5 h"),
        ];
        for (ns, text) in rows {
            assert_eq!(duration(ns), text);
        }
    }
}
