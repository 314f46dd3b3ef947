//! Why a call was not decided by the store, and whether that is known.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why the store did not decide a call. Only the first four may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not executed: the server does not have the script.
    NoScript,
    /// Not executed: the server cannot now, as it is loading, in a failover, or not the primary any more.
    Later {
        /// Whether this server will not be able to by waiting.
        elsewhere: bool,
    },
    /// Not executed: the slot moves, and this node has not got all keys.
    Split,
    /// Not executed: another node of the cluster has the keys.
    Redirect {
        /// Host and port; the host is empty if it is that of the node which said so.
        to: Box<str>,
        /// Whether only this call is meant, as the slot is on its way there.
        ask: bool,
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
    /// Executed, but fewer replicas than were asked for have it.
    Unreplicated,
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
            ServerErrorKind::TryAgain => Self::Split,
            ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown => {
                Self::Later { elsewhere: false }
            }
            ServerErrorKind::Moved | ServerErrorKind::Ask => match error.redirect_node() {
                Some((to, _)) => Self::Redirect { to: to.into(), ask: kind == ServerErrorKind::Ask },
                None => Self::Later { elsewhere: false },
            },
            ServerErrorKind::ReadOnly => Self::Later { elsewhere: true },
            // Redis 6.2 wraps the error of a command in a script.
            _ if error.to_string().contains("-READONLY") => Self::Later { elsewhere: true },
            _ => Self::Refused(error.to_string().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(reply: &str) -> Fault {
        let value = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
        Fault::of(&value.extract_error().unwrap_err())
    }

    #[test]
    fn only_errors_that_say_that_nothing_ran_may_be_tried_again() {
        let to = |to: &str, ask| Fault::Redirect { to: to.into(), ask };
        for (reply, expected) in [
            ("NOSCRIPT No matching script.", Fault::NoScript),
            ("MOVED 3999 127.0.0.1:6381", to("127.0.0.1:6381", false)),
            ("MOVED 3999 :6381", to(":6381", false)),
            ("ASK 3999 ::1:6381", to("::1:6381", true)),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Fault::Split),
            ("CLUSTERDOWN The cluster is down", Fault::Later { elsewhere: false }),
            ("LOADING Redis is loading the dataset in memory", Fault::Later { elsewhere: false }),
            ("MASTERDOWN Link with MASTER is down", Fault::Later { elsewhere: false }),
            ("READONLY You can't write against a read only replica.", Fault::Later { elsewhere: true }),
        ] {
            assert_eq!(of(reply), expected, "{reply}");
        }
        for reply in [
            "CROSSSLOT Keys in request don't hash to the same slot",
            "NOPERM this user has no permissions",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOREPLICAS Not enough good replicas to write.",
            "ERR unknown command",
        ] {
            assert!(matches!(of(reply), Fault::Refused(_)), "{reply}: {:?}", of(reply));
        }
        // Of a connection that ended, nobody knows.
        let ended = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(Fault::of(&ended), Fault::Broken);
    }
}
