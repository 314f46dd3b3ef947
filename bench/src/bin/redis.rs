//! Decisions by a Redis server: one script for each, as most clients do it, beside `tidegate-redis`, in one run.
//!
//! On the hot key, limiters that lease are measured too, with the calls to the server that they need.
//!
//! All share one connection between all callers, on the same server and runtime, in turns. The server, which is started
//! here, has the first processor to itself, as far as this program is concerned, and the callers have the others. Whoever has
//! more to do limits the rate, so what a decision takes of each is told too.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use redis::aio::MultiplexedConnection;
use tidegate::Quota;
use tidegate_redis::{LeasedLimiter, Leasing, Made, OnFailure, SharedLimiter, Store};

/// Decisions by a Redis server, one script for each beside tidegate-redis
#[derive(Debug, Parser)]
#[command(name = "redis", version)]
struct Cli {
    /// How often each is measured; the median counts
    #[arg(long, default_value = "7")]
    rounds: usize,
    /// For how many milliseconds
    #[arg(long, default_value = "500")]
    ms: u64,
    /// Only the load on one key that is allowed
    #[arg(long)]
    hot: bool,
    /// How many callers there are at a time
    #[arg(long, value_delimiter = ',', default_value = "1,64,512")]
    callers: Vec<usize>,
    /// The server
    #[arg(long, default_value = "redis-server", env = "TIDEGATE_REDIS_SERVER")]
    server: String,
}

/// How many keys there are where they differ.
const KEYS: u32 = 100_000;

/// A token bucket as it is often written: a level with a fraction, and the time.
const PLAIN: &str = r"
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local level, time = burst, now
local stored = redis.call('GET', KEYS[1])
if stored then
  local at = string.find(stored, ' ', 1, true)
  level, time = tonumber(string.sub(stored, 1, at - 1)), tonumber(string.sub(stored, at + 1))
  level = math.min(burst, level + math.max(0, now - time) * rate)
end
if level < cost then return {0, math.ceil((cost - level) / rate * 1000), math.floor(level)} end
level = level - cost
redis.call('SET', KEYS[1], level .. ' ' .. string.format('%.6f', now), 'PX', math.ceil((burst - level) / rate * 1000) + 1000)
return {1, 0, math.floor(level)}
";

/// What the callers ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    Different,
    Hot,
    HotRejected,
}

impl Load {
    const ALL: [Self; 3] = [Self::Different, Self::Hot, Self::HotRejected];

    const fn name(self) -> &'static str {
        match self {
            Self::Different => "100,000 keys, allowed",
            Self::Hot => "one key, allowed",
            Self::HotRejected => "one key, rejected",
        }
    }

    const fn quota(self) -> &'static str {
        match self {
            // So slow that no key expires, and so large that none is empty.
            Self::Different => "1/hour burst 2000000",
            Self::Hot => "1000000000/s",
            Self::HotRejected => "1/day burst 1",
        }
    }
}

/// Who decides.
#[derive(Clone)]
enum Peer {
    Plain(MultiplexedConnection, Arc<str>),
    /// A limiter and its store.
    Ours(Arc<SharedLimiter>, Store),
    /// One that leases.
    Leased(Arc<LeasedLimiter>, Store),
}

impl Peer {
    async fn is_allowed(&mut self, key: u32, load: Load) -> Result<bool> {
        match self {
            Self::Plain(connection, sha) => {
                let (rate, burst) = match load {
                    Load::Different => ("0.000277778", "2000000"),
                    Load::Hot => ("1000000000", "1000000000"),
                    Load::HotRejected => ("0.000011574", "1"),
                };
                let mut command = redis::cmd("EVALSHA");
                command.arg(&**sha).arg(1).arg(format!("plain:{}:{key}", load.quota()));
                let [allowed, _, _]: [i64; 3] =
                    command.arg(rate).arg(burst).arg(1).query_async(connection).await?;
                Ok(allowed == 1)
            }
            Self::Ours(limiter, _) => {
                let answer = limiter.check(&key.to_string()).await;
                ensure!(matches!(answer.made, Made::Exact | Made::Remembered), "{answer:?}");
                Ok(answer.is_allowed())
            }
            Self::Leased(limiter, _) => {
                let answer = limiter.check(&key.to_be_bytes()).await;
                ensure!(matches!(answer.made, Made::Exact | Made::Remembered | Made::Leased), "{answer:?}");
                Ok(answer.is_allowed())
            }
        }
    }
}

/// The server, stopped when it goes out of scope.
struct Server(Child, String);

impl Server {
    fn start(program: &str) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("taskset")
            .args(["-c", "0", program, "--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start `{program}` by `taskset`; install redis-server"))?;
        let server = Self(child, format!("redis://127.0.0.1:{port}"));
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "the server does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What one round says.
#[derive(Debug, Clone, Copy)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// The time on the processor for a decision, of the server and of the callers with their client: what others on this
    /// machine do changes it least.
    server_us: f64,
    client_us: f64,
    /// Scripts of ours.
    trips_per_second: f64,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let server = Server::start(&cli.server)?;
    let processors = std::thread::available_parallelism()?.get();
    let workers = processors.saturating_sub(1).max(1);
    if processors > 1 {
        leave_the_first_processor(processors)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    runtime.block_on(run(&cli, &server))
}

/// Threads that are started later do the same.
fn leave_the_first_processor(processors: usize) -> Result<()> {
    let own = std::process::id().to_string();
    let others = format!("1-{}", processors - 1);
    let told = Command::new("taskset").args(["-c", "-p", &others, &own]).output().context("no taskset")?;
    ensure!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    Ok(())
}

async fn run(cli: &Cli, server: &Server) -> Result<()> {
    let mut connection = redis::Client::open(&*server.1)?.get_multiplexed_async_connection().await?;
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(PLAIN).query_async(&mut connection).await?;
    // A round of 512 callers on two cores is not what the deadline is about.
    let store = Store::builder(&server.1).deadline(Duration::from_secs(5)).connect().await?;
    let asking = Store::builder(&server.1)
        .deadline(Duration::from_secs(5))
        .remember_rejections(Duration::ZERO)
        .connect()
        .await?;
    let mut all: BTreeMap<(Load, usize, usize), Vec<Figures>> = BTreeMap::new();
    for round in 1..=cli.rounds {
        eprintln!("round {round} of {}", cli.rounds);
        for load in Load::ALL {
            if cli.hot && load != Load::Hot {
                continue;
            }
            let quota: Quota = load.quota().parse()?;
            let limiter =
                |store: &Store| store.limiter(&format!("{load:?}"), quota, OnFailure::Closed).map(Arc::new);
            let leasing = Leasing { max_overshoot: quota.burst() / 10, keys: 1000 };
            let mut peers = vec![
                Peer::Plain(connection.clone(), sha.as_str().into()),
                Peer::Ours(limiter(&asking)?, asking.clone()),
                Peer::Ours(limiter(&store)?, store.clone()),
            ];
            if load == Load::Hot {
                let limiter = store.leased_limiter("leased", quota, leasing, OnFailure::Closed).await?;
                peers.push(Peer::Leased(Arc::new(limiter), store.clone()));
            }
            for &callers in &cli.callers {
                for (index, peer) in peers.iter().enumerate() {
                    // What the store remembers makes no difference where nothing is rejected.
                    if index != 2 || load == Load::HotRejected {
                        let figures =
                            measure(&mut connection, peer, load, callers, Duration::from_millis(cli.ms))
                                .await?;
                        all.entry((load, callers, index)).or_default().push(figures);
                    }
                }
            }
        }
    }
    print(&all);
    Ok(())
}

async fn measure(
    connection: &mut MultiplexedConnection,
    peer: &Peer,
    load: Load,
    callers: usize,
    time: Duration,
) -> Result<Figures> {
    if load == Load::HotRejected {
        let _spent = peer.clone().is_allowed(0, load).await?;
    }
    if let Peer::Leased(..) = peer {
        // Chunks double from one token, at an ask each: that is not counted.
        let until = Instant::now() + time;
        let tasks: Vec<_> =
            (0..callers).map(|seed| tokio::spawn(call(peer.clone(), load, seed, until))).collect();
        for task in tasks {
            task.await??;
        }
    }
    let trips = || match peer {
        Peer::Ours(_, store) | Peer::Leased(_, store) => store.stats().scripts,
        Peer::Plain(..) => 0,
    };
    let before = trips();
    let cpu = server_cpu_us(connection).await?;
    let own_cpu = own_cpu_us()?;
    let start = Instant::now();
    let until = start + time;
    let tasks: Vec<_> =
        (0..callers).map(|seed| tokio::spawn(call(peer.clone(), load, seed, until))).collect();
    let mut all = Vec::with_capacity(callers);
    for task in tasks {
        all.push(task.await??);
    }
    let seconds = start.elapsed().as_secs_f64();
    let own_cpu = own_cpu_us()? - own_cpu;
    let mut latency_ns = Histogram::<u64>::new(3)?;
    for latency in all.into_iter().flatten() {
        latency_ns.record(latency.into())?;
    }
    Ok(Figures {
        per_second: latency_ns.len() as f64 / seconds,
        p50_us: latency_ns.value_at_quantile(0.5) as f64 / 1000.0,
        p99_us: latency_ns.value_at_quantile(0.99) as f64 / 1000.0,
        trips_per_second: (trips() - before) as f64 / seconds,
        server_us: (server_cpu_us(connection).await? - cpu) / latency_ns.len() as f64,
        client_us: own_cpu / latency_ns.len() as f64,
    })
}

async fn server_cpu_us(connection: &mut MultiplexedConnection) -> Result<f64> {
    let text: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let of = |name| {
        let line = text.lines().find_map(|line: &str| line.strip_prefix(name)).context("no cpu time")?;
        anyhow::Ok(line.trim().parse::<f64>()? * 1e6)
    };
    Ok(of("used_cpu_user:")? + of("used_cpu_sys:")?)
}

/// What this process has taken of its processors, to a hundredth of a second.
fn own_cpu_us() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name before may hold spaces. The 12th and the 13th after it are the ticks of user and system.
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11).take(2);
    let ticks = fields.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks * 10_000.0)
}

/// One caller: one decision after the other. Says how many nanoseconds each took, as a plain list: a histogram for each of 512
/// callers would be most of what they do.
async fn call(mut peer: Peer, load: Load, seed: usize, until: Instant) -> Result<Vec<u32>> {
    let mut random = Pcg64::seed_from_u64(seed as u64);
    let mut latency_ns = Vec::new();
    let mut start = Instant::now();
    while start < until {
        let key = if load == Load::Different { random.random_range(0..KEYS) } else { 0 };
        if peer.is_allowed(key, load).await? == (load == Load::HotRejected) {
            bail!("the answer is not that of `{}`", load.name());
        }
        let end = Instant::now();
        latency_ns.push(u32::try_from((end - start).as_nanos()).unwrap_or(u32::MAX));
        start = end;
        // What is answered without a trip never waits; others must have their turn.
        tokio::task::consume_budget().await;
    }
    Ok(latency_ns)
}

fn print(all: &BTreeMap<(Load, usize, usize), Vec<Figures>>) {
    println!(
        "{:<23}{:>8}  {:<30}{:>12}  {:<22}{:>9}{:>10}{:>11}{:>11}{:>9}",
        "load",
        "callers",
        "client",
        "decisions/s",
        "(min - max)",
        "p50 us",
        "p99 us",
        "server us",
        "client us",
        "trips/s"
    );
    for ((load, callers, peer), rounds) in all {
        let client =
            ["one script each", "tidegate-redis, asks each time", "tidegate-redis", "tidegate-redis, leased"];
        let client = if *peer == 1 && *load != Load::HotRejected { client[2] } else { client[*peer] };
        let median = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[0], values[values.len() - 1])
        };
        let (rate, min, max) = median(|figures| figures.per_second);
        let ((p50, ..), (p99, ..)) = (median(|figures| figures.p50_us), median(|figures| figures.p99_us));
        let (server, ..) = median(|figures| figures.server_us);
        let (own, ..) = median(|figures| figures.client_us);
        let (trips, ..) = median(|figures| figures.trips_per_second);
        let trips = if *peer > 0 { format!("{trips:.0}") } else { String::new() };
        let spread = format!("({min:.0} - {max:.0})");
        println!(
            "{:<23}{callers:>8}  {client:<30}{rate:>12.0}  {spread:<22}{p50:>9.0}{p99:>10.0}{server:>11.2}{own:>11.2}{trips:>9}",
            load.name()
        );
    }
}
