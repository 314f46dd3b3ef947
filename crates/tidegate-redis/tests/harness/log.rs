//! A log of what was allowed, and how much that is beyond one bucket: it shares no code with what it checks.

/// An allowed call: nanoseconds before it was asked and after it was answered. Its token was spent at some time between.
pub(crate) type Allowed = (u64, u64);

/// The most tokens beyond `burst + rate * t`, in whole tokens rounded up, that were certainly spent in any interval of
/// length `t`: the calls that began and ended in it.
///
/// For each end, the best start is found in a tree of maxima: `n log n`.
pub(crate) fn beyond(mut log: Vec<Allowed>, burst: u64, rate_per_s: u64) -> u64 {
    const TOKEN: i128 = 1_000_000_000;
    let mut starts: Vec<u64> = log.iter().map(|(before, _)| *before).collect();
    starts.sort_unstable();
    starts.dedup();
    let size = starts.len().next_power_of_two();
    // For each start: tokens of calls that began there or later and have ended, and what the rate brought before it.
    let mut most = vec![i128::MIN / 4; 2 * size];
    let mut added = vec![0_i128; 2 * size];
    let mut begun = 0;
    log.sort_unstable_by_key(|(_, after)| *after);
    let mut worst = 0;
    for (before, after) in log {
        // Starts that are not before this end have no interval with it.
        while let Some(start) = starts.get(begun).filter(|start| **start <= after) {
            let mut node = size + begun;
            most[node] = i128::from(*start) * i128::from(rate_per_s);
            while node > 1 {
                node /= 2;
                most[node] = most[2 * node].max(most[2 * node + 1]) + added[node];
            }
            begun += 1;
        }
        // A token to all starts that are not later: the node itself, and each left sibling on the way up.
        let mut node = size + starts.binary_search(&before).unwrap();
        most[node] += TOKEN;
        added[node] += TOKEN;
        while node > 1 {
            if node % 2 == 1 {
                most[node - 1] += TOKEN;
                added[node - 1] += TOKEN;
            }
            node /= 2;
            most[node] = most[2 * node].max(most[2 * node + 1]) + added[node];
        }
        worst = worst.max(most[1] - i128::from(after) * i128::from(rate_per_s) - i128::from(burst) * TOKEN);
    }
    u64::try_from((worst + TOKEN - 1) / TOKEN).unwrap()
}

#[test]
fn the_log_counts_what_is_beyond_a_bucket() {
    let s = 1_000_000_000;
    // Three at once from a bucket of two, and one more half a second later at one a second.
    let log = vec![(s, s), (s, s), (s, s), (s + s / 2, s + s / 2)];
    assert_eq!(beyond(log.clone(), 2, 1), 2);
    assert_eq!(beyond(log.clone(), 3, 1), 1);
    assert_eq!(beyond(log, 4, 1), 0);
    // Two seconds later two more may come.
    let later = 3 * s;
    assert_eq!(beyond(vec![(s, s), (s, s), (later, later), (later, later)], 2, 1), 0);
    // What took a second may have been spent at its start or at its end.
    assert_eq!(beyond(vec![(s, 2 * s), (s, 2 * s), (2 * s, 2 * s)], 2, 1), 0);
}
