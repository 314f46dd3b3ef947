//! How decisions were made, and what went wrong, as numbers that only grow.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::Fault;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How decisions were made and what went wrong since the store was made, from [`Store::stats`](crate::Store::stats).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Decisions by the store.
    exact,
    /// Rejections that the store's last rejection of the same bucket implied, without asking again.
    remembered,
    /// Calls that were allowed from tokens that this process held.
    leased,
    /// Tokens that this process took out of buckets to lease.
    lent,
    /// Tokens that it gave back, and that the buckets took.
    returned,
    /// Decisions by the local bucket of a limiter, for want of the store.
    local,
    /// Calls that were allowed for want of the store.
    open,
    /// Calls that were rejected for want of the store.
    closed,
    /// Calls without a reply before the deadline. They may have been charged; nothing is given back.
    late,
    /// Calls whose connection broke before the reply. They may have been charged; nothing is given back.
    broken,
    /// Calls that were not sent as there was no connection: the breaker was open.
    not_connected,
    /// Calls that were not sent as too many waited, or not before their deadline.
    busy,
    /// Calls that the store answered with an error; [`Store::last_refusal`](crate::Store::last_refusal) has the text.
    refused,
    /// Calls that the store could not decide before the deadline, and said so: loading, in a failover.
    unready,
    /// Calls that the store allowed and charged, and that fewer replicas have than were asked for
    /// ([`wait_for_replicas`](crate::StoreBuilder::wait_for_replicas)).
    unreplicated,
    /// Scripts run, each for one call or a batch.
    scripts,
    /// Scripts that were sent again, since the store said that it had not run them.
    retries,
    /// How often the script was loaded anew.
    loads,
    /// How often the breaker opened.
    opened,
    /// How often a connection was made.
    connected,
    /// How often a connection found that the store had lost its keys: every bucket was full again.
    lost_state,
}

impl Counters {
    /// Counts a call that the store did not decide.
    pub(crate) fn fault(&self, fault: &Fault) {
        let counter = match fault {
            Fault::Down => &self.not_connected,
            Fault::Busy => &self.busy,
            Fault::Late => &self.late,
            Fault::Broken => &self.broken,
            Fault::Refused(_) => &self.refused,
            Fault::NoScript | Fault::Later { .. } | Fault::Split | Fault::Redirect { .. } => &self.unready,
            Fault::Unreplicated => &self.unreplicated,
        };
        counter.one();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn add_u64(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }
}
