//! Waiting in line.

use super::*;

// Of ten who wait together most gave up after one sleep.
#[test]
fn leaky_bucket_starts_ten_waiters_in_order_and_refuses_none() {
    let mut caller = Caller::new(LeakyBucket::new(quota("3 per 3s"), 10));
    let starts: Vec<u64> = (0..10).map(|_| caller.call(0, 1).start_after().as_secs()).collect();
    assert_eq!(starts, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
}

// The same ten where the quota is three in each window.
#[test]
fn fixed_window_serves_ten_who_come_back_as_told() {
    let mut caller = Caller::new(Algorithm::new(Kind::FixedWindow, quota("3 per 3s")));
    const SERVED: u64 = u64::MAX;
    let mut waiting = vec![0; 10];
    let mut starts = Vec::new();
    while let Some(now) = waiting.iter().copied().min() {
        for due in waiting.iter_mut().filter(|due| **due == now) {
            let decision = caller.call(now, 1);
            match decision.retry_after() {
                None => {
                    starts.push(now / S);
                    *due = SERVED;
                }
                Some(wait) => *due = now + u64::try_from(wait.as_nanos()).unwrap(),
            }
        }
        waiting.retain(|due| *due != SERVED);
    }
    assert_eq!(starts, [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]);
}

// It slept for the whole timeout and then refused.
#[test]
fn leaky_bucket_refuses_at_once_what_cannot_start_in_time() {
    let mut caller =
        Caller::new(LeakyBucket::new(quota("1 per 5s"), 100).with_max_wait(Duration::from_secs(3)));
    assert!(caller.call(0, 1).is_allowed());
    assert_eq!(caller.call(0, 1).retry_after(), ms(2000));
    assert_eq!(caller.call(2 * S, 1).start_after(), Duration::from_secs(3));
}
