//! A time that processes of one machine agree on: nanoseconds since the boot, and which boot it was.

#[cfg(any(target_os = "linux", target_os = "android"))]
use std::io;

use rustix::time::{ClockId, Timespec};

use super::BudgetError;

/// A time on the clock of one machine, the same for all its processes.
///
/// On Linux it is `CLOCK_BOOTTIME`, which goes on during suspend and which nobody can set, with the boot's id from
/// `/proc/sys/kernel/random/boot_id`. On another Unix it is `CLOCK_MONOTONIC`, and no id is known ([`BootId::UNKNOWN`]).
///
/// ```
/// use tidegate::budget::Moment;
///
/// let earlier = Moment::now()?;
/// let later = Moment::now()?;
/// assert_eq!(earlier.boot, later.boot);
/// assert!(earlier.since_boot_ns <= later.since_boot_ns);
/// # Ok::<(), tidegate::BudgetError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Which boot.
    pub boot: BootId,
    /// Nanoseconds since then.
    pub since_boot_ns: u64,
}

/// Which boot of the machine: times of different boots cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// The id where the system tells none. A boot is then seen by its clock alone: an earlier time than that of the
    /// last charge is another boot. A later boot that is already up for longer is taken for the same one, and what
    /// was owed stays owed until then: that is against the caller, never for him.
    pub const UNKNOWN: Self = Self([0; 16]);
}

impl Moment {
    /// This moment.
    ///
    /// # Errors
    ///
    /// On Linux, when `/proc` does not tell the boot's id.
    pub fn now() -> Result<Self, BudgetError> {
        Ok(Self { boot: this_boot()?, since_boot_ns: since_boot_ns() })
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The clock alone. It stops at `u64::MAX`, after 584 years.
pub(super) fn since_boot_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = rustix::time::clock_gettime(CLOCK);
    let ns = i128::from(tv_sec).saturating_mul(1_000_000_000).saturating_add(i128::from(tv_nsec));
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

/// Reads which boot this is. It cannot change while a process lives, but for one that is moved to another machine.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn this_boot() -> Result<BootId, BudgetError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|source| BudgetError::BootId { source })?;
    parse(&text).ok_or_else(|| BudgetError::BootId { source: io::ErrorKind::InvalidData.into() })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn this_boot() -> Result<BootId, BudgetError> {
    Ok(BootId::UNKNOWN)
}

/// Reads an id such as `2cd176d4-dac7-42ec-ab99-ebb44b8a82dd`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn parse(text: &str) -> Option<BootId> {
    let digits: Option<Vec<u8>> = text
        .trim_end()
        .chars()
        .filter(|c| *c != '-')
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits: [u8; 32] = digits?.try_into().ok()?;
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    (id != BootId::UNKNOWN.0).then_some(BootId(id))
}

/// Sleeps until `since_boot_ns` on the clock of [`Moment`], so that a suspend counts as waiting.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn sleep_until(since_boot_ns: u64) {
    let until = Timespec {
        tv_sec: i64::try_from(since_boot_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (since_boot_ns % 1_000_000_000).try_into().unwrap_or(0),
    };
    // A signal ends the sleep early.
    while rustix::thread::clock_nanosleep_absolute(CLOCK, &until) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn sleep_until(since_boot_ns: u64) {
    let wait = since_boot_ns.saturating_sub(self::since_boot_ns());
    std::thread::sleep(std::time::Duration::from_nanos(wait));
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_sixteen_bytes_in_hexadecimal() {
        let id = parse("2cd176d4-dac7-42ec-ab99-ebb44b8a82dd\n").unwrap();
        assert_eq!(id.0[..4], [0x2c, 0xd1, 0x76, 0xd4]);
        assert_eq!(id.0[15], 0xdd);
        for bad in
            ["", "2cd176d4", "2cd176d4-dac7-42ec-ab99-ebb44b8a82dg", "00000000-0000-0000-0000-000000000000"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
