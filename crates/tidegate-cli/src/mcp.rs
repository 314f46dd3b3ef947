//! `tidegate mcp`: limits on the tool calls of an MCP server, as a proxy on its standard input and output, or over HTTP.

mod answer;
mod call;
mod charges;
mod desk;
mod frame;
mod http;
mod learn;
mod lenient;
mod limits;
mod line;
mod log;
mod shared;
mod stdio;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use tidegate::{Mode, Quota};

use crate::fault::{Hint, Outcome, tell};
use crate::limits::LimitsFile;
use crate::limits::tools::{Cost, ToolCost};
use crate::quota_args::{above_zero, time, whole, whole_within};
use crate::store::{StoreBudget, WithoutStore};
use charges::{Charges, Method};
use desk::Desk;
use limits::Rule;
use line::{Line, Room};
use log::Log;
use shared::{FileBudget, SharedBudget};

/// Limit the tool calls that go to an MCP server, as a proxy in front of it
///
/// In the configuration of an agent, put `tidegate mcp`, the limits and `--` before the command that starts the server.
/// With --listen and --upstream it speaks HTTP on both sides.
///
/// Only `tools/call` is limited: a call that must wait does so in a line, and one that cannot start in time is answered
/// with a tool result that says how long to wait. Everything else passes byte for byte, and so does all if no limit is
/// given. It ends when the server ends, with its exit code; signals go on to it.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tidegate mcp [OPTIONS] -- <COMMAND>...\n       \
                      tidegate mcp [OPTIONS] --listen <ADDRESS> --upstream <URL>")]
pub(crate) struct Args {
    /// How fast tools may be called, all together: 2/s, "10/min burst 3"
    #[arg(long, visible_alias = "quota", value_name = "QUOTA", help_heading = "Limit")]
    limit: Option<Quota>,

    /// Calls that can come at once when nobody called for a while [default: the count of the limit]
    #[arg(long, value_name = "N", requires = "limit", value_parser = whole, help_heading = "Limit")]
    burst: Option<u64>,

    /// How many calls may run at once; with --budget, in all that share it
    ///
    /// A budget on a server does not keep the number: all who share it give the same, and who gives none is not counted. What
    /// is killed by `kill -9` there, or dies with its machine, leaves its places taken for up to 15 s.
    #[arg(long, value_name = "N", value_parser = above_zero, help_heading = "Limit")]
    max_in_flight: Option<NonZeroU64>,

    /// Share --limit and --max-in-flight with all that name the same budget, `tidegate run` too
    ///
    /// A name of your own, or a path, which has a `/` in it. A name is a file in $XDG_STATE_HOME/tidegate, or in
    /// ~/.local/state/tidegate. A budget that is there keeps its quota, so --limit can be left out. With
    /// redis://HOST:PORT#NAME it is a bucket on a Redis or Valkey server, for several machines.
    #[arg(long, value_name = "NAME", help_heading = "Limit")]
    budget: Option<OsString>,

    /// What happens to calls while the server of --budget redis://… does not answer
    #[arg(long, value_name = "HOW", requires = "budget", value_enum, help_heading = "Limit")]
    without_store: Option<WithoutStore>,

    /// More limits, those of a TOML file: for each tool, for groups of tools, for each session, for all
    #[arg(long, value_name = "FILE", help_heading = "Limit")]
    limits: Option<PathBuf>,

    /// What a call of a tool takes of each limit, in place of 1: search=5, "render_*=args.pages"
    ///
    /// A number, or `args.NAME` for what that argument says. In TOOL, a * stands for any text. Can be given several times;
    /// the first that fits counts.
    #[arg(long, value_name = "TOOL=COST", value_parser = cost, help_heading = "Limit")]
    cost: Vec<ToolCost>,

    /// Limit these requests as well; in a limits file they are tools of that name
    #[arg(long, value_name = "METHOD", value_enum, help_heading = "Limit")]
    also: Vec<Method>,

    /// How many calls may wait
    #[arg(long, value_name = "N", default_value = "50", value_parser = waiting, help_heading = "Waiting")]
    queue: u64,

    /// The longest that a call may wait; keep it below the time after which the client gives up
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = time, help_heading = "Waiting")]
    max_wait: Duration,

    /// The longest message, in MiB; as much may wait in the line
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = mebibytes, help_heading = "Waiting")]
    max_message: u64,

    /// Limit nothing; count and log what the limits would have held up
    #[arg(long, help_heading = "Watching")]
    dry_run: bool,

    /// Append a line of JSON for each tool call to a file, from which `tidegate fit` and `simulate` find a limit
    #[arg(long, value_name = "FILE", help_heading = "Watching")]
    log: Option<PathBuf>,

    /// Serve MCP over HTTP at this address instead, in front of the server at --upstream; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", value_parser = crate::http_server::address::listen, requires = "upstream", conflicts_with = "command", help_heading = "HTTP")]
    listen: Option<SocketAddr>,

    /// The MCP server behind --listen: http://HOST:PORT/PATH or https://HOST:PORT/PATH
    #[arg(long, value_name = "URL", requires = "listen", conflicts_with = "command", help_heading = "HTTP")]
    upstream: Option<String>,

    /// The command that starts the MCP server and its arguments, after `--`
    #[arg(last = true, required_unless_present_any = ["listen", "upstream"], value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn waiting(text: &str) -> Result<u64, String> {
    whole_within(text, 0..=1_000_000)
}

fn mebibytes(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=1024)
}

fn cost(text: &str) -> Result<ToolCost, String> {
    let (tool, cost) = text
        .rsplit_once('=')
        .filter(|(tool, _)| !tool.is_empty())
        .ok_or("not a tool and its cost; write for example search=5 or search=args.count")?;
    Ok(ToolCost { name: tool.parse()?, cost: cost.parse::<Cost>()? })
}

/// Runs `mcp`.
///
/// # Errors
///
/// Limits that cannot be used, a command that cannot be started, and a message that is too long.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let file = args.limits.as_deref().map(crate::limits::read_all).transpose()?;
    if let (Some(path), Some(file)) = (&args.limits, &file) {
        crate::limits::without_descriptors(path, &file.limits)?;
    }
    let mut charges = Charges { also: args.also.clone(), costs: args.cost.clone(), continuations: false };
    let rules = args.rules(file.as_ref())?;
    charges.costs.extend(file.into_iter().flat_map(|file| file.costs));
    let log = Log::new(args.log.as_deref())?;
    let max_message = args.max_message.saturating_mul(1024 * 1024);
    let bytes = usize::try_from(max_message)?;
    let room = Room { calls: usize::try_from(args.queue)?, bytes, max_wait: args.max_wait };
    let learns = !args.dry_run;
    if let (Some(listen), Some(upstream)) = (args.listen, args.upstream.clone()) {
        charges.continuations = true;
        return http::run(http::Plan {
            listen,
            upstream,
            rules,
            room,
            charges,
            log,
            learns,
            max_message: bytes,
        });
    }
    let desk = Desk::new(Line::new(rules, room), log, learns);
    let code = stdio::process::run(&args.command, desk, charges, max_message, &mut |summary| tell(&summary))?;
    Ok(Outcome::Status(code))
}

impl Args {
    /// The limits of the flags and those of the file.
    fn rules(&self, file: Option<&LimitsFile>) -> anyhow::Result<Vec<Rule>> {
        let quota = match (self.limit, self.burst) {
            (Some(quota), Some(burst)) => Some(quota.with_burst(burst)?),
            (quota, _) => quota,
        };
        let mut rules = match &self.budget {
            Some(url) if StoreBudget::is_meant(url) => {
                let budget = StoreBudget::open(url, quota, self.max_in_flight, self.without_store)?;
                let quota = quota.unwrap_or(budget.quota());
                let name = budget.name().to_owned();
                vec![Rule::of_budget(&name, quota, SharedBudget::Store(budget))]
            }
            Some(name) => {
                let budget = crate::named::open(name, quota, self.max_in_flight)?;
                let (quota, places) = (budget.quota()?, budget.max_in_flight()?);
                let shared = SharedBudget::File(FileBudget::new(budget, places.map(NonZeroU64::get)));
                vec![Rule::of_budget(&name.to_string_lossy(), quota, shared)]
            }
            None => Rule::of_flags(quota, self.max_in_flight).into_iter().collect(),
        };
        if let (Some(file), Some(path)) = (file, &self.limits) {
            let path = path.display().to_string();
            for limit in &file.limits {
                let rule = Rule::of_file(&path, limit)?;
                if rules.iter().any(|other| other.name == rule.name) {
                    return Err(Hint::error(
                        format!("{path}: limit `{}` has the name of that of the flags", rule.name),
                        "give it another name",
                    ));
                }
                rules.push(rule);
            }
        }
        if self.dry_run {
            for rule in &mut rules {
                rule.mode = Mode::Shadow;
            }
        }
        Ok(rules)
    }
}
