//! What the tests of the whole crate need: servers, a proxy that does what networks do, and words for limits.

pub(crate) mod cluster;
pub(crate) mod log;
pub(crate) mod proxy;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod talk;

use tidegate::{Algorithm, Kind, Limit, Mode, Policy, Quota};

pub(crate) fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

/// Enforced token buckets by name.
pub(crate) fn policy(limits: &[(&str, &str)]) -> Policy {
    let limit = |(name, text): &(&str, &str)| Limit {
        name: (*name).into(),
        algorithm: Algorithm::new(Kind::TokenBucket, quota(text)),
        mode: Mode::Enforce,
    };
    Policy::new(limits.iter().map(limit).collect())
}

/// Polls a future once; what it gives, if it is ready.
pub(crate) async fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut future = Some(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.take().map(|future| future.poll(context)) {
            Some(std::task::Poll::Ready(value)) => Some(value),
            _ => None,
        })
    })
    .await
}
