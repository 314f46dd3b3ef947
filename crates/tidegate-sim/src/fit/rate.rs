//! The two exact numbers of a fit: a rate, and a fraction of a token.

use std::cmp::Ordering;
use std::fmt;

use super::FitError;

/// One second in nanoseconds.
pub(super) const SECOND: u64 = 1_000_000_000;

/// The words for a duration that a rate may be given per, longest first, in nanoseconds.
const WORDS: [(u64, &str); 7] = [
    (86_400 * SECOND, "d"),
    (3_600 * SECOND, "h"),
    (60 * SECOND, "min"),
    (SECOND, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// Tokens per time, kept as the fraction that was asked for.
///
/// Zero refills nothing. Two rates are equal when their values are: `60/min` equals `1/s`, and each still prints as it
/// was given.
///
/// ```
/// use tidegate_sim::fit::Rate;
///
/// let rate = Rate::new(100, 60_000_000_000)?;
/// assert_eq!(rate.to_string(), "100/min");
/// assert!(rate > Rate::per_second(1));
/// # Ok::<(), tidegate_sim::fit::FitError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    count: u64,
    per: u64,
}

impl Rate {
    /// `count` tokens per `per` nanoseconds.
    ///
    /// # Errors
    ///
    /// [`FitError::NoPer`] if `per` is 0.
    pub const fn new(count: u64, per: u64) -> Result<Self, FitError> {
        if per == 0 { Err(FitError::NoPer) } else { Ok(Self { count, per }) }
    }

    /// `count` tokens per second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self { count, per: SECOND }
    }

    /// The tokens of the fraction, as given.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The nanoseconds of the fraction, as given; above 0.
    #[must_use]
    pub const fn per(&self) -> u64 {
        self.per
    }

    /// Tokens per second, exact.
    ///
    /// ```
    /// use tidegate_sim::fit::Rate;
    ///
    /// assert_eq!(Rate::new(1, 10_000_000_000)?.tokens_per_second().decimal(6).text, "0.1");
    /// # Ok::<(), tidegate_sim::fit::FitError>(())
    /// ```
    #[must_use]
    pub fn tokens_per_second(&self) -> Fraction {
        Fraction::new(u128::from(self.count) * u128::from(SECOND), self.per)
    }

    /// The same value in lowest terms, so that equal values print alike.
    pub(super) fn reduced(self) -> Self {
        let divisor = gcd(u128::from(self.count), self.per);
        Self { count: self.count / divisor, per: self.per / divisor }
    }

    /// `(token, refill)`: with these units a token is `token` units and a nanosecond refills `refill` units, both
    /// integers and as small as they can be.
    pub(super) fn units(self) -> (u128, u128) {
        let Self { count, per } = self.reduced();
        (u128::from(per), u128::from(count))
    }
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rate {}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rate {
    /// By value. The products are below 2¹²⁸.
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |count: u64, per: u64| u128::from(count) * u128::from(per);
        product(self.count, other.per).cmp(&product(other.count, self.per))
    }
}

impl fmt::Display for Rate {
    /// `5/s`, `100/min`, `1 per 10s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, word) in WORDS {
            if self.per.is_multiple_of(unit) {
                return match self.per / unit {
                    1 => write!(f, "{}/{word}", self.count),
                    many => write!(f, "{} per {many}{word}", self.count),
                };
            }
        }
        write!(f, "{} per {}ns", self.count, self.per)
    }
}

/// A fraction of a token, in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fraction {
    numerator: u128,
    denominator: u64,
}

impl Fraction {
    /// `numerator / denominator`; the caller knows that `denominator` is above 0.
    pub(super) fn new(numerator: u128, denominator: u64) -> Self {
        let divisor = gcd(numerator, denominator);
        Self { numerator: numerator / u128::from(divisor), denominator: denominator / divisor }
    }

    /// The numerator, in lowest terms.
    #[must_use]
    pub const fn numerator(&self) -> u128 {
        self.numerator
    }

    /// The denominator, in lowest terms; above 0.
    #[must_use]
    pub const fn denominator(&self) -> u64 {
        self.denominator
    }

    /// The smallest whole number that is not below the fraction.
    #[must_use]
    pub fn ceil(&self) -> u128 {
        self.numerator.div_ceil(u128::from(self.denominator))
    }

    /// The fraction with at most `places` decimals: exact if it ends within them, rounded **up** otherwise.
    ///
    /// ```
    /// use tidegate_sim::fit::{Demand, Rate};
    /// use tidegate_sim::Arrivals;
    ///
    /// let s = 1_000_000_000;
    /// let arrivals = Arrivals { times: vec![0, 0, s, s, 4 * s], ..Arrivals::default() };
    /// let needed = Demand::new(&arrivals)?.smallest_burst(Rate::new(1, 3 * s)?);
    /// let decimal = needed.burst.decimal(6);
    /// assert_eq!(needed.burst.to_string(), "11/3");
    /// assert_eq!((decimal.text.as_str(), decimal.exact), ("3.666667", false));
    /// # Ok::<(), tidegate_sim::fit::FitError>(())
    /// ```
    #[must_use]
    pub fn decimal(&self, places: usize) -> Decimal {
        let denominator = u128::from(self.denominator);
        let mut whole = self.numerator / denominator;
        let mut rest = self.numerator % denominator;
        let mut digits = String::new();
        while rest > 0 && digits.len() < places {
            // `rest` is below 2⁶⁴, so ten times it fits.
            rest *= 10;
            digits.push(char::from(b'0' + u8::try_from(rest / denominator).unwrap_or(9)));
            rest %= denominator;
        }
        let exact = rest == 0;
        if !exact {
            // Add one in the last place; a carry runs through the nines, and those end the text.
            while let Some(digit) = digits.pop() {
                if digit != '9' {
                    digits.push(char::from_u32(u32::from(digit) + 1).unwrap_or('9'));
                    break;
                }
            }
            if digits.is_empty() {
                whole = whole.saturating_add(1);
            }
        }
        let text = if digits.is_empty() { whole.to_string() } else { format!("{whole}.{digits}") };
        Decimal { text, exact }
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    /// Whole parts first: what remains of each is below 2⁶⁴, so the cross products fit.
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (u128::from(self.denominator), u128::from(other.denominator));
        (self.numerator / a)
            .cmp(&(other.numerator / b))
            .then_with(|| (self.numerator % a * b).cmp(&(other.numerator % b * a)))
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denominator == 1 {
            write!(f, "{}", self.numerator)
        } else {
            write!(f, "{}/{}", self.numerator, self.denominator)
        }
    }
}

/// A fraction as decimal text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decimal {
    /// The digits, without trailing zeros.
    pub text: String,
    /// Whether the text is the value itself; `false` means that it was rounded up.
    pub exact: bool,
}

/// The greatest common divisor; `b` is above 0, and so is the result.
pub(super) fn gcd(a: u128, b: u64) -> u64 {
    // After one step both numbers are below 2⁶⁴.
    let (mut a, mut b) = (b, u64::try_from(a % u128::from(b)).unwrap_or(0));
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_print_as_they_were_given() {
        let rows = [
            (5, SECOND, "5/s"),
            (100, 60 * SECOND, "100/min"),
            (1, 10 * SECOND, "1 per 10s"),
            (3, 7_200 * SECOND, "3 per 2h"),
            (0, 1, "0/ns"),
        ];
        for (count, per, text) in rows {
            assert_eq!(Rate::new(count, per).unwrap().to_string(), text);
        }
        assert_eq!(Rate::new(60, 60 * SECOND), Ok(Rate::per_second(1)));
    }

    #[test]
    fn decimals_end_or_are_rounded_up() {
        let rows = [
            (1, 4, 6, "0.25", true),
            (2, 3, 6, "0.666667", false),
            (1, 1_000_000_000, 6, "0.000001", false),
            (1_999_999_999, 1_000_000_000, 6, "2", false),
            (199, 100, 0, "2", false),
            (7, 1, 6, "7", true),
        ];
        for (numerator, denominator, places, text, exact) in rows {
            let decimal = Fraction::new(numerator, denominator).decimal(places);
            assert_eq!((decimal.text.as_str(), decimal.exact), (text, exact), "{numerator}/{denominator}");
        }
    }

    #[test]
    fn fractions_compare_without_overflow() {
        let big = Fraction::new(u128::MAX / 2, u64::MAX);
        assert!(Fraction::new(u128::MAX / 2 + 1, u64::MAX) > big);
        assert!(Fraction::new(1, 3) < Fraction::new(34, 100));
    }
}
