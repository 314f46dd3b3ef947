//! `tidegate mcp`: limits on the tool calls of an MCP server, as a proxy on its standard input and output.

mod answer;
mod desk;
mod frame;
mod limits;
mod line;
mod log;
mod process;
mod pump;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use tidegate::{Mode, Quota};

use crate::fault::{Hint, Outcome, tell};
use crate::quota_args::{above_zero, time, whole, whole_within};
use desk::{Costs, Desk};
use limits::Rule;
use line::{Line, Room};
use log::Log;

/// Limit the tool calls that go to an MCP server, as a proxy in front of it
///
/// COMMAND is started with its standard input and output through this proxy; put both in place of COMMAND into the
/// configuration of an agent. Only `tools/call` is limited: a call that must wait does so in a line, and one that cannot
/// start in time is answered with a tool result that says how long to wait. Everything else passes byte for byte, and so
/// does all if no limit is given. It ends when the server ends, with its exit code; signals go on to it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How fast tools may be called, all together: 2/s, "10/min burst 3"
    #[arg(long, value_name = "QUOTA", help_heading = "Limit")]
    limit: Option<Quota>,

    /// Calls that can come at once when nobody called for a while [default: the count of the limit]
    #[arg(long, value_name = "N", requires = "limit", value_parser = whole, help_heading = "Limit")]
    burst: Option<u64>,

    /// How many calls may run at once
    #[arg(long, value_name = "N", value_parser = above_zero, help_heading = "Limit")]
    max_in_flight: Option<NonZeroU64>,

    /// The limits of a TOML file, all at once; `key = "tool"` gives each tool a limit of its own
    #[arg(long, value_name = "FILE", conflicts_with_all = ["limit", "max_in_flight"], help_heading = "Limit")]
    limits: Option<PathBuf>,

    /// What a call of a tool takes of each limit, in place of 1; may be given for several tools
    #[arg(long, value_name = "TOOL=N", value_parser = cost, help_heading = "Limit")]
    cost: Vec<(Box<str>, u64)>,

    /// How many calls may wait
    #[arg(long, value_name = "N", default_value = "50", value_parser = waiting, help_heading = "Waiting")]
    queue: u64,

    /// The longest that a call may wait; keep it below the time after which the client gives up
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = time, help_heading = "Waiting")]
    max_wait: Duration,

    /// Limit nothing; count and log what the limits would have held up
    #[arg(long)]
    dry_run: bool,

    /// Append a line of JSON for each tool call to a file, which `tidegate simulate` and `fit` read
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// The longest message, in MiB; as much may wait in the line
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = mebibytes)]
    max_message: u64,

    /// The MCP server to start
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn waiting(text: &str) -> Result<u64, String> {
    whole_within(text, 0..=1_000_000)
}

fn mebibytes(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=1024)
}

fn cost(text: &str) -> Result<(Box<str>, u64), String> {
    match text.rsplit_once('=') {
        Some((tool, cost)) if !tool.is_empty() => Ok((tool.into(), whole(cost)?)),
        _ => Err("not a tool and its cost; write for example search=5".to_owned()),
    }
}

/// Runs `mcp`.
///
/// # Errors
///
/// Limits that cannot be used, a command that cannot be started, and a message that is too long.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let rules = rules(args)?;
    let costs = Costs::new(&args.cost).map_err(|tool| {
        Hint::error(format!("--cost gives the tool `{tool}` two costs"), "leave one of them out")
    })?;
    let log = Log::new(args.log.as_deref())?;
    let max_message = args.max_message.saturating_mul(1024 * 1024);
    let bytes = usize::try_from(max_message)?;
    let room = Room { calls: usize::try_from(args.queue)?, bytes, max_wait: args.max_wait };
    let desk = Desk::new(Line::new(rules, room), log);
    let code = process::run(&args.command, desk, costs, max_message, &mut |summary| tell(&summary))?;
    Ok(Outcome::Status(code))
}

fn rules(args: &Args) -> anyhow::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = match &args.limits {
        Some(path) => {
            let file = path.display().to_string();
            crate::limits::read(path)?
                .iter()
                .map(|limit| Rule::of_file(&file, limit))
                .collect::<Result<_, _>>()?
        }
        None => {
            let quota = match (args.limit, args.burst) {
                (Some(quota), Some(burst)) => Some(quota.with_burst(burst)?),
                (quota, _) => quota,
            };
            Rule::of_flags(quota, args.max_in_flight).into_iter().collect()
        }
    };
    if args.dry_run {
        for rule in &mut rules {
            rule.mode = Mode::Shadow;
        }
    }
    Ok(rules)
}
