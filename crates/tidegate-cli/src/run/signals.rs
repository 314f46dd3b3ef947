//! The signals that are passed on, and how a command gets each of them once.

use std::fs::{self, File};
use std::io;

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The signals that arrive, in order.
#[derive(Debug)]
pub(super) struct Signals(mpsc::UnboundedReceiver<Signal>);

impl Signals {
    /// Listens from now on. A signal that is ignored stays so, as after `nohup`: the commands are to ignore it too.
    pub(super) fn listen() -> io::Result<Self> {
        // Of one kind, the system keeps one at most until it is looked at; so this cannot grow without a bound.
        let (sender, receiver) = mpsc::unbounded_channel();
        for kind in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            if is_ignored(kind) {
                continue;
            }
            let mut arrivals = signal(SignalKind::from_raw(kind.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(
                async move { while arrivals.recv().await.is_some() && sender.send(kind).is_ok() {} },
            );
        }
        Ok(Self(receiver))
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // All are ignored.
            None => std::future::pending().await,
        }
    }
}

/// Whether the process was started with this signal ignored, where the system tells.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let told = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = told.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Whether the terminal itself gave this signal to every process of this group, the command too.
pub(super) fn is_from_terminal(signal: Signal) -> bool {
    let typed = signal == Signal::INT || signal == Signal::QUIT;
    let in_front = || {
        let terminal = File::open("/dev/tty").ok()?;
        Some(tcgetpgrp(&terminal).ok()? == getpgrp())
    };
    typed && in_front() == Some(true)
}

/// To whom a signal goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    /// The command, which is in the group of this process.
    Command,
    /// The command and what it started: it has a group of its own.
    Group,
}

/// Passes a signal on. Until it was waited for, the command's id is nobody else's.
pub(super) fn pass_on(child: &Child, signal: Signal, to: To) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It fails for one that has ended, which is what is wanted.
        let _ = match to {
            To::Command => kill_process(pid, signal),
            To::Group => kill_process_group(pid, signal),
        };
    }
}
