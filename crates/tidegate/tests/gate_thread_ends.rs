//! The gate's own thread, alone in a process so that it can be counted.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use tidegate::Gate;

fn threads_of_gates() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|name| name.trim_end() == "tidegate-gate")
        .count()
}

#[test]
fn gate_starts_its_thread_when_a_call_waits_and_ends_it_with_the_last_handle() {
    let gate = Gate::new("1000/s burst 1".parse().unwrap());
    let other = gate.clone();
    let first = gate.acquire_blocking(1).unwrap();
    assert_eq!(threads_of_gates(), 0, "nobody has waited");
    let second = gate.acquire_blocking(1).unwrap();
    assert_eq!(threads_of_gates(), 1);
    drop(gate);
    drop(other.acquire_blocking(1).unwrap());
    assert_eq!(threads_of_gates(), 1);
    drop(other);
    while threads_of_gates() > 0 {
        std::thread::yield_now();
    }
    // Permits outlive their gate.
    first.cancel();
    drop(second);
}
