//! Arrivals through the waiting line: the same `tidegate_core::queue` that a program's gate runs, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_core::Algorithm;
use tidegate_core::queue::{Call, Event, Joined, Line, Receipt, Refusal, Ticket, Unsuitable};

use crate::Arrivals;
use crate::book::{Book, nanoseconds};
use crate::simulate::Settings;
use crate::tally::Tally;

/// A gate in a simulation: one budget for all keys, which are served in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// What the calls wait for.
    pub algorithm: Algorithm,
    /// How many calls may wait.
    pub max_waiting: usize,
    /// The longest that a call may wait; one that would have to wait longer is rejected at once.
    pub max_wait: Option<Duration>,
}

/// Runs `arrivals` through the line of `gate`. Calls hold their place in flight for the service time of `settings`, and
/// wait for one if the calls in flight are limited: nobody is shed. `progress` hears now and then how many are done.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Algorithm, Kind};
/// use tidegate_sim::{Arrivals, Gate, Settings, simulate_gate};
///
/// // Three at once, one a second: the second waits 1 s and the third 2 s.
/// let arrivals = Arrivals { times: vec![0, 0, 0], ..Arrivals::default() };
/// let algorithm = Algorithm::new(Kind::TokenBucket, "1/s".parse()?);
/// let gate = Gate { algorithm, max_waiting: 10, max_wait: None };
/// let tally = simulate_gate(&arrivals, &gate, &Settings::default(), &mut |_| {})?;
/// assert_eq!(tally.allowed, 3);
/// assert_eq!(tally.waits.map(|waits| waits.max), Some(Duration::from_secs(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// An algorithm that a line cannot take: the leaky bucket, which is a line of its own.
pub fn simulate_gate(
    arrivals: &Arrivals,
    gate: &Gate,
    settings: &Settings,
    progress: &mut dyn FnMut(usize),
) -> Result<Tally, Unsuitable> {
    let mut line = Line::new(gate.algorithm, gate.max_waiting)?;
    line.set_max_in_flight(settings.max_in_flight.unwrap_or(NonZeroU64::MAX));
    let mut run = Run::new(arrivals, line, settings);
    for (index, now) in arrivals.times.iter().copied().enumerate() {
        run.events_until(now);
        run.arrive(index, now, gate.max_wait);
        if index % (1 << 18) == 0 {
            progress(index);
        }
    }
    Ok(run.finish())
}

struct Run<'a> {
    arrivals: &'a Arrivals,
    settings: &'a Settings,
    line: Line,
    /// The arrival that each waiting call is.
    waiting: HashMap<Ticket, usize>,
    /// When calls in flight end, earliest first.
    ends: BinaryHeap<Reverse<(u64, Receipt)>>,
    peak: usize,
    book: Book<'a>,
}

impl<'a> Run<'a> {
    fn new(arrivals: &'a Arrivals, line: Line, settings: &'a Settings) -> Self {
        Self {
            arrivals,
            settings,
            line,
            waiting: HashMap::new(),
            ends: BinaryHeap::new(),
            peak: 0,
            book: Book::new(arrivals, settings),
        }
    }

    fn arrive(&mut self, index: usize, now: u64, max_wait: Option<Duration>) {
        let deadline = max_wait.map(|wait| now.saturating_add(nanoseconds(wait)));
        let call = Call {
            cost: self.arrivals.cost(index).into(),
            key: self.arrivals.key(index) as u64,
            priority: 0,
            deadline,
        };
        match self.line.join(now, call) {
            Joined::Granted(receipt) => self.start(index, now, receipt),
            Joined::Waiting(ticket) => {
                self.waiting.insert(ticket, index);
            }
            Joined::Refused(refusal) => self.book.reject(index, matches!(refusal, Refusal::Never { .. })),
        }
    }

    /// Lets everything happen that is due by `now`, each at its own instant.
    fn events_until(&mut self, now: u64) {
        let mut time = 0;
        loop {
            let end = self.ends.peek().map(|Reverse((end, _))| *end);
            let next = match (end, self.line.next_event(time)) {
                (Some(end), Some(event)) => end.min(event),
                (end, event) => match end.or(event) {
                    Some(next) => next,
                    None => return,
                },
            };
            if next > now {
                return;
            }
            time = next;
            while let Some(Reverse((end, receipt))) = self.ends.peek().copied()
                && end <= time
            {
                self.ends.pop();
                self.line.release(receipt);
            }
            while let Some(event) = self.line.poll(time) {
                match event {
                    Event::Granted(ticket, receipt) => {
                        if let Some(index) = self.waiting.remove(&ticket) {
                            self.start(index, time, receipt);
                        }
                    }
                    Event::Refused(ticket, refusal) => {
                        if let Some(index) = self.waiting.remove(&ticket) {
                            self.book.reject(index, matches!(refusal, Refusal::Never { .. }));
                        }
                    }
                }
            }
        }
    }

    fn start(&mut self, index: usize, now: u64, receipt: Receipt) {
        match self.settings.service_time {
            Some(service) => {
                let service = nanoseconds(service);
                self.ends.push(Reverse((now.saturating_add(service), receipt)));
                self.peak = self.peak.max(self.ends.len());
            }
            None => {
                self.line.release(receipt);
            }
        }
        self.book.allow(index, now);
    }

    fn finish(mut self) -> Tally {
        self.events_until(u64::MAX);
        let mut tally = self.book.finish();
        // Whose turn comes after the clock has ended is still allowed, and is in no window and takes no place.
        for index in self.waiting.values() {
            tally.allowed += 1;
            tally.allowed_cost += u128::from(self.arrivals.cost(*index));
        }
        tally.peak_in_flight = self.settings.service_time.map(|_| self.peak as u64);
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Kind;

    const S: u64 = 1_000_000_000;

    fn run(kind: Kind, quota: &str, times: Vec<u64>, gate: Gate, settings: &Settings) -> Tally {
        let algorithm = Algorithm::new(kind, quota.parse().unwrap());
        let arrivals = Arrivals { times, ..Arrivals::default() };
        simulate_gate(&arrivals, &Gate { algorithm, ..gate }, settings, &mut |_| {}).unwrap()
    }

    fn gate(max_waiting: usize, max_wait: Option<u64>) -> Gate {
        Gate {
            algorithm: Algorithm::Unlimited(tidegate_core::algorithm::Unlimited),
            max_waiting,
            max_wait: max_wait.map(Duration::from_nanos),
        }
    }

    #[test]
    fn ten_at_once_under_three_per_three_seconds() {
        let settings = Settings::default();
        let window = run(Kind::FixedWindow, "3 per 3s", vec![0; 10], gate(10, None), &settings);
        assert_eq!((window.allowed, window.worst), (10, 3));
        assert_eq!(window.waits.map(|waits| waits.max), Some(Duration::from_secs(9)));
        let bucket = run(Kind::TokenBucket, "3 per 3s", vec![0; 10], gate(10, None), &settings);
        assert_eq!(bucket.waits.map(|waits| waits.max), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_full_line_and_a_long_wait_reject_at_once() {
        let settings = Settings::default();
        let full = run(Kind::TokenBucket, "1/s", vec![0; 10], gate(4, None), &settings);
        assert_eq!((full.allowed, full.rejected, full.first_rejected), (5, 5, Some(5)));
        let late = run(Kind::TokenBucket, "1/s", vec![0; 10], gate(100, Some(3 * S)), &settings);
        assert_eq!((late.allowed, late.rejected, late.first_rejected), (4, 6, Some(4)));
    }

    #[test]
    fn waiting_for_a_place_takes_no_tokens() {
        // Two places, five seconds a call: two start at 0, two at 5 s, two at 10 s, whatever the rate.
        let settings = Settings {
            service_time: Some(Duration::from_secs(5)),
            max_in_flight: NonZeroU64::new(2),
            ..Settings::default()
        };
        let tally = run(Kind::TokenBucket, "100/s", vec![0; 6], gate(10, None), &settings);
        assert_eq!((tally.allowed, tally.rejected, tally.shed), (6, 0, 0));
        assert_eq!((tally.peak_in_flight, tally.worst), (Some(2), 2));
        assert_eq!(tally.waits.map(|waits| waits.max), Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_gate_with_a_bucket_and_no_limit_in_flight_is_a_leaky_bucket() {
        use crate::{SimLimit, Workers, simulate};
        use tidegate_core::algorithm::LeakyBucket;
        use tidegate_core::{Limit, Mode};
        let times: Vec<u64> = (0..400_u64).map(|n| n * n % 997 * 10_000_000).collect();
        let mut times = times;
        times.sort_unstable();
        let quota: tidegate_core::Quota = "10/s burst 3".parse().unwrap();
        let arrivals = Arrivals { times, ..Arrivals::default() };
        let settings = Settings::default();
        let line = Gate {
            algorithm: Algorithm::new(Kind::TokenBucket, quota),
            max_waiting: usize::MAX,
            max_wait: None,
        };
        let line = simulate_gate(&arrivals, &line, &settings, &mut |_| {}).unwrap();
        let algorithm = Algorithm::LeakyBucket(LeakyBucket::new(quota, 1_000_000));
        let limit = Limit { name: "l".into(), algorithm, mode: Mode::Enforce };
        let workers = Workers::one(vec![SimLimit {
            limit,
            per_key: false,
            max_in_flight: None,
            overrides: Default::default(),
        }]);
        let leaky = simulate(&arrivals, &workers, &settings, &mut |_| {});
        assert_eq!((line.allowed, line.waits, line.worst), (leaky.allowed, leaky.waits, leaky.worst));
    }
}
