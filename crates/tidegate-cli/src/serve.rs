//! `tidegate serve`: a server under limits, to try them over HTTP.

mod admin;
#[cfg(any(test, fuzzing))]
pub(crate) mod any_limits;
mod api;
mod drain;
mod grpc;
mod key;
mod layer;
mod log;
mod observer;
mod reload;
mod resp;
mod said;
mod secret;
#[cfg(unix)]
mod service_manager;
mod store;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{ConnectInfo, Request};
use tidegate::{Kind, Limit, Mode, Quota};
use tidegate_http::RateLimit;
use tidegate_http::identity::{ClientIdentity, TrustedProxies};
use tidegate_http::layer::{Key, RateLimitBuilder};
use tidegate_server::http::ask_token;
use tidegate_server::resp::Checks;
use tidegate_server::rls::Rls;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::fault::Outcome;
use crate::http_server::address::{bind, listen};
use crate::http_server::connections;
use crate::http_server::signals::{Hangups, Signals};
use crate::limits::{self, FileLimit};
use crate::quota_args::{LimiterArgs, time_above_zero, whole_within};
use crate::store::url_and_name;
use crate::upstream::{Address, Host, Paths, Upstream};
use admin::{Board, Shown};
use api::InForce;
use grpc::Descriptors;
use key::KeyWord;
use observer::Observer;
use reload::{Reloader, Reloads};
use said::{say, wait_until_said};
use store::{SharedStore, Without};

/// Run a server under limits: HTTP, decisions at /v1, Redis clients, Envoy
///
/// Without more than a limit it is one to try with curl or `tidegate hammer`. Every path and method is
/// answered, but those of /v1 (below): 200 when the limits allow it, 429 with Retry-After (whole seconds),
/// retry-after-ms and a problem body when not, 503 when too many requests are in flight. A leaky bucket answers 200 later
/// instead, while there is room in its queue. Responses carry the fields RateLimit and RateLimit-Policy. Ctrl-C or SIGTERM
/// stops it when the requests in flight are answered, in at most 10 s; a second one at once.
///
/// Services in any language ask at /v1 what a key may do: POST /v1/check with JSON, and /v1/auth for nginx, Caddy and Traefik;
/// /v1/openapi.json describes it. With --upstream there is no /v1, as all paths are those of the service behind.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    limiter: LimiterArgs,

    /// Who has a limit of their own: client-ip, header:NAME, path, method or none
    ///
    /// client-ip is the address of the client, for IPv6 its /64 network: the one at the other end of the connection, unless
    /// that is a trusted proxy. With header:NAME, requests without that header share one limit. With none, all requests do.
    #[arg(long, value_name = "KEY", default_value = "client-ip", conflicts_with = "limits")]
    key: KeyWord,

    /// The limits of a TOML file, all at once, instead of one limiter; see what it means with `tidegate check`
    ///
    /// The file is read again when it changes and on SIGHUP. What was spent stays spent. If it is wrong, the limits stay as
    /// they are and a warning says why.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["limiter", "limit", "window", "burst", "quota", "queue", "max_wait"])]
    limits: Option<PathBuf>,

    /// Pass what the limits allow on to the service at http://HOST:PORT/BASE or https://HOST:PORT/BASE: a reverse proxy
    ///
    /// Bodies stream both ways; WebSockets work. Host goes on as it came, or with https becomes that of the URL;
    /// X-Forwarded-For, -Proto and -Host and Via say where a request came from. Certificates are checked with the
    /// authorities of the system, or with those of the PEM file that SSL_CERT_FILE names. A service that cannot be reached or
    /// whose certificate is not trusted is answered 502, one that is slow 504.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// How long the service of --upstream may take to begin its answer, counted from the end of the request's body
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time_above_zero, requires = "upstream")]
    upstream_timeout: Duration,

    /// Proxies whose X-Forwarded-For is believed, as addresses or networks: 10.0.0.0/8,::1
    #[arg(long, value_name = "NETWORKS", default_value = "", hide_default_value = true)]
    trusted_proxies: TrustedProxies,

    /// The address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = listen)]
    listen: SocketAddr,

    /// Keep the limits on a Redis or Valkey server, redis://HOST:PORT#NAME, and share them with all servers that give this
    /// NAME
    ///
    /// All limits have to be token buckets. All of them together allow what one server would. Sentinels and clusters are
    /// redis+sentinel://HOST,HOST/PRIMARY#NAME and redis+cluster://HOST,HOST#NAME; rediss is TLS. Places in flight are those
    /// of this server.
    #[arg(long, value_name = "URL", requires = "without_store", help_heading = "Sharing")]
    store: Option<String>,

    /// What happens to requests while the store does not answer: open, closed or local:N
    ///
    /// open allows them, closed refuses them with 503, and with local:N each of N servers goes on alone with its share of
    /// every limit.
    #[arg(long, value_name = "HOW", requires = "store", help_heading = "Sharing")]
    without_store: Option<Without>,

    /// How long the store has for an answer: 1ms to 60s
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = time_above_zero, requires = "store", help_heading = "Sharing")]
    store_deadline: Duration,

    /// The file whose first line is the token that is asked for at all paths, as Authorization: Bearer TOKEN [default: none is]
    #[arg(long, value_name = "FILE", conflicts_with = "upstream")]
    token_file: Option<PathBuf>,

    /// How many keys each limit holds at one time; when there are more, the one nearest to a full bucket is forgotten
    #[arg(long, value_name = "N", default_value = "65536", value_parser = keys)]
    keys: u64,

    #[command(flatten)]
    resp: resp::RespArgs,

    #[command(flatten)]
    grpc: grpc::GrpcArgs,

    /// Also serve the live page, its JSON, /metrics, /healthz and /readyz at this address [default: none of it]
    ///
    /// It has no password and shows the keys that ask most, so keep it on this machine, 127.0.0.1:9090 for example, or on a
    /// network of its own.
    #[arg(long, value_name = "ADDRESS", value_parser = listen, help_heading = "Watching")]
    admin: Option<SocketAddr>,

    /// Log start, reloads, drain and stop on stderr as `text`, or as `json` with an object a line [default: only warnings]
    #[arg(long, value_name = "FORMAT", help_heading = "Watching")]
    log: Option<log::Format>,

    /// How much the log tells; debug tells of each refused request, with its key
    #[arg(long, value_name = "LEVEL", default_value = "info", requires = "log", help_heading = "Watching")]
    log_level: log::Verbosity,
}

/// Where the limits come from, and what else a layer needs: as they are said anew with each reload.
#[derive(Debug, Clone)]
struct Limits {
    source: Source,
    keys: usize,
    trusted_proxies: TrustedProxies,
    /// Whether the service behind may be down: then requests that it did not get cost nothing.
    has_upstream: bool,
    /// Who decides, if not this process.
    store: Option<SharedStore>,
    /// The limits in force.
    in_force: InForce,
    /// Who is told of decisions, for the admin address.
    board: Option<Arc<Board>>,
    /// Whether limits on descriptors are served.
    has_grpc: bool,
}

/// A layer to build, and what of.
#[derive(Debug)]
struct Built {
    builder: RateLimitBuilder,
    limits: Vec<FileLimit>,
    /// What the admin address shows once they are in force.
    shown: Option<Arc<[Shown]>>,
    /// What Envoy is answered by.
    descriptors: Option<Descriptors>,
}

#[derive(Debug, Clone)]
enum Source {
    Flags(Box<FileLimit>),
    File(PathBuf),
}

impl Limits {
    fn new(args: &Args, store: Option<SharedStore>, board: Option<Arc<Board>>) -> anyhow::Result<Self> {
        let source = match &args.limits {
            Some(path) => Source::File(path.clone()),
            None => Source::Flags(Box::new(limit_of_flags(args)?)),
        };
        Ok(Self {
            source,
            keys: usize::try_from(args.keys)?,
            trusted_proxies: args.trusted_proxies.clone(),
            has_upstream: args.upstream.is_some(),
            store,
            in_force: InForce::default(),
            board,
            has_grpc: args.grpc.is_on(),
        })
    }

    /// The layer to build, and the limits it is of.
    fn builder(&self) -> anyhow::Result<Built> {
        self.builder_of(|path| self.read(path))
    }

    /// The layer to put in the place of the one that is used.
    fn builder_again(&self) -> anyhow::Result<Built> {
        self.builder_of(|path| limits::again(path, |path| self.read(path)))
    }

    fn read(&self, path: &Path) -> anyhow::Result<Vec<FileLimit>> {
        if self.has_grpc { limits::read_with_descriptors(path) } else { limits::read(path) }
    }

    fn builder_of(
        &self,
        read: impl FnOnce(&Path) -> anyhow::Result<Vec<FileLimit>>,
    ) -> anyhow::Result<Built> {
        let mut limits = match &self.source {
            Source::Flags(limit) => vec![(**limit).clone()],
            Source::File(path) => read(path)?,
        };
        let shown = self.board.as_ref().map(|board| board.prepare(&limits, overrides));
        let descriptors = match &self.source {
            Source::File(path) if self.has_grpc => {
                let observer = self.observer(shown.as_deref(), FileLimit::is_on_descriptors);
                Some(Descriptors::split(path, &mut limits, self, observer)?)
            }
            _ => None,
        };
        let identity = ClientIdentity::new().trusted_proxies(self.trusted_proxies.clone());
        let builder = layer::builder(&limits, self.keys)?.identity(identity);
        let builder = if limits.is_empty() { builder.limit(layer::nothing()) } else { builder };
        let builder = if self.has_upstream { builder.take_back_not_served() } else { builder };
        let builder = match &self.store {
            // A store keeps buckets, and what limits nothing has none.
            Some(store) if !limits.is_empty() => store.decides(builder),
            _ => builder,
        };
        let observer = self.observer(shown.as_deref(), |limit| !limit.is_on_descriptors());
        // That somebody is told of decisions makes the layer count the requests in flight.
        let builder = builder.observe(move |seen| observer.tell(seen));
        Ok(Built { builder, limits, shown, descriptors })
    }

    /// Who is told of the decisions of these limits among those that are shown.
    fn observer(&self, shown: Option<&[Shown]>, of: impl Fn(&FileLimit) -> bool) -> Observer {
        let counter = self.board.as_ref().zip(shown).map(|(board, shown)| board.counter(shown, of));
        Observer { store: self.store.clone(), counter }
    }

    /// These limits are in force now.
    fn show(&self, limits: Vec<FileLimit>, shown: Option<Arc<[Shown]>>) {
        self.in_force.set(limits);
        if let (Some(board), Some(shown)) = (&self.board, shown) {
            board.show(shown);
        }
    }
}

/// The keys of a limit that have a quota of their own.
fn overrides(limit: &FileLimit) -> Vec<(Key<'static>, Quota)> {
    if limit.is_on_descriptors() { grpc::overrides(limit) } else { layer::overrides(limit) }
}

/// The one limit of the flags, as a file would say it.
fn limit_of_flags(args: &Args) -> anyhow::Result<FileLimit> {
    let (algorithm, quota) = args.limiter.algorithm()?;
    let limit = Limit { name: algorithm.kind().name().into(), algorithm, mode: Mode::Enforce };
    let key = args.key.0.iter().map(ToString::to_string).collect();
    Ok(FileLimit {
        limit,
        quota,
        key,
        max_in_flight: None,
        overrides: Vec::new(),
        tools: Vec::new(),
        descriptors: Vec::new(),
    })
}

/// Runs `serve` until a signal stops it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    log::begin(args.log, args.log_level);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    let store = match &args.store {
        Some(url) => {
            let keys = usize::try_from(args.keys)?;
            Some(runtime.block_on(SharedStore::open(url, args.store_deadline, args.without_store, keys))?)
        }
        None => None,
    };
    let reloads = Arc::new(Reloads::default());
    let board = args.admin.map(|_| Arc::new(Board::new(Arc::clone(&reloads), store.clone())));
    let limits = Limits::new(args, store, board.clone())?;
    // Before it is read, so that a change after that is seen.
    let stamp = args.limits.as_deref().and_then(reload::stamp);
    let Built { builder, limits: read, shown, descriptors } = limits.builder()?;
    let layer = builder.build().map_err(|error| layer::cannot_build(&error))?;
    let rls = descriptors.as_ref().map(Descriptors::serve).transpose()?;
    if let Some(board) = &board {
        board.decides(&layer);
    }
    let settings = settings(args, &layer, &read);
    limits.show(read, shown);
    let upstream = match &args.upstream {
        Some(url) => Some(Arc::new(upstream(url, args.upstream_timeout)?)),
        None => None,
    };
    let mut router = router(&layer, upstream);
    if args.upstream.is_none() {
        let token = args.token_file.as_deref().map(|path| secret::text(path, "the token")).transpose()?;
        let token: Option<Arc<str>> = token.map(Into::into);
        if let Some(token) = &token {
            router = ask_token(router, Arc::clone(token));
        }
        router = router.merge(api::routes(&layer, &limits.in_force, token));
    }
    let result = runtime.block_on(serve(args, (limits, stamp), (&layer, rls, router), reloads, &settings));
    // Whoever is not answered by now has been waited for.
    runtime.shutdown_background();
    result
}

/// The service behind. By https it is told its own name, which its certificate is for: what is reached in TLS is often one
/// of many behind an address, which are told apart by name and do not know that of this server.
fn upstream(url: &str, timeout: Duration) -> anyhow::Result<Upstream> {
    let address = Address::parse(url)?;
    let host = if address.is_https() { Host::OfUpstream } else { Host::AsSent };
    Upstream::new(address, host, Paths::BehindBase, timeout)
}

/// What is served, in a line.
fn settings(args: &Args, layer: &RateLimit, limits: &[FileLimit]) -> String {
    let (file, [limit]) = (&args.limits, limits) else {
        let names: Vec<&str> = limits.iter().map(|limit| &*limit.limit.name).collect();
        let file = args.limits.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return format!("limits of {file}: {names}{}", shared(args));
    };
    if let Some(path) = file {
        return format!("limits of {}: {}{}", path.display(), limit.limit.name, shared(args));
    }
    let log = if limit.limit.algorithm.kind() == Kind::SlidingLog {
        format!(" and 16 bytes more for each call in the window, at most {} a key", limit.quota.count())
    } else {
        String::new()
    };
    let (label, key) = (args.limiter.label(limit.quota), &args.key);
    if args.store.is_some() {
        return format!("{label}, key {key}{}", shared(args));
    }
    format!("{label}, key {key}, {} keys in {} KiB{log}", args.keys, layer.bytes().div_ceil(1024))
}

/// What is open to those who reach the address, for the warning where others than this machine do.
const fn open_to(args: &Args) -> &'static str {
    match (&args.upstream, &args.token_file) {
        (Some(_), _) => "",
        (None, None) => ", and ask at /v1 without a token",
        (None, Some(_)) => " who have the token",
    }
}

/// With whom the limits are shared, if they are.
fn shared(args: &Args) -> String {
    let name = args.store.as_deref().and_then(url_and_name);
    name.map(|(_, name)| format!(", shared as `{name}`")).unwrap_or_default()
}

/// What is under the limits: the service behind, or else every path and method is answered.
fn router(layer: &RateLimit, upstream: Option<Arc<Upstream>>) -> Router {
    let router = match upstream {
        Some(upstream) => Router::new().fallback(
            async move |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request| {
                upstream.forward(request, peer).await
            },
        ),
        None => Router::new().fallback(async || "allowed\n"),
    };
    router.layer(layer.clone())
}

async fn serve(
    args: &Args,
    (limits, stamp): (Limits, reload::Stamp),
    (layer, rls, router): (&RateLimit, Option<Rls>, Router),
    reloads: Arc<Reloads>,
    settings: &str,
) -> anyhow::Result<Outcome> {
    let mut signals = Signals::new()?;
    // Before it says that it listens: whoever reads that may send one.
    let hangups = match &limits.source {
        Source::File(path) => Some((path.clone(), Hangups::new()?)),
        Source::Flags(_) => None,
    };
    let (listener, address) = bind("--listen", args.listen, open_to(args)).await?;
    let board = limits.board.clone();
    let checks = Checks { limits: layer.clone(), key_of: api::key_of(&limits.in_force) };
    let resp = args.resp.start(checks).await?;
    let grpc = args.grpc.start(rls.as_ref()).await?;
    let admin = match (&board, args.admin) {
        (Some(board), Some(at)) => {
            board.beside_http(
                resp.as_ref().map(|server| (server.resp(), server.address())),
                grpc.as_ref().map(|server| (server.rls(), server.address())),
            );
            let (listener, at) = bind("--admin", at, " to the admin address").await?;
            Some((at, serve_admin(listener, admin::router(Arc::clone(board), address, at), board)))
        }
        _ => None,
    };
    say(&format!("listening on http://{address}\n{settings}"));
    if let Some((at, _)) = &admin {
        say(&format!("admin on http://{at}"));
    }
    if let Some(resp) = &resp {
        say(&resp.said());
    }
    if let Some(grpc) = &grpc {
        say(&grpc.said());
    }
    tracing::info!(%address, admin = admin.as_ref().map(|(at, _)| tracing::field::display(at)), settings, "started");
    #[cfg(unix)]
    service_manager::ready();

    if let Some((path, hangups)) = hangups {
        tokio::spawn(Reloader::new(limits, path, (layer.clone(), rls), reloads).run(stamp, hangups));
    }
    let connections = connections::serve(listener, router, signals.next()).await;
    if let Some(board) = &board {
        board.drain();
    }
    #[cfg(unix)]
    service_manager::draining();
    tracing::info!(in_flight = layer.counts().in_flight, "draining");
    let commands = resp.as_ref().map(resp::Server::resp);
    let asked = grpc.as_ref().map(grpc::Server::rls);
    drain::drain((layer, connections), resp, grpc, &mut signals).await;
    let counts = layer.counts();
    let (allowed, rejected) = (counts.allowed, counts.rejected + counts.shed);
    tracing::info!(requests = allowed + rejected, allowed, rejected, "stopped");
    say(&format!("stopped: {} requests, {allowed} allowed, {rejected} rejected", allowed + rejected));
    if let Some(resp) = commands {
        say(&resp::said_at_the_end(&resp));
    }
    if let Some(rls) = asked {
        say(&grpc::said_at_the_end(&rls));
    }
    wait_until_said();
    Ok(Outcome::Fine)
}

/// Serves the admin address until the server ends, also while it drains.
fn serve_admin(listener: TcpListener, router: Router, board: &Arc<Board>) -> JoinHandle<()> {
    let board = Arc::clone(board);
    tokio::spawn(async move {
        let time = admin::keep_time(board);
        let pages = connections::serve(listener, router, std::future::pending());
        tokio::select! {
            () = time => {}
            _ = pages => {}
        }
    })
}

/// Reads a number of keys.
fn keys(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=16_777_216)
}
