//! What is counted of each decision, in the thread that decides: some tens of nanoseconds.

use std::fmt::{self, Write as _};
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::Decision;
use tidegate::shared::Made;
use tidegate_http::layer::{Key, Observed, Outcome, SeenLimit};

use super::series::{Series, Tally};
use super::sharded::Sharded;
use super::top::{Counted, Top};

/// The upper bounds of the histogram, in nanoseconds. Below the first is what one limit takes, above a millisecond what
/// the system took the processor away for.
pub(super) const TOOK_NS: [u64; 13] = [
    250,
    500,
    1_000,
    2_000,
    4_000,
    8_000,
    16_000,
    32_000,
    64_000,
    250_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// What requests can become, as labels and in this order.
pub(super) const OUTCOMES: [&str; 7] =
    ["allowed", "queued", "rejected", "never", "key_full", "shed", "unanswered"];

/// What a limit can say of a request, as labels and in this order.
pub(super) const DECISIONS: [&str; 4] = ["allowed", "rejected", "never", "refused_elsewhere"];

/// Characters of a key that are kept. Longer ones are cut, and their level is not known.
const NAME_MAX: usize = 96;

/// All requests.
#[derive(Debug)]
pub(super) struct Meter {
    parts: Sharded<Requests>,
    series: Mutex<Series>,
    hasher: foldhash::fast::RandomState,
}

/// What became of requests, and how long it took to say so.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Requests {
    pub(super) outcomes: [u64; OUTCOMES.len()],
    /// How shared buckets decided, in the order of [`Made::ALL`].
    pub(super) made: [u64; Made::ALL.len()],
    /// How many took at most each of [`TOOK_NS`] and more than the one before; the last took longer than all of them.
    pub(super) took: [u64; TOOK_NS.len() + 1],
    pub(super) took_ns: u64,
}

/// One limit.
#[derive(Debug)]
pub(super) struct LimitMeter {
    pub(super) name: Arc<str>,
    parts: Sharded<Calls>,
    series: Mutex<Series>,
}

#[derive(Debug, Default)]
struct Calls {
    decisions: [u64; DECISIONS.len()],
    asked: Top<Name>,
    rejected: Top<Name>,
}

/// A key as people read it.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) text: Box<str>,
    /// `None` if it is too long to be kept.
    pub(super) key: Option<Key<'static>>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self { parts: Sharded::new(), series: Mutex::default(), hasher: Default::default() }
    }

    /// Counts a decision, in `limits` in their order.
    pub(super) fn count(&self, limits: &[Arc<LimitMeter>], seen: &Observed<'_>) {
        let outcome = seen.outcome();
        let made = seen.made().and_then(|made| Made::ALL.iter().position(|one| *one == made));
        let took_ns = u64::try_from(seen.took().as_nanos()).unwrap_or(u64::MAX);
        self.parts.write(|requests| {
            requests.outcomes[index(outcome)] += 1;
            if let Some(made) = made {
                requests.made[made] += 1;
            }
            requests.took[TOOK_NS.partition_point(|bound| *bound < took_ns)] += 1;
            requests.took_ns = requests.took_ns.saturating_add(took_ns);
        });
        for limit in seen.limits() {
            if let Some(meter) = limits.iter().find(|meter| *meter.name == **limit.name) {
                meter.count(&limit, outcome.is_allowed(), self.hasher.hash_one(limit.key));
            }
        }
    }

    /// All requests so far.
    pub(super) fn total(&self) -> Requests {
        let mut total = Requests::default();
        self.parts.read(|part| {
            add(&mut total.outcomes, &part.outcomes);
            add(&mut total.made, &part.made);
            add(&mut total.took, &part.took);
            total.took_ns = total.took_ns.saturating_add(part.took_ns);
        });
        total
    }

    pub(super) fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    pub(super) fn tally(&self) -> Tally {
        let [allowed, queued, rest @ ..] = self.outcomes;
        Tally { allowed: allowed + queued, rejected: rest.iter().sum() }
    }

    /// The time that `percent` of the decisions took at most, as far as the histogram can tell; `None` when there were
    /// none, or it was longer than its last bound.
    pub(super) fn took_at_most(&self, percent: u64) -> Option<Duration> {
        let all: u64 = self.took.iter().sum();
        let rank = (u128::from(all) * u128::from(percent)).div_ceil(100);
        let mut so_far = 0;
        let bound = TOOK_NS.iter().zip(self.took).find(|(_, count)| {
            so_far += u128::from(*count);
            all > 0 && so_far >= rank
        });
        bound.map(|(bound, _)| Duration::from_nanos(*bound))
    }
}

impl LimitMeter {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), parts: Sharded::new(), series: Mutex::default() }
    }

    fn count(&self, seen: &SeenLimit<'_>, is_allowed: bool, hash: u64) {
        let decision = match seen.decision {
            Decision::Allowed { .. } if is_allowed => 0,
            Decision::Rejected { .. } => 1,
            Decision::Never { .. } => 2,
            Decision::Allowed { .. } => 3,
        };
        self.parts.write(|calls| {
            calls.decisions[decision] += 1;
            calls.asked.add(hash, || Name::of(seen.key));
            if matches!(decision, 1 | 2) {
                calls.rejected.add(hash, || Name::of(seen.key));
            }
        });
    }

    /// How often the limit said each of [`DECISIONS`].
    pub(super) fn total(&self) -> [u64; DECISIONS.len()] {
        let mut total = [0; DECISIONS.len()];
        self.parts.read(|part| add(&mut total, &part.decisions));
        total
    }

    /// Of `total`: what was allowed, and what the limit was against.
    pub(super) const fn tally([allowed, rejected, never, _]: [u64; DECISIONS.len()]) -> Tally {
        Tally { allowed, rejected: rejected + never }
    }

    /// The keys that asked most, and those that were rejected most.
    pub(super) fn top(&self, most: usize) -> (Vec<Counted<Name>>, Vec<Counted<Name>>) {
        let (mut asked, mut rejected) = (Vec::new(), Vec::new());
        self.parts.read(|part| {
            asked.push(part.asked.clone());
            rejected.push(part.rejected.clone());
        });
        (Top::of_all(&asked, most), Top::of_all(&rejected, most))
    }

    pub(super) fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Name {
    fn of(key: &Key<'_>) -> Self {
        let mut cut = Cut(String::new());
        let is_whole = write!(cut, "{key}").is_ok();
        if !is_whole {
            cut.0.push('…');
        }
        Self { text: cut.0.into(), key: is_whole.then(|| key.clone().into_owned()) }
    }
}

/// A text that refuses more than [`NAME_MAX`] bytes, so that a long key costs no more than a short one.
struct Cut(String);

impl fmt::Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.0.len() + character.len_utf8() > NAME_MAX {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
}

const fn index(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Allowed => 0,
        Outcome::Queued(_) => 1,
        Outcome::Never => 3,
        Outcome::KeyFull => 4,
        Outcome::Shed => 5,
        Outcome::Unanswered => 6,
        // And whatever else refuses.
        _ => 2,
    }
}

fn add<const N: usize>(sum: &mut [u64; N], part: &[u64; N]) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_upper_bounds() {
        let mut requests = Requests::default();
        assert_eq!(requests.took_at_most(50), None);
        requests.took[0] = 98;
        requests.took[4] = 2;
        assert_eq!(requests.took_at_most(50), Some(Duration::from_nanos(250)));
        assert_eq!(requests.took_at_most(98), Some(Duration::from_nanos(250)));
        assert_eq!(requests.took_at_most(99), Some(Duration::from_nanos(4000)));
        requests.took[TOOK_NS.len()] = 900;
        assert_eq!(requests.took_at_most(50), None);
    }

    #[test]
    fn a_long_key_is_cut_and_a_short_one_kept() {
        let name = Name::of(&Key::from("<b>ann\u{1}"));
        assert_eq!((&*name.text, name.key), ("<b>ann\\x01", Some(Key::from("<b>ann\u{1}"))));
        let name = Name::of(&Key::from("x".repeat(30_000)));
        assert_eq!((name.text.chars().count(), name.key), (NAME_MAX + 1, None));
    }
}
