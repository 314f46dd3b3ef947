//! A budget that is named on the command line: where it is, and how it is opened.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tidegate::budget::BudgetError;
use tidegate::{Budget, Quota};

use crate::fault::Hint;
use crate::quota_args::{above_zero, whole_within};

/// The most places that a budget has.
const MAX_IN_FLIGHT: u64 = 1024;

/// Opens the budget `name`. With a quota it is made if it is not there; without one it must be.
///
/// # Errors
///
/// A name that is none, a budget with another quota or other places, and one that cannot be used.
pub(crate) fn open(name: &OsStr, quota: Option<Quota>, places: Option<NonZeroU64>) -> anyhow::Result<Budget> {
    let path = path(name)?;
    let budget = match quota {
        Some(quota) => {
            make_folder(name, &path)?;
            Budget::open(&path, quota).map_err(advised)?
        }
        None if !path.exists() => {
            return Err(Hint::error(
                format!("there is no budget `{}` yet", path.display()),
                "add its limit, such as --limit 2/s, and it is made",
            ));
        }
        None => Budget::open_existing(&path).map_err(advised)?,
    };
    Ok(match places {
        Some(max) => budget.with_max_in_flight(max).map_err(advised)?,
        None => budget,
    })
}

/// A fault of a budget, where the library's own words name what a program can do and a person at a prompt cannot.
fn advised(error: BudgetError) -> anyhow::Error {
    const OR: &str = "name another budget; to change this one, delete the file when nobody uses it";
    match error {
        BudgetError::OtherQuota { path, stored, asked } => Hint::error(
            format!("the budget `{}` has the limit `{stored}` and not `{asked}`", path.display()),
            format!("leave --limit out, since the budget keeps its own, or {OR}"),
        ),
        BudgetError::OtherMaxInFlight { path, stored, asked } => Hint::error(
            format!("the budget `{}` has {stored} places in flight and not {asked}", path.display()),
            format!("write --max-in-flight {stored}, or {OR}"),
        ),
        BudgetError::Io { source, path, action } if source.kind() == io::ErrorKind::NotFound => Hint::error(
            format!("cannot {action} `{}`: {source}", path.display()),
            "make the folder that it is to be in, or write a name without a `/`",
        ),
        other => other.into(),
    }
}

/// Reads a number of places in flight that a budget can have.
pub(crate) fn places(text: &str) -> Result<NonZeroU64, String> {
    whole_within(text, 1..=MAX_IN_FLIGHT)?;
    above_zero(text)
}

/// The file of the budget `name`: a path if it has a `/`, and otherwise one of this user.
fn path(name: &OsStr) -> anyhow::Result<PathBuf> {
    if is_path(name) {
        return Ok(name.into());
    }
    if name.is_empty() || name.as_bytes().starts_with(b".") {
        return Err(Hint::error(
            format!("`{}` is no name for a budget", name.display()),
            "write a name such as api, or a path such as ./api",
        ));
    }
    let mut file = OsString::from(name);
    file.push(".budget");
    Ok(folder()?.join(file))
}

/// Makes the folder of a name. That of a path must be there: it may be written wrong.
fn make_folder(name: &OsStr, path: &Path) -> anyhow::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if is_path(name) {
        return Ok(());
    }
    // What is missing above it is made for its owner alone as well, as the XDG specification asks.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot make the folder `{}`", folder.display()))
}

/// `$XDG_STATE_HOME/tidegate`. A relative path in the variable is to be ignored, says its specification.
fn folder() -> anyhow::Result<PathBuf> {
    let absolute = |variable| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        Hint::error(
            "neither XDG_STATE_HOME nor HOME says where budgets are",
            "set one of them, or name the budget by a path, such as ./api",
        )
    })?;
    Ok(state.join("tidegate"))
}

fn is_path(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'/')
}
