//! One connection: what is read is answered and written before more is read.

use std::cell::RefCell;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::codec::request::REQUEST_MAX;
use super::counts::Tally;
use super::seldom::Seldom;
use super::server::Shared;
use super::session::{OUTPUT_MAX, Session, Then};

/// Bytes that are read at one time, with what was left of the last. A larger buffer brings more requests to one write, and
/// lets the other clients wait for longer.
const INPUT_MAX: usize = 32 * 1024;

/// How many reads of a client are answered before others have their turn.
const READS_IN_TURN: u32 = 4;

/// How many reads of a client are answered after the server was told to stop. What came by then fits, and a client that
/// goes on sending ends.
const READS_AT_END: u32 = 64;

/// How long a server that was told to stop goes on as before. What came by then may not have been noticed; before a sleep
/// ends, the runtime has asked the system what came.
const NOTICE: Duration = Duration::from_millis(1);

// A request whose end has not come always leaves room to read more of it.
const _: () = assert!(INPUT_MAX > 2 * REQUEST_MAX);

thread_local! {
    /// Connections read and answer in what their thread has, and keep only what is left over: an idle one has no buffers.
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        input: vec![0; INPUT_MAX].into(),
        output: Vec::with_capacity(2 * OUTPUT_MAX),
    });
}

#[derive(Debug)]
struct Buffers {
    input: Box<[u8]>,
    output: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    session: Session,
    shared: Arc<Shared>,
    /// What came and is not answered yet.
    unread: Vec<u8>,
    /// Answers that the client did not read yet, and how much of them it did.
    unwritten: Vec<u8>,
    written: usize,
    then: Then,
    silence: Silence,
    reads_left: Option<u32>,
}

/// What happens to a connection beside what its client does.
enum Event {
    /// The server was told to stop.
    End,
    /// It is time to look whether the client does something.
    Look,
}

/// How long a client has done nothing, counted in looks at it.
#[derive(Debug, Clone, Copy, Default)]
struct Silence {
    /// Whether it did something since the last look.
    is_broken: bool,
    looks: u32,
    /// For how many of them the server waited for it.
    looks_waited_for: u32,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, id: u64, shared: Arc<Shared>) -> Self {
        let session = Session::new(id, &shared);
        Self {
            stream,
            session,
            shared,
            unread: Vec::new(),
            unwritten: Vec::new(),
            written: 0,
            then: Then::Read,
            silence: Silence::default(),
            reads_left: None,
        }
    }

    /// Serves the client until it goes, is too slow, or `ended` says that the server ends.
    pub(super) async fn run(mut self, mut ended: watch::Receiver<()>) {
        let slow = self.shared.bounds.slow;
        let mut looks = interval_at(Instant::now() + slow, slow);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = async {
            // Also when nobody is there any more to say it.
            let _ = ended.changed().await;
            sleep(NOTICE).await;
        };
        tokio::pin!(end);
        let mut is_ending = false;
        let mut seldom = Seldom::new(|context: &mut Context<'_>| {
            if !is_ending && end.as_mut().poll(context).is_ready() {
                is_ending = true;
                return Poll::Ready(Event::End);
            }
            looks.poll_tick(context).map(|_| Event::Look)
        });
        loop {
            let event = poll_fn(|context| match self.poll(context) {
                // A client that breaks its connection harms nobody else, so there is nothing to report.
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => seldom.poll(context).map(Some),
            });
            match event.await {
                None => break,
                Some(Event::End) => self.reads_left = Some(READS_AT_END),
                Some(Event::Look) if !self.goes_on() => break,
                Some(Event::Look) => {}
            }
        }
        let _ = self.stream.shutdown().await;
    }

    /// Answers all that comes; is ready when the connection is to be closed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        BUFFERS.with_borrow_mut(|buffers| {
            let mut reads = 0;
            loop {
                ready!(self.poll_write_rest(context))?;
                if self.then == Then::Close {
                    return Poll::Ready(Ok(()));
                }
                if self.then == Then::Decide {
                    ready!(self.poll_decide(context, &mut buffers.output))?;
                    continue;
                }
                let mut len = self.unread.len();
                buffers.input[..len].copy_from_slice(&self.unread);
                if self.then == Then::Read {
                    if reads == READS_IN_TURN {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    reads += 1;
                    match self.poll_read(context, &mut buffers.input[len..]) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                        Poll::Ready(more) => len += more?,
                        // All that came is answered.
                        Poll::Pending if self.reads_left.is_some() => return Poll::Ready(Ok(())),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                self.answer(&buffers.input[..len], &mut buffers.output);
                self.write(context, &buffers.output)?;
            }
        })
    }

    /// Is ready when the decision that is waited for is there, and its answer on the way.
    fn poll_decide(&mut self, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<io::Result<()>> {
        // The client is not the one that is slow.
        self.silence.is_broken = true;
        output.clear();
        let mut tally = Tally::default();
        ready!(self.session.poll_checking(context, output, &mut tally));
        self.shared.counters.add(&tally);
        self.then = Then::Write;
        Poll::Ready(self.write(context, output))
    }

    /// Bytes read into `input`; 0 when no more will come.
    fn poll_read(&mut self, context: &mut Context<'_>, input: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some(left) = &mut self.reads_left {
            let Some(less) = left.checked_sub(1) else { return Poll::Ready(Ok(0)) };
            *left = less;
        }
        let mut input = ReadBuf::new(input);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut input))?;
        Poll::Ready(Ok(input.filled().len()))
    }

    /// Answers what is whole of `input` into `output`, and keeps the rest.
    fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) {
        output.clear();
        let mut tally = Tally::default();
        let answered = self.session.answer_all(input, output, &self.shared, &mut tally);
        self.shared.counters.add(&tally);
        self.then = answered.then;
        let rest = &input[answered.used..];
        if !self.unread.is_empty() || !rest.is_empty() {
            self.unread = rest.to_vec();
        }
        self.silence.is_broken |= tally.commands > 0 && self.session.is_trusted();
    }

    /// Writes what can be written now, and keeps the rest.
    fn write(&mut self, context: &mut Context<'_>, output: &[u8]) -> io::Result<()> {
        if output.is_empty() {
            return Ok(());
        }
        let written = match Pin::new(&mut self.stream).poll_write(context, output) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        self.unwritten = output[written..].to_vec();
        Ok(())
    }

    /// Is ready when the client has taken all that was kept.
    fn poll_write_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.unwritten.len() {
            let rest = &self.unwritten[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
            self.silence.is_broken = true;
        }
        if self.written > 0 {
            self.unwritten = Vec::new();
            self.written = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Looks whether the client did something since the last look; `false` if it has had its time.
    fn goes_on(&mut self) -> bool {
        let is_waited_for =
            !self.unwritten.is_empty() || !self.unread.is_empty() || !self.session.is_trusted();
        self.silence.look(is_waited_for, self.shared.bounds.idle.get())
    }
}

impl Silence {
    fn look(&mut self, is_waited_for: bool, looks_max: u32) -> bool {
        if self.is_broken {
            *self = Self::default();
            return true;
        }
        self.looks += 1;
        self.looks_waited_for = if is_waited_for { self.looks_waited_for + 1 } else { 0 };
        // The first of two looks can come right after the wait began.
        self.looks_waited_for < 2 && self.looks < looks_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_given_up_when_it_is_waited_for_twice_or_silent_for_long() {
        let looks = |waited_for: &[bool], idle: u32| {
            let mut silence = Silence::default();
            waited_for.iter().map(|&waits| silence.look(waits, idle)).collect::<Vec<_>>()
        };
        assert_eq!(looks(&[true, true], 60), [true, false]);
        assert_eq!(looks(&[false, true, false, true, true], 60), [true, true, true, true, false]);
        assert_eq!(looks(&[false; 3], 3), [true, true, false]);

        let mut silence = Silence::default();
        assert!(silence.look(true, 60));
        silence.is_broken = true;
        assert!(silence.look(true, 60), "it did something in between");
        assert!(silence.look(true, 60), "and its time begins anew");
        assert!(!silence.look(true, 60));
    }
}
