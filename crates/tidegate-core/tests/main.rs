//! Tests of the core against a slow reference in exact rational numbers.
//!
//! One test program, so that all of them share the reference and link once.

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod known_failures;
mod lease;
mod lease_adversary;
#[cfg(test)]
mod mission;
#[cfg(test)]
mod model;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod queue_model;
#[cfg(test)]
mod quota_text;
