//! Ten calls through a gate of three per three seconds, with a bucket and with a window.
//!
//! The clock is moved by hand, so the output is always the same. With `Gate::new` it is real time.

use std::sync::mpsc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::{Gate, Kind};

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let clock = ManualClock::new();
        let gate = Gate::builder("3 per 3s".parse()?).algorithm(kind).clock(&clock).build()?;
        let (started, starts) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..10 {
                let (gate, started) = (gate.clone(), started.clone());
                scope.spawn(move || {
                    let permit = gate.acquire_blocking(1);
                    let _ = started.send(permit.is_ok());
                });
            }
            let mut begun = 0;
            for second in 0..10 {
                // All that can start in this second have started, and the others wait.
                let mut now = 0;
                while begun + now + gate.status().waiting < 10 {
                    now += usize::from(starts.recv_timeout(Duration::from_millis(1)) == Ok(true));
                }
                println!("{kind}, {second} s: {now}");
                begun += now;
                clock.advance(Duration::from_secs(1));
            }
        });
    }
    Ok(())
}
