//! What the admin address knows: the meters, the limits in force, and how full their tables are.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tidegate::{Algorithm, Kind, Quota, Stats, Step as _};
use tidegate_http::RateLimit;
use tidegate_http::layer::{Key, Observed};
use tidegate_server::resp::Resp;
use tidegate_server::rls::Rls;

use super::meter::{LimitMeter, Meter};
use super::sides::Side;
use crate::check::described;
use crate::limits::FileLimit;
use crate::serve::reload::Reloads;
use crate::serve::store::SharedStore;

/// How long the fullness of the tables is believed, at least.
const STATS_AGE: Duration = Duration::from_secs(1);

/// And how much longer than it took to find out: it costs at most a twentieth of a processor, however large the tables are.
const STATS_REST: u32 = 20;

/// What is shown, of all requests and of the limits in force.
#[derive(Debug)]
pub(in crate::serve) struct Board {
    pub(super) started: Instant,
    pub(super) started_at: SystemTime,
    pub(super) meter: Meter,
    pub(super) reloads: Arc<Reloads>,
    /// Who decides, if not this process.
    pub(super) store: Option<SharedStore>,
    shown: Mutex<Arc<[Shown]>>,
    /// Once it is built, which takes the observer of this board.
    layer: OnceLock<RateLimit>,
    resp: OnceLock<Side<Resp>>,
    grpc: OnceLock<Side<Rls>>,
    draining: AtomicBool,
    stats: Mutex<Option<Walk>>,
}

/// A limit as it is shown.
#[derive(Debug)]
pub(in crate::serve) struct Shown {
    pub(super) meter: Arc<LimitMeter>,
    pub(super) limit: FileLimit,
    /// What it means, in lines.
    pub(super) words: Vec<String>,
    /// Keys with a quota of their own.
    overrides: Vec<(Key<'static>, Quota)>,
}

/// Counts decisions in some of the limits that are shown.
#[derive(Debug, Clone)]
pub(in crate::serve) struct Counter {
    board: Arc<Board>,
    meters: Arc<[Arc<LimitMeter>]>,
}

/// What the tables were like when they were last walked through.
#[derive(Debug, Clone)]
struct Walk {
    at: Instant,
    took: Duration,
    stats: Vec<(Arc<str>, Stats)>,
}

impl Board {
    pub(in crate::serve) fn new(reloads: Arc<Reloads>, store: Option<SharedStore>) -> Self {
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            meter: Meter::new(),
            reloads,
            store,
            shown: Mutex::new(Arc::from([])),
            layer: OnceLock::new(),
            resp: OnceLock::new(),
            grpc: OnceLock::new(),
            draining: AtomicBool::new(false),
            stats: Mutex::new(None),
        }
    }

    /// Limits that may be put in force. Those of a name that is there go on counting where they are.
    pub(in crate::serve) fn prepare(
        &self,
        limits: &[FileLimit],
        mut overrides: impl FnMut(&FileLimit) -> Vec<(Key<'static>, Quota)>,
    ) -> Arc<[Shown]> {
        let previous = self.shown();
        // A limit on descriptors that limits nothing is not asked, so there is nothing to show.
        let are_asked = limits.iter().filter(|limit| !limit.is_on_descriptors() || limit.limits_something());
        let limits = are_asked.map(|limit| {
            let name = &*limit.limit.name;
            let same = previous.iter().find(|shown| *shown.meter.name == *name);
            let meter =
                same.map_or_else(|| Arc::new(LimitMeter::new(name)), |shown| Arc::clone(&shown.meter));
            let text = described(limit);
            let text = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text);
            let words = text.lines().map(|line| line.trim().to_owned()).collect();
            Shown { meter, limit: limit.clone(), words, overrides: overrides(limit) }
        });
        limits.collect()
    }

    /// What counts the decisions of a layer that keeps these limits of all.
    pub(in crate::serve) fn counter(
        self: &Arc<Self>,
        shown: &[Shown],
        of: impl Fn(&FileLimit) -> bool,
    ) -> Counter {
        let mine = shown.iter().filter(|shown| of(&shown.limit));
        Counter { board: Arc::clone(self), meters: mine.map(|shown| Arc::clone(&shown.meter)).collect() }
    }

    /// These limits are in force now.
    pub(in crate::serve) fn show(&self, shown: Arc<[Shown]>) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        // The tables may be other ones.
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What decides, once it is there.
    pub(in crate::serve) fn decides(&self, layer: &RateLimit) {
        // It is built once, and replaced in place.
        let _ = self.layer.set(layer.clone());
    }

    /// Who is answered beside HTTP, and where.
    pub(in crate::serve) fn beside_http(
        &self,
        resp: Option<(Resp, SocketAddr)>,
        grpc: Option<(Rls, SocketAddr)>,
    ) {
        // They are there once, as long as the server is.
        if let Some((resp, address)) = resp {
            let _ = self.resp.set(Side::new(resp, address));
        }
        if let Some((rls, address)) = grpc {
            let _ = self.grpc.set(Side::new(rls, address));
        }
    }

    /// No further request is taken.
    pub(in crate::serve) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn shown(&self) -> Arc<[Shown]> {
        Arc::clone(&self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn layer(&self) -> Option<&RateLimit> {
        self.layer.get()
    }

    pub(super) fn resp(&self) -> Option<&Side<Resp>> {
        self.resp.get()
    }

    pub(super) fn grpc(&self) -> Option<&Side<Rls>> {
        self.grpc.get()
    }

    /// What keeps a limit.
    pub(super) fn keeper(&self, shown: &Shown) -> Option<&RateLimit> {
        if shown.limit.is_on_descriptors() {
            self.grpc().map(|side| side.server.limits())
        } else {
            self.layer()
        }
    }

    /// Ends a second in all series.
    pub(super) fn end_second(&self) {
        self.meter.series().end_second(self.meter.total().tally());
        for shown in self.shown().iter() {
            let total = LimitMeter::tally(shown.meter.total());
            shown.meter.series().end_second(total);
        }
        if let Some(resp) = self.resp() {
            resp.end_second();
        }
        if let Some(grpc) = self.grpc() {
            grpc.end_second();
        }
    }

    /// How full each table is, or was not long ago. It can take long: a walk through tables of many megabytes.
    pub(super) fn stats(&self) -> Vec<(Arc<str>, Stats)> {
        let mut walk = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(walk) = &*walk
            && walk.at.elapsed() < STATS_AGE.max(walk.took * STATS_REST)
        {
            return walk.stats.clone();
        }
        let start = Instant::now();
        let stats: Vec<_> = self
            .shown()
            .iter()
            .filter_map(|shown| {
                let name = &shown.meter.name;
                Some((Arc::clone(name), self.keeper(shown)?.stats(name)?))
            })
            .collect();
        *walk = Some(Walk { at: Instant::now(), took: start.elapsed(), stats: stats.clone() });
        stats
    }
}

impl Counter {
    pub(in crate::serve) fn count(&self, seen: &Observed<'_>) {
        self.board.meter.count(&self.meters, seen);
    }
}

impl Shown {
    /// The quota of a key.
    pub(super) fn quota(&self, key: &Key<'_>) -> Quota {
        let other = self.overrides.iter().find(|(other, _)| other == key);
        other.map_or(self.limit.quota, |(_, quota)| *quota)
    }

    /// The most that a key with this quota can have left; `None` without a limit.
    pub(super) fn capacity(&self, quota: Quota) -> Option<u64> {
        let algorithm = self.limit.limit.algorithm;
        let algorithm = if quota == self.limit.quota { algorithm } else { algorithm.with_quota(quota) };
        capacity(&algorithm)
    }
}

fn capacity(algorithm: &Algorithm) -> Option<u64> {
    let has_one = algorithm.kind() != Kind::Unlimited;
    has_one.then(|| algorithm.look(&algorithm.fresh(), 0, 0).remaining())
}
