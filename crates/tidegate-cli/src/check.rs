//! `tidegate check`: is a limits file right, and what does it say?

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::{Kind, Mode, Step};

use crate::explain::{fill, warnings};
use crate::fault::Outcome;
use crate::limits::{self, FileLimit};
use crate::quota_args::in_words;
use crate::report::text::duration;

/// Check a limits file, and say in words and numbers what each of its limits means
///
/// A file that is not right is an error that names file, line, key and reason, with exit code 2.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The limits file, in TOML
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs `check`.
///
/// # Errors
///
/// A file that cannot be read, or that holds no legal limits.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let file = limits::read_all(&args.file)?;
    let mut out = io::stdout().lock();
    for (index, limit) in file.limits.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write!(out, "{}", described(limit))?;
    }
    for (index, tool) in file.costs.iter().enumerate() {
        if index == 0 {
            writeln!(out)?;
        }
        writeln!(out, "a call of {} costs {}", tool.name, tool.cost)?;
    }
    Ok(Outcome::Fine)
}

/// What a limit means, in lines: `NAME: QUOTA for each KEY (LIMITER)` and what follows from it.
pub(crate) fn described(limit: &FileLimit) -> String {
    let FileLimit { limit: named, quota, key, max_in_flight, overrides, tools, descriptors } = limit;
    let (kind, window) = (named.algorithm.kind(), Duration::from_secs(1));
    let mode = match named.mode {
        Mode::Enforce => "",
        Mode::Shadow => ", in shadow: counted, and rejects nothing",
    };
    let whose = if key.is_empty() {
        "for all together".to_owned()
    } else {
        format!("for each {}", key.join(" and "))
    };
    let whose = if tools.is_empty() {
        whose
    } else {
        let names: Vec<String> = tools.iter().map(ToString::to_string).collect();
        format!("{whose}, of the tools {}", names.join(", "))
    };
    let whose = if descriptors.is_empty() { whose } else { format!("{whose}, of descriptors") };
    let words = match kind {
        Kind::Unlimited => "no limit".to_owned(),
        Kind::TokenBucket | Kind::LeakyBucket => in_words(*quota),
        _ => in_words(quota.with_burst(quota.count()).unwrap_or(*quota)),
    };
    let mut text = format!("{}: {words} {whose} ({kind}){mode}\n", named.name);
    for pattern in descriptors {
        text.push_str(&format!("  {pattern}\n"));
    }
    let at_once =
        if matches!(kind, Kind::TokenBucket | Kind::LeakyBucket) { quota.burst() } else { quota.count() };
    if let Some(worst) = named.algorithm.bound(window.saturating_sub(Duration::from_nanos(1))) {
        text.push_str(&format!("  at once {at_once}, in any second at most {worst}"));
        if matches!(kind, Kind::TokenBucket | Kind::LeakyBucket) {
            text.push_str(&format!(", full again {} after it was emptied", duration(fill(*quota))));
        }
        text.push('\n');
    }
    if let Kind::LeakyBucket = kind {
        let fresh = named.algorithm.look(&named.algorithm.fresh(), 0, 0).remaining();
        text.push_str(&format!("  up to {} may wait\n", fresh.saturating_sub(quota.burst())));
    }
    if let Some(max) = max_in_flight {
        let those =
            if kind == Kind::LeakyBucket { "; in `serve` those that wait are among them" } else { "" };
        text.push_str(&format!("  at most {max} in flight{those}\n"));
    }
    for other in overrides {
        let quota = match kind {
            Kind::TokenBucket | Kind::LeakyBucket => in_words(other.quota),
            _ => in_words(other.quota.with_burst(other.quota.count()).unwrap_or(other.quota)),
        };
        text.push_str(&format!("  {}: {quota}\n", other.key.join(" + ")));
    }
    let warnings = match kind {
        Kind::TokenBucket => warnings(*quota, &quota.to_string()),
        Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog if quota.burst() != quota.count() => {
            vec![format!("a {kind} has no burst; take out `burst {}`", quota.burst())]
        }
        _ => Vec::new(),
    };
    for warning in warnings {
        text.push_str(&format!("  warning: {warning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_described() {
        let text = r#"
            [[limit]]
            name = "per-client"
            key = ["client-ip", "path"]
            quota = "10/s burst 20"
            max_in_flight = 8
            [[limit.override]]
            key = ["10.0.0.7", "/search"]
            quota = "100/s burst 200"
            [[limit]]
            name = "all"
            quota = "5000/hour"
            mode = "shadow"
            [[limit]]
            name = "window"
            quota = "100/min burst 3"
            algorithm = "fixed-window"
            [[limit]]
            name = "line"
            quota = "2/s burst 1"
            queue = { max = 50, max_wait = "10s" }
            max_in_flight = 60
            [[limit]]
            name = "web"
            quota = "1/s"
            tools = ["search", "web_*"]
            [[limit]]
            name = "login"
            quota = "5/min"
            descriptors = ["shop: path=/login, user=*", "bank: path='/in, out', user=*"]
            [[limit.override]]
            key = "ann"
            quota = "50/min"
        "#;
        let limits = limits::parse("limits.toml", text).unwrap().limits;
        let described: Vec<String> = limits.iter().map(described).collect();
        insta::assert_snapshot!(described.join("\n"));
    }
}
