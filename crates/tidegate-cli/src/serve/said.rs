//! What a server says on stdout.
//!
//! Whoever started it reads the first line, and may read no other or close its end. Neither holds up or ends the server: lines are
//! written by a thread of their own, and those for which there is no room are left out.

use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// How many lines wait to be written. A pipe that is full has room for some hundred more.
const WAITING_MAX: usize = 64;

/// How long the end waits for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

static LINES: OnceLock<SyncSender<Said>> = OnceLock::new();

enum Said {
    Line(String),
    /// What was said before is written.
    Written(SyncSender<()>),
}

/// Writes a line, also into a pipe, without waiting for it: somebody may wait for the line, or nobody.
pub(super) fn say(line: &str) {
    let _ = lines().try_send(Said::Line(line.to_owned()));
}

/// Waits until what was said is written, if it is read.
pub(super) fn wait_until_said() {
    let (written, is_written) = sync_channel(1);
    if lines().try_send(Said::Written(written)).is_ok() {
        let _ = is_written.recv_timeout(PATIENCE);
    }
}

fn lines() -> &'static SyncSender<Said> {
    LINES.get_or_init(|| {
        let (lines, said) = sync_channel(WAITING_MAX);
        // Without the thread nothing is said, and all else goes on.
        let _ = thread::Builder::new().name("stdout".to_owned()).spawn(move || write(&said));
        lines
    })
}

fn write(said: &Receiver<Said>) {
    let mut stdout = io::stdout();
    for said in said {
        match said {
            // In one piece: whoever reads a part of it may close its end.
            Said::Line(line) => {
                let _ = stdout.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdout.flush());
            }
            Said::Written(written) => {
                let _ = written.send(());
            }
        }
    }
}
