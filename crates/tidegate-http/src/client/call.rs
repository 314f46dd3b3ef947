//! One call on its way: its turn in the gate, an attempt, what the answer tells, and once more.
//!
//! Written once for tower and for reqwest; what differs between them is an [`Exchange`].

use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body::Body;
use tidegate::gate::Cost;
use tidegate::{Gate, Permit, Refused};
use tokio::time::{Instant, sleep, timeout};

use super::body::PacedBody;
use super::head::{CallHead, CallOptions};
use super::policy::{Failure, Outcome, Policy, Situation, Verdict, is_for_all, is_idempotent, with_jitter};
use super::report::{CallError, NotSent, Report, Stopped, Told};
use super::{Attempt, CostFn, FailureFn, IdempotentFn, ObserveFn};
use crate::hint::profile::Profile;
use crate::hint::{self, BODY_MAX, Hint};

/// How long an answer may take with a body that is read ahead. It comes with the head or soon after; a server that keeps
/// us waiting is judged by its head. Doubling it lets such a server hold each answer up for twice as long.
const READ_AHEAD_WITHIN: Duration = Duration::from_secs(2);

/// What the clones of a [`Pace`](super::Pace) share.
pub(super) struct Shared {
    pub(super) gate: Gate,
    pub(super) policy: Policy,
    pub(super) deadline: Duration,
    pub(super) reads_successes: bool,
    pub(super) profile: Option<&'static Profile>,
    pub(super) cost: Option<CostFn>,
    pub(super) idempotent: Option<IdempotentFn>,
    pub(super) failure: Option<FailureFn>,
    pub(super) observe: Option<ObserveFn>,
    /// What closed the gate last, and until when.
    pub(super) told: Mutex<Option<(Told, Instant)>>,
}

/// Where requests are sent.
pub(super) trait Exchange<Request>: Send {
    type Body: Body + Send;
    type Error: Send;

    /// The same request once more, if it can be sent twice.
    fn repeat(&self, request: &Request) -> Option<Request>;

    /// Waits until one can be sent.
    fn ready(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    fn send(
        &mut self,
        request: Request,
    ) -> impl Future<Output = Result<Response<Self::Body>, Self::Error>> + Send;

    fn failure(&self, error: &Self::Error) -> Failure;
}

pub(super) type Paced<Q, X> =
    Result<Response<PacedBody<<X as Exchange<Q>>::Body>>, CallError<<X as Exchange<Q>>::Error>>;

/// What a call asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    cost: Cost,
    is_idempotent: bool,
    deadline: Duration,
}

impl Wish {
    fn left(&self, started: Instant) -> Duration {
        self.deadline.saturating_sub(started.elapsed())
    }
}

/// A call that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    wish: Wish,
    started: Instant,
    can_repeat: bool,
}

impl Sent {
    fn situation(&self, attempts: u32) -> Situation {
        Situation {
            attempts,
            left: self.wish.left(self.started),
            is_idempotent: self.wish.is_idempotent,
            can_repeat: self.can_repeat,
            random: random(),
        }
    }
}

/// A permit that goes back as if it had not been granted, unless the call was sent.
struct Unsent(Option<Permit>);

impl Unsent {
    fn sent(mut self) -> Option<Permit> {
        self.0.take()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.cancel();
        }
    }
}

impl Shared {
    pub(super) fn wish(&self, head: CallHead<'_>) -> Wish {
        let options = head.extension::<CallOptions>().copied().unwrap_or_default();
        let by_function = || self.cost.as_ref().map(|cost| cost(head));
        Wish {
            cost: options.cost.or_else(by_function).unwrap_or(Cost::from(1)),
            is_idempotent: options.idempotent.unwrap_or_else(|| {
                is_idempotent(head.method(), head.headers())
                    || self.idempotent.as_ref().is_some_and(|idempotent| idempotent(head))
            }),
            deadline: options.deadline.unwrap_or(self.deadline),
        }
    }

    /// Makes the call. Dropping the future at any point leaves nothing behind but what was sent.
    pub(super) async fn run<Q: Send, X: Exchange<Q>>(
        &self,
        wish: Wish,
        mut request: Q,
        mut exchange: X,
    ) -> Paced<Q, X> {
        let started = Instant::now();
        let mut report = Report::default();
        // The last answer, if it is whole: it is returned if the gate does not take the call again.
        let mut last = None;
        loop {
            let waiting = Instant::now();
            let acquired = self.turn(wish, started, report.attempts > 0).await;
            report.waited += waiting.elapsed();
            let permit = match acquired {
                Ok(permit) => Unsent(Some(permit)),
                Err(refused) => return self.refused::<Q, X>(refused, last, report),
            };
            if let Err(error) = exchange.ready().await {
                return Err(CallError::Failed { error, report: Box::new(report) });
            }
            report.attempts += 1;
            let is_last = report.attempts >= self.policy.max_attempts.get();
            let again = if is_last { None } else { exchange.repeat(&request) };
            let permit = permit.sent();
            let result = exchange.send(request).await.map_err(|error| (exchange.failure(&error), error));
            let call = Sent { wish, started, can_repeat: again.is_some() };
            let (result, verdict, closed_for) = self.weigh(result, permit, call, &mut report).await;
            let (Verdict::Retry { after }, Some(again)) = (&verdict, again) else {
                report.stopped = verdict.stopped();
                return match result {
                    Ok(answer) => Ok(with_report(answer, report)),
                    Err(error) => Err(CallError::Failed { error, report: Box::new(report) }),
                };
            };
            request = again;
            // The rest of a body would hold a connection and a place in flight.
            last = result.ok().filter(|answer| answer.body().is_whole());
            // What the server told is waited for in the gate, where the call has its place in the line.
            if closed_for != Some(*after) && !after.is_zero() {
                sleep(*after).await;
                report.waited += *after;
            }
        }
    }

    /// What an attempt came to, what follows from it, and for how long it closed the gate.
    async fn weigh<B: Body, E>(
        &self,
        result: Result<Response<B>, (Failure, E)>,
        permit: Option<Permit>,
        call: Sent,
        report: &mut Report,
    ) -> (Result<Response<PacedBody<B>>, E>, Verdict, Option<Duration>) {
        let number = report.attempts;
        match result {
            Err((failure, error)) => {
                if failure == Failure::Unsent {
                    drop(Unsent(permit));
                }
                let verdict = self.policy.judge(Outcome::Failed(failure), call.situation(number));
                self.tell(&Attempt { number, status: None, hint: None, closed_for: None, verdict: &verdict });
                report.hint = None;
                (Err(error), verdict, None)
            }
            Ok(answer) => {
                let (answer, hint, closed_for) = self.learn(answer, permit).await;
                let status = answer.status();
                let outcome = Outcome::Answer { status, hint: &hint, pause: closed_for };
                let verdict = self.policy.judge(outcome, call.situation(number));
                let (status, told) = (Some(status), Some(&hint));
                self.tell(&Attempt { number, status, hint: told, closed_for, verdict: &verdict });
                report.hint = Some(hint);
                (Ok(answer), verdict, closed_for)
            }
        }
    }

    /// Waits for a turn. A call that was sent before goes before those that were not: it has waited its turn once, and
    /// would otherwise be overtaken by all who came since.
    async fn turn(&self, wish: Wish, started: Instant, was_sent: bool) -> Result<Permit, Refused> {
        let Wish { cost, deadline, .. } = wish;
        let call = self.gate.call(cost.of(0)).also(cost.of(1)).also(cost.of(2)).also(cost.of(3));
        let within = if was_sent { wish.left(started) } else { deadline };
        call.priority(u8::from(was_sent)).within(within).acquire().await
    }

    fn refused<Q, X: Exchange<Q>>(
        &self,
        refused: Refused,
        last: Option<Response<PacedBody<X::Body>>>,
        mut report: Report,
    ) -> Paced<Q, X> {
        if let Some(answer) = last {
            report.stopped = Some(Stopped::Refused(refused));
            return Ok(with_report(answer, report));
        }
        let told = self.told().filter(|(_, until)| *until > Instant::now()).map(|(told, _)| Box::new(told));
        let Report { attempts, waited, .. } = report;
        Err(CallError::NotSent(NotSent { refused, told, attempts, waited }))
    }

    /// Reads what an answer tells, and closes the gate before the call's place in flight is free for another.
    async fn learn<B: Body>(
        &self,
        answer: Response<B>,
        permit: Option<Permit>,
    ) -> (Response<PacedBody<B>>, Hint, Option<Duration>) {
        let arrived = SystemTime::now();
        let mut answer = answer.map(PacedBody::new);
        let status = answer.status();
        let mut hint = self.hint(&answer, arrived);
        let mut closed_for = None;
        if self.reads(&answer) {
            {
                let mut reading = pin!(timeout(READ_AHEAD_WITHIN, answer.body_mut().read_ahead(BODY_MAX)));
                let at_once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await.is_ready();
                if !at_once {
                    // What the head tells binds now, and not when the body has come.
                    closed_for = self.close(status, &hint);
                    // A body that does not come is not waited for: it goes on to the caller.
                    let _ = reading.await;
                }
            }
            hint = self.hint(&answer, arrived);
        }
        let closed_for = self.close(status, &hint).max(closed_for);
        answer.body_mut().hold(permit);
        (answer, hint, closed_for)
    }

    fn hint<B: Body>(&self, answer: &Response<PacedBody<B>>, now: SystemTime) -> Hint {
        let mut read = hint::Response::new(answer.status().as_u16(), now).headers(answer.headers());
        if let Some(profile) = self.profile {
            read = read.profile(profile);
        }
        read.body(answer.body().text().unwrap_or_default()).hint()
    }

    /// Whether the body is read ahead: JSON of a known bound, of an error, or of a success if that is wanted.
    fn reads<B: Body>(&self, answer: &Response<PacedBody<B>>) -> bool {
        let (status, headers, body) = (answer.status(), answer.headers(), answer.body());
        let is_wanted = status.as_u16() >= 400 || (self.reads_successes && status.is_success());
        let fits = body.size_hint().lower() <= BODY_MAX as u64;
        let encoding = headers.get(CONTENT_ENCODING);
        let is_plain = encoding.is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
        is_wanted && fits && is_plain && !body.is_whole() && headers.get(CONTENT_TYPE).is_some_and(is_json)
    }

    /// Closes the gate for what an answer told, and says for how long.
    fn close(&self, status: StatusCode, hint: &Hint) -> Option<Duration> {
        if !is_for_all(status, hint) {
            return None;
        }
        let pause = with_jitter(hint.pause(hint::CEILING)?.wait, random());
        if pause.is_zero() {
            return Some(pause);
        }
        self.gate.close_for(pause);
        if let (Some(signal), Some(wait)) = (&hint.signal, hint.wait) {
            let until = Instant::now() + pause;
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.as_ref().is_none_or(|(_, known)| *known < until) {
                *told = Some((Told { status, signal: signal.clone(), wait }, until));
            }
        }
        Some(pause)
    }

    fn told(&self) -> Option<(Told, Instant)> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, attempt: &Attempt<'_>) {
        if let Some(observe) = &self.observe {
            observe(attempt);
        }
    }
}

impl Verdict {
    fn stopped(self) -> Option<Stopped> {
        match self {
            Self::Stop(stopped) => Some(stopped),
            Self::Done | Self::Retry { .. } => None,
        }
    }
}

fn with_report<B>(mut answer: Response<B>, report: Report) -> Response<B> {
    answer.extensions_mut().insert(report);
    answer
}

fn is_json(content_type: &HeaderValue) -> bool {
    let text = content_type.as_bytes();
    let kind = text.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let ends = |ending: &[u8]| {
        kind.len()
            .checked_sub(ending.len())
            .and_then(|at| kind.get(at..))
            .is_some_and(|end| end.eq_ignore_ascii_case(ending))
    };
    ends(b"/json") || ends(b"+json")
}

/// A number that nobody guesses and that need not be better than that: a hash with the keys of a new hasher.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
