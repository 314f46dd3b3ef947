//! What is wrong with the settings of a store that works.

use std::fmt;

/// A setting of the store that breaks a promise, found when a connection was made; the text says how to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// When its memory is full, the store may evict buckets that are in use. An evicted bucket is full again.
    Evicts {
        /// Its `maxmemory-policy`.
        policy: Box<str>,
    },
    /// The `maxmemory-policy` may not be read with these rights.
    CannotTell,
}

impl Warning {
    /// From the `maxmemory-policy`, or `None` where it cannot be read.
    pub(crate) fn of(policy: Option<&str>) -> Vec<Self> {
        match policy {
            // A bucket that is near its time to live is one that is nearly full: the least harm, but still some.
            Some("noeviction" | "volatile-ttl") => Vec::new(),
            Some(policy) => vec![Self::Evicts { policy: policy.into() }],
            None => vec![Self::CannotTell],
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Evicts { policy } => write!(
                f,
                "the store evicts keys by `{policy}` when its memory is full, and an evicted bucket is full again; \
                 set `maxmemory-policy noeviction`, or volatile-ttl"
            ),
            Self::CannotTell => f.write_str(
                "the store does not let this user read `maxmemory-policy`; make sure that it is noeviction or volatile-ttl",
            ),
        }
    }
}
