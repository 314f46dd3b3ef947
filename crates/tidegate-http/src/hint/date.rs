//! Dates: the three forms of HTTP and RFC 3339, in nanoseconds since 1970 (UTC).
//!
//! The forms are those of RFC 9110 5.6.7. Beyond them: the name of the day is not checked, and a zone may be `UTC`, `Z`
//! or an offset, since a hint that is dropped over such a detail makes the caller come back too early. A date that no
//! calendar has is none.

use super::number::{SECOND, whole_number};

/// A day, in seconds.
const DAY: i64 = 86_400;

/// Days from 0000-03-01, where the years of the algorithm begin, to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;

/// A date in one of the forms of HTTP. `now` settles the century of a year with two digits.
pub(super) fn http_date(text: &[u8], now: i128) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = [""; 6];
    let mut count = 0;
    for word in text.split_ascii_whitespace() {
        *words.get_mut(count)? = word;
        count += 1;
    }
    let (date, time, zone) = match words.get(..count)? {
        // IMF-fixdate: `Mon, 30 Nov 2026 12:00:30 GMT`.
        [name, day, month, year, time, zone] if is_day_name(name.strip_suffix(',')?) => {
            (date(year, month, day, now)?, time, zone)
        }
        // RFC 850: `Monday, 30-Nov-26 12:00:30 GMT`.
        [name, date_words, time, zone] if is_day_name(name.strip_suffix(',')?) => {
            let mut parts = date_words.splitn(3, '-');
            let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
            (date(year, month, day, now)?, time, zone)
        }
        // asctime: `Mon Nov 30 12:00:30 2026`.
        [name, month, day, time, year] if is_day_name(name) && year.len() == 4 => {
            (date(year, month, day, now)?, time, &"GMT")
        }
        _ => return None,
    };
    let seconds = date * DAY + time_of_day(time)? - offset(zone)?;
    Some(i128::from(seconds) * i128::from(SECOND))
}

/// `2026-11-30T12:00:30.25+01:00`.
pub(super) fn rfc3339(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (date, rest) = text.split_at_checked(10)?;
    let [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-', _, _, b'-', _, _] = date.as_bytes() else {
        return None;
    };
    let days = days(number(date.get(..4)?, 4)?, number(date.get(5..7)?, 2)?, number(date.get(8..)?, 2)?)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, rest) = rest.split_at_checked(8)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let end = rest.find(|character: char| !character.is_ascii_digit())?;
            let (digits, zone) = rest.split_at(end);
            (super::number::decimal(format!("0.{digits}").as_bytes(), SECOND)?, zone)
        }
    };
    let is_offset = zone.len() == 6 && zone.as_bytes().get(3) == Some(&b':');
    let offset = match zone {
        "Z" | "z" => 0,
        _ if is_offset => offset(&zone.replacen(':', "", 1))?,
        _ => return None,
    };
    let seconds = days * DAY + time_of_day(time)? - offset;
    Some(i128::from(seconds) * i128::from(SECOND) + i128::try_from(fraction).ok()?)
}

fn is_day_name(word: &str) -> bool {
    (3..=9).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// Days since 1970 of a year with four digits or two, the name of a month, and a day.
fn date(year: &str, month: &str, day: &str, now: i128) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))?;
    let year = match year.len() {
        4 => number(year, 4)?,
        2 => full_year(number(year, 2)?, now)?,
        _ => return None,
    };
    let day = number(day, day.len()).filter(|_| day.len() <= 2)?;
    days(year, i64::try_from(month).ok()? + 1, day)
}

/// The year with these last two digits that is nearest to now: at most 50 years ahead, and less than 50 ago.
fn full_year(digits: i64, now: i128) -> Option<i64> {
    let today = i64::try_from(now.div_euclid(i128::from(SECOND))).ok()?.div_euclid(DAY);
    let this_year = 1970 + today.saturating_mul(400).div_euclid(146_097);
    let earliest = this_year - 49;
    Some(earliest + (digits - earliest).rem_euclid(100))
}

/// Days since 1970 of a date in the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    // Years that begin in March, so that the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(days + day_of_year - DAYS_TO_1970)
}

/// Seconds of `12:00:30`. A second 60 is a leap second, and counts as the next.
fn time_of_day(text: &str) -> Option<i64> {
    let [_, _, b':', _, _, b':', _, _] = text.as_bytes() else { return None };
    let part = |at: usize, most: i64| number(text.get(at..at + 2)?, 2).filter(|part| *part <= most);
    Some(part(0, 23)? * 3600 + part(3, 59)? * 60 + part(6, 60)?)
}

/// Seconds east of UTC: `GMT`, `UTC`, `Z`, `+0100`.
fn offset(zone: &str) -> Option<i64> {
    if ["GMT", "UTC", "UT", "Z"].iter().any(|name| name.eq_ignore_ascii_case(zone)) {
        return Some(0);
    }
    let sign = match zone.as_bytes() {
        [b'+', _, _, _, _] => 1,
        [b'-', _, _, _, _] => -1,
        _ => return None,
    };
    let part = |at: usize, most: i64| number(zone.get(at..at + 2)?, 2).filter(|part| *part <= most);
    Some(sign * (part(1, 23)? * 3600 + part(3, 59)? * 60))
}

/// Exactly `width` digits.
fn number(text: &str, width: usize) -> Option<i64> {
    if text.len() != width {
        return None;
    }
    i64::try_from(whole_number(text.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30T12:00:00Z.
    const NOW: i128 = 1_796_040_000 * 1_000_000_000;

    #[test]
    fn the_forms_of_http() {
        for (text, seconds_from_now) in [
            ("Mon, 30 Nov 2026 12:00:30 GMT", Some(30)),
            ("Monday, 30-Nov-26 12:00:30 GMT", Some(30)),
            ("Mon Nov 30 12:00:30 2026", Some(30)),
            ("Wed Dec  2 12:00:00 2026", Some(172_800)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777 - 1_796_040_000)),
            // The two digits mean the nearest such year.
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777 - 1_796_040_000)),
            ("Monday, 30-Nov-76 12:00:00 GMT", Some(18_263 * 86_400)),
            ("Wednesday, 30-Nov-77 12:00:00 GMT", Some(249_739_200 - 1_796_040_000)),
            // Beyond the grammar.
            ("Sun, 30 Nov 2026 12:00:30 GMT", Some(30)),
            ("mon, 30 nov 2026 12:00:30 gmt", Some(30)),
            ("Mon, 30 Nov 2026 12:00:30 +0000", Some(30)),
            ("Mon, 30 Nov 2026 13:00:30 +0100", Some(30)),
            ("Mon, 30 Nov 2026 12:00:30 UTC", Some(30)),
            ("Mon, 30-Nov-2026 12:00:30 GMT", Some(30)),
            ("Mon, 30 Nov 2026 12:00:60 GMT", Some(60)),
            // No dates.
            ("Mon, 30 Feb 2026 12:00:30 GMT", None),
            ("Mon, 29 Feb 2027 12:00:30 GMT", None),
            ("Mon, 00 Nov 2026 12:00:30 GMT", None),
            ("Mon, 30 Nov 2026 24:00:30 GMT", None),
            ("Mon, 30 Nov 2026 12:60:30 GMT", None),
            ("Mon, 30 Nov 2026 12:00:61 GMT", None),
            ("Mon, 30 Nov 2026 1:00:30 GMT", None),
            ("Mon, 30 Nov 2026 12:00:30 CET", None),
            ("Mon, 30 Nov 2026 12:00:30", None),
            ("Mon, 30 Brumaire 2026 12:00:30 GMT", None),
            ("Mon Nov 30 2026 13:00:30 GMT+0100 (Central European Standard Time)", None),
            ("Mon Nov 30 2026 13:00:30", None),
            ("2026-11-30T12:00:30Z", None),
            ("", None),
            (",", None),
        ] {
            let expected = seconds_from_now.map(|seconds: i128| NOW + seconds * 1_000_000_000);
            assert_eq!(http_date(text.as_bytes(), NOW), expected, "{text}");
        }
    }

    #[test]
    fn rfc_3339() {
        for (text, ms_from_now) in [
            ("2026-11-30T12:00:42Z", Some(42_000)),
            ("2026-11-30t12:00:42z", Some(42_000)),
            ("2026-11-30 12:00:42Z", Some(42_000)),
            ("2026-11-30T14:00:10.250+02:00", Some(10_250)),
            ("2026-11-30T05:30:10-06:30", Some(10_000)),
            ("2026-11-30T11:59:59Z", Some(-1_000)),
            ("2026-12-01T00:00:00Z", Some(43_200_000)),
            ("2026-11-31T12:00:00Z", None),
            ("2026-13-01T12:00:00Z", None),
            ("2026-11-30T12:00:42", None),
            ("2026-11-30T12:00:42.Z", None),
            ("2026-11-30T12:00:42.5", None),
            ("2026-11-30T12:00:42+0200", None),
            ("2026-11-30", None),
            ("20261130T120042Z", None),
            ("", None),
        ] {
            let expected = ms_from_now.map(|ms: i128| NOW + ms * 1_000_000);
            assert_eq!(rfc3339(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(rfc3339(b"2000-02-29T00:00:00Z"), Some(951_782_400 * 1_000_000_000));
        assert_eq!(rfc3339(b"1969-12-31T23:59:59Z"), Some(-1_000_000_000));
        assert_eq!(rfc3339(b"0000-01-01T00:00:00Z"), Some(-62_167_219_200 * 1_000_000_000));
    }
}
