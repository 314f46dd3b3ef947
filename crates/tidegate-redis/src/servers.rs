//! The servers of a store: one, or the nodes of a cluster.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::address::Address;
use crate::batcher::Batcher;
use crate::cluster::Cluster;
use crate::common::Common;
use crate::error::{Error, StoreFault};
use crate::fault::Fault;
use crate::link::{Link, Place};
use crate::route::Route;
use crate::script::{Call, Verdict};
use crate::sentinel::Sentinels;
use crate::slot;
use crate::warning::Warning;

pub(crate) struct Servers {
    pub(crate) common: Arc<Common>,
    pub(crate) runtime: Handle,
    room: Arc<Semaphore>,
    /// How many calls may wait.
    pub(crate) max_waiting: usize,
    kind: Kind,
}

enum Kind {
    One(Arc<Link>, Arc<Batcher>),
    /// With a batcher for each slot that was ever asked.
    Cluster(Arc<Cluster>, Box<[OnceLock<Arc<Batcher>>]>),
}

impl Servers {
    pub(crate) fn new(
        address: Address,
        common: Arc<Common>,
        runtime: Handle,
        max_waiting: usize,
    ) -> Result<Self, Error> {
        let room = Arc::new(Semaphore::new(max_waiting.min(Semaphore::MAX_PERMITS)));
        let one = |place| {
            let link = Link::new(place, Arc::clone(&common), None);
            let route = Route::One(Arc::clone(&link));
            Kind::One(link, Batcher::new(route, Arc::clone(&common), runtime.clone(), Arc::clone(&room)))
        };
        let kind = match address {
            Address::One(info) => one(Place::Fixed(info)),
            Address::Sentinels { name, sentinels, server } => {
                one(Place::Told(Sentinels::new(&name, sentinels, server).map_err(Error::Address)?))
            }
            Address::Cluster { seeds } => {
                let batchers = (0..slot::SLOTS).map(|_| OnceLock::new()).collect();
                Kind::Cluster(Cluster::new(seeds, Arc::clone(&common), runtime.clone()), batchers)
            }
        };
        Ok(Self { common, runtime, room, max_waiting, kind })
    }

    /// Where calls on this key go.
    fn batcher(&self, key: &[u8]) -> Option<&Arc<Batcher>> {
        match &self.kind {
            Kind::One(_, batcher) => Some(batcher),
            Kind::Cluster(cluster, batchers) => {
                let slot = slot::of(key);
                let new = || {
                    let route = Route::Slot(Arc::clone(cluster), slot);
                    let (common, room) = (Arc::clone(&self.common), Arc::clone(&self.room));
                    Batcher::new(route, common, self.runtime.clone(), room)
                };
                batchers.get(usize::from(slot)).map(|batcher| batcher.get_or_init(new))
            }
        }
    }

    /// Has a call decided before `deadline`. All its keys have one tag.
    pub(crate) async fn decide(&self, call: Arc<Call>, deadline: Instant) -> Result<Verdict, Fault> {
        let key = call.takes.first().map_or(&[][..], |take| &take.key);
        match self.batcher(key) {
            Some(batcher) => batcher.decide(call, deadline).await,
            None => Err(Fault::Down),
        }
    }

    /// How long until the server of this key is tried again, for those who are told to come back.
    pub(crate) fn until_next_try(&self, key: &[u8]) -> Duration {
        self.batcher(key).map_or(Duration::ZERO, |batcher| batcher.route().until_next_try())
    }

    /// Where scripts on this key go.
    pub(crate) fn route(&self, key: &[u8]) -> Option<&Route> {
        self.batcher(key).map(|batcher| batcher.route())
    }

    /// Whether it is known, without a look at the key, that nobody can be asked.
    pub(crate) fn is_away(&self) -> bool {
        match &self.kind {
            Kind::One(link, _) => !link.is_up(),
            Kind::Cluster(..) => false,
        }
    }

    /// Whether buckets of different keys may be on different servers.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(..))
    }

    /// Whether all of them are connected to.
    pub(crate) fn is_up(&self) -> bool {
        match &self.kind {
            Kind::One(link, _) => link.is_up(),
            Kind::Cluster(cluster, _) => cluster.is_up(),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        match &self.kind {
            Kind::One(link, _) => link.warnings(),
            Kind::Cluster(cluster, _) => cluster.warnings(),
        }
    }

    pub(crate) fn address(&self) -> Box<str> {
        match &self.kind {
            Kind::One(link, _) => link.address(),
            Kind::Cluster(cluster, _) => cluster.address(),
        }
    }

    /// Connects, once.
    pub(crate) async fn connect(&self) -> Result<(), StoreFault> {
        match &self.kind {
            Kind::One(link, _) => link.connect().await,
            Kind::Cluster(cluster, _) => cluster.connect().await,
        }
    }

    /// Connects in the background, for as long as the store is there. `at_once` if nobody has tried yet.
    pub(crate) fn keep(&self, at_once: bool) {
        match &self.kind {
            Kind::One(link, _) => {
                if at_once {
                    link.try_at_once();
                }
                self.runtime.spawn(Link::keep(Arc::downgrade(link)));
            }
            Kind::Cluster(cluster, _) => {
                self.runtime.spawn(Cluster::keep(Arc::downgrade(cluster)));
            }
        }
    }
}
