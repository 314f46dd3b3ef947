//! The script that decides: its text, its arguments and its reply.
//!
//! **Promise.** A script is run alone by the server, so the calls of one batch are decided one after the other, in order,
//! and between those of other clients. The same calls in other batches, or one by one, at the same times are answered the
//! same. A call that is refused in one bucket changes none; a look changes none.
//!
//! **A full bucket equals an absent key.** A key is written with a time to live of its time to full and a second, so it
//! goes when nobody misses it, and a server that lost all keys has full buckets.
//!
//! **Clock.** The server's, read once. A clock that goes back is held still at the last charge of each bucket, as in
//! [`Algorithm`](tidegate::Algorithm). One that is set ahead by `d` brings at most `min(B, r·d)` too many.
//!
//! **Source.** The token bucket of Turner (1986), in the form with a level; see `tidegate_core::algorithm::token_bucket`.

use std::collections::HashMap;

use redis::Cmd;

use crate::units::Units;

/// The text of the script.
pub(crate) const SOURCE: &str = include_str!("decide.lua");

/// One call: what it costs in which buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Whether it is charged if it is allowed, or only looked at.
    pub(crate) charge: bool,
    /// No bucket twice.
    pub(crate) takes: Vec<Take>,
}

/// What a call takes from one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Take {
    pub(crate) key: Box<[u8]>,
    pub(crate) bucket: Units,
    /// In units.
    pub(crate) cost: u64,
    /// Whether the bucket refuses nothing.
    pub(crate) shadow: bool,
}

/// The answer to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    /// For each bucket of the call, before it was charged.
    pub(crate) levels: Vec<Level>,
}

/// What a bucket held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    /// In units.
    pub(crate) units: u64,
    /// How far the server's clock stands behind the last charge, in microseconds.
    pub(crate) lag: u64,
}

/// Calls that go in one script, and which bucket is which of its keys.
#[derive(Debug)]
pub(crate) struct Batch {
    keys: usize,
    /// For each call the indices of its keys.
    calls: Vec<Vec<usize>>,
    /// What follows `EVALSHA` and the name of the script.
    command: Vec<Argument>,
}

/// A part of the command.
#[derive(Debug)]
enum Argument {
    Bytes(Box<[u8]>),
    Number(i64),
}

impl Batch {
    /// Takes the calls apart. All that name a bucket must mean the same quota: the store sees to that.
    pub(crate) fn new<'a>(calls: impl ExactSizeIterator<Item = &'a Call>) -> Self {
        let mut index_of: HashMap<&[u8], usize> = HashMap::new();
        let mut buckets = Vec::new();
        let mut keys = Vec::new();
        let mut operations = Vec::new();
        let mut indices = Vec::with_capacity(calls.len());
        for call in calls {
            operations.extend([i64::from(call.charge), signed(call.takes.len())].map(Argument::Number));
            let mut of_call = Vec::with_capacity(call.takes.len());
            for take in &call.takes {
                let index = *index_of.entry(&take.key).or_insert_with(|| {
                    keys.push(Argument::Bytes(take.key.clone()));
                    buckets.extend(
                        [take.bucket.capacity(), take.bucket.rate()]
                            .map(|n| Argument::Number(n.cast_signed())),
                    );
                    keys.len() - 1
                });
                let place = signed(index + 1);
                operations.push(Argument::Number(if take.shadow { -place } else { place }));
                operations.push(Argument::Number(take.cost.cast_signed()));
                of_call.push(index);
            }
            indices.push(of_call);
        }
        let count = keys.len();
        let mut command = Vec::with_capacity(1 + count + buckets.len() + operations.len());
        command.push(Argument::Number(signed(count)));
        command.extend(keys);
        command.extend(buckets);
        command.extend(operations);
        Self { keys: count, calls: indices, command }
    }

    /// The command that runs the script of this SHA-1.
    pub(crate) fn command(&self, sha: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha);
        for argument in &self.command {
            match argument {
                Argument::Bytes(bytes) => command.arg(&**bytes),
                Argument::Number(number) => command.arg(*number),
            };
        }
        command
    }

    /// The answers in order; `None` when the reply is not one of this script to these calls.
    pub(crate) fn answers(&self, reply: &[i64]) -> Option<Vec<Verdict>> {
        let (lags, mut rest) = reply.split_at_checked(self.keys)?;
        let mut answers = Vec::with_capacity(self.calls.len());
        for indices in &self.calls {
            let (verdict, after) = rest.split_first()?;
            let (units, after) = after.split_at_checked(indices.len())?;
            let level = |(units, index): (&i64, &usize)| {
                let (units, lag) = (u64::try_from(*units).ok()?, u64::try_from(*lags.get(*index)?).ok()?);
                Some(Level { units, lag })
            };
            let levels = units.iter().zip(indices).map(level).collect::<Option<Vec<_>>>()?;
            answers.push(Verdict { allowed: *verdict == 1, levels });
            rest = after;
        }
        rest.is_empty().then_some(answers)
    }
}

/// Counts and indices are far below 2^63.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
