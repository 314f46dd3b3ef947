//! A progress bar on stderr, when a person watches and it takes longer than a second.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long a task runs before it shows a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress of one task.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    total: Option<u64>,
    template: &'static str,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A task that is counted in bytes; `total` is not known for a pipe.
    pub(crate) fn bytes(what: &'static str, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            None => "{msg} {spinner} {bytes} {binary_bytes_per_sec}",
        };
        Self { what, total, template, started: Instant::now(), bar: None }
    }

    /// A task that is counted in requests.
    pub(crate) fn requests(what: &'static str, total: u64) -> Self {
        Self {
            what,
            total: Some(total),
            template: "{msg} {wide_bar} {human_pos}/{human_len} {eta}",
            started: Instant::now(),
            bar: None,
        }
    }

    /// The task has come this far.
    pub(crate) fn at(&mut self, position: u64) {
        if self.bar.is_none() && self.started.elapsed() > PATIENCE {
            let bar = ProgressBar::with_draw_target(self.total, ProgressDrawTarget::stderr())
                .with_message(self.what);
            if let Ok(style) = ProgressStyle::with_template(self.template) {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// The task is over; the bar goes away.
    pub(crate) fn done(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
