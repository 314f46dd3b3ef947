//! Where a budget is that is named on the command line.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::fault::Hint;

/// The file of the budget `name`: a path if it has a `/`, and otherwise one of this user.
pub(super) fn path(name: &OsStr) -> anyhow::Result<PathBuf> {
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
pub(super) fn make_folder(name: &OsStr, path: &Path) -> anyhow::Result<()> {
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
