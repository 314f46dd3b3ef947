//! CPU time per grant with few and many waiting calls, and how late a grant is: `cargo bench -p tidegate --bench gate`.
//!
//! A benchmark of its own, since what is measured is a long run at a steady depth of the line: each grant is followed
//! by a new call at the end, so the depth stays.

#![cfg(not(loom))]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and stops at the first surprise"
)]

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::{Gate, Permit, Refused};
use tidegate_core::queue::{Call, Event, Joined, Line};
use tidegate_core::{Algorithm, Kind, Quota};

const GRANTS: u32 = 100_000;
const WAITING: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const ROUNDS: usize = 5;

type Waiting = Pin<Box<dyn Future<Output = Result<Permit, Refused>>>>;

/// One grant each millisecond.
fn quota() -> Quota {
    "1000/s burst 1".parse().unwrap()
}

fn main() {
    println!(
        "gate/<what>/<waiting calls>: ns of CPU per grant, median (least to most of {ROUNDS} runs of {GRANTS} grants)"
    );
    for waiting in WAITING {
        report(&format!("line/one-key/{waiting}"), || line(waiting, |_| 0));
    }
    for waiting in WAITING {
        report(&format!("line/a-key-each/{waiting}"), || line(waiting, |call| call));
    }
    for waiting in WAITING {
        report(&format!("gate/{waiting}"), || gate(waiting));
    }
    late();
}

fn report(name: &str, mut run: impl FnMut() -> Duration) {
    let mut runs: Vec<_> = (0..ROUNDS).map(|_| run().as_nanos() / u128::from(GRANTS)).collect();
    runs.sort_unstable();
    println!("{name:<28} {:>6} ({} to {})", runs[ROUNDS / 2], runs[0], runs[ROUNDS - 1]);
}

/// The line alone: a poll that grants, the release of the call, the next instant, and a new call.
fn line(waiting: usize, key: impl Fn(u64) -> u64) -> Duration {
    let mut line = Line::new(Algorithm::new(Kind::TokenBucket, quota()), waiting + 1).unwrap();
    let mut calls = 0;
    let mut join = |line: &mut Line, now| {
        calls += 1;
        line.join(now, Call { cost: 1.into(), key: key(calls), ..Call::default() })
    };
    let Joined::Granted(first) = join(&mut line, 0) else { unreachable!("it is free") };
    line.release(first);
    (0..waiting).for_each(|_| assert!(matches!(join(&mut line, 0), Joined::Waiting(_))));
    let started = cpu();
    let mut now = 0;
    for _ in 0..GRANTS {
        now = line.next_event(now).unwrap();
        let Some(Event::Granted(_, receipt)) = line.poll(now) else { unreachable!("it is due") };
        assert_eq!(line.poll(now), None);
        line.release(receipt);
        assert!(matches!(join(&mut line, now), Joined::Waiting(_)));
    }
    cpu() - started
}

/// The gate: time moves to the grant, the future is polled, its permit dropped, and a new call joins.
fn gate(waiting: usize) -> Duration {
    let clock = ManualClock::new();
    let gate = Gate::builder(quota()).max_waiting(waiting + 1).clock(&clock).build().unwrap();
    drop(gate.try_acquire(1).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    let mut calls = VecDeque::new();
    let mut join = |calls: &mut VecDeque<Waiting>| {
        let gate = gate.clone();
        let mut call: Waiting = Box::pin(async move { gate.acquire(1).await });
        assert!(call.as_mut().poll(&mut context).is_pending());
        calls.push_back(call);
    };
    (0..waiting).for_each(|_| join(&mut calls));
    let started = cpu();
    for _ in 0..GRANTS {
        clock.advance(Duration::from_millis(1));
        let mut call = calls.pop_front().unwrap();
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(call);
        join(&mut calls);
    }
    cpu() - started
}

/// How long after its exact instant a grant reaches a thread that blocks, in real time.
fn late() {
    let gate = Gate::new("500/s burst 1".parse().unwrap());
    let mut late = Vec::new();
    while late.len() < 1000 {
        let asked = gate.now_ns();
        // Where the last round was so late that a token is there already, nothing has to be waited for.
        let Err(refused) = gate.try_acquire(1) else { continue };
        drop(gate.acquire_blocking(1).unwrap());
        let wait = u64::try_from(refused.wait().unwrap().as_nanos()).unwrap();
        late.push((gate.now_ns() - asked).saturating_sub(wait) / 1000);
    }
    late.sort_unstable();
    println!(
        "late/blocking: us after the exact instant, median {}, 99 % {}, most {} ({} grants at 500/s)",
        late[500],
        late[990],
        late[999],
        late.len(),
    );
}

/// The CPU time of this thread: another program on the same core does not count.
#[cfg(target_os = "linux")]
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

#[cfg(not(target_os = "linux"))]
fn cpu() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
