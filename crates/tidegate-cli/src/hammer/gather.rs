//! The run itself: requests start at their intended times, and what comes back is gathered.
//!
//! The loop is open: a slow answer does not hold up the next request, so a slow server is seen as slow. The pace is kept
//! by a thread of its own, since its sleep is finer than the runtime's millisecond.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::fields::Log;
use super::pace::Pace;
use super::target::{Answer, NoAnswer, TIMEOUT, Target};

/// From this on a request counts as late. Less would report the scheduling of any busy machine; more would hide a pace
/// that is not kept.
pub(crate) const LATE: Duration = Duration::from_millis(5);

/// The longest latency that is told apart, ten minutes; a longer one counts as this. Ten times as much would take a
/// tenth more of the 250 KB that the histogram has.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// How long the pace sleeps before it looks whether it was told to stop.
const NAP: Duration = Duration::from_millis(50);

/// How long it waits for a place in flight before it looks again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// What is to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) requests: u64,
    pub(crate) pace: Pace,
    pub(crate) concurrency: usize,
}

/// One answered request, in nanoseconds since the start: the server decided it somewhere between the two times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) sent_ns: u64,
    pub(crate) received_ns: u64,
    pub(crate) allowed: bool,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) answered: Vec<Answered>,
    /// Requests without an answer that the server may have got, as if it had allowed them.
    pub(crate) unanswered: Vec<Answered>,
    /// What the answers said of the limits.
    pub(crate) fields: Log,
    /// From the intended start to the complete answer, in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
    pub(crate) late: u64,
    pub(crate) late_ns_max: u64,
    first_sent_ns: u64,
    last_received_ns: u64,
    pub(crate) interrupted: bool,
}

/// What became of one request.
pub(super) struct Shot {
    pub(super) intended_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) received_ns: u64,
    pub(super) result: Result<Answer, NoAnswer>,
}

impl Gathered {
    /// Nothing yet, of requests that cost `cost` each.
    pub(super) fn new(cost: u64) -> anyhow::Result<Self> {
        Ok(Self {
            statuses: BTreeMap::new(),
            errors: 0,
            first_error: None,
            answered: Vec::new(),
            unanswered: Vec::new(),
            fields: Log::new(cost),
            latency_ns: Histogram::new_with_max(LATENCY_MAX_NS, 3)
                .context("cannot make the histogram of latencies")?,
            late: 0,
            late_ns_max: 0,
            first_sent_ns: u64::MAX,
            last_received_ns: 0,
            interrupted: false,
        })
    }

    /// From the first request sent to the last answer or error received.
    pub(crate) const fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.last_received_ns.saturating_sub(self.first_sent_ns))
    }

    /// How many requests are accounted for, answered or not.
    pub(crate) fn requests(&self) -> u64 {
        self.statuses.values().sum::<u64>() + self.errors
    }

    pub(super) fn add(&mut self, shot: Shot) {
        self.first_sent_ns = self.first_sent_ns.min(shot.sent_ns);
        self.last_received_ns = self.last_received_ns.max(shot.received_ns);
        let late_ns = shot.sent_ns.saturating_sub(shot.intended_ns);
        if Duration::from_nanos(late_ns) >= LATE {
            self.late += 1;
            self.late_ns_max = self.late_ns_max.max(late_ns);
        }
        let (sent_ns, received_ns) = (shot.sent_ns, shot.received_ns);
        match shot.result {
            Ok(answer) => {
                *self.statuses.entry(answer.status).or_default() += 1;
                self.latency_ns.saturating_record(shot.received_ns.saturating_sub(shot.intended_ns));
                self.fields.add(self.answered.len(), answer.status, &answer.said);
                self.answered.push(Answered { sent_ns, received_ns, allowed: answer.is_allowed() });
            }
            Err(no_answer) => {
                self.errors += 1;
                if no_answer.may_have_arrived {
                    self.unanswered.push(Answered { sent_ns, received_ns, allowed: true });
                }
                self.first_error.get_or_insert(no_answer.cause);
            }
        }
    }
}

/// Sends what `plan` says to `target` and gathers what comes back, until all is answered or Ctrl-C is pressed.
///
/// It ends by itself: a request takes at most [`TIMEOUT`], and none starts later than that after the last intended start.
pub(crate) async fn gather(target: &Target, plan: Plan, mut gathered: Gathered) -> anyhow::Result<Gathered> {
    let (shots, mut arrivals) = mpsc::channel(plan.concurrency);
    let stop = Arc::new(AtomicBool::new(false));
    let pacer =
        Pacer { target: target.clone(), plan, handle: Handle::current(), stop: Arc::clone(&stop), shots };
    thread::Builder::new()
        .name("pace".to_owned())
        .spawn(move || pacer.run())
        .context("cannot start the thread that keeps the pace")?;
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    loop {
        tokio::select! {
            shot = arrivals.recv() => match shot {
                Some(shot) => gathered.add(shot),
                None => break,
            },
            _ = &mut interrupt => {
                gathered.interrupted = true;
                break;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    Ok(gathered)
}

/// Starts the requests, each at its time.
struct Pacer {
    target: Target,
    plan: Plan,
    handle: Handle,
    stop: Arc<AtomicBool>,
    shots: mpsc::Sender<Shot>,
}

impl Pacer {
    fn run(self) {
        let places = Arc::new(Semaphore::new(self.plan.concurrency));
        let start = Instant::now();
        let last = self.plan.pace.start(self.plan.requests.saturating_sub(1));
        for index in 0..self.plan.requests {
            let intended = self.plan.pace.start(index);
            self.sleep_until(start, intended);
            let Some(place) = self.place(&places, start, last.saturating_add(TIMEOUT)) else { return };
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.send(start, intended, place);
        }
    }

    fn sleep_until(&self, start: Instant, intended: Duration) {
        while !self.stop.load(Ordering::Relaxed) {
            let left = intended.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(NAP));
        }
    }

    /// A place among the requests in flight; `None` when there is none until `latest`.
    ///
    /// It looks again and again rather than wait in the runtime, which may be gone after an interrupt.
    fn place(
        &self,
        places: &Arc<Semaphore>,
        start: Instant,
        latest: Duration,
    ) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = Arc::clone(places).try_acquire_owned() {
                return Some(place);
            }
            if start.elapsed() > latest || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn send(&self, start: Instant, intended: Duration, place: OwnedSemaphorePermit) {
        let (target, shots) = (self.target.clone(), self.shots.clone());
        self.handle.spawn(async move {
            let sent = start.elapsed();
            let result = target.ask().await;
            let received = start.elapsed();
            let (intended_ns, sent_ns, received_ns) =
                (whole_ns(intended), whole_ns(sent), whole_ns(received));
            // Whoever gathers may have been interrupted and gone.
            let _ = shots.send(Shot { intended_ns, sent_ns, received_ns, result }).await;
            drop(place);
        });
    }
}

pub(super) fn whole_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
