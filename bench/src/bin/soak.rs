//! `tidegate serve` under load for a long time, from a million clients: is its memory flat, is every request answered, is the
//! 99th percentile what it was?
//!
//! The clients are told apart by `X-Forwarded-For`; each connection sends one request after the other, at an even pace. A
//! line in ten seconds says what was answered, and the memory of the server in use.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use hdrhistogram::Histogram;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// `tidegate serve` under load for a long time
#[derive(Debug, Parser)]
#[command(name = "soak", version)]
struct Cli {
    /// For how many minutes
    #[arg(long, default_value = "30")]
    minutes: f64,
    /// How many clients there are
    #[arg(long, default_value = "1000000")]
    clients: u32,
    /// How many requests a second
    #[arg(long, default_value = "5000")]
    rate: u64,
    /// Over how many connections
    #[arg(long, default_value = "16")]
    connections: u64,
}

/// What came back.
#[derive(Debug)]
struct Counts {
    allowed: AtomicU64,
    rejected: AtomicU64,
    other: AtomicU64,
    latency_us: Mutex<Histogram<u64>>,
}

/// The server, stopped when it goes out of scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let program = std::env::current_exe()?.with_file_name("tidegate");
    let keys = cli.clients.to_string();
    let mut command = Command::new(&program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--quota", "1 per 2min burst 3", "--keys", &keys]);
    command.args(["--trusted-proxies", "127.0.0.1"]).stdout(Stdio::piped());
    let run = format!("{} cannot be run; run `cargo build --release` first", program.display());
    let mut server = Server(command.spawn().context(run)?);
    let mut line = String::new();
    // Kept until the end, as a server that cannot say that it listens stops.
    let mut stdout = BufReader::new(server.0.stdout.take().context("no stdout")?);
    stdout.read_line(&mut line)?;
    let address = line.trim().trim_start_matches("listening on http://").to_owned();

    let counts = Counts {
        allowed: AtomicU64::new(0),
        rejected: AtomicU64::new(0),
        other: AtomicU64::new(0),
        latency_us: Mutex::new(Histogram::new(3)?),
    };
    let is_over = AtomicBool::new(false);
    let pid = server.0.id();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..cli.connections)
            .map(|index| {
                let (cli, counts, address, is_over) = (&cli, &counts, &address, &is_over);
                scope.spawn(move || call(index, cli, address, counts, is_over))
            })
            .collect();
        let result = watch(&cli, pid, &counts);
        is_over.store(true, Ordering::Relaxed);
        let broken = callers.into_iter().filter_map(|caller| caller.join().ok()?.err()).next();
        result.and(broken.map_or(Ok(()), Err))
    })
}

/// Prints how it goes, and at the end whether that is well.
fn watch(cli: &Cli, pid: u32, counts: &Counts) -> Result<()> {
    let start = Instant::now();
    let end = Duration::from_secs_f64(cli.minutes * 60.0);
    let mut memory = Vec::new();
    println!(
        "{:>8}{:>12}{:>12}{:>8}{:>12}{:>10}",
        "seconds", "allowed", "rejected", "other", "p99 us", "MiB"
    );
    while start.elapsed() < end {
        std::thread::sleep(Duration::from_secs(10).min(end.saturating_sub(start.elapsed())));
        let mib = memory_kib(pid)? / 1024.0;
        memory.push(mib);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let p99 = {
            let mut latency = counts.latency_us.lock().unwrap_or_else(PoisonError::into_inner);
            let p99 = latency.value_at_quantile(0.99);
            latency.reset();
            p99
        };
        println!(
            "{:>8.0}{:>12}{:>12}{:>8}{p99:>12}{mib:>10.1}",
            start.elapsed().as_secs_f64(),
            of(&counts.allowed),
            of(&counts.rejected),
            of(&counts.other)
        );
    }
    // The table's pages are touched in the first quarter.
    let later = &memory[memory.len() / 4..];
    let most = later.iter().copied().fold(0.0, f64::max);
    println!("memory after a quarter of the time: {:.1} MiB, and {most:.1} at most from then on", later[0]);
    Ok(())
}

/// The memory of a process that is in use.
fn memory_kib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// One connection: a request at each of its times, and the answer.
fn call(index: u64, cli: &Cli, address: &str, counts: &Counts, is_over: &AtomicBool) -> Result<()> {
    let mut random = Pcg64::seed_from_u64(index);
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let start = Instant::now();
    for number in 0_u64.. {
        let at = Duration::from_secs_f64((number * cli.connections + index) as f64 / cli.rate as f64);
        std::thread::sleep(at.saturating_sub(start.elapsed()));
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let [_, b, c, d] = random.random_range(0..cli.clients).to_be_bytes();
        let asked = Instant::now();
        write!(stream, "GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 11.{b}.{c}.{d}\r\n\r\n")?;
        let counter = match status(&mut answers).with_context(|| format!("connection {index}"))? {
            200 => &counts.allowed,
            429 => &counts.rejected,
            _ => &counts.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
        counts.latency_us.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(us.max(1));
    }
    Ok(())
}

/// Reads an answer, and says its status.
fn status(answers: &mut BufReader<TcpStream>) -> Result<u16> {
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if answers.read_line(&mut line)? == 0 {
            bail!("the server has closed the connection");
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest.get(..3).and_then(|code| code.parse().ok());
        } else if let Some(rest) = line.strip_prefix("content-length: ") {
            length = rest.parse()?;
        }
    }
    std::io::copy(&mut std::io::Read::take(answers, length), &mut std::io::sink())?;
    status.context("an answer without a status")
}
