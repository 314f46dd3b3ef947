//! What the admin address knows: the meters, the limits in force, and how full their tables are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tidegate::{Algorithm, Kind, Quota, Stats, Step as _};
use tidegate_http::RateLimit;
use tidegate_http::layer::{Key, Observed};

use super::meter::{LimitMeter, Meter};
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
        let limits = limits.iter().map(|limit| {
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

    /// What a layer of these limits tells of each decision.
    pub(in crate::serve) fn observer(
        self: &Arc<Self>,
        shown: &[Shown],
    ) -> impl for<'a> Fn(&Observed<'a>) + Send + Sync + 'static {
        let board = Arc::clone(self);
        let meters: Vec<Arc<LimitMeter>> = shown.iter().map(|shown| Arc::clone(&shown.meter)).collect();
        move |seen| board.meter.count(&meters, seen)
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

    /// Ends a second in all series.
    pub(super) fn end_second(&self) {
        self.meter.series().end_second(self.meter.total().tally());
        for shown in self.shown().iter() {
            let total = LimitMeter::tally(shown.meter.total());
            shown.meter.series().end_second(total);
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
                Some((Arc::clone(name), self.layer()?.stats(name)?))
            })
            .collect();
        *walk = Some(Walk { at: Instant::now(), took: start.elapsed(), stats: stats.clone() });
        stats
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
