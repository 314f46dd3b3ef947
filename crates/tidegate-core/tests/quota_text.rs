//! Texts of quotas: none makes the parser panic, and what is printed is read back as the same quota.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Kind, Quota, parse_duration};

use crate::model::inputs::quotas;

/// Pieces of which odd texts are made.
const PIECES: [&str; 46] = [
    "10",
    "0",
    "1",
    ".5",
    "0.5",
    "1.",
    ".",
    "..",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "99999999999999999999999999999999999999999999",
    "0.0000000000000000001",
    "0.00000000000000000000001",
    "-",
    "−",
    "+",
    "1e3",
    "1_000",
    "1,000",
    "/",
    "per",
    " per ",
    "burst",
    " burst ",
    " ",
    "\t",
    "s",
    "sec",
    "ms",
    "µs",
    "μs",
    "us",
    "ns",
    "min",
    "m",
    "h",
    "hour",
    "day",
    "week",
    "month",
    "ſ",
    "٣",
    "\u{0}",
    "é",
    "\u{1F600}",
];

proptest! {
    // A text costs little to try, so more of them are.
    #![proptest_config(ProptestConfig { cases: 10 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn quota_of_any_text_is_read_or_refused(text in any::<String>()) {
        check_text(&text);
    }

    #[test]
    fn quota_of_odd_pieces_is_read_or_refused(
        pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..9),
    ) {
        check_text(&pieces.concat());
    }

    #[test]
    fn quota_printed_is_read_back(quota in quotas()) {
        prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota), "{}", quota);
    }

    /// A decimal count is that fraction exactly.
    #[test]
    fn quota_with_decimals_keeps_the_rate(whole in 0..1000_u64, thousandths in 0..1000_u64, seconds in 1..1000_u64) {
        prop_assume!(whole + thousandths > 0);
        let quota: Quota = format!("{whole}.{thousandths:03} per {seconds}s").parse().unwrap();
        let (count, per) = (u128::from(quota.count()), quota.per().as_nanos());
        let written = u128::from(whole * 1000 + thousandths);
        prop_assert_eq!(count * u128::from(seconds) * 1_000_000_000 * 1000, written * per);
        prop_assert_eq!(quota.burst(), whole.max(1));
    }

    #[test]
    fn durations_are_read_exactly(ns in any::<u64>()) {
        prop_assert_eq!(parse_duration(&format!("{ns}ns")), Ok(Duration::from_nanos(ns)));
        let seconds = format!("{}.{:09}s", ns / 1_000_000_000, ns % 1_000_000_000);
        prop_assert_eq!(parse_duration(&seconds), Ok(Duration::from_nanos(ns)));
    }
}

fn check_text(text: &str) {
    match text.parse::<Quota>() {
        Ok(quota) => assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota), "{text:?}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = parse_duration(text) {
        assert!(!error.to_string().is_empty());
    }
    assert!(
        text.parse::<Kind>().is_ok() == Kind::ALL.iter().any(|kind| kind.name() == text)
            || text == "unlimited"
    );
}

#[test]
fn quota_that_exists_is_at_most_so_large() {
    let most = i64::MAX as u64;
    let ns = Duration::from_nanos;
    assert!(Quota::new(most, ns(1)).is_ok());
    assert!(Quota::new(most + 1, ns(1)).is_err());
    assert!(Quota::new(most, ns(u64::MAX)).is_ok());
    assert!(Quota::new(1, Duration::from_secs(u64::MAX)).is_err());
    assert!(Quota::new(1, ns(u64::MAX)).unwrap().with_burst(most).is_err());
    assert!(Quota::new(1, ns(u64::MAX)).unwrap().with_burst(1_000_000_000).is_ok());
    assert!(Quota::new(0, ns(1)).is_err());
    assert!(Quota::new(1, ns(0)).is_err());
    assert!(Quota::new(1, ns(1)).unwrap().with_burst(0).is_err());
}
