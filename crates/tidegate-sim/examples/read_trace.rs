//! Reads a trace from standard input and says what is in it: `read_trace [KEY] [COST] < FILE`.

use std::io::stdin;
use std::time::Instant;

use tidegate_sim::TraceOptions;
use tidegate_sim::trace::read;

#[expect(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), tidegate_sim::TraceError> {
    let mut arguments = std::env::args().skip(1);
    let options =
        TraceOptions { key: arguments.next(), cost: arguments.collect(), ..TraceOptions::default() };
    let mut bytes = 0;
    let start = Instant::now();
    let trace = read(stdin().lock(), "standard input", &options, &mut |so_far| bytes = so_far)?;
    let micros = start.elapsed().as_micros().max(1);
    println!("{}: {} requests in {} lines", trace.format, trace.arrivals.len(), trace.lines);
    println!("time: `{}` as {}", trace.time_field, trace.time_reading);
    println!("keys: {}", trace.arrivals.keys.as_ref().map_or(1, |keys| keys.names.len()));
    println!("out of order: {}", trace.out_of_order);
    println!("read at {} MB/s", u128::from(bytes) / micros);
    Ok(())
}
