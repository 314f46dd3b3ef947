//! A place that is held: it is renewed in the background, and released when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::{SCRIPT, Shared, arguments};
use crate::Made;
use crate::fault::Fault;

/// Who holds a place: 128 random bits, in hexadecimal.
#[derive(Debug)]
pub(super) struct Holder(pub(super) Box<str>);

/// A place of the store.
pub(super) struct Held {
    pub(super) shared: Arc<Shared>,
    pub(super) key: Box<[u8]>,
    pub(super) holder: Holder,
}

/// Until when a place is held, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    End(Instant),
    /// It ended.
    Lost,
}

/// A place in flight, from [`Places::acquire`](super::Places::acquire). It is renewed until it is dropped, and then released
/// in the background; [`Self::release`] waits for that.
///
/// A place can be lost: the store did not answer for so long, the process was stopped, somebody deleted the key. Ask
/// [`Self::is_held`] before what must not be done without it, or wait for [`Self::lost`] beside the work.
#[must_use = "a place that is dropped is released"]
pub struct Place {
    fence: Option<u64>,
    made: Made,
    until: watch::Receiver<Until>,
    /// Tells the task that the place is to be released, and is told when it was.
    end: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

impl Place {
    /// The place of a holder that asked for it at `sent`.
    pub(super) fn keep(held: Arc<Held>, sent: Instant, fence: u64) -> Self {
        let (told, until) = watch::channel(Until::End(held.end(sent)));
        let (end, ended) = oneshot::channel();
        let runtime = held.shared.store.servers.runtime.clone();
        runtime.spawn(held.renew(sent, told, ended));
        Self { fence: Some(fence), made: Made::Exact, until, end: Some(end) }
    }

    /// One that was given without the store.
    pub(super) fn uncounted() -> Self {
        let far = Instant::now() + Duration::from_hours(24 * 365);
        let (_, until) = watch::channel(Until::End(far));
        Self { fence: None, made: Made::Open, until, end: None }
    }

    /// A number that is larger than that of every place of this key that was given before; `None` for one that was given
    /// without the store.
    #[must_use]
    pub const fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// [`Made::Exact`], or [`Made::Open`] for one that was given without the store.
    #[must_use]
    pub const fn made(&self) -> Made {
        self.made
    }

    /// Whether it is still held. It is said by the clock of this process, a tenth of the time to live before the server would
    /// give the place to another.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match *self.until.borrow() {
            Until::End(end) => Instant::now() < end,
            Until::Lost => false,
        }
    }

    /// Waits until the place is lost: for ever, if it is not.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again.
    pub async fn lost(&self) {
        let mut until = self.until.clone();
        loop {
            let now = *until.borrow_and_update();
            let Until::End(end) = now else { return };
            tokio::select! {
                () = tokio::time::sleep_until(end.into()) => {
                    if !self.is_held() {
                        return;
                    }
                }
                changed = until.changed() => {
                    if changed.is_err() {
                        // Nobody renews it: it ends when it ends.
                        tokio::time::sleep_until(end.into()).await;
                        return;
                    }
                }
            }
        }
    }

    /// Releases the place, and waits until that is done or the place has ended.
    ///
    /// # Cancel safety
    ///
    /// It is released all the same.
    pub async fn release(mut self) {
        let (done, is_done) = oneshot::channel();
        if self.end.take().is_some_and(|end| end.send(done).is_ok()) {
            // An error means that the runtime of the store has ended, and that the place ends by itself.
            let _ = is_done.await;
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("fence", &self.fence).field("made", &self.made).finish_non_exhaustive()
    }
}

impl Held {
    /// When a place that was asked for or renewed at `sent` ends here: a tenth before it does on the server.
    fn end(&self, sent: Instant) -> Instant {
        let ttl = self.shared.settings.ttl;
        sent + (ttl - ttl / 10)
    }

    pub(super) async fn run(&self, what: &[u8], deadline: tokio::time::Instant) -> Result<Vec<i64>, Fault> {
        let arguments = arguments(&self.shared, &self.key, what, &self.holder);
        SCRIPT.run(&self.shared.store.servers, &arguments, deadline).await
    }

    /// Renews the place at a third of its time, more often when that fails, until its holder has enough of it.
    async fn renew(
        self: Arc<Self>,
        mut sent: Instant,
        told: watch::Sender<Until>,
        mut ended: oneshot::Receiver<oneshot::Sender<()>>,
    ) {
        let ttl = self.shared.settings.ttl;
        let mut next = sent + ttl / 3;
        let done = loop {
            tokio::select! {
                done = &mut ended => break done.ok(),
                () = tokio::time::sleep_until(next.into()) => {}
            }
            let now = Instant::now();
            if now >= self.end(sent) {
                // It may have been given to another since.
                told.send_replace(Until::Lost);
                break (&mut ended).await.ok();
            }
            let deadline = tokio::time::Instant::from_std(now + self.shared.store.deadline);
            // A holder that has enough of it does not wait for this.
            let reply = tokio::select! {
                done = &mut ended => break done.ok(),
                reply = self.run(b"renew", deadline) => reply,
            };
            match reply.as_deref() {
                // What was lost stays lost, even if the server did not give it to another.
                Ok([1]) if Instant::now() < self.end(sent) => {
                    sent = now;
                    next = sent + ttl / 3;
                    told.send_replace(Until::End(self.end(sent)));
                }
                Ok(_) => {
                    told.send_replace(Until::Lost);
                    break (&mut ended).await.ok();
                }
                Err(_) => next = (Instant::now() + ttl / 12).min(self.end(sent)),
            }
        };
        self.release(tokio::time::Instant::from_std(sent + ttl)).await;
        if let Some(done) = done {
            // Nobody may wait for it.
            let _ = done.send(());
        }
    }

    /// Releases the place, again if it is not known whether that was done, until it ends by itself.
    pub(super) async fn release(&self, end: tokio::time::Instant) {
        loop {
            let now = tokio::time::Instant::now();
            if self.run(b"release", now + self.shared.store.deadline).await.is_ok() {
                return;
            }
            let again = tokio::time::Instant::now() + self.shared.settings.ttl / 12;
            if again >= end {
                return;
            }
            tokio::time::sleep_until(again).await;
        }
    }
}
