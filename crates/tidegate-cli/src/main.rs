//! The `tidegate` command: one file per verb, and `report` for what they print.

mod check;
mod explain;
mod fault;
mod fit;
mod hammer;
mod hint;
mod http_server;
mod limits;
#[cfg(unix)]
mod mcp;
#[cfg(unix)]
mod named;
mod progress;
mod quota_args;
mod report;
#[cfg(unix)]
mod run;
mod serve;
mod simulate;
#[cfg(unix)]
mod store;
mod trace_args;
mod upstream;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use fault::Exit;

/// Rate limits you can try, choose, serve and check.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Try limits on generated or recorded traffic
    Simulate(Box<simulate::Args>),
    /// Say what a quota means, in words and numbers
    Explain(explain::Args),
    Check(check::Args),
    /// Find the smallest burst for a rate, from a trace
    Fit(Box<fit::Args>),
    Serve(Box<serve::Args>),
    Hammer(Box<hammer::Args>),
    Hint(Box<hint::Args>),
    #[cfg(unix)]
    Run(Box<run::Args>),
    #[cfg(unix)]
    Mcp(Box<mcp::Args>),
}

fn main() -> ExitCode {
    // A negative number is told what is wrong with it, rather than that it is no flag.
    let command = Cli::command().mut_subcommands(|verb| {
        verb.mut_args(|arg| {
            if arg.get_action().takes_values() && !arg.is_last_set() {
                arg.allow_negative_numbers(true)
            } else {
                arg
            }
        })
    });
    #[cfg(unix)]
    let command = command.mut_subcommand("run", run::without_default);
    let matches = command.try_get_matches().map_err(advised);
    let cli =
        matches.and_then(|matches| Cli::from_arg_matches(&matches)).unwrap_or_else(|error| error.exit());
    let result = match cli.verb {
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Fit(args) => fit::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Hammer(args) => hammer::run(&args),
        Verb::Hint(args) => hint::run(&args),
        #[cfg(unix)]
        Verb::Run(args) => run::run(&args),
        #[cfg(unix)]
        Verb::Mcp(args) => mcp::run(&args),
    };
    Exit::from(result).into()
}

/// A word that is no flag, where a command to start is meant: what lacks is the `--` before it.
fn advised(mut error: clap::Error) -> clap::Error {
    let takes_command = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage)) if usage.to_string().contains("-- <COMMAND>"));
    if error.kind() == ErrorKind::UnknownArgument
        && takes_command
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && !word.starts_with('-')
    {
        let tip = format!("write `--` before the command, as in `-- {word}`");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}
