//! MCP over Streamable HTTP: a reverse proxy in front of a server that somebody else runs.
//!
//! Requests pass as they are, but those that are charged, which wait for their turn before they go on. A call that waits has
//! no answer yet; if it asked for progress, the answer begins as an event stream. The place in flight of a call comes
//! free with the answer in the stream, or with its end.
//!
//! **A client that goes away** takes its call along. One that waits is as if it had never come. The request to the server of
//! one that runs is closed, as it would be without a proxy, and its place comes free after a grace.

mod bodies;
mod events;
mod hall;
mod handle;
mod stream;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{ConnectInfo, Request};

use super::charges::Charges;
use super::desk::Desk;
use super::limits::Rule;
use super::line::Line;
use super::line::Room;
use super::log::Log;
use super::shared::SharedBudget;
use crate::fault::{Outcome, tell};
use crate::http_server::address::bind;
use crate::http_server::connections;
use crate::http_server::signals::Signals;
use crate::upstream::{Address, Host, Paths, Upstream};
use bodies::Bodies;
use hall::Hall;
use handle::Proxy;

/// How long the server may take to begin its answer. A tool may run for long, and its client knows how long it waits.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long the proxy waits for calls that run when it is told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// What is served, and how.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) listen: SocketAddr,
    pub(super) upstream: String,
    pub(super) rules: Vec<Rule>,
    pub(super) room: Room,
    pub(super) charges: Charges,
    pub(super) log: Log,
    pub(super) learns: bool,
    pub(super) max_message: usize,
}

/// Serves until a signal comes.
///
/// # Errors
///
/// An address that cannot be used.
pub(super) fn run(plan: Plan) -> anyhow::Result<Outcome> {
    let address = Address::parse(&plan.upstream)?;
    let upstream = Upstream::new(address, Host::OfUpstream, Paths::AsSent, UPSTREAM_TIMEOUT)?;
    // Whoever asks it holds up a thread, and what only passes needs another.
    let asks_a_server = plan.rules.iter().any(|rule| matches!(rule.budget, Some(SharedBudget::Store(_))));
    let desk = Desk::new(Line::new(plan.rules, plan.room), plan.log, plan.learns);
    let hall = Arc::new(Hall::new(desk, plan.charges));
    let proxy = Proxy {
        hall: Arc::clone(&hall),
        upstream,
        bodies: Bodies::new(plan.max_message),
        calls: AtomicU64::new(0),
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if !asks_a_server {
        // With more threads, each call is handed from one to another on its way: 45 µs more, as docs/performance.md has it.
        runtime.worker_threads(1);
    }
    let runtime = runtime.enable_all().build().context("cannot start the threads of the proxy")?;
    let result = runtime.block_on(serve(plan.listen, &plan.upstream, proxy));
    // Whoever is not answered by now has been waited for.
    runtime.shutdown_background();
    if let Some(summary) = hall.finish() {
        tell(&summary);
    }
    result
}

async fn serve(listen: SocketAddr, upstream: &str, proxy: Proxy) -> anyhow::Result<Outcome> {
    let mut signals = Signals::new()?;
    let (listener, address) = bind("--listen", listen, "").await?;
    tell(&format!("tidegate mcp: listening on http://{address} for {upstream}"));
    let proxy = Arc::new(proxy);
    let hall = Arc::clone(&proxy.hall);
    let attendant = {
        let hall = Arc::clone(&hall);
        tokio::spawn(async move { hall.attend().await })
    };
    let router =
        Router::new().fallback(async move |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request| {
            Arc::clone(&proxy).handle(request, peer).await
        });
    let connections = connections::serve(listener, router, signals.next()).await;
    hall.close();
    // Streams that a client only listens to have no end, so calls are waited for and not connections.
    let idle = async {
        hall.empty().await;
        let _ = tokio::time::timeout(Duration::from_millis(200), connections.shutdown()).await;
    };
    tokio::select! {
        () = idle => {}
        () = tokio::time::sleep(DRAIN) => {}
        () = signals.next() => {}
    }
    attendant.abort();
    Ok(Outcome::Fine)
}
