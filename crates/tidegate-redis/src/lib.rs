//! Rate limits that many machines share, on Redis or Valkey: one bucket, one deadline, exact or by leases; and places in
//! flight.
//!
//! ```no_run
//! use tidegate::Quota;
//! use tidegate_redis::{OnFailure, Store};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::builder("redis://127.0.0.1:6379").connect().await?;
//! for warning in store.warnings() {
//!     eprintln!("warning: {warning}");
//! }
//! let limiter = store.limiter("api", "10/s burst 20".parse::<Quota>()?, OnFailure::Open)?;
//! let answer = limiter.check("tenant 7").await;
//! if !answer.is_allowed() {
//!     println!("{:?}, {}", answer.decision.retry_after(), answer.made.name());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - [`Store`]: a server, the primary that sentinels tell, or a cluster, and the connections that all its limiters share.
//! - [`SharedLimiter`]: one limit or several for each of many keys, all charged or none.
//! - [`StoreBuckets`]: the same buckets behind the port [`tidegate::shared`], as the layer of `tidegate-http` takes them.
//! - [`LeasedLimiter`]: the same bucket for one limit, with a trip for many calls and an overshoot that is chosen.
//! - [`Places`]: how many calls run at once, on all machines together.
//! - [`Answer`]: the decision, which limit bound, what is left, and how it was made ([`Made`]).
//! - [`OnFailure`]: what is answered without the store; chosen for each limiter, without a default.
//! - [`Stats`] and [`Warning`]: what happened, and what is wrong with the settings of the server.
//!
//! **Promise.** While one primary lives, all processes together are allowed what one bucket allows: at most `B + r·t` in any
//! interval of length `t`. The same calls at the same times, in whole microseconds, are decided as by
//! [`tidegate::Limiter`]. Every answer comes before the deadline.
//!
//! **When the store fails.** A call is sent again only when the server said that it did not run it. A reply that does not
//! come is *unknown*: the call may have been charged, nothing is given back, and the limiter's [`OnFailure`] answers. After
//! five such in a row, or half of a second's, the breaker opens: calls are answered at once, and a connection is tried in
//! the background every 0.1 to 2 s. In a cluster each node has a breaker of its own.
//!
//! **Failovers.** The primary is found again through the sentinels, or the other nodes of the cluster; meanwhile the limiter's
//! [`OnFailure`] answers. Calls that a node sends elsewhere, while a slot moves, go there before their deadline. For those who
//! want no charge forgotten there is [`wait_for_replicas`](StoreBuilder::wait_for_replicas).
//!
//! **Beyond the promise.** Each of these adds at most one burst for each key, and no more than was spent in the time:
//!
//! - a failover to a replica that had not yet got the last writes;
//! - a restart without persistence, `FLUSHALL` or an eviction ([`Stats::lost_state`] counts the first, when it is noticed);
//! - a `kill -9` with `appendfsync everysec`, if the disk is busy: the server then answers up to 2 s before it writes;
//! - a clock of the server that is set ahead. One that is set back holds callers up until it is where it was.
//!
//! **Batches.** Calls that come while others are under way go together in one script, without a timer. A lone call is
//! sent as it is. The server decides them in order, as if they had come one by one. In a cluster these are calls of one slot,
//! which means of one key.
//!
//! **Leases.** A busy key of a [`LeasedLimiter`] costs about 20 trips a second and process, whatever its load:
//!
//! ```no_run
//! use std::{num::NonZeroU64, time::Duration};
//! use tidegate::Quota;
//! use tidegate_redis::{Leasing, OnFailure, PlacesSettings, Store, WithoutPlaces};
//!
//! # async fn example(store: Store) -> Result<(), Box<dyn std::error::Error>> {
//! let quota: Quota = "1000/s burst 2000".parse()?;
//! // At most 100 tokens too many in any interval: leases live for 100 ms.
//! let leasing = Leasing { max_overshoot: 100, keys: 10_000 };
//! let limiter = store.leased_limiter("api", quota, leasing, OnFailure::Open).await?;
//! assert!(limiter.check("tenant 7").await.is_allowed());
//!
//! let settings = PlacesSettings {
//!     limit: NonZeroU64::new(4).ok_or("not zero")?,
//!     ttl: Duration::from_secs(30),
//!     without_store: WithoutPlaces::Closed,
//! };
//! let jobs = store.places("jobs", settings)?;
//! match jobs.acquire("tenant 7").await {
//!     Ok(place) => {
//!         // The work, and beside it `place.lost()`; the place is released when it is dropped.
//!         place.release().await;
//!     }
//!     Err(none) => println!("try again, in {:?} at the latest", none.retry_after),
//! }
//! limiter.give_back().await; // before the process ends
//! # Ok(())
//! # }
//! ```
//!
//! **Not here yet.** Leases of several limits at once, refunds, and algorithms other than
//! the token bucket.

mod address;
mod answer;
mod asking;
mod batcher;
mod buckets;
mod cluster;
mod common;
mod counters;
mod error;
mod failure;
mod fault;
mod health;
mod leased;
mod lend;
mod limiter;
mod link;
mod moving;
mod places;
mod route;
mod runner;
mod script;
mod sentinel;
mod servers;
mod shield;
mod slot;
mod store;
mod units;
mod up;
mod warning;

pub use answer::Answer;
pub use buckets::StoreBuckets;
pub use counters::Stats;
pub use error::{Error, StoreFault};
pub use leased::{LeasedLimiter, Leasing};
pub use limiter::SharedLimiter;
pub use places::{NoPlace, Place, Places, PlacesSettings, WithoutPlaces};
pub use store::{Store, StoreBuilder};
pub use tidegate::shared::{Made, OnFailure};
pub use warning::Warning;

/// The examples of the README, so that they are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// What callers share can be shared by threads, and their futures can be sent between them.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Store>();
    shared::<SharedLimiter>();
    shared::<StoreBuckets>();
    shared::<LeasedLimiter>();
    shared::<Places>();
    shared::<Place>();
    const fn sent<T: Send>(_: fn(&'static SharedLimiter) -> T) {}
    sent(|limiter| limiter.check("key"));
    sent(|limiter| limiter.peek("key", 1));
    const fn sent_leased<T: Send>(_: fn(&'static LeasedLimiter) -> T) {}
    sent_leased(|limiter| limiter.check("key"));
    const fn sent_places<T: Send>(_: fn(&'static Places) -> T) {}
    sent_places(|places| places.acquire("key"));
};

#[cfg(test)]
mod timed;

/// Servers for the tests.
#[cfg(test)]
#[path = "../tests/harness/server.rs"]
#[expect(dead_code, reason = "the tests of the whole crate use all of it")]
mod server;
