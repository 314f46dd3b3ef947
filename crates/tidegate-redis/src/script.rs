//! The script that decides: its text, its arguments and its reply.
//!
//! **Promise.** A script is run alone by the server, so the calls of one batch are decided one after the other, in order,
//! and between those of other clients. The same calls in other batches, or one by one, at the same times are answered the
//! same. A call that is refused in one bucket changes none; a look changes none. A bucket that was under another quota is under
//! that of the call from then on, also if it is refused or looks: else it would go on filling at the old rate, and the wait that
//! was told would not be true.
//!
//! **A full bucket equals an absent key.** A key is written with a time to live of its time to full and a second, so it
//! goes when nobody misses it, and a server that lost all keys has full buckets.
//!
//! **Clock.** The server's, read once. A clock that goes back is held still at the last charge of each bucket, as in
//! [`Algorithm`](tidegate::Algorithm). One that is set ahead by `d` brings at most `min(B, r·d)` too many.
//!
//! **Cost.** On different keys a call is a `GET` and a `SET`, and as much again for the rest. So it has no more arguments than its
//! key: all numbers of a batch are one, in `MessagePack`, which every server since Redis 2.6 and every Valkey can read in Lua.
//!
//! **Source.** The token bucket of Turner (1986), in the form with a level; see `tidegate_core::algorithm::token_bucket`.

use foldhash::{HashMap, HashMapExt as _};
use redis::Cmd;

use crate::units::Units;

mod numbers;

use numbers::Numbers;

/// The text of the script.
pub(crate) const SOURCE: &str = concat!(include_str!("bucket.lua"), include_str!("decide.lua"));

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
pub(crate) struct Batch<'a> {
    keys: Vec<&'a [u8]>,
    /// What is to be decided, for the script.
    plan: Vec<u8>,
    operations: Vec<Operation<'a>>,
    /// For each call the operation that it is part of.
    operation_of: Vec<usize>,
}

/// Calls that are the same, and between which no other call touches their buckets.
#[derive(Debug)]
struct Operation<'a> {
    call: &'a Call,
    /// The indices of its keys.
    buckets: Vec<usize>,
    times: usize,
}

/// A bucket of a batch.
struct Bucket<'a> {
    key: &'a [u8],
    units: Units,
    /// The last operation that has it.
    last: usize,
}

impl<'a> Batch<'a> {
    /// Takes the calls apart, up to the first that means another quota of a bucket than one before it: as many as
    /// [`Self::calls`] says.
    pub(crate) fn new(calls: impl ExactSizeIterator<Item = &'a Call>) -> Self {
        let mut index_of: HashMap<&[u8], usize> = HashMap::with_capacity(calls.len());
        let mut buckets: Vec<Bucket<'a>> = Vec::with_capacity(calls.len());
        let mut operations: Vec<Operation<'a>> = Vec::new();
        let mut operation_of = Vec::with_capacity(calls.len());
        for call in calls {
            let other = |take: &Take| {
                let known = index_of.get(&*take.key).and_then(|index| buckets.get(*index));
                known.is_some_and(|bucket| bucket.units != take.bucket)
            };
            if call.takes.iter().any(other) {
                break;
            }
            let next = operations.len();
            let mut of_call = Vec::with_capacity(call.takes.len());
            for take in &call.takes {
                of_call.push(*index_of.entry(&take.key).or_insert_with(|| {
                    buckets.push(Bucket { key: &take.key, units: take.bucket, last: next });
                    buckets.len() - 1
                }));
            }
            // Only where nothing else came between, on any of its buckets, is it as good as one after the other.
            let last =
                of_call.first().and_then(|first| buckets.get(*first)).map_or(next, |bucket| bucket.last);
            let joins =
                of_call.iter().all(|index| buckets.get(*index).is_some_and(|bucket| bucket.last == last));
            if let Some(same) = operations.get_mut(last)
                && joins
                && same.call == call
            {
                same.times += 1;
                operation_of.push(last);
                continue;
            }
            for index in &of_call {
                if let Some(bucket) = buckets.get_mut(*index) {
                    bucket.last = next;
                }
            }
            operations.push(Operation { call, buckets: of_call, times: 1 });
            operation_of.push(next);
        }
        side_by_side(&mut buckets, &mut operations);
        let keys = buckets.iter().map(|bucket| bucket.key).collect();
        Self { keys, plan: plan(&buckets, &operations), operations, operation_of }
    }

    /// How many calls are in it.
    pub(crate) const fn calls(&self) -> usize {
        self.operation_of.len()
    }

    /// The command that runs the script of this SHA-1.
    pub(crate) fn command(&self, sha: &str) -> Cmd {
        let bytes = self.keys.iter().map(|key| key.len()).sum::<usize>() + self.plan.len() + sha.len();
        let mut command = Cmd::with_capacity(4 + self.keys.len(), 20 + bytes);
        command.arg("EVALSHA").arg(sha).arg(self.keys.len()).arg(&*self.keys).arg(&*self.plan);
        command
    }

    /// The answers in order, each `None` when a key of the call holds something else; `None` when the reply is not one of this
    /// script to these calls.
    pub(crate) fn answers(&self, reply: &[i64]) -> Option<Vec<Option<Verdict>>> {
        let (behind, rest) = reply.split_first()?;
        let (lags, mut rest) = rest.split_at_checked(usize::try_from(*behind).ok()?)?;
        let mut told = Vec::with_capacity(self.operations.len());
        for operation in &self.operations {
            let (allowed, after) = rest.split_first()?;
            let (levels, after) = after.split_at_checked(operation.buckets.len())?;
            let allowed = match allowed {
                -1 => None,
                allowed => Some(usize::try_from(*allowed).ok()?),
            };
            told.push((allowed, levels, 0_usize));
            rest = after;
        }
        if !rest.is_empty() || !(lags.is_empty() || lags.len() == self.keys.len()) {
            return None;
        }
        let mut answers = Vec::with_capacity(self.operation_of.len());
        for index in &self.operation_of {
            let operation = self.operations.get(*index)?;
            let (allowed, levels, before) = told.get_mut(*index)?;
            let Some(allowed) = allowed else {
                answers.push(None);
                continue;
            };
            let charged = if operation.call.charge { (*before).min(*allowed) } else { 0 };
            let each = operation.call.takes.iter().zip(*levels).zip(&operation.buckets);
            let level = |((take, level), bucket): ((&Take, &i64), &usize)| {
                let units = u64::try_from(*level).ok()?;
                // What the calls before this one took; a limit in shadow is charged as long as it can be.
                let possible = units.checked_div(take.cost).unwrap_or(0);
                let times = u64::try_from(charged).ok()?.min(possible);
                let lag = u64::try_from(lags.get(*bucket).copied().unwrap_or(0)).ok()?;
                Some(Level { units: units - times * take.cost, lag })
            };
            let levels = each.map(level).collect::<Option<Vec<_>>>()?;
            answers.push(Some(Verdict { allowed: *before < *allowed, levels }));
            *before += 1;
        }
        Some(answers)
    }
}

/// Sorts the buckets so that those of one quota are side by side.
fn side_by_side(buckets: &mut Vec<Bucket<'_>>, operations: &mut [Operation<'_>]) {
    if buckets.is_sorted_by_key(quota) {
        return;
    }
    let mut sorted: Vec<(usize, Bucket<'_>)> = std::mem::take(buckets).into_iter().enumerate().collect();
    sorted.sort_by_key(|(_, bucket)| quota(bucket));
    let mut places = vec![0; sorted.len()];
    for (place, (index, bucket)) in sorted.into_iter().enumerate() {
        if let Some(of) = places.get_mut(index) {
            *of = place;
        }
        buckets.push(bucket);
    }
    for index in operations.iter_mut().flat_map(|operation| &mut operation.buckets) {
        *index = places.get(*index).copied().unwrap_or(*index);
    }
}

/// What the server knows of a quota.
const fn quota(bucket: &Bucket<'_>) -> (u64, u64) {
    (bucket.units.capacity(), bucket.units.rate())
}

/// What the script is to do with its keys.
fn plan(buckets: &[Bucket<'_>], operations: &[Operation<'_>]) -> Vec<u8> {
    let mut plan = Numbers::with_capacity(4 + 4 * operations.len());
    let quotas = || buckets.chunk_by(|a, b| quota(a) == quota(b));
    plan.push(signed(quotas().count()));
    for alike in quotas() {
        if let Some((capacity, rate)) = alike.first().map(quota) {
            plan.push(signed(alike.len()));
            plan.push(capacity.cast_signed());
            plan.push(rate.cast_signed());
        }
    }
    for operation in operations {
        let times = signed(operation.times);
        plan.push(if operation.call.charge { times } else { -times });
        plan.push(signed(operation.buckets.len()));
        for (take, place) in operation.call.takes.iter().zip(&operation.buckets) {
            let place = signed(*place + 1);
            plan.push(if take.shadow { -place } else { place });
            plan.push(take.cost.cast_signed());
        }
    }
    plan.packed()
}

/// Counts and indices are far below 2^63.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
