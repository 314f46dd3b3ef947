//! Written dates to nanoseconds since 1970.
//!
//! Traffic repeats its minutes: the calendar is asked only when the text of date, hour and minute differs from the
//! one before. Seconds, fraction and offset are read on every call.

use jiff::civil::DateTime;
use jiff::tz::Offset;

/// Why a text is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DateError {
    /// It has another form.
    Form,
    /// It is before 1970 or, in nanoseconds, beyond 64 bits (July 2554).
    Range,
}

/// Reads dates, and remembers the last minute.
#[derive(Debug, Default)]
pub(super) struct Dates {
    text: [u8; 17],
    length: usize,
    seconds: i64,
}

impl Dates {
    /// `17/May/2015:10:05:03 +0000`, with or without brackets around it.
    pub(super) fn log_time(&mut self, text: &[u8]) -> Result<u64, DateError> {
        let text = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
        let (Some((minute, rest)), 26) = (text.split_at_checked(17), text.len()) else {
            return Err(DateError::Form);
        };
        let (b':', b' ') = (rest[0], rest[3]) else { return Err(DateError::Form) };
        let second = second(&rest[1..3])?;
        let offset = offset(&rest[4..])?;
        nanos(self.minute(minute, log_minute)? + second - offset, 0)
    }

    /// `2024-05-17T10:05:03.25+02:00`; also a space for the `T`, up to 9 digits of fraction, `+0200`.
    pub(super) fn rfc3339(&mut self, text: &[u8]) -> Result<u64, DateError> {
        let (seconds, fraction, zone) = self.date_time(text)?;
        nanos(seconds - offset(zone)?, fraction)
    }

    /// `2024-05-17 10:05:03.25` in UTC; also a `T` for the space, up to 9 digits of fraction.
    pub(super) fn utc(&mut self, text: &[u8]) -> Result<u64, DateError> {
        match self.date_time(text)? {
            (seconds, fraction, []) => nanos(seconds, fraction),
            _ => Err(DateError::Form),
        }
    }

    /// Seconds since 1970 as if in UTC, nanoseconds, and the text behind them.
    fn date_time<'a>(&mut self, text: &'a [u8]) -> Result<(i64, u32, &'a [u8]), DateError> {
        let (minute, rest) = text.split_at_checked(16).ok_or(DateError::Form)?;
        let [b':', tens, ones, rest @ ..] = rest else { return Err(DateError::Form) };
        let seconds = self.minute(minute, iso_minute)? + second(&[*tens, *ones])?;
        let Some(rest) = rest.strip_prefix(b".") else { return Ok((seconds, 0, rest)) };
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=9).contains(&length) {
            return Err(DateError::Form);
        }
        let (digits, rest) = rest.split_at(length);
        let fraction = (0..9)
            .fold(0, |sum, place| sum * 10 + digits.get(place).map_or(0, |digit| u32::from(digit - b'0')));
        Ok((seconds, fraction, rest))
    }

    /// Seconds since 1970 at the start of a minute in UTC, from the calendar or from memory.
    fn minute(&mut self, text: &[u8], parse: fn(&[u8]) -> Option<DateTime>) -> Result<i64, DateError> {
        if self.text[..self.length] != *text {
            let date = parse(text).ok_or(DateError::Form)?;
            let timestamp = Offset::UTC.to_timestamp(date).map_err(|_| DateError::Range)?;
            self.length = text.len();
            self.text[..text.len()].copy_from_slice(text);
            self.seconds = timestamp.as_second();
        }
        Ok(self.seconds)
    }
}

/// `17/May/2015:10:05`
fn log_minute(text: &[u8]) -> Option<DateTime> {
    const MONTHS: [&[u8; 3]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let &[d1, d2, b'/', m1, m2, m3, b'/', y1, y2, y3, y4, b':', h1, h2, b':', n1, n2] = text else {
        return None;
    };
    let month = (1_i8..).zip(MONTHS).find(|(_, name)| **name == [m1, m2, m3])?.0;
    civil([y1, y2, y3, y4], month, [d1, d2], [h1, h2], [n1, n2])
}

/// `2024-05-17T10:05`
fn iso_minute(text: &[u8]) -> Option<DateTime> {
    let &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', h1, h2, b':', n1, n2] = text else {
        return None;
    };
    civil([y1, y2, y3, y4], pair([m1, m2])?, [d1, d2], [h1, h2], [n1, n2])
}

fn civil(year: [u8; 4], month: i8, day: [u8; 2], hour: [u8; 2], minute: [u8; 2]) -> Option<DateTime> {
    let [y1, y2, y3, y4] = year;
    let year = i16::from(pair([y1, y2])?) * 100 + i16::from(pair([y3, y4])?);
    DateTime::new(year, month, pair(day)?, pair(hour)?, pair(minute)?, 0, 0).ok()
}

/// Two digits; at most 99, so it fits.
fn pair([tens, ones]: [u8; 2]) -> Option<i8> {
    if !(tens.is_ascii_digit() && ones.is_ascii_digit()) {
        return None;
    }
    i8::try_from((tens - b'0') * 10 + (ones - b'0')).ok()
}

/// Two digits up to 60: a leap second counts as the second after it, as it does in epoch time.
fn second(text: &[u8]) -> Result<i64, DateError> {
    let &[tens, ones] = text else { return Err(DateError::Form) };
    match pair([tens, ones]) {
        Some(second @ 0..=60) => Ok(i64::from(second)),
        _ => Err(DateError::Form),
    }
}

/// Seconds east of UTC: `Z`, `+02:00` or `+0200`.
fn offset(text: &[u8]) -> Result<i64, DateError> {
    let (sign, hours, minutes) = match *text {
        [b'Z' | b'z'] => return Ok(0),
        [sign, h1, h2, b':', m1, m2] | [sign, h1, h2, m1, m2] => (sign, pair([h1, h2]), pair([m1, m2])),
        _ => return Err(DateError::Form),
    };
    let (Some(hours @ 0..=23), Some(minutes @ 0..=59)) = (hours, minutes) else {
        return Err(DateError::Form);
    };
    let seconds = i64::from(hours) * 3_600 + i64::from(minutes) * 60;
    match sign {
        b'+' => Ok(seconds),
        b'-' => Ok(-seconds),
        _ => Err(DateError::Form),
    }
}

fn nanos(seconds: i64, fraction: u32) -> Result<u64, DateError> {
    u64::try_from(seconds)
        .ok()
        .and_then(|seconds| seconds.checked_mul(1_000_000_000)?.checked_add(u64::from(fraction)))
        .ok_or(DateError::Range)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn log_times() {
        let mut dates = Dates::default();
        for (text, nanos) in [
            ("17/May/2015:10:05:03 +0000", Ok(1_431_857_103 * SECOND)),
            ("[17/May/2015:10:05:03 +0000]", Ok(1_431_857_103 * SECOND)),
            ("17/May/2015:12:05:03 +0200", Ok(1_431_857_103 * SECOND)),
            ("17/May/2015:04:35:03 -0530", Ok(1_431_857_103 * SECOND)),
            ("01/Jan/1970:00:00:00 +0000", Ok(0)),
            ("01/Jan/1970:00:00:00 +0100", Err(DateError::Range)),
            ("29/Feb/2024:00:00:00 +0000", Ok(1_709_164_800 * SECOND)),
            ("31/Dec/2016:23:59:60 +0000", Ok(1_483_228_800 * SECOND)),
            ("29/Feb/2023:00:00:00 +0000", Err(DateError::Form)),
            ("17/may/2015:10:05:03 +0000", Err(DateError::Form)),
            ("17/May/2015:24:05:03 +0000", Err(DateError::Form)),
            ("17/May/2015:10:60:03 +0000", Err(DateError::Form)),
            ("17/May/2015:10:05:61 +0000", Err(DateError::Form)),
            ("17/May/2015:10:05:03 00000", Err(DateError::Form)),
            ("17/May/2015:10:05:03", Err(DateError::Form)),
            ("", Err(DateError::Form)),
        ] {
            assert_eq!(dates.log_time(text.as_bytes()), nanos, "{text}");
        }
    }

    #[test]
    fn dates_with_and_without_a_zone() {
        let mut dates = Dates::default();
        for (text, zoned, bare) in [
            ("2023-11-16T18:17:03Z", Ok(1_700_158_623 * SECOND), Err(DateError::Form)),
            ("2023-11-16t18:17:03z", Ok(1_700_158_623 * SECOND), Err(DateError::Form)),
            ("2023-11-16 20:17:03+02:00", Ok(1_700_158_623 * SECOND), Err(DateError::Form)),
            ("2023-11-16T12:47:03.5-0530", Ok(1_700_158_623 * SECOND + SECOND / 2), Err(DateError::Form)),
            ("2023-11-16 18:17:03", Err(DateError::Form), Ok(1_700_158_623 * SECOND)),
            ("2023-11-16T18:17:03.9799600", Err(DateError::Form), Ok(1_700_158_623_979_960_000)),
            ("2023-11-16 18:17:03.123456789", Err(DateError::Form), Ok(1_700_158_623_123_456_789)),
            ("2023-11-16 18:17:03.1234567890", Err(DateError::Form), Err(DateError::Form)),
            ("2023-11-16 18:17:03.", Err(DateError::Form), Err(DateError::Form)),
            ("2023-11-16 18:17", Err(DateError::Form), Err(DateError::Form)),
            ("2023-13-16 18:17:03", Err(DateError::Form), Err(DateError::Form)),
            ("1969-12-31T23:59:59Z", Err(DateError::Range), Err(DateError::Form)),
            ("2554-07-21T23:34:33.709551615Z", Ok(u64::MAX), Err(DateError::Form)),
            ("2554-07-21T23:34:33.709551616Z", Err(DateError::Range), Err(DateError::Form)),
            ("9000-12-31T23:59:59Z", Err(DateError::Range), Err(DateError::Form)),
        ] {
            assert_eq!(dates.rfc3339(text.as_bytes()), zoned, "{text} zoned");
            assert_eq!(dates.utc(text.as_bytes()), bare, "{text} bare");
        }
    }
}
