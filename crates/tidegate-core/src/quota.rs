//! A quota: a rate, kept as a fraction, and a burst; as values and as text.

use alloc::boxed::Box;
use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;

use crate::arithmetic::{gcd, product};

/// The largest count and burst: with them, no step can overflow 128 bits.
const MAX_COUNT: u64 = i64::MAX as u64;

/// Units of time that a quota may be written in, the name that is printed first. A month or a year is not one of
/// them: they have no fixed length.
const UNITS: [(u64, &[&str]); 8] = [
    (1, &["ns"]),
    (1_000, &["us", "µs", "μs"]),
    (1_000_000, &["ms"]),
    (1_000_000_000, &["s", "sec", "second", "seconds"]),
    (60_000_000_000, &["min", "m", "minute", "minutes"]),
    (3_600_000_000_000, &["hour", "h", "hr", "hours"]),
    (86_400_000_000_000, &["day", "d", "days"]),
    (604_800_000_000_000, &["week", "w", "weeks"]),
];

/// A rate above zero and a burst of at least one: how fast tokens come back, and how many there can be.
///
/// A quota that exists is legal. The rate is `count` tokens per `per`, kept as written: no nanosecond is truncated,
/// so `3/s` is three per second and not one per 333,333,333 ns. For a bucket the burst is its capacity; the windows
/// use count and period as written, and no burst.
///
/// # Text
///
/// `COUNT/UNIT`, `COUNT per NUMBER UNIT`, and optionally `burst TOKENS`. Units: `ns`, `us`, `ms`, `s`, `min` (or
/// `m`), `hour` (`h`), `day` (`d`), `week` (`w`), and their plurals. Without `burst`, the burst is the whole tokens
/// of the count as written, at least 1. A decimal count becomes the smallest whole fraction.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::Quota;
///
/// let quota: Quota = "10/s burst 20".parse()?;
/// assert_eq!((quota.count(), quota.per(), quota.burst()), (10, Duration::from_secs(1), 20));
///
/// // Half a token a second is one per two seconds.
/// assert_eq!("0.5/s".parse::<Quota>()?.to_string(), "1 per 2s");
/// // The same rate, but sixty at once instead of one: count and burst are part of what was asked.
/// assert_ne!("60/min".parse::<Quota>()?, "1/s".parse::<Quota>()?);
///
/// let error = "10/fortnight".parse::<Quota>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "unknown unit `fortnight` in the quota `10/fortnight`; write ns, us, ms, s, min, hour, day or week, \
///      as in `10/s` or `100/min`",
/// );
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    count: NonZeroU64,
    per: NonZeroU64,
    burst: NonZeroU64,
}

/// Why a quota is not legal. The text says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The rate is 0: nothing would ever be allowed again once the burst is spent.
    ZeroRate,
    /// The period is 0 ns.
    ZeroPeriod,
    /// The burst is 0: no call could ever be allowed.
    ZeroBurst,
    /// A number is negative.
    Negative {
        /// The number as written.
        number: Box<str>,
    },
    /// A number, a count, burst or period, is larger than can be counted exactly.
    TooLarge {
        /// Which of them.
        what: &'static str,
    },
    /// The empty bucket would take longer to fill than a [`Duration`] can say, 585 billion years.
    TooSlow,
    /// A count or a period has more decimals than whole units can hold.
    TooFine {
        /// The number as written.
        number: Box<str>,
    },
    /// Something that should be a number is none, `NaN` for example.
    NotANumber {
        /// What stands there.
        found: Box<str>,
        /// The whole text.
        text: Box<str>,
    },
    /// A burst is not a whole number.
    BurstNotWhole {
        /// The number as written.
        number: Box<str>,
    },
    /// The unit of time is none that is known.
    UnknownUnit {
        /// The unit as written.
        unit: Box<str>,
        /// The whole text.
        text: Box<str>,
    },
    /// The count stands alone: it is not said per what time.
    NoPeriod {
        /// The whole text.
        text: Box<str>,
    },
    /// Something follows that is no part of a quota.
    Trailing {
        /// What follows.
        found: Box<str>,
        /// The whole text.
        text: Box<str>,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroRate => f.write_str(
                "a rate of 0 never allows anything again; write a rate above 0, such as `1 per 10s`, or use the limiter `none` for no limit",
            ),
            Self::ZeroPeriod => f.write_str("a period of 0 has no rate; write a period above 0, as in `1 per 10s`"),
            Self::ZeroBurst => {
                f.write_str("a burst of 0 never allows anything; write a burst of at least 1, as in `10/s burst 1`")
            }
            Self::Negative { number } => {
                write!(f, "`{number}` is negative; write a number above 0, as in `10/s burst 20`")
            }
            Self::TooLarge { what } => {
                write!(f, "the {what} is too large to count exactly; write at most {MAX_COUNT} (2^63 - 1)")
            }
            Self::TooSlow => f.write_str(
                "an empty bucket would take more than 585 billion years to fill; write a higher rate or a smaller burst",
            ),
            Self::TooFine { number } => {
                write!(f, "`{number}` has more decimals than can be kept exactly; write it as a fraction, as in `1 per 3s`")
            }
            Self::NotANumber { found, text } => {
                write!(f, "`{found}` is not a number in the quota `{text}`; write for example `10/s`, `0.5/s` or `10/s burst 20`")
            }
            Self::BurstNotWhole { number } => {
                write!(f, "the burst `{number}` is not a whole number of tokens; write for example `burst 20`")
            }
            Self::UnknownUnit { unit, text } if is_calendar(unit) => {
                write!(f, "a {unit} has no fixed length in the quota `{text}`; write days, as in `1000 per 30d`")
            }
            Self::UnknownUnit { unit, text } => write!(
                f,
                "unknown unit `{unit}` in the quota `{text}`; write ns, us, ms, s, min, hour, day or week, as in `10/s` or `100/min`",
            ),
            Self::NoPeriod { text } => {
                write!(f, "the quota `{text}` does not say per what time; write for example `10/s` or `1 per 10s`")
            }
            Self::Trailing { found, text } => {
                write!(f, "`{found}` is no part of a quota in `{text}`; write for example `10/s burst 20`")
            }
        }
    }
}

impl core::error::Error for QuotaError {}

fn is_calendar(unit: &str) -> bool {
    ["month", "months", "mo", "year", "years", "y"].contains(&unit)
}

impl Quota {
    /// `count` tokens per `per`, with a burst of `count`.
    ///
    /// # Errors
    ///
    /// A count or a period of 0, or one too large to be exact: a count above 2⁶³ - 1, a period above 584 years.
    pub fn new(count: u64, per: Duration) -> Result<Self, QuotaError> {
        let per = u64::try_from(per.as_nanos())
            .map_err(|_| QuotaError::TooLarge { what: "period in nanoseconds" })?;
        Self::from_parts(count, per, count)
    }

    /// The same rate with another burst, in tokens.
    ///
    /// # Errors
    ///
    /// A burst of 0, above 2⁶³ - 1, or so large that it would never fill.
    pub fn with_burst(self, burst: u64) -> Result<Self, QuotaError> {
        Self::from_parts(self.count.get(), self.per.get(), burst)
    }

    fn from_parts(count: u64, per: u64, burst: u64) -> Result<Self, QuotaError> {
        let count = NonZeroU64::new(count).ok_or(QuotaError::ZeroRate)?;
        let per = NonZeroU64::new(per).ok_or(QuotaError::ZeroPeriod)?;
        let burst = NonZeroU64::new(burst).ok_or(QuotaError::ZeroBurst)?;
        for (number, what) in [(count, "count"), (burst, "burst")] {
            if number.get() > MAX_COUNT {
                return Err(QuotaError::TooLarge { what });
            }
        }
        let quota = Self { count, per, burst };
        let (token, rate) = quota.units();
        let fill = product(burst.get(), token.get()).div_ceil(u128::from(rate.get()));
        if fill > Duration::MAX.as_nanos() {
            return Err(QuotaError::TooSlow);
        }
        Ok(quota)
    }

    /// How many tokens come in one [`Self::per`].
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count.get()
    }

    /// The time in which [`Self::count`] tokens come.
    #[must_use]
    pub const fn per(&self) -> Duration {
        Duration::from_nanos(self.per.get())
    }

    /// The time in which [`Self::count`] tokens come, in nanoseconds.
    #[must_use]
    pub const fn per_ns(&self) -> NonZeroU64 {
        self.per
    }

    /// The capacity in tokens: the largest cost that can be allowed, and how many fit into one instant.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst.get()
    }

    /// The rate in lowest terms: a token is `.0` units, a nanosecond brings `.1` units.
    pub(crate) fn units(&self) -> (NonZeroU64, NonZeroU64) {
        let divisor = gcd(self.count, self.per);
        let lowest = |x: NonZeroU64| NonZeroU64::new(x.get() / divisor).unwrap_or(x);
        (lowest(self.per), lowest(self.count))
    }
}

impl fmt::Display for Quota {
    /// The canonical text; parsing it gives the same quota.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, per) = (self.count, self.per.get());
        // Weeks are read but printed as days.
        let units = UNITS.iter().take(7).rev();
        if let Some((_, names)) = units.clone().find(|(ns, _)| *ns == per) {
            write!(f, "{count}/{}", names[0])?;
        } else if let Some((ns, names)) = units.clone().find(|(ns, _)| per.is_multiple_of(*ns)) {
            let short = match names[0] {
                "hour" => "h",
                "day" => "d",
                name => name,
            };
            write!(f, "{count} per {}{short}", per.checked_div(*ns).unwrap_or(per))?;
        }
        if self.burst != count {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let (amount, rest) = number(text.trim_start(), text)?;
        let rest = rest.trim_start();
        let rest = rest
            .strip_prefix('/')
            .or_else(|| word(rest, "per"))
            .ok_or_else(|| no_period(rest, text))?
            .trim_start();
        let (per, rest) = period(rest, text)?;

        let (count, scale) = amount.fraction()?;
        let per = per.checked_mul(scale).ok_or(QuotaError::TooLarge { what: "period in nanoseconds" })?;
        let rest = rest.trim_start();
        let Some(burst) = word(rest, "burst") else {
            return match rest.trim_end() {
                "" => Self::from_parts(count, per, amount.whole()?.max(u64::from(count > 0))),
                found => Err(QuotaError::Trailing { found: found.into(), text: text.into() }),
            };
        };
        let (burst, rest) = number(burst.trim_start(), text)?;
        let burst = burst.exactly_whole()?;
        match rest.trim() {
            "" => Self::from_parts(count, per, burst),
            found => Err(QuotaError::Trailing { found: found.into(), text: text.into() }),
        }
    }
}

/// Reads a time such as `1s`, `1.5s`, `250ms` or `2 min`, in the units of a quota.
///
/// # Errors
///
/// A text that is no number with a unit, or no whole number of nanoseconds.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(tidegate_core::parse_duration("1.5s")?, Duration::from_millis(1500));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, QuotaError> {
    let trimmed = text.trim();
    if !trimmed.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '-') {
        return Err(QuotaError::NotANumber { found: trimmed.into(), text: text.into() });
    }
    match period(trimmed, text)? {
        (ns, "") => Ok(Duration::from_nanos(ns)),
        (_, rest) => Err(QuotaError::Trailing { found: rest.trim().into(), text: text.into() }),
    }
}

/// A number as written: digits, and how many of them stand behind the point.
#[derive(Debug, Clone, Copy)]
struct Number<'a> {
    text: &'a str,
    /// All digits without the point and without zeros at the end of the decimals.
    digits: u128,
    /// How many of the digits are decimals.
    decimals: u32,
}

impl Number<'_> {
    fn too_fine(self) -> QuotaError {
        QuotaError::TooFine { number: self.text.into() }
    }

    /// The power of ten that the decimals are divided by.
    fn scale(self) -> Result<u64, QuotaError> {
        10_u64.checked_pow(self.decimals).ok_or_else(|| self.too_fine())
    }

    /// The number as the smallest whole fraction.
    fn fraction(self) -> Result<(u64, u64), QuotaError> {
        let scale = self.scale()?;
        let digits = u64::try_from(self.digits).map_err(|_| QuotaError::TooLarge { what: "count" })?;
        match (NonZeroU64::new(digits), NonZeroU64::new(scale)) {
            (Some(top), Some(bottom)) => {
                let divisor = gcd(top, bottom);
                Ok((digits / divisor, scale / divisor))
            }
            _ => Ok((0, 1)),
        }
    }

    /// The number without its decimals.
    fn whole(self) -> Result<u64, QuotaError> {
        let scale = self.scale()?;
        let whole = self.digits.checked_div(u128::from(scale)).unwrap_or(0);
        u64::try_from(whole).map_err(|_| QuotaError::TooLarge { what: "count" })
    }

    /// The number, which must have no decimals.
    fn exactly_whole(self) -> Result<u64, QuotaError> {
        if self.decimals > 0 {
            return Err(QuotaError::BurstNotWhole { number: self.text.into() });
        }
        u64::try_from(self.digits).map_err(|_| QuotaError::TooLarge { what: "burst" })
    }
}

/// Reads a decimal number at the start of `rest`, which is part of `text`.
fn number<'a>(rest: &'a str, text: &str) -> Result<(Number<'a>, &'a str), QuotaError> {
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    let (written, after) = rest.split_at(end);
    if let Some(negative) = rest.strip_prefix(['-', '−']) {
        let end = negative.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(negative.len());
        let sign = rest.chars().next().map_or(0, char::len_utf8);
        let number = rest.split_at(sign.saturating_add(end)).0;
        return Err(QuotaError::Negative { number: number.into() });
    }
    let (whole, decimals) = written.split_once('.').unwrap_or((written, ""));
    let decimals = decimals.trim_end_matches('0');
    if !written.contains(|c: char| c.is_ascii_digit()) || decimals.contains('.') || starts_exponent(after) {
        let found = rest.split([' ', '/']).next().unwrap_or(rest);
        return Err(QuotaError::NotANumber { found: found.into(), text: text.into() });
    }
    let mut digits = 0_u128;
    for digit in whole.chars().chain(decimals.chars()).filter_map(|c| c.to_digit(10)) {
        digits = digits
            .checked_mul(10)
            .and_then(|digits| digits.checked_add(u128::from(digit)))
            .ok_or(QuotaError::TooLarge { what: "number" })?;
    }
    let decimals = u32::try_from(decimals.len()).unwrap_or(u32::MAX);
    Ok((Number { text: written, digits, decimals }, after))
}

/// `1e3`, `1,000` and `1_000` would be misread as a number and something else.
fn starts_exponent(after: &str) -> bool {
    let mut rest = after.chars();
    matches!(rest.next(), Some('e' | 'E' | ',' | '_')) && matches!(rest.next(), Some('0'..='9' | '+' | '-'))
}

/// Reads `10s`, `10 s` or `s` at the start of `rest`, in nanoseconds.
fn period<'a>(rest: &'a str, text: &str) -> Result<(u64, &'a str), QuotaError> {
    let begins_with_number = rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '−'));
    let (times, rest) = if begins_with_number {
        let (times, rest) = number(rest, text)?;
        (Some(times), rest.trim_start())
    } else {
        (None, rest)
    };
    let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    if unit.is_empty() {
        return Err(no_period(rest, text));
    }
    let (ns, _) = UNITS
        .iter()
        .find(|(_, names)| names.contains(&unit))
        .ok_or_else(|| QuotaError::UnknownUnit { unit: unit.into(), text: text.into() })?;
    let Some(times) = times else { return Ok((*ns, rest)) };
    let scale = u128::from(times.scale()?);
    let too_large = QuotaError::TooLarge { what: "period in nanoseconds" };
    let scaled = times.digits.checked_mul(u128::from(*ns)).ok_or_else(|| too_large.clone())?;
    match (scaled.checked_div(scale), scaled.checked_rem(scale)) {
        (Some(per), Some(0)) => Ok((u64::try_from(per).map_err(|_| too_large)?, rest)),
        _ => Err(times.too_fine()),
    }
}

/// What is wrong when a period should begin at `rest`.
fn no_period(rest: &str, text: &str) -> QuotaError {
    let rest = rest.trim();
    if rest.is_empty() || word(rest, "burst").is_some() {
        QuotaError::NoPeriod { text: text.into() }
    } else {
        QuotaError::Trailing { found: rest.into(), text: text.into() }
    }
}

/// The rest behind `word` if `rest` begins with it as a whole word.
fn word<'a>(rest: &'a str, word: &str) -> Option<&'a str> {
    rest.strip_prefix(word).filter(|after| !after.starts_with(char::is_alphabetic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn quota_texts_have_one_meaning_and_one_canonical_form() {
        let s = Duration::from_secs;
        for (text, count, per, burst, printed) in [
            ("10/s", 10, s(1), 10, "10/s"),
            ("10/s burst 20", 10, s(1), 20, "10/s burst 20"),
            ("100/min", 100, s(60), 100, "100/min"),
            ("100/m", 100, s(60), 100, "100/min"),
            ("1 per 10s", 1, s(10), 1, "1 per 10s"),
            ("1/10s", 1, s(10), 1, "1 per 10s"),
            ("1 per 10 seconds burst 5", 1, s(10), 5, "1 per 10s burst 5"),
            ("5000/hour burst 1", 5000, s(3600), 1, "5000/hour burst 1"),
            ("90000/min", 90000, s(60), 90000, "90000/min"),
            ("0.5/s", 1, s(2), 1, "1 per 2s"),
            ("2.5/s", 5, s(2), 2, "5 per 2s burst 2"),
            ("1.0/s", 1, s(1), 1, "1/s"),
            (".25/s", 1, s(4), 1, "1 per 4s"),
            ("1 per 1.5s", 1, Duration::from_millis(1500), 1, "1 per 1500ms"),
            ("10 per second", 10, s(1), 10, "10/s"),
            ("  10 / s   burst   3 ", 10, s(1), 3, "10/s burst 3"),
            ("17 per 30s", 17, s(30), 17, "17 per 30s"),
            ("1000/day", 1000, s(86_400), 1000, "1000/day"),
            ("1000/week", 1000, s(604_800), 1000, "1000 per 7d"),
            ("3 per 2h", 3, s(7200), 3, "3 per 2h"),
            ("7/us", 7, Duration::from_micros(1), 7, "7/us"),
            (
                "9223372036854775807/ns",
                i64::MAX as u64,
                Duration::from_nanos(1),
                i64::MAX as u64,
                "9223372036854775807/ns",
            ),
        ] {
            let quota: Quota = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((quota.count(), quota.per(), quota.burst()), (count, per, burst), "{text}");
            assert_eq!(quota.to_string(), printed, "{text}");
            assert_eq!(printed.parse::<Quota>().as_ref(), Ok(&quota), "{text}");
        }
    }

    #[test]
    fn quota_errors_say_what_to_write() {
        for (text, expected) in [
            (
                "0/s",
                "a rate of 0 never allows anything again; write a rate above 0, such as `1 per 10s`, or use the limiter `none` for no limit",
            ),
            (
                "0.0/s burst 5",
                "a rate of 0 never allows anything again; write a rate above 0, such as `1 per 10s`, or use the limiter `none` for no limit",
            ),
            ("-5/s", "`-5` is negative; write a number above 0, as in `10/s burst 20`"),
            (
                "10/s burst 0",
                "a burst of 0 never allows anything; write a burst of at least 1, as in `10/s burst 1`",
            ),
            ("10/s burst -1", "`-1` is negative; write a number above 0, as in `10/s burst 20`"),
            (
                "10/s burst 1.5",
                "the burst `1.5` is not a whole number of tokens; write for example `burst 20`",
            ),
            (
                "10/s burst",
                "`` is not a number in the quota `10/s burst`; write for example `10/s`, `0.5/s` or `10/s burst 20`",
            ),
            (
                "NaN/s",
                "`NaN` is not a number in the quota `NaN/s`; write for example `10/s`, `0.5/s` or `10/s burst 20`",
            ),
            (
                "inf/s",
                "`inf` is not a number in the quota `inf/s`; write for example `10/s`, `0.5/s` or `10/s burst 20`",
            ),
            ("", "`` is not a number in the quota ``; write for example `10/s`, `0.5/s` or `10/s burst 20`"),
            (
                "1e3/s",
                "`1e3` is not a number in the quota `1e3/s`; write for example `10/s`, `0.5/s` or `10/s burst 20`",
            ),
            (
                "1,000/s",
                "`1,000` is not a number in the quota `1,000/s`; write for example `10/s`, `0.5/s` or `10/s burst 20`",
            ),
            (
                "1.2.3/s",
                "`1.2.3` is not a number in the quota `1.2.3/s`; write for example `10/s`, `0.5/s` or `10/s burst 20`",
            ),
            ("10", "the quota `10` does not say per what time; write for example `10/s` or `1 per 10s`"),
            ("10/", "the quota `10/` does not say per what time; write for example `10/s` or `1 per 10s`"),
            (
                "10/10",
                "the quota `10/10` does not say per what time; write for example `10/s` or `1 per 10s`",
            ),
            (
                "10 burst 20",
                "the quota `10 burst 20` does not say per what time; write for example `10/s` or `1 per 10s`",
            ),
            ("10rps", "`rps` is no part of a quota in `10rps`; write for example `10/s burst 20`"),
            ("10/s 20", "`20` is no part of a quota in `10/s 20`; write for example `10/s burst 20`"),
            (
                "10/s burst 20 please",
                "`please` is no part of a quota in `10/s burst 20 please`; write for example `10/s burst 20`",
            ),
            (
                "10/fortnight",
                "unknown unit `fortnight` in the quota `10/fortnight`; write ns, us, ms, s, min, hour, day or week, as in `10/s` or `100/min`",
            ),
            (
                "10/month",
                "a month has no fixed length in the quota `10/month`; write days, as in `1000 per 30d`",
            ),
            ("1 per 0s", "a period of 0 has no rate; write a period above 0, as in `1 per 10s`"),
            (
                "9223372036854775808/s",
                "the count is too large to count exactly; write at most 9223372036854775807 (2^63 - 1)",
            ),
            (
                "99999999999999999999999999999999999999999/s",
                "the number is too large to count exactly; write at most 9223372036854775807 (2^63 - 1)",
            ),
            (
                "10/s burst 9223372036854775808",
                "the burst is too large to count exactly; write at most 9223372036854775807 (2^63 - 1)",
            ),
            (
                "1 per 31000w",
                "the period in nanoseconds is too large to count exactly; write at most 9223372036854775807 (2^63 - 1)",
            ),
            (
                "1 per 30000w burst 9223372036854775807",
                "an empty bucket would take more than 585 billion years to fill; write a higher rate or a smaller burst",
            ),
            (
                "0.00000000000000000001/s",
                "`0.00000000000000000001` has more decimals than can be kept exactly; write it as a fraction, as in `1 per 3s`",
            ),
            (
                "1 per 1.5ns",
                "`1.5` has more decimals than can be kept exactly; write it as a fraction, as in `1 per 3s`",
            ),
        ] {
            assert_eq!(text.parse::<Quota>().unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn durations_are_read_in_the_units_of_a_quota() {
        assert_eq!(parse_duration("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_duration(" 250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("2 min"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("s").is_err());
        assert!(parse_duration("5").is_err());
        assert!(parse_duration("-5s").is_err());
        assert!(parse_duration("5s 3").is_err());
    }
}
