//! The two directions: bytes from the client to the server and back, and the thread that lets waiting calls start.
//!
//! They are threads that block, one for each direction, since a pipe that nobody reads must stop its writer: the server
//! that does not read stops the client, and the other way round. The threads hold the locks in one order: the way to the
//! server, then the desk. So a call and its cancellation reach the server in the order in which they came.

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate::clock::Clock;

use crate::mcp::answer;
use crate::mcp::call::{Call, CallId, Scope};
use crate::mcp::charges::Charges;
use crate::mcp::desk::{Desk, Gone, Todo};
use crate::mcp::frame::{self, Asked, Id, Message};
use crate::mcp::learn;

/// How much is read of the server at once. Twice as much saves a call of the system for messages of that size.
const READ_BYTES: usize = 64 * 1024;

/// What the threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    desk: Mutex<Desk<()>>,
    /// Something has changed at the desk.
    changed: Condvar,
    /// The way to the server; `None` when it is closed.
    to_server: Mutex<Option<ChildStdin>>,
    clock: Clock,
    charges: Charges,
    /// The longest message, in bytes.
    max_message: u64,
    /// Rises when a message of the server has come, and when it has been passed on.
    steps_down: AtomicU64,
}

/// Why a direction came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side has closed it.
    Closed,
    /// A message was longer than it may be.
    TooLong,
}

fn whole<'a, T>(locked: Result<MutexGuard<'a, T>, PoisonError<MutexGuard<'a, T>>>) -> MutexGuard<'a, T> {
    locked.unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(
        desk: Desk<()>,
        to_server: Option<ChildStdin>,
        charges: Charges,
        max_message: u64,
    ) -> Self {
        let (changed, clock) = (Condvar::new(), Clock::unix());
        Self {
            desk: Mutex::new(desk),
            changed,
            to_server: Mutex::new(to_server),
            clock,
            charges,
            max_message,
            steps_down: AtomicU64::new(0),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk<()>> {
        whole(self.desk.lock())
    }

    fn to_server(&self) -> MutexGuard<'_, Option<ChildStdin>> {
        whole(self.to_server.lock())
    }

    /// From the client to the server, until the client has no more to say. Then the calls that wait are served, and the
    /// server is told. Not so when a message is too long: then the server is ended from outside.
    pub(crate) fn pump_up(&self) -> End {
        let mut stdin = io::stdin().lock();
        let mut line = Vec::new();
        loop {
            match frame::read(&mut stdin, &mut line, self.max_message) {
                Ok(true) => {
                    if line.last() != Some(&b'\n') && !self.desk().is_empty() {
                        // The last one has no line end, and those that wait come behind it.
                        line.push(b'\n');
                    }
                    self.take(&mut line);
                }
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return End::TooLong,
                Ok(false) | Err(_) => break,
            }
            if self.to_server().is_none() {
                stop_reading();
                break;
            }
        }
        let mut desk = self.desk();
        while !desk.is_empty() {
            desk = whole(self.changed.wait(desk));
        }
        drop(desk);
        self.to_server().take();
        End::Closed
    }

    /// From the server to the client, until one of them has gone. The calls that wait then are answered.
    pub(crate) fn pump_down(&self, stdout: ChildStdout) -> End {
        let mut reader = BufReader::with_capacity(READ_BYTES, stdout);
        let mut line = Vec::new();
        let end = loop {
            match frame::read(&mut reader, &mut line, self.max_message) {
                Ok(true) => {
                    self.steps_down.fetch_add(1, Ordering::Relaxed);
                    self.note_answer(&line);
                    if to_client(&line).is_err() {
                        break End::Closed;
                    }
                    self.steps_down.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => break End::TooLong,
                Ok(false) | Err(_) => break End::Closed,
            }
        };
        drop(reader);
        self.close();
        end
    }

    /// Lets waiting calls start when they may, refuses those that waited too long, and tells of progress. It never ends.
    pub(crate) fn attend(&self) {
        loop {
            // The way to the server first: see above.
            let way = self.to_server();
            let mut desk = self.desk();
            let now = self.clock.now_ns();
            match desk.due(now) {
                Todo::Forward((), message) => {
                    drop(desk);
                    self.forward(way, &message);
                    self.changed.notify_all();
                }
                Todo::Answer((), message) => {
                    drop(desk);
                    drop(way);
                    let _ = to_client(&message);
                    self.changed.notify_all();
                }
                Todo::Progress(told) => {
                    drop(desk);
                    drop(way);
                    let _ = to_client(&together(told));
                }
                Todo::Nothing => {
                    drop(way);
                    let next = desk.next_due(now);
                    drop(match next {
                        Some(next) => {
                            let wait = Duration::from_nanos(next.saturating_sub(self.clock.now_ns()));
                            whole(
                                self.changed
                                    .wait_timeout(desk, wait)
                                    .map(|(desk, _)| desk)
                                    .map_err(|error| PoisonError::new(error.into_inner().0)),
                            )
                        }
                        None => whole(self.changed.wait(desk)),
                    });
                }
            }
        }
    }

    /// No call starts any more, and those that wait are answered.
    pub(crate) fn close(&self) {
        let answers = self.desk().close(self.clock.now_ns(), Gone::Server);
        let _ = to_client(&together(answers));
        self.changed.notify_all();
    }

    /// What happened, when all is over.
    pub(crate) fn finish(&self) -> Option<String> {
        self.desk().finish()
    }

    /// One message of the client.
    fn take(&self, line: &mut Vec<u8>) {
        match frame::message(line, &self.charges) {
            Message::Call(asked) => self.arrive(asked, std::mem::take(line)),
            Message::Cancelled(id) => {
                let told = self.desk().cancel(self.clock.now_ns(), &in_pipe(id));
                self.changed.notify_all();
                if told {
                    self.forward(self.to_server(), line);
                }
            }
            Message::Batch if self.desk().limits_something() => {
                let _ = to_client(&answer::batch());
            }
            Message::Unclear(id) if self.desk().limits_something() => {
                let _ = to_client(&answer::unclear(id.as_deref()));
            }
            Message::Batch | Message::Unclear(_) | Message::Other => self.forward(self.to_server(), line),
        }
    }

    fn arrive(&self, asked: Asked, message: Vec<u8>) {
        let way = self.to_server();
        let todo = {
            let mut desk = self.desk();
            desk.arrive(Call::new(asked, Scope::Pipe, message, self.clock.now_ns(), ()))
        };
        match todo {
            Todo::Forward((), message) => self.forward(way, &message),
            Todo::Answer((), message) => {
                drop(way);
                let _ = to_client(&message);
            }
            Todo::Progress(_) | Todo::Nothing => {
                drop(way);
                self.changed.notify_all();
            }
        }
    }

    /// Passes a message on. If the server reads no more, no call starts any more, and those that did not are answered. Those
    /// that run go on: what the server says is read until it says no more.
    fn forward(&self, mut way: MutexGuard<'_, Option<ChildStdin>>, message: &[u8]) {
        let is_passed = way.as_mut().is_some_and(|server| server.write_all(message).is_ok());
        if is_passed {
            return;
        }
        way.take();
        drop(way);
        let unsent = match frame::message(message, &self.charges) {
            Message::Call(asked) => self.desk().unsent(&asked, &in_pipe(asked.id.clone())),
            _ => None,
        };
        if let Some(answer) = unsent {
            let _ = to_client(&answer);
        }
        self.close();
    }

    /// How far the way down has come; an even number if it waits for the server, and an odd one if it waits for the client.
    pub(crate) fn steps_down(&self) -> u64 {
        self.steps_down.load(Ordering::Relaxed)
    }

    /// Whether the server, and whatever it started, has closed the way to it.
    pub(crate) fn is_unread(&self) -> bool {
        // Who holds the lock writes, so somebody reads, or it will see for itself.
        let Ok(way) = self.to_server.try_lock() else { return false };
        way.as_ref().is_none_or(|way| {
            let mut polled = [PollFd::new(way, PollFlags::empty())];
            let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut polled, Some(&nothing)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
        })
    }

    fn note_answer(&self, line: &[u8]) {
        if !self.desk().expects_answers() {
            return;
        }
        for id in frame::answered(line).into_iter().map(in_pipe) {
            if self.desk().knows(&id) {
                let pause = learn::pause(line, SystemTime::now());
                self.desk().answered(self.clock.now_ns(), &id, pause);
                self.changed.notify_all();
            }
        }
    }
}

const fn in_pipe(id: Id) -> CallId {
    CallId { scope: Scope::Pipe, id }
}

fn together(messages: Vec<((), Vec<u8>)>) -> Vec<u8> {
    messages.into_iter().flat_map(|((), message)| message).collect()
}

/// Who still writes to us gets an error, as from a server that does not read.
fn stop_reading() {
    if let Ok(nothing) = File::open("/dev/null") {
        // If it fails, what is said is lost instead.
        let _ = rustix::stdio::dup2_stdin(nothing);
    }
}

fn to_client(message: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(message)?;
    stdout.flush()
}
