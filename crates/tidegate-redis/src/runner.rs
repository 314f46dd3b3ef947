//! Scripts beside the one that decides: for leases, and for places in flight.
//!
//! They go over the same connection, under the same breaker, one at a time and not in batches: what leases and places cost
//! does not grow with the calls. Everything about the way to the server that they need is here.

use std::sync::OnceLock;
use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, timeout_at};

use crate::common::Common;
use crate::fault::Fault;
use crate::route::At;
use crate::servers::Servers;

/// A script, and its name on the server.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    /// The SHA-1 of the source, as the server said it.
    sha: OnceLock<Box<str>>,
}

/// What a script is run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) keys: Vec<Box<[u8]>>,
    pub(crate) values: Vec<Vec<u8>>,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, sha: OnceLock::new() }
    }

    /// Runs it, again as long as it is known that it did not run. It ends by `deadline`.
    pub(crate) async fn run(
        &self,
        servers: &Servers,
        arguments: &Arguments,
        deadline: Instant,
    ) -> Result<Vec<i64>, Fault> {
        let common = &servers.common;
        let key = arguments.keys.first().map_or(&[][..], |key| key);
        let route = servers.route(key).ok_or(Fault::Down)?;
        let mut at = route.start().ok_or(Fault::Down)?;
        let mut times = 0;
        loop {
            let sha = match self.sha.get() {
                Some(sha) => sha,
                None => self.load(common, &at, deadline).await?,
            };
            common.counters.scripts.one();
            let command = arguments.command(sha);
            let ran = at.up.run(&command, at.asking, common.durability);
            let fault = match timeout_at(deadline, ran).await.unwrap_or(Err(Fault::Late)) {
                Ok(ran) => {
                    at.link.answered();
                    let asked = common.durability.map_or(0, |asked| i64::from(asked.replicas));
                    if ran.replicas.unwrap_or(0) < asked {
                        return Err(Fault::Unreplicated);
                    }
                    return Ok(ran.reply);
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::NoScript => {
                    self.load(common, &at, deadline).await?;
                }
                Fault::Redirect { .. } if !route.follows() => {
                    let text = "the server is a node of a cluster; write redis+cluster://HOST:PORT";
                    return Err(told(Fault::Refused(text.into()), common, &at));
                }
                Fault::Later { .. } | Fault::Redirect { .. } | Fault::Split => {
                    at.link.answered();
                    times += 1;
                    // Keys that are parted come together by themselves: nothing is helped along here.
                    let meant =
                        if fault == Fault::Split { Fault::Later { elsewhere: false } } else { fault.clone() };
                    at = route.again(at, &meant, &[], times, deadline).await.ok_or(fault)?;
                }
                _ => return Err(told(fault, common, &at)),
            }
            common.counters.retries.one();
        }
    }

    async fn load(&self, common: &Common, at: &At, deadline: Instant) -> Result<&str, Fault> {
        match timeout_at(deadline, at.up.load_source(self.source)).await {
            Ok(Ok(sha)) => {
                common.counters.loads.one();
                Ok(self.sha.get_or_init(|| sha.into()))
            }
            Ok(Err(fault)) => Err(told(fault, common, at)),
            // The script was not run, so this is not an unknown outcome.
            Err(_) => Err(Fault::Later { elsewhere: false }),
        }
    }
}

impl Arguments {
    fn command(&self, sha: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(self.keys.len()).arg(&*self.keys).arg(&*self.values);
        command
    }
}

/// Tells the link of a fault that ends a call.
fn told(fault: Fault, common: &Common, at: &At) -> Fault {
    match &fault {
        Fault::Late => at.link.late(&at.up),
        Fault::Broken => at.link.broken(&at.up),
        Fault::Refused(text) => {
            at.link.answered();
            common.refused(text);
        }
        _ => {}
    }
    fault
}

/// How long a trip to a server takes, the shortest of three; `None` if there is no connection.
pub(crate) async fn round_trip(servers: &Servers, longest: Duration) -> Option<Duration> {
    let at = servers.route(b"")?.start()?;
    let mut shortest = None;
    for _ in 0..3 {
        let sent = Instant::now();
        let told = timeout_at(sent + longest, at.up.run(&redis::cmd("TIME"), false, None)).await;
        if let Ok(Ok(_)) = told {
            let trip = sent.elapsed();
            shortest = Some(shortest.map_or(trip, |before: Duration| before.min(trip)));
        }
    }
    shortest
}
