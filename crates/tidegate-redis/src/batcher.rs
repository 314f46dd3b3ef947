//! Calls of many callers in few scripts, without a timer.
//!
//! A caller who finds nobody else sends its call itself. Otherwise it leaves it in a queue, and at most [`PUMPS`] tasks
//! empty that: each takes all that is there, up to a bound, sends it as one script, hands the answers out and takes what
//! has piled up meanwhile. So a batch is as large as the load makes it, and nobody waits for one to fill.
//!
//! **Bounds.** The queue, the calls in a script, and the time: each caller has its own deadline, from before it came here.
//! A call whose caller has left before its turn is not sent. One that was sent may be charged, whether its caller still
//! waits or not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::fault::Fault;
use crate::link::{Link, Up};
use crate::script::{Batch, Call, Verdict};

/// Scripts with queued calls that are under way at one time. With one, the server is idle while a reply is read; with more
/// than two, batches are smaller and the server does more for each call.
const PUMPS: usize = 2;
/// Calls in one script. At about 3 µs a call on different keys, this stops all other clients for 0.7 ms.
const BATCH: usize = 256;
/// How long to wait before a server is asked again that said that it cannot now.
const PAUSE: Duration = Duration::from_millis(5);

/// What came of one call.
type Answer = Result<Verdict, Fault>;

pub(crate) struct Batcher {
    pub(crate) link: Arc<Link>,
    runtime: Handle,
    max_waiting: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a caller has its call under way by itself.
    direct: bool,
    pumps: usize,
}

struct Waiting {
    call: Arc<Call>,
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

impl Batcher {
    pub(crate) fn new(link: Arc<Link>, runtime: Handle, max_waiting: usize) -> Arc<Self> {
        Arc::new(Self { link, runtime, max_waiting, queue: Mutex::default() })
    }

    /// How many calls may wait.
    pub(crate) const fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a call decided before `deadline`.
    pub(crate) async fn decide(self: &Arc<Self>, call: Arc<Call>, deadline: Instant) -> Answer {
        if !self.link.is_up() {
            return Err(Fault::Down);
        }
        let (pump, answered) = match self.way(call, deadline) {
            Way::Direct(direct, call) => {
                let answers = self.run(std::slice::from_ref(&call), deadline).await;
                drop(direct);
                return answers.and_then(only);
            }
            Way::Full => return Err(Fault::Busy),
            Way::Queued(pump, answered) => (pump, answered),
        };
        // Pumps are tasks, so a caller that is not polled holds nobody up: the one whose call is direct counts for no pump.
        if let Some(pump) = pump {
            self.runtime.spawn(pump.work());
        }
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The runtime of the store has ended.
            Ok(Err(_)) => Err(Fault::Down),
            Err(_) => Err(Fault::Late),
        }
    }

    fn way(self: &Arc<Self>, call: Arc<Call>, deadline: Instant) -> Way<'_> {
        let mut queue = self.queue();
        if queue.waiting.is_empty() && queue.pumps == 0 && !queue.direct {
            queue.direct = true;
            return Way::Direct(Direct(self), call);
        }
        if queue.waiting.len() >= self.max_waiting {
            return Way::Full;
        }
        let (answer, answered) = oneshot::channel();
        queue.waiting.push_back(Waiting { call, deadline, answer });
        let pump = (queue.pumps < PUMPS).then(|| Pump { batcher: Arc::clone(self), counted: true });
        queue.pumps += usize::from(pump.is_some());
        Way::Queued(pump, answered)
    }

    /// Runs the calls as one script, again as long as it is known that it did not run. It ends by `deadline`.
    async fn run(&self, calls: &[Arc<Call>], deadline: Instant) -> Result<Vec<Answer>, Fault> {
        let batch = Batch::new(calls.iter().map(|call| &**call));
        let mut up = self.link.up().ok_or(Fault::Down)?;
        loop {
            let reply = self.send(&batch, &up, deadline).await;
            let fault = match reply {
                Ok(reply) => {
                    self.link.answered();
                    let Some(verdicts) = batch.answers(&reply) else {
                        return Err(
                            self.told(Fault::Refused("the reply is none of this script's".into()), &up)
                        );
                    };
                    return Ok(verdicts.into_iter().map(|verdict| self.of_call(verdict)).collect());
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::NoScript => match timeout_at(deadline, up.load(&self.link)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(fault)) => return Err(self.told(fault, &up)),
                    // The script was not run, so this is not an unknown outcome.
                    Err(_) => return Err(Fault::Later { elsewhere: false }),
                },
                Fault::Later { elsewhere: true } => {
                    self.link.answered();
                    self.link.broken(&up);
                    match self.link.another(&up, deadline).await {
                        Some(other) => up = other,
                        None => return Err(fault),
                    }
                }
                Fault::Later { elsewhere: false } => {
                    self.link.answered();
                    let again = Instant::now() + PAUSE;
                    if again >= deadline {
                        return Err(fault);
                    }
                    sleep_until(again).await;
                }
                Fault::Refused(_) | Fault::Down | Fault::Busy | Fault::Late | Fault::Broken => {
                    return Err(self.told(fault, &up));
                }
            }
            self.link.counters.retries.one();
        }
    }

    async fn send(&self, batch: &Batch<'_>, up: &Up, deadline: Instant) -> Result<Vec<i64>, Fault> {
        self.link.counters.scripts.one();
        let command = batch.command(up.sha());
        timeout_at(deadline, up.run(&command)).await.unwrap_or(Err(Fault::Late))
    }

    /// The answer to one of the calls of a script.
    fn of_call(&self, verdict: Option<Verdict>) -> Answer {
        verdict.ok_or_else(|| {
            let text = "a key of the limiter holds something else, or may not be read";
            self.link.refused(text);
            Fault::Refused(text.into())
        })
    }

    /// Tells the link of a fault that ends a call.
    fn told(&self, fault: Fault, up: &Up) -> Fault {
        match &fault {
            Fault::Late => self.link.late(up),
            Fault::Broken => self.link.broken(up),
            Fault::Refused(text) => {
                self.link.answered();
                self.link.refused(text);
            }
            Fault::NoScript | Fault::Later { .. } | Fault::Down | Fault::Busy => {}
        }
        fault
    }
}

/// How a call goes.
enum Way<'a> {
    /// By itself.
    Direct(Direct<'a>, Arc<Call>),
    /// In the queue, with a pump to start if there are too few.
    Queued(Option<Pump>, oneshot::Receiver<Answer>),
    /// Not at all.
    Full,
}

/// The one answer to one call.
fn only(mut answers: Vec<Answer>) -> Answer {
    answers.pop().unwrap_or_else(|| Err(Fault::Refused("the reply has no answer".into())))
}

/// While it lives, a caller has its call under way by itself.
struct Direct<'a>(&'a Batcher);

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.0.queue().direct = false;
    }
}

/// One of the tasks that empty the queue.
struct Pump {
    batcher: Arc<Batcher>,
    /// Whether the queue counts it.
    counted: bool,
}

impl Pump {
    async fn work(mut self) {
        let mut taken: Vec<Waiting> = Vec::new();
        let mut calls: Vec<Arc<Call>> = Vec::new();
        while self.take(&mut taken) {
            let mut answers = Vec::with_capacity(taken.len());
            let mut latest = Instant::now();
            for waiting in taken.drain(..) {
                latest = latest.max(waiting.deadline);
                calls.push(waiting.call);
                answers.push(waiting.answer);
            }
            // Whoever has left gets no answer; that is their affair.
            match self.batcher.run(&calls, latest).await {
                Ok(told) => {
                    for (answer, told) in answers.into_iter().zip(told) {
                        let _ = answer.send(told);
                    }
                }
                Err(fault) => {
                    for answer in answers {
                        let _ = answer.send(Err(fault.clone()));
                    }
                }
            }
            calls.clear();
        }
    }

    /// Takes what waits and still has a caller. When there is nothing, the pump is no longer counted, in the same moment:
    /// the next caller starts another.
    fn take(&mut self, taken: &mut Vec<Waiting>) -> bool {
        let now = Instant::now();
        let mut queue = self.batcher.queue();
        while taken.len() < BATCH
            && let Some(waiting) = queue.waiting.pop_front()
        {
            if waiting.answer.is_closed() {
                continue;
            }
            if waiting.deadline <= now {
                let _ = waiting.answer.send(Err(Fault::Busy));
                continue;
            }
            taken.push(waiting);
        }
        if taken.is_empty() {
            queue.pumps -= 1;
            self.counted = false;
        }
        self.counted
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        // Only a runtime that is shut down ends a pump so. Those who wait are answered as not connected.
        let mut queue = self.batcher.queue();
        queue.pumps -= 1;
        if queue.pumps == 0 {
            queue.waiting.clear();
        }
    }
}
