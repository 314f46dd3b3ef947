//! Two programs of one machine spend from one budget. Here both are in one process, and the time is made up, so that
//! the output is the same each time.

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    unix::run(&mut std::io::stdout())
}

#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
pub(crate) mod unix {
    use std::{env, error::Error, fs, io::Write, process};

    use tidegate::Budget;
    use tidegate::budget::{BootId, Moment};

    pub(crate) fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
        let folder = env::temp_dir().join(format!("tidegate-example-{}", process::id()));
        fs::create_dir(&folder)?;
        let path = folder.join("api.budget");
        // Each opens the same file; the first one makes it.
        let crawler = Budget::open(&path, "2/s burst 3".parse()?)?.with_max_in_flight(1.try_into()?)?;
        let agent = Budget::open(&path, "2/s burst 3".parse()?)?;

        let calls = [(0, "crawler", &crawler, 2), (100, "agent", &agent, 1), (100, "agent", &agent, 1)];
        for (ms, name, budget, cost) in calls.into_iter().chain([(500, "agent", &agent, 1)]) {
            let decision =
                budget.check_at(Moment { boot: BootId([1; 16]), since_boot_ns: ms * 1_000_000 }, cost)?;
            match decision.retry_after() {
                None => writeln!(out, "{ms:>3} ms: {name} spends {cost}, {} left", decision.remaining())?,
                Some(wait) => writeln!(out, "{ms:>3} ms: {name} has to wait {wait:?}")?,
            }
        }

        // One call at a time: the place is free when it is dropped, or when its process dies.
        let place = crawler.enter()?;
        writeln!(
            out,
            "while the crawler has the place, it is free for the agent: {}",
            agent.enter()?.is_some()
        )?;
        drop(place);
        writeln!(out, "afterwards: {}", agent.enter()?.is_some())?;

        if let Err(error) = Budget::open(&path, "9/s".parse()?) {
            writeln!(out, "{}", error.to_string().replace(&*folder.to_string_lossy(), "."))?;
        }
        fs::remove_dir_all(folder)?;
        Ok(())
    }
}
