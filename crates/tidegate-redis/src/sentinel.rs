//! Sentinels: which server is the primary now.
//!
//! All are asked at one time, and of the answers of a majority that of the newest configuration is taken: its epoch grows by
//! each failover. So one sentinel that was cut off does not lead back to the primary of yesterday. What none of them can
//! prevent, the link does: a server that says that it is a replica is not used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::address;
use crate::error::{StoreFault, Why};

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    name: Arc<str>,
    sentinels: Vec<Arc<Sentinel>>,
    /// How to connect to the primary.
    server: ConnectionInfo,
}

struct Sentinel {
    client: Client,
    /// Kept, so that to ask is one trip.
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// What a sentinel says.
struct Said {
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    pub(crate) fn new(
        name: &str,
        sentinels: Vec<ConnectionInfo>,
        server: ConnectionInfo,
    ) -> Result<Self, StoreFault> {
        let each = sentinels
            .into_iter()
            .map(|info| Ok(Arc::new(Sentinel { client: Client::open(info)?, connection: Mutex::default() })));
        Ok(Self { name: name.into(), sentinels: each.collect::<Result<_, StoreFault>>()?, server })
    }

    /// The name of the primary, and where the sentinels are.
    pub(crate) fn address(&self) -> Box<str> {
        let each: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.client.get_connection_info().addr().to_string())
            .collect();
        format!("{} of {}", self.name, each.join(",")).into()
    }

    /// The primary, as far as the sentinels know.
    pub(crate) async fn primary(&self, within: Duration) -> Result<ConnectionInfo, StoreFault> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, name) = (Arc::clone(sentinel), Arc::clone(&self.name));
            asked.spawn(async move { sentinel.ask(&name, within).await });
        }
        let (mut newest, mut answers): (Option<Said>, usize) = (None, 0);
        let mut fault = StoreFault(Why::Late(within));
        while let Some(said) = asked.join_next().await {
            match said {
                Ok(Ok(said)) => {
                    answers += 1;
                    if newest.as_ref().is_none_or(|newest| said.epoch > newest.epoch) {
                        newest = Some(said);
                    }
                    if answers > self.sentinels.len() / 2 {
                        break;
                    }
                }
                Ok(Err(why)) => fault = why,
                Err(_) => {}
            }
        }
        let Said { host, port, .. } = newest.ok_or(fault)?;
        Ok(address::at(&self.server, &host, port))
    }
}

impl Sentinel {
    async fn ask(&self, name: &str, within: Duration) -> Result<Said, StoreFault> {
        let mut kept = self.connection.lock().await;
        // Who is not waited for any more must not lose the connection, so it stays where it is.
        let answer = async {
            let mut connection = match kept.clone() {
                Some(connection) => connection,
                None => {
                    let config = AsyncConnectionConfig::new()
                        .set_connection_timeout(Some(within))
                        .set_response_timeout(None);
                    self.client.get_multiplexed_async_connection_with_config(&config).await?
                }
            };
            let about: HashMap<String, String> =
                redis::cmd("SENTINEL").arg("MASTER").arg(name).query_async(&mut connection).await?;
            Ok::<_, StoreFault>((connection, about))
        };
        let answer = timeout(within, answer).await.unwrap_or(Err(StoreFault(Why::Late(within))));
        *kept = answer.as_ref().ok().map(|(connection, _)| connection.clone());
        let (_, about) = answer?;
        let number = |field: &str| about.get(field).and_then(|text| text.parse::<u64>().ok());
        let port = number("port").and_then(|port| u16::try_from(port).ok());
        match (about.get("ip"), port, number("config-epoch")) {
            (Some(host), Some(port), Some(epoch)) => Ok(Said { epoch, host: host.clone(), port }),
            _ => Err(StoreFault(Why::NoSentinel)),
        }
    }
}
