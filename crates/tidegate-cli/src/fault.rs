//! How a run ends: 0 fine, 1 the check failed, 2 wrong usage or a fault (`run` has more); and how a fault is printed.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::report::text::one_line;

/// How a verb ended when it could do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything asked for holds.
    Fine,
    /// The work was done and a bound or target was missed.
    CheckFailed,
    /// The status of a command that was run, or one that says why it was not.
    #[cfg(unix)]
    Status(u8),
    /// The signal that ended the command, or its wait. The process ends by it as well: a shell, `xargs` and others look at
    /// that to tell whether somebody wants the rest to stop too.
    #[cfg(unix)]
    Signal(i32),
}

/// An error with advice: the text of the error, and below it what to do.
#[derive(Debug)]
pub(crate) struct Hint {
    message: String,
    hint: String,
}

impl Hint {
    /// An error that says `message`, with the advice `hint`. Both in lower case, without a full stop.
    pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), hint: hint.into() })
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hint {}

/// The result of a run, ready to become an exit code.
#[derive(Debug)]
pub(crate) struct Exit(anyhow::Result<Outcome>);

impl From<anyhow::Result<Outcome>> for Exit {
    fn from(result: anyhow::Result<Outcome>) -> Self {
        Self(result)
    }
}

impl From<Exit> for ExitCode {
    /// Prints the error, if there is one, as `error:`, `caused by:` and `hint:` lines on stderr.
    fn from(exit: Exit) -> Self {
        match exit.0 {
            Ok(Outcome::Fine) => Self::SUCCESS,
            Ok(Outcome::CheckFailed) => Self::from(1),
            #[cfg(unix)]
            Ok(Outcome::Status(status)) => Self::from(status),
            #[cfg(unix)]
            Ok(Outcome::Signal(signal)) => {
                end_by(signal);
                Self::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
            }
            Err(error) if is_broken_pipe(&error) => Self::SUCCESS,
            Err(error) => {
                print(&error);
                Self::from(2)
            }
        }
    }
}

/// Ends this process by a signal. Returns where that cannot be: signals do not end the first process of a container, and
/// those of real time have no name here.
#[cfg(unix)]
fn end_by(signal: i32) {
    use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
    if getpid().is_init() {
        return;
    }
    // The memory of the command is what somebody may want to look at, and not ours.
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    let _ = setrlimit(Resource::Core, limit);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// A reader that stops reading (`| head`) is not a fault.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = if let Some(cause) = cause.downcast_ref::<io::Error>() {
            Some(cause.kind())
        } else if let Some(cause) = cause.downcast_ref::<serde_json::Error>() {
            cause.io_error_kind()
        } else if let Some(csv::ErrorKind::Io(cause)) =
            cause.downcast_ref::<csv::Error>().map(csv::Error::kind)
        {
            Some(cause.kind())
        } else {
            None
        };
        kind == Some(io::ErrorKind::BrokenPipe)
    })
}

fn print(error: &anyhow::Error) {
    tell(&format!("error: {error}"));
    for cause in error.chain().skip(1) {
        tell(&format!("caused by: {cause}"));
    }
    if let Some(hint) = error.chain().find_map(|cause| cause.downcast_ref::<Hint>()) {
        tell(&format!("hint: {}", hint.hint));
    }
}

/// Says something on stderr, in one line. When nobody reads it any more, that is no fault.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{}", one_line(text));
}

/// Says what somebody should look at. Where a log was begun it goes there; one that cannot be written is no reason to
/// stop serving.
pub(crate) fn warn(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{}", one_line(text));
    } else {
        tell(&format!("warning: {text}"));
    }
}
