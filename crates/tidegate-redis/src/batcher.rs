//! Calls of many callers in few scripts, without a timer.
//!
//! A caller who finds nobody else sends its call itself. Otherwise it leaves it in a queue, and at most [`PUMPS`] tasks
//! empty that: each takes all that is there, up to a bound, sends it as one script, hands the answers out and takes what
//! has piled up meanwhile. So a batch is as large as the load makes it, and nobody waits for one to fill.
//!
//! In a cluster each slot has a batcher of its own, since a script can have keys of one slot only. While a slot moves, the calls
//! on a key that cannot be decided yet wait by themselves.
//!
//! **Bounds.** The queue, the calls in a script, and the time: each caller has its own deadline, from before it came here.
//! A call whose caller has left before its turn is not sent. One that was sent may be charged, whether its caller still
//! waits or not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::common::Common;
use crate::fault::Fault;
use crate::route::{At, Route};
use crate::script::{Batch, Call, Verdict};
use crate::up::Ran;

mod pump;

use pump::Pump;

/// Scripts with queued calls that are under way at one time. With one, the server is idle while a reply is read; with more
/// than two, batches are smaller and the server does more for each call.
const PUMPS: usize = 2;

/// What came of one call.
type Answer = Result<Verdict, Fault>;

pub(crate) struct Batcher {
    route: Route,
    common: Arc<Common>,
    runtime: Handle,
    /// How many more calls may wait, of all batchers of the store.
    room: Arc<Semaphore>,
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
    /// Its place among those that wait.
    _place: OwnedSemaphorePermit,
}

impl Batcher {
    pub(crate) fn new(route: Route, common: Arc<Common>, runtime: Handle, room: Arc<Semaphore>) -> Arc<Self> {
        Arc::new(Self { route, common, runtime, room, queue: Mutex::default() })
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a call decided before `deadline`.
    pub(crate) async fn decide(self: &Arc<Self>, call: Arc<Call>, deadline: Instant) -> Answer {
        if !self.route.is_up() {
            return Err(Fault::Down);
        }
        let (pump, answered) = match self.way(call, deadline) {
            Way::Direct(direct, call) => {
                let answers = self.run(std::slice::from_ref(&call), deadline, true).await;
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
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else { return Way::Full };
        let (answer, answered) = oneshot::channel();
        queue.waiting.push_back(Waiting { call, deadline, answer, _place: place });
        let pump = (queue.pumps < PUMPS).then(|| Pump { batcher: Arc::clone(self), counted: true });
        queue.pumps += usize::from(pump.is_some());
        Way::Queued(pump, answered)
    }

    /// Runs the calls as one script, or as several where the quota of a bucket changes between them. It ends by `deadline`.
    /// Only who is `patient` waits for keys that are on their way to another node.
    async fn run(&self, calls: &[Arc<Call>], deadline: Instant, patient: bool) -> Result<Vec<Answer>, Fault> {
        let batch = Batch::new(calls.iter().map(|call| &**call));
        let (now, mut later) = calls.split_at(batch.calls().min(calls.len()));
        let mut answers = self.run_batch(&batch, now, deadline, patient).await?;
        while !later.is_empty() {
            let batch = Batch::new(later.iter().map(|call| &**call));
            // The first is in any batch.
            let (now, rest) = later.split_at(batch.calls().clamp(1, later.len()));
            match self.run_batch(&batch, now, deadline, patient).await {
                Ok(more) => answers.extend(more),
                Err(fault) => answers.extend(now.iter().map(|_| Err(fault.clone()))),
            }
            later = rest;
        }
        Ok(answers)
    }

    /// Runs a script, again as long as it is known that it did not run.
    async fn run_batch(
        &self,
        batch: &Batch<'_>,
        calls: &[Arc<Call>],
        deadline: Instant,
        patient: bool,
    ) -> Result<Vec<Answer>, Fault> {
        let mut at = self.route.start().ok_or(Fault::Down)?;
        let mut times = 0;
        loop {
            let fault = match self.send(batch, &at, deadline).await {
                Ok(ran) => {
                    at.link.answered();
                    let Some(verdicts) = batch.answers(&ran.reply) else {
                        let fault = Fault::Refused("the reply is none of this script's".into());
                        return Err(self.told(fault, &at));
                    };
                    let kept = self.kept(&ran);
                    let each = calls.iter().zip(verdicts);
                    return Ok(each.map(|(call, verdict)| self.of_call(call, verdict, kept)).collect());
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::NoScript => match timeout_at(deadline, at.up.load(&self.common)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(fault)) => return Err(self.told(fault, &at)),
                    // The script was not run, so this is not an unknown outcome.
                    Err(_) => return Err(Fault::Later { elsewhere: false }),
                },
                Fault::Split if !patient => {
                    at.link.answered();
                    return Err(fault);
                }
                Fault::Later { .. } | Fault::Split | Fault::Redirect { .. } => {
                    at.link.answered();
                    times += 1;
                    let next = self.route.again(at, &fault, calls, times, deadline).await;
                    at = next.ok_or(fault)?;
                }
                _ => return Err(self.told(fault, &at)),
            }
            self.common.counters.retries.one();
        }
    }

    async fn send(&self, batch: &Batch<'_>, at: &At, deadline: Instant) -> Result<Ran, Fault> {
        self.common.counters.scripts.one();
        let command = batch.command(at.up.sha());
        let ran = at.up.run(&command, at.asking, self.common.durability);
        match timeout_at(deadline, ran).await.unwrap_or(Err(Fault::Late)) {
            Err(Fault::Redirect { .. }) if !self.route.follows() => Err(Fault::Refused(
                "the server is a node of a cluster; write redis+cluster://HOST:PORT".into(),
            )),
            ran => ran,
        }
    }

    /// Whether as many replicas have it as were asked for.
    fn kept(&self, ran: &Ran) -> bool {
        match (self.common.durability, ran.replicas) {
            (Some(asked), known) => known.is_some_and(|known| known >= i64::from(asked.replicas)),
            (None, _) => true,
        }
    }

    /// The answer to one of the calls of a script.
    fn of_call(&self, call: &Call, verdict: Option<Verdict>, kept: bool) -> Answer {
        match verdict {
            // What was charged could be forgotten. A rejection promises nothing.
            Some(verdict) if verdict.allowed && call.charge && !kept => Err(Fault::Unreplicated),
            Some(verdict) => Ok(verdict),
            None => {
                let text = "a key of the limiter holds something else, or may not be read";
                self.common.refused(text);
                Err(Fault::Refused(text.into()))
            }
        }
    }

    /// Tells the link of a fault that ends a call.
    fn told(&self, fault: Fault, at: &At) -> Fault {
        match &fault {
            Fault::Late => at.link.late(&at.up),
            Fault::Broken => at.link.broken(&at.up),
            Fault::Refused(text) => {
                at.link.answered();
                self.common.refused(text);
            }
            _ => {}
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
