//! The limiter that many machines share by leases: it asks the store for chunks, and spends them without asking.
//!
//! The rules are those of [`tidegate_core::lease`]; the bucket is that of a [`SharedLimiter`] of the same name. Here are the
//! table of what is held, the tasks that ask and give back, and what happens without the store.

mod bank;
mod desk;

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tidegate::{Algorithm, Decision, Mode, Policy, Quota};
use tidegate_core::lease::{Ask, Terms};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::bank::Bank;
use self::desk::{Desk, Rules, Way};
use crate::answer::Answer;
use crate::error::Error;
use crate::fault::Fault;
use crate::limiter::SharedLimiter;
use crate::runner::round_trip;
use crate::store::Store;
use crate::{Made, OnFailure};

/// In how many parts the table of what is held is locked.
const SHARDS: usize = 16;
/// How many returns are under way at one time when all is given back.
const RETURNS: usize = 256;
/// A lease has to live for so many trips to the store.
const TRIPS: u32 = 3;
/// And for so long. The same is asked by [`Terms::within`].
const SHORTEST: Duration = Duration::from_millis(20);

/// How a [`LeasedLimiter`] leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leasing {
    /// How many tokens more than one bucket all processes together may allow, in any interval: `E`. Leases live for as long
    /// as the rate needs to bring so many, at most 10 s. A twentieth of the burst is a start.
    pub max_overshoot: u64,
    /// For how many keys this process holds leases at one time. Calls on others ask the store, each for itself.
    pub keys: usize,
}

/// One limit for each of many keys, shared by all processes that name the same store and the same limiter, with a trip to
/// the store for many calls together.
///
/// A process takes chunks out of the bucket, charged at once, and spends them without asking. In any closed interval of
/// length `t` all processes together are allowed at most `B + r·t + E`, where `E` is [`Leasing::max_overshoot`], whatever
/// their number. Near its limit the bucket gives no chunks, and each call asks: the decisions are then exact.
///
/// A process that is killed loses what it holds: at most half of `E`, or the cost of one call. What is not spent is given
/// back after three quarters of a lease's life, by [`Self::give_back`], and when the limiter is dropped in a runtime that
/// goes on.
///
/// **Without the store** what is held is spent as long as it lives, and then [`OnFailure`] answers.
///
/// **Clock.** A lease ends by the monotonic clock of the process, counted from before it asked. It stands still while a
/// machine sleeps: one that is suspended with a lease in hand can spend it afterwards.
///
/// # Cancel safety
///
/// A decision that is dropped before it is ready may have been charged or not, as one whose reply is lost.
pub struct LeasedLimiter {
    inner: Arc<Inner>,
}

struct Inner {
    bank: Arc<Bank>,
    rules: Rules,
    /// Where there is no room for another lease, and for what happens without the store.
    each: SharedLimiter,
    burst: u64,
    start: Instant,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// How many desks there is room for in each shard.
    room: usize,
    /// How many calls wait for the store, and may.
    waiting: AtomicUsize,
    max_waiting: usize,
}

#[derive(Default)]
struct Shard {
    desks: HashMap<Box<[u8]>, Desk, RandomState>,
    /// When a full shard was last searched for desks that are not needed.
    searched: u64,
}

/// How a call goes, outside of the lock.
enum Step {
    Answered(Answer),
    Waits(oneshot::Receiver<Result<Answer, Fault>>),
    /// Without the store, for this reason.
    Without(Fault),
    /// There is no room for another lease.
    Each,
}

impl Store {
    /// A limiter by the name of `name` that leases, for a policy of one limit, a [`Quota`] for example.
    ///
    /// It works on the buckets of [`Store::limiter`] of the same name, and both can be used at one time. All processes
    /// should give the same quota and the same `max_overshoot`.
    ///
    /// # Errors
    ///
    /// Those of [`Store::limiter`]; a policy of several limits or with a limit in shadow; an overshoot that the rate brings
    /// within 20 ms, or three trips to the store, which is measured here if there is a connection: the text says what to
    /// choose.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left behind.
    pub async fn leased_limiter(
        &self,
        name: &str,
        policy: impl Into<Policy>,
        leasing: Leasing,
        on_failure: OnFailure,
    ) -> Result<LeasedLimiter, Error> {
        let store = Arc::clone(&self.inner);
        let policy = policy.into();
        let [limit] = policy.limits() else { return Err(Error::NotOneLimit { name: name.into() }) };
        if limit.mode != Mode::Enforce {
            return Err(Error::NotOneLimit { name: name.into() });
        }
        let Algorithm::TokenBucket(bucket) = &limit.algorithm else {
            return Err(Error::NotTokenBucket { limit: limit.name.clone(), kind: limit.algorithm.kind() });
        };
        let trip = round_trip(&store.servers, store.deadline).await.unwrap_or(Duration::ZERO);
        let least = SHORTEST.max(trip * TRIPS);
        let (token, rate) = (u128::from(bucket.token_units().get()), u128::from(bucket.rate_units().get()));
        let life = u128::from(leasing.max_overshoot) * token / rate;
        let quota = Quota::new(bucket.rate_units().get(), Duration::from_nanos(bucket.token_units().get()));
        let terms = quota.ok().and_then(|quota| Terms::within(quota, leasing.max_overshoot));
        let terms = terms.filter(|terms| terms.ttl() >= least);
        let Some(terms) = terms else {
            let tokens = (least.as_nanos() * rate).div_ceil(token);
            return Err(Error::LeaseTooShort {
                limit: limit.name.clone(),
                overshoot: leasing.max_overshoot,
                life: Duration::from_nanos(u64::try_from(life).unwrap_or(u64::MAX)),
                least,
                tokens: u64::try_from(tokens).unwrap_or(u64::MAX),
            });
        };
        let each = self.limiter(name, policy.clone(), on_failure)?;
        let [units] = each.buckets() else { return Err(Error::NotOneLimit { name: name.into() }) };
        let units = *units;
        let remember_ns = u64::try_from(store.shield.longest().as_nanos()).unwrap_or(u64::MAX);
        let inner = Inner {
            burst: bucket.burst(),
            max_waiting: store.servers.max_waiting,
            bank: Arc::new(Bank::new(store, name, &limit.name, units, terms)),
            rules: Rules { terms, units, remember_ns },
            each,
            start: Instant::now(),
            hasher: RandomState::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
            room: leasing.keys.div_ceil(SHARDS),
            waiting: AtomicUsize::new(0),
        };
        Ok(LeasedLimiter { inner: Arc::new(inner) })
    }
}

impl LeasedLimiter {
    /// The policy, of one limit.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.inner.each.policy()
    }

    /// How long a lease lives: `τ`.
    #[must_use]
    pub fn lease_ttl(&self) -> Duration {
        self.inner.rules.terms.ttl()
    }

    /// Decides a call of cost 1 on `key`, and charges it if it is allowed.
    ///
    /// Of a call that was [`Made::Leased`], the answer knows what this process holds after it, and not when the bucket will
    /// be full.
    pub async fn check(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Answer {
        self.check_n(key, 1).await
    }

    /// Decides a call of `cost` on `key`, and charges it if it is allowed. One that costs nothing is always allowed.
    pub async fn check_n(&self, key: &(impl AsRef<[u8]> + ?Sized), cost: u64) -> Answer {
        let (inner, key) = (&self.inner, key.as_ref());
        let answer = match Inner::step(inner, key, cost) {
            Step::Answered(answer) => answer,
            Step::Each => return inner.each.check_n(key, cost).await,
            Step::Without(fault) => return inner.each.without(&fault, key, cost),
            Step::Waits(answered) => {
                // Most calls do not come here, and a look at the clock is a good part of what they take.
                let deadline = tokio::time::Instant::now() + inner.bank.deadline();
                let answer = match tokio::time::timeout_at(deadline, answered).await {
                    Ok(Ok(answer)) => answer,
                    // The runtime of the store has ended.
                    Ok(Err(_)) => Err(Fault::Down),
                    Err(_) => Err(Fault::Late),
                };
                match answer {
                    Ok(answer) => answer,
                    Err(fault) => return inner.each.without(&fault, key, cost),
                }
            }
        };
        let counters = inner.bank.counters();
        match answer.made {
            Made::Leased => counters.leased.one(),
            Made::Remembered => counters.remembered.one(),
            _ => counters.exact.one(),
        }
        answer
    }

    /// Gives back all that this process holds and has not spent: for before it ends. It ends within the deadline of the
    /// store for each 256 keys with a lease. The limiter can be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// What was not given back yet is lost.
    pub async fn give_back(&self) {
        let mut returns = JoinSet::new();
        for (key, ask) in self.inner.all_held() {
            let bank = Arc::clone(&self.inner.bank);
            returns.spawn(async move { bank.lend(&key, ask).await });
            if returns.len() >= RETURNS {
                returns.join_next().await;
            }
        }
        while returns.join_next().await.is_some() {}
    }
}

impl Inner {
    /// Nanoseconds since the limiter was made.
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0) % SHARDS;
        // The index is below the length.
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a call, or makes it wait and sees to it that the store is asked.
    fn step(inner: &Arc<Self>, key: &[u8], cost: u64) -> Step {
        if cost > inner.burst {
            let decision = Decision::Never { capacity: inner.burst };
            let limit = Some(0);
            return Step::Answered(Answer {
                decision,
                limit,
                shadow: None,
                remaining: Vec::new(),
                made: Made::Exact,
            });
        }
        let mut shard = inner.shard(key);
        let now = inner.now();
        let desk = if let Some(desk) = shard.desks.get_mut(key) {
            desk
        } else if inner.makes_room(&mut shard, now) {
            shard.desks.entry(key.into()).or_default()
        } else {
            return Step::Each;
        };
        let step = match desk.decide(now, cost) {
            Way::Answered(answer) => Step::Answered(answer),
            Way::Waits if !inner.bank.is_up() => return Step::Without(Fault::Down),
            Way::Waits if inner.waiting.load(Ordering::Relaxed) >= inner.max_waiting => {
                return Step::Without(Fault::Busy);
            }
            Way::Waits => {
                inner.waiting.fetch_add(1, Ordering::Relaxed);
                Step::Waits(desk.wait(cost))
            }
        };
        // What would be given back on the way would be lost without the store.
        if inner.bank.is_up()
            && let Some((asked_at, ask)) = desk.ask(&inner.rules, now)
        {
            drop(shard);
            // A task, so a caller that is not polled holds nobody up.
            inner.bank.runtime().spawn(Self::ask(Arc::clone(inner), key.into(), asked_at, ask));
        }
        step
    }

    /// Whether there is room for another desk. Those that are not needed go, but are not searched for at each call.
    fn makes_room(&self, shard: &mut Shard, now: u64) -> bool {
        if shard.desks.len() >= self.room && now >= shard.searched {
            shard.desks.retain(|_, desk| !desk.is_idle(now));
            shard.searched = now.saturating_add(1_000_000);
        }
        shard.desks.len() < self.room
    }

    /// Asks the store, as long as somebody waits for it.
    async fn ask(inner: Arc<Self>, key: Box<[u8]>, mut asked_at: u64, mut ask: Ask) {
        loop {
            let told = inner.bank.lend(&key, ask).await;
            let (watch, next) = {
                let mut shard = inner.shard(&key);
                let now = inner.now();
                // A desk that waits for an answer is kept.
                let Some(desk) = shard.desks.get_mut(&key) else { return };
                let served = match &told {
                    Ok(told) => desk.answered(&inner.rules, now, asked_at, told),
                    Err(fault) => desk.failed(asked_at, fault),
                };
                inner.waiting.fetch_sub(served, Ordering::Relaxed);
                (desk.unwatched(&inner.rules), desk.ask(&inner.rules, now))
            };
            if let Some(at) = watch {
                inner.bank.runtime().spawn(Self::watch(Arc::downgrade(&inner), key.clone(), at));
            }
            match next {
                Some(next) => (asked_at, ask) = next,
                None => return,
            }
        }
    }

    /// Gives back what is not spent in time, until nothing is held.
    async fn watch(inner: Weak<Self>, key: Box<[u8]>, mut at: u64) {
        loop {
            let Some(start) = inner.upgrade().map(|inner| inner.start) else { return };
            tokio::time::sleep_until((start + Duration::from_nanos(at)).into()).await;
            let Some(inner) = inner.upgrade() else { return };
            let (next, returned) = {
                let mut shard = inner.shard(&key);
                let now = inner.now();
                let Some(desk) = shard.desks.get_mut(&key) else { return };
                desk.look_after(&inner.rules, now)
            };
            if let Some(returned) = returned {
                let bank = Arc::clone(&inner.bank);
                drop(inner);
                // Sent once: if it is not known whether it arrived, it is lost.
                let _ = bank.lend(&key, Ask { returned: Some(returned), ..Ask::default() }).await;
            }
            match next {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    /// All that is held, as what to ask the store for; nothing is held then.
    fn all_held(&self) -> Vec<(Box<[u8]>, Ask)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.now();
            for (key, desk) in &mut shard.desks {
                let asks = desk.give_back(now);
                all.extend(
                    asks.map(|returned| (key.clone(), Ask { returned: Some(returned), ..Ask::default() })),
                );
            }
        }
        all
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let all = self.all_held();
        if all.is_empty() {
            return;
        }
        let bank = Arc::clone(&self.bank);
        self.bank.runtime().spawn(async move {
            for (key, ask) in all {
                let _ = bank.lend(&key, ask).await;
            }
        });
    }
}

impl fmt::Debug for LeasedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { bank, rules, each, .. } = &*self.inner;
        let name = bank.name();
        f.debug_struct("LeasedLimiter")
            .field("name", &name)
            .field("policy", each.policy())
            .field("terms", &rules.terms)
            .finish_non_exhaustive()
    }
}
