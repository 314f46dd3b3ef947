//! Why a call was not decided by the store, and whether that is known.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why the store did not decide a call. Only the first two may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not executed: the server does not have the script.
    NoScript,
    /// Not executed: the server cannot now, as it is loading, in a failover, or not the primary any more.
    Later {
        /// Whether this server will not be able to by waiting.
        elsewhere: bool,
    },
    /// Not executed: the server said no, to this script or this client.
    Refused(Box<str>),
    /// Not sent: there is no connection now.
    Down,
    /// Not sent: too many calls wait already, or the deadline passed before its turn.
    Busy,
    /// Nobody knows: no reply before the deadline.
    Late,
    /// Nobody knows: the connection broke after the call was sent.
    Broken,
}

impl Fault {
    /// What an error of the client means. Whatever is not known to be a refusal counts as unknown.
    pub(crate) fn of(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(kind) => Self::of_server(kind, error),
            // Codes that the client has no name for, OOM, MISCONF, NOREPLICAS, and the like: an error
            // in a reply. What it stopped was the first write, since all reads come before all writes.
            ErrorKind::Extension | ErrorKind::AuthenticationFailed => Self::Refused(error.to_string().into()),
            ErrorKind::Io if error.is_timeout() => Self::Late,
            _ => Self::Broken,
        }
    }

    fn of_server(kind: ServerErrorKind, error: &RedisError) -> Self {
        match kind {
            ServerErrorKind::NoScript => Self::NoScript,
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            // A slot that moves. This connection knows one server, so all it can do is to ask it again.
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask => Self::Later { elsewhere: false },
            ServerErrorKind::ReadOnly => Self::Later { elsewhere: true },
            // Redis 6.2 wraps the error of a command in a script.
            _ if error.to_string().contains("-READONLY") => Self::Later { elsewhere: true },
            _ => Self::Refused(error.to_string().into()),
        }
    }
}
