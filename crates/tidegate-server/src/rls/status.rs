//! From what the limits decide to what Envoy is told of each descriptor.

use std::cmp::Reverse;
use std::time::Duration;

use tidegate::shared::Made;
use tidegate::{Decision, Mode};
use tidegate_http::layer::{Checked, CheckedLimit, Outcome};

use super::proto::rate_limit_response::{Code, DescriptorStatus};
use super::proto::{HeaderValue, RateLimitResponse};
use super::rules::{Place, Plan, Take};

/// What was decided: of the takes that are charged, and of those that are looked at.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) charges: Option<Checked>,
    pub(super) looks: Option<Box<Checked>>,
    /// Whether the charges were made.
    pub(super) is_charged: bool,
}

/// What one limit says of a descriptor.
struct Said<'a> {
    take: &'a Take<'a>,
    code: Code,
    remaining: u64,
    reset_after: Duration,
}

impl Decided {
    /// Whether the request may go on.
    pub(super) fn is_allowed(&self) -> bool {
        self.each().all(Checked::is_allowed)
    }

    /// Whether nobody could say.
    pub(super) fn is_unanswered(&self) -> bool {
        self.each().any(|checked| checked.outcome() == Outcome::Unanswered)
    }

    fn each(&self) -> impl Iterator<Item = &Checked> {
        self.looks.as_deref().into_iter().chain(&self.charges)
    }

    pub(super) fn response(&self, plan: &Plan<'_>) -> RateLimitResponse {
        let refused = self.each().find(|checked| !checked.is_allowed());
        let mut fields = Vec::new();
        if let Some(checked) = refused.or(self.charges.as_ref()).or(self.looks.as_deref()) {
            checked.each_field(|name, value| {
                let value = value.to_str().unwrap_or_default().to_owned();
                fields.push(HeaderValue { key: name.as_str().to_owned(), value });
            });
        }
        let code = if refused.is_some() { Code::OverLimit } else { Code::Ok };
        RateLimitResponse {
            overall_code: code.into(),
            statuses: plan.descriptors.iter().map(|places| self.status(plan, places)).collect(),
            response_headers_to_add: fields,
            raw_body: refused.map(problem).unwrap_or_default().into_bytes(),
        }
    }

    /// What is told of a descriptor: that of the limit which binds it most, of those that are enforced if there is one.
    fn status(&self, plan: &Plan<'_>, places: &[Place]) -> DescriptorStatus {
        let said = places.iter().filter_map(|place| match *place {
            Place::Charge(at) => said(&plan.charges[at], self.charges.as_ref()?, at, self.is_charged),
            Place::Look(at) => said(&plan.looks[at], self.looks.as_deref()?, at, false),
        });
        let binding = said.max_by_key(|said| {
            let is_enforced = said.take.limit.mode == Mode::Enforce;
            let wait = if said.code == Code::OverLimit { said.reset_after } else { Duration::ZERO };
            (is_enforced, said.code == Code::OverLimit, wait, Reverse(said.remaining))
        });
        // A descriptor that nothing limits, or of which nothing is known. Without a limit, Envoy does not show its numbers.
        let Some(said) = binding else {
            return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        };
        let Take { limit, key, .. } = said.take;
        DescriptorStatus {
            code: said.code.into(),
            current_limit: limit.rate(key).map(|rate| rate.named(&limit.name)),
            limit_remaining: u32::try_from(said.remaining).unwrap_or(u32::MAX),
            duration_until_reset: prost_types::Duration::try_from(said.reset_after).ok(),
        }
    }
}

fn said<'a>(take: &'a Take<'a>, of: &Checked, at: usize, is_charged: bool) -> Option<Said<'a>> {
    let checked = of.limits().get(at)?;
    let decision = checked.decision?;
    let is_over = !decision.is_allowed() && take.limit.mode == Mode::Enforce;
    // What is left of a share of this process is not what is left.
    if !is_over && of.made() == Some(Made::Local) {
        return None;
    }
    // What is left if nothing was taken is not what the decision says would be.
    let left = if is_charged && decision.is_allowed() { Some(decision) } else { checked.left };
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    let (remaining, reset_after) = match (decision, left) {
        (Decision::Rejected { retry_after, remaining, .. }, _) if is_over => (remaining, retry_after),
        (
            _,
            Some(
                Decision::Allowed { remaining, reset_after, .. }
                | Decision::Rejected { remaining, reset_after, .. },
            ),
        ) => (remaining, reset_after),
        (Decision::Rejected { remaining, reset_after, .. }, _) => (remaining, reset_after),
        (Decision::Never { .. }, _) => (0, Duration::ZERO),
        (Decision::Allowed { .. }, _) => return None,
    };
    Some(Said { take, code, remaining, reset_after })
}

/// Why a request is rejected, in a line: the body of the response.
fn problem(checked: &Checked) -> String {
    let name = checked.refused_by().unwrap_or_default();
    match checked.retry_after() {
        Some(wait) => {
            let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
            format!("rate limit `{name}` is reached; retry after {seconds} s")
        }
        None => {
            let limit = checked.limits().iter().find(|limit| *limit.name == *name && is_never(limit));
            let (cost, most) = limit.map_or((0, 0), |limit| (limit.cost, limit.capacity.unwrap_or(0)));
            format!("rate limit `{name}` never allows {cost} at once, only {most}; do not retry")
        }
    }
}

const fn is_never(limit: &CheckedLimit) -> bool {
    matches!(limit.decision, Some(Decision::Never { .. }))
}
