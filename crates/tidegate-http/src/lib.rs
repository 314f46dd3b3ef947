//! Rate limiting for HTTP, in both directions: a server that limits its clients, and a client that obeys its servers.

pub mod fields;
pub mod identity;
pub mod problem;
