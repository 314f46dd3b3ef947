//! The file of a budget, byte for byte, and the pure step from one state in it to the next.
//!
//! 256 bytes; numbers are little-endian.
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 16 | `tidegate budget` and a line feed |
//! | 16 | 4 | version of the format, 1 |
//! | 20 | 36 | zero |
//! | 56 | 8 | checksum of the 56 bytes before |
//! | 64 | 96 | slot 0: the state if its sequence number is even |
//! | 160 | 96 | slot 1: the state if its sequence number is odd |
//!
//! | at in a slot | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | sequence number |
//! | 8 | 8 | quota: count |
//! | 16 | 8 | quota: nanoseconds in which the count comes |
//! | 24 | 8 | quota: burst |
//! | 32 | 8 | places in flight, 0 when none were set |
//! | 40 | 16 | the boot's id |
//! | 56 | 16 | `TAT` of the token bucket, in its units |
//! | 72 | 8 | when it was last charged, nanoseconds since the boot |
//! | 80 | 8 | zero |
//! | 88 | 8 | checksum of the 88 bytes before |
//!
//! **One write.** The header is never written again. All that changes is in a slot, and a change is one write of the
//! older slot. If it is cut off anywhere, the checksum fails and the other slot is the state, as it was before: the
//! caller whose write was cut off got no answer, so what is forgotten was never used.
//!
//! **Checksum.** FNV-1a with 64 bits: ten lines, and any other program can compute it. It finds every change of one
//! byte; a mixture of two states passes by chance once in 2⁶⁴. It is against accidents, not against malice: who may
//! write the file may spend the budget anyway.
//!
//! **Limit of it.** If the newest slot is damaged later, and not by a write that was cut off, that looks the same: the
//! state before the last charge is taken, and one call's cost is forgotten.

use std::time::Duration;

use tidegate_core::algorithm::token_bucket::Tat;
use tidegate_core::{Algorithm, Decision, Kind, Quota, State, Step};

use super::{BootId, Moment};

/// Bytes in a file.
pub(super) const LENGTH: usize = 256;
/// The version of the format that is written and read.
pub(super) const VERSION: u32 = 1;

const MAGIC: [u8; 16] = *b"tidegate budget\n";
const HEADER: usize = 64;
const SLOT: usize = 96;
const CHECKSUM: usize = 8;

/// What a budget remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Counts the changes. 2⁶⁴ changes are not reached: at one in a microsecond they take 584,000 years.
    pub(super) sequence: u64,
    pub(super) quota: Quota,
    /// Places in flight; 0 when none were set.
    pub(super) max_in_flight: u64,
    boot: BootId,
    state: State,
}

/// Why a file cannot be read as a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    Foreign,
    Length,
    Version(u32),
    Damaged,
}

/// The bucket of `quota`.
pub(super) fn bucket(quota: Quota) -> Algorithm {
    Algorithm::new(Kind::TokenBucket, quota)
}

impl Record {
    /// A full bucket.
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            sequence: 0,
            quota,
            max_in_flight: 0,
            boot: BootId::UNKNOWN,
            state: State::from_token_bucket(0, Tat::default()),
        }
    }

    /// The state as it is at `now`: that of another boot is forgotten, since its times mean nothing in this one.
    fn at(&self, now: Moment) -> State {
        let latest = self.state.as_token_bucket().map_or(0, |(latest, _)| latest);
        let clock_restarted = now.boot == BootId::UNKNOWN && now.since_boot_ns < latest;
        if self.boot != now.boot || clock_restarted {
            return State::from_token_bucket(0, Tat::default());
        }
        self.state.clone()
    }

    /// Decides a call of `cost` at `now`. `Some` is the next record, to be written; nothing is written for a call that
    /// is rejected or costs nothing. `bucket` is the one of [`Self::quota`].
    pub(super) fn step(&self, bucket: &Algorithm, now: Moment, cost: u64) -> (Option<Self>, Decision) {
        let (state, decision) = bucket.step(self.at(now), now.since_boot_ns, cost);
        let next = (decision.is_allowed() && cost > 0).then(|| Self { boot: now.boot, state, ..self.next() });
        (next, decision)
    }

    /// The record with another quota, by the rule of [`TokenBucket::carry_over`](tidegate_core::algorithm::TokenBucket::carry_over).
    pub(super) fn with_quota(&self, quota: Quota, now: Moment) -> Self {
        let state = self.at(now);
        let state = match (bucket(self.quota), bucket(quota), state.as_token_bucket()) {
            (Algorithm::TokenBucket(old), Algorithm::TokenBucket(new), Some((latest, tat))) => {
                let time = latest.max(now.since_boot_ns);
                State::from_token_bucket(time, new.carry_over(&old, tat, time))
            }
            _ => state,
        };
        Self { quota, boot: now.boot, state, ..self.next() }
    }

    /// The record with another number of places.
    pub(super) fn with_max_in_flight(&self, max: u64) -> Self {
        Self { max_in_flight: max, ..self.next() }
    }

    fn next(&self) -> Self {
        Self { sequence: self.sequence.wrapping_add(1), ..self.clone() }
    }

    /// A whole file that holds this record, in both slots.
    pub(super) fn file(&self) -> [u8; LENGTH] {
        let mut file = [0; LENGTH];
        let mut header = Writer::new(&mut file[..HEADER]);
        header.put(&MAGIC);
        header.put(&VERSION.to_le_bytes());
        header.seal();
        for record in [self, &self.next()] {
            let (at, slot) = record.slot();
            file[at..at + SLOT].copy_from_slice(&slot);
        }
        file
    }

    /// Where this record goes in the file, and its bytes.
    pub(super) fn slot(&self) -> (usize, [u8; SLOT]) {
        let (latest, tat) = self.state.as_token_bucket().unwrap_or_default();
        let mut slot = [0; SLOT];
        let mut writer = Writer::new(&mut slot);
        writer.put(&self.sequence.to_le_bytes());
        writer.put(&self.quota.count().to_le_bytes());
        writer.put(&self.quota.per_ns().get().to_le_bytes());
        writer.put(&self.quota.burst().to_le_bytes());
        writer.put(&self.max_in_flight.to_le_bytes());
        writer.put(&self.boot.0);
        writer.put(&tat.units().to_le_bytes());
        writer.put(&latest.to_le_bytes());
        writer.seal();
        (HEADER + if self.is_odd() { SLOT } else { 0 }, slot)
    }

    /// Reads the newest whole record. `file` may hold one byte more than [`LENGTH`], to see that it is too long.
    pub(super) fn read(file: &[u8]) -> Result<Self, Unreadable> {
        if !file.starts_with(&MAGIC) {
            return Err(Unreadable::Foreign);
        }
        // The version comes before the length: another version may have another length.
        let version = file.get(MAGIC.len()..MAGIC.len() + 4).ok_or(Unreadable::Length)?;
        let version = u32::from_le_bytes(version.try_into().map_err(|_| Unreadable::Length)?);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let file: &[u8; LENGTH] = file.try_into().map_err(|_| Unreadable::Length)?;
        let (header, slots) = file.split_at(HEADER);
        if !is_sealed(header) {
            return Err(Unreadable::Damaged);
        }
        let (even, odd) = slots.split_at(SLOT);
        let sequence = |slot| Reader(slot).number();
        // A slot in the place of the other was not written by us.
        let read = |is_odd| {
            Self::from_slot(if is_odd { odd } else { even }).filter(|record| record.is_odd() == is_odd)
        };
        // Only the newer one is checked, if it is whole: the older one does not count then.
        let newer = sequence(odd) > sequence(even);
        read(newer).or_else(|| read(!newer)).ok_or(Unreadable::Damaged)
    }

    fn is_odd(&self) -> bool {
        !self.sequence.is_multiple_of(2)
    }

    fn from_slot(slot: &[u8]) -> Option<Self> {
        if !is_sealed(slot) {
            return None;
        }
        let mut reader = Reader(slot);
        let sequence = reader.number()?;
        let (count, per, burst) = (reader.number()?, reader.number()?, reader.number()?);
        let quota = Quota::new(count, Duration::from_nanos(per)).ok()?.with_burst(burst).ok()?;
        let max_in_flight = reader.number()?;
        let boot = BootId(reader.take()?);
        let tat = Tat::from_units(u128::from_le_bytes(reader.take()?));
        let state = State::from_token_bucket(reader.number()?, tat);
        Some(Self { sequence, quota, max_in_flight, boot, state })
    }
}

/// Writes fields one after the other.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    /// Writes the checksum into the last bytes.
    fn seal(self) {
        let (content, checksum) = self.bytes.split_at_mut(self.bytes.len() - CHECKSUM);
        checksum.copy_from_slice(&fnv_1a(content).to_le_bytes());
    }
}

/// Reads fields one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

fn is_sealed(bytes: &[u8]) -> bool {
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    checksum == fnv_1a(content).to_le_bytes()
}

/// FNV-1a with 64 bits (Fowler, Noll, Vo).
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn at(since_boot_ns: u64) -> Moment {
        Moment { boot: BootId([7; 16]), since_boot_ns }
    }

    /// A record of `quota` after one call of `cost` at `now`.
    fn spent(quota: &str, now: Moment, cost: u64) -> Record {
        let record = Record::new(quota.parse().unwrap());
        record.step(&bucket(record.quota), now, cost).0.unwrap()
    }

    fn remaining(record: &Record, now: Moment) -> u64 {
        record.step(&bucket(record.quota), now, 0).1.remaining()
    }

    #[test]
    fn what_is_written_is_read() {
        let record = spent("7 per 3s burst 20", at(u64::MAX), 13).with_max_in_flight(u64::MAX);
        for record in [Record::new("1/s".parse().unwrap()), record.clone(), record.next()] {
            let file = record.file();
            // A new file has the record in both slots, the second of them as the next one.
            assert_eq!(Record::read(&file), Ok(record.next()));
            let (at, slot) = record.slot();
            assert_eq!(file[at..at + SLOT], slot);
        }
        assert_eq!(fnv_1a(b""), 0xcbf2_9ce4_8422_2325);
        // From the test vectors of its authors.
        assert_eq!(fnv_1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_change_of_quota_at_an_earlier_time_brings_nothing() {
        let record = spent("1/s burst 10", at(100 * S), 10);
        for now in [at(90 * S), at(100 * S)] {
            let changed = record.with_quota("2/s burst 10".parse().unwrap(), now);
            assert_eq!(remaining(&changed, at(100 * S)), 0);
            assert_eq!(remaining(&changed, at(101 * S)), 2);
        }
    }

    #[test]
    fn a_change_of_quota_after_a_reboot_starts_full() {
        let rebooted = Moment { boot: BootId([8; 16]), since_boot_ns: S };
        let changed =
            spent("1/s burst 10", at(100 * S), 10).with_quota("1/s burst 5".parse().unwrap(), rebooted);
        assert_eq!(remaining(&changed, rebooted), 5);
    }
}
