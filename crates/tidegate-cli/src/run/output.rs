//! What the commands of `--each` print, in whole lines.
//!
//! One thread writes, so a reader that is slow keeps nobody from seeing a signal. Each command has two buffers of one
//! line. A line that does not fit goes out in pieces, and until it ends no other command prints. Where the reader is
//! slower than the commands, the buffers fill, and the commands wait in their writes.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use indicatif::ProgressBar;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};

/// The longest line that is kept until it ends.
const LINE: usize = 64 * 1024;

/// How many pieces wait to be written.
const AHEAD: usize = 4;

/// Which of the two outputs of a command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Out,
    Err,
}

#[derive(Debug)]
struct Piece {
    stream: Stream,
    bytes: Vec<u8>,
}

/// The output of a run.
#[derive(Debug)]
pub(super) struct Output {
    pieces: mpsc::Sender<Piece>,
    /// Who holds it may print.
    turn: Arc<Mutex<()>>,
    written: oneshot::Receiver<io::Result<()>>,
}

impl Output {
    /// Starts the thread that writes. It moves the line of `progress` out of the way.
    pub(super) fn start(progress: ProgressBar) -> Self {
        let (pieces, received) = mpsc::channel(AHEAD);
        let (done, written) = oneshot::channel();
        thread::spawn(move || {
            let result = write_all(received, &progress);
            // Nobody wants to know after a second signal.
            let _ = done.send(result);
        });
        Self { pieces, turn: Arc::default(), written }
    }

    /// The output of one more command.
    pub(super) fn of_command(&self) -> Printed {
        Printed {
            pieces: self.pieces.clone(),
            turn: Arc::clone(&self.turn),
            mid_line: Mutex::new(MidLine { turn: None, out: false, err: false }),
        }
    }

    /// Waits until nobody reads any more.
    pub(super) async fn closed(&self) {
        self.pieces.closed().await;
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) -> io::Result<()> {
        drop(self.pieces);
        self.written.await.unwrap_or(Ok(()))
    }
}

fn write_all(mut pieces: mpsc::Receiver<Piece>, progress: &ProgressBar) -> io::Result<()> {
    while let Some(Piece { stream, bytes }) = pieces.blocking_recv() {
        progress.suspend(|| match stream {
            Stream::Out => write(&mut io::stdout().lock(), &bytes),
            Stream::Err => write(&mut io::stderr().lock(), &bytes),
        })?;
    }
    Ok(())
}

fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The output of one command.
#[derive(Debug)]
pub(super) struct Printed {
    pieces: mpsc::Sender<Piece>,
    turn: Arc<Mutex<()>>,
    mid_line: Mutex<MidLine>,
}

/// Whether the command is in the middle of a long line. Both of its outputs have the turn then, so that the one that is
/// not in a line cannot hold up the other.
#[derive(Debug)]
struct MidLine {
    turn: Option<OwnedMutexGuard<()>>,
    out: bool,
    err: bool,
}

impl Printed {
    /// Prints what comes `from` the command, until it ends or nobody reads any more.
    pub(super) async fn print(&self, stream: Stream, mut from: impl AsyncRead + Unpin) {
        let mut line = Vec::new();
        let mut is_mid_line = false;
        loop {
            let room = u64::try_from(LINE - line.len()).unwrap_or(0);
            let old = line.len();
            line.reserve(usize::min(8 * 1024, LINE - old));
            // What cannot be read any more has ended.
            let read = (&mut from).take(room).read_buf(&mut line).await.unwrap_or(0);
            let rest = match line[old..].iter().rposition(|byte| *byte == b'\n') {
                Some(at) => line.split_off(old + at + 1),
                None if read == 0 && (is_mid_line || !line.is_empty()) => {
                    line.push(b'\n');
                    Vec::new()
                }
                None if read == 0 => return,
                None if line.len() < LINE => continue,
                None => Vec::new(),
            };
            is_mid_line = line.last() != Some(&b'\n');
            let bytes = std::mem::replace(&mut line, rest);
            if !self.send(Piece { stream, bytes }, is_mid_line).await {
                return;
            }
        }
    }

    /// Sends a piece to be written, in its turn. Whether somebody takes it.
    async fn send(&self, piece: Piece, is_mid_line: bool) -> bool {
        let mut mid_line = self.mid_line.lock().await;
        if mid_line.turn.is_none() {
            mid_line.turn = Some(Arc::clone(&self.turn).lock_owned().await);
        }
        match piece.stream {
            Stream::Out => mid_line.out = is_mid_line,
            Stream::Err => mid_line.err = is_mid_line,
        }
        let sent = self.pieces.send(piece).await.is_ok();
        if !mid_line.out && !mid_line.err {
            mid_line.turn = None;
        }
        sent
    }
}
