//! `tidegate serve`: a server that does nothing but keep a limit, to try one over HTTP.

mod answer;
mod by_file;
mod connections;
mod impatient;
mod key;
mod upstream;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use tidegate::clock::Clock;
use tidegate::{Algorithm, Kind, Limiter};
use tidegate_http::RateLimit;
use tokio::net::TcpListener;

use crate::fault::{Hint, Outcome};
use crate::quota_args::{LimiterArgs, time_above_zero, whole_within};
use answer::{Counts, Desk, answer};
use key::KeySource;
use upstream::Upstream;

/// How long a server that was told to stop waits for the requests in flight. A leaky bucket may let calls wait for
/// longer; those are not answered then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serve HTTP under a limit, to try one with curl or `tidegate hammer`
///
/// Every path and method is answered: 200 when the limit allows it, 429 with Retry-After (whole seconds) and
/// retry-after-ms when not. A leaky bucket answers 200 later instead, while there is room in its queue. Ctrl-C or SIGTERM
/// stops it when the requests in flight are answered, in at most 10 s; a second one at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    limiter: LimiterArgs,

    /// Who has a limit of their own: client-ip, header:NAME or none
    ///
    /// client-ip is the address at the other end of the connection, for IPv6 its /64 network; headers such as
    /// X-Forwarded-For are not trusted, so behind a proxy all clients are one. With header:NAME, requests without that
    /// header share one limit. With none, all requests do.
    #[arg(long, value_name = "KEY", default_value = "client-ip", conflicts_with = "limits")]
    key: KeySource,

    /// The limits of a TOML file, all at once, instead of one limiter; see what it means with `tidegate check`
    ///
    /// Responses carry the fields RateLimit and RateLimit-Policy, rejections a problem body. Requests do not wait, so a
    /// limit with a `queue` cannot be served.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["limiter", "limit", "window", "burst", "quota", "queue", "max_wait"])]
    limits: Option<PathBuf>,

    /// Pass what the limits allow on to the service at http://HOST[:PORT][/BASE]: a reverse proxy
    ///
    /// Bodies stream both ways; WebSockets work. Host goes on as it came; X-Forwarded-For, -Proto and -Host and Via say
    /// where a request came from. A service that cannot be reached is answered 502, one that is slow 504.
    #[arg(long, value_name = "URL", requires = "limits")]
    upstream: Option<String>,

    /// How long the service of --upstream may take to begin its answer, counted from the end of the request's body
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time_above_zero, requires = "upstream")]
    upstream_timeout: Duration,

    /// The address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = listen)]
    listen: SocketAddr,

    /// How many keys are held at one time; when there are more, the one nearest to a full bucket is forgotten
    #[arg(long, value_name = "N", default_value = "65536", value_parser = keys)]
    keys: u64,
}

/// Windows begin with the seconds, minutes and hours of the wall clock, as in a simulation of a trace. Buckets do not ask
/// what time it is.
fn clock(algorithm: &Algorithm) -> Clock {
    match algorithm.kind() {
        Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog => Clock::unix(),
        _ => Clock::new(),
    }
}

/// Runs `serve` until a signal stops it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (served, settings) = match &args.limits {
        Some(path) => {
            let (layer, settings) = by_file::layer(path, usize::try_from(args.keys)?)?;
            let upstream = match &args.upstream {
                Some(url) => Some(Arc::new(Upstream::new(url, args.upstream_timeout)?)),
                None => None,
            };
            (Served::ByFile(layer, upstream), settings)
        }
        None => one_limiter(args)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    let result = runtime.block_on(serve(args.listen, &served, &settings));
    // Whoever is not answered by now has been waited for.
    runtime.shutdown_background();
    result
}

/// What decides.
#[derive(Debug)]
enum Served {
    One(Arc<Desk>),
    ByFile(RateLimit, Option<Arc<Upstream>>),
}

impl Served {
    fn router(&self) -> Router {
        match self {
            Self::One(desk) => Router::new().fallback(answer).with_state(Arc::clone(desk)),
            Self::ByFile(layer, upstream) => by_file::router(layer.clone(), upstream.clone()),
        }
    }

    fn counts(&self) -> Counts {
        match self {
            Self::One(desk) => desk.counts(),
            Self::ByFile(layer, _) => {
                let counts = layer.counts();
                let rejected = counts.rejected + counts.shed;
                Counts { allowed: counts.allowed, rejected, in_flight: counts.in_flight }
            }
        }
    }
}

/// The one limiter of the flags, and what it is in words.
fn one_limiter(args: &Args) -> anyhow::Result<(Served, String)> {
    let (algorithm, quota) = args.limiter.algorithm()?;
    let limiter =
        Limiter::builder(algorithm).capacity(usize::try_from(args.keys)?).clock(clock(&algorithm)).build()?;
    let label = args.limiter.label(quota);
    let log = if algorithm.kind() == Kind::SlidingLog {
        format!(" and 16 bytes more for each call in the window, at most {} a key", quota.count())
    } else {
        String::new()
    };
    let settings = format!(
        "{label}, key {}, {} keys in {} KiB{log}",
        args.key,
        args.keys,
        limiter.bytes().div_ceil(1024)
    );
    Ok((Served::One(Arc::new(Desk::new(limiter, label, args.key.clone()))), settings))
}

async fn serve(listen: SocketAddr, served: &Served, settings: &str) -> anyhow::Result<Outcome> {
    let mut signals = Signals::new()?;
    let listener = TcpListener::bind(listen).await.map_err(|error| cannot_listen(listen, &error))?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        warn(&format!(
            "{address} lets other machines in; use --listen 127.0.0.1:{} to keep them out",
            address.port()
        ));
    }
    say(&format!("listening on http://{address}\n{settings}"))?;

    let connections = connections::serve(listener, served.router(), signals.next()).await;
    tokio::select! {
        () = connections.shutdown() => {}
        () = tokio::time::sleep(DRAIN_TIMEOUT) => {
            let Counts { in_flight, .. } = served.counts();
            warn(&format!("{in_flight} requests were not answered in {} s", DRAIN_TIMEOUT.as_secs()));
        }
        () = signals.next() => {
            let Counts { in_flight, .. } = served.counts();
            warn(&format!("a second signal: {in_flight} requests were not answered"));
        }
    }
    let Counts { allowed, rejected, .. } = served.counts();
    say(&format!("stopped: {} requests, {allowed} allowed, {rejected} rejected", allowed + rejected))?;
    Ok(Outcome::Fine)
}

fn cannot_listen(listen: SocketAddr, error: &io::Error) -> anyhow::Error {
    let (why, hint) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            "the port is in use".to_owned(),
            "stop the other program, or give --listen another port; port 0 takes a free one".to_owned(),
        ),
        io::ErrorKind::PermissionDenied => {
            ("not permitted".to_owned(), "ports below 1024 need a privilege; use for example 8080".to_owned())
        }
        io::ErrorKind::AddrNotAvailable => (
            "this machine has no such address".to_owned(),
            format!("use for example --listen 127.0.0.1:{}", listen.port()),
        ),
        _ => (error.to_string(), "give --listen another address or port".to_owned()),
    };
    Hint::error(format!("cannot listen on {listen}: {why}"), hint)
}

/// Reads a number of keys.
fn keys(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=16_777_216)
}

/// Reads `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric
        .as_deref()
        .unwrap_or(text)
        .parse()
        .map_err(|_| "not an address with a port; write for example 127.0.0.1:8080 or [::1]:8080".to_owned())
}

/// Writes to stdout at once, also into a pipe: whoever started the server waits for the line.
fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// A diagnostic that cannot be written is no reason to stop serving.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "warning: {text}");
}

/// The signals that ask for an end: Ctrl-C, and SIGTERM where there is one.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        let terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        Ok(Self { interrupt, terminate })
    }

    #[cfg(not(unix))]
    fn new() -> anyhow::Result<Self> {
        Ok(Self {})
    }

    /// Is ready at the next signal.
    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Is ready at the next signal.
    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
