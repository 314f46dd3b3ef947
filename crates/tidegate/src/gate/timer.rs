//! The one timer of a gate: a thread that sleeps until the next instant at which something is due.
//!
//! It starts with the first call that has to wait and ends when the last handle of the gate is gone. Its own thread
//! rather than an executor's timer, because then a future that nobody polls cannot hold up the others, grants are not
//! rounded to an executor's tick, and callers that block are served by the same code.

use std::io;
use std::sync::Arc;
#[cfg(not(loom))]
use std::time::Duration;

use super::clock::Time;
use super::shared::{Shared, State};

/// The longest sleep. A sleep is measured by a clock that stands still while the machine is suspended, so the boot
/// clock is read again at least this often. Twice as long would wake an idle machine half as often and be late by up
/// to that much after a suspend.
#[cfg(not(loom))]
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Starts the thread if it is needed and does not run.
pub(super) fn ensure(shared: &Arc<Shared>, state: &mut State) -> io::Result<()> {
    if state.timer_runs || matches!(shared.time, Time::Manual(_)) {
        return Ok(());
    }
    start(Arc::clone(shared))?;
    state.timer_runs = true;
    state.timer_until = 0;
    Ok(())
}

#[cfg(loom)]
fn start(_shared: Arc<Shared>) -> io::Result<()> {
    // The models move time by hand.
    Ok(())
}

#[cfg(not(loom))]
fn start(shared: Arc<Shared>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("tidegate-gate".to_owned());
    thread.spawn(move || run(&shared)).map(|_| ())
}

#[cfg(not(loom))]
fn run(shared: &Shared) {
    use super::sync::whole;

    let mut state = shared.lock();
    while !state.ended {
        let now = shared.time.now_ns();
        let next;
        (state, next) = shared.timer_round(state, now);
        if state.ended {
            return;
        }
        // Something may have been woken and come back meanwhile: the time is read again before a sleep.
        let now = shared.time.now_ns();
        state.timer_until = next.unwrap_or(u64::MAX);
        state = match next {
            Some(next) if next <= now => state,
            Some(next) => {
                let sleep = Duration::from_nanos(next - now).min(LONGEST_SLEEP);
                whole(shared.changed.wait_timeout(state, sleep)).0
            }
            None => whole(shared.changed.wait(state)),
        };
    }
}
