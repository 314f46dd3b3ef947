//! The questions of a gate whose tokens others share.
//!
//! The line says when a question is worth it ([`Line::ask`](tidegate_core::queue::Line::ask)), and this asks it: by the gate's
//! thread, so that no caller carries the question of another and one that goes away takes none with it. With a clock that is
//! moved by hand there is no thread, and whoever moves it or comes to the gate asks.
//!
//! The port is the code of others. It is called without the lock, and a panic in it is no answer.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate_core::algorithm::{TokenBucket, token_bucket::Tat};
use tidegate_core::queue::Cost;
use tidegate_core::{Algorithm, Decision, Mode, Step as _};

use super::shared::{Shared, State};
use crate::shared::{Deciding, Made, SharedAnswer, SharedBuckets, SharedCall, SharedTake, Told, Unanswered};

/// The shortest time until the next try after none came to an answer: 1000 a second ask nobody too much. Twice as much is
/// as much later when the buckets are back.
const SHORTEST_RETRY: Duration = Duration::from_millis(1);

/// After a panic of the port.
const AFTER_PANIC: Unanswered = Unanswered { retry_after: Duration::from_secs(1) };

/// The name of a limit, and what it is.
pub(super) type Named = (Arc<str>, Algorithm);

/// Where the tokens are.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) buckets: Arc<dyn SharedBuckets>,
    pub(super) limits: Vec<Named>,
    pub(super) key: Box<[u8]>,
    pub(super) without: Without,
    pub(super) waker: Waker,
}

/// What happens without an answer.
#[derive(Debug)]
pub(super) enum Without {
    Open,
    Closed,
    /// The share of this machine in each limit.
    Local(Vec<TokenBucket>),
}

/// The question under way, if one is.
#[derive(Default)]
pub(super) struct Question {
    deciding: Option<Deciding>,
    /// Somebody has it in hand.
    is_polled: bool,
    is_woken: bool,
    sent: u64,
    /// What was taken from the shares.
    shares: Vec<Tat>,
}

impl Question {
    /// Whether it is to be polled.
    pub(super) fn is_due(&self) -> bool {
        self.is_woken && self.deciding.is_some()
    }
}

/// Tells a gate that its question can go on.
pub(super) struct Asker(pub(super) Weak<Shared>);

impl Wake for Asker {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.lock().question.is_woken = true;
            shared.changed.notify_one();
        }
    }
}

impl Sharing {
    fn call(&self, cost: Cost) -> SharedCall {
        let take = |(index, (limit, algorithm)): (usize, &Named)| SharedTake {
            limit: Arc::clone(limit),
            key: self.key.clone(),
            algorithm: *algorithm,
            cost: cost.of(index),
            mode: Mode::Enforce,
        };
        SharedCall { takes: self.limits.iter().enumerate().map(take).collect(), charge: true }
    }

    /// Goes on with a question, or begins the one of this cost.
    fn poll(&self, deciding: &mut Option<Deciding>, cost: Cost) -> Poll<Result<SharedAnswer, Unanswered>> {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            let deciding = deciding.get_or_insert_with(|| self.buckets.decide(self.call(cost)));
            deciding.as_mut().poll(&mut Context::from_waker(&self.waker))
        }));
        polled.unwrap_or(Poll::Ready(Err(AFTER_PANIC)))
    }
}

impl Shared {
    /// Asks what is to be asked now, and goes on with what was woken.
    pub(super) fn ask(&self) {
        if let Some(sharing) = &self.sharing {
            while self.ask_once(sharing) {}
        }
    }

    /// Whether there may be more to do.
    fn ask_once(&self, sharing: &Sharing) -> bool {
        let now = self.time.now_ns();
        let mut woken = Vec::new();
        let mut state = self.lock();
        state.serve(now, self.collect_within, &mut woken);
        let Some((mut deciding, cost)) = state.take_question(now) else {
            self.release(state, now, woken);
            return false;
        };
        self.release(state, now, woken);
        let polled = sharing.poll(&mut deciding, cost);
        let Poll::Ready(answer) = polled else {
            let mut state = self.lock();
            state.question.deciding = deciding;
            state.question.is_polled = false;
            return state.question.is_woken;
        };
        // Its drop is the code of others too.
        let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(deciding)));
        let now = self.time.now_ns();
        let mut woken = Vec::new();
        let mut state = self.lock();
        state.question.is_polled = false;
        match answer {
            Ok(answer) if answer.each.len() == sharing.limits.len() => {
                state.answered(&answer, now, self.collect_within, &mut woken);
            }
            Ok(_) => state.unanswered(sharing, AFTER_PANIC, now, self.collect_within, &mut woken),
            Err(unanswered) => {
                state.unanswered(sharing, unanswered, now, self.collect_within, &mut woken);
            }
        }
        state.serve(now, self.collect_within, &mut woken);
        self.release(state, now, woken);
        true
    }
}

impl State {
    /// The question that is to be polled now, or the cost of one to begin.
    fn take_question(&mut self, now: u64) -> Option<(Option<Deciding>, Cost)> {
        if self.question.is_polled {
            return None;
        }
        let taken = match self.question.deciding.is_some() {
            true if self.question.is_woken => (self.question.deciding.take(), Cost::default()),
            true => return None,
            false => {
                let cost = self.line.ask(now)?;
                self.question.sent = now;
                (None, cost)
            }
        };
        self.question.is_polled = true;
        self.question.is_woken = false;
        Some(taken)
    }

    fn answered(&mut self, answer: &SharedAnswer, now: u64, collect_within: u64, woken: &mut Vec<Waker>) {
        let sent = self.question.sent;
        let told = || answer.each.iter().enumerate().filter_map(|(limit, told)| Some((limit, (*told)?)));
        let never = told().find_map(|(limit, told)| match told.decision {
            Decision::Never { capacity } => Some((limit, capacity)),
            _ => None,
        });
        let retry_after = told().filter_map(|(_, told)| told.decision.retry_after()).max();
        let is_allowed = never.is_none() && retry_after.is_none();
        // An answer to this question and the next take as long, so after a grant the next comes no sooner than from now. Who
        // was rejected counts from when he asked, and is before the one that was granted then.
        let at = if is_allowed { now } else { sent };
        for (limit, told) in told() {
            if let Some(reset_after) = reset_after(&told, is_allowed) {
                self.line.told(limit, at, reset_after);
            }
        }
        let events = match (never, retry_after) {
            (Some((limit, capacity)), _) => Vec::from_iter(self.line.never(limit, capacity)),
            (None, Some(retry_after)) => {
                let until = sent.saturating_add(nanoseconds(retry_after).max(1));
                Vec::from_iter(self.line.rejected(now, until))
            }
            (None, None) => self.line.granted(now, self.line.asked().len().max(1)),
        };
        for event in events {
            self.happened(event, Some(answer.made), now, collect_within, woken);
        }
    }

    fn unanswered(
        &mut self,
        sharing: &Sharing,
        unanswered: Unanswered,
        now: u64,
        collect_within: u64,
        woken: &mut Vec<Waker>,
    ) {
        let asked = self.line.asked().len();
        let until = now.saturating_add(nanoseconds(unanswered.retry_after.max(SHORTEST_RETRY)));
        let (count, made, until) = match &sharing.without {
            Without::Open => (asked.max(1), Made::Open, None),
            Without::Closed => (0, Made::Closed, Some(until)),
            Without::Local(shares) => {
                self.question.shares.resize(shares.len(), Tat::default());
                let (count, retry_at) = self.by_share(shares, now);
                let until = (count < asked || asked == 0).then(|| retry_at.map_or(until, |at| at.min(until)));
                (count, Made::Local, until)
            }
        };
        let events = self.line.granted(now, count);
        if let Some(until) = until {
            self.line.ask_not_before(until);
        }
        for event in events {
            self.happened(event, Some(made), now, collect_within, woken);
        }
    }

    /// How many of those who are asked about the shares allow, and when they allow the next; `None` if never.
    fn by_share(&mut self, shares: &[TokenBucket], now: u64) -> (usize, Option<u64>) {
        for (count, (_, cost)) in self.line.asked().iter().enumerate() {
            let taken = &mut self.question.shares;
            let looks = shares.iter().zip(&*taken).enumerate();
            let looks = looks.map(|(limit, (share, taken))| share.look(taken, now, cost.of(limit)));
            let decisions: Vec<Decision> = looks.collect();
            if decisions.iter().any(|decision| matches!(decision, Decision::Never { .. })) {
                return (count, None);
            }
            if let Some(retry_after) = decisions.iter().filter_map(Decision::retry_after).max() {
                return (count, Some(now.saturating_add(nanoseconds(retry_after))));
            }
            for (limit, (share, taken)) in shares.iter().zip(taken).enumerate() {
                share.charge(taken, now, cost.of(limit));
            }
        }
        (self.line.asked().len(), None)
    }
}

/// When a bucket is full again after a call.
fn reset_after(told: &Told, is_charged: bool) -> Option<Duration> {
    let known = match (told.left, told.decision) {
        (Some(left), _) => left,
        (None, Decision::Allowed { .. }) if !is_charged => return None,
        (None, decision) => decision,
    };
    match known {
        Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. } => Some(reset_after),
        Decision::Never { .. } => None,
    }
}

/// A wait as nanoseconds; more than 584 years stays that long.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("is_polled", &self.is_polled).finish_non_exhaustive()
    }
}
