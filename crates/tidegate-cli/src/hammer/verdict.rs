//! Whether a bound held: what was allowed, against `burst + rate * time`, in every interval.
//!
//! The server decided each request at some instant between its sending and its answer; when, cannot be seen from here.
//! So an interval is taken generously: from the sending of its first request to the answer of its last. If the server
//! keeps `B + r·t` in every `t`, then the requests sent and answered within such an interval are at most that many, so a
//! correct server is never found wrong, however slow the network is.

use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::{Quota, Step};

use super::gather::{Answered, Gathered};

/// How many were allowed in a time, and how many may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) allowed: u64,
    pub(crate) span: Duration,
}

/// The answer to "did it keep the quota?".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) quota: Quota,
    /// All of the run.
    pub(crate) whole: Interval,
    /// The interval that broke the bound by most, if one did.
    pub(crate) broken: Option<Interval>,
    /// If none did: the interval that would break it by most if the requests without an answer had been allowed.
    pub(crate) undecided: Option<Interval>,
    /// Whether there was any answer to judge by.
    pub(crate) is_checked: bool,
    /// How many a full token bucket would allow, at the least and at the most: it is asked at the times of sending and
    /// at the times of the answers.
    pub(crate) predicted: (u64, u64),
}

impl Verdict {
    /// The verdict on a run.
    pub(crate) fn new(quota: Quota, gathered: &Gathered) -> Self {
        Self::of(quota, &gathered.answered, &gathered.unanswered, gathered.elapsed())
    }

    fn of(quota: Quota, answered: &[Answered], unanswered: &[Answered], elapsed: Duration) -> Self {
        let mut allowed: Vec<_> = answered.iter().filter(|request| request.allowed).copied().collect();
        let whole = Interval { allowed: count(allowed.len()), span: elapsed };
        let at_sending = predict(quota, answered.iter().map(|request| request.sent_ns).collect());
        let at_answer = predict(quota, answered.iter().map(|request| request.received_ns).collect());
        let broken = worst_interval(quota, &mut allowed);
        let undecided = if broken.is_none() && !answered.is_empty() && !unanswered.is_empty() {
            allowed.extend_from_slice(unanswered);
            worst_interval(quota, &mut allowed)
        } else {
            None
        };
        Self {
            quota,
            whole,
            broken,
            undecided,
            is_checked: !answered.is_empty(),
            predicted: (at_sending.min(at_answer), at_sending.max(at_answer)),
        }
    }

    /// The verdict in a word; `None` if there was nothing to judge by, or too much is not known.
    pub(crate) const fn is_held(&self) -> Option<bool> {
        if self.broken.is_some() {
            Some(false)
        } else if self.undecided.is_some() || !self.is_checked {
            None
        } else {
            Some(true)
        }
    }

    /// Whether clearly fewer were allowed than a full bucket gives. One is granted to the unknown instants.
    pub(crate) const fn is_below_prediction(&self) -> bool {
        self.whole.allowed + 1 < self.predicted.0
    }
}

impl Interval {
    /// The bound for this interval in tenths, rounded down: 79 for 7.93.
    pub(crate) fn at_most_tenths(&self, quota: Quota) -> u128 {
        let (count, per) = (u128::from(quota.count()), u128::from(quota.per_ns().get()));
        let tenths = self.span.as_nanos().saturating_mul(count).saturating_mul(10) / per;
        tenths.saturating_add(u128::from(quota.burst()) * 10)
    }
}

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// How many of the calls at `times` a full token bucket allows.
fn predict(quota: Quota, mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    let bucket = TokenBucket::new(quota);
    let mut state = bucket.fresh();
    let mut allowed = 0;
    for now in times {
        let decision;
        (state, decision) = bucket.step(state, now, 1);
        allowed += u64::from(decision.is_allowed());
    }
    allowed
}

/// The interval with the largest excess over the bound, if there is any excess.
///
/// With `per` and `count` of the quota, an interval from `s` to `e` with `k` requests breaks the bound iff
/// `k·per - (e - s)·count > burst·per`, in integers. For each `s`, going back in time, the request sent at `s` adds `per`
/// to all `e` from its answer on; a tree of prefix sums over the answers' times gives the `e` with the largest
/// `k·per - e·count` in one step. So all intervals are looked at in `n log n`.
fn worst_interval(quota: Quota, allowed: &mut [Answered]) -> Option<Interval> {
    let (rate, per) = (i128::from(quota.count()), i128::from(quota.per_ns().get()));
    allowed.sort_unstable_by_key(|request| request.received_ns);
    let mut order: Vec<usize> = (0..allowed.len()).collect();
    order.sort_unstable_by_key(|&index| std::cmp::Reverse(allowed[index].sent_ns));

    let mut ends = Ends::new(allowed.len());
    let mut worst = None;
    let mut largest = i128::from(quota.burst()) * per;
    for index in order {
        let Answered { sent_ns, received_ns, .. } = allowed[index];
        ends.add(index, per, -i128::from(received_ns) * rate);
        let (best, end) = ends.best();
        let used = best + i128::from(sent_ns) * rate;
        if used > largest {
            (largest, worst) = (used, Some((sent_ns, allowed[end].received_ns)));
        }
    }
    worst.map(|(start, end)| {
        let inside = allowed.iter().filter(|request| request.sent_ns >= start && request.received_ns <= end);
        Interval { allowed: count(inside.count()), span: Duration::from_nanos(end - start) }
    })
}

/// A tree over positions, each with a weight and an offset, that knows the position with the largest sum of the weights
/// up to it plus its own offset. Positions that were not added do not count.
struct Ends {
    leaves: usize,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    sum: i128,
    best: i128,
    at: usize,
}

/// Far below any sum, and far enough from the end of the type that adding to it cannot overflow.
const NOTHING: Node = Node { sum: 0, best: i128::MIN / 2, at: 0 };

impl Ends {
    fn new(len: usize) -> Self {
        let leaves = len.max(1).next_power_of_two();
        Self { leaves, nodes: vec![NOTHING; 2 * leaves] }
    }

    fn add(&mut self, position: usize, weight: i128, offset: i128) {
        let mut node = self.leaves + position;
        self.nodes[node] = Node { sum: weight, best: weight + offset, at: position };
        while node > 1 {
            node /= 2;
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            let sum = left.sum + right.sum;
            let through = left.sum + right.best;
            self.nodes[node] = if left.best >= through {
                Node { sum, ..left }
            } else {
                Node { sum, best: through, at: right.at }
            };
        }
    }

    fn best(&self) -> (i128, usize) {
        let root = self.nodes[1];
        (root.best, root.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn allowed(times_ms: &[(u64, u64)]) -> Vec<Answered> {
        let request =
            |&(sent, received)| Answered { sent_ns: sent * MS, received_ns: received * MS, allowed: true };
        times_ms.iter().map(request).collect()
    }

    fn worst(quota: &str, times_ms: &[(u64, u64)]) -> Option<(u64, u128)> {
        let worst = worst_interval(quota.parse().unwrap(), &mut allowed(times_ms));
        worst.map(|interval| (interval.allowed, interval.span.as_millis()))
    }

    #[test]
    fn the_bound_is_checked_in_every_interval_and_not_only_over_the_run() {
        assert_eq!(worst("10/s burst 1", &[]), None);
        assert_eq!(worst("10/s burst 1", &[(0, 0), (100, 100), (200, 200)]), None);
        // Over the run 4 in 1 s is far below 11, yet two of them are 99 ms apart.
        assert_eq!(worst("10/s burst 1", &[(0, 0), (500, 500), (599, 599), (1000, 1000)]), Some((2, 99)));
        // A slow answer leaves open when it was decided: that may have been 100 ms apart.
        assert_eq!(worst("10/s burst 1", &[(0, 0), (500, 500), (599, 600), (1000, 1000)]), None);
        // Answers that overtake each other.
        assert_eq!(worst("1/s burst 2", &[(0, 1900), (10, 20), (11, 19), (12, 18)]), Some((3, 10)));
    }

    #[test]
    fn the_tree_finds_what_trying_all_intervals_finds() {
        let mut x = 7_u64;
        let mut draw = |below: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % below
        };
        let quota: Quota = "7 per 3ms burst 3".parse().unwrap();
        let mut found = 0;
        for _ in 0..500 {
            let mut requests: Vec<_> = (0..draw(25))
                .map(|_| {
                    let sent_ns = draw(12) * MS / 2;
                    Answered { sent_ns, received_ns: sent_ns + draw(3) * MS / 2, allowed: true }
                })
                .collect();
            let excess = |start: u64, end: u64| {
                let inside = requests.iter().filter(|r| r.sent_ns >= start && r.received_ns <= end).count();
                i128::try_from(inside).unwrap() * 3_000_000 - i128::from(end - start) * 7 - 3 * 3_000_000
            };
            let all = requests
                .iter()
                .flat_map(|first| requests.iter().map(|last| (first.sent_ns, last.received_ns)))
                .filter(|(start, end)| start <= end);
            let largest = all.map(|(start, end)| excess(start, end)).max().filter(|&excess| excess > 0);
            let worst = worst_interval(quota, &mut requests);
            let got = worst.map(|interval| {
                i128::from(interval.allowed) * 3_000_000
                    - i128::try_from(interval.span.as_nanos()).unwrap() * 7
                    - 3 * 3_000_000
            });
            assert_eq!(got, largest, "{requests:?}");
            found += u32::from(got.is_some());
        }
        assert!(found > 50 && found < 450, "both answers must be seen: {found}");
    }

    #[test]
    fn the_bound_is_shown_in_tenths_rounded_down() {
        let interval = Interval { allowed: 7, span: Duration::from_millis(587) };
        assert_eq!(interval.at_most_tenths("5/s".parse().unwrap()), 79);
        assert_eq!(interval.at_most_tenths("1 per 10s".parse().unwrap()), 10);
    }

    #[test]
    fn requests_without_an_answer_may_have_been_allowed() {
        let quota: Quota = "10/s burst 2".parse().unwrap();
        let verdict = |answered: &[(u64, u64)], unanswered: &[(u64, u64)]| {
            Verdict::of(quota, &allowed(answered), &allowed(unanswered), Duration::from_secs(1)).is_held()
        };
        assert_eq!(verdict(&[(0, 1), (0, 1)], &[]), Some(true));
        assert_eq!(verdict(&[(0, 1), (0, 1)], &[(0, 1)]), None, "a third at once would be one too many");
        assert_eq!(verdict(&[(0, 1), (0, 1)], &[(500, 501)]), Some(true), "even if it was allowed");
        assert_eq!(verdict(&[(0, 1), (0, 1), (0, 1)], &[(500, 501)]), Some(false));
        assert_eq!(verdict(&[], &[]), None, "nothing was answered");
        assert_eq!(verdict(&[], &[(0, 1)]), None, "nothing was answered");
    }

    #[test]
    fn a_full_bucket_is_predicted_and_fewer_are_told_apart() {
        let mut answered = Vec::new();
        for index in 0..40 {
            let sent_ns = index * 15 * MS;
            answered.push(Answered { sent_ns, received_ns: sent_ns + MS, allowed: index < 7 });
        }
        let verdict = Verdict::of("5/s".parse().unwrap(), &answered, &[], Duration::from_millis(586));
        assert_eq!((verdict.predicted, verdict.broken.is_some()), ((7, 7), true));
        for request in answered.iter_mut().skip(2) {
            request.allowed = false;
        }
        let verdict = Verdict::of("5/s".parse().unwrap(), &answered, &[], Duration::from_millis(586));
        assert!(verdict.is_below_prediction());
        assert_eq!(verdict.broken, None);
    }
}
