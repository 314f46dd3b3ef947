//! What is known of the tool calls that wait and run, under one lock.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::Mode;

use super::answer;
use super::call::{Call, CallId};
use super::frame::Asked;
use super::limits::Subject;
use super::line::{Event, Joined, Line, Refusal, Shadow, Ticket, Why};
use super::log::{Decision, Entry, Log};

/// How many calls may wait and run, as each takes some 300 bytes until it is answered. A server that never answers some of
/// them would take ever more.
const OPEN_MAX: usize = 1_000_000;

/// A call with the server.
#[derive(Debug)]
struct Running {
    ticket: Ticket,
    subject: Subject,
    cost: u64,
    arrived: u64,
    wait: Duration,
    started: u64,
    shadow: Option<Shadow>,
}

#[derive(Debug)]
enum Place {
    Waiting(Ticket),
    Running(Running),
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Todo<R> {
    /// The message goes on to the server.
    Forward(R, Vec<u8>),
    /// The caller is answered.
    Answer(R, Vec<u8>),
    /// Callers are told that they wait.
    Progress(Vec<(R, Vec<u8>)>),
    /// Nothing, for now.
    Nothing,
}

/// Who ended before a call could start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    Server,
    /// Over HTTP the proxy ends alone.
    Proxy,
}

#[derive(Debug)]
pub(crate) struct Desk<R> {
    line: Line<Call<R>>,
    places: HashMap<CallId, Place>,
    /// The calls in flight that are no longer wanted.
    cancelled: HashMap<Ticket, CallId>,
    log: Log,
    /// Whether an answer that says how long to wait holds up calls.
    learns: bool,
    /// Who has gone, so that no call starts any more.
    closed: Option<Gone>,
    /// How many calls may wait and run.
    most: usize,
}

impl<R: Clone> Desk<R> {
    pub(crate) fn new(line: Line<Call<R>>, log: Log, learns: bool) -> Self {
        Self {
            line,
            places: HashMap::new(),
            cancelled: HashMap::new(),
            log,
            learns,
            closed: None,
            most: OPEN_MAX,
        }
    }

    /// Whether a call may have to wait or be refused.
    pub(crate) fn limits_something(&self) -> bool {
        self.line.rules().iter().any(|rule| rule.mode == Mode::Enforce)
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// How many calls wait or run.
    pub(crate) fn open(&self) -> usize {
        self.places.len()
    }

    /// Whether an answer of the server can matter here.
    pub(crate) fn expects_answers(&self) -> bool {
        !self.places.is_empty()
    }

    /// Whether a call of this id has not ended.
    pub(crate) fn knows(&self, id: &CallId) -> bool {
        self.places.contains_key(id)
    }

    /// A call came. One with the id of another that has not ended is none of our business.
    pub(crate) fn arrive(&mut self, call: Call<R>) -> Todo<R> {
        let now = call.arrived;
        let id = call.id();
        if self.knows(&id) {
            return Todo::Forward(call.caller, call.message);
        }
        if let Some(gone) = self.closed {
            let answer = self.unserved(&call, now, gone);
            return Todo::Answer(call.caller, answer);
        }
        if self.open() >= self.most {
            let refusal = Refusal { limit: None, wait: Duration::ZERO, why: Why::NoPlace };
            return self.refuse(now, call, &refusal);
        }
        let (subject, cost, bytes) = (call.asked.subject.clone(), call.asked.cost, call.message.len());
        match self.line.join(now, &subject, cost, bytes, call) {
            Joined::Granted(ticket, call, shadow) => self.start(now, ticket, call, shadow),
            Joined::Waiting(ticket) => {
                self.places.insert(id, Place::Waiting(ticket));
                Todo::Nothing
            }
            Joined::Refused(call, refusal) => self.refuse(now, call, &refusal),
        }
    }

    /// The client no longer wants an answer to `id`; whether the server is to be told.
    pub(crate) fn cancel(&mut self, now: u64, id: &CallId) -> bool {
        match self.places.get(id) {
            Some(Place::Waiting(ticket)) => {
                if let Some(call) = self.line.cancel(*ticket) {
                    self.note(now, &call, Decision::Cancelled, None);
                }
                self.places.remove(id);
                false
            }
            Some(Place::Running(running)) => {
                if self.cancelled.insert(running.ticket, id.clone()).is_none() {
                    self.line.cancel_running(now, running.ticket);
                }
                true
            }
            None => true,
        }
    }

    /// The server has answered `id`, and may have told how long its tool wants to be left alone.
    pub(crate) fn answered(&mut self, now: u64, id: &CallId, pause: Option<Duration>) {
        if !matches!(self.places.get(id), Some(Place::Running(_))) {
            return;
        }
        if let Some(Place::Running(running)) = self.places.remove(id) {
            self.line.end(running.ticket);
            self.cancelled.remove(&running.ticket);
            if let Some(pause) = pause.filter(|_| self.learns) {
                self.line.close(now, &running.subject.tool, pause);
            }
            self.ended(
                &running,
                Decision::Allowed,
                Some(Duration::from_nanos(now.saturating_sub(running.started))),
                pause,
            );
        }
    }

    /// What is due by `now`; `Nothing` when that is all.
    pub(crate) fn due(&mut self, now: u64) -> Todo<R> {
        match self.line.poll(now) {
            Some(Event::Granted(ticket, call, shadow)) => self.start(now, ticket, call, shadow),
            Some(Event::Refused(call, refusal)) => {
                self.places.remove(&call.id());
                self.refuse(now, call, &refusal)
            }
            Some(Event::Abandoned(ticket)) => {
                if let Some(id) = self.cancelled.remove(&ticket)
                    && let Some(Place::Running(running)) = self.places.remove(&id)
                {
                    self.ended(&running, Decision::Allowed, None, None);
                }
                self.due(now)
            }
            None => self.progress(now),
        }
    }

    /// When something is due if nothing else happens.
    pub(crate) fn next_due(&mut self, now: u64) -> Option<u64> {
        let progress = self.line.waiting_mut().filter_map(|call| call.next_progress()).min();
        self.line.next_event(now).into_iter().chain(progress).min()
    }

    /// No call starts any more; the answers for those that wait.
    pub(crate) fn close(&mut self, now: u64, gone: Gone) -> Vec<(R, Vec<u8>)> {
        self.closed = Some(gone);
        let waiting = self.line.drain();
        waiting
            .into_iter()
            .map(|call| {
                self.places.remove(&call.id());
                let answer = self.unserved(&call, now, gone);
                (call.caller, answer)
            })
            .collect()
    }

    /// A call that was let go could not be passed on; the answer for it.
    pub(crate) fn unsent(&mut self, asked: &Asked, id: &CallId) -> Option<Vec<u8>> {
        let Some(Place::Running(running)) = self.places.get(id) else { return None };
        let ticket = running.ticket;
        self.line.end(ticket);
        self.cancelled.remove(&ticket);
        let Some(Place::Running(running)) = self.places.remove(id) else { return None };
        self.ended(&running, Decision::Unserved, None, None);
        Some(answer::unserved(asked, Gone::Server))
    }

    /// Writes down what still runs, gives back its places, and tells what happened: the end.
    pub(crate) fn finish(&mut self) -> Option<String> {
        let mut open: Vec<Running> = std::mem::take(&mut self.places)
            .into_values()
            .filter_map(|place| match place {
                Place::Running(running) => Some(running),
                Place::Waiting(_) => None,
            })
            .collect();
        open.sort_unstable_by_key(|running| running.ticket);
        for running in open {
            self.ended(&running, Decision::Allowed, None, None);
        }
        self.line.finish();
        self.log.summary()
    }

    fn progress(&mut self, now: u64) -> Todo<R> {
        let mut told = Vec::new();
        for call in self.line.waiting_mut() {
            if call.next_progress().is_some_and(|next| next <= now)
                && let Some(token) = &call.asked.progress_token
            {
                call.steps += 1;
                told.push((call.caller.clone(), answer::progress(token, call.steps, call.waited(now))));
            }
        }
        if told.is_empty() { Todo::Nothing } else { Todo::Progress(told) }
    }

    fn start(&mut self, now: u64, ticket: Ticket, call: Call<R>, shadow: Option<Shadow>) -> Todo<R> {
        let (id, wait) = (call.id(), call.waited(now));
        let running = Running {
            ticket,
            subject: call.asked.subject,
            cost: call.asked.cost,
            arrived: call.arrived,
            wait,
            started: now,
            shadow,
        };
        self.places.insert(id, Place::Running(running));
        self.log.running(self.line.running());
        Todo::Forward(call.caller, call.message)
    }

    fn refuse(&mut self, now: u64, call: Call<R>, refusal: &Refusal) -> Todo<R> {
        let never = matches!(refusal.why, Why::Never { .. });
        let decision = if never { Decision::Never } else { Decision::Rejected };
        self.note(now, &call, decision, Some(refusal));
        let answer = answer::refused(&call.asked, self.line.rules(), refusal, call.waited(now));
        Todo::Answer(call.caller, answer)
    }

    fn unserved(&mut self, call: &Call<R>, now: u64, gone: Gone) -> Vec<u8> {
        self.note(now, call, Decision::Unserved, None);
        answer::unserved(&call.asked, gone)
    }

    /// Writes down a call that did not start.
    fn note(&mut self, now: u64, call: &Call<R>, decision: Decision, refusal: Option<&Refusal>) {
        let limit = refusal.and_then(|refusal| refusal.limit).and_then(|limit| self.line.rules().get(limit));
        self.log.add(&Entry {
            time: time(call.arrived),
            tool: &call.asked.subject.tool,
            cost: call.asked.cost,
            decision,
            limit: limit.map(|rule| &*rule.name),
            reason: refusal.map(|refusal| answer::reason(refusal.why)),
            shadow: None,
            wait: call.waited(now),
            duration: None,
            pause: None,
        });
    }

    /// Writes down a call that started.
    fn ended(
        &mut self,
        running: &Running,
        decision: Decision,
        duration: Option<Duration>,
        pause: Option<Duration>,
    ) {
        let shadow = running.shadow.and_then(|shadow| self.line.rules().get(shadow.limit));
        self.log.add(&Entry {
            time: time(running.arrived),
            tool: &running.subject.tool,
            cost: running.cost,
            decision,
            limit: None,
            reason: None,
            shadow: shadow.map(|rule| &*rule.name),
            wait: running.wait,
            duration,
            pause,
        });
    }
}

/// The clock of the wall, from nanoseconds since 1970.
fn time(ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::call::Scope;
    use crate::mcp::charges::Charges;
    use crate::mcp::frame::{Message, message};
    use crate::mcp::line::Room;

    #[test]
    fn calls_that_are_never_answered_have_a_bound() {
        let room = Room { calls: 1, bytes: 1000, max_wait: Duration::ZERO };
        let mut desk = Desk { most: 2, ..Desk::new(Line::new(Vec::new(), room), Log::default(), true) };
        let mut call = |id: u64| {
            let line = format!(r#"{{"id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#).into_bytes();
            let Message::Call(asked) = message(&line, &Charges::default()) else { panic!("it is a call") };
            let id = CallId { scope: Scope::Pipe, id: asked.id.clone() };
            (desk.arrive(Call::new(asked, Scope::Pipe, line, 0, ())), id)
        };
        let (first, id) = call(1);
        assert!(matches!(first, Todo::Forward(..)) && matches!(call(2).0, Todo::Forward(..)));
        let Todo::Answer((), answer) = call(3).0 else { panic!("there is no room") };
        assert!(String::from_utf8(answer).unwrap().contains("Too many calls run at once"));
        desk.answered(1, &id, None);
        assert_eq!(desk.open(), 1);
    }
}
