//! A primary, a replica of it, and three sentinels that watch them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::server::Server;

/// How long they may take to find each other.
const PATIENCE: Duration = Duration::from_secs(30);
/// After so long without a sign the primary counts as dead.
pub(crate) const DEAD_AFTER: Duration = Duration::from_millis(1000);

pub(crate) struct Sentinels {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    pub(crate) sentinels: Vec<Server>,
}

impl Sentinels {
    /// The replica gets its data through `through`, if there is anything between.
    pub(crate) fn start(through: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let from = through(primary.address());
        let () = redis::cmd("REPLICAOF")
            .arg(from.ip().to_string())
            .arg(from.port())
            .query(&mut replica.connection())
            .unwrap();
        until("in sync", || {
            let info: String =
                redis::cmd("INFO").arg("replication").query(&mut replica.connection()).unwrap();
            info.contains("master_link_status:up")
        });
        let (host, port) = (primary.address().ip(), primary.address().port());
        let lines = format!(
            "sentinel monitor main {host} {port} 2\nsentinel down-after-milliseconds main {}\n\
             sentinel failover-timeout main 5000",
            DEAD_AFTER.as_millis()
        );
        let sentinels: Vec<Server> = (0..3).map(|_| Server::start_sentinel(&lines)).collect();
        let all = Self { primary, replica, sentinels };
        until("known to each other", || {
            all.sentinels.iter().all(|sentinel| {
                let about: HashMap<String, String> = redis::cmd("SENTINEL")
                    .arg("MASTER")
                    .arg("main")
                    .query(&mut sentinel.connection())
                    .unwrap();
                about["num-slaves"] == "1" && about["num-other-sentinels"] == "2"
            })
        });
        all
    }

    pub(crate) fn url(&self) -> String {
        let each: Vec<String> = self.sentinels.iter().map(|server| server.address().to_string()).collect();
        format!("redis+sentinel://{}/main", each.join(","))
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "they are not {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
