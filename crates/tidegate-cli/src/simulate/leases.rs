//! `--share leased`: workers that take chunks out of one bucket, over a network that can be bad.

use std::str::FromStr;
use std::time::Duration;

use tidegate_core::lease::Terms;
use tidegate_core::{Kind, Quota};
use tidegate_sim::{Leased, Share};

use crate::fault::Hint;
use crate::quota_args::{time, time_above_zero};
use crate::report::text::duration;

/// Calls to the store that must fit into the time to live of a lease. With fewer a lease that comes after a lost answer or
/// two has no time left to be spent.
const CALLS_IN_A_LIFE: u32 = 3;

/// What can be said of leases.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LeaseArgs {
    /// How many tokens more than one bucket leases may allow in any interval: a number, or a part of the burst [default: 5%]
    #[arg(long, value_name = "TOKENS", requires = "workers", help_heading = "Leases")]
    max_overshoot: Option<Overshoot>,

    /// How long a call to the shared store takes, there and back [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "workers", help_heading = "Leases")]
    store_delay: Option<Duration>,

    /// How many answers of the store are lost, such as 1%; it has done what it was asked [default: 0%]
    #[arg(long, value_name = "PERCENT", requires = "workers", help_heading = "Leases")]
    store_loss: Option<Percent>,

    /// How often one of the workers crashes, and comes back with nothing [default: never]
    #[arg(long, value_name = "TIME", value_parser = time_above_zero, requires = "workers", help_heading = "Leases")]
    crash_every: Option<Duration>,
}

impl LeaseArgs {
    /// Refuses flags about leases where nobody leases.
    pub(super) fn check(&self, shares: &[Share]) -> anyhow::Result<()> {
        let given = [
            ("--max-overshoot", self.max_overshoot.is_some()),
            ("--store-delay", self.store_delay.is_some()),
            ("--store-loss", self.store_loss.is_some()),
            ("--crash-every", self.crash_every.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) if !shares.contains(&Share::Leased) => Err(Hint::error(
                format!("{flag} is about leases, and no row has them"),
                "add --share leased, and --share shared to compare with",
            )),
            _ => Ok(()),
        }
    }

    /// The workers that lease.
    pub(super) fn leased(
        &self,
        kind: Kind,
        quota: Quota,
        workers: usize,
        seed: u64,
    ) -> anyhow::Result<Leased> {
        if kind != Kind::TokenBucket {
            return Err(Hint::error(
                format!("a lease is a part of a bucket, and {kind} has none"),
                "add --limiter token-bucket",
            ));
        }
        let overshoot = match self.max_overshoot.unwrap_or(Overshoot::Part(Percent(50_000))) {
            Overshoot::Tokens(tokens) => tokens,
            Overshoot::Part(part) => part.of(quota.burst()),
        };
        let delay = self.store_delay.unwrap_or(Duration::from_millis(1));
        let long_enough = |terms: &Terms| terms.ttl() >= delay.saturating_mul(CALLS_IN_A_LIFE);
        match Terms::within(quota, overshoot).filter(long_enough) {
            Some(terms) => Ok(Leased {
                quota,
                terms,
                workers,
                delay,
                lost_per_million: self.store_loss.map_or(0, |loss| loss.0),
                crash_every: self.crash_every,
                seed,
            }),
            None => Err(too_short(quota, overshoot, delay)),
        }
    }
}

/// What is said of leases that are dead before they can be spent.
fn too_short(quota: Quota, overshoot: u64, delay: Duration) -> anyhow::Error {
    let earned_in = u128::from(overshoot) * u128::from(quota.per_ns().get()) / u128::from(quota.count());
    let lives = duration(Duration::from_nanos(u64::try_from(earned_in).unwrap_or(u64::MAX)));
    let needed = delay.saturating_mul(CALLS_IN_A_LIFE).max(Duration::from_millis(20));
    let tokens = (needed.as_nanos() * u128::from(quota.count())).div_ceil(u128::from(quota.per_ns().get()));
    let hint = if needed > Duration::from_secs(10) {
        "a lease lives for 10s at most; write a shorter --store-delay".to_owned()
    } else {
        format!("write --max-overshoot {tokens} or more, or ask the store for every call: --share shared")
    };
    Hint::error(
        format!(
            "an overshoot of {overshoot} tokens is {lives} of the rate, and a lease has to live for {}",
            duration(needed)
        ),
        hint,
    )
}

/// A value of `--max-overshoot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overshoot {
    Tokens(u64),
    /// A part of the burst.
    Part(Percent),
}

impl FromStr for Overshoot {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('%') {
            return text.parse().map(Self::Part);
        }
        text.parse()
            .map(Self::Tokens)
            .map_err(|_| "write a whole number of tokens, or a part of the burst such as 5%")
    }
}

/// A part, in millionths: `1%` is 10000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Percent(u32);

impl Percent {
    /// This part of `whole`, rounded down.
    fn of(self, whole: u64) -> u64 {
        u64::try_from(u128::from(whole) * u128::from(self.0) / 1_000_000).unwrap_or(u64::MAX)
    }
}

impl FromStr for Percent {
    type Err = &'static str;

    /// `1%`, `0.05%`: at most four digits after the point.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write a part from 0% to 100%, such as 1% or 0.05%";
        let number = text.strip_suffix('%').ok_or(WRONG)?;
        let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > 4 {
            return Err(WRONG);
        }
        let whole: u32 = whole.parse().map_err(|_| WRONG)?;
        let rest: u32 = format!("{rest:0<4}").parse().map_err(|_| WRONG)?;
        let millionths = whole.checked_mul(10_000).and_then(|whole| whole.checked_add(rest));
        millionths.filter(|part| *part <= 1_000_000).map(Self).ok_or(WRONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_exactly() {
        for (text, millionths) in
            [("0%", 0), ("1%", 10_000), ("0.05%", 500), ("12.5%", 125_000), ("100%", 1_000_000)]
        {
            assert_eq!(text.parse(), Ok(Percent(millionths)), "{text}");
        }
        for text in ["1", "%", "-1%", "101%", "1.00001%", "1e1%", ".5%", "99999999999%", "1%%"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        assert_eq!("7".parse(), Ok(Overshoot::Tokens(7)));
        assert_eq!("5%".parse(), Ok(Overshoot::Part(Percent(50_000))));
        assert!("5.5".parse::<Overshoot>().is_err());
    }
}
