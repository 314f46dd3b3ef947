//! The way from a leased limiter to its buckets.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::lease::{Ask, Terms};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::fault::Fault;
use crate::lend::{self, Told};
use crate::limiter::bucket_key;
use crate::store::Inner as Store;
use crate::units::Units;

/// The buckets of one limiter.
pub(super) struct Bank {
    store: Arc<Store>,
    name: Box<str>,
    limit: Box<str>,
    units: Units,
    ttl_us: u64,
}

impl Bank {
    pub(super) fn new(store: Arc<Store>, name: &str, limit: &str, units: Units, terms: Terms) -> Self {
        let ttl_us = u64::try_from(terms.ttl().as_micros()).unwrap_or(u64::MAX);
        Self { store, name: name.into(), limit: limit.into(), units, ttl_us }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_up(&self) -> bool {
        !self.store.servers.is_away()
    }

    pub(super) fn deadline(&self) -> Duration {
        self.store.deadline
    }

    pub(super) fn counters(&self) -> &Counters {
        self.store.counters()
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.store.servers.runtime
    }

    /// Asks the bucket of `key`. It ends by the deadline of the store.
    pub(super) async fn lend(&self, key: &[u8], ask: Ask) -> Result<Told, Fault> {
        let key = bucket_key(&self.name, key, &self.limit);
        let arguments = lend::arguments(&key, &self.units, self.ttl_us, &ask);
        let (servers, deadline) = (&self.store.servers, Instant::now() + self.store.deadline);
        let reply = lend::SCRIPT.run(servers, &arguments, deadline).await?;
        let told = lend::told(&reply).ok_or_else(|| {
            let text = "a key of the limiter holds something else";
            servers.common.refused(text);
            Fault::Refused(text.into())
        })?;
        let counters = self.counters();
        counters.lent.add_u64(told.loan.map_or(0, |loan| loan.tokens));
        counters.returned.add_u64(told.returned);
        Ok(told)
    }
}
