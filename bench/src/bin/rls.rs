//! Envoy's rate limit service beside a plain gRPC server that answers the same message and decides nothing.
//!
//! Both servers are one process on the first processor, with a thread each; the client is on the second. They take turns. Each
//! turn asks as fast as the answers come, with `--at-once` requests under way on each of `--connections`; after all of these,
//! each asks at half of the slower median of the rates, where a request's time counts from when it was sent. What a call takes of
//! the processor is the server's, and says more than the rate where others use the machine too.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates and counts of a benchmark are far below 2^52"
)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use tidegate_http::{RateLimit, RequestLimit};
use tidegate_server::rls::proto::rate_limit_descriptor::Entry;
use tidegate_server::rls::proto::rate_limit_response::Code;
use tidegate_server::rls::proto::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use tidegate_server::rls::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use tidegate_server::rls::{Rls, Rule, Rules};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic::{Request, Response, Status, async_trait};

/// Envoy's rate limit service beside a plain gRPC server
#[derive(Debug, Parser)]
#[command(name = "rls", version)]
struct Cli {
    /// Turns of both servers; the medians count
    #[arg(long, default_value = "41")]
    rounds: usize,
    /// Milliseconds of a turn
    #[arg(long, default_value = "500")]
    turn_ms: u64,
    /// Connections, as many as an Envoy has worker threads
    #[arg(long, default_value = "2")]
    connections: usize,
    /// Requests under way on each connection at the highest rate
    #[arg(long, default_value = "16")]
    at_once: usize,
    /// Clients, each with tokens of its own
    #[arg(long, default_value = "10000")]
    keys: u64,
    /// Only serve; the benchmark runs it
    #[arg(long, hide = true)]
    serve: bool,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { if cli.serve { serve().await } else { measure(&cli).await } })
}

/// Answers as a server that allows does, and decides nothing.
#[derive(Debug)]
struct Echo(RateLimitResponse);

#[async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        drop(request.into_inner());
        Ok(Response::new(self.0.clone()))
    }
}

fn request(key: u64) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.into(), value };
    let entries = vec![entry("path", "/login".into()), entry("remote_address", format!("10.0.{key}"))];
    let descriptors = vec![RateLimitDescriptor { entries, hits_addend: None }];
    RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 }
}

async fn serve() -> Result<()> {
    // Each client has calls left, and a debt.
    let quota = "1000/s burst 1000000".parse()?;
    let limits = RateLimit::builder().limit(RequestLimit::new("login", quota)).build()?;
    let patterns = vec!["shop: path=/login, remote_address=*".parse()?];
    let rls = Rls::new(limits, Rules::new(vec![Rule::new("login", quota, patterns)?]));
    let answer = rls.should_rate_limit(Request::new(request(1))).await?.into_inner();
    ensure!(answer.overall_code() == Code::Ok, "the limits allow all");
    let listen = || TcpListener::bind("127.0.0.1:0");
    let (plain, limited) = (listen().await?, listen().await?);
    println!("{}\n{}", plain.local_addr()?, limited.local_addr()?);
    // A thread for each, so that neither has what the other needs.
    let echo = std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = plain.into_std()?;
        runtime.block_on(async {
            let incoming = TcpIncoming::from(TcpListener::from_std(listener)?).with_nodelay(Some(true));
            let service = RateLimitServiceServer::new(Echo(answer));
            Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
        })
    });
    rls.serve(limited, std::future::pending()).await?;
    echo.join().map_err(|_| anyhow::anyhow!("the plain server ended"))?
}

/// The servers, which end with it.
struct Servers(Child);

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(cli: &Cli) -> Result<()> {
    let me = std::env::current_exe()?;
    let mut servers = Command::new("taskset");
    servers.args(["-c", "0"]).arg(&me).arg("--serve").stdout(Stdio::piped());
    let mut servers = Servers(servers.spawn().context("taskset is needed, from util-linux")?);
    let pinned = Command::new("taskset").args(["-cp", "1", &std::process::id().to_string()]).output()?;
    ensure!(pinned.status.success(), "this machine has no second processor");
    let mut lines = BufReader::new(servers.0.stdout.take().context("no output")?).lines();
    let mut address = || -> Result<SocketAddr> { Ok(lines.next().context("no address")??.parse()?) };
    let addresses = [address()?, address()?];
    let names = ["plain", "tidegate"];
    let pid = servers.0.id();
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut used: [Vec<f64>; 2] = Default::default();
    let mut times: [Vec<[f64; 3]>; 2] = Default::default();
    for round in 0..=cli.rounds {
        for (at, address) in addresses.iter().enumerate() {
            let before = processor_ns(pid)?;
            let (calls, rate) = at_most(cli, *address).await?;
            // The first one warms up.
            if round > 0 {
                rates[at].push(rate);
                used[at].push((processor_ns(pid)? - before) as f64 / calls as f64);
            }
        }
    }
    let half = rates.each_ref().map(|rates| median(rates)).into_iter().fold(f64::MAX, f64::min) / 2.0;
    for _ in 0..cli.rounds {
        for (at, address) in addresses.iter().enumerate() {
            times[at].push(at_rate(cli, *address, half).await?);
        }
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load of the machine at the end: {}", load.trim());
    println!(
        "| | calls a second | ns of the server | at {half:.0} a second: p50 us | p99 us | sent late, of 1000 |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (at, name) in names.iter().enumerate() {
        let column = |of: usize| shown(times[at].iter().map(|times| times[of]).collect());
        let (rate, used) = (shown(rates[at].clone()), shown(used[at].clone()));
        println!("| {name} | {rate} | {used} | {} | {} | {} |", column(0), column(1), column(2));
    }
    let ratio = |of: &[Vec<f64>; 2], whole: f64| {
        shown(of[1].iter().zip(&of[0]).map(|(limited, plain)| limited / plain * whole).collect())
    };
    println!("tidegate / plain of each round, in thousandths: calls a second {}", ratio(&rates, 1000.0));
    println!("and the processor of a call {}", ratio(&used, 1000.0));
    Ok(())
}

/// What a process has used of its processor.
fn processor_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split(' ').next().context("no time")?.parse::<u64>()?;
    }
    Ok(sum)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn shown(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    format!("{:.0} ({:.0} - {:.0})", at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

async fn clients(cli: &Cli, address: SocketAddr) -> Result<Vec<RateLimitServiceClient<Channel>>> {
    let mut clients = Vec::new();
    for _ in 0..cli.connections {
        let channel = Channel::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?;
        clients.push(RateLimitServiceClient::new(channel));
    }
    Ok(clients)
}

async fn ask(client: &mut RateLimitServiceClient<Channel>, key: u64) -> Result<()> {
    let response = client.should_rate_limit(request(key)).await?.into_inner();
    ensure!(response.overall_code() == Code::Ok, "a call was not allowed");
    Ok(())
}

/// Calls, and calls a second, as fast as the answers come.
async fn at_most(cli: &Cli, address: SocketAddr) -> Result<(u64, f64)> {
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let end = began + Duration::from_millis(cli.turn_ms);
    let mut asking = JoinSet::new();
    for client in clients(cli, address).await? {
        for _ in 0..cli.at_once {
            let (mut client, next, keys) = (client.clone(), Arc::clone(&next), cli.keys);
            asking.spawn(async move {
                while Instant::now() < end {
                    ask(&mut client, next.fetch_add(1, Ordering::Relaxed) % keys).await?;
                }
                anyhow::Ok(())
            });
        }
    }
    while let Some(done) = asking.join_next().await {
        done??;
    }
    let calls = next.load(Ordering::Relaxed);
    Ok((calls, calls as f64 / began.elapsed().as_secs_f64()))
}

/// The median and the 99th percentile in microseconds at a rate, and how many thousandths of the requests were sent late.
async fn at_rate(cli: &Cli, address: SocketAddr, rate: f64) -> Result<[f64; 3]> {
    let clients = clients(cli, address).await?;
    let count = (rate * cli.turn_ms as f64 / 1000.0) as u64;
    let mut times = Histogram::<u64>::new(3)?;
    let mut asking = JoinSet::new();
    let (mut late, began) = (0_u64, Instant::now());
    for call in 0..count {
        let due = began + Duration::from_secs_f64(call as f64 / rate);
        // A timer is a millisecond coarse, so those that are due by then go together: bursts, and harder for a server.
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        } else {
            tokio::task::yield_now().await;
        }
        let sent = Instant::now();
        late += u64::from(sent > due + Duration::from_millis(2));
        let mut client = clients[call as usize % clients.len()].clone();
        let key = call % cli.keys;
        asking.spawn(async move {
            ask(&mut client, key).await?;
            anyhow::Ok(sent.elapsed())
        });
        while let Some(done) = asking.try_join_next() {
            times.record(u64::try_from(done??.as_micros())?)?;
        }
    }
    while let Some(done) = asking.join_next().await {
        times.record(u64::try_from(done??.as_micros())?)?;
    }
    let at = |quantile| times.value_at_quantile(quantile) as f64;
    Ok([at(0.5), at(0.99), late as f64 * 1000.0 / count as f64])
}
