//! What the servers of this program have in common: where they listen, the connections they take, and how they end.

pub(crate) mod address;
pub(crate) mod connections;
mod impatient;
pub(crate) mod signals;
