//! What a limit costs an HTTP server: axum alone, with tower_governor, with our layer, and `tidegate serve`, in one run.
//!
//! The server has one processor and wrk the other. In each round every server is started, asked for some seconds and
//! stopped, once with a limit that allows all requests and once with one that rejects all but a few.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use clap::{Parser, Subcommand};
use tidegate_http::RateLimit;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// What a limit costs an HTTP server, beside others
#[derive(Debug, Parser)]
#[command(name = "http", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Mode>,
    /// How often each server is asked; the median counts
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// For how many seconds
    #[arg(long, default_value = "3")]
    seconds: u32,
    /// Over how many connections
    #[arg(long, default_value = "64")]
    connections: u32,
    /// Ask for decisions at /v1/check, beside an echo of the same question
    #[arg(long)]
    decisions: bool,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Serve under a limit; the benchmark runs it
    #[command(hide = true)]
    Serve { peer: String, limit: String },
}

/// The servers, each with a limit of both kinds if it has any.
const SERVERS: [(&str, &str); 7] = [
    ("axum", "none"),
    ("tower_governor", "allows"),
    ("tidegate-http", "allows"),
    ("tidegate serve", "allows"),
    ("tower_governor", "rejects"),
    ("tidegate-http", "rejects"),
    ("tidegate serve", "rejects"),
];

/// With `--decisions`: who answers JSON to JSON.
const DECIDERS: [(&str, &str); 2] = [("axum", "echo"), ("tidegate serve", "/v1/check")];

/// The limit that is asked.
const LIMITS: &str = "\
[[limit]]\nname = \"calls\"\nkey = \"header:x-account\"\nquota = \"1000000/s burst 1000000\"\n";

/// A question about it, as wrk sends it.
const QUESTION: &str = r#"
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"limit": "calls", "key": "ann", "cost": 1}'
"#;

/// What wrk measured.
#[derive(Debug, Clone, Copy)]
struct Load {
    per_second: f64,
    p99_us: f64,
    refused: u64,
    /// The server's time on its processor for a request: what others on this machine do changes it least.
    cpu_us: f64,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Mode::Serve { peer, limit }) = &cli.command {
        return tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(serve(peer, limit));
    }
    let servers = if cli.decisions { &DECIDERS[..] } else { &SERVERS };
    let mut loads: BTreeMap<usize, Vec<Load>> = BTreeMap::new();
    for round in 1..=cli.rounds {
        for (index, (peer, limit)) in servers.iter().copied().enumerate() {
            eprintln!("round {round} of {}: {peer}, {limit}", cli.rounds);
            let load = ask(&cli, peer, limit).with_context(|| format!("{peer}, {limit}"))?;
            loads.entry(index).or_default().push(load);
        }
    }
    println!(
        "{:<25}{:>10}  {:<21}{:>6}{:>9}{:>7}{:>9}  {:<16}{:>8}",
        "server, limit",
        "requests/s",
        "(least - most)",
        "ratio",
        "cpu us",
        "ratio",
        "p99 us",
        "(least - most)",
        "refused"
    );
    let base = |of: fn(&Load) -> f64| spread(loads[&0].iter().map(of)).0;
    for (index, (peer, limit)) in servers.iter().copied().enumerate() {
        let of = |of: fn(&Load) -> f64| spread(loads[&index].iter().map(of));
        let (rate, cpu, p99) = (of(|load| load.per_second), of(|load| load.cpu_us), of(|load| load.p99_us));
        let (range, wait) =
            (format!("({:.0} - {:.0})", rate.1, rate.2), format!("({:.0} - {:.0})", p99.1, p99.2));
        let (ratio, cpu_ratio) = (rate.0 / base(|load| load.per_second), cpu.0 / base(|load| load.cpu_us));
        let refused = loads[&index].iter().map(|load| load.refused).min().unwrap_or(0);
        let name = format!("{peer}, {limit}");
        println!(
            "{name:<25}{:>10.0}  {range:<21}{ratio:>6.2}{:>9.2}{cpu_ratio:>7.2}{:>9.0}  {wait:<16}{refused:>8}",
            rate.0, cpu.0, p99.0
        );
    }
    Ok(())
}

/// Median, least and most.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// A server, stopped when it goes out of scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on the first processor and asks it from the second.
fn ask(cli: &Cli, peer: &str, limit: &str) -> Result<Load> {
    let own = std::env::current_exe()?;
    let (limits, question) =
        (own.with_file_name("bench-limits.toml"), own.with_file_name("bench-question.lua"));
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]);
    if peer == "tidegate serve" {
        let program = own.with_file_name("tidegate");
        if !program.exists() {
            bail!("{} is not there; run `cargo build --release` first", program.display());
        }
        let quota = if limit == "rejects" { "1/hour" } else { "1000000/s burst 1000000" };
        command.arg(program).args(["serve", "--listen", "127.0.0.1:0"]);
        if cli.decisions {
            std::fs::write(&limits, LIMITS)?;
            command.arg("--limits").arg(&limits);
        } else {
            command.args(["--quota", quota]);
        }
    } else {
        command.arg(own).args(["serve", peer, limit]);
    }
    let mut server = Server(command.stdout(Stdio::piped()).spawn().context("taskset cannot be run")?);
    let mut line = String::new();
    // Kept until the end, as a server that cannot say that it listens stops.
    let mut stdout = BufReader::new(server.0.stdout.take().context("no stdout")?);
    stdout.read_line(&mut line)?;
    let mut url = line.trim().trim_start_matches("listening on ").to_owned() + "/";
    let mut script = Vec::new();
    if cli.decisions {
        url.push_str("v1/check");
        std::fs::write(&question, QUESTION)?;
        script.extend(["-s", question.to_str().context("the folder has no name in UTF-8")?]);
    }
    let (seconds, connections) = (format!("{}s", cli.seconds), cli.connections.to_string());
    // A second that is not counted: connections open, pages are touched.
    wrk(&[&script[..], &["-d", "1s", "-c", &connections, &url]].concat())?;
    let before = cpu_seconds(server.0.id())?;
    let text = wrk(&[&script[..], &["-d", &seconds, "-c", &connections, "--latency", &url]].concat())?;
    read(&text, cpu_seconds(server.0.id())? - before)
}

/// How long a process has had a processor: fields 14 and 15 of its `stat`, in hundredths of a second.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is a name in parentheses, which may hold spaces.
    let fields = stat.rsplit_once(") ").context("no name in stat")?.1.split(' ').skip(11).take(2);
    let ticks = fields.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}

fn wrk(args: &[&str]) -> Result<String> {
    let output = Command::new("taskset").args(["-c", "1", "wrk", "-t", "1"]).args(args).output();
    let output = output.context("wrk cannot be run; install it (Debian: wrk)")?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Reads what wrk prints.
fn read(text: &str, cpu_seconds: f64) -> Result<Load> {
    let after = |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start)).map(str::trim);
    let per_second = after("Requests/sec:").with_context(|| format!("no rate in:\n{text}"))?.parse()?;
    let p99 = after("99%").with_context(|| format!("no latency in:\n{text}"))?;
    let split = p99.find(|byte: char| byte.is_ascii_alphabetic()).unwrap_or(p99.len());
    let unit = match &p99[split..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        other => bail!("wrk has the unit `{other}`"),
    };
    let refused = after("Non-2xx or 3xx responses:").map_or(Ok(0), str::parse)?;
    if let Some(errors) = after("Socket errors:") {
        bail!("socket errors: {errors}");
    }
    let counted = text.lines().find_map(|line| line.split_once(" requests in "));
    let requests: f64 = counted.with_context(|| format!("no requests in:\n{text}"))?.0.trim().parse()?;
    let cpu_us = cpu_seconds * 1e6 / requests;
    Ok(Load { per_second, p99_us: p99[..split].parse::<f64>()? * unit, refused, cpu_us })
}

/// Reads JSON and writes it again.
async fn echo(body: Bytes) -> Result<impl IntoResponse, StatusCode> {
    let json: serde_json::Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let bytes = serde_json::to_vec(&json).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(CONTENT_TYPE, "application/json")], bytes))
}

async fn serve(peer: &str, limit: &str) -> Result<()> {
    let app = Router::new().route("/", get(async || "allowed\n")).route("/v1/check", post(echo));
    let rejects = limit == "rejects";
    let app = match peer {
        "axum" => app,
        "tidegate-http" => {
            app.layer(RateLimit::per_client(if rejects { "1/hour" } else { "1000000/s burst 1000000" }))
        }
        "tower_governor" => {
            let mut config = GovernorConfigBuilder::default();
            if rejects {
                config.per_second(3600).burst_size(1);
            } else {
                config.per_nanosecond(1000).burst_size(1_000_000);
            }
            // With the fields that it can send, as ours does.
            let config = config.use_headers().finish().context("no quota")?;
            app.layer(GovernorLayer::new(Arc::new(config)))
        }
        other => bail!("there is no server `{other}`"),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
