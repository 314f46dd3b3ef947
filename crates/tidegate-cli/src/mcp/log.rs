//! What became of the tool calls: a line of JSON for each, and a summary at the end.
//!
//! The lines are a trace that `tidegate simulate` and `tidegate fit` read: `--key tool --cost cost`. A line is written
//! when its call has ended, so the lines are in the order of the ends, and `time` is that of the arrival.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::Serialize;

use crate::fault::{Hint, tell};
use crate::report::text::duration;

/// A call that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct Entry<'a> {
    /// When it came.
    #[serde(serialize_with = "text")]
    pub(crate) time: Timestamp,
    pub(crate) tool: &'a str,
    pub(crate) cost: u64,
    pub(crate) decision: Decision,
    /// The limit that refused it.
    pub(crate) limit: Option<&'a str>,
    /// What it lacked of that limit.
    pub(crate) reason: Option<&'static str>,
    /// The limit in shadow mode that would not have let it start.
    pub(crate) shadow: Option<&'a str>,
    /// How long it was in the line.
    #[serde(rename = "wait_ms", serialize_with = "millis")]
    pub(crate) wait: Duration,
    /// From its start to its answer; nothing when it was not started or not answered.
    #[serde(rename = "duration_ms", serialize_with = "millis_if_any")]
    pub(crate) duration: Option<Duration>,
    /// For how long its answer wants the tool to be left alone.
    #[serde(rename = "hint_ms", serialize_with = "millis_if_any")]
    pub(crate) pause: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Decision {
    Allowed,
    Rejected,
    Never,
    /// The client took it back while it waited.
    Cancelled,
    /// The server ended while it waited.
    Unserved,
}

fn text<S: serde::Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

fn millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 1e6).round() / 1e3)
}

fn millis_if_any<S: serde::Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => millis(time, serializer),
        None => serializer.serialize_none(),
    }
}

/// How much waits for whoever reads the log, in bytes; then lines are left out.
const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Counts the calls, and writes them down if there is a file.
#[derive(Debug, Default)]
pub(crate) struct Log {
    file: Option<File>,
    allowed: u64,
    waited: u64,
    longest: Duration,
    rejected: u64,
    never: u64,
    cancelled: u64,
    unserved: u64,
    shadow: u64,
    hints: u64,
    /// Lines that whoever reads the log did not take yet.
    unwritten: Vec<u8>,
    /// Calls that found no room there.
    unlogged: u64,
    /// The most calls that ran at once.
    at_once: usize,
}

impl Log {
    /// # Errors
    ///
    /// A file that cannot be written.
    pub(crate) fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            // A pipe whose reader is slow, or not there, holds up no call.
            options.create(true).append(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
            options.open(path).map_err(|error| {
                Hint::error(
                    format!("cannot write the log `{}`: {error}", path.display()),
                    "name a file that can be written, or leave --log out",
                )
            })
        };
        Ok(Self { file: path.map(open).transpose()?, ..Self::default() })
    }

    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        let count = match entry.decision {
            Decision::Allowed => &mut self.allowed,
            Decision::Rejected => &mut self.rejected,
            Decision::Never => &mut self.never,
            Decision::Cancelled => &mut self.cancelled,
            Decision::Unserved => &mut self.unserved,
        };
        *count += 1;
        self.shadow += u64::from(entry.shadow.is_some());
        self.hints += u64::from(entry.pause.is_some());
        if entry.decision == Decision::Allowed && !entry.wait.is_zero() {
            self.waited += 1;
            self.longest = self.longest.max(entry.wait);
        }
        if self.file.is_none() {
            return;
        }
        if self.unwritten.len() < UNWRITTEN_MAX {
            // It has nothing in it that cannot be written.
            if let Ok(line) = serde_json::to_vec(entry) {
                self.unwritten.extend_from_slice(&line);
                self.unwritten.push(b'\n');
            }
        } else {
            self.unlogged += 1;
        }
        self.write();
    }

    /// Writes as much as whoever reads it takes.
    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        let mut written = 0;
        let result = loop {
            match self.unwritten.get(written..) {
                None | Some([]) => break Ok(()),
                Some(rest) => match file.write(rest) {
                    Ok(0) => break Err(ErrorKind::WriteZero.into()),
                    Ok(count) => written += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                    Err(error) => break Err(error),
                },
            }
        };
        self.unwritten.drain(..written);
        if let Err(error) = result {
            tell(&format!("warning: the log ends here, it cannot be written: {error}"));
            self.file = None;
        }
    }

    /// So many calls run now.
    pub(crate) fn running(&mut self, calls: usize) {
        self.at_once = self.at_once.max(calls);
    }

    /// What happened, in one line; `None` when no tool was called.
    pub(crate) fn summary(&mut self) -> Option<String> {
        self.write();
        let lost = self.unlogged
            + u64::try_from(self.unwritten.split(|byte| *byte == b'\n').count() - 1).unwrap_or(0);
        if lost > 0 && self.file.is_some() {
            tell(&format!("warning: the log misses {lost} calls, as whoever reads it is too slow"));
        }
        let calls = self.allowed + self.rejected + self.never + self.cancelled + self.unserved;
        if calls == 0 {
            return None;
        }
        let mut text = format!(
            "tidegate mcp: {calls} tool call{}: {} allowed",
            if calls == 1 { "" } else { "s" },
            self.allowed
        );
        if self.waited > 0 {
            let longest =
                duration(Duration::from_millis(self.longest.as_millis().try_into().unwrap_or(u64::MAX)));
            text.push_str(&format!(" ({} after a wait, {longest} at most)", self.waited));
        }
        text.push_str(&format!(", {} rejected", self.rejected));
        if self.at_once > 1 {
            text.push_str(&format!(", {} at once at most", self.at_once));
        }
        for (count, what) in [
            (self.never, "never possible"),
            (self.cancelled, "cancelled while waiting"),
            (self.unserved, "not started when the server ended"),
            (self.shadow, "would have been held up by a limit in shadow mode"),
            (self.hints, "answered with how long to wait"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        Some(text)
    }
}
