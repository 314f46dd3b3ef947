//! One limit for each of many keys: `cargo run -p tidegate --example keyed`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::{Limiter, Quota};

fn main() -> Result<(), Box<dyn Error>> {
    let quota = |text: &str| text.parse::<Quota>();

    // A program takes the clock that a limiter has by itself; this one stands still until it is told to go on.
    let clock = ManualClock::new();
    let limiter = Limiter::builder(quota("2/s burst 3")?)
        .tier("gold", quota("20/s burst 30")?)
        .key_tier("carol", "gold")
        .capacity(10_000)
        .clock(&clock)
        .build()?;
    println!("10000 keys in {} KiB", limiter.bytes() / 1024);

    for call in 1..=4 {
        match limiter.check("ann").retry_after() {
            None => println!("ann, call {call}: allowed"),
            Some(wait) => println!("ann, call {call}: rejected, again in {wait:?}"),
        }
    }
    println!("bob: {} of 3 left", limiter.peek("bob", 0).remaining());
    println!("carol: {} of 30 left", limiter.check_n("carol", 10).remaining());

    clock.advance(Duration::from_millis(500));
    println!("ann, half a second later: {}", limiter.check("ann").is_allowed());
    println!("a cost of 4: {:?}", limiter.check_n("ann", 4));
    Ok(())
}
