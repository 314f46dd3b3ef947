//! The file of a budget: made whole, locked for one decision at a time, and never mistaken for another one.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::BudgetError;
use super::format::{LENGTH, Record, Unreadable};

/// How many names are tried for the file that becomes the budget. A name is taken only by another thread that makes
/// the same budget at this moment, or by a process with the same id that was killed while it did.
const NAMES: u32 = 100;

/// Only the owner may open the file: who can open it can hold its lock, and so stop all others.
pub(super) const MODE: u32 = 0o600;

/// An open budget file.
#[derive(Debug)]
pub(super) struct BudgetFile {
    file: File,
    path: Box<Path>,
    /// Device and inode, to see that the name still means this file.
    identity: (u64, u64),
}

/// The file while this process alone may read and change it. The lock goes with it, or with the process.
#[derive(Debug)]
pub(super) struct Locked<'a>(&'a BudgetFile);

impl BudgetFile {
    /// Opens the file, or returns `None` if there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, BudgetError> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(BudgetError::io("open the budget", path, error)),
        };
        let metadata = file.metadata().map_err(|error| BudgetError::io("open the budget", path, error))?;
        if !metadata.is_file() {
            return Err(BudgetError::Foreign { path: path.into() });
        }
        check_local(&file, path)?;
        Ok(Some(Self { file, path: path.into(), identity: identity(&metadata) }))
    }

    /// Makes the file under another name and gives it its name when it is whole. It is well if another process is
    /// first.
    ///
    /// A process that is killed meanwhile may leave a file `PATH.new-…` behind, which nobody reads.
    pub(super) fn create(path: &Path, record: &Record) -> Result<(), BudgetError> {
        let (new, file) = create_beside(path)?;
        let made = check_local(&file, path).and_then(|()| {
            file.write_all_at(&record.file(), 0)
                // Once only, so that a power loss does not leave a name without content.
                .and_then(|()| file.sync_all())
                .and_then(|()| match fs::hard_link(&new, path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                    linked => linked,
                })
                .map_err(|error| BudgetError::io("make the budget", path, error))
        });
        let removed = fs::remove_file(&new).map_err(|error| BudgetError::io("remove", &new, error));
        made.and(removed)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the lock. It belongs to this opening of the file: another opening in the same process waits too.
    pub(super) fn lock(&self) -> Result<Locked<'_>, BudgetError> {
        rustix::io::retry_on_intr(|| flock(&self.file, FlockOperation::LockExclusive))
            .map_err(|error| BudgetError::io("lock the budget", &self.path, error))?;
        let locked = Locked(self);
        match fs::metadata(&self.path) {
            Ok(metadata) if identity(&metadata) == self.identity => Ok(locked),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(BudgetError::io("open the budget", &self.path, error))
            }
            _ => Err(BudgetError::Replaced { path: self.path.clone() }),
        }
    }
}

impl Locked<'_> {
    pub(super) fn read(&self) -> Result<Record, BudgetError> {
        let BudgetFile { file, path, .. } = self.0;
        let fail = |error| BudgetError::io("read the budget", path, error);
        // One byte more, to see that the file is too long without another question.
        let mut bytes = [0; LENGTH + 1];
        let length = loop {
            match file.read_at(&mut bytes, 0) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(fail)?,
            }
        };
        match Record::read(&bytes[..length]) {
            Ok(record) => Ok(record),
            Err(Unreadable::Foreign) => Err(BudgetError::Foreign { path: path.clone() }),
            Err(Unreadable::Length) => {
                let length = file.metadata().map_err(fail)?.len();
                Err(BudgetError::Length { path: path.clone(), length })
            }
            Err(Unreadable::Version(found)) => Err(BudgetError::Version { path: path.clone(), found }),
            Err(Unreadable::Damaged) => Err(BudgetError::Damaged { path: path.clone() }),
        }
    }

    /// Writes the record over the older of the two, in one write. If that fails, the newer one is the state still.
    pub(super) fn write(&self, record: &Record) -> Result<(), BudgetError> {
        let (at, slot) = record.slot();
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        self.0
            .file
            .write_all_at(&slot, at)
            .map_err(|error| BudgetError::io("write the budget", &self.0.path, error))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        unlock(&self.0.file);
    }
}

/// Gives a lock up at once. Closing the file would not, while a child that was just forked has it open as well.
pub(super) fn unlock(file: &File) {
    // Unlocking an open file cannot fail, and if it did the kernel would do it when the process ends.
    let _ = rustix::io::retry_on_intr(|| flock(file, FlockOperation::Unlock));
}

/// `path` with more text behind its name.
pub(super) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(more);
    name.into()
}

fn create_beside(path: &Path) -> Result<(PathBuf, File), BudgetError> {
    let mut taken = io::Error::from(ErrorKind::AlreadyExists);
    for number in 0..NAMES {
        let new = beside(path, &format!(".new-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new) {
            Ok(file) => return Ok((new, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(BudgetError::io("make the budget", path, error)),
        }
    }
    Err(BudgetError::io("make the budget", path, taken))
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Refuses a file that other machines can reach: to each, the boot of the other looks like a reboot, and both would
/// start full again and again. A FUSE mount does not say whether it is a network, so it is taken for local.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn check_local(file: &File, path: &Path) -> Result<(), BudgetError> {
    /// From `linux/magic.h`: NFS, SMB (three kinds), 9p, Ceph, AFS, Lustre, GPFS, OCFS2, GFS2.
    const NETWORK: [i128; 11] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
        0x0bd0_0bd0,
        0x4750_4653,
        0x7461_636f,
        0x0116_1970,
    ];
    let kind =
        rustix::fs::fstatfs(file).map_err(|error| BudgetError::io("open the budget", path, error))?.f_type;
    // The type is signed on some machines, and has 32 bits in truth.
    if NETWORK.contains(&(i128::from(kind) & 0xffff_ffff)) {
        return Err(BudgetError::NotLocal { path: path.into() });
    }
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[expect(clippy::unnecessary_wraps, reason = "the kind of file system is told on Linux only")]
fn check_local(_: &File, _: &Path) -> Result<(), BudgetError> {
    Ok(())
}
