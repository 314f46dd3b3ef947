//! What is known of the tool calls that wait and run, under one lock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::Mode;

use super::answer;
use super::frame::{Asked, Id};
use super::line::{Event, Joined, Line, Refusal, Shadow, Ticket, Why};
use super::log::{Decision, Entry, Log};

/// When a waiting call is first told of, and how often after that.
const FIRST_PROGRESS: Duration = Duration::from_secs(1);
const NEXT_PROGRESS: Duration = Duration::from_secs(5);

/// A tool call that came.
#[derive(Debug)]
pub(crate) struct Call {
    asked: Asked,
    cost: u64,
    /// The message as it came.
    message: Vec<u8>,
    /// When it came, in nanoseconds since 1970.
    arrived: u64,
    /// How often its progress was told.
    steps: u32,
}

impl Call {
    pub(crate) const fn new(asked: Asked, cost: u64, message: Vec<u8>, arrived: u64) -> Self {
        Self { asked, cost, message, arrived, steps: 0 }
    }

    fn waited(&self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.arrived))
    }

    fn next_progress(&self) -> Option<u64> {
        self.asked.progress_token.as_ref()?;
        let after = FIRST_PROGRESS + NEXT_PROGRESS * self.steps;
        Some(self.arrived.saturating_add(super::line::nanoseconds(after)))
    }
}

/// A call with the server.
#[derive(Debug)]
struct Running {
    ticket: Ticket,
    tool: Box<str>,
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

/// What is to be done with something that the client sent.
#[derive(Debug, PartialEq)]
pub(crate) enum Todo {
    /// It goes on to the server.
    Forward(Vec<u8>),
    /// The client is answered.
    Answer(Vec<u8>),
    /// Nothing, for now.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Desk {
    line: Line<Call>,
    places: HashMap<Id, Place>,
    log: Log,
    /// No call starts any more: the server or the client has gone.
    closed: bool,
}

impl Desk {
    pub(crate) fn new(line: Line<Call>, log: Log) -> Self {
        Self { line, places: HashMap::new(), log, closed: false }
    }

    /// Whether a call may have to wait or be refused.
    pub(crate) fn limits_something(&self) -> bool {
        self.line.rules().iter().any(|rule| rule.mode == Mode::Enforce)
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Whether an answer of the server can matter here.
    pub(crate) fn expects_answers(&self) -> bool {
        !self.places.is_empty()
    }

    /// A tool call came. One with the id of another that has not ended is none of our business.
    pub(crate) fn arrive(&mut self, call: Call) -> Todo {
        let now = call.arrived;
        if self.places.contains_key(&call.asked.id) {
            return Todo::Forward(call.message);
        }
        if self.closed {
            return Todo::Answer(self.unserved(&call, now));
        }
        let (id, tool) = (call.asked.id.clone(), call.asked.tool.clone());
        let bytes = call.message.len();
        match self.line.join(now, &tool, call.cost, bytes, call) {
            Joined::Granted(ticket, call, shadow) => Todo::Forward(self.start(now, ticket, call, shadow)),
            Joined::Waiting(ticket) => {
                self.places.insert(id, Place::Waiting(ticket));
                Todo::Nothing
            }
            Joined::Refused(call, refusal) => Todo::Answer(self.refuse(now, &call, &refusal)),
        }
    }

    /// The client no longer wants an answer to `id`; whether the server is to be told.
    pub(crate) fn cancel(&mut self, now: u64, id: &Id) -> bool {
        match self.places.get(id) {
            Some(Place::Waiting(ticket)) => {
                if let Some(call) = self.line.cancel(*ticket) {
                    self.note(now, &call, Decision::Cancelled, None);
                }
                self.places.remove(id);
                false
            }
            Some(Place::Running(running)) => {
                self.line.cancel_running(now, running.ticket);
                true
            }
            None => true,
        }
    }

    /// The server has answered `id`.
    pub(crate) fn answered(&mut self, now: u64, id: &Id) {
        if !matches!(self.places.get(id), Some(Place::Running(_))) {
            return;
        }
        if let Some(Place::Running(running)) = self.places.remove(id) {
            self.line.end(running.ticket);
            self.ended(&running, Some(Duration::from_nanos(now.saturating_sub(running.started))));
        }
    }

    /// What is due by `now`; `Nothing` when that is all.
    pub(crate) fn due(&mut self, now: u64) -> Todo {
        match self.line.poll(now) {
            Some(Event::Granted(ticket, call, shadow)) => {
                Todo::Forward(self.start(now, ticket, call, shadow))
            }
            Some(Event::Refused(call, refusal)) => {
                self.places.remove(&call.asked.id);
                Todo::Answer(self.refuse(now, &call, &refusal))
            }
            None => self.progress(now).map_or(Todo::Nothing, Todo::Answer),
        }
    }

    /// When something is due if nothing else happens.
    pub(crate) fn next_due(&mut self, now: u64) -> Option<u64> {
        let progress = self.line.waiting_mut().filter_map(|call| call.next_progress()).min();
        self.line.next_event(now).into_iter().chain(progress).min()
    }

    /// No call starts any more; the answers for those that wait.
    pub(crate) fn close(&mut self, now: u64) -> Vec<u8> {
        self.closed = true;
        let mut answers = Vec::new();
        for call in self.line.drain() {
            self.places.remove(&call.asked.id);
            answers.extend(self.unserved(&call, now));
        }
        answers
    }

    /// Writes down what still runs, and tells what happened.
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
            self.ended(&running, None);
        }
        self.log.summary()
    }

    fn progress(&mut self, now: u64) -> Option<Vec<u8>> {
        let mut messages = Vec::new();
        for call in self.line.waiting_mut() {
            if call.next_progress().is_some_and(|next| next <= now)
                && let Some(token) = &call.asked.progress_token
            {
                call.steps += 1;
                messages.extend(answer::progress(token, call.steps, call.waited(now)));
            }
        }
        (!messages.is_empty()).then_some(messages)
    }

    fn start(&mut self, now: u64, ticket: Ticket, call: Call, shadow: Option<Shadow>) -> Vec<u8> {
        let wait = call.waited(now);
        let running = Running {
            ticket,
            tool: call.asked.tool,
            cost: call.cost,
            arrived: call.arrived,
            wait,
            started: now,
            shadow,
        };
        self.places.insert(call.asked.id, Place::Running(running));
        call.message
    }

    fn refuse(&mut self, now: u64, call: &Call, refusal: &Refusal) -> Vec<u8> {
        let never = matches!(refusal.why, Why::Never { .. });
        let decision = if never { Decision::Never } else { Decision::Rejected };
        self.note(now, call, decision, Some(refusal));
        answer::refused(&call.asked, call.cost, self.line.rules(), refusal, call.waited(now))
    }

    fn unserved(&mut self, call: &Call, now: u64) -> Vec<u8> {
        self.note(now, call, Decision::Unserved, None);
        answer::server_ended(&call.asked)
    }

    /// Writes down a call that did not start.
    fn note(&mut self, now: u64, call: &Call, decision: Decision, refusal: Option<&Refusal>) {
        let limit = refusal.and_then(|refusal| refusal.limit).and_then(|limit| self.line.rules().get(limit));
        self.log.add(&Entry {
            time: time(call.arrived),
            tool: &call.asked.tool,
            cost: call.cost,
            decision,
            limit: limit.map(|rule| &*rule.name),
            reason: refusal.map(|refusal| answer::reason(refusal.why)),
            shadow: None,
            wait: call.waited(now),
            duration: None,
        });
    }

    /// Writes down a call that started.
    fn ended(&mut self, running: &Running, duration: Option<Duration>) {
        let shadow = running.shadow.and_then(|shadow| self.line.rules().get(shadow.limit));
        self.log.add(&Entry {
            time: time(running.arrived),
            tool: &running.tool,
            cost: running.cost,
            decision: Decision::Allowed,
            limit: None,
            reason: None,
            shadow: shadow.map(|rule| &*rule.name),
            wait: running.wait,
            duration,
        });
    }
}

/// The clock of the wall, from nanoseconds since 1970.
fn time(ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::MAX)
}

/// Tools with a cost of their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Costs(pub(crate) HashMap<Box<str>, u64>);

impl Costs {
    /// The cost of a call; a call that goes on with one that the server has asked something back for was charged.
    pub(crate) fn of(&self, asked: &Asked) -> u64 {
        if asked.goes_on { 0 } else { self.0.get(&asked.tool).copied().unwrap_or(1) }
    }

    /// # Errors
    ///
    /// A tool with two costs.
    pub(crate) fn new(costs: &[(Box<str>, u64)]) -> Result<Self, Box<str>> {
        let mut seen = HashSet::new();
        match costs.iter().find(|(tool, _)| !seen.insert(tool)) {
            Some((tool, _)) => Err(tool.clone()),
            None => Ok(Self(costs.iter().cloned().collect())),
        }
    }
}
