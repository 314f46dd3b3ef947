//! The command to run: whether it is there, with which words, and how its end becomes a status, as shells do it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::fs::{Access, access};
use tokio::process::Command;

use crate::fault::{Outcome, tell};

/// What stands for the argument in the words of a command.
const PLACE: &[u8] = b"{}";

/// Why a command could not be started.
#[derive(Debug)]
pub(super) struct CannotStart {
    program: OsString,
    error: io::Error,
}

impl CannotStart {
    /// Says so, and returns the status: 127 if it is not there, and 126 otherwise.
    pub(super) fn tell(&self) -> Outcome {
        let program = self.program.display();
        if self.error.kind() == io::ErrorKind::NotFound {
            tell(&format!("tidegate run: `{program}` was not found"));
            return Outcome::Status(127);
        }
        tell(&format!("tidegate run: `{program}` cannot be executed: {}", self.error));
        Outcome::Status(126)
    }
}

/// Looks for a program as the system will when it is started.
pub(super) fn find(program: &OsString) -> Result<(), CannotStart> {
    let cannot = |error| CannotStart { program: program.clone(), error };
    if program.as_bytes().contains(&b'/') {
        return is_executable(Path::new(program)).map_err(cannot);
    }
    // Without PATH the system has a default of its own, and says itself what it did not find.
    let Some(path) = env::var_os("PATH") else { return Ok(()) };
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for folder in env::split_paths(&path) {
        match is_executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = error,
            Err(_) => {}
        }
    }
    Err(cannot(refused))
}

fn is_executable(path: &Path) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

/// The command of `words`, the first of which is the program.
pub(super) fn command(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
    command.args(words);
    command
}

/// The words with `argument` for each `{}` after the program, or at their end if there is none.
pub(super) fn with_argument(words: &[OsString], argument: &OsStr) -> Vec<OsString> {
    let mut found = false;
    let mut filled: Vec<OsString> = words
        .iter()
        .enumerate()
        .map(|(index, word)| {
            let mut parts = Vec::with_capacity(word.len());
            let mut rest = word.as_bytes();
            while index > 0
                && let Some(at) = rest.windows(PLACE.len()).position(|window| window == PLACE)
            {
                found = true;
                parts.extend_from_slice(&rest[..at]);
                parts.extend_from_slice(argument.as_bytes());
                rest = &rest[at + PLACE.len()..];
            }
            parts.extend_from_slice(rest);
            OsString::from_vec(parts)
        })
        .collect();
    if !found {
        filled.push(argument.to_owned());
    }
    filled
}

/// A fault of starting the program of `words`.
pub(super) fn cannot_start(words: &[OsString], error: io::Error) -> CannotStart {
    CannotStart { program: words.first().cloned().unwrap_or_default(), error }
}

/// The status that a shell gives for an end: 128 + N for signal N.
pub(super) fn status(end: ExitStatus) -> u8 {
    let status = end.code().or_else(|| Some(128 + end.signal()?));
    status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX)
}

/// The end of a run that has no other end than its command.
pub(super) fn outcome(end: ExitStatus) -> Outcome {
    end.signal().map_or_else(|| Outcome::Status(status(end)), Outcome::Signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_goes_to_every_place_or_to_the_end() {
        for (words, expected) in [
            ("curl https://host/{}", "curl https://host/A"),
            ("mv {} {}.old", "mv A A.old"),
            ("echo {}-{}", "echo A-A"),
            ("echo", "echo A"),
            ("echo {", "echo { A"),
            ("{} x", "{} x A"),
        ] {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            assert_eq!(with_argument(&words, OsStr::new("A")).join(OsStr::new(" ")), expected);
        }
        // What is put in is not looked at again.
        let words = [OsString::from("echo"), OsString::from("{}")];
        assert_eq!(with_argument(&words, OsStr::new("{}{}"))[1], "{}{}");
    }
}
