//! What holds for any bytes of a client, however they are cut into reads. The tests below ask it of bytes that are made at
//! random, and `fuzz/fuzz_targets/resp.rs` of bytes that libFuzzer looks for.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate_http::layer::Key;
use tidegate_http::{KeyBy, RateLimit, RequestLimit};

use super::check::Checks;
use super::codec::request::{ARGS_MAX, Args, ProtocolError, REQUEST_MAX, read, write};
use super::counts::{Counters, Tally};
use super::server::{Bounds, Shared};
use super::session::{OUTPUT_MAX, Session, Then};
use super::throttle::Table;

/// The requests of an input, how much of it they take, and the error that ended it.
type Requests = (Vec<Vec<Vec<u8>>>, usize, Option<ProtocolError>);

/// What a client is answered, and how much of the input is done with.
type Answers = (Vec<u8>, usize);

/// The longest answer to one request: its own bytes, as of `ECHO`, or what `INFO` and `HELLO` say.
const ANSWER_MAX: usize = REQUEST_MAX + 64;

/// The input and where it is cut, from bytes that somebody looks for: the first says how many cuts there are, two say where
/// each is, and the rest is the input. In it 0xff stands for as many letters as the two bytes behind it say, so that requests
/// at the bounds are found among short inputs.
#[cfg(fuzzing)]
#[must_use]
pub fn unfolded(data: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let Some((&cuts, mut rest)) = data.split_first() else { return <_>::default() };
    let mut at = Vec::new();
    for _ in 0..cuts % 8 {
        let [high, low, after @ ..] = rest else { break };
        at.push(usize::from(u16::from_be_bytes([*high, *low])));
        rest = after;
    }
    let mut input = Vec::new();
    loop {
        rest = match rest {
            [] => return (input, at),
            [0xff, high, low, after @ ..] => {
                let letters = usize::from(u16::from_be_bytes([*high, *low])) % (2 * REQUEST_MAX);
                input.resize(input.len() + letters, b'a');
                after
            }
            [byte, after @ ..] => {
                input.push(*byte);
                after
            }
        }
    }
}

/// The same requests and the same answers however the input is cut, one answer for each request, within the bounds.
///
/// # Panics
///
/// When that does not hold.
pub fn check(input: &[u8], cuts: &[usize], has_password: bool) {
    let whole = read_all(input);
    assert_eq!(read_in_pieces(input, cuts), whole);
    for args in &whole.0 {
        let mut written = Vec::new();
        write(args, &mut written);
        if written.len() <= REQUEST_MAX {
            assert_eq!(read_all(&written), (vec![args.clone()], written.len(), None));
        }
    }
    let answers = answered(input, &[], has_password);
    assert_eq!(answered(input, cuts, has_password), answers);
}

/// All requests of an input, what is left of it, and the error that ended it.
fn read_all(input: &[u8]) -> Requests {
    let mut args = Args::new();
    let (mut requests, mut at) = (Vec::new(), 0);
    loop {
        match read(&input[at..], &mut args) {
            Ok(Some(used)) => {
                assert!(used > 0 && used <= REQUEST_MAX && args.get().len() <= ARGS_MAX);
                requests.push(args.get().iter().map(|arg| arg.to_vec()).collect());
                at += used;
            }
            Ok(None) => {
                assert!(input.len() - at < REQUEST_MAX, "what is waited for has a bound");
                return (requests, at, None);
            }
            Err(error) => return (requests, at, Some(error)),
        }
    }
}

/// The same as it comes in pieces.
fn read_in_pieces(input: &[u8], cuts: &[usize]) -> Requests {
    let (mut all, mut at) = (Vec::new(), 0);
    for end in ends(input, cuts) {
        let (requests, used, error) = read_all(&input[at.min(end)..end]);
        all.extend(requests);
        at = at.min(end) + used;
        if error.is_some() {
            return (all, at, error);
        }
    }
    (all, at, None)
}

/// Where the pieces end.
fn ends(input: &[u8], cuts: &[usize]) -> Vec<usize> {
    let ends = cuts.iter().map(|cut| cut % (input.len() + 1)).chain([input.len()]);
    let mut ends: Vec<usize> = ends.collect();
    ends.sort_unstable();
    ends
}

/// The answers to an input that comes in pieces, as a connection gives them.
fn answered(input: &[u8], cuts: &[usize], has_password: bool) -> Answers {
    let shared = shared(has_password);
    let mut session = Session::new(1, &shared);
    let (mut all, mut replies, mut used) = (Vec::new(), 0, 0);
    let mut tally = Tally::default();
    for end in ends(input, cuts) {
        loop {
            let mut out = Vec::new();
            let before = tally.commands;
            let answered = session.answer_all(&input[used..end], &mut out, &shared, &mut tally);
            used += answered.used;
            assert!(used <= end && out.len() <= OUTPUT_MAX + ANSWER_MAX);
            let count = replies_in(&out);
            all.extend(out);
            replies += count;
            match answered.then {
                Then::Read => {
                    assert!(end - used < REQUEST_MAX, "what is kept has a bound");
                    break;
                }
                Then::Write => assert!(tally.commands > before, "there is something to write"),
                Then::Close => {
                    // What is no request has an answer too, the last.
                    assert!(replies == tally.commands || replies == tally.commands + 1);
                    return (all, input.len());
                }
                Then::Decide => panic!("limits in memory answer at once"),
            }
        }
        assert_eq!(replies, tally.commands);
    }
    (all, used)
}

fn shared(has_password: bool) -> Shared {
    let clock = ManualClock::new();
    let limits = RateLimit::builder()
        .limit(RequestLimit::new("calls", "1/s burst 3").key(KeyBy::header("x-account")).capacity(64))
        .limit(RequestLimit::new("all", "2/s").capacity(1))
        .clock(clock.clone());
    Shared {
        // So many that none is forgotten for want of room, since which one that is depends on a secret.
        table: Table::new(2048),
        clock: (&clock).into(),
        checks: limits.build().ok().map(|limits| Checks { limits, key_of: Arc::new(key_of) }),
        password: has_password.then(|| Box::from(&b"secret"[..])),
        counters: Counters::default(),
        bounds: Bounds::default(),
    }
}

fn key_of(_: &str, parts: &[String]) -> Result<Key<'static>, String> {
    Ok(parts.first().map_or(Key::everyone(), |key| Key::from(key.clone())))
}

/// How many whole answers these bytes are, and nothing else.
fn replies_in(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while !bytes.is_empty() {
        bytes = after_reply(bytes);
        count += 1;
    }
    count
}

/// What follows the first answer.
fn after_reply(bytes: &[u8]) -> &[u8] {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n");
    let end = end.unwrap_or_else(|| panic!("an answer has no end: {}", bytes.escape_ascii()));
    let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
    let number = || -> i64 {
        let text = str::from_utf8(&line[1..]).unwrap_or_default();
        text.parse().unwrap_or_else(|_| panic!("no number: {}", line.escape_ascii()))
    };
    let count = || usize::try_from(number()).unwrap_or(0);
    match line.first() {
        Some(b'+' | b'-') => rest,
        Some(b'_') if line.len() == 1 => rest,
        Some(b':') => {
            number();
            rest
        }
        Some(b'$') if number() == -1 => rest,
        Some(b'$') => {
            assert_eq!(&rest[count()..count() + 2], b"\r\n");
            &rest[count() + 2..]
        }
        Some(b'*') => (0..count()).fold(rest, |rest, _| after_reply(rest)),
        Some(b'%') => (0..2 * count()).fold(rest, |rest, _| after_reply(rest)),
        _ => panic!("no answer begins so: {}", line.escape_ascii()),
    }
}

#[cfg(test)]
mod tests;
