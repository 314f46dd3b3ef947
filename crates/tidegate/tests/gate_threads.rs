//! The gate in real time: threads that block, executors, and races. Waits are a few milliseconds at most.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use tidegate::Gate;
use tidegate::clock::ManualClock;

/// Whoever waits is served, and not before the quota allows it: `calls` of cost 1 take at least `(calls - burst)/rate`.
fn check_span(gate: &Gate, started: Instant, calls: u64, per_ms: u64, burst: u64) {
    let least = Duration::from_millis((calls - burst) / per_ms);
    assert!(started.elapsed() >= least, "{:?}, at least {least:?}", started.elapsed());
    let status = gate.status();
    assert_eq!((status.waiting, status.in_flight), (0, 0));
}

#[test]
fn gate_serves_threads_that_block() {
    let gate = Gate::builder("2000/s burst 8".parse().unwrap())
        .max_in_flight(3.try_into().unwrap())
        .build()
        .unwrap();
    let running = AtomicU64::new(0);
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let _permit = gate.acquire_blocking(1).unwrap();
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 3);
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    check_span(&gate, started, 128, 2, 8);
}

#[test]
fn gate_serves_tokio_tasks_on_one_thread_and_on_several() {
    for threads in [0, 2] {
        let runtime = match threads {
            0 => tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            threads => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .enable_all()
                .build()
                .unwrap(),
        };
        let gate = Gate::new("2000/s burst 4".parse().unwrap());
        let started = Instant::now();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..100)
                .map(|_| {
                    let gate = gate.clone();
                    tokio::spawn(async move { gate.acquire(1).await.map(drop) })
                })
                .collect();
            // Some are aborted wherever they are.
            let aborted: Vec<_> = (0..20)
                .map(|_| {
                    let gate = gate.clone();
                    tokio::spawn(async move { gate.acquire(1).await.map(drop) })
                })
                .collect();
            tokio::task::yield_now().await;
            aborted.iter().for_each(tokio::task::JoinHandle::abort);
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            for task in aborted {
                let _ = task.await;
            }
        });
        check_span(&gate, started, 100, 2, 4);
    }
}

#[test]
fn gate_works_from_two_runtimes_and_a_thread_at_once() {
    let gate = Gate::new("2000/s burst 1".parse().unwrap());
    let started = Instant::now();
    thread::scope(|scope| {
        for runtime in [false, true, true] {
            let gate = gate.clone();
            scope.spawn(move || {
                let runtime = runtime.then(|| tokio::runtime::Builder::new_current_thread().build().unwrap());
                for _ in 0..20 {
                    match &runtime {
                        Some(runtime) => drop(runtime.block_on(gate.acquire(1)).unwrap()),
                        None => drop(gate.acquire_blocking(1).unwrap()),
                    }
                }
            });
        }
    });
    check_span(&gate, started, 60, 2, 1);
}

#[test]
fn gate_future_that_is_dropped_by_a_timeout_leaves_the_line() {
    let gate = Gate::new("1 per 1h".parse().unwrap());
    let _first = gate.try_acquire(1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(tokio::time::timeout(Duration::from_millis(2), gate.acquire(1)).await.is_err());
    });
    assert_eq!(gate.status().waiting, 0);
}

#[test]
fn gate_ends_its_thread_with_the_last_handle_and_permits_outlive_it() {
    let gate = Gate::new("1000/s burst 1".parse().unwrap());
    let _first = gate.acquire_blocking(1).unwrap();
    let second = gate.acquire_blocking(1).unwrap();
    drop(gate.clone());
    drop(gate);
    second.cancel();
}

/// Nothing is ever lost to calls that only try, from many threads, while time moves: the gate still refills afterwards.
#[test]
fn gate_refills_after_many_threads_that_only_try() {
    let clock = ManualClock::new();
    let gate = Gate::builder("1000/s burst 10".parse().unwrap()).clock(&clock).build().unwrap();
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    granted.fetch_add(gate.try_acquire(1).is_ok().into(), Ordering::SeqCst);
                    clock.advance(Duration::from_micros(10));
                }
            });
        }
    });
    // 80 ms have gone by. What was granted and what is left is what there was and what came.
    let left = gate.status().level;
    let granted = granted.into_inner();
    assert!(granted <= 90 && granted + left >= 10);
    clock.advance(Duration::from_millis(10));
    assert_eq!(gate.status().level, 10);
}

/// Calls join, are dropped wherever they are, collected, cancelled and settled, by several threads at once while time
/// moves. In the end no place is taken, and the tokens taken are those of the calls that ran.
#[test]
fn gate_conserves_tokens_and_places_in_races() {
    const BURST: u64 = 1000;
    const SEED: u64 = 11;
    for round in 0..40 {
        let clock = ManualClock::new();
        let quota = "1 per 1h".parse::<tidegate::Quota>().unwrap().with_burst(BURST).unwrap();
        let gate = Gate::builder(quota).clock(&clock).max_in_flight(3.try_into().unwrap()).build().unwrap();
        let spent = Arc::new(AtomicU64::new(0));
        thread::scope(|scope| {
            for number in 0..3 {
                let (gate, spent) = (gate.clone(), Arc::clone(&spent));
                scope.spawn(move || {
                    let mut random = Pcg32::seed_from_u64(SEED + round * 3 + number);
                    for _ in 0..60 {
                        race(&gate, &spent, &mut random);
                    }
                });
            }
        });
        let status = gate.status();
        assert_eq!((status.waiting, status.in_flight), (0, 0), "seed {SEED}, round {round}");
        assert_eq!(status.level, BURST - spent.load(Ordering::SeqCst), "seed {SEED}, round {round}");
    }
}

fn race(gate: &Gate, spent: &AtomicU64, random: &mut Pcg32) {
    let mut context = Context::from_waker(Waker::noop());
    let mut first = Box::pin(gate.acquire(2));
    let mut second = Box::pin(gate.reserve(3));
    let polled = first.as_mut().poll(&mut context);
    let _ = second.as_mut().poll(&mut context).map(|result| match random.next_u32() % 3 {
        0 => result.unwrap().cancel(),
        1 => {
            result.unwrap().settle(1);
            spent.fetch_add(1, Ordering::SeqCst);
        }
        _ => {
            drop(result.unwrap());
            spent.fetch_add(3, Ordering::SeqCst);
        }
    });
    drop(second);
    if random.next_u32().is_multiple_of(2) {
        thread::yield_now();
    }
    // A future that was granted meanwhile and is dropped here gives everything back.
    let polled = if polled.is_pending() && random.next_u32().is_multiple_of(2) {
        first.as_mut().poll(&mut context)
    } else {
        polled
    };
    let _ = polled.map(|result| {
        let permit = result.unwrap();
        if random.next_u32().is_multiple_of(2) {
            permit.cancel();
        } else {
            spent.fetch_add(2, Ordering::SeqCst);
        }
    });
}
