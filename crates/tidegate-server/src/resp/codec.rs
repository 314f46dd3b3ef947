//! Bytes to requests, and answers to bytes. Pure: no input or output, no clock, no allocation for a request.
//!
//! **Source.** The Redis serialization protocol specification, RESP2 and RESP3 (redis.io, "Redis serialization protocol
//! specification"). Clients send arrays of bulk strings in both, or a line of words; what differs is a few answers.

pub mod reply;
pub mod request;
