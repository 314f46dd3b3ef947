//! What the system tells a server: to end, and to read its limits again.

use anyhow::Context as _;

/// The signals that ask for an end: Ctrl-C, and SIGTERM where there is one.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        let terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        Ok(Self { interrupt, terminate })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {})
    }

    /// Is ready at the next signal.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Is ready at the next signal.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The signals that ask to read the file again.
#[derive(Debug)]
pub(crate) struct Hangups(#[cfg(unix)] tokio::signal::unix::Signal);

impl Hangups {
    #[cfg(unix)]
    pub(crate) fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup()).map(Self).context("cannot wait for signals")
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self())
    }

    /// Is ready at the next signal.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Is never ready: there is no such signal.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        std::future::pending::<()>().await;
    }
}
