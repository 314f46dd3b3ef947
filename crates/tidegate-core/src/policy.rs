//! Several limits on one call, decided together: all are charged, or none.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{Algorithm, Decision, Kind, Quota, State, Step};

/// Whether a limit refuses calls or only says that it would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It refuses.
    #[default]
    Enforce,
    /// It is decided and counted, but refuses nothing: to try a limit on live calls before it is switched on.
    Shadow,
}

/// A named limiter in a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// How decisions name it.
    pub name: Box<str>,
    /// What it allows.
    pub algorithm: Algorithm,
    /// Whether it refuses.
    pub mode: Mode,
}

/// Several limits that every call must pass.
///
/// All limits look first. If each enforced one allows the call, each is charged; if one refuses, none is, so a long
/// limit is not used up by calls that a short one refused. A shadow limit is charged for a call that is allowed and
/// that it would have allowed itself.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Algorithm, Decision, Kind, Limit, Mode, Policy};
///
/// let limit = |name: &str, quota: &str| Limit {
///     name: name.into(),
///     algorithm: Algorithm::new(Kind::TokenBucket, quota.parse().unwrap()),
///     mode: Mode::Enforce,
/// };
/// let policy = Policy::new(vec![limit("per-second", "2/s"), limit("per-hour", "3/hour")]);
/// let mut state = policy.fresh();
/// for (now, allowed) in [(0, true), (0, true), (0, false), (1_000_000_000, true)] {
///     let decision;
///     (state, decision) = policy.step(state, now, 1);
///     assert_eq!(decision.decision.is_allowed(), allowed);
/// }
/// // The hour's three are gone; the refused call did not count. The answer is about the limit that refused.
/// let (_, decision) = policy.step(state, 2_000_000_000, 1);
/// assert_eq!(policy.limits()[decision.limit.unwrap()].name.as_ref(), "per-hour");
/// assert_eq!(decision.decision.retry_after(), Some(Duration::from_secs(1198)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    limits: Vec<Limit>,
}

impl From<Quota> for Policy {
    /// A token bucket, by the name of its algorithm.
    fn from(quota: Quota) -> Self {
        Algorithm::new(Kind::TokenBucket, quota).into()
    }
}

impl From<Algorithm> for Policy {
    /// One enforced limit, by the name of its algorithm.
    fn from(algorithm: Algorithm) -> Self {
        let name = algorithm.kind().name().into();
        Self::new([Limit { name, algorithm, mode: Mode::Enforce }].into())
    }
}

/// What a [`Policy`] remembers: a state for each limit, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyState {
    states: Vec<State>,
}

/// The answer of a policy.
#[must_use = "a call that was rejected must not run"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyDecision {
    /// What holds for the call as a whole. A rejection has the largest wait of the limits that refused. An allowed
    /// call starts when the last limit lets it, and `remaining` and `reset_after` are those of the tightest limit.
    pub decision: Decision,
    /// The limit that `decision` speaks of, as an index into [`Policy::limits`]: the one that refused with the largest
    /// wait, or the one with the fewest tokens left. `None` if no limit is enforced, or where a store answered for want of room.
    pub limit: Option<usize>,
    /// The first shadow limit that would have refused this call.
    pub shadow: Option<usize>,
}

impl Policy {
    /// The limits, in the order in which they are named in answers when they tie.
    #[must_use]
    pub const fn new(limits: Vec<Limit>) -> Self {
        Self { limits }
    }

    /// The limits, in order.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The state of a policy that was never called.
    #[must_use]
    pub fn fresh(&self) -> PolicyState {
        PolicyState { states: self.limits.iter().map(|limit| limit.algorithm.fresh()).collect() }
    }

    /// Decides a call that costs the same in every limit, and charges it if it is allowed.
    pub fn step(&self, state: PolicyState, now: u64, cost: u64) -> (PolicyState, PolicyDecision) {
        self.step_with(state, now, |_| cost)
    }

    /// Decides a call whose cost in the limit of index `i` is `cost(i)`, such as 1 request and 4096 bytes, and charges
    /// it if it is allowed.
    pub fn step_with(
        &self,
        mut state: PolicyState,
        now: u64,
        cost: impl Fn(usize) -> u64,
    ) -> (PolicyState, PolicyDecision) {
        if state.states.len() != self.limits.len() {
            state = self.fresh();
        }
        let decision = self.look_with(&state, now, &cost);
        if decision.decision.is_allowed() {
            for (index, (limit, state)) in self.limits.iter().zip(&mut state.states).enumerate() {
                let cost = cost(index);
                let charged = match limit.mode {
                    Mode::Enforce => true,
                    Mode::Shadow => limit.algorithm.look(state, now, cost).is_allowed(),
                };
                if charged {
                    limit.algorithm.charge(state, now, cost);
                }
            }
        }
        (state, decision)
    }

    /// The decision, without charging. A state that another policy left counts as fresh.
    pub fn look_with(&self, state: &PolicyState, now: u64, cost: impl Fn(usize) -> u64) -> PolicyDecision {
        if state.states.len() != self.limits.len() {
            return self.look_with(&self.fresh(), now, cost);
        }
        let mut looks = self.limits.iter().zip(&state.states).enumerate();
        self.combine(|_| match looks.next() {
            Some((index, (limit, state))) => limit.algorithm.look(state, now, cost(index)),
            None => UNLIMITED,
        })
    }

    /// One answer from the decisions of the limits: `look` is asked for each index of [`Self::limits`] in order.
    ///
    /// For those who keep the states elsewhere, such as one for each key.
    pub fn combine(&self, mut look: impl FnMut(usize) -> Decision) -> PolicyDecision {
        let mut answer = PolicyDecision { decision: UNLIMITED, limit: None, shadow: None };
        for (index, limit) in self.limits.iter().enumerate() {
            let decision = look(index);
            match limit.mode {
                Mode::Enforce if answer.limit.is_none() => {
                    answer.decision = decision;
                    answer.limit = Some(index);
                }
                Mode::Enforce => {
                    if binds_more(&decision, &answer.decision) {
                        answer.limit = Some(index);
                    }
                    answer.decision = both(answer.decision, decision);
                }
                Mode::Shadow if !decision.is_allowed() && answer.shadow.is_none() => {
                    answer.shadow = Some(index);
                }
                Mode::Shadow => {}
            }
        }
        answer
    }
}

/// What a policy without enforced limits answers.
const UNLIMITED: Decision =
    Decision::Allowed { start_after: Duration::ZERO, remaining: u64::MAX, reset_after: Duration::ZERO };

/// Whether `new` is a stricter answer than `old`.
fn binds_more(new: &Decision, old: &Decision) -> bool {
    match (old, new) {
        (Decision::Never { capacity: old }, Decision::Never { capacity: new }) => new < old,
        (Decision::Never { .. }, _) => false,
        (_, Decision::Never { .. }) => true,
        (Decision::Rejected { retry_after: old, .. }, Decision::Rejected { retry_after: new, .. }) => {
            new > old
        }
        (Decision::Rejected { .. }, Decision::Allowed { .. }) => false,
        (Decision::Allowed { .. }, Decision::Rejected { .. }) => true,
        (Decision::Allowed { remaining: old, .. }, Decision::Allowed { remaining: new, .. }) => new < old,
    }
}

/// One decision that holds when both do.
fn both(old: Decision, new: Decision) -> Decision {
    let strict = if binds_more(&new, &old) { new } else { old };
    match strict {
        Decision::Allowed { remaining, reset_after, .. } => Decision::Allowed {
            start_after: old.start_after().max(new.start_after()),
            remaining,
            reset_after,
        },
        Decision::Rejected { .. } | Decision::Never { .. } => strict,
    }
}
