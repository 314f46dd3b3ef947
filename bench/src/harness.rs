//! Peers side by side: in every round each runs once, so that what else the machine does meets all of them alike.

use std::hint::black_box;
use std::sync::Barrier;
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
                let of_thread = |thread: usize, barrier: &Barrier| {
                    let mut call = make();
                    let start = start + thread * calls;
                    barrier.wait();
                    let begin = Instant::now();
                    let allowed = (start..start + calls).filter(|&index| black_box(call(index))).count();
                    let time = begin.elapsed();
                    assert_eq!(allowed, if answer == Answer::Allowed { calls } else { 0 }, "{name}");
                    time.as_secs_f64() * 1e9 / calls as f64
                };
                let barrier = Barrier::new(threads);
                if threads == 1 {
                    return of_thread(0, &barrier);
                }
                thread::scope(|scope| {
                    let spawn = |thread| {
                        let (of_thread, barrier) = (&of_thread, &barrier);
                        scope.spawn(move || of_thread(thread, barrier))
                    };
                    let threads: Vec<_> = (0..threads).map(spawn).collect();
                    let count = threads.len() as f64;
                    let sum: f64 = threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum();
                    sum / count
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
