//! Where all clones of a layer decide: one state for all limits, and a lock for what must happen together.
//!
//! A single limit is decided by its [`Limiter`] alone, without this lock. With several limits or places in flight, an
//! allowed request looks at all of them and is charged in all of them under one lock, so it is charged in all or in none
//! whatever their keys. A request that a quota refuses changes nothing and never takes the lock.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;
use tidegate::clock::Clock;
use tidegate::{Decision, Limiter, Policy, PolicyDecision, Receipt};

use super::key::{Key, KeyBy, RequestHead, SHARED, Who};
use super::places::{Full, Permit, Places};
use super::shape::Shape;

pub(super) type CostFn = Arc<dyn for<'a> Fn(RequestHead<'a>) -> u64 + Send + Sync>;
pub(super) type ExemptFn = Arc<dyn for<'a> Fn(RequestHead<'a>) -> bool + Send + Sync>;

/// What all clones of a layer and its services share.
pub(super) struct Desk {
    pub(super) limits: Box<[Entry]>,
    /// The names and modes of the limits, to make one answer of theirs.
    pub(super) policy: Policy,
    pub(super) clock: Clock,
    pub(super) who: Who,
    pub(super) places: Arc<Places>,
    pub(super) max_in_flight: Option<NonZeroU64>,
    pub(super) per_key: Option<PerKey>,
    pub(super) exempt: Option<ExemptFn>,
    pub(super) preflights_count: bool,
    /// The field `RateLimit-Policy`, if the fields are sent.
    pub(super) policy_field: Option<HeaderValue>,
    pub(super) legacy_fields: bool,
    pub(super) counters: Counters,
}

/// One limit.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    /// The name as the fields have it.
    pub(super) quoted: Box<str>,
    /// The quota or the name of the algorithm, for people.
    pub(super) label: Box<str>,
    pub(super) limiter: Limiter,
    pub(super) by: KeyBy,
    pub(super) cost: Option<CostFn>,
    /// What the fields say of it; `None` if it limits nothing.
    pub(super) shape: Option<Shape>,
}

/// The limit in flight of each key.
pub(super) struct PerKey {
    pub(super) by: KeyBy,
    pub(super) max: NonZeroU64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) allowed: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) shed: AtomicU64,
    pub(super) shadow: AtomicU64,
    pub(super) without_peer: AtomicU64,
    pub(super) not_served: AtomicU64,
}

/// What one request asks of one limit.
struct Ask<'a> {
    key: Key<'a>,
    cost: u64,
}

/// What was decided about one request.
pub(super) enum Decided {
    /// The only limit allows it, and these are its numbers if they are shown: most requests of most servers, so it is
    /// kept short.
    Alone(Option<Shown>, Charges),
    Verdict(Verdict),
}

/// What a request was charged, to be taken back if nobody serves it.
#[derive(Debug, Default)]
pub(super) enum Charges {
    #[default]
    Nothing,
    /// In the only limit.
    Alone(Receipt),
    /// In limits by their index.
    Several(Vec<(usize, Receipt)>),
}

/// The answer to one request.
pub(super) struct Verdict {
    /// What is to be said of each limit.
    pub(super) shown: Vec<Shown>,
    /// The decision of all limits.
    pub(super) answer: PolicyDecision,
    /// The cost in the limit that the answer speaks of.
    pub(super) cost: u64,
    /// Which limits refused.
    pub(super) refused: Vec<bool>,
    /// Why there is no place in flight, if the limits allow the request.
    pub(super) full: Option<Full>,
    /// The places that the key has left.
    pub(super) free: Option<u64>,
    pub(super) permit: Option<Permit>,
    pub(super) charges: Charges,
}

/// The numbers of one limit after a request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shown {
    pub(super) remaining: u64,
    /// Whole seconds until there is more; `None` when nothing is missing.
    pub(super) seconds: Option<u64>,
    /// Whole seconds until all is there.
    pub(super) reset_seconds: u64,
}

impl Verdict {
    pub(super) const fn is_allowed(&self) -> bool {
        self.answer.decision.is_allowed() && self.full.is_none()
    }
}

impl Desk {
    pub(super) fn decide(&self, head: RequestHead<'_>) -> Decided {
        let verdict = match &*self.limits {
            [entry] if !self.has_places() => match self.alone(entry, &entry.ask(head)) {
                Decided::Verdict(verdict) => verdict,
                alone @ Decided::Alone(..) => {
                    self.counters.allowed.fetch_add(1, Ordering::Relaxed);
                    return alone;
                }
            },
            limits => {
                let asks: Vec<Ask<'_>> = limits.iter().map(|entry| entry.ask(head)).collect();
                let key = self.per_key.as_ref();
                let key = key.map(|per_key| self.places.hash(&per_key.by.of(head).unwrap_or(SHARED)));
                self.together(&asks, key)
            }
        };
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        count(match verdict.full {
            Some(Full::Server) => &self.counters.shed,
            _ if verdict.is_allowed() => &self.counters.allowed,
            _ => &self.counters.rejected,
        });
        if verdict.answer.shadow.is_some() {
            count(&self.counters.shadow);
        }
        Decided::Verdict(verdict)
    }

    const fn has_places(&self) -> bool {
        self.max_in_flight.is_some() || self.per_key.is_some()
    }

    /// One limit: its limiter looks and charges in one step.
    fn alone(&self, entry: &Entry, ask: &Ask<'_>) -> Decided {
        let now = self.clock.now_ns();
        let decision = entry.limiter.check_at(&ask.key, ask.cost, now);
        if decision.is_allowed() {
            let shape = entry.shape.as_ref().filter(|_| self.shows());
            let shown =
                shape.map(|shape| shape.shown(&decision, |cost| entry.limiter.peek_at(&ask.key, cost, now)));
            let receipt = entry.limiter.receipt(&ask.key, ask.cost, now, &decision);
            return Decided::Alone(shown, receipt.map_or(Charges::Nothing, Charges::Alone));
        }
        Decided::Verdict(self.verdict(std::slice::from_ref(ask), &[decision], now))
    }

    /// Whether responses carry fields about the limits.
    const fn shows(&self) -> bool {
        self.policy_field.is_some() || self.legacy_fields
    }

    /// Several limits, or places: all are looked at, then all are charged, or none.
    fn together(&self, asks: &[Ask<'_>], key: Option<u64>) -> Verdict {
        let now = self.clock.now_ns();
        let looks = self.look(asks, now);
        if !self.combine(&looks).decision.is_allowed() {
            return self.verdict(asks, &looks, now);
        }

        let mut running = self.places.lock();
        let now = self.clock.now_ns();
        let looks = self.look(asks, now);
        if !self.combine(&looks).decision.is_allowed() {
            drop(running);
            return self.verdict(asks, &looks, now);
        }
        if let Err(full) = running.look(key) {
            let free = key.map(|key| running.free(key));
            drop(running);
            return Verdict { full: Some(full), free, ..self.not_charged(asks, &looks, now) };
        }
        // Nobody else charges these limiters, so what was allowed a moment ago at the same time is allowed still.
        let charged: Vec<Decision> = self
            .limits
            .iter()
            .zip(asks)
            .map(|(entry, ask)| entry.limiter.check_at(&ask.key, ask.cost, now))
            .collect();
        if !self.combine(&charged).decision.is_allowed() {
            drop(running);
            return self.verdict(asks, &charged, now);
        }
        running.enter(key);
        let free = key.map(|key| running.free(key));
        drop(running);
        let permit = self.has_places().then(|| Permit::new(Arc::clone(&self.places), key));
        let receipts = self.limits.iter().zip(asks).zip(&charged).enumerate();
        let receipts = receipts.filter_map(|(limit, ((entry, ask), decision))| {
            Some((limit, entry.limiter.receipt(&ask.key, ask.cost, now, decision)?))
        });
        let charges = Charges::Several(receipts.collect());
        Verdict { permit, free, charges, ..self.verdict(asks, &charged, now) }
    }

    /// Takes back what a request was charged that nobody has served.
    pub(super) fn not_served(&self, charges: Charges) {
        self.counters.not_served.fetch_add(1, Ordering::Relaxed);
        let charges = match charges {
            Charges::Nothing => return,
            Charges::Alone(receipt) => vec![(0, receipt)],
            Charges::Several(charges) => charges,
        };
        for (limit, receipt) in charges {
            self.limits[limit].limiter.refund(receipt);
        }
    }

    fn look(&self, asks: &[Ask<'_>], now: u64) -> Vec<Decision> {
        self.limits
            .iter()
            .zip(asks)
            .map(|(entry, ask)| entry.limiter.peek_at(&ask.key, ask.cost, now))
            .collect()
    }

    fn combine(&self, decisions: &[Decision]) -> PolicyDecision {
        self.policy.combine(|limit| decisions[limit])
    }

    /// The verdict from the decisions of the limits, which have charged the request if all allow it.
    fn verdict(&self, asks: &[Ask<'_>], decisions: &[Decision], now: u64) -> Verdict {
        let answer = self.combine(decisions);
        self.seen(answer, asks, decisions, answer.decision.is_allowed(), now)
    }

    /// The verdict for a request that no limit has charged.
    fn not_charged(&self, asks: &[Ask<'_>], decisions: &[Decision], now: u64) -> Verdict {
        self.seen(self.combine(decisions), asks, decisions, false, now)
    }

    fn seen(
        &self,
        answer: PolicyDecision,
        asks: &[Ask<'_>],
        decisions: &[Decision],
        charged: bool,
        now: u64,
    ) -> Verdict {
        let mut verdict = Verdict::of(answer, asks, decisions);
        if !self.shows() {
            return verdict;
        }
        // What is left after a request that was not charged is not what the decision said would be.
        let left =
            self.limits.iter().zip(asks).zip(decisions).map(|((entry, ask), decision)| match decision {
                Decision::Rejected { .. } => *decision,
                Decision::Allowed { .. } if charged => *decision,
                Decision::Allowed { .. } | Decision::Never { .. } => entry.limiter.peek_at(&ask.key, 0, now),
            });
        let shown = left.zip(self.limits.iter().zip(asks)).map(|(left, (entry, ask))| match &entry.shape {
            Some(shape) => shape.shown(&left, |cost| entry.limiter.peek_at(&ask.key, cost, now)),
            None => Shown::default(),
        });
        verdict.shown = shown.collect();
        verdict
    }
}

impl Verdict {
    fn of(answer: PolicyDecision, asks: &[Ask<'_>], decisions: &[Decision]) -> Self {
        Self {
            shown: Vec::new(),
            answer,
            cost: answer.limit.map_or(0, |limit| asks[limit].cost),
            refused: if answer.decision.is_allowed() {
                Vec::new()
            } else {
                decisions.iter().map(|decision| !decision.is_allowed()).collect()
            },
            full: None,
            free: None,
            permit: None,
            charges: Charges::Nothing,
        }
    }
}

impl Entry {
    fn ask<'a>(&self, head: RequestHead<'a>) -> Ask<'a> {
        Ask { key: self.by.of(head).unwrap_or(SHARED), cost: self.cost.as_ref().map_or(1, |cost| cost(head)) }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits.iter().map(|entry| (&entry.name, &entry.label, &entry.by));
        f.debug_struct("Desk")
            .field("limits", &limits.collect::<Vec<_>>())
            .field("max_in_flight", &self.max_in_flight)
            .field("max_in_flight_per_key", &self.per_key.as_ref().map(|per_key| per_key.max))
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
