//! The tasks that empty the queue of a batcher.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, Batcher, Waiting};
use crate::fault::Fault;
use crate::script::Call;

/// Calls in one script. At about 3 µs a call on different keys, this stops all other clients for 0.7 ms.
const BATCH: usize = 256;

/// One of the tasks that empty the queue.
pub(super) struct Pump {
    pub(super) batcher: Arc<Batcher>,
    /// Whether the queue counts it.
    pub(super) counted: bool,
}

impl Pump {
    pub(super) async fn work(mut self) {
        let mut taken: Vec<Waiting> = Vec::new();
        let mut calls: Vec<Arc<Call>> = Vec::new();
        loop {
            // Whoever is ready to ask does so first: the callers that were just answered, above all. Otherwise the batches of
            // two pumps are a few calls and all the others, in turns.
            tokio::task::yield_now().await;
            if !self.take(&mut taken) {
                return;
            }
            let mut asked = Vec::with_capacity(taken.len());
            for waiting in taken.drain(..) {
                calls.push(waiting.call);
                asked.push(Asked { deadline: waiting.deadline, answer: waiting.answer });
            }
            match self.batcher.run(&calls, latest(&asked), false).await {
                Err(Fault::Split) => self.apart(&calls, asked),
                told => tell(asked, told),
            }
            calls.clear();
        }
    }

    /// Has the calls on each key decided apart, since those on another key of the slot may have to wait for it to move.
    fn apart(&self, calls: &[Arc<Call>], asked: Vec<Asked>) {
        let mut of_key: HashMap<&[u8], Group> = HashMap::new();
        for (call, asked) in calls.iter().zip(asked) {
            let key = call.takes.first().map_or(&[][..], |take| &take.key);
            let (calls, all) = of_key.entry(key).or_default();
            calls.push(Arc::clone(call));
            all.push(asked);
        }
        for (calls, asked) in of_key.into_values() {
            // They wait again.
            let count = u32::try_from(calls.len()).unwrap_or(u32::MAX);
            let Ok(places) = Arc::clone(&self.batcher.room).try_acquire_many_owned(count) else {
                tell(asked, Err(Fault::Busy));
                continue;
            };
            let batcher = Arc::clone(&self.batcher);
            self.batcher.runtime.spawn(async move {
                let told = batcher.run(&calls, latest(&asked), true).await;
                tell(asked, told);
                drop(places);
            });
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

/// Calls on one key, and who waits for their answers.
type Group = (Vec<Arc<Call>>, Vec<Asked>);

/// Who waits for the answer to a call, and until when.
struct Asked {
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

fn latest(asked: &[Asked]) -> Instant {
    asked.iter().map(|asked| asked.deadline).max().unwrap_or_else(Instant::now)
}

/// Hands the answers out. Whoever has left gets none; that is their affair.
fn tell(asked: Vec<Asked>, told: Result<Vec<Answer>, Fault>) {
    match told {
        Ok(told) => {
            for (asked, told) in asked.into_iter().zip(told) {
                let _ = asked.answer.send(told);
            }
        }
        Err(fault) => {
            for asked in asked {
                let _ = asked.answer.send(Err(fault.clone()));
            }
        }
    }
}
