//! Tidegate beside other rate limiters: nanoseconds for a decision, bytes for a key, and the slowest call, in one run.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod floor;
mod harness;
mod keyed;
mod keys;
mod memory;
mod one;
mod slowest;

use anyhow::Result;
use clap::Parser;

use harness::{Options, Row};

/// Tidegate beside other rate limiters
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// The times as an array of {case, threads, peer, ns, ns_min, ns_max, ratio_to_floor}
    #[arg(long)]
    json: bool,
    /// Fill one limiter and say the bytes it takes; for `memory`, which runs it
    #[arg(long, hide = true, value_name = "PEER")]
    memory_of: Option<String>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(peer) = &cli.memory_of {
        println!("{}", memory::of(peer)?);
        return Ok(());
    }
    let options = &cli.options;
    eprintln!("rounds: {}, seed of the keys: {}", options.rounds(), keys::SEED);
    let mut rows = one::run(options)?;
    rows.extend(keyed::run(options)?);
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    print_times(&rows);
    if options.wants("memory") {
        println!("\nmemory: bytes for each of 1,000,000 keys");
        for (peer, bytes) in memory::run()? {
            println!("  {peer:<42}{bytes:>8.1}");
        }
    }
    if options.wants("clean-up") {
        println!("\nclean-up: the slowest call while 1,000,000 keys expire at once, in microseconds");
        let (median, spread, all) = ("median", "(min - max)", "with interrupted calls");
        println!("  {:<42}{median:>10}  {spread:<20}{all}", "");
        for row in slowest::clean_up(options)? {
            let [ns, min, max, all] =
                [row.ns, row.ns_min, row.ns_max, row.all_ns].map(|ns| ns as f64 / 1000.0);
            let spread = format!("({min:.1} - {max:.1})");
            println!("  {:<42}{ns:>10.1}  {spread:<20}{all:>10.1}", row.peer);
        }
    }
    if options.wants("flood") {
        print_flood(&slowest::flood(options)?);
    }
    Ok(())
}

fn print_times(rows: &[Row]) {
    println!("nanoseconds of a thread for a decision: median (min - max), and the multiple of the floor");
    let mut last = (String::new(), 0);
    for row in rows {
        if last != (row.case.clone(), row.threads) {
            last = (row.case.clone(), row.threads);
            println!("\n{}, {} thread{}", row.case, row.threads, if row.threads == 1 { "" } else { "s" });
        }
        let Row { peer, ns, ns_min, ns_max, .. } = row;
        let ratio = row.ratio_to_floor.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let spread = format!("({ns_min:.1} - {ns_max:.1})");
        println!("  {peer:<42}{ns:>8.1}  {spread:<18}{ratio:>6}");
    }
}

fn print_flood(flood: &slowest::Flood) {
    println!("\nflood: {} strangers over 100,000 keys of room, {} bytes", flood.strangers, flood.bytes);
    println!("  {} of {} calls within a limit were rejected", flood.rejected, flood.calls);
    println!("  {} keys were forgotten with a debt", flood.evicted);
    println!("  {} calls are left out below: the thread was taken off its processor", flood.preempted);
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.99", 0.9999), ("max", 1.0)] {
        println!(
            "  {name:<8}{:>10} ns a call, two readings of the clock included",
            flood.times.value_at_quantile(quantile)
        );
    }
}
