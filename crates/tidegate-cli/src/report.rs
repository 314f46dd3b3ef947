//! What the verbs print.

pub(crate) mod plot;
