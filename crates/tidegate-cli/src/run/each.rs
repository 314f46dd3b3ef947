//! One command for each argument: started in order, each in its turn, at most so many at one time.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::pin::{Pin, pin};
use std::process::Stdio;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rustix::process::Signal;
use tokio::process::Child;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

use super::output::{Output, Printed, Stream};
use super::program::{self, CannotStart, cannot_start};
use super::signals::{Signals, To, pass_on};
use super::turn::{Held, Late, Turn, Turns, line};
use super::{Retries, not_in_time};
use crate::fault::{Outcome, tell};

/// As `xargs` says it: some commands ended with another status than 0.
const SOME_FAILED: u8 = 123;

/// How many signals a command can be behind. It is told of each at once, so it is never behind.
const SIGNALS_BEHIND: usize = 16;

/// How long the rest of the arguments is counted that were not started.
const COUNT: Duration = Duration::from_millis(200);

/// Where the arguments come from.
type Arguments = mpsc::Receiver<anyhow::Result<OsString>>;

/// A command that is to run, or has.
#[derive(Debug)]
struct Job {
    argument: OsString,
    /// How often it was run again.
    again: u32,
}

/// A job that waits for its turn.
struct Next<'a> {
    job: Job,
    turn: Pin<Box<dyn Future<Output = Turn> + 'a>>,
}

/// Why nothing more is started.
enum Stop {
    Signal(Signal),
    Late(Late),
    CannotStart(CannotStart),
    Fault(anyhow::Error),
    /// Nobody reads what the commands print.
    Unread,
}

/// What came of the jobs.
#[derive(Debug, Default)]
struct Tally {
    ended: u64,
    failed: u64,
    /// The first that failed, and its status.
    first: Option<(OsString, u8)>,
    not_started: u64,
}

/// Runs the command of `words` for each argument.
pub(super) async fn run(
    words: &[OsString],
    turns: &Turns,
    retries: &Retries,
    most: usize,
    mut arguments: Arguments,
    mut signals: Signals,
) -> anyhow::Result<Outcome> {
    let progress = Progress::new();
    let output = Output::start(progress.line.clone());
    let (forward, _) = broadcast::channel(SIGNALS_BEHIND);
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let mut running: JoinSet<io::Result<(Job, u8)>> = JoinSet::new();
    let mut again: VecDeque<Job> = VecDeque::new();
    let mut next: Option<Next<'_>> = None;
    let mut is_open = true;
    let mut tally = Tally::default();
    let mut stop = None;
    loop {
        let has_room = next.is_none() && running.len() < most && stop.is_none();
        if has_room && let Some(job) = again.pop_front() {
            next = Some(Next { job, turn: Box::pin(turns.next()) });
            continue;
        }
        if running.is_empty() && next.is_none() && (stop.is_some() || !is_open) {
            break;
        }
        let mut end = None;
        tokio::select! {
            biased;
            signal = signals.next() => {
                // It fails when none runs.
                let _ = forward.send(signal);
                end = Some(Stop::Signal(signal));
            }
            Some(ended) = running.join_next(), if !running.is_empty() => match ended.map_err(io::Error::other).flatten() {
                Ok((job, status)) if stop.is_none() && retries.again(status, job.again) => {
                    again.push_back(Job { again: job.again + 1, ..job });
                }
                Ok((job, status)) => tally.add(job, status),
                Err(error) => end = Some(Stop::Fault(error.into())),
            },
            turn = turn_of(&mut next) => if let Some(Next { job, .. }) = next.take() {
                match turn {
                    Ok(Ok(held)) => match start(words, job, held, &output, forward.subscribe()) {
                        Ok(command) => {
                            running.spawn(command);
                        }
                        Err(fault) => {
                            tally.not_started += 1;
                            end = Some(Stop::CannotStart(fault));
                        }
                    },
                    Ok(Err(late)) => {
                        tally.not_started += 1;
                        end = Some(Stop::Late(late));
                    }
                    Err(fault) => {
                        tally.not_started += 1;
                        end = Some(Stop::Fault(fault));
                    }
                }
            },
            argument = arguments.recv(), if is_open && (has_room || stop.is_some()) => match argument {
                Some(Ok(argument)) if stop.is_none() => {
                    next = Some(Next { job: Job { argument, again: 0 }, turn: Box::pin(turns.next()) });
                }
                Some(Ok(_)) => tally.not_started += 1,
                Some(Err(fault)) => end = Some(Stop::Fault(fault)),
                None => is_open = false,
            },
            () = output.closed(), if stop.is_none() => end = Some(Stop::Unread),
            _ = ticks.tick(), if progress.is_watched => progress.show(&tally, running.len()),
        }
        if end.is_some() && stop.is_none() {
            // What waits was not charged.
            tally.not_started += u64::from(next.take().is_some());
            tally.not_started += u64::try_from(again.drain(..).count()).unwrap_or(u64::MAX);
            stop = end;
        }
    }
    let is_exact = stop.is_none() || tally.count_rest(&mut arguments).await;
    progress.line.finish_and_clear();
    let written = tokio::select! {
        biased;
        written = output.finish() => written,
        signal = signals.next() => return Ok(Outcome::Signal(signal.as_raw())),
    };
    let outcome = tally.outcome(stop, is_exact);
    written?;
    outcome
}

/// The end of the wait for the next turn, if somebody waits.
async fn turn_of(next: &mut Option<Next<'_>>) -> Turn {
    match next {
        Some(next) => next.turn.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Starts the command of a job. The future is its end.
fn start(
    words: &[OsString],
    job: Job,
    held: Held,
    output: &Output,
    signals: broadcast::Receiver<Signal>,
) -> Result<impl Future<Output = io::Result<(Job, u8)>> + use<>, CannotStart> {
    let words = program::with_argument(words, &job.argument);
    let mut command = program::command(&words);
    // In a group of its own, it gets Ctrl-C from here alone, and what it started gets it too.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| cannot_start(&words, error))?;
    let printed = output.of_command();
    Ok(async move {
        let status = watch(child, &printed, signals).await?;
        // Its place in flight is free from here on.
        drop(held);
        Ok((job, status))
    })
}

/// Waits until a command has ended and its output is closed. After its end, a signal ends the wait for the output, which
/// something that it left behind may hold open.
async fn watch(
    mut child: Child,
    printed: &Printed,
    mut signals: broadcast::Receiver<Signal>,
) -> io::Result<u8> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let print_out = async {
        if let Some(out) = out {
            printed.print(Stream::Out, out).await;
        }
    };
    let print_err = async {
        if let Some(err) = err {
            printed.print(Stream::Err, err).await;
        }
    };
    let mut prints = pin!(async { tokio::join!(print_out, print_err) });
    let mut is_printed = false;
    let mut status = None;
    loop {
        tokio::select! {
            end = child.wait(), if status.is_none() => status = Some(program::status(end?)),
            _ = &mut prints, if !is_printed => is_printed = true,
            Ok(signal) = signals.recv() => match status {
                None => pass_on(&child, signal, To::Group),
                Some(status) => return Ok(status),
            },
        }
        if let Some(status) = status
            && is_printed
        {
            return Ok(status);
        }
    }
}

impl Tally {
    fn add(&mut self, job: Job, status: u8) {
        self.ended += 1;
        if status != 0 {
            self.failed += 1;
            self.first.get_or_insert((job.argument, status));
        }
    }

    /// Counts the arguments that are left. Whether that was all of them, as far as they come at once.
    async fn count_rest(&mut self, arguments: &mut Arguments) -> bool {
        let count = async {
            while let Some(Ok(_)) = arguments.recv().await {
                self.not_started += 1;
            }
        };
        tokio::time::timeout(COUNT, count).await.is_ok()
    }

    /// Says what did not go well, and how the run ends.
    fn outcome(self, stop: Option<Stop>, is_exact: bool) -> anyhow::Result<Outcome> {
        if let Some((argument, status)) = &self.first {
            tell(&format!(
                "tidegate run: {} of {} commands failed, first that of `{}` with status {status}",
                self.failed,
                self.ended,
                argument.display()
            ));
        }
        let Some(stop) = stop else {
            return Ok(if self.failed > 0 { Outcome::Status(SOME_FAILED) } else { Outcome::Fine });
        };
        if self.not_started > 0 && !matches!(stop, Stop::Unread) {
            let at_least = if is_exact { "" } else { "at least " };
            tell(&format!("tidegate run: stopped, {at_least}{} not started", self.not_started));
        }
        match stop {
            Stop::Signal(signal) => Ok(Outcome::Signal(signal.as_raw())),
            Stop::Late(late) => Ok(not_in_time(&late)),
            Stop::CannotStart(fault) => Ok(fault.tell()),
            Stop::Fault(fault) => Err(fault),
            Stop::Unread => Ok(Outcome::Fine),
        }
    }
}

/// A line for a person who watches, once it takes longer than a second.
#[derive(Debug)]
struct Progress {
    line: ProgressBar,
    started: Instant,
    is_watched: bool,
}

impl Progress {
    fn new() -> Self {
        Self { line: line(), started: Instant::now(), is_watched: io::stderr().is_terminal() }
    }

    fn show(&self, tally: &Tally, running: usize) {
        if self.started.elapsed() > Duration::from_secs(1) {
            self.line.set_message(format!("{} done, {running} running", tally.ended));
            self.line.tick();
        }
    }
}
