//! What can go wrong with a budget, in words that say what to do.

use std::io;
use std::path::Path;

use tidegate_core::Quota;

use super::format::{LENGTH, VERSION};

/// Why a budget could not answer. The text says what to do.
///
/// In each case nothing was charged, and the state from before is still the state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The operating system refused something.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With which file or folder.
        path: Box<Path>,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file is something else.
    #[error("`{}` is not a budget; move it away or name another path", path.display())]
    Foreign {
        /// The file.
        path: Box<Path>,
    },
    /// The file begins as a budget does, but it was cut off or added to.
    #[error(
        "the budget `{}` is {length} bytes long where {LENGTH} are expected; move it away, and a full one is made, or name another path",
        path.display()
    )]
    Length {
        /// The file.
        path: Box<Path>,
        /// Its length in bytes.
        length: u64,
    },
    /// Another version of the format.
    #[error(
        "the budget `{}` has format {found}, and this program knows {VERSION}; use the program that made it, move it away, or name another path",
        path.display()
    )]
    Version {
        /// The file.
        path: Box<Path>,
        /// The version that it says it has.
        found: u32,
    },
    /// The header, or both states, do not agree with their checksums.
    #[error(
        "the budget `{}` is damaged, no state in it has a valid checksum; move it away, and a full one is made, or name another path",
        path.display()
    )]
    Damaged {
        /// The file.
        path: Box<Path>,
    },
    /// The file was deleted, moved or replaced while it was open, so others may spend from another one.
    #[error("the budget `{}` was moved or deleted while it was open; open it again", path.display())]
    Replaced {
        /// The file.
        path: Box<Path>,
    },
    /// The budget has another quota than the one that was asked for.
    #[error(
        "the budget `{}` has the quota `{stored}` and not `{asked}`; ask for the quota it has, change it with `change_quota`, or name another path",
        path.display()
    )]
    OtherQuota {
        /// The file.
        path: Box<Path>,
        /// The quota in the file.
        stored: Quota,
        /// The quota that was asked for.
        asked: Quota,
    },
    /// The budget has another number of places than the one that was asked for.
    #[error(
        "the budget `{}` has {stored} places in flight and not {asked}; ask for the number it has, change it with `change_max_in_flight`, or name another path",
        path.display()
    )]
    OtherMaxInFlight {
        /// The file.
        path: Box<Path>,
        /// The number in the file.
        stored: u64,
        /// The number that was asked for.
        asked: u64,
    },
    /// More places than a budget can have, or none.
    #[error("{asked} places in flight are not possible; ask for 1 to {max}")]
    MaxInFlight {
        /// The number that was asked for.
        asked: u64,
        /// The largest number.
        max: u64,
    },
    /// A place was asked for where no number of places was set.
    #[error("the budget `{}` has no places in flight; set their number with `with_max_in_flight`", path.display())]
    NoPlaces {
        /// The file.
        path: Box<Path>,
    },
    /// The file lies where other machines can reach it, and a budget is for one machine.
    #[error(
        "`{}` is on a network file system, and a budget holds for one machine only; name a path on a local disk",
        path.display()
    )]
    NotLocal {
        /// The file.
        path: Box<Path>,
    },
    /// This boot cannot be told from another.
    #[error(
        "cannot tell this boot of the machine from others by `/proc/sys/kernel/random/boot_id`; mount `/proc`"
    )]
    BootId {
        /// What the operating system says.
        source: io::Error,
    },
}

impl BudgetError {
    pub(super) fn io(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.into(), source: error.into() }
    }
}
