//! Places in flight: one empty file for each, and who holds its lock holds the place.
//!
//! The kernel gives a lock up when its holder ends, however it ends, so there is nothing to expire and nothing stale.
//! The files stay, at most as many as there are places, and mean nothing while nobody holds them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::BudgetError;
use super::file::{MODE, beside, unlock};

/// The most places that a budget can have. Looking for a free one opens one file after the other under the budget's
/// lock; twice as many would double the longest look.
pub(super) const MAX: u64 = 1024;

/// A place in flight. It is free again when this is dropped, or when the process ends, however it ends.
#[must_use = "the place is given back when this is dropped"]
#[derive(Debug)]
pub struct Place {
    file: File,
    number: u64,
}

impl Place {
    /// Which place it is: from 0, below the number of places, and held by nobody else.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

/// The folder of the places of a budget, which is named without symbolic links: they are those of the file.
pub(super) fn folder(budget: &Path) -> PathBuf {
    beside(budget, ".places")
}

/// Takes the first free place of `max` in the folder of the places, if there is one. The budget's lock must be held, so that no other place is
/// taken meanwhile: then all were taken at the time of the first look, if none is found.
pub(super) fn enter(folder: &Path, max: u64) -> Result<Option<Place>, BudgetError> {
    for number in 0..max {
        let path = folder.join(number.to_string());
        let file = open(&path)?;
        if try_lock(&file, &path)? {
            return Ok(Some(Place { file, number }));
        }
    }
    Ok(None)
}

/// How many places are held. The budget's lock must be held, since looking at a place takes it for a moment.
pub(super) fn running(folder: &Path) -> Result<u64, BudgetError> {
    let mut running = 0;
    // All that can be there: after the number was lowered, some above it may be held still.
    for number in 0..MAX {
        let path = folder.join(number.to_string());
        match OpenOptions::new().read(true).open(&path) {
            Ok(file) => running += u64::from(!try_lock(&file, &path)?),
            // Places are made in order.
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(BudgetError::io("open the place", &path, error)),
        }
    }
    Ok(running)
}

/// Opens the file of a place; it is made at its first use.
fn open(path: &Path) -> Result<File, BudgetError> {
    let open = || OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(path);
    let opened = open().or_else(|error| match (error.kind(), path.parent()) {
        (ErrorKind::NotFound, Some(folder)) => {
            // Only the owner may look inside, as with the budget itself.
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => open(),
            }
        }
        _ => Err(error),
    });
    opened.map_err(|error| BudgetError::io("open the place", path, error))
}

fn try_lock(file: &File, path: &Path) -> Result<bool, BudgetError> {
    match rustix::io::retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(BudgetError::io("lock the place", path, error)),
    }
}
