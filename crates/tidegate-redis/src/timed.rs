//! A server that takes the time from the test.

use crate::server::Server;

/// A script on a server whose last argument is the time, in microseconds.
pub(crate) struct Timed {
    pub(crate) connection: redis::Connection,
    pub(crate) sha: String,
    // Dropped last.
    _server: Server,
}

impl Timed {
    /// Loads `source`, which must read the clock in one place and give keys a time to live in some.
    pub(crate) fn new(source: &str) -> Self {
        let server = Server::start(&[]);
        let mut connection = server.connection();
        let clock = "local clock = redis.call('TIME')";
        // Keys expire by the time of the server, which is not the one of the test.
        let margin = "+ 1000)";
        assert!(source.matches(clock).count() == 1 && source.contains(margin));
        let source = source.replace(clock, "local clock = {0, ARGV[#ARGV]}").replace(margin, "+ 1000000)");
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).unwrap();
        Self { connection, sha, _server: server }
    }

    pub(crate) fn clear(&mut self) {
        let () = redis::cmd("FLUSHALL").query(&mut self.connection).unwrap();
    }
}
