//! How one call is decided: by its cost alone, by what was rejected a moment ago, or by the store.

use std::sync::Arc;
use std::time::Instant;

use tidegate::Decision;

use crate::fault::Fault;
use crate::script::{Call, Take, Verdict};
use crate::store::Inner;

/// What is known about a call.
pub(crate) enum Known {
    /// It costs more than a bucket can hold, so nobody was asked.
    Never,
    /// The bucket with this index has rejected it a moment ago, so nobody was asked.
    Remembered(usize, Decision),
    /// The store said so, to what was sent then.
    Told(Verdict, Instant),
}

impl Inner {
    /// Has a call decided, before the deadline.
    pub(crate) async fn ask(&self, call: &Arc<Call>) -> Result<Known, Fault> {
        let sent = Instant::now();
        let counters = self.counters();
        let is_never = |take: &Take| !take.shadow && take.cost > take.bucket.capacity();
        if call.takes.iter().any(is_never) {
            counters.exact.one();
            return Ok(Known::Never);
        }
        if call.charge
            && let Some((limit, decision)) = self.recall(call)
        {
            counters.remembered.one();
            return Ok(Known::Remembered(limit, decision));
        }
        let deadline = tokio::time::Instant::from_std(sent + self.deadline);
        let verdict = self.servers.decide(Arc::clone(call), deadline).await?;
        counters.exact.one();
        Ok(Known::Told(verdict, sent))
    }

    /// Remembers that a bucket rejected what was sent then.
    pub(crate) fn remember(&self, take: &Take, decision: &Decision, sent: Instant) {
        self.shield.remember(&take.key, take.cost, sent, decision);
    }

    /// What the store's last rejections say to this call: the longest wait of them.
    fn recall(&self, call: &Call) -> Option<(usize, Decision)> {
        let enforced = call.takes.iter().enumerate().filter(|(_, take)| !take.shadow);
        let known =
            enforced.filter_map(|(limit, take)| Some((limit, self.shield.recall(&take.key, take.cost)?)));
        known.reduce(|old, new| if new.1.retry_after() > old.1.retry_after() { new } else { old })
    }
}

impl Take {
    /// What a full bucket says to it.
    pub(crate) fn full(&self) -> Decision {
        self.bucket.decision(self.bucket.capacity(), 0, self.cost)
    }
}
