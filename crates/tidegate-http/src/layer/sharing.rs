//! Requests that are decided by buckets which other processes share.
//!
//! A request takes its place in flight first, as that can be given back, and then the buckets are asked. What they say is
//! turned into the verdict that the tables of this process would have given.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::Decision;
use tidegate::shared::{
    Deciding, Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, Told, Unanswered,
};

use super::build::RateLimitError;
use super::desk::{Ask, Desk, Few, Shown, Verdict};
use super::key::RequestHead;
use super::limit::{Entry, Table};
use super::observe::How;
use super::places::{Full, Permit};

/// Who decides, and what happens if he does not.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    pub(super) buckets: Arc<dyn SharedBuckets>,
    pub(super) on_failure: OnFailure,
}

/// What is assumed of a bucket that was not asked: that it does not bind.
pub(super) const UNKNOWN: Decision =
    Decision::Allowed { start_after: Duration::ZERO, remaining: u64::MAX, reset_after: Duration::ZERO };

impl Sharing {
    /// What the tables of this process are for.
    pub(super) const fn table(&self) -> Table {
        match self.on_failure {
            OnFailure::Open | OnFailure::Closed => Table::Idle,
            OnFailure::Local { machines, keys } => Table::Share { machines, keys },
        }
    }

    /// Whether the buckets can be those of these limits.
    pub(super) fn accepts(&self, limits: &[Entry]) -> Result<(), RateLimitError> {
        for limit in limits {
            for algorithm in limit.algorithms() {
                self.buckets.accepts(&limit.name, algorithm)?;
            }
        }
        let Some((first, others)) = limits.split_first() else { return Ok(()) };
        let apart = others.iter().find(|other| !other.by().is(first.by()));
        match apart {
            Some(other) if !self.buckets.spans_keys() => {
                Err(RateLimitError::KeysApart { limit: (*first.name).into(), other: (*other.name).into() })
            }
            _ => Ok(()),
        }
    }
}

/// A request that is being decided. If it is dropped it may have been charged or not, and its place is free.
pub(super) struct Asking {
    desk: Arc<Desk>,
    asks: Vec<Ask<'static>>,
    permit: Option<Permit>,
    /// The places that its key has left.
    free: Option<u64>,
    deciding: Deciding,
    /// When it came.
    asked: Option<u64>,
}

impl Desk {
    /// Begins to decide a request, or says at once that there is no place for it.
    pub(super) fn begin(
        self: &Arc<Self>,
        sharing: &Sharing,
        head: RequestHead<'_>,
    ) -> Result<Asking, Box<Verdict>> {
        let asked = self.observer.is_some().then(|| self.now_ns());
        let asks: Vec<Ask<'static>> = self.limits.iter().map(|entry| entry.ask(head).into_owned()).collect();
        let (entered, free) = self.enter(self.place_key(head));
        let permit = match entered {
            Ok(permit) => permit,
            Err(full) => {
                let nothing = self.combine(&vec![UNKNOWN; asks.len()]);
                let verdict = Verdict {
                    full: Some(full),
                    free,
                    shown: self.unknown(&asks),
                    ..Verdict::of(nothing, &asks)
                };
                self.note(&asks, &verdict, asked, None);
                return Err(Box::new(verdict));
            }
        };
        let takes = self.limits.iter().zip(&asks).map(|(entry, ask)| entry.take(ask)).collect();
        let deciding = sharing.buckets.decide(SharedCall { takes, charge: true });
        Ok(Asking { desk: Arc::clone(self), asks, permit, free, deciding, asked })
    }

    /// A place in flight, if they are counted, or why there is none; and how many the key has left.
    fn enter(&self, key: Option<u64>) -> (Result<Option<Permit>, Full>, Option<u64>) {
        if !self.counts_in_flight() {
            return (Ok(None), None);
        }
        let mut running = self.places.lock();
        let entered = running.look(key).map(|()| running.enter(key));
        let free = key.map(|key| running.free(key));
        drop(running);
        (entered.map(|entered| Some(Permit::new(Arc::clone(&self.places), entered))), free)
    }

    pub(super) fn unknown(&self, asks: &[Ask<'_>]) -> Few<Shown> {
        if !self.shows() {
            return Few::new();
        }
        asks.iter().map(|ask| Shown { tier: ask.tier, ..Shown::default() }).collect()
    }

    /// The verdict on what the buckets said. `peek` decides another cost in one of the limits at the same time.
    pub(super) fn told(
        &self,
        asks: &[Ask<'_>],
        each: &[Option<Told>],
        peek: impl Fn(usize, u64) -> Option<Decision>,
    ) -> Verdict {
        let decisions: Few<Decision> =
            each.iter().map(|told| told.map_or(UNKNOWN, |told| told.decision)).collect();
        let mut verdict = Verdict::of(self.combine(&decisions), asks);
        if self.shows() {
            let is_charged = verdict.answer.decision.is_allowed();
            let limits = self.limits.iter().zip(asks).zip(each).enumerate();
            let shown = limits.map(|(limit, ((entry, ask), told))| {
                let told = told.and_then(|told| match told.decision {
                    Decision::Rejected { .. } => Some(told.decision),
                    Decision::Allowed { .. } if is_charged => Some(told.decision),
                    Decision::Allowed { .. } | Decision::Never { .. } => told.left,
                });
                let shown =
                    told.map(|told| entry.shown_by(ask, &told, |cost| peek(limit, cost).unwrap_or(told)));
                shown.unwrap_or(Shown { tier: ask.tier, ..Shown::default() })
            });
            verdict.shown = shown.collect();
        }
        verdict.decisions = decisions;
        verdict
    }

    /// The verdict without an answer, and how it was made.
    pub(super) fn without(
        &self,
        asks: &[Ask<'_>],
        on_failure: OnFailure,
        retry_after: Duration,
    ) -> (Verdict, Made) {
        let unknown = || {
            let nothing = self.combine(&vec![UNKNOWN; asks.len()]);
            Verdict { shown: self.unknown(asks), ..Verdict::of(nothing, asks) }
        };
        match on_failure {
            OnFailure::Open => (unknown(), Made::Open),
            OnFailure::Closed => {
                (Verdict { full: Some(Full::Unanswered(retry_after)), ..unknown() }, Made::Closed)
            }
            OnFailure::Local { .. } => (self.by_share(asks, retry_after), Made::Local),
        }
    }

    /// The verdict of the tables of this process, which have its share.
    fn by_share(&self, asks: &[Ask<'_>], retry_after: Duration) -> Verdict {
        // Whoever charges these tables does it under this lock.
        let running = self.places.lock();
        let now = self.now_ns();
        let mut decisions = self.look(asks, now);
        if self.combine(&decisions).decision.is_allowed() {
            decisions = self.limits.iter().zip(asks).map(|(entry, ask)| entry.check(ask, now)).collect();
        } else {
            self.carry_over(asks, now);
        }
        drop(running);
        for (decision, (entry, ask)) in decisions.iter_mut().zip(self.limits.iter().zip(asks)) {
            // Above the share, but not above the quota: the shared buckets will be able to.
            if matches!(decision, Decision::Never { .. }) && !entry.is_above_quota(ask) {
                *decision = Decision::Rejected { retry_after, remaining: 0, reset_after: retry_after };
            }
        }
        let verdict = self.verdict(asks, &decisions, now);
        Verdict { shown: self.unknown(asks), decisions, ..verdict }
    }
}

impl Asking {
    /// The verdict, when it is there.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Arc<Desk>, Verdict)> {
        let answered = ready!(Pin::new(&mut self.deciding).poll(context));
        let Self { desk, asks, .. } = self;
        let (mut verdict, made, each) = match answered {
            // They are token buckets, of which nothing more has to be known.
            Ok(SharedAnswer { each, made }) => (desk.told(asks, &each, |_, _| None), made, each),
            Err(Unanswered { retry_after }) => {
                let on_failure =
                    desk.sharing.as_ref().map_or(OnFailure::Closed, |sharing| sharing.on_failure);
                let (verdict, made) = desk.without(asks, on_failure, retry_after);
                (verdict, made, Vec::new())
            }
        };
        if verdict.is_allowed() {
            (verdict.permit, verdict.free) = (self.permit.take(), self.free);
        }
        desk.note(asks, &verdict, self.asked, Some(How { made: Some(made), each: &each }));
        Poll::Ready((Arc::clone(desk), verdict))
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").field("permit", &self.permit).finish_non_exhaustive()
    }
}
