//! A cluster: which node has which slot, and a connection to each.
//!
//! The map comes from `CLUSTER SLOTS` of any node, and is asked for anew when a connection is lost, when a call was sent to
//! another node, and every [`LOOK_EVERY`]. While a slot has no node that can be used, it is asked for again and again, so a
//! failover is followed as soon as the nodes know of it. A call that is sent elsewhere corrects its slot at once.
//!
//! Each node is a [`Link`] with a keeper and a breaker of its own: a node that is away answers for its own slots only. The
//! library's cluster client is not used: it sends calls again whose connection broke, which may have run.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::address;
use crate::common::Common;
use crate::error::{StoreFault, Why};
use crate::health::Backoff;
use crate::link::{Link, Place};
use crate::slot::SLOTS;
use crate::up;
use crate::warning::Warning;

/// How often the map is asked for when nothing seems wrong.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The longest wait before it is asked for again when something is.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The time between two looks, so that nodes that do not agree do not have it asked for all the time.
const LOOK_LEAST: Duration = Duration::from_millis(20);
/// How many nodes are asked at one time. The first answer counts, so one that hangs does no harm.
const ASKED: usize = 3;
/// For how long a node without slots is kept after a call was sent there.
const KEPT: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    seeds: Vec<ConnectionInfo>,
    common: Arc<Common>,
    runtime: Handle,
    map: RwLock<Map>,
    /// Told when the map may be wrong.
    doubt: watch::Sender<()>,
    /// Where the next look begins.
    next: AtomicUsize,
}

#[derive(Default)]
struct Map {
    /// By slot; empty before the first look.
    slots: Vec<Option<Arc<Link>>>,
    /// By host and port.
    nodes: HashMap<Box<str>, Node>,
}

struct Node {
    link: Arc<Link>,
    /// When a call was last sent there by another node.
    asked: Option<Instant>,
}

/// Slots that one node has.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    /// Empty for the host that told it.
    host: String,
    port: u16,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, common: Arc<Common>, runtime: Handle) -> Arc<Self> {
        let (doubt, _) = watch::channel(());
        let next = AtomicUsize::new(0);
        Arc::new(Self { seeds, common, runtime, map: RwLock::default(), doubt, next })
    }

    /// Where it was first looked for.
    pub(crate) fn address(&self) -> Box<str> {
        let seeds: Vec<String> = self.seeds.iter().map(|info| info.addr().to_string()).collect();
        seeds.join(",").into()
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that has a slot.
    pub(crate) fn link(&self, slot: u16) -> Option<Arc<Link>> {
        self.read().slots.get(usize::from(slot)).cloned().flatten()
    }

    /// The nodes that have slots, each once.
    fn owners(&self) -> Vec<Arc<Link>> {
        let map = self.read();
        let mut owners: Vec<Arc<Link>> = Vec::new();
        for link in map.slots.iter().flatten() {
            // Slots come in ranges, so most are those of the last owner that was found.
            if !owners.iter().rev().any(|owner| Arc::ptr_eq(owner, link)) {
                owners.push(Arc::clone(link));
            }
        }
        owners
    }

    /// Whether every slot has a node that can be used.
    pub(crate) fn is_up(&self) -> bool {
        let covered = {
            let map = self.read();
            map.slots.len() == usize::from(SLOTS) && map.slots.iter().all(Option::is_some)
        };
        covered && self.owners().iter().all(|link| link.is_up())
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let mut all = Vec::new();
        for warning in self.owners().iter().flat_map(|link| link.warnings()) {
            if !all.contains(&warning) {
                all.push(warning);
            }
        }
        all
    }

    /// Has the map looked at soon.
    pub(crate) fn doubt(&self) {
        self.doubt.send_replace(());
    }

    /// A node said that `slot` is at `to` now.
    pub(crate) fn moved(&self, slot: u16, to: &str, said: &Link) -> Option<Arc<Link>> {
        self.doubt();
        let mut map = self.write();
        let link = self.node(&mut map, &self.place(to, said)?);
        if let Some(owner) = map.slots.get_mut(usize::from(slot)) {
            *owner = Some(Arc::clone(&link));
        }
        Some(link)
    }

    /// A node said that this call is to be asked at `to`.
    pub(crate) fn asked(&self, to: &str, said: &Link) -> Option<Arc<Link>> {
        let place = self.place(to, said)?;
        let mut map = self.write();
        let link = self.node(&mut map, &place);
        if let Some(node) = map.nodes.get_mut(&*link.address()) {
            node.asked = Some(Instant::now());
        }
        Some(link)
    }

    /// What `host:port` means, if `said` is who wrote it.
    fn place(&self, to: &str, said: &Link) -> Option<ConnectionInfo> {
        let (host, port) = to.rsplit_once(':')?;
        let host = if host.is_empty() { address::host_of(said.info()?) } else { host };
        Some(address::at(self.seeds.first()?, host, port.parse().ok()?))
    }

    /// The node at a place, which is made if it is not known.
    fn node(&self, map: &mut Map, place: &ConnectionInfo) -> Arc<Link> {
        let address: Box<str> = place.addr().to_string().into();
        let node = map.nodes.entry(address).or_insert_with(|| {
            let place = Place::Fixed(place.clone());
            let link = Link::new(place, Arc::clone(&self.common), Some(self.doubt.clone()));
            link.try_at_once();
            self.runtime.spawn(Link::keep(Arc::downgrade(&link)));
            Node { link, asked: None }
        });
        Arc::clone(&node.link)
    }

    /// Looks at the map, and waits until the primary of every slot is connected to.
    pub(crate) async fn connect(&self) -> Result<(), StoreFault> {
        let within = self.common.connect_timeout;
        let late = StoreFault(Why::Late(within));
        let deadline = tokio::time::Instant::now() + within;
        timeout(within, self.look()).await.unwrap_or(Err(late.clone()))?;
        for owner in self.owners() {
            // Its keeper is at it.
            if owner.another(None, deadline).await.is_none() {
                return Err(owner.last_fault().unwrap_or(late));
            }
        }
        Ok(())
    }

    /// Asks some nodes for the map, and takes the first answer.
    async fn look(&self) -> Result<(), StoreFault> {
        let within = self.common.connect_timeout;
        let mut links: Vec<Arc<Link>> =
            self.read().nodes.values().map(|node| Arc::clone(&node.link)).collect();
        links.retain(|link| link.is_up());
        links.sort_by_key(|link| link.address());
        let known = links.len();
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut asked = JoinSet::new();
        for offset in 0..known.min(ASKED) {
            let Some(link) = links.get((turn + offset) % known).cloned() else { continue };
            let Some((up, info)) = link.up().zip(link.info().cloned()) else { continue };
            asked.spawn(async move {
                let told = timeout(within, up.slots()).await;
                (info, told.map_or(Err(StoreFault(Why::Late(within))), |told| Ok(told?)))
            });
        }
        for offset in 0..self.seeds.len().min(ASKED) {
            if known > 0 {
                break;
            }
            let Some(info) = self.seeds.get((turn + offset) % self.seeds.len()).cloned() else { continue };
            asked.spawn(async move {
                let told = timeout(within, slots_of(info.clone(), within)).await;
                (info, told.unwrap_or(Err(StoreFault(Why::Late(within)))))
            });
        }
        let mut fault = StoreFault(Why::NoCluster);
        while let Some(told) = asked.join_next().await {
            match told {
                Ok((info, Ok(value))) => match ranges(&value) {
                    Some(ranges) if !ranges.is_empty() => {
                        self.adopt(&ranges, address::host_of(&info));
                        return Ok(());
                    }
                    _ => fault = StoreFault(Why::NoCluster),
                },
                Ok((_, Err(why))) => fault = why,
                Err(_) => {}
            }
        }
        Err(fault)
    }

    /// Makes a map the map.
    fn adopt(&self, ranges: &[Range], told_by: &str) {
        let Some(template) = self.seeds.first() else { return };
        let mut map = self.write();
        let mut slots: Vec<Option<Arc<Link>>> = vec![None; usize::from(SLOTS)];
        let mut owners = HashSet::new();
        for range in ranges {
            let host = if range.host.is_empty() { told_by } else { &range.host };
            let link = self.node(&mut map, &address::at(template, host, range.port));
            owners.insert(link.address());
            if let Some(slots) = slots.get_mut(usize::from(range.first)..=usize::from(range.last)) {
                slots.fill(Some(link));
            }
        }
        // A node without slots ends when its last call does.
        let now = Instant::now();
        map.nodes.retain(|address, node| {
            let asked = node.asked.is_some_and(|asked| now.saturating_duration_since(asked) < KEPT);
            asked || owners.contains(address)
        });
        map.slots = slots;
    }

    /// Keeps the map right until the store is dropped.
    pub(crate) async fn keep(cluster: Weak<Self>) {
        let Some(now) = cluster.upgrade() else { return };
        let mut doubt = now.doubt.subscribe();
        drop(now);
        let mut backoff = Backoff::new();
        loop {
            let Some(now) = cluster.upgrade() else { return };
            let well = now.look().await.is_ok() && now.is_up();
            drop(now);
            if well {
                backoff = Backoff::new();
                // Only a weak reference is held while it waits. An error is the end of the store.
                if let Ok(Err(_)) = timeout(LOOK_EVERY, doubt.changed()).await {
                    return;
                }
                tokio::time::sleep(LOOK_LEAST).await;
            } else {
                doubt.mark_unchanged();
                tokio::time::sleep(backoff.wait().min(LOOK_AGAIN)).await;
            }
        }
    }
}

/// What a node says that is not connected to yet.
async fn slots_of(info: ConnectionInfo, within: Duration) -> Result<Value, StoreFault> {
    let mut connection = up::open(info, within).await?;
    let told: RedisResult<Value> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
    Ok(told?)
}

/// The primaries of `CLUSTER SLOTS`: for each range its first and last slot, the primary, and replicas.
fn ranges(told: &Value) -> Option<Vec<Range>> {
    let Value::Array(told) = told else { return None };
    told.iter().map(range).collect()
}

fn range(told: &Value) -> Option<Range> {
    let Value::Array(parts) = told else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &**parts else { return None };
    let [host, Value::Int(port), ..] = &**primary else { return None };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        Value::Nil => String::new(),
        _ => return None,
    };
    // A node that does not know its own name yet.
    let host = if host == "?" { String::new() } else { host };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    (first <= last && last < SLOTS).then_some(Range { first, last, host, port: u16::try_from(*port).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: &str) -> Value {
        Value::BulkString(of.as_bytes().to_vec())
    }

    fn told(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(Vec::new())]),
            Value::Array(vec![text("replica"), Value::Int(1), text("id")]),
        ])
    }

    #[test]
    fn the_primary_of_a_range_is_the_first_node() {
        let all = Value::Array(vec![
            told(0, 8191, text("one"), 7000),
            told(8192, 16383, Value::Nil, 7001),
            told(5, 5, text("?"), 7002),
        ]);
        let expected = [(0, 8191, "one", 7000), (8192, 16383, "", 7001), (5, 5, "", 7002)]
            .map(|(first, last, host, port)| Range { first, last, host: host.to_owned(), port });
        assert_eq!(ranges(&all).unwrap(), expected);
    }

    #[test]
    fn what_is_no_map_is_not_taken_for_one() {
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![told(0, 16384, text("one"), 7000)]),
            Value::Array(vec![told(9, 8, text("one"), 7000)]),
            Value::Array(vec![told(0, 1, text("one"), 70_000)]),
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(1), Value::Array(Vec::new())])]),
        ] {
            assert_eq!(ranges(&wrong), None, "{wrong:?}");
        }
    }
}
