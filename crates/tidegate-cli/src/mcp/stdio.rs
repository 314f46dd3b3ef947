//! MCP over standard input and output: the server is a process of ours.

pub(crate) mod process;
mod pump;
