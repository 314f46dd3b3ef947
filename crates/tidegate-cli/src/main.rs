//! The `tidegate` command: one file per verb, and `report` for what they print.

mod fault;
mod fit;
mod hammer;
mod quota_args;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Find the smallest burst for a rate, from a trace
    Fit(fit::Args),
    Serve(serve::Args),
    Hammer(hammer::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb {
        Verb::Fit(args) => fit::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Hammer(args) => hammer::run(&args),
    };
    Exit::from(result).into()
}
