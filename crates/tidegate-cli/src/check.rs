//! `tidegate check`: is a limits file right, and what does it say?

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::{Kind, Mode, Step};

use crate::explain::{fill, warnings};
use crate::fault::Outcome;
use crate::limits::{self, FileLimit};
use crate::quota_args::in_words;
use crate::report::text::{duration, one_line};

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
        writeln!(out, "{}", one_line(&format!("a call of {} costs {}", tool.name, tool.cost)))?;
    }
    Ok(Outcome::Fine)
}

/// What a limit means, in lines: `NAME: QUOTA for each KEY (LIMITER)` and what follows from it.
pub(crate) fn described(limit: &FileLimit) -> String {
    // A name or a key can hold what would break its line.
    lines(limit).iter().map(|line| format!("{}\n", one_line(line))).collect()
}

fn lines(limit: &FileLimit) -> Vec<String> {
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
    let mut lines = vec![format!("{}: {words} {whose} ({kind}){mode}", named.name)];
    lines.extend(descriptors.iter().map(|pattern| format!("  {pattern}")));
    let at_once =
        if matches!(kind, Kind::TokenBucket | Kind::LeakyBucket) { quota.burst() } else { quota.count() };
    if let Some(worst) = named.algorithm.bound(window.saturating_sub(Duration::from_nanos(1))) {
        let mut line = format!("  at once {at_once}, in any second at most {worst}");
        if matches!(kind, Kind::TokenBucket | Kind::LeakyBucket) {
            line.push_str(&format!(", full again {} after it was emptied", duration(fill(*quota))));
        }
        lines.push(line);
    }
    if let Kind::LeakyBucket = kind {
        let fresh = named.algorithm.look(&named.algorithm.fresh(), 0, 0).remaining();
        lines.push(format!("  up to {} may wait", fresh.saturating_sub(quota.burst())));
    }
    if let Some(max) = max_in_flight {
        let those =
            if kind == Kind::LeakyBucket { "; in `serve` those that wait are among them" } else { "" };
        lines.push(format!("  at most {max} in flight{those}"));
    }
    for other in overrides {
        let quota = match kind {
            Kind::TokenBucket | Kind::LeakyBucket => in_words(other.quota),
            _ => in_words(other.quota.with_burst(other.quota.count()).unwrap_or(other.quota)),
        };
        lines.push(format!("  {}: {quota}", other.key.join(" + ")));
    }
    let warnings = match kind {
        Kind::TokenBucket => warnings(*quota, &quota.to_string()),
        Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog if quota.burst() != quota.count() => {
            vec![format!("a {kind} has no burst; take out `burst {}`", quota.burst())]
        }
        _ => Vec::new(),
    };
    for warning in warnings {
        lines.push(format!("  warning: {warning}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_stays_in_its_line() {
        let text = "[[limit]]\nname = \"a\\nb\\u001b[31m\"\nquota = \"1/s\"\nkey = \"p\\r\"\n[[limit.override]]\nkey = \"x\\ny\"\nquota = \"2/s\"\n";
        let limits = limits::parse("limits.toml", text).unwrap().limits;
        assert_eq!(
            described(&limits[0]),
            "a\\nb\\u{1b}[31m: 1 per second for each p\\r (token-bucket)\n  at once 1, in any second at most 1, \
             full again 1s after it was emptied\n  x\\ny: 2 per second\n"
        );
    }

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
