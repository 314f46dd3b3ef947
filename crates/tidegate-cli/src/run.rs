//! `tidegate run`: waits for its turn, then runs a command; or one for each argument, as `xargs` does.

mod arguments;
mod each;
mod output;
mod program;
pub(crate) mod signals;
mod single;
mod turn;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::Context as _;
use tidegate::{Gate, Quota};

use crate::fault::{Hint, Outcome, tell};
use crate::quota_args::{QuotaArgs, above_zero, time};
use crate::store::{StoreBudget, WithoutStore};
use signals::Signals;
use turn::{Late, Turns};

/// `EX_TEMPFAIL` of sysexits.h: try again later.
const NOT_IN_TIME: u8 = 75;

/// Wait for a turn, then run a command; with --each, one for each line of stdin
///
/// With --budget, all shells that name it share its limit. With --each alone, the limit is that of this run. SIGINT,
/// SIGTERM, SIGHUP and SIGQUIT go to the command; during a wait they end it, and nothing is charged.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_STATUS, after_help = "--help says what the exit status means.")]
pub(crate) struct Args {
    /// The budget to share: a name of your own, or a path, which has a `/` in it
    ///
    /// A name is a file in $XDG_STATE_HOME/tidegate, or in ~/.local/state/tidegate. A budget that is there keeps its quota,
    /// so --limit can be left out. With redis://HOST:PORT#NAME it is a bucket on a Redis or Valkey server, for several
    /// machines.
    #[arg(long, value_name = "NAME")]
    budget: Option<OsString>,

    /// What happens to commands while the server of --budget redis://… does not answer
    #[arg(long, value_name = "HOW", requires = "budget", value_enum)]
    without_store: Option<WithoutStore>,

    /// What one run of the command costs
    #[arg(long, value_name = "N", default_value = "1", value_parser = above_zero)]
    cost: NonZeroU64,

    /// How many commands may run at one time; with --budget, in all shells that share it [default: 1 with --each]
    ///
    /// A budget on a server does not keep the number: all who share it give the same, and who gives none is not counted. What
    /// is killed by `kill -9` there, or dies with its machine, leaves its place taken for up to 15 s.
    #[arg(long, value_name = "N", value_parser = crate::named::places)]
    max_in_flight: Option<NonZeroU64>,

    /// The longest wait for a turn: 30s, 5min; 0s does not wait [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_wait: Option<Duration>,

    /// Run the command again when it ends with this status, in a turn of its own; can be given several times
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u8).range(1..))]
    retry_on_exit: Vec<u8>,

    /// How often a command is run again, at most
    #[arg(long, value_name = "N", default_value = "5", requires = "retry_on_exit", value_parser = clap::value_parser!(u32))]
    retries: u32,

    /// Run the command once for each line of stdin
    ///
    /// The line takes the place of {} in the words after COMMAND, or is added at their end. Empty lines are skipped. They
    /// are started in order. What they print comes out in whole lines.
    #[arg(long)]
    each: bool,

    /// The arguments of --each end with a zero byte, as `find -print0` writes them
    #[arg(short = '0', long, requires = "each")]
    null: bool,

    /// The command and its arguments, after `--`
    #[arg(value_name = "COMMAND", last = true, required = true, num_args = 1..)]
    command: Vec<OsString>,

    #[command(flatten)]
    quota: QuotaArgs,
}

/// What the long help ends with.
const EXIT_STATUS: &str = "\
Exit status, without --each:
  that of the command, or
  128+N  as a shell shows it: signal N ended the command, or the wait for the turn, and this by the same signal
  126    the command cannot be executed
  127    the command was not found
  75     the turn does not come within --max-wait; the command was not run and nothing was charged
  2      wrong usage, or a budget that cannot be used
With --each:
  0      all commands ended with 0
  123    some did not
  128+N  as a shell shows it: signal N stopped the run, and this by the same signal
  126, 127, 75, 2 as above; the run stops there";

/// When a command is run again.
#[derive(Debug, Clone)]
struct Retries {
    on: Vec<u8>,
    most: u32,
}

impl Retries {
    /// Whether a command that was run again `so_far` times and ended with `status` is run once more.
    fn again(&self, status: u8, so_far: u32) -> bool {
        so_far < self.most && self.on.contains(&status)
    }
}

/// Runs `run`.
///
/// # Errors
///
/// Flags that do not go together, and a budget that cannot be used.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let turns = args.turns()?;
    let retries = Retries { on: args.retry_on_exit.clone(), most: args.retries };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start what waits for the commands")?;
    let result = runtime.block_on(async {
        // From here on, no signal is lost.
        let signals = Signals::listen().context("cannot wait for signals")?;
        // A command that is not there is not worth a wait.
        if let Err(fault) = args.command.first().map_or(Ok(()), program::find) {
            return Ok(fault.tell());
        }
        let outcome = if args.each {
            let most = args.max_in_flight.map_or(1, NonZeroU64::get);
            let arguments = arguments::from_stdin(if args.null { 0 } else { b'\n' });
            each::run(&args.command, &turns, &retries, usize::try_from(most)?, arguments, signals).await
        } else {
            single::run(&args.command, &turns, &retries, signals).await
        };
        turns.finish().await;
        outcome
    });
    // A thread that reads stdin, or writes to somebody who does not read, is not waited for.
    runtime.shutdown_background();
    result
}

impl Args {
    /// Where the turns come from.
    fn turns(&self) -> anyhow::Result<Turns> {
        if self.quota.is_given() && !self.quota.has_rate() {
            return Err(Hint::error(
                "no rate is given",
                "add --limit, such as --limit 2/s, or leave --burst and --window out",
            ));
        }
        let quota = if self.quota.has_rate() { Some(self.quota.quota()?) } else { None };
        let turns = match &self.budget {
            Some(url) if StoreBudget::is_meant(url) => {
                let budget = StoreBudget::open(url, quota, self.max_in_flight, self.without_store)?;
                Turns::of_store(budget, self.cost.get(), self.max_wait)
            }
            Some(name) => {
                let budget = crate::named::open(name, quota, self.max_in_flight)?;
                Turns::of_budget(budget, name.to_string_lossy().into_owned(), self.cost.get(), self.max_wait)
            }
            None => Turns::of_gate(self.gate(quota)?, self.cost.get(), self.max_wait),
        };
        let quota = match quota {
            Some(quota) => quota,
            None => turns.quota()?,
        };
        if self.cost.get() > quota.burst() {
            return Err(Hint::error(
                format!("--cost {} exceeds the burst of `{quota}`, so its turn can never come", self.cost),
                "raise the burst or lower the cost",
            ));
        }
        Ok(turns)
    }

    /// The gate of a run that shares with nobody.
    fn gate(&self, quota: Option<Quota>) -> anyhow::Result<Gate> {
        if !self.each && self.retry_on_exit.is_empty() {
            return Err(Hint::error(
                "one command that shares with nobody never has to wait",
                "add --budget NAME to share the limit with other shells, or --each to run one for each line of stdin",
            ));
        }
        let quota = quota.ok_or_else(|| Hint::error("no limit is given", "add one, such as --limit 2/s"))?;
        Ok(Gate::new(quota))
    }
}

/// The flags of the limit as they are here: without them there is no limit, rather than one of 10 per second.
pub(crate) fn without_default(command: clap::Command) -> clap::Command {
    command.mut_arg("limit", |limit| {
        limit.help("Calls with their time: 2/s, 100/min; a number alone is per --window")
    })
}

/// Says that the turn did not come in time.
fn not_in_time(late: &Late) -> Outcome {
    tell(&format!("tidegate run: {late}"));
    Outcome::Status(NOT_IN_TIME)
}
