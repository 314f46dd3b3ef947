//! A limits file that is read again when it changes and on SIGHUP.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tidegate_http::RateLimit;
use tidegate_http::layer::Replaced;
use tidegate_server::rls::Rls;

use super::said::say;
use super::{Built, Limits};
use crate::fault::warn;
use crate::http_server::signals::Hangups;

/// How often the file is looked at. A change counts when it is there at two looks, so that no file is read that is still
/// being written. Less would make no difference to people; more would be felt.
const LOOK: Duration = Duration::from_millis(250);

/// Reads the file again.
#[derive(Debug)]
pub(super) struct Reloader {
    limits: Limits,
    path: PathBuf,
    layer: RateLimit,
    rls: Option<Rls>,
    reloads: Arc<Reloads>,
}

/// How often the file was read again.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    /// And the limits put in force.
    pub(super) ok: AtomicU64,
    /// And refused.
    pub(super) failed: AtomicU64,
}

/// What changes when a file does, also if another takes its place. `None` if there is none at the moment.
pub(super) type Stamp = Option<(SystemTime, u64, u64)>;

impl Reloader {
    pub(super) fn new(
        limits: Limits,
        path: PathBuf,
        (layer, rls): (RateLimit, Option<Rls>),
        reloads: Arc<Reloads>,
    ) -> Self {
        Self { limits, path, layer, rls, reloads }
    }

    /// Goes on until it is dropped. `read` is the stamp of what is in force.
    pub(super) async fn run(self, mut read: Stamp, mut hangups: Hangups) {
        let this = Arc::new(self);
        let mut seen = None;
        loop {
            let is_asked = tokio::select! {
                () = hangups.next() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let now = stamp(&this.path);
            let has_changed = now.is_some() && now != read && now == seen;
            seen = now;
            if is_asked || has_changed {
                read = now;
                let this = Arc::clone(&this);
                // It reads a file, and walks through tables.
                let _done = tokio::task::spawn_blocking(move || this.reload()).await;
            }
        }
    }

    /// Puts what the file says in force, or says why not.
    fn reload(&self) {
        let file = self.path.display();
        match self.replace() {
            Ok(replaced) => {
                self.reloads.ok.fetch_add(1, Ordering::Relaxed);
                let limits = in_words(&replaced);
                say(&format!("reloaded {file}: {limits}"));
                tracing::info!(%file, limits, "reloaded");
            }
            Err(error) => {
                self.reloads.failed.fetch_add(1, Ordering::Relaxed);
                warn(&format!("the limits stay as they are: {error}"));
            }
        }
    }

    fn replace(&self) -> anyhow::Result<Replaced> {
        let Built { builder, limits, shown, descriptors } = self.limits.builder_again()?;
        // All limits of the file are put in force, or none.
        if let Some(descriptors) = &descriptors {
            descriptors.can_be()?;
        }
        let mut replaced = self.layer.replace(builder).map_err(|error| super::layer::cannot_build(&error))?;
        if limits.is_empty() {
            replaced = Replaced::default();
        }
        if let (Some(descriptors), Some(rls)) = (descriptors, &self.rls) {
            let others = descriptors.replace(rls)?;
            replaced.kept.extend(others.kept);
            replaced.fresh.extend(others.fresh);
        }
        self.limits.show(limits, shown);
        Ok(replaced)
    }
}

/// What the file is like now.
pub(super) fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    #[cfg(unix)]
    let identity = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let identity = 0;
    Some((metadata.modified().ok()?, metadata.len(), identity))
}

fn in_words(replaced: &Replaced) -> String {
    let kept: Vec<&str> = replaced.kept.iter().map(|name| &**name).collect();
    let fresh: Vec<String> = replaced.fresh.iter().map(|name| format!("{name} (starts anew)")).collect();
    kept.into_iter().chain(fresh.iter().map(String::as_str)).collect::<Vec<_>>().join(", ")
}
