//! The slowest single call: while a million keys expire at once, and under a flood of strangers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use governor::RateLimiter;
use governor::clock::FakeRelativeClock;
use hdrhistogram::Histogram;
use tidegate::clock::ManualClock;
use tidegate::{Limiter, Quota};

use crate::floor::Clock;
use crate::harness::{Options, preemptions};
use crate::keyed::size;
use crate::keys::Keys;
use crate::one::throttlecrab;

const KEYS: u64 = 1_000_000;

/// How often each clean-up is measured.
const REPEATS: usize = 7;

/// The slowest call that one thread made while another did something, in nanoseconds.
pub(crate) struct Slowest {
    pub(crate) peer: &'static str,
    /// The median of the repeats, the least and the most.
    pub(crate) ns: u64,
    pub(crate) ns_min: u64,
    pub(crate) ns_max: u64,
    /// The median with the calls that the machine interrupted. A thread that waits for a lock and yields looks like one.
    pub(crate) all_ns: u64,
}

/// A million keys with a debt, then the time at which none has one, then whatever the limiter does about it on one thread
/// while another calls.
pub(crate) fn clean_up(options: &Options) -> Result<Vec<Slowest>> {
    let keys = if options.quick { KEYS / 20 } else { KEYS };
    let texts: Vec<String> = Keys::all(keys).map(|(_, text)| text).collect();
    let quota: Quota = "1/s burst 10".parse()?;
    let governor_quota = governor::Quota::per_second(std::num::NonZeroU32::MIN);
    let mut rows = Vec::new();
    // What the machine itself takes away from a thread that only reads the clock.
    rows.push(repeat("nothing: what the machine takes", || {
        let until = Instant::now() + Duration::from_millis(60);
        worst_during(|| while Instant::now() < until {}, |_| true)
    }));
    rows.push(repeat("tidegate: all are called again", || {
        let clock = ManualClock::new();
        let limiter = Limiter::builder(quota).capacity(texts.len()).clock(clock.clone()).build();
        let Ok(limiter) = limiter else { return Worst::default() };
        for text in &texts {
            let _ = limiter.check(&**text);
        }
        clock.advance(Duration::from_secs(100));
        let others = || {
            for text in &texts {
                let _ = limiter.check(&**text);
            }
        };
        worst_during(others, |call| limiter.check(&*texts[call % 1000]).is_allowed())
    }));
    rows.push(repeat("tidegate: the table is counted", || {
        let clock = ManualClock::new();
        let limiter = Limiter::builder(quota).capacity(texts.len()).clock(clock.clone()).build();
        let Ok(limiter) = limiter else { return Worst::default() };
        for text in &texts {
            let _ = limiter.check(&**text);
        }
        clock.advance(Duration::from_secs(100));
        let count = || {
            std::hint::black_box(limiter.stats());
        };
        worst_during(count, |call| limiter.check(&*texts[call % 1000]).is_allowed())
    }));
    rows.push(repeat("governor, String keys: retain_recent", || {
        let clock = FakeRelativeClock::default();
        let limiter = RateLimiter::dashmap_with_clock(governor_quota, clock.clone());
        for text in &texts {
            let _ = limiter.check_key(text);
        }
        clock.advance(Duration::from_secs(100));
        worst_during(|| limiter.retain_recent(), |call| limiter.check_key(&texts[call % 1000]).is_ok())
    }));
    rows.push(repeat("throttlecrab: its own clean-up", || {
        let limiter = throttlecrab(texts.len());
        let call = |text: &str, now: SystemTime| {
            let mut limiter = limiter.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            limiter.rate_limit(text, 10, 1, 1, 1, now).is_ok()
        };
        let (now, later) = (SystemTime::now(), SystemTime::now() + Duration::from_secs(120));
        for text in &texts {
            call(text, now);
        }
        worst_during(
            || {
                call(&texts[0], later);
            },
            // The clean-up is not to be over before it is looked at.
            |index| call(&texts[index % 1000], if index < 1000 { now } else { later }),
        )
    }));
    Ok(rows)
}

fn repeat(peer: &'static str, worst: impl Fn() -> Worst) -> Slowest {
    let worst: Vec<Worst> = (0..REPEATS).map(|_| worst()).collect();
    let sorted = |ns: fn(&Worst) -> u64| {
        let mut times: Vec<u64> = worst.iter().map(ns).collect();
        times.sort_unstable();
        times
    };
    let (times, all) = (sorted(|worst| worst.ns), sorted(|worst| worst.all_ns));
    Slowest {
        peer,
        ns: times[REPEATS / 2],
        ns_min: times[0],
        ns_max: times[REPEATS - 1],
        all_ns: all[REPEATS / 2],
    }
}

/// The slowest `call` on one thread while `other` runs on another. A call in which the thread was taken off its processor
/// for another does not count; one that waits for a lock does.
fn worst_during(other: impl FnOnce() + Send, call: impl Fn(usize) -> bool + Sync) -> Worst {
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut watch = Watch::new();
            let mut index = 0;
            while !done.load(Ordering::Relaxed) {
                watch.time(|| std::hint::black_box(call(index)));
                index += 1;
                if index == 1000 {
                    started.store(true, Ordering::Relaxed);
                    watch.worst = Worst::default();
                }
            }
            watch.worst
        });
        while !started.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        other();
        done.store(true, Ordering::Relaxed);
        caller.join().unwrap_or_default()
    })
}

/// A time above which it is asked whether the thread was taken off its processor: asking takes some microseconds itself.
const SUSPECT_NS: u64 = 10_000;

/// The slowest call that nothing interrupted, and the slowest of all.
#[derive(Debug, Clone, Copy, Default)]
struct Worst {
    ns: u64,
    all_ns: u64,
}

/// Times calls of one thread, and knows those that were the machine's fault.
struct Watch {
    clock: Clock,
    last_ns: u64,
    preemptions: u64,
    worst: Worst,
    /// Calls in which the thread was taken off its processor.
    preempted: u64,
}

impl Watch {
    fn new() -> Self {
        let clock = Clock::new();
        Self {
            last_ns: clock.now_ns(),
            clock,
            preemptions: preemptions(),
            worst: Worst::default(),
            preempted: 0,
        }
    }

    /// The nanoseconds of a call that nothing interrupted, and what it answered.
    fn time(&mut self, call: impl FnOnce() -> bool) -> (Option<u64>, bool) {
        let begin = self.clock.now_ns();
        if begin - self.last_ns > SUSPECT_NS {
            self.preemptions = preemptions();
        }
        let begin = self.clock.now_ns();
        let answer = call();
        self.last_ns = self.clock.now_ns();
        let time = self.last_ns - begin;
        self.worst.all_ns = self.worst.all_ns.max(time);
        if time > SUSPECT_NS {
            let now = preemptions();
            let before = std::mem::replace(&mut self.preemptions, now);
            self.last_ns = self.clock.now_ns();
            if now != before {
                self.preempted += 1;
                return (None, answer);
            }
        }
        self.worst.ns = self.worst.ns.max(time);
        (Some(time), answer)
    }
}

/// What a flood of strangers did.
pub(crate) struct Flood {
    pub(crate) strangers: u64,
    pub(crate) calls: u64,
    pub(crate) rejected: u64,
    pub(crate) evicted: u64,
    pub(crate) bytes: usize,
    /// Calls that are not in `times`, since the thread was taken off its processor.
    pub(crate) preempted: u64,
    pub(crate) times: Histogram<u64>,
}

/// A hundred million keys that call once, over a table of 100,000, while 1,000 keys call within their limit.
pub(crate) fn flood(options: &Options) -> Result<Flood> {
    const LEGITIMATE: u64 = 1000;
    const STRANGERS_FOR_EACH: u64 = 100;
    let strangers = options.calls(100_000_000) as u64;
    let limiter = Limiter::new("10/s burst 5".parse::<Quota>()?, size(100_000));
    let bytes = limiter.bytes();
    let mut watch = Watch::new();
    let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 2)?;
    let mut rejected = 0;
    let mut timed = |key: u64, now_ns: u64| {
        let (time, allowed) = watch.time(|| limiter.check_at(&key, 1, now_ns).is_allowed());
        if let Some(time) = time {
            times.saturating_record(time);
        }
        allowed
    };
    let mut calls = 0;
    for stranger in 0..strangers {
        // A million strangers in a second, and each legitimate key ten times: what it may.
        let now_ns = stranger * 1000;
        timed(LEGITIMATE + stranger, now_ns);
        if stranger % STRANGERS_FOR_EACH == 0 {
            calls += 1;
            rejected += u64::from(!timed(stranger / STRANGERS_FOR_EACH % LEGITIMATE, now_ns));
        }
    }
    ensure!(limiter.bytes() == bytes, "the table grew");
    let evicted = limiter.stats_at(strangers * 1000).evicted;
    Ok(Flood { strangers, calls, rejected, evicted, bytes, preempted: watch.preempted, times })
}
