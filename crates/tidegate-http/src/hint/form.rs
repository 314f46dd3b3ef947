//! How a time is written: from the text of a header or a body to a time from now.

use super::date::{http_date, rfc3339};
use super::number::{
    MILLISECOND, SECOND, decimal, go_duration, leading_go_duration, leading_number, proto_duration,
    whole_number,
};
use super::profile::Form;
use super::tables::{PHRASES, WORD_UNITS};

/// Bytes of a sentence that are looked at.
const SENTENCE_MAX: usize = 4096;

/// From here a number of seconds is one since 1970: September 2001. As a wait it is 31 years.
const EPOCH_SECONDS_FROM: u64 = 1_000_000_000;

/// From here a number is milliseconds since 1970; as seconds it is the year 33658.
const EPOCH_MS_FROM: u64 = 1_000_000_000_000;

/// Below this an untyped number is seconds from now: 30 days. What lies between is neither and is not used.
const DELTA_BELOW: u64 = 30 * 86_400;

/// How far from now an instant since 1970 may be: 366 days. No quota resets beyond it.
const NEAR: u128 = 366 * 86_400 * SECOND as u128;

/// The time that instants are compared with, in nanoseconds since 1970: the response's own `Date`, or else now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(pub(super) i128);

/// A time that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// Nanoseconds from now, 0 for an instant that is past.
    pub(super) ns: u128,
    /// Whether it can be the ceiling, in whole seconds, of a finer one.
    pub(super) is_coarse: bool,
    /// Whether an instant stood where a delay is written.
    pub(super) is_odd_instant: bool,
}

impl Clock {
    /// Reads `text`, which has no white space around it.
    pub(super) fn read(self, form: Form, text: &[u8]) -> Option<Reading> {
        match form {
            Form::RetryAfter => self.retry_after(text),
            Form::Seconds => self.seconds(text),
            Form::Milliseconds => decimal(text, MILLISECOND).map(delay),
            Form::WholeMilliseconds => Some(delay(u128::from(whole_number(text)?) * u128::from(MILLISECOND))),
            Form::GoDuration => go_duration(text).or_else(|| decimal(text, SECOND)).map(delay),
            Form::ProtoDuration => proto_duration(text).map(delay),
            Form::Untyped => self.untyped(text),
        }
    }

    fn retry_after(self, text: &[u8]) -> Option<Reading> {
        if let Some(instant) = self.date(text) {
            return Some(instant);
        }
        // A list of numbers: the longest. A list with anything else in it is none.
        let mut longest: Option<Reading> = None;
        for part in text.split(|byte| *byte == b',') {
            let reading = self.seconds(part.trim_ascii())?;
            if longest.is_none_or(|longest| longest.ns < reading.ns) {
                longest = Some(reading);
            }
        }
        longest
    }

    /// Seconds from now. What is a near instant in seconds or milliseconds since 1970, and as a delay longer than 31
    /// years, is taken for the instant.
    fn seconds(self, text: &[u8]) -> Option<Reading> {
        let ns = decimal(text, SECOND)?;
        Some(match self.epoch(text).filter(|instant| self.is_near(*instant)) {
            Some(instant) => Reading { is_odd_instant: true, ..self.until(instant) },
            None => delay(ns),
        })
    }

    fn untyped(self, text: &[u8]) -> Option<Reading> {
        if let Some(ns) = decimal(text, SECOND) {
            return match self.epoch(text) {
                Some(instant) => self.is_near(instant).then(|| self.until(instant)),
                None => (ns < u128::from(DELTA_BELOW) * u128::from(SECOND)).then(|| delay(ns)),
            };
        }
        go_duration(text).map(delay).or_else(|| self.date(text))
    }

    fn date(self, text: &[u8]) -> Option<Reading> {
        http_date(text, self.0).or_else(|| rfc3339(text)).map(|instant| self.until(instant))
    }

    /// A number as an instant since 1970, if it is large enough to be one.
    fn epoch(self, text: &[u8]) -> Option<i128> {
        let whole = text.split(|byte| *byte == b'.').next().and_then(whole_number)?;
        let unit = match whole {
            EPOCH_MS_FROM.. => MILLISECOND,
            EPOCH_SECONDS_FROM.. => SECOND,
            _ => return None,
        };
        i128::try_from(decimal(text, unit)?).ok()
    }

    fn is_near(self, instant: i128) -> bool {
        instant.abs_diff(self.0) <= NEAR
    }

    fn until(self, instant: i128) -> Reading {
        let ns = u128::try_from(instant.saturating_sub(self.0)).unwrap_or(0);
        Reading { ns, is_coarse: true, is_odd_instant: false }
    }
}

/// A time from now.
pub(super) fn delay(ns: u128) -> Reading {
    Reading { ns, is_coarse: ns.is_multiple_of(u128::from(SECOND)), is_odd_instant: false }
}

/// Whole seconds in nanoseconds.
pub(super) fn seconds(seconds: u64) -> u128 {
    u128::from(seconds) * u128::from(SECOND)
}

/// The longest time that a sentence tells: `Please retry in 52.4s.`, `try again in 6m0s`, `retry after 6 seconds`.
pub(super) fn told_in(sentence: &str) -> Option<Reading> {
    let bytes = sentence.as_bytes();
    let lower = bytes.get(..SENTENCE_MAX).unwrap_or(bytes).to_ascii_lowercase();
    let times = PHRASES.iter().filter_map(|phrase| {
        let start = lower.windows(phrase.len()).position(|window| window == phrase.as_bytes())?;
        let rest = lower.get(start + phrase.len()..)?;
        leading_go_duration(rest).or_else(|| in_words(rest))
    });
    times.max().map(delay)
}

/// `6 seconds`.
fn in_words(text: &[u8]) -> Option<u128> {
    let (number, rest) = leading_number(text)?;
    let rest = rest.trim_ascii_start();
    // A short unit is a whole word; of a long one the plural counts as well.
    let is_unit = |name: &str| match rest.strip_prefix(name.as_bytes()) {
        Some(after) => name.len() > 2 || !after.first().is_some_and(u8::is_ascii_alphabetic),
        None => false,
    };
    let (_, unit) = WORD_UNITS.iter().find(|(name, _)| is_unit(name))?;
    decimal(number, *unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30T12:00:00Z.
    const NOW: Clock = Clock(1_796_040_000 * 1_000_000_000);

    fn ms(form: Form, text: &str) -> Option<u128> {
        NOW.read(form, text.as_bytes()).map(|reading| reading.ns / 1_000_000)
    }

    #[test]
    fn retry_after() {
        for (text, expected) in [
            ("120", Some(120_000)),
            ("0", Some(0)),
            ("1.5", Some(1_500)),
            ("5, 10", Some(10_000)),
            ("10,5", Some(10_000)),
            ("5, soon", None),
            ("5,", None),
            ("Mon, 30 Nov 2026 12:00:30 GMT", Some(30_000)),
            ("2026-11-30T12:00:30Z", Some(30_000)),
            ("Mon, 30 Nov 2020 12:00:30 GMT", Some(0)),
            // An instant where a delay is written. As a delay it would be 57 years.
            ("1796040030", Some(30_000)),
            ("1796040030.5", Some(30_500)),
            ("1796040030000", Some(30_000)),
            ("1796039970", Some(0)),
            // Not near, so it is what it says.
            ("1000000000", Some(1_000_000_000_000)),
            ("-5", None),
            ("+5", None),
            ("", None),
            ("NaN", None),
            ("inf", None),
            ("1e3", None),
            ("0x10", None),
            ("120s", None),
            ("soon", None),
        ] {
            assert_eq!(ms(Form::RetryAfter, text), expected, "{text}");
        }
        assert!(NOW.read(Form::RetryAfter, b"1796040030").unwrap().is_odd_instant);
    }

    #[test]
    fn untyped() {
        for (text, expected) in [
            ("60", Some(60_000)),
            ("0", Some(0)),
            ("0.5", Some(500)),
            ("2591999", Some(2_591_999_000)),
            ("2592000", None),
            ("999999999", None),
            ("1796040045", Some(45_000)),
            ("1796040064.57", Some(64_570)),
            ("1796040045000", Some(45_000)),
            ("1796039990", Some(0)),
            ("1372700873", None),
            ("6m0s", Some(360_000)),
            ("2m59.56s", Some(179_560)),
            ("7.66s", Some(7_660)),
            ("500ms", Some(500)),
            ("2026-11-30T12:00:42Z", Some(42_000)),
            ("Mon, 30 Nov 2026 12:00:30 GMT", Some(30_000)),
            ("6m 0s", None),
            ("-1", None),
            ("soon", None),
            ("99999999999999999999999999", None),
        ] {
            assert_eq!(ms(Form::Untyped, text), expected, "{text}");
        }
        let then = Clock(1_372_700_813 * 1_000_000_000);
        assert_eq!(then.read(Form::Untyped, b"1372700873").map(|reading| reading.ns), Some(60_000_000_000));
    }

    #[test]
    fn the_other_forms() {
        assert_eq!(ms(Form::Milliseconds, "1340.5"), Some(1_340));
        assert_eq!(ms(Form::WholeMilliseconds, "1500"), Some(1_500));
        assert_eq!(ms(Form::WholeMilliseconds, "1500.5"), None);
        assert_eq!(ms(Form::GoDuration, "60"), Some(60_000));
        assert_eq!(ms(Form::ProtoDuration, "52s"), Some(52_000));
        assert_eq!(ms(Form::ProtoDuration, "-3s"), None);
        assert_eq!(ms(Form::ProtoDuration, "52"), None);
    }

    #[test]
    fn sentences() {
        for (text, expected) in [
            ("Please retry in 52.454646382s.", Some(52_454_646_382)),
            ("Rate limit reached for requests. Please try again in 20s. Visit", Some(20_000_000_000)),
            ("Please try again in 6m0s.", Some(360_000_000_000)),
            ("Please try again in 250ms.", Some(250_000_000)),
            ("Please retry after 6 seconds.", Some(6_000_000_000)),
            ("Please retry after 1 second.", Some(1_000_000_000)),
            ("Retry after 2 minutes", Some(120_000_000_000)),
            ("retry in 5", None),
            ("retry in a while", None),
            ("Quota exceeded", None),
            ("retry in ", None),
        ] {
            assert_eq!(told_in(text).map(|reading| reading.ns), expected, "{text}");
        }
    }
}
