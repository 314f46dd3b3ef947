//! What a server says of its own doings on stderr: lines for people, or one JSON object a line for machines.

use std::io;

use tidegate::shared::Made;
use tidegate_http::layer::{Observed, Outcome};
use tracing::Level;

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Verbosity {
    Warn,
    Info,
    Debug,
}

/// Begins to log. Without a form there are only warnings, as plain lines.
pub(super) fn begin(format: Option<Format>, verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Warn => Level::WARN,
        Verbosity::Info => Level::INFO,
        Verbosity::Debug => Level::DEBUG,
    };
    // A log that nobody reads any more is no reason to stop serving.
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_writer(io::stderr)
        .log_internal_errors(false);
    match format {
        Some(Format::Text) => log.init(),
        Some(Format::Json) => log.json().flatten_event(true).with_current_span(false).init(),
        None => {}
    }
}

/// Tells of a request that may not run, with the keys of the limits.
pub(super) fn decision(seen: &Observed<'_>) {
    if seen.outcome().is_allowed() || !tracing::enabled!(Level::DEBUG) {
        return;
    }
    let outcome = match seen.outcome() {
        Outcome::Never => "never",
        Outcome::KeyFull => "key_full",
        Outcome::Shed => "shed",
        Outcome::Unanswered => "unanswered",
        _ => "rejected",
    };
    let limit = seen.refused_by().map(|name| &**name);
    let binding = seen.limits().find(|seen| limit == Some(&**seen.name));
    let key = binding.map(|seen| seen.key.to_string());
    let wait_ms = binding.and_then(|seen| seen.decision.retry_after()).map(|wait| wait.as_millis());
    let wait_ms = wait_ms.and_then(|wait| u64::try_from(wait).ok());
    let made = seen.made().map(Made::name);
    tracing::debug!(outcome, limit, key, wait_ms, made, "request refused");
}
