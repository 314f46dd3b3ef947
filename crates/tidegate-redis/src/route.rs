//! Where a batch of calls goes: to the one server, or to the node of a cluster that has their slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::link::Link;
use crate::moving;
use crate::script::Call;
use crate::up::Up;

/// How long to wait before a server is asked again that said that it cannot now.
const PAUSE: Duration = Duration::from_millis(5);
/// So many times a call follows at once where it is sent. Nodes that do not agree yet send it to and fro.
const AT_ONCE: u32 = 4;

pub(crate) enum Route {
    One(Arc<Link>),
    Slot(Arc<Cluster>, u16),
}

/// Where a batch is sent.
pub(crate) struct At {
    pub(crate) link: Arc<Link>,
    pub(crate) up: Up,
    /// Whether the node has the slot only for those who were sent there.
    pub(crate) asking: bool,
}

impl Route {
    fn link(&self) -> Option<Arc<Link>> {
        match self {
            Self::One(link) => Some(Arc::clone(link)),
            Self::Slot(cluster, slot) => cluster.link(*slot),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::One(link) => link.is_up(),
            Self::Slot(..) => self.link().is_some_and(|link| link.is_up()),
        }
    }

    /// Whether a batch goes where it is sent to.
    pub(crate) fn follows(&self) -> bool {
        matches!(self, Self::Slot(..))
    }

    /// How long until the server is tried again.
    pub(crate) fn until_next_try(&self) -> Duration {
        self.link().map_or(Duration::ZERO, |link| link.until_next_try())
    }

    /// Where to send a batch first.
    pub(crate) fn start(&self) -> Option<At> {
        let link = self.link()?;
        let up = link.up()?;
        Some(At { link, up, asking: false })
    }

    /// Where to send calls after a fault that says that they were not run, for the `times`th time. `None` at the deadline.
    pub(crate) async fn again(
        &self,
        at: At,
        fault: &Fault,
        calls: &[Arc<Call>],
        times: u32,
        deadline: Instant,
    ) -> Option<At> {
        match (self, fault) {
            (Self::One(link), Fault::Later { elsewhere: true }) => {
                link.broken(&at.up);
                let up = link.another(Some(&at.up), deadline).await?;
                Some(At { up, ..at })
            }
            (Self::One(_), _) => {
                pause(deadline).await?;
                Some(at)
            }
            (Self::Slot(cluster, slot), Fault::Redirect { to, ask }) => {
                if times > AT_ONCE {
                    pause(deadline).await?;
                }
                let link =
                    if *ask { cluster.asked(to, &at.link) } else { cluster.moved(*slot, to, &at.link) }?;
                let up = link.another(None, deadline).await?;
                Some(At { link, up, asking: *ask })
            }
            (Self::Slot(..), Fault::Split) => {
                // Only the node that gets the slot can be helped, and only with what the other one has not got.
                if at.asking
                    && let Some(from) = self.start()
                {
                    let takes = calls.iter().flat_map(|call| &call.takes);
                    let filled = timeout_at(deadline, moving::fill(takes, &from.up, &at.up)).await.ok()?;
                    if filled == Ok(true) && times <= AT_ONCE {
                        return Some(at);
                    }
                }
                self.later(deadline).await
            }
            (Self::Slot(cluster, _), _) => {
                if matches!(fault, Fault::Later { elsewhere: true }) {
                    at.link.broken(&at.up);
                }
                cluster.doubt();
                self.later(deadline).await
            }
        }
    }

    /// From the beginning, after a pause.
    async fn later(&self, deadline: Instant) -> Option<At> {
        loop {
            pause(deadline).await?;
            if let Some(at) = self.start() {
                return Some(at);
            }
        }
    }
}

/// `None` if it would end after the deadline.
async fn pause(deadline: Instant) -> Option<()> {
    let again = Instant::now() + PAUSE;
    if again >= deadline {
        return None;
    }
    sleep_until(again).await;
    Some(())
}
