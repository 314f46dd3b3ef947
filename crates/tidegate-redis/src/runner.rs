//! Scripts beside the one that decides: for leases, and for places in flight.
//!
//! They go over the same connection, under the same breaker, one at a time and not in batches: what leases and places cost
//! does not grow with the calls. Everything about the way to the server that they need is here.

use std::sync::OnceLock;
use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::fault::Fault;
use crate::link::Link;
use crate::up::Up;

/// How long to wait before a server is asked again that said that it cannot now.
const PAUSE: Duration = Duration::from_millis(5);

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
        link: &Link,
        arguments: &Arguments,
        deadline: Instant,
    ) -> Result<Vec<i64>, Fault> {
        let mut up = link.up().ok_or(Fault::Down)?;
        loop {
            let sha = match self.sha.get() {
                Some(sha) => sha,
                None => self.load(link, &up, deadline).await?,
            };
            link.common.counters.scripts.one();
            let command = arguments.command(sha);
            let fault =
                match timeout_at(deadline, up.run(&command, false, None)).await.unwrap_or(Err(Fault::Late)) {
                    Ok(reply) => {
                        link.answered();
                        return Ok(reply.reply);
                    }
                    Err(fault) => fault,
                };
            match fault {
                Fault::NoScript => {
                    self.load(link, &up, deadline).await?;
                }
                Fault::Later { elsewhere: true } => {
                    link.answered();
                    link.broken(&up);
                    up = link.another(Some(&up), deadline).await.ok_or(fault)?;
                }
                Fault::Later { elsewhere: false } => {
                    link.answered();
                    let again = Instant::now() + PAUSE;
                    if again >= deadline {
                        return Err(fault);
                    }
                    sleep_until(again).await;
                }
                _ => {
                    return Err(told(fault, link, &up));
                }
            }
            link.common.counters.retries.one();
        }
    }

    async fn load(&self, link: &Link, up: &Up, deadline: Instant) -> Result<&str, Fault> {
        match timeout_at(deadline, up.load_source(self.source)).await {
            Ok(Ok(sha)) => {
                link.common.counters.loads.one();
                Ok(self.sha.get_or_init(|| sha.into()))
            }
            Ok(Err(fault)) => Err(told(fault, link, up)),
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
fn told(fault: Fault, link: &Link, up: &Up) -> Fault {
    match &fault {
        Fault::Late => link.late(up),
        Fault::Broken => link.broken(up),
        Fault::Refused(text) => {
            link.answered();
            link.common.refused(text);
        }
        _ => {}
    }
    fault
}

/// How long a trip to the server takes, the shortest of three; `None` if there is no connection.
pub(crate) async fn round_trip(link: &Link, longest: Duration) -> Option<Duration> {
    let up = link.up()?;
    let mut shortest = None;
    for _ in 0..3 {
        let sent = Instant::now();
        let told = timeout_at(sent + longest, up.run(&redis::cmd("TIME"), false, None)).await;
        if let Ok(Ok(_)) = told {
            let trip = sent.elapsed();
            shortest = Some(shortest.map_or(trip, |before: Duration| before.min(trip)));
        }
    }
    shortest
}
