//! What a response says of the limits: the fields of any, and the whole of a rejection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tidegate::{Decision, Mode};

use super::desk::{Desk, Shown, Verdict};
use super::limit::Entry;
use super::places::Full;
use crate::fields::{
    self, PolicyItem, RATE_LIMIT, RATE_LIMIT_POLICY, RETRY_AFTER_MS, Unit, X_RATE_LIMIT_LIMIT,
    X_RATE_LIMIT_REMAINING, X_RATE_LIMIT_RESET, push_state, whole_ms, whole_seconds, write_policy,
};
use crate::problem::{PROBLEM_JSON, Problem, ProblemType};

/// The name of the limit in flight of the server as a whole, in problem bodies.
pub(super) const IN_FLIGHT: &str = "in-flight";
/// What a rejection names when the shared buckets do not answer.
const UNANSWERED: &str = "unanswered";
/// The name of the limit in flight of each key, in problem bodies and fields.
pub(super) const IN_FLIGHT_PER_KEY: &str = "in-flight-per-key";
const IN_FLIGHT_PER_KEY_QUOTED: &str = "\"in-flight-per-key\"";

/// The fields of the older form.
const LEGACY: [HeaderName; 3] = [X_RATE_LIMIT_LIMIT, X_RATE_LIMIT_REMAINING, X_RATE_LIMIT_RESET];

/// Why a request was rejected, in the extensions of the response: for metrics and logs, or to write another body.
///
/// ```
/// use http::Response;
/// use tidegate_http::layer::Rejection;
///
/// fn log<B>(response: &Response<B>) -> Option<String> {
///     let rejection = response.extensions().get::<Rejection>()?;
///     Some(format!("rejected by {}, again after {:?}", rejection.limit, rejection.retry_after))
/// }
/// # assert_eq!(log(&Response::new(())), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// What kind it is, and with it the status.
    pub kind: ProblemType,
    /// The limit that bound: the name of a rate limit, `in-flight` or `in-flight-per-key`; or `unanswered`.
    pub limit: Arc<str>,
    /// The exact wait; `None` where none can be told or none helps.
    pub retry_after: Option<Duration>,
}

/// The shadow limit that would have rejected the request, in the extensions of a response that was not rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowRejection {
    /// The name of the first such limit.
    pub limit: Arc<str>,
}

/// What is added to a response.
#[derive(Debug, Default)]
pub(super) struct Stamp {
    /// `RateLimit-Policy` and `RateLimit`.
    fields: Option<(HeaderValue, HeaderValue)>,
    /// What few responses have.
    more: Option<Box<More>>,
}

#[derive(Debug)]
struct More {
    /// Limit, remaining and reset in the older form.
    legacy: Option<[u64; 3]>,
    shadow: Option<ShadowRejection>,
}

impl Stamp {
    pub(super) fn apply<B>(mut self, response: &mut Response<B>) {
        let shadow = self.more.as_mut().and_then(|more| more.shadow.take());
        self.apply_to(response.headers_mut());
        if let Some(shadow) = shadow {
            response.extensions_mut().insert(shadow);
        }
    }

    /// The fields one by one, for what has no map of them.
    pub(super) fn each_field(self, mut add: impl FnMut(HeaderName, HeaderValue)) {
        if let Some((policy, state)) = self.fields {
            add(RATE_LIMIT_POLICY, policy);
            add(RATE_LIMIT, state);
        }
        let numbers = self.more.and_then(|more| more.legacy).into_iter().flatten();
        LEGACY.into_iter().zip(numbers).for_each(|(name, number)| add(name, number.into()));
    }

    /// Only the fields.
    pub(super) fn apply_to(self, headers: &mut HeaderMap) {
        if let Some((policy, state)) = self.fields {
            // They are lists: what another layer further in has said of its limits holds as well.
            headers.append(RATE_LIMIT_POLICY, policy);
            headers.append(RATE_LIMIT, state);
        }
        let Some(more) = self.more else { return };
        if let Some(numbers) = more.legacy
            && !headers.contains_key(X_RATE_LIMIT_LIMIT)
        {
            headers.extend(LEGACY.into_iter().zip(numbers.map(HeaderValue::from)));
        }
    }
}

impl Desk {
    /// The fields for a response to a request that the only limit allows.
    pub(super) fn stamp_alone(&self, shown: Option<Shown>) -> Stamp {
        let (Some(shown), Some(entry)) = (shown, self.limits.first()) else { return Stamp::default() };
        if !shown.is_known {
            return Stamp::default();
        }
        let fields = self.policy_field(&[shown]).map(|policy| {
            // Room for two numbers of 15 digits and their keys.
            let mut state = String::with_capacity(entry.quoted.len() + 36);
            push_state(&mut state, &entry.quoted, shown.remaining, shown.seconds);
            (policy, fields::value(&state))
        });
        let legacy = self.legacy(0, Some(&shown));
        Stamp { fields, more: legacy.map(|legacy| Box::new(More { legacy: Some(legacy), shadow: None })) }
    }

    /// `RateLimit-Policy`, if it is sent: as most see it, or with the quotas that the keys of this request have.
    fn policy_field(&self, shown: &[Shown]) -> Option<HeaderValue> {
        let usual = self.policy_field.as_ref()?;
        if shown.iter().all(|shown| shown.tier == 0) {
            return Some(usual.clone());
        }
        self.advertised(|limit| shown[limit].tier)
    }

    /// What `RateLimit-Policy` says, where `tier` tells which quota of a limit it is about; `None` if nothing is limited.
    pub(super) fn advertised(&self, tier: impl Fn(usize) -> usize) -> Option<HeaderValue> {
        let per_key = self.per_key.as_ref().and_then(|per_key| {
            let item = PolicyItem::new(IN_FLIGHT_PER_KEY, per_key.max.get());
            write_policy(&[PolicyItem { unit: Unit::ConcurrentRequests, ..item }]).ok()
        });
        let limits = self.limits.iter().enumerate();
        let limits = limits.filter_map(|(limit, entry)| entry.quota(tier(limit)).policy.as_ref());
        listed(limits.chain(&per_key))
    }

    /// The fields for a response, with the limit that binds first.
    pub(super) fn stamp(&self, verdict: &Verdict) -> Stamp {
        self.stamp_with(self.policy_field(&verdict.shown), verdict)
    }

    /// As [`Self::stamp`], where `RateLimit-Policy` is of the limits that are named only.
    pub(super) fn stamp_named(&self, verdict: &Verdict, named: impl Fn(&Entry) -> bool) -> Stamp {
        let tier = |limit: usize| verdict.shown.get(limit).map_or(0, |shown| shown.tier);
        let limits = self.limits.iter().enumerate().filter(|(_, entry)| named(entry));
        let policy = listed(limits.filter_map(|(limit, entry)| entry.quota(tier(limit)).policy.as_ref()));
        self.stamp_with(policy.filter(|_| self.policy_field.is_some()), verdict)
    }

    /// The fields, with the limit that binds first in that of what is left.
    fn stamp_with(&self, policy: Option<HeaderValue>, verdict: &Verdict) -> Stamp {
        let binding = verdict.answer.limit.or(verdict.answer.shadow);
        let fields = policy.map(|policy| {
            let mut state = String::with_capacity(64);
            let per_key = verdict.free.map(|free| (IN_FLIGHT_PER_KEY_QUOTED, free, None));
            let is_first = verdict.full == Some(Full::Key);
            let others = (0..self.limits.len()).filter(|limit| Some(*limit) != binding);
            let limits = binding.into_iter().chain(others).filter_map(|limit| {
                let (entry, shown) = (&self.limits[limit], &verdict.shown[limit]);
                shown.is_known.then_some((&*entry.quoted, shown.remaining, shown.seconds))
            });
            let (before, after) = if is_first { (per_key, None) } else { (None, per_key) };
            for (quoted, remaining, seconds) in before.into_iter().chain(limits).chain(after) {
                push_state(&mut state, quoted, remaining, seconds);
            }
            (policy, fields::value(&state))
        });
        let limit = binding.unwrap_or(0);
        let legacy = self.legacy(limit, verdict.shown.get(limit));
        let shadow = verdict.answer.shadow.filter(|_| verdict.is_allowed());
        let shadow = shadow.map(|limit| ShadowRejection { limit: Arc::clone(&self.limits[limit].name) });
        let has_more = legacy.is_some() || shadow.is_some();
        Stamp { fields, more: has_more.then(|| Box::new(More { legacy, shadow })) }
    }

    fn legacy(&self, limit: usize, shown: Option<&Shown>) -> Option<[u64; 3]> {
        let shown = shown.filter(|shown| self.legacy_fields && shown.is_known)?;
        let shape = self.limits.get(limit)?.quota(shown.tier).shape.as_ref()?;
        Some([shape.capacity, shown.remaining, shown.reset_seconds])
    }

    /// The whole response to a request that is not allowed.
    pub(super) fn reject(&self, verdict: &Verdict, to: &Caller) -> Response<Bytes> {
        let (rejection, mut detail) = self.rejection(verdict);
        if to.without_peer {
            detail.push_str(
                "; the server does not know the addresses of its clients, so all of them share this limit",
            );
        }
        let mut response = match to.protocol {
            Protocol::Grpc => grpc_response(&rejection, &detail),
            Protocol::Http { is_head } => {
                let violated = self.violated(verdict);
                let problem = Problem { kind: rejection.kind, detail: &detail, violated: &violated };
                problem_response(&problem, is_head)
            }
        };
        let headers = response.headers_mut();
        if let Some(wait) = rejection.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(whole_ms(wait)));
        }
        self.stamp(verdict).apply(&mut response);
        response.extensions_mut().insert(rejection);
        response
    }

    fn rejection(&self, verdict: &Verdict) -> (Rejection, String) {
        let binding = verdict.answer.limit.map(|limit| &self.limits[limit]);
        let in_flight =
            |kind, name: &str, detail| (Rejection { kind, limit: name.into(), retry_after: None }, detail);
        match (verdict.full, verdict.answer.decision, binding) {
            (Some(Full::Key), ..) => {
                let max = self.per_key.as_ref().map_or(0, |per_key| per_key.max.get());
                let detail = format!(
                    "rejected by `{IN_FLIGHT_PER_KEY}`: {max} requests of this client are in flight already"
                );
                in_flight(ProblemType::QuotaExceeded, IN_FLIGHT_PER_KEY, detail)
            }
            (None, Decision::Never { capacity }, Some(limit)) => {
                let (name, cost) = (&limit.name, verdict.cost);
                let detail = format!(
                    "cost {cost} exceeds the capacity {capacity} of `{name}`, so it can never be allowed"
                );
                let kind = ProblemType::NeverAllowed;
                (Rejection { kind, limit: Arc::clone(name), retry_after: None }, detail)
            }
            (None, decision, Some(limit)) => {
                let (name, wait) = (&limit.name, decision.retry_after());
                let ms = whole_ms(wait.unwrap_or_default());
                let (seconds, ms) = (ms / 1000, ms % 1000);
                let detail = format!(
                    "rejected by `{name}` ({}): retry after {seconds}.{ms:03} s",
                    limit.quota(verdict.tier).label
                );
                let kind = ProblemType::QuotaExceeded;
                (Rejection { kind, limit: Arc::clone(name), retry_after: wait }, detail)
            }
            (Some(Full::Unanswered(wait)), ..) => {
                let ms = whole_ms(wait);
                let (seconds, ms) = (ms / 1000, ms % 1000);
                let detail = format!(
                    "refused: what keeps the limits does not answer; retry after {seconds}.{ms:03} s"
                );
                let kind = ProblemType::TemporaryReducedCapacity;
                (Rejection { kind, limit: UNANSWERED.into(), retry_after: Some(wait) }, detail)
            }
            // Without a limit only a place can be missing.
            (Some(Full::Server), ..) | (None, _, None) => {
                let detail = "shed: as many requests are in flight as the server may have".to_owned();
                in_flight(ProblemType::TemporaryReducedCapacity, IN_FLIGHT, detail)
            }
        }
    }

    fn violated(&self, verdict: &Verdict) -> Vec<&str> {
        match verdict.full {
            Some(Full::Key) => vec![IN_FLIGHT_PER_KEY],
            Some(Full::Server) => vec![IN_FLIGHT],
            Some(Full::Unanswered(_)) => Vec::new(),
            None => {
                let limits = self.policy.limits().iter().zip(&verdict.decisions);
                let violated =
                    limits.filter(|(limit, decision)| !decision.is_allowed() && limit.mode == Mode::Enforce);
                violated.map(|(limit, _)| &*limit.name).collect()
            }
        }
    }
}

/// Lists as one list; `None` if there is none. A single one is not written again.
fn listed<'a>(mut lists: impl Iterator<Item = &'a HeaderValue>) -> Option<HeaderValue> {
    let first = lists.next()?;
    let Some(second) = lists.next() else { return Some(first.clone()) };
    let mut all = first.as_bytes().to_vec();
    for other in std::iter::once(second).chain(lists) {
        all.extend_from_slice(b", ");
        all.extend_from_slice(other.as_bytes());
    }
    HeaderValue::try_from(all).ok()
}

/// How a rejection has to be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) protocol: Protocol,
    pub(super) without_peer: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Protocol {
    Http { is_head: bool },
    Grpc,
}

impl Protocol {
    pub(super) fn of(headers: &HeaderMap, method: &http::Method) -> Self {
        let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
        if headers.get(CONTENT_TYPE).is_some_and(is_grpc) {
            Self::Grpc
        } else {
            Self::Http { is_head: method == http::Method::HEAD }
        }
    }
}

fn problem_response(problem: &Problem<'_>, is_head: bool) -> Response<Bytes> {
    let body = Bytes::from(problem.to_json());
    let length = body.len();
    let mut response = Response::new(if is_head { Bytes::new() } else { body });
    *response.status_mut() = problem.kind.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, PROBLEM_JSON);
    if is_head {
        // As long as the body that a GET would have had.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// A call of gRPC has its status in fields, and HTTP's is 200; a client would take 429 for UNAVAILABLE.
fn grpc_response(rejection: &Rejection, detail: &str) -> Response<Bytes> {
    const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
    const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
    const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
    let status = match rejection.kind {
        ProblemType::TemporaryReducedCapacity => "14", // UNAVAILABLE
        ProblemType::QuotaExceeded | ProblemType::NeverAllowed => "8", // RESOURCE_EXHAUSTED
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(status));
    // The text is printable ASCII, so the percent sign alone needs its escape.
    headers.insert(GRPC_MESSAGE, fields::value(&detail.replace('%', "%25")));
    match (rejection.kind, rejection.retry_after) {
        // What can never be allowed must not be tried again.
        (ProblemType::NeverAllowed, _) => {
            headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from_static("-1"));
        }
        (_, Some(wait)) => {
            headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from(whole_ms(wait)));
        }
        (_, None) => {}
    }
    response
}
