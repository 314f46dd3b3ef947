//! Who is told of each decision.

use tidegate_http::layer::Observed;

use super::admin::Counter;
use super::log;
use super::store::SharedStore;

/// Tells the log, the watch over the store, and the admin address, of those of them that there are.
#[derive(Debug, Clone)]
pub(super) struct Observer {
    pub(super) store: Option<SharedStore>,
    pub(super) counter: Option<Counter>,
}

impl Observer {
    pub(super) fn tell(&self, seen: &Observed<'_>) {
        if let Some(counter) = &self.counter {
            counter.count(seen);
        }
        if let (Some(store), Some(made)) = (&self.store, seen.made()) {
            store.noticed(made);
        }
        log::decision(seen);
    }
}
