//! What the tests of the whole crate need: servers, a proxy that does what networks do, and words for limits.

pub(crate) mod cluster;
pub(crate) mod log;
pub(crate) mod proxy;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod talk;

use std::sync::Arc;

use tidegate::{Algorithm, Kind, Limit, Mode, Policy, Quota};
use tidegate_redis::SharedLimiter;

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

/// Runs callers at one time, each with a number; what they give.
pub(crate) async fn at_once<T, F>(callers: usize, caller: impl Fn(usize) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let callers: Vec<_> = (0..callers).map(|number| tokio::spawn(caller(number))).collect();
    let mut all = Vec::new();
    for caller in callers {
        all.push(caller.await.unwrap());
    }
    all
}

/// How many of 2000 calls on one key are allowed, of a hundred callers at one time.
pub(crate) async fn hot(limiter: &Arc<SharedLimiter>) -> u64 {
    let caller = |_| {
        let limiter = Arc::clone(limiter);
        async move {
            let mut allowed = 0;
            for _ in 0..20 {
                allowed += u64::from(limiter.check("hot").await.is_allowed());
            }
            allowed
        }
    };
    at_once(100, caller).await.into_iter().sum()
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
