//! Another process that is talked to, stopped and killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command};

/// What a process says, line by line.
pub(crate) struct Talk {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Talk {
    pub(crate) fn to(mut child: Child) -> Self {
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        Self { child, says, hears }
    }

    /// The number or word after `what`, as soon as it is said; `None` at the end.
    pub(crate) fn next(&mut self, what: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, rest)) = line.split_once(what) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.hears, "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
