//! What goes over the wire: the few messages of Envoy that are needed, from `proto/ratelimit.proto`.
//!
//! The code is generated, by `tonic-prost-build` 0.14 with the settings `build_transport(false)`, so that nobody needs `protoc` to
//! build the crate. `proto/README.md` says how to do that again.
#![expect(
    unused_qualifications,
    clippy::allow_attributes,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "generated"
)]

include!("proto/envoy.service.ratelimit.v3.rs");
