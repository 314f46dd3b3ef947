//! One command: its turn, its end, and perhaps another turn.

use std::ffi::OsString;

use super::program::{self, cannot_start};
use super::signals::{Signals, To, is_from_terminal, pass_on};
use super::turn::Turns;
use super::{Retries, not_in_time};
use crate::fault::Outcome;

/// Runs the command of `words` when its turn comes.
pub(super) async fn run(
    words: &[OsString],
    turns: &Turns,
    retries: &Retries,
    mut signals: Signals,
) -> anyhow::Result<Outcome> {
    let mut again = 0;
    loop {
        let turn = tokio::select! {
            biased;
            // What waits was not charged.
            signal = signals.next() => return Ok(Outcome::Signal(signal.as_raw())),
            turn = turns.shown() => turn?,
        };
        // A place in flight is held until the command has ended.
        let _place = match turn {
            Ok(place) => place,
            Err(late) => return Ok(not_in_time(&late)),
        };
        let mut child = match program::command(words).spawn() {
            Ok(child) => child,
            Err(error) => return Ok(cannot_start(words, error).tell()),
        };
        let mut signalled = false;
        let end = loop {
            tokio::select! {
                end = child.wait() => break end?,
                signal = signals.next() => {
                    signalled = true;
                    if !is_from_terminal(signal) {
                        pass_on(&child, signal, To::Command);
                    }
                }
            }
        };
        // Who was told to stop does not begin anew.
        if signalled || !retries.again(program::status(end), again) {
            return Ok(program::outcome(end));
        }
        again += 1;
    }
}
