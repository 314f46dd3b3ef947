//! The arguments of `--each`, read from stdin as they are needed.

use std::ffi::OsString;
use std::io::{self, BufRead, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::thread;

use tokio::sync::mpsc;

use crate::fault::Hint;

/// The longest argument. Linux takes none that is longer (`MAX_ARG_STRLEN`, with its zero byte).
const LONGEST: usize = 128 * 1024 - 1;

/// How many are read ahead.
const AHEAD: usize = 64;

/// The arguments in stdin, each ended by `end`. A fault is the last item.
pub(super) fn from_stdin(end: u8) -> mpsc::Receiver<anyhow::Result<OsString>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    // A read of stdin cannot be given up; a thread of its own keeps nobody from ending.
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut number = 0;
        while let Some(argument) = next(&mut stdin, end, &mut number).transpose() {
            let is_last = argument.is_err();
            if sender.blocking_send(argument).is_err() || is_last {
                break;
            }
        }
    });
    receiver
}

/// The next argument that is not empty. `number` counts all of them.
fn next(from: &mut impl BufRead, end: u8, number: &mut u64) -> anyhow::Result<Option<OsString>> {
    loop {
        let mut bytes = Vec::new();
        let most = u64::try_from(LONGEST + 1)?;
        let read = from.take(most).read_until(end, &mut bytes);
        read.map_err(|error| {
            Hint::error(format!("cannot read the arguments from stdin: {error}"), "pipe them in, one a line")
        })?;
        if bytes.is_empty() {
            return Ok(None);
        }
        *number += 1;
        if bytes.last() == Some(&end) {
            bytes.pop();
        }
        if bytes.len() > LONGEST {
            return Err(Hint::error(
                format!("argument {number} is longer than the {LONGEST} bytes that a command can get"),
                "give the command a file to read instead",
            ));
        }
        if bytes.contains(&0) {
            return Err(Hint::error(
                format!("argument {number} has a zero byte in it, and no command can get one"),
                "add -0 if zero bytes end the arguments",
            ));
        }
        if !bytes.is_empty() {
            return Ok(Some(OsString::from_vec(bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut text: &[u8], end: u8) -> Vec<String> {
        let mut number = 0;
        let mut all = Vec::new();
        loop {
            match next(&mut text, end, &mut number) {
                Ok(Some(argument)) => all.push(argument.into_string().unwrap()),
                Ok(None) => return all,
                Err(error) => {
                    all.push(format!("error: {error}"));
                    return all;
                }
            }
        }
    }

    #[test]
    fn arguments_are_lines_or_end_with_a_zero_byte() {
        assert_eq!(read(b"a b\n\n c\nd", b'\n'), ["a b", " c", "d"]);
        assert_eq!(read(b"a\nb\0\0c\0", 0), ["a\nb", "c"]);
        assert!(read(b"", b'\n').is_empty());
        assert_eq!(
            read(b"a\n\nb\0c\n", b'\n'),
            ["a", "error: argument 3 has a zero byte in it, and no command can get one"]
        );
        let longest = vec![b'x'; LONGEST];
        assert_eq!(read(&longest, b'\n')[0].len(), LONGEST);
        assert_eq!(read(&[&longest[..], b"\ny"].concat(), b'\n')[1], "y");
        assert_eq!(
            read(&[&longest[..], b"x\n"].concat(), b'\n'),
            ["error: argument 1 is longer than the 131071 bytes that a command can get"]
        );
    }
}
