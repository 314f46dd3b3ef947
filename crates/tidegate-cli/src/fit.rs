//! `tidegate fit`: the smallest burst for a rate, from a trace.

mod chart;
mod json;
mod text;
mod words;

use std::io::{self, Write as _};

use tidegate_sim::Arrivals;
use tidegate_sim::fit::{Curve, Demand, Needed, Proposals, Rate, Share, Tolerated, Waits};

use crate::fault::{Hint, Outcome, tell};
use crate::quota_args::whole;
use crate::report::plot::{self, Target};
use crate::trace_args::TraceArgs;

/// What `fit` is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    traffic: TraceArgs,

    /// A rate to find the burst for: `5`, `0.5/s`, `100/min`, `1 per 10s`; repeatable
    #[arg(long, value_name = "RATE", value_parser = words::rate)]
    rate: Vec<Rate>,

    /// Also the smallest burst that rejects at most this share of the requests, such as `0.1%`
    #[arg(long, value_name = "SHARE", value_parser = words::share, requires = "rate", conflicts_with = "wait")]
    reject_at_most: Option<Share>,

    /// How long requests wait, in order, instead of what is rejected
    #[arg(long, requires = "rate")]
    wait: bool,

    /// A burst to find the waits for; repeatable
    #[arg(long, value_name = "TOKENS", value_parser = whole, requires = "wait")]
    burst: Vec<u64>,

    /// Draw the curve into a .svg or .html file, or `-` for the terminal
    #[arg(long, value_name = "FILE")]
    plot: Option<Target>,

    /// Print JSON, schema `tidegate.fit/1`
    #[arg(long)]
    json: bool,
}

/// Everything found out about a trace, before it is written down.
struct Findings<'a> {
    /// What the trace is called.
    name: String,
    arrivals: &'a Arrivals,
    /// The cost of all requests.
    cost: u64,
    rates: Vec<AtRate>,
    /// `None` if it has too many pieces.
    curve: Option<Curve>,
    proposals: Option<Proposals>,
}

/// What was found out for one asked rate.
struct AtRate {
    rate: Rate,
    needed: Needed,
    tolerated: Option<Tolerated>,
    waits: Vec<Waits>,
}

/// Runs `fit`.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    if args.json && args.plot == Some(Target::Terminal) {
        return Err(Hint::error(
            "`--json` and `--plot -` both write to stdout",
            "draw into a file: `--plot curve.svg`",
        ));
    }
    if let Some(target) = &args.plot {
        target.check()?;
    }
    let trace = args.traffic.load()?;
    let findings = find(args, &trace.arrivals)?;
    if let Some(target) = &args.plot {
        match &findings.curve {
            Some(curve) => {
                plot::write(target, &chart::plate(&findings, curve))?;
            }
            None => note("no plot, because there is no curve"),
        }
    }
    let text = if args.json { json::report(&findings)? } else { text::report(&findings, args) };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Outcome::Fine)
}

/// Finds what `args` asks of `arrivals`.
fn find<'a>(args: &'a Args, arrivals: &'a Arrivals) -> anyhow::Result<Findings<'a>> {
    let demand = Demand::new(arrivals)?;
    let mut rates = Vec::new();
    for &rate in &args.rate {
        let needed = demand.smallest_burst(rate);
        let tolerated = args.reject_at_most.map(|share| demand.smallest_burst_rejecting(rate, share));
        let waits =
            if args.wait { demand.waits(rate, &bursts(args, arrivals, &needed))? } else { Vec::new() };
        rates.push(AtRate { rate, needed, tolerated, waits });
    }
    let curve = match demand.curve() {
        Ok(curve) => Some(curve),
        Err(error) => {
            note(&format!("no curve and no proposals: {error}"));
            None
        }
    };
    let proposals = curve.as_ref().map(Curve::proposals);
    // `Demand::new` checked that the sum fits.
    let cost = (0..arrivals.len()).map(|index| arrivals.cost(index)).fold(0, u64::saturating_add);
    let name = args.traffic.name();
    Ok(Findings { name, arrivals, cost, rates, curve, proposals })
}

/// The bursts to find waits for: those asked for, otherwise from the largest cost to what delays nobody.
fn bursts(args: &Args, arrivals: &Arrivals, needed: &Needed) -> Vec<u64> {
    let largest = (0..arrivals.len()).map(|index| arrivals.cost(index)).max().unwrap_or(1);
    if !args.burst.is_empty() {
        for burst in args.burst.iter().filter(|burst| **burst < largest) {
            note(&format!(
                "burst {burst} is below the largest cost {largest}, which a bucket would never allow; \
                 the waits are those of a queue that takes it all the same"
            ));
        }
        return args.burst.clone();
    }
    let whole = needed.whole_burst();
    let mut bursts = vec![largest, whole / 4, whole / 2, whole];
    bursts.retain(|burst| *burst >= largest);
    bursts.sort_unstable();
    bursts.dedup();
    bursts
}

impl Findings<'_> {
    /// The name of a key.
    fn key(&self, key: Option<u32>) -> Option<&str> {
        let names = &self.arrivals.keys.as_ref()?.names;
        names.get(usize::try_from(key?).ok()?).map(AsRef::as_ref)
    }

    /// When `ns` is, after the first arrival.
    fn offset(&self, ns: u64) -> u64 {
        ns - self.arrivals.times.first().copied().unwrap_or(ns).min(ns)
    }
}

/// Tells the person something that is not part of the result.
fn note(text: &str) {
    tell(&format!("note: {text}"));
}

#[cfg(test)]
mod tests;
