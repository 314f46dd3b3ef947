//! What the verbs print: tables, numbers in words, plots.

pub(crate) mod plot;
pub(crate) mod table;
pub(crate) mod text;
