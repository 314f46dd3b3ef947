//! What one client has said so far, and the answers to what it says next. No input or output.

use std::fmt;
use std::io::Write as _;
use std::task::{Context, Poll, Waker, ready};

use super::check::{Checking, Verdict};
use super::codec::reply::{self, Version};
use super::codec::request::{self, Args};
use super::command::{Command, Credentials, Hello, NAMES, Refusal};
use super::counts::Tally;
use super::server::Shared;
use super::throttle::Terms;
use crate::secret::is_same;

/// After so many bytes of answers no further request is decided before they are written. It bounds what a client that does
/// not read makes the server keep: this, and one answer more.
pub(super) const OUTPUT_MAX: usize = 16 * 1024;

/// One client.
pub(super) struct Session {
    id: u64,
    version: Version,
    name: Box<[u8]>,
    is_trusted: bool,
    /// A decision that is waited for, before anything else is answered.
    checking: Option<Checking>,
    /// What the last call named, since the next one mostly names the same.
    terms: Option<Terms>,
}

/// How far a batch of requests was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answered {
    /// How many bytes of the input are done with.
    pub(super) used: usize,
    pub(super) then: Then,
}

/// What comes after a batch of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// More has to come: what is left is no whole request.
    Read,
    /// The answers have to be written first: there may be more requests.
    Write,
    /// The answers are written, and then the connection is closed.
    Close,
    /// A decision is waited for, and then there may be more requests.
    Decide,
}

impl Session {
    pub(super) fn new(id: u64, shared: &Shared) -> Self {
        Self {
            id,
            version: Version::Two,
            name: Box::default(),
            is_trusted: shared.password.is_none(),
            checking: None,
            terms: None,
        }
    }

    /// Whether it gave the password, if there is one.
    pub(super) const fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Answers the requests in `input`, in order and all at one time.
    pub(super) fn answer_all(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        shared: &Shared,
        tally: &mut Tally,
    ) -> Answered {
        // Once for all of them: it takes as long as half a decision.
        let now_ns = shared.clock.now_ns();
        let mut args = Args::new();
        let mut used = 0;
        loop {
            if out.len() >= OUTPUT_MAX {
                return Answered { used, then: Then::Write };
            }
            match request::read(&input[used..], &mut args) {
                Ok(Some(bytes)) => used += bytes,
                Ok(None) => return Answered { used, then: Then::Read },
                Err(error) => {
                    tally.errors += 1;
                    reply::error(out, &format_args!("ERR {error}"));
                    return Answered { used: input.len(), then: Then::Close };
                }
            }
            if args.get().is_empty() {
                continue;
            }
            tally.commands += 1;
            let command = match Command::parse(args.get()) {
                Ok(Command::Quit) => {
                    reply::simple(out, "OK");
                    return Answered { used: input.len(), then: Then::Close };
                }
                Ok(command) => self.answer(command, out, shared, tally, now_ns),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = command {
                tally.errors += 1;
                let refusal = if self.is_trusted { refusal } else { concealed(refusal) };
                reply::error(out, &refusal);
            }
            if let Some(checking) = &mut self.checking {
                // Mostly it is decided at once. Who has to wait is woken where the connection waits.
                match checking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(verdict) => self.checked(&verdict, out, tally),
                    Poll::Pending => return Answered { used, then: Then::Decide },
                }
            }
        }
    }

    /// Is ready when no decision is waited for any more; its answer is in `out` then.
    pub(super) fn poll_checking(
        &mut self,
        context: &mut Context<'_>,
        out: &mut Vec<u8>,
        tally: &mut Tally,
    ) -> Poll<()> {
        if let Some(checking) = &mut self.checking {
            let verdict = ready!(checking.as_mut().poll(context));
            self.checked(&verdict, out, tally);
        }
        Poll::Ready(())
    }

    fn checked(&mut self, verdict: &Verdict, out: &mut Vec<u8>, tally: &mut Tally) {
        self.checking = None;
        match verdict {
            Verdict::Decided { rejected: true, .. } => tally.rejected += 1,
            Verdict::Decided { rejected: false, .. } => tally.allowed += 1,
            Verdict::Refused(_) => tally.errors += 1,
        }
        verdict.write(out);
    }

    #[inline]
    fn answer<'a>(
        &mut self,
        command: Command<'a>,
        out: &mut Vec<u8>,
        shared: &Shared,
        tally: &mut Tally,
        now_ns: u64,
    ) -> Result<(), Refusal<'a>> {
        if !self.is_trusted && !matches!(command, Command::Auth(_) | Command::Hello(_) | Command::Reset) {
            return Err(Refusal::NotAuthenticated);
        }
        let Command::Throttle(call) = command else { return self.answer_other(command, out, shared) };
        let terms = match &self.terms {
            Some(terms) if terms.is_for(call.max_burst, call.count, call.period_s) => terms,
            _ => {
                let terms =
                    Terms::new(call.max_burst, call.count, call.period_s).map_err(Refusal::Throttle)?;
                self.terms.insert(terms)
            }
        };
        let answer =
            shared.table.decide(call.key, terms, call.quantity, now_ns).map_err(Refusal::Throttle)?;
        if answer.rejected {
            tally.rejected += 1;
        } else {
            tally.allowed += 1;
        }
        reply::integers(out, answer.integers());
        Ok(())
    }

    #[cold]
    fn answer_other<'a>(
        &mut self,
        command: Command<'a>,
        out: &mut Vec<u8>,
        shared: &Shared,
    ) -> Result<(), Refusal<'a>> {
        match command {
            // Both are answered where the connection is.
            Command::Throttle(_) | Command::Quit => {}
            Command::Check { limit, key, cost } => {
                let checks = shared.checks.as_ref().ok_or(Refusal::NoLimits)?;
                self.checking = Some(checks.begin(limit, key, cost));
            }
            Command::Ping(None) => reply::simple(out, "PONG"),
            Command::Ping(Some(message)) | Command::Echo(message) => reply::bulk(out, message),
            Command::Reset => {
                *self = Self::new(self.id, shared);
                reply::simple(out, "RESET");
            }
            Command::Hello(hello) => self.hello(hello, out, shared)?,
            Command::Auth(credentials) => {
                self.authenticate(credentials, shared)?;
                reply::simple(out, "OK");
            }
            Command::Select | Command::ClientSetInfo => reply::simple(out, "OK"),
            Command::ClientId => reply::integer(out, i64::try_from(self.id).unwrap_or(i64::MAX)),
            Command::ClientGetName if self.name.is_empty() => reply::null(out, self.version),
            Command::ClientGetName => reply::bulk(out, &self.name),
            Command::ClientSetName(name) => {
                self.name = name.into();
                reply::simple(out, "OK");
            }
            Command::Names => {
                reply::array(out, NAMES.len());
                NAMES.iter().for_each(|name| reply::bulk(out, name.as_bytes()));
            }
            Command::Docs => reply::map(out, self.version, 0),
            Command::CountNames => reply::integer(out, i64::try_from(NAMES.len()).unwrap_or(i64::MAX)),
            Command::Describe(names) => {
                reply::array(out, names);
                (0..names).for_each(|_| reply::null(out, self.version));
            }
            Command::Info => info(out, shared),
        }
        Ok(())
    }

    /// All of a greeting comes into force, or nothing.
    fn hello<'a>(&mut self, hello: Hello<'a>, out: &mut Vec<u8>, shared: &Shared) -> Result<(), Refusal<'a>> {
        if let Some(credentials) = hello.credentials {
            self.authenticate(credentials, shared)?;
        }
        if !self.is_trusted {
            return Err(Refusal::NotAuthenticated);
        }
        self.version = hello.version.unwrap_or(self.version);
        if let Some(name) = hello.name {
            self.name = name.into();
        }
        reply::map(out, self.version, 7);
        for (name, value) in [
            ("server", "tidegate"),
            ("version", env!("CARGO_PKG_VERSION")),
            ("mode", "standalone"),
            ("role", "master"),
        ] {
            reply::bulk(out, name.as_bytes());
            reply::bulk(out, value.as_bytes());
        }
        reply::bulk(out, b"proto");
        reply::integer(out, if self.version == Version::Two { 2 } else { 3 });
        reply::bulk(out, b"id");
        reply::integer(out, i64::try_from(self.id).unwrap_or(i64::MAX));
        reply::bulk(out, b"modules");
        reply::array(out, 0);
        Ok(())
    }

    fn authenticate<'a>(&mut self, credentials: Credentials<'a>, shared: &Shared) -> Result<(), Refusal<'a>> {
        let Some(password) = &shared.password else { return Err(Refusal::NoPasswordSet) };
        if credentials.user != b"default" || !is_same(credentials.password, password) {
            return Err(Refusal::WrongPassword);
        }
        self.is_trusted = true;
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Whoever did not give the password is not told more than that, but what the greeting itself lacks.
fn concealed(refusal: Refusal<'_>) -> Refusal<'_> {
    match refusal {
        Refusal::WrongPassword
        | Refusal::UnknownVersion
        | Refusal::Syntax("hello")
        | Refusal::Arguments("auth" | "reset") => refusal,
        _ => Refusal::NotAuthenticated,
    }
}

/// What clients look for in `INFO` before they use a server, and the counters. The version is that of the Redis whose
/// greeting this is.
fn info(out: &mut Vec<u8>, shared: &Shared) {
    let counts = shared.counts();
    let mut text = Vec::with_capacity(512);
    // Writing to a vector does not fail.
    let _ = write!(
        text,
        "# Server\r\nserver_name:tidegate\r\ntidegate_version:{}\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\n\
         # Clients\r\nconnected_clients:{}\r\n# Persistence\r\nloading:0\r\n\
         # Stats\r\ntotal_connections_received:{}\r\nrejected_connections:{}\r\ntotal_commands_processed:{}\r\n\
         evicted_keys:{}\r\ndecisions_allowed:{}\r\ndecisions_rejected:{}\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION"),
        counts.connections_open,
        counts.connections,
        counts.connections_refused,
        counts.commands,
        counts.evicted,
        counts.allowed,
        counts.rejected,
    );
    reply::bulk(out, &text);
}
