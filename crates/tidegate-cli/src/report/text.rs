//! Numbers and names as people read them.

use std::borrow::Cow;
use std::time::Duration;

/// A text from outside, with its control characters written out, as `\n` and `\u{1b}`: a name in a report can neither
/// break a line, nor command the terminal, nor turn the text around, nor make an SVG file illegal.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_command) {
        return text.into();
    }
    let mut line = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_command(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.into()
}

/// Whether a character is a command rather than text: control characters, breaks of lines and paragraphs, changes of
/// direction, and what XML does not allow.
fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}'
        )
}

/// A time with three digits or so: `0`, `250ms`, `1.5s`, `2m 30s`, `1h 5m`, `3d 2h`. Rounded to the nearest.
pub(crate) fn duration(time: Duration) -> String {
    let ns = time.as_nanos();
    match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", decimal(ns, 1_000)),
        1_000_000..999_500_000 => format!("{}ms", decimal(ns, 1_000_000)),
        999_500_000..59_500_000_000 => format!("{}s", decimal(ns, 1_000_000_000)),
        _ => {
            let seconds = (ns + 500_000_000) / 1_000_000_000;
            let (large, small, units) = if seconds < 3600 {
                (seconds / 60, seconds % 60, ("m", "s"))
            } else if seconds < 86_400 {
                (seconds / 3600, seconds % 3600 / 60, ("h", "m"))
            } else {
                (seconds / 86_400, seconds % 86_400 / 3600, ("d", "h"))
            };
            if small == 0 {
                format!("{large}{}", units.0)
            } else {
                format!("{large}{} {small}{}", units.0, units.1)
            }
        }
    }
}

/// `n / unit` with at most three digits in all, without zeros at the end.
fn decimal(n: u128, unit: u128) -> String {
    let decimals = match n / unit {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    let scale = 10_u128.pow(decimals);
    let scaled = (n * scale + unit / 2) / unit;
    let (whole, rest) = (scaled / scale, scaled % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let width = decimals as usize;
    format!("{whole}.{rest:0width$}").trim_end_matches('0').to_owned()
}

/// `part` of `whole` in percent with one decimal.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0.0%".to_owned();
    }
    let per_mille = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{}%", per_mille / 10, per_mille % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_rounded_to_the_nearest() {
        for (ns, expected) in [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5us"),
            (250_000_000, "250ms"),
            (1_234_567, "1.23ms"),
            (12_345_678, "12.3ms"),
            (999_499_999, "999ms"),
            (999_600_000, "1s"),
            (1_000_000_000, "1s"),
            (1_500_000_000, "1.5s"),
            (59_600_000_000, "1m"),
            (150_000_000_000, "2m 30s"),
            (3_900_000_000_000, "1h 5m"),
            (266_400_000_000_000, "3d 2h"),
        ] {
            assert_eq!(duration(Duration::from_nanos(ns)), expected, "{ns}");
        }
    }

    #[test]
    fn names_from_outside_stay_in_their_line() {
        assert_eq!(one_line("a b\u{301}🦀"), "a b\u{301}🦀");
        assert_eq!(one_line("a\u{202e}b\u{2028}\u{ffff}"), "a\\u{202e}b\\u{2028}\\u{ffff}");
        assert_eq!(one_line("a\n\u{1b}[31m\0\u{85}"), "a\\n\\u{1b}[31m\\u{0}\\u{85}");
    }

    #[test]
    fn shares_are_percents() {
        assert_eq!(share(1, 3), "33.3%");
        assert_eq!(share(0, 0), "0.0%");
        assert_eq!(share(u64::MAX, u64::MAX), "100.0%");
    }
}
