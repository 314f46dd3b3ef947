//! The circuit breaker: when to stop asking a store that does not answer, and when to try it again.
//!
//! While it is open no call waits for the store: it is answered by the failure policy at once. One connection is tried in
//! the background, after [`Backoff::FIRST`], then twice that, up to [`Backoff::LONGEST`], each spread by chance so that
//! many machines do not come back in one instant. When one is made and can decide, the breaker is closed.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// What is counted while the breaker is closed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    in_a_row: u32,
    since: Option<Instant>,
    calls: u32,
    late: u32,
}

impl Health {
    /// So many calls without a reply in a row open the breaker. Each costs its callers the deadline.
    const IN_A_ROW: u32 = 5;
    /// Half of the calls of this time without a reply open it too ...
    const SPAN: Duration = Duration::from_secs(1);
    /// ... if there were so many at least.
    const ENOUGH: u32 = 10;

    /// A script was answered.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.in_a_row = 0;
        self.count(now, false);
    }

    /// A script was not answered before its deadline. Says whether the breaker opens.
    pub(crate) fn late(&mut self, now: Instant) -> bool {
        self.in_a_row += 1;
        self.count(now, true);
        self.in_a_row >= Self::IN_A_ROW || (self.calls >= Self::ENOUGH && self.late * 2 >= self.calls)
    }

    fn count(&mut self, now: Instant, late: bool) {
        match self.since {
            Some(since) if now.saturating_duration_since(since) < Self::SPAN => {}
            _ => (self.since, self.calls, self.late) = (Some(now), 0, 0),
        }
        self.calls = self.calls.saturating_add(1);
        self.late = self.late.saturating_add(u32::from(late));
    }
}

/// How long to wait before the store is tried again.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    pub(crate) const LONGEST: Duration = Duration::from_secs(2);

    pub(crate) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// The next wait: between half and the whole of what it would be without chance.
    pub(crate) fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(Self::LONGEST);
        // The standard library's keys for its hash maps are random, which is all that is needed here.
        let chance = u32::try_from(RandomState::new().hash_one(0) % 1024).unwrap_or(0);
        whole / 2 + (whole / 2) * chance / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let start = Instant::now();
        let mut health = Health::default();
        // Spread over seconds, so that only the row counts.
        let at = |n: u64| start + Duration::from_secs(2 * n);
        assert_eq!([0, 1, 2, 3].map(|n| health.late(at(n))), [false; 4]);
        health.answered(at(4));
        assert_eq!([5, 6, 7, 8, 9].map(|n| health.late(at(n))), [false, false, false, false, true]);
    }

    #[test]
    fn half_of_a_second_opens_it() {
        let start = Instant::now();
        let mut health = Health::default();
        let mut opened_at = None;
        for n in 0..20_u32 {
            let now = start + Duration::from_millis(10) * n;
            match n % 2 {
                0 => health.answered(now),
                _ if health.late(now) => opened_at = opened_at.or(Some(n)),
                _ => {}
            }
        }
        assert_eq!(opened_at, Some(9));
    }

    #[test]
    fn waits_double_to_the_longest_and_are_spread() {
        let mut backoff = Backoff::new();
        let waits: Vec<u128> = (0..8).map(|_| backoff.wait().as_millis()).collect();
        for (wait, whole) in waits.iter().zip([100, 200, 400, 800, 1600, 2000, 2000, 2000]) {
            assert!((whole / 2..=whole).contains(wait), "{wait} of {whole}");
        }
        let firsts: std::collections::HashSet<Duration> = (0..50).map(|_| Backoff::new().wait()).collect();
        assert!(firsts.len() > 10, "{firsts:?}");
    }
}
