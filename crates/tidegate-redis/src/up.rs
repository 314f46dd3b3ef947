//! A connection that can decide, and what is said over it.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisError, RedisResult, Value};

use crate::common::{Common, Durability};
use crate::error::StoreFault;
use crate::fault::Fault;

/// A connection that has the script.
#[derive(Clone)]
pub(crate) struct Up {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) sha: Arc<str>,
    /// Which connection of its link it is.
    pub(crate) number: u64,
    /// Where it leads.
    pub(crate) address: Arc<str>,
}

/// A connection that has not proved anything yet.
pub(crate) async fn open(
    info: ConnectionInfo,
    within: Duration,
) -> Result<MultiplexedConnection, StoreFault> {
    // No time-out of its own for replies: every use of the connection has a deadline.
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None);
    Ok(Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// What came of a script.
pub(crate) struct Ran {
    pub(crate) reply: Vec<i64>,
    /// How many replicas are known to have what it wrote, if that was asked.
    pub(crate) replicas: Option<i64>,
}

impl Up {
    /// Runs a script. `asking` makes a node decide that is to get the slot and has not got it yet.
    pub(crate) async fn run(
        &self,
        script: &Cmd,
        asking: bool,
        durability: Option<Durability>,
    ) -> Result<Ran, Fault> {
        let mut connection = self.connection.clone();
        if !asking && durability.is_none() {
            let reply = script.query_async(&mut connection).await;
            return reply.map(|reply| Ran { reply, replicas: None }).map_err(|error| Fault::of(&error));
        }
        // In one piece, since both speak of what stands before or after them on the connection.
        let mut piece = redis::pipe();
        if asking {
            piece.cmd("ASKING");
        }
        piece.add_command(script.clone());
        if let Some(Durability { replicas, within }) = durability {
            piece.cmd("WAIT").arg(replicas).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        }
        let (before, count) = (usize::from(asking), 1 + usize::from(durability.is_some()));
        let replies = connection.req_packed_commands(&piece, before, count).await;
        let mut replies = replies.map_err(|error| Fault::of(&error))?.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
        let reply = next().and_then(|value| Ok(redis::from_redis_value(value)?));
        let reply = reply.map_err(|error| Fault::of(&error))?;
        // Who may not ask has no replica that is known.
        let known = durability.map(|_| next().and_then(|value| Ok(redis::from_redis_value(value)?)));
        Ok(Ran { reply, replicas: known.map(|known: RedisResult<i64>| known.unwrap_or(0)) })
    }

    /// Looks whether a key is there, which says where its slot is.
    pub(crate) async fn look(&self, key: &[u8]) -> Result<(), Fault> {
        let told = redis::cmd("GET").arg(key).query_async(&mut self.connection.clone()).await;
        told.map(|_: Value| ()).map_err(|error| Fault::of(&error))
    }

    /// Runs a command on a node that is to get the slot and has not got it yet.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<(), Fault> {
        let mut piece = redis::pipe();
        piece.cmd("ASKING").add_command(command.clone());
        let replies = self.connection.clone().req_packed_commands(&piece, 1, 1).await;
        let reply = replies.and_then(|replies| Value::Array(replies).extract_error());
        reply.map(drop).map_err(|error| Fault::of(&error))
    }

    /// Asks a node how slots are spread.
    pub(crate) async fn slots(&self) -> RedisResult<Value> {
        redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut self.connection.clone()).await
    }

    /// Loads the script, which the server has lost.
    pub(crate) async fn load(&self, common: &Common) -> Result<(), Fault> {
        load(&mut self.connection.clone(), &common.source).await.map_err(|error| Fault::of(&error))?;
        common.counters.loads.one();
        Ok(())
    }

    /// Loads another script, and tells its SHA-1.
    pub(crate) async fn load_source(&self, source: &str) -> Result<String, Fault> {
        load(&mut self.connection.clone(), source).await.map_err(|error| Fault::of(&error))
    }

    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

/// `SCRIPT LOAD` and not `EVAL`: since Redis 7.4, scripts that came by `EVAL` are forgotten when there are many.
pub(crate) async fn load(connection: &mut MultiplexedConnection, source: &str) -> Result<String, RedisError> {
    redis::cmd("SCRIPT").arg("LOAD").arg(source).query_async(connection).await
}
