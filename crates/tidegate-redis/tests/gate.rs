//! Gates of several machines whose tokens are in one bucket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::faults::PATIENCE;
use crate::harness::server::Server;
use crate::harness::{at_once, quota};
use tidegate::{Gate, Refused};
use tidegate_redis::{Made, OnFailure, Store};

/// A gate with a store of its own, as another machine has it.
async fn gate(server: &Server, text: &str, deadline: Duration) -> Gate {
    let store = Store::builder(&server.url()).deadline(deadline).connect().await.unwrap();
    let buckets = Arc::new(store.buckets("gates").unwrap());
    Gate::builder(quota(text)).shared(buckets, "calls", "api", OnFailure::Closed).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_of_two_machines_obey_one_limit_and_both_go_on() {
    const CALLS: u32 = 60;
    let server = Server::start(&[]);
    let gates = [
        gate(&server, "200/s burst 5", Duration::from_secs(10)).await,
        gate(&server, "200/s burst 5", Duration::from_secs(10)).await,
    ];
    let begun = Instant::now();
    let caller = |number: usize| {
        let gate = gates[number % 2].clone();
        async move {
            let mut granted = Vec::new();
            for _ in 0..CALLS / 4 {
                let permit = gate.acquire(1).await.unwrap();
                assert_eq!(permit.made(), Some(Made::Exact));
                granted.push((begun.elapsed(), number % 2));
            }
            granted
        }
    };
    let mut granted = at_once(8, caller).await.concat();
    granted.sort_unstable();
    // Never more than 5, and 200 a second, since the first could be asked for.
    for (index, (at, _)) in (0_u32..).zip(&granted) {
        let earliest = Duration::from_millis(5) * (index + 1).saturating_sub(5);
        assert!(*at >= earliest, "the grant {index} is at {at:?}, before {earliest:?}");
    }
    assert_eq!(granted.len(), 2 * 60);
    // Neither came only when the other was done.
    let first = |gate| granted.iter().position(|(_, number)| *number == gate).unwrap();
    assert!(first(0) < 60 && first(1) < 60, "{granted:?}");
}

#[test]
fn a_caller_without_a_runtime_waits_too() {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let gate = runtime.block_on(gate(&server, "100/s burst 1", Duration::from_secs(10)));
    let begun = Instant::now();
    for _ in 0..4 {
        drop(gate.acquire_blocking(1).unwrap());
    }
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert_eq!(gate.acquire_blocking(2).unwrap_err(), Refused::Never { limit: 0, cost: 2, capacity: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_gate_waits_for_a_server_that_was_killed_and_holds_deadlines_meanwhile() {
    let mut server = Server::start(&[]);
    let gate = gate(&server, "100/s burst 10", Duration::from_millis(100)).await;
    drop(gate.acquire(1).await.unwrap());
    server.kill();
    let waiting = gate.clone();
    let waiting = tokio::spawn(async move { waiting.acquire(1).await.unwrap().made() });
    let max_wait = Duration::from_millis(20);
    let begun = Instant::now();
    let refused = gate.acquire_within(1, max_wait).await.unwrap_err();
    assert!(matches!(refused, Refused::Deadline { .. }), "{refused:?}");
    assert!(begun.elapsed() >= max_wait && begun.elapsed() < PATIENCE / 20, "{:?}", begun.elapsed());
    assert!(!waiting.is_finished());
    server.start_again();
    let made = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(made, Some(Made::Exact));
}
