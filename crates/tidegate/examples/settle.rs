//! A budget of LLM tokens: what a call costs is known only afterwards.

use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::{Gate, Refused};

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 600 tokens a minute, 1000 at most. The clock is moved by hand; without `clock` it is real time.
    let clock = ManualClock::new();
    let gate = Gate::builder("600/min burst 1000".parse()?).clock(&clock).build()?;

    let reservation = gate.reserve_blocking(1000)?;
    println!("reserved {}, left {}", reservation.estimate().of(0), gate.status().level);
    reservation.settle(300);
    println!("used 300, left {}", gate.status().level);

    let reservation = gate.reserve_blocking(700)?;
    reservation.settle(800);
    // The bucket owes 100, which its refill pays before anybody is granted: 10 s, and 0.1 s for a token.
    match gate.try_acquire(1) {
        Err(Refused::Deadline { wait, .. }) => println!("used 800 of 700, next call in {wait:?}"),
        other => println!("{other:?}"),
    }

    clock.advance(Duration::from_secs(70));
    println!("after 70 s, left {}", gate.status().level);
    let unsettled = gate.reserve_blocking(500)?;
    drop(unsettled);
    println!("dropped without settling, left {}", gate.status().level);
    gate.reserve_blocking(100)?.cancel();
    println!("cancelled, left {}", gate.status().level);

    if let Err(refused) = gate.try_reserve(2000) {
        println!("{refused}");
    }
    Ok(())
}
