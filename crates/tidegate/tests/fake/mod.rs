//! Shared buckets in memory, that answer when they may, or not at all.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::Builder;
use tidegate::shared::{
    Deciding, Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, SharedTake, Told, Unanswered,
    Unsuited,
};
use tidegate::{Algorithm, Decision, Gate, Kind, State, Step as _};

use crate::task::builder;

/// When there will be another try, as the buckets say when they are away.
pub(crate) const AWAY: Duration = Duration::from_millis(2_500);

#[derive(Debug, Clone)]
pub(crate) struct Fake {
    clock: ManualClock,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    states: HashMap<(Arc<str>, Box<[u8]>), State>,
    /// What each question asked of its first bucket, and when.
    asked: Vec<(u64, u64)>,
    /// What was charged to the first bucket of each question, and when.
    charged: Vec<(u64, u64)>,
    is_away: bool,
    /// Whether questions are answered only by [`Fake::answer`].
    is_held: bool,
    /// How many more may be answered while they are held.
    may: usize,
    wakers: VecDeque<Waker>,
}

impl Fake {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Self { clock: clock.clone(), inner: Arc::default() }
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        self.inner.lock().unwrap().is_away = is_away;
    }

    /// Answers nothing from now on but what [`Self::answer`] says.
    pub(crate) fn hold(&self) {
        self.inner.lock().unwrap().is_held = true;
    }

    /// Lets one question be answered, as of when it is polled, and wakes who asks.
    pub(crate) fn answer(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.may += 1;
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        self.clock.advance(Duration::ZERO);
    }

    /// When there was a question, and what it asked of its first bucket.
    pub(crate) fn asked(&self) -> Vec<(u64, u64)> {
        self.inner.lock().unwrap().asked.clone()
    }

    /// When and what was charged to the first bucket of a question.
    pub(crate) fn charged(&self) -> Vec<(u64, u64)> {
        self.inner.lock().unwrap().charged.clone()
    }

    /// Charges as another process does.
    pub(crate) fn take(&self, limit: &str, key: &str, quota: &str, cost: u64) {
        let algorithm = Algorithm::new(Kind::TokenBucket, quota.parse().unwrap());
        let take = SharedTake {
            limit: limit.into(),
            key: key.as_bytes().into(),
            algorithm,
            cost,
            mode: tidegate::Mode::Enforce,
        };
        let told = self.inner.lock().unwrap().decide(self.clock.now_ns(), &[take]);
        assert!(told.iter().all(|told| told.decision.is_allowed()));
    }
}

/// The same gate twice: with tokens of its own, and with those of shared buckets that nobody else charges.
pub(crate) fn builders(quota: &str) -> [(ManualClock, Builder); 2] {
    let (own, (clock, shared)) = (builder(quota), builder(quota));
    let fake = Arc::new(Fake::new(&clock));
    [own, (clock, shared.shared(fake, "calls", "api", OnFailure::Closed))]
}

pub(crate) fn gates(quota: &str) -> [(ManualClock, Gate); 2] {
    builders(quota).map(|(clock, builder)| (clock, builder.build().unwrap()))
}

impl Inner {
    fn decide(&mut self, now: u64, takes: &[SharedTake]) -> Vec<Told> {
        let name = |take: &SharedTake| (Arc::clone(&take.limit), take.key.clone());
        let look = |states: &HashMap<_, State>, take: &SharedTake, cost| {
            let fresh = take.algorithm.fresh();
            take.algorithm.look(states.get(&name(take)).unwrap_or(&fresh), now, cost)
        };
        let decisions: Vec<_> = takes.iter().map(|take| look(&self.states, take, take.cost)).collect();
        if decisions.iter().all(Decision::is_allowed) {
            for take in takes {
                let state = self.states.remove(&name(take)).unwrap_or_else(|| take.algorithm.fresh());
                self.states.insert(name(take), take.algorithm.step(state, now, take.cost).0);
            }
            self.charged.push((now, takes[0].cost));
        }
        let told = takes.iter().zip(decisions);
        told.map(|(take, decision)| Told { decision, left: Some(look(&self.states, take, 0)) }).collect()
    }
}

impl SharedBuckets for Fake {
    fn accepts(&self, limit: &str, _: &Algorithm) -> Result<(), Unsuited> {
        let fits = !limit.contains(':');
        if fits { Ok(()) } else { Err(Unsuited(format!("`{limit}` cannot be part of a key").into())) }
    }

    fn spans_keys(&self) -> bool {
        true
    }

    fn decide(&self, call: SharedCall) -> Deciding {
        let fake = self.clone();
        let first = (fake.clock.now_ns(), call.takes[0].cost);
        fake.inner.lock().unwrap().asked.push(first);
        Box::pin(std::future::poll_fn(move |context| {
            let mut inner = fake.inner.lock().unwrap();
            if inner.is_held {
                if inner.may == 0 {
                    inner.wakers.push_back(context.waker().clone());
                    return Poll::Pending;
                }
                inner.may -= 1;
            }
            if inner.is_away {
                return Poll::Ready(Err(Unanswered { retry_after: AWAY }));
            }
            let each = inner.decide(fake.clock.now_ns(), &call.takes).into_iter().map(Some).collect();
            Poll::Ready(Ok(SharedAnswer { each, made: Made::Exact }))
        }))
    }
}
