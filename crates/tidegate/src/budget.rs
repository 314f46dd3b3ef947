//! The budget of one machine: one token bucket that all processes share which name the same file. No service runs.
//!
//! **Promise.** All processes together are allowed what one bucket allows: at most `burst + rate·t` in any interval of
//! length `t`. Each decision is made alone, under an exclusive `flock` on the file, from the state in the file and the
//! time since the boot, and an allowed one is written before the lock is given up. The arithmetic is that of
//! [`TokenBucket`](tidegate_core::algorithm::TokenBucket), so the same calls at the same times get the same answers as
//! from a [`Limiter`](crate::Limiter).
//!
//! **Killed at any moment** (`kill -9`): the kernel gives the lock up, and the file is readable. A decision is one write
//! of one of two slots; if it is cut off, the other slot is the state. A call that was killed before its answer may have
//! been charged; no call is answered as allowed that was not.
//!
//! **A reboot starts full.** The state carries the boot's id. A decision is not synced to the disk: what a process wrote
//! outlives it in memory, and a power loss, after which the file may hold an older state, ends the boot as well.
//!
//! **Never a silent reset.** A file that is something else, or cut off, or damaged, is a [`BudgetError`]; so is a file
//! that was moved or deleted while it was open, since others might spend from a new one. Each decision looks.
//!
//! **Places in flight** ([`Budget::enter`]) are locks too, one file each in `PATH.places/`. A holder that dies gives its
//! place back, by the kernel. Nobody may delete them while they are held: the place would be given twice. Symbolic links to
//! one file share its places. A second hard link does not: it is another name, with places of its own.
//!
//! **What it does not promise.**
//!
//! - Order between processes. Those that wait sleep until they were told to, and race; the kernel picks.
//! - Progress while a process is stopped (`SIGSTOP`, a debugger) inside a decision: it holds the lock. That is a few
//!   microseconds of its time.
//! - Exclusion between a process and one that it forked: they have the lock in common. Open the budget after the fork.
//! - Several machines. A file on a network file system is refused where it can be told; through FUSE it cannot.
//! - Protection from those who may write the file. It is made readable for its owner alone; whoever may open it can
//!   hold its lock. For several users, change its mode, and that of `PATH.places/`.
//!
//! **Containers** of one machine share its boot id and its clock, so they can share a file in a volume. A container with
//! a clock of its own (a time namespace with an offset for the boot time, as after a checkpoint was restored) must
//! not: its times are not comparable. The clock that is ahead wins, and the others are rejected until they reach it.
//! A virtual machine that is cloned from a snapshot keeps the boot id; its files are its own, and go on from there.
//!
//! **Cost.** An allowed decision is five system calls (lock, look at the name, read, write, unlock), a rejected one four.
//! On two shared cores of an AMD EPYC, with ext4, `cargo bench -p tidegate --bench budget` says 4.7 µs (4.67 to 4.81) for
//! an allowed one, 4.0 µs (3.7 to 4.4) for a rejected one, and 11.8 µs (10.4 to 13.6) for an allowed one while a second
//! process asks without a pause. Other work ran on the machine; with more of it, twice as much was measured.
//!
//! **Format.** 256 bytes, described in `budget/format.rs`.

mod error;
mod file;
mod format;
mod moment;
mod places;

pub use error::BudgetError;
pub use moment::{BootId, Moment};
pub use places::Place;

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, absolute};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Algorithm, Decision, Quota};

use file::{BudgetFile, Locked};
use format::{Record, bucket};

/// A token bucket in a file, shared by all processes of the machine that open it.
///
/// It is shared by threads too (`&self`), and two of it in one process are as good as two processes. The folder must
/// be there; the file is made if it is not. A rejected call writes nothing.
///
/// ```
/// use tidegate::Budget;
///
/// let path = std::env::temp_dir().join(format!("tidegate-doc-{}", std::process::id()));
/// let budget = Budget::open(&path, "3/hour".parse()?)?;
/// assert_eq!(budget.check_n(2)?.remaining(), 1);
///
/// // Another process that names the same file.
/// let other = Budget::open(&path, "3/hour".parse()?)?;
/// assert!(other.check()?.is_allowed());
/// assert!(!budget.check()?.is_allowed());
///
/// // A quota that the file does not have is an error that names both.
/// let error = Budget::open(&path, "5/s".parse()?).unwrap_err();
/// assert!(error.to_string().contains("has the quota `3/hour` and not `5/s`"));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Budget {
    /// An `flock` does not keep apart the threads that use one opening of a file, so they take this first.
    shared: Mutex<Shared>,
    path: Box<Path>,
    /// The folder of the places in flight.
    places: Box<Path>,
    boot: BootId,
}

/// What the threads of a process share.
#[derive(Debug)]
struct Shared {
    file: BudgetFile,
    quota: Quota,
    /// The bucket of `quota`.
    bucket: Algorithm,
}

impl Budget {
    /// Opens the budget at `path`, or makes it, full, if there is none.
    ///
    /// It is made at once: nobody sees half of it, and of several that make it at one time one is first.
    ///
    /// # Errors
    ///
    /// A file that is no whole budget, one with another quota, one on a network file system, or what the operating
    /// system refuses.
    pub fn open(path: impl AsRef<Path>, quota: Quota) -> Result<Self, BudgetError> {
        let path = resolve(path.as_ref())?;
        let file = match BudgetFile::open(&path)? {
            Some(file) => file,
            None => {
                BudgetFile::create(&path, &Record::new(quota))?;
                BudgetFile::open(&path)?.ok_or_else(|| not_there(&path))?
            }
        };
        let budget = Self::new(file)?;
        let stored = budget.quota()?;
        if stored != quota {
            return Err(BudgetError::OtherQuota { path, stored, asked: quota });
        }
        Ok(budget)
    }

    /// Opens the budget at `path` with the quota it has.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], and when there is no file.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, BudgetError> {
        let path = resolve(path.as_ref())?;
        let file = BudgetFile::open(&path)?.ok_or_else(|| {
            BudgetError::io("open the budget", &path, std::io::Error::from(std::io::ErrorKind::NotFound))
        })?;
        Self::new(file)
    }

    fn new(file: BudgetFile) -> Result<Self, BudgetError> {
        let boot = moment::this_boot()?;
        let quota = file.lock()?.read()?.quota;
        let path: Box<Path> = file.path().into();
        let real = fs::canonicalize(&path).map_err(|error| BudgetError::io("find", &path, error))?;
        let places = places::folder(&real).into();
        Ok(Self { shared: Mutex::new(Shared { file, quota, bucket: bucket(quota) }), path, places, boot })
    }

    /// Decides a call of cost 1 now.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written, or is no longer the budget. Nothing was charged.
    pub fn check(&self) -> Result<Decision, BudgetError> {
        self.check_n(1)
    }

    /// Decides a call of `cost` now. Cost 0 asks without charging.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn check_n(&self, cost: u64) -> Result<Decision, BudgetError> {
        self.decide(None, cost).map(|(_, decision)| decision)
    }

    /// Decides a call of `cost` at `now`, for tests without sleep.
    ///
    /// All that use one file must take their time from one clock. A time that goes back creates nothing; a time that
    /// is ahead holds everyone else back until they reach it.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn check_at(&self, now: Moment, cost: u64) -> Result<Decision, BudgetError> {
        self.decide(Some(now), cost).map(|(_, decision)| decision)
    }

    /// What [`Self::check_n`] would answer now. Nothing is charged.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn peek(&self, cost: u64) -> Result<Decision, BudgetError> {
        self.locked(|_, record, bucket| Ok(record.step(bucket, self.now(), cost).1))
    }

    /// Waits until a call of `cost` is allowed, at most `max_wait`, and stops the thread meanwhile.
    ///
    /// It sleeps until the moment that it was told and asks again, so alone it is allowed then. Where several wait
    /// they race: each is told the wait as if it were alone, one is first, and the others are told anew. Their order is
    /// not promised, and a large cost can be overtaken again and again by small ones.
    ///
    /// The answer is a rejection, at once, when the wait it tells ends after `max_wait`, and `Never` when the cost is
    /// above the burst. Time in suspend counts as waiting.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn acquire_blocking(&self, cost: u64, max_wait: Duration) -> Result<Decision, BudgetError> {
        let later =
            |now: u64, wait: Duration| now.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        let deadline = later(moment::since_boot_ns(), max_wait);
        loop {
            let (now, decision) = self.decide(None, cost)?;
            let Some(wait) = decision.retry_after() else { return Ok(decision) };
            let until = later(now.since_boot_ns, wait);
            if until > deadline {
                return Ok(decision);
            }
            moment::sleep_until(until);
        }
    }

    /// The quota in the file.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn quota(&self) -> Result<Quota, BudgetError> {
        self.locked(|_, record, _| Ok(record.quota))
    }

    /// Changes the quota, for all who have the budget open: it holds from the next decision on.
    ///
    /// The bucket stays as full in proportion as it was: an empty one is empty, a full one is full. What is owed is never
    /// forgiven by going to another quota and back.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn change_quota(&self, quota: Quota) -> Result<(), BudgetError> {
        self.locked(|locked, record, _| {
            if record.quota == quota {
                return Ok(());
            }
            locked.write(&record.with_quota(quota, self.now()))
        })
    }

    /// The budget with `max` places in flight, 1 to 1024, for [`Self::enter`]. The file keeps the number.
    ///
    /// # Errors
    ///
    /// When the file has another number already, when `max` is out of range, and as [`Self::check`].
    pub fn with_max_in_flight(self, max: NonZeroU64) -> Result<Self, BudgetError> {
        let asked = in_range(max)?;
        self.locked(|locked, record, _| match record.max_in_flight {
            0 => locked.write(&record.with_max_in_flight(asked)),
            stored if stored == asked => Ok(()),
            stored => Err(BudgetError::OtherMaxInFlight { path: self.path.clone(), stored, asked }),
        })?;
        Ok(self)
    }

    /// How many places in flight it has; `None` when no number was set.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn max_in_flight(&self) -> Result<Option<NonZeroU64>, BudgetError> {
        self.locked(|_, record, _| Ok(NonZeroU64::new(record.max_in_flight)))
    }

    /// Changes the number of places in flight, for all who have the budget open.
    ///
    /// When it is lowered, those who hold a place keep it, so that until they leave as many can run as before.
    ///
    /// # Errors
    ///
    /// When `max` is out of range, and as [`Self::check`].
    pub fn change_max_in_flight(&self, max: NonZeroU64) -> Result<(), BudgetError> {
        let max = in_range(max)?;
        self.locked(|locked, record, _| locked.write(&record.with_max_in_flight(max)))
    }

    /// Takes a place in flight; `None` when all are taken. It does not touch the tokens.
    ///
    /// For a call that needs both, take the place first: if the tokens are refused, dropping the place undoes it.
    /// The time it takes grows with the number of places that are taken.
    ///
    /// ```
    /// # use tidegate::Budget;
    /// # let path = std::env::temp_dir().join(format!("tidegate-doc-places-{}", std::process::id()));
    /// let budget = Budget::open(&path, "100/s".parse()?)?.with_max_in_flight(2.try_into()?)?;
    /// let (one, two) = (budget.enter()?, budget.enter()?);
    /// assert!(one.is_some() && two.is_some());
    /// assert!(budget.enter()?.is_none());
    /// drop(one);
    /// assert!(budget.enter()?.is_some());
    /// # std::fs::remove_file(&path)?;
    /// # std::fs::remove_dir_all(path.with_extension("places"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When no number of places was set, and as [`Self::check`].
    pub fn enter(&self) -> Result<Option<Place>, BudgetError> {
        self.locked(|_, record, _| match record.max_in_flight {
            0 => Err(BudgetError::NoPlaces { path: self.path.clone() }),
            max => places::enter(&self.places, max),
        })
    }

    /// How many places in flight are taken now.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn running(&self) -> Result<u64, BudgetError> {
        self.locked(|_, _, _| places::running(&self.places))
    }

    /// Where the budget is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Decides at `now`, or at the time when the lock was taken, and says when.
    fn decide(&self, now: Option<Moment>, cost: u64) -> Result<(Moment, Decision), BudgetError> {
        self.locked(|locked, record, bucket| {
            // Read under the lock, so that times are in the order of decisions.
            let now = now.unwrap_or_else(|| self.now());
            let (next, decision) = record.step(bucket, now, cost);
            if let Some(next) = next {
                locked.write(&next)?;
            }
            Ok((now, decision))
        })
    }

    /// Does something with the state while nobody else can.
    fn locked<T>(
        &self,
        act: impl FnOnce(&Locked<'_>, &Record, &Algorithm) -> Result<T, BudgetError>,
    ) -> Result<T, BudgetError> {
        let mut shared = self.shared();
        let Shared { file, quota, bucket: of_quota } = &mut *shared;
        let locked = file.lock()?;
        let record = locked.read()?;
        // Another process may have changed it.
        if record.quota != *quota {
            (*quota, *of_quota) = (record.quota, bucket(record.quota));
        }
        act(&locked, &record, of_quota)
    }

    /// A panic leaves quota and bucket as a pair, so a poisoned lock is taken all the same.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        Moment { boot: self.boot, since_boot_ns: moment::since_boot_ns() }
    }
}

/// Why a budget that was just made cannot be opened.
fn not_there(path: &Path) -> BudgetError {
    if path.is_symlink() {
        BudgetError::io("follow the link", path, std::io::Error::from(std::io::ErrorKind::NotFound))
    } else {
        BudgetError::Replaced { path: path.into() }
    }
}

/// A path that still means the same when the process goes to another folder.
fn resolve(path: &Path) -> Result<Box<Path>, BudgetError> {
    let path = absolute(path).map_err(|error| BudgetError::io("find", path, error))?;
    Ok(path.into())
}

fn in_range(max: NonZeroU64) -> Result<u64, BudgetError> {
    match max.get() {
        asked if asked <= places::MAX => Ok(asked),
        asked => Err(BudgetError::MaxInFlight { asked, max: places::MAX }),
    }
}
