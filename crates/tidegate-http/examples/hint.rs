//! A caller that obeys its server: the gate waits for its own quota, and for what answers say.

use std::time::{Duration, UNIX_EPOCH};

use tidegate::clock::ManualClock;
use tidegate::{Gate, Refused};
use tidegate_http::hint::{self, Response};

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Ten a second. The clock is moved by hand, and answers come at a fixed time; in a program, `SystemTime::now()`.
    let clock = ManualClock::new();
    let gate = Gate::builder("10/s".parse()?).clock(&clock).build()?;
    let now = UNIX_EPOCH + Duration::from_secs(1_796_040_000);

    let permit = gate.acquire_blocking(1)?;
    let (status, headers, body) = (429, [("retry-after-ms", "1340"), ("retry-after", "2")], "slow down");
    drop(permit);

    let hint = Response::new(status, now).headers(headers).body(body.as_bytes()).hint();
    if let Some(pause) = hint.pause(hint::CEILING) {
        gate.close_for(pause.wait);
    }

    println!("told {:?} by {:?}", hint.wait, hint.signal.map(|signal| signal.name));
    match gate.try_acquire(1) {
        Err(Refused::Deadline { wait, .. }) => {
            println!("closed for {wait:?}, with {} left", gate.status().level)
        }
        other => println!("{other:?}"),
    }
    clock.advance(Duration::from_millis(1340));
    println!("open again: {}", gate.try_acquire(1).is_ok());

    // A shorter hint changes nothing, and none opens the gate.
    gate.close_for(Duration::from_secs(5));
    gate.close_for(Duration::from_secs(1));
    clock.advance(Duration::from_secs(1));
    println!("after a shorter hint: {}", gate.try_acquire(1).is_ok());
    Ok(())
}
