//! Peers side by side: in every round each runs once, so that what else the machine does meets all of them alike.

use std::hint::black_box;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;

/// What to measure, and how long.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Only the cases whose name holds this text
    #[arg(long, value_name = "FILTER", default_value = "")]
    case: String,
    /// Rounds that count; one more is run first and thrown away
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Fewer calls in a round: to see that it works, not to quote
    #[arg(long)]
    pub(crate) quick: bool,
}

impl Options {
    pub(crate) fn wants(&self, case: &str) -> bool {
        case.contains(&self.case)
    }

    /// `calls`, or with `--quick` a twentieth of them.
    pub(crate) const fn calls(&self, calls: usize) -> usize {
        if self.quick { calls / 20 } else { calls }
    }

    pub(crate) fn rounds(&self) -> usize {
        usize::from(self.rounds)
    }
}

/// One line of the result.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) threads: usize,
    pub(crate) peer: &'static str,
    /// Nanoseconds of one thread for one decision: the median of the rounds.
    pub(crate) ns: f64,
    pub(crate) ns_min: f64,
    pub(crate) ns_max: f64,
    /// `ns` as a multiple of the floor's, in the same case with as many threads.
    pub(crate) ratio_to_floor: Option<f64>,
}

/// What a call must answer, so that no peer is measured doing something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed,
    Rejected,
}

/// Runs so many calls on so many threads, from a place in the sequence of calls, and says the nanoseconds of one call.
type Run<'a> = Box<dyn Fn(usize, usize, usize) -> f64 + 'a>;

/// Peers that do the same.
pub(crate) struct Case<'a> {
    name: &'static str,
    answer: Answer,
    /// The first is the floor.
    peers: Vec<(&'static str, Run<'a>)>,
}

impl<'a> Case<'a> {
    pub(crate) const fn new(name: &'static str, answer: Answer) -> Self {
        Self { name, answer, peers: Vec::new() }
    }

    /// Adds a peer whose `i`th call is `call(i)`; the first one added is the floor of the others.
    pub(crate) fn peer(&mut self, name: &'static str, call: impl Fn(usize) -> bool + Copy + Sync + 'a) {
        self.peer_by_thread(name, move || call);
    }

    /// Adds a peer that has something for each thread.
    pub(crate) fn peer_by_thread<C>(&mut self, name: &'static str, make: impl Fn() -> C + Sync + 'a)
    where
        C: FnMut(usize) -> bool,
    {
        // The loop is compiled for each peer, with the call inlined into it.
        let answer = self.answer;
        self.peers.push((
            name,
            Box::new(move |threads, calls, start| {
                let together = Together::new(threads, calls.div_ceil(PIECE));
                let of_thread = &|thread: usize| {
                    let mut call = make();
                    together.time(|piece| {
                        let from = start + thread * calls + piece * PIECE;
                        let calls = (from..from + PIECE).filter(|&index| black_box(call(index)));
                        assert_eq!(
                            calls.count(),
                            if answer == Answer::Allowed { PIECE } else { 0 },
                            "{name}"
                        );
                    })
                };
                thread::scope(|scope| {
                    let others: Vec<_> =
                        (1..threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
                    let mut sum = of_thread(0);
                    for other in others {
                        sum += other.join().unwrap_or_else(|panic| resume_unwind(panic));
                    }
                    sum / threads as f64
                })
            }),
        ));
    }

    /// Runs the rounds with one thread and with two.
    pub(crate) fn run(&self, options: &Options, calls: usize) -> Vec<Row> {
        [1, 2].into_iter().flat_map(|threads| self.run_on(threads, options, options.calls(calls))).collect()
    }

    fn run_on(&self, threads: usize, options: &Options, calls: usize) -> Vec<Row> {
        let mut times = vec![Vec::new(); self.peers.len()];
        for round in 0..=options.rounds() {
            for (time, (_, run)) in times.iter_mut().zip(&self.peers) {
                let time_now = run(threads, calls, round * threads * calls);
                if round > 0 {
                    time.push(time_now);
                }
            }
        }
        for time in &mut times {
            time.sort_by(f64::total_cmp);
        }
        let middle = options.rounds() / 2;
        let floor = times[0][middle];
        let row = |((peer, _), time): (&(&'static str, Run<'a>), &Vec<f64>)| Row {
            case: self.name.into(),
            threads,
            peer,
            ns: time[middle],
            ns_min: time[0],
            ns_max: time[options.rounds() - 1],
            ratio_to_floor: Some(time[middle] / floor),
        };
        self.peers.iter().zip(&times).map(row).collect()
    }
}

/// Calls in one piece of a run: short enough that a machine with other work leaves some pieces alone.
const PIECE: usize = 25_000;

/// Threads that run piece after piece together, and leave out each piece in which one of them was taken off its processor.
struct Together {
    threads: usize,
    arrived: AtomicUsize,
    disturbed: Vec<AtomicBool>,
}

impl Together {
    fn new(threads: usize, pieces: usize) -> Self {
        let disturbed = (0..pieces).map(|_| AtomicBool::new(false)).collect();
        Self { threads, arrived: AtomicUsize::new(0), disturbed }
    }

    /// Waits without sleeping until all threads are here, so that they leave at the same time.
    fn meet(&self) {
        let all = (self.arrived.fetch_add(1, Ordering::AcqRel) / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::Acquire) < all {
            std::hint::spin_loop();
        }
    }

    /// Nanoseconds of this thread for one call. If no piece went undisturbed, all count.
    fn time(&self, mut run: impl FnMut(usize)) -> f64 {
        let time = |(piece, disturbed): (usize, &AtomicBool)| {
            self.meet();
            let before = preemptions();
            let begin = Instant::now();
            run(piece);
            let time = begin.elapsed();
            if preemptions() != before {
                disturbed.store(true, Ordering::Relaxed);
            }
            time.as_secs_f64() * 1e9 / PIECE as f64
        };
        let times: Vec<f64> = self.disturbed.iter().enumerate().map(time).collect();
        self.meet();
        let alone =
            times.iter().zip(&self.disturbed).filter(|(_, disturbed)| !disturbed.load(Ordering::Relaxed));
        let alone: Vec<f64> = alone.map(|(time, _)| *time).collect();
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        if alone.is_empty() { mean(&times) } else { mean(&alone) }
    }
}

/// How often this thread was taken off its processor for another; always 0 where the system does not say so.
pub(crate) fn preemptions() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
