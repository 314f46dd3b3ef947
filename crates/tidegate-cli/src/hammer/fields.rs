//! Whether the fields of the answers are true: `RateLimit` with `r` and `t`, `Retry-After` and `retry-after-ms`.
//!
//! The server decided each request at some instant between its sending and its receipt. Only what is false wherever in
//! these times the decisions were is called broken. All of it holds for a caller who is alone at the limit.
//!
//! **In one answer.** A field can be read. `r <= q`. A rejection has some limit with too little left. `Retry-After` is not
//! before the earliest `t` of the limits with too little left, and `retry-after-ms` is at most it, by less than a second.
//! (The earliest, since a limit in the shadow may show a later `t` and rejects nobody.)
//!
//! **`r` over time.** An answer `A` shows `n` left. A rejection `X` that was sent after the receipt of `A` was decided after
//! it. The requests that the limit can have charged in between are those received at or after the sending of `A` and sent
//! up to the receipt of `X`, other than these two; those without an answer are among them, and rejected ones too, since
//! some servers charge them. If there are `K` and `K < n`, `r` was too high. With `S(t)` sent up to `t` and `R(t)` received
//! before `t`, `K = S(X received) - R(A sent) - 2`, so each `X` needs only the largest `n + R(A sent)` before it.
//!
//! **Waits over time.** `X` is rejected and tells a wait, and the next request `Z` is sent when that wait is over, counted
//! from the receipt of `X`. If nothing else was in flight from the sending of `X` to the receipt of `Z`, and `Z` is
//! rejected, the wait was too short. A request in between leaves it undecided: some servers charge rejected ones.

mod read;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use super::gather::Answered;
use tidegate_http::fields::Unit;

pub(crate) use read::{Said, read};

/// How many limits are told apart; twice as many would let a server that names each answer anew take twice the memory.
const LIMITS_MAX: usize = 64;

/// The limit of a rejection that shows none: some limit of those shown.
const SOME_LIMIT: u16 = u16::MAX;

/// How often something was checked, and how often it was false.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) decided: u64,
    pub(crate) broken: u64,
    /// The first that was false, in words.
    pub(crate) first: Option<String>,
}

impl Check {
    fn is(&mut self, holds: bool, words: impl FnOnce() -> String) {
        self.decided += 1;
        if !holds {
            self.broken += 1;
            self.first.get_or_insert_with(words);
        }
    }
}

/// The name and the partition key of a limit.
type Identity = (Box<str>, Option<Box<[u8]>>);

/// What is kept of the fields of all answers: 12 bytes for each limit of an answer and 28 for each rejection.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// What one request costs, in units of the limits.
    cost: u64,
    limits: HashMap<Identity, u16>,
    names: Vec<Box<str>>,
    shown: Vec<Shown>,
    rejections: Vec<Rejection>,
    /// Answers with `RateLimit` or its older forms.
    pub(crate) answers: u64,
    well_formed: Check,
    quota: Check,
    contradiction: Check,
    agreement: Check,
}

/// What an answer, by its place among the answered, shows to be left of a limit, in requests.
#[derive(Debug, Clone, Copy)]
struct Shown {
    answer: u32,
    limit: u16,
    rejected: bool,
    requests: u32,
}

/// The waits of an answer 429.
#[derive(Debug, Clone, Copy)]
struct Rejection {
    answer: u32,
    t: Option<u32>,
    seconds: Option<u32>,
    ms: Option<u32>,
}

/// Every check of the fields, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) answers: u64,
    pub(crate) checks: Vec<(&'static str, Check)>,
}

impl Findings {
    pub(crate) fn is_broken(&self) -> bool {
        self.checks.iter().any(|(_, check)| check.broken > 0)
    }
}

impl Log {
    /// An empty log for requests that cost `cost` each.
    pub(crate) fn new(cost: u64) -> Self {
        Self { cost: cost.max(1), ..Self::default() }
    }

    /// Adds what the answer at place `answer` says.
    pub(crate) fn add(&mut self, answer: usize, status: u16, said: &Said) {
        let Ok(answer) = u32::try_from(answer) else { return };
        let rejected = status == 429;
        self.answers += u64::from(!said.limits.is_empty());
        self.check_alone(rejected, said);
        let mut least: Option<u64> = None;
        let mut binds = said.limits.is_empty();
        for limit in said.limits.iter().filter(|limit| limit.unit == Unit::Requests) {
            let requests = limit.remaining / self.cost;
            binds |= requests == 0;
            least = Some(least.map_or(requests, |least| least.min(requests)));
            if let Some(id) = self.id(&limit.name, limit.partition_key.as_deref()) {
                self.show(answer, id, rejected, requests);
            }
        }
        if rejected && said.limits.is_empty() {
            self.show(answer, SOME_LIMIT, true, 0);
        } else if let Some(least) = least.filter(|least| *least > 0)
            && said.limits.iter().all(|limit| limit.unit == Unit::Requests)
        {
            self.show(answer, SOME_LIMIT, false, least);
        }
        // A rejection by a limit of requests in flight is about no quota, and its end has no time.
        if rejected && binds {
            let small = |number: Option<u64>| number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
            let t = small(self.waits(said).max());
            self.rejections.push(Rejection { answer, t, seconds: small(said.seconds), ms: small(said.ms) });
        }
    }

    /// What can be said of one answer alone.
    fn check_alone(&mut self, rejected: bool, said: &Said) {
        for malformed in &said.malformed {
            self.well_formed.is(false, || malformed.clone());
        }
        let has_fields = !said.limits.is_empty() || said.seconds.is_some() || said.ms.is_some();
        if said.malformed.is_empty() && has_fields {
            self.well_formed.is(true, String::new);
        }
        for limit in &said.limits {
            if let Some(quota) = limit.quota {
                let words = || format!("`{}` shows r={} of q={quota}", limit.name, limit.remaining);
                self.quota.is(limit.remaining <= quota, words);
            }
        }
        if !rejected {
            return;
        }
        let is_known = |unit: &Unit| matches!(unit, Unit::Requests | Unit::ConcurrentRequests);
        if !said.limits.is_empty() && said.limits.iter().all(|limit| is_known(&limit.unit)) {
            let enough = |unit: &Unit| if *unit == Unit::Requests { self.cost } else { 1 };
            let binds = said.limits.iter().any(|limit| limit.remaining < enough(&limit.unit));
            let first = said.limits.first().map_or(0, |limit| limit.remaining);
            self.contradiction.is(binds, || format!("a 429 shows r={first} and no limit that is used up"));
        }
        let Some(seconds) = said.seconds else { return };
        let least = self.waits(said).min();
        if let Some(t) = least {
            self.agreement.is(seconds >= t, || format!("Retry-After {seconds} is before t={t}"));
        }
        if let Some(ms) = said.ms {
            let whole = seconds.saturating_mul(1000);
            let words = || format!("retry-after-ms {ms} is not Retry-After {seconds} in milliseconds");
            self.agreement.is(ms <= whole && whole - ms <= 1000, words);
        }
    }

    /// The `t` of the limits that have too little left.
    fn waits(&self, said: &Said) -> impl Iterator<Item = u64> {
        let cost = self.cost;
        let used_up =
            said.limits.iter().filter(move |limit| limit.unit == Unit::Requests && limit.remaining < cost);
        used_up.filter_map(|limit| limit.seconds)
    }

    fn id(&mut self, name: &str, partition_key: Option<&[u8]>) -> Option<u16> {
        let key = (name.into(), partition_key.map(Into::into));
        if let Some(id) = self.limits.get(&key) {
            return Some(*id);
        }
        let id = u16::try_from(self.names.len()).ok().filter(|id| usize::from(*id) < LIMITS_MAX)?;
        self.limits.insert(key, id);
        self.names.push(name.into());
        Some(id)
    }

    fn show(&mut self, answer: u32, limit: u16, rejected: bool, requests: u64) {
        // More than a run can have is as good as that.
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.shown.push(Shown { answer, limit, rejected, requests });
    }

    /// The findings on a run.
    pub(crate) fn findings(&self, answered: &[Answered], unanswered: &[Answered]) -> Findings {
        let [t, seconds, ms] = self.judge_waits(answered, unanswered);
        let checks = vec![
            ("well_formed", self.well_formed.clone()),
            ("remaining", self.judge_remaining(answered, unanswered)),
            ("remaining_within_quota", self.quota.clone()),
            ("rejected_with_none_left", self.contradiction.clone()),
            ("t", t),
            ("retry_after", seconds),
            ("retry_after_ms", ms),
            ("waits_agree", self.agreement.clone()),
        ];
        Findings { answers: self.answers, checks }
    }

    fn judge_remaining(&self, answered: &[Answered], unanswered: &[Answered]) -> Check {
        let mut check = Check::default();
        let mut sent: Vec<_> = answered.iter().chain(unanswered).map(|request| request.sent_ns).collect();
        let mut received: Vec<_> = answered.iter().map(|request| request.received_ns).collect();
        sent.sort_unstable();
        received.sort_unstable();
        let at = |shown: &Shown| usize::try_from(shown.answer).ok().and_then(|place| answered.get(place));
        for limit in (0..self.names.len()).filter_map(|id| u16::try_from(id).ok()).chain([SOME_LIMIT]) {
            let of_limit = || {
                let shown = self.shown.iter().filter(move |shown| shown.limit == limit);
                shown.filter_map(|shown| Some((at(shown)?, shown)))
            };
            let mut promises: Vec<_> = of_limit().filter(|(_, shown)| shown.requests > 0).collect();
            let mut rejections: Vec<_> =
                of_limit().filter(|(_, shown)| shown.rejected && shown.requests == 0).collect();
            promises.sort_unstable_by_key(|(request, _)| request.received_ns);
            rejections.sort_unstable_by_key(|(request, _)| request.sent_ns);
            let mut promises = promises.into_iter().peekable();
            let mut best: Option<(usize, u32)> = None;
            for (rejected, _) in rejections {
                while let Some((request, shown)) =
                    promises.next_if(|(request, _)| request.received_ns < rejected.sent_ns)
                {
                    let before = received.partition_point(|time| *time < request.sent_ns);
                    let reach = before + usize::try_from(shown.requests).unwrap_or(usize::MAX);
                    best = best.max(Some((reach, shown.requests)));
                }
                let Some((reach, requests)) = best else { continue };
                let until = sent.partition_point(|time| *time <= rejected.received_ns);
                check.is(reach + 2 <= until, || {
                    let others = (usize::try_from(requests).unwrap_or(usize::MAX) + until)
                        .saturating_sub(reach.saturating_add(2));
                    let name = self.names.get(usize::from(limit)).map_or("", |name| name);
                    format!(
                        "`{name}` showed {requests} left, and after at most {others} others one was rejected"
                    )
                });
            }
        }
        check
    }

    fn judge_waits(&self, answered: &[Answered], unanswered: &[Answered]) -> [Check; 3] {
        let mut checks = [Check::default(), Check::default(), Check::default()];
        let mut waits: Vec<Option<Rejection>> = vec![None; answered.len()];
        for rejection in &self.rejections {
            let place = usize::try_from(rejection.answer).ok().and_then(|place| waits.get_mut(place));
            if let Some(place) = place {
                *place = Some(*rejection);
            }
        }
        // The server may get a request that was given up at any later time, so nothing is in its order after it.
        let end = unanswered.iter().map(|request| request.sent_ns).min().unwrap_or(u64::MAX);
        let mut order: Vec<usize> = (0..answered.len()).collect();
        order.sort_unstable_by_key(|place| answered[*place].sent_ns);
        let mut in_flight_until = 0;
        for (index, pair) in order.windows(2).enumerate() {
            let (told, next) = (answered[pair[0]], answered[pair[1]]);
            let alone_before = index == 0 || in_flight_until < told.sent_ns;
            in_flight_until = in_flight_until.max(told.received_ns);
            let following = order.get(index + 2).map_or(u64::MAX, |place| answered[*place].sent_ns);
            let (Some(rejection), true) = (waits[pair[0]], alone_before) else { continue };
            if next.received_ns >= following.min(end) {
                continue;
            }
            // A rejection of another kind, such as 503, says nothing about the quota.
            let (allowed, again) = (next.allowed, waits[pair[1]].is_some());
            if !allowed && !again {
                continue;
            }
            let second = Duration::from_secs(1);
            let told_waits = [
                ("t", rejection.t.map(|t| second * t)),
                ("Retry-After", rejection.seconds.map(|seconds| second * seconds)),
                ("retry-after-ms", rejection.ms.map(|ms| Duration::from_millis(ms.into()))),
            ];
            let gap = Duration::from_nanos(next.sent_ns.saturating_sub(told.received_ns));
            for (check, (name, wait)) in checks.iter_mut().zip(told_waits) {
                let is_over = |wait: &Duration| next.sent_ns >= told.received_ns && gap >= *wait;
                if let Some(wait) = wait.filter(is_over) {
                    check.is(allowed, || {
                        format!("{name} told {wait:?}, and {gap:?} later it was rejected again")
                    });
                }
            }
        }
        checks
    }
}
