//! Callers that obey: who is rejected comes back when it was told to, and expects to be allowed.
//!
//! The loop is closed: each caller has one request in flight. A caller that comes back is only sure of its token if nobody
//! else takes it, so with several callers a second rejection decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::gather::{Gathered, Plan, Shot, whole_ns};
use super::retry::PATIENCE;
use super::target::Target;

/// What became of the waits that were told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Obeyed {
    pub(crate) callers: usize,
    /// Who came back was allowed.
    pub(crate) kept: u64,
    /// Who came back was rejected again, and nobody else can have been charged.
    pub(crate) broken: u64,
    pub(crate) first_broken: Option<Back>,
    /// Who came back was rejected again, and another may have taken the token, or there was no answer.
    pub(crate) undecided: u64,
    /// A rejection told no wait.
    pub(crate) no_wait_told: u64,
    /// The wait was longer than what was left of the run, or than [`PATIENCE`] in a run without a duration.
    pub(crate) not_tried: u64,
    /// From the time told to the sending.
    pub(crate) late_ns_max: u64,
}

/// A caller that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Back {
    pub(crate) told: Duration,
    /// From the receipt of the rejection to the sending.
    pub(crate) waited: Duration,
}

enum Event {
    Shot(Shot, Option<Back>),
    NoWaitTold,
    NotTried,
}

impl Obeyed {
    fn came_back(&mut self, back: Back, shot: &Shot, is_alone: bool) {
        self.late_ns_max = self.late_ns_max.max(whole_ns(back.waited.saturating_sub(back.told)));
        match &shot.result {
            Ok(answer) if answer.is_allowed() => self.kept += 1,
            Ok(_) if is_alone => {
                self.broken += 1;
                self.first_broken.get_or_insert(back);
            }
            _ => self.undecided += 1,
        }
    }
}

/// Lets `plan.concurrency` callers send what `plan` says, none after `duration`, until all is answered or Ctrl-C is
/// pressed.
pub(crate) async fn obey(
    target: &Target,
    plan: Plan,
    duration: Option<Duration>,
    mut gathered: Gathered,
) -> (Gathered, Obeyed) {
    let (events, mut arrivals) = mpsc::channel(plan.concurrency);
    let (start, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..plan.concurrency {
        let caller = Caller {
            target: target.clone(),
            plan,
            duration,
            start,
            next: Arc::clone(&next),
            events: events.clone(),
        };
        callers.spawn(caller.run());
    }
    drop(events);
    let mut obeyed = Obeyed { callers: plan.concurrency, ..Obeyed::default() };
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    loop {
        tokio::select! {
            event = arrivals.recv() => match event {
                Some(Event::Shot(shot, back)) => {
                    // The server may get a request without an answer at any later time, and charge it.
                    let is_alone = plan.concurrency == 1 && gathered.unanswered.is_empty();
                    if let Some(back) = back {
                        obeyed.came_back(back, &shot, is_alone);
                    }
                    gathered.add(shot);
                }
                Some(Event::NoWaitTold) => obeyed.no_wait_told += 1,
                Some(Event::NotTried) => obeyed.not_tried += 1,
                None => break,
            },
            _ = &mut interrupt => {
                gathered.interrupted = true;
                break;
            }
        }
    }
    // With the set, callers that were interrupted end here.
    drop(callers);
    (gathered, obeyed)
}

struct Caller {
    target: Target,
    plan: Plan,
    duration: Option<Duration>,
    start: Instant,
    next: Arc<AtomicU64>,
    events: mpsc::Sender<Event>,
}

impl Caller {
    /// Sends until the run is over. Whoever gathers may have been interrupted and gone, so events may be lost.
    async fn run(self) {
        // When the last rejection was received, and the wait that it told.
        let mut told: Option<(Duration, Duration)> = None;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let due = match told {
                Some((received, wait)) => received.saturating_add(wait),
                None => self.plan.pace.start(index).max(self.start.elapsed()),
            };
            let is_over = index >= self.plan.requests || self.duration.is_some_and(|end| due >= end);
            let is_too_long = self.duration.is_none() && told.is_some_and(|(_, wait)| wait > PATIENCE);
            if is_over || is_too_long {
                if told.is_some() {
                    let _ = self.events.send(Event::NotTried).await;
                }
                return;
            }
            tokio::time::sleep_until((self.start + due).into()).await;
            let sent = self.start.elapsed();
            let result = self.target.ask().await;
            let received = self.start.elapsed();
            let back =
                told.map(|(rejected, wait)| Back { told: wait, waited: sent.saturating_sub(rejected) });
            let is_rejected = result.as_ref().is_ok_and(|answer| !answer.is_allowed());
            let wait = result.as_ref().ok().and_then(super::target::Answer::told_wait);
            told = wait.filter(|_| is_rejected).map(|wait| (received, wait));
            let (intended_ns, sent_ns, received_ns) = (whole_ns(due), whole_ns(sent), whole_ns(received));
            let shot = Shot { intended_ns, sent_ns, received_ns, result };
            let _ = self.events.send(Event::Shot(shot, back)).await;
            if is_rejected && told.is_none() {
                let _ = self.events.send(Event::NoWaitTold).await;
            }
        }
    }
}
