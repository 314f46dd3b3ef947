//! Bytes for each of a million keys: the resident memory that a process gains by them, each limiter in its own process.

use std::hint::black_box;
use std::process::Command;

use anyhow::{Context, Result, bail};
use governor::RateLimiter;
use tidegate::Limiter;

use crate::floor::FlatTable;
use crate::keyed::size;
use crate::keys::Keys;
use crate::one::{BURST, TOKEN_NS, governor_quota, quota, throttlecrab, throttlecrab_allows};

const KEYS: u64 = 1_000_000;

/// The peers, as `--memory-of` names them.
const PEERS: [&str; 6] = [
    "floor: flat table, u64",
    "tidegate Limiter",
    "tidegate Limiter, by its own word",
    "governor, u64 keys",
    "governor, String keys",
    "throttlecrab PeriodicStore",
];

/// Bytes for each key, by peer.
pub(crate) fn run() -> Result<Vec<(&'static str, f64)>> {
    let this = std::env::current_exe()?;
    let mut rows = Vec::new();
    for peer in PEERS {
        let output = Command::new(&this).args(["--memory-of", peer]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let bytes: u64 = text.trim().parse().with_context(|| format!("the memory of {peer}: {text:?}"))?;
        rows.push((peer, bytes as f64 / KEYS as f64));
    }
    Ok(rows)
}

/// Fills one peer and says the bytes that this process gained.
pub(crate) fn of(peer: &str) -> Result<u64> {
    // The first key makes what is there without keys.
    let mut keys = Keys::all(KEYS);
    let before = resident()?;
    match peer {
        "floor: flat table, u64" => {
            let table = FlatTable::new(size(KEYS), TOKEN_NS, u64::from(BURST) * TOKEN_NS);
            gained(before, keys.all(|(id, _)| table.check(&id)))
        }
        "tidegate Limiter" => {
            let limiter = Limiter::new(quota()?, size(KEYS));
            gained(before, keys.all(|(_, text)| limiter.check(&*text).is_allowed()))
        }
        "tidegate Limiter, by its own word" => Ok(Limiter::new(quota()?, size(KEYS)).bytes() as u64),
        "governor, u64 keys" => {
            let limiter = RateLimiter::keyed(governor_quota());
            gained(before, keys.all(|(id, _)| limiter.check_key(&id).is_ok()))
        }
        "governor, String keys" => {
            let limiter = RateLimiter::keyed(governor_quota());
            gained(before, keys.all(|(_, text)| limiter.check_key(&text).is_ok()))
        }
        "throttlecrab PeriodicStore" => {
            let limiter = throttlecrab(size(KEYS));
            gained(before, keys.all(|(_, text)| throttlecrab_allows(&limiter, &text, BURST.into(), 1)))
        }
        _ => bail!("no peer {peer}"),
    }
}

/// Called with the limiter still there.
fn gained(before: u64, all_allowed: bool) -> Result<u64> {
    if !black_box(all_allowed) {
        bail!("a key was rejected");
    }
    Ok(resident()? - before)
}

fn resident() -> Result<u64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("the resident memory is read on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.trim_start().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
