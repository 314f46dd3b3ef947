//! The server's process: its start, the signals that go on to it, and its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};

use super::pump::{End, Shared};
use crate::fault::Hint;
use crate::mcp::charges::Charges;
use crate::mcp::desk::Desk;
use crate::run::signals::is_ignored;

/// How long a server that was told to end may take, before it is told more firmly.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked whether somebody reads what is said to the server, when the process that was started has ended.
/// What that left behind has its input for a moment, even if it turns to another at once.
const LOOK: Duration = Duration::from_millis(500);

/// What the threads tell.
#[derive(Debug)]
enum Report {
    /// The client has said all, and the server was told.
    Up(End),
    /// The server has said all, or the client has gone.
    Down(End),
    Exited(Option<ExitStatus>),
}

/// Starts the server, passes messages until it ends, and tells its exit code.
///
/// # Errors
///
/// A command that cannot be started, and a message that is too long.
pub(crate) fn run(
    command: &[OsString],
    desk: Desk<()>,
    charges: Charges,
    max_message: u64,
    tell: &mut dyn FnMut(String),
) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime that waits for signals")?;
    // Before there is a server, so that no signal ends the proxy alone.
    let signals = runtime.block_on(async { Signals::new() }).context("cannot listen to signals")?;
    let (mut child, pid) = start(command)?;
    let shared = Arc::new(Shared::new(desk, child.stdin.take(), charges, max_message));
    let (reports, told) = mpsc::unbounded_channel();
    if let Some(stdout) = child.stdout.take() {
        spawn("mcp-down", &shared, &reports, move |shared| Some(Report::Down(shared.pump_down(stdout))))?;
    }
    spawn("mcp-up", &shared, &reports, |shared| Some(Report::Up(shared.pump_up())))?;
    spawn("mcp-exit", &shared, &reports, move |_| Some(Report::Exited(child.wait().ok())))?;
    spawn("mcp-line", &shared, &reports, |shared| {
        shared.attend();
        None
    })?;
    let ended = runtime.block_on(watch(pid, &shared, &reports, told, signals, max_message));
    if let Some(summary) = shared.finish() {
        tell(summary);
    }
    ended
}

fn start(command: &[OsString]) -> anyhow::Result<(Child, Pid)> {
    let (program, args) = command.split_first().context("there is no command")?;
    let child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.map_err(|error| {
        Hint::error(
            format!("cannot start `{}`: {error}", program.to_string_lossy()),
            "write the command that starts the MCP server after `--`, as an agent would start it",
        )
    })?;
    let pid = Pid::from_child(&child);
    Ok((child, pid))
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    reports: &UnboundedSender<Report>,
    work: impl FnOnce(&Shared) -> Option<Report> + Send + 'static,
) -> anyhow::Result<()> {
    let (shared, reports) = (Arc::clone(shared), reports.clone());
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(report) = work(&shared) {
            // Nobody listens when all is over.
            let _ = reports.send(report);
        }
    });
    thread.context("cannot start a thread")?;
    Ok(())
}

/// Answers the calls that wait. In a thread of its own: a client that does not read must not keep us from ending the server.
fn spawn_close(shared: &Arc<Shared>, reports: &UnboundedSender<Report>) -> anyhow::Result<()> {
    spawn("mcp-close", shared, reports, |shared| {
        shared.close();
        None
    })
}

/// Waits for the end of the server and of what it said; passes signals on.
async fn watch(
    pid: Pid,
    shared: &Arc<Shared>,
    reports: &UnboundedSender<Report>,
    mut told: UnboundedReceiver<Report>,
    mut signals: Signals,
    max_message: u64,
) -> anyhow::Result<u8> {
    let mut said_all = false;
    let mut exited = None;
    let mut signalled = false;
    // Whether nobody reads what is said to the server any more.
    let mut is_over = false;
    // What the server is told next if it does not end, and when; or when it is no longer waited for what it has said.
    let mut next: Option<(Instant, Signal)> = None;
    let mut too_long = None;
    let mut steps_before = 0;
    loop {
        if let (true, Some(status)) = (said_all, exited) {
            return too_long.map_or(Ok(code(status)), Err);
        }
        let (at, firmer) = next.unwrap_or((Instant::now(), Signal::KILL));
        let passed = tokio::select! {
            report = told.recv() => {
                match report {
                    Some(Report::Exited(status)) => {
                        exited = Some(status);
                        // A client that asked for the end may not read the rest any more. And if nobody reads what is said to
                        // the server, what it left behind is no server, though it may hold its output open.
                        is_over = shared.is_unread();
                        steps_before = shared.steps_down();
                        if is_over {
                            spawn_close(shared, reports)?;
                        }
                        let wait = if signalled || is_over { PATIENCE } else { LOOK };
                        next = Some((Instant::now() + wait, Signal::KILL));
                    }
                    Some(Report::Up(End::Closed)) => {}
                    Some(Report::Down(End::Closed)) => {
                        said_all = true;
                        next = exited.is_none().then(|| (Instant::now() + PATIENCE, Signal::TERM));
                    }
                    Some(Report::Up(End::TooLong)) => {
                        too_long = Some(too_long_message("client", max_message));
                        let _ = kill_process(pid, Signal::TERM);
                        next = Some((Instant::now() + PATIENCE, Signal::KILL));
                    }
                    Some(Report::Down(End::TooLong)) => {
                        said_all = true;
                        too_long = Some(too_long_message("server", max_message));
                        next = exited.is_none().then(|| (Instant::now(), Signal::TERM));
                    }
                    None => {}
                }
                None
            }
            signal = signals.next() => Some(signal),
            () = sleep_until(at), if next.is_some() => {
                if let Some(status) = exited {
                    if !signalled && !is_over {
                        is_over = shared.is_unread();
                        if is_over {
                            spawn_close(shared, reports)?;
                        }
                        steps_before = shared.steps_down();
                        let wait = if is_over { PATIENCE } else { LOOK };
                        next = Some((Instant::now() + wait, Signal::KILL));
                        continue;
                    }
                    let steps = shared.steps_down();
                    if signalled || steps == steps_before && steps.is_multiple_of(2) {
                        return Ok(code(status));
                    }
                    // There is more, or the client is slow to read it.
                    steps_before = steps;
                    next = Some((Instant::now() + PATIENCE, Signal::KILL));
                    continue;
                }
                next = (firmer != Signal::KILL).then(|| (Instant::now() + PATIENCE, Signal::KILL));
                let _ = kill_process(pid, firmer);
                None
            }
        };
        let Some(passed) = passed else { continue };
        if let Some(status) = exited {
            // Somebody else holds its output open.
            return Ok(code(status));
        }
        signalled = true;
        let _ = kill_process(pid, passed);
        spawn_close(shared, reports)?;
        next = Some((Instant::now() + PATIENCE, Signal::KILL));
    }
}

/// The signals that go on to the server.
#[derive(Debug)]
struct Signals {
    hangup: Option<tokio::signal::unix::Signal>,
    interrupt: Option<tokio::signal::unix::Signal>,
    terminate: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        // One that is ignored stays so, as after `nohup`: the server is to ignore it too.
        let listen = |kind: Signal| {
            (!is_ignored(kind)).then(|| signal(SignalKind::from_raw(kind.as_raw()))).transpose()
        };
        Ok(Self {
            hangup: listen(Signal::HUP)?,
            interrupt: listen(Signal::INT)?,
            terminate: listen(Signal::TERM)?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            () = arrival(&mut self.hangup) => Signal::HUP,
            () = arrival(&mut self.interrupt) => Signal::INT,
            () = arrival(&mut self.terminate) => Signal::TERM,
        }
    }
}

async fn arrival(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

fn too_long_message(who: &str, max_message: u64) -> anyhow::Error {
    Hint::error(
        format!("the {who} sent a message of more than {} MiB", max_message / (1024 * 1024)),
        "raise --max-message",
    )
}

/// The exit code, as a shell tells it: 128 and the signal's number for a server that a signal ended.
fn code(status: Option<ExitStatus>) -> u8 {
    let Some(status) = status else { return 2 };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(2)
}
