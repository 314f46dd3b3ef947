//! `tidegate hint`: what the answer of a server says about waiting.

mod answer;
mod output;

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tidegate_http::hint::{BODY_MAX, Response};

use crate::fault::{Hint as Advice, Outcome, tell};
use answer::Answer;

/// How much of stdin or a file is read: room for all headers and for the longest body that is looked at.
const READ_MAX: u64 = 1024 * 1024;
const _: () = assert!(BODY_MAX < 1024 * 1024, "a body of the largest size is read whole");

/// Say how long an answer tells to wait, which signal said so, and what is left
///
/// It reads the answer from stdin as `curl -i` prints it, or from flags. Of several answers (redirects, 100 Continue) the
/// last one counts. The headers, JSON bodies and gRPC trailers of more than 25 providers are known; none must be named.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The status of the answer, instead of reading stdin [default with --header or --body: 429]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(100..=999))]
    status: Option<u16>,

    /// A header of the answer, such as 'Retry-After: 5'; give it once for each
    #[arg(long, value_name = "HEADER", value_parser = answer::header)]
    header: Vec<(String, Vec<u8>)>,

    /// A file with the body of the answer; `-` for stdin
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,

    /// When the answer came, as RFC 3339; dates are compared with it if the answer has no date of its own [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    now: Option<SystemTime>,

    /// Print JSON (`tidegate.hint/1`)
    #[arg(long)]
    json: bool,
}

/// Runs `hint`.
///
/// # Errors
///
/// An input that is no answer, or a file that cannot be read.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let answer = args.answer()?;
    let now = args.now.unwrap_or_else(SystemTime::now);
    let hint = Response::new(answer.status, now)
        .headers(answer.headers.iter().map(|(name, value)| (name, value)))
        .body(&answer.body)
        .hint();
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &output::Document::of(answer.status, &hint)?)?;
        writeln!(out)?;
    } else {
        out.write_all(output::text(&hint).as_bytes())?;
        for note in output::notes(&hint) {
            tell(&format!("note: {note}"));
        }
    }
    Ok(Outcome::Fine)
}

impl Args {
    fn answer(&self) -> anyhow::Result<Answer> {
        if self.status.is_none() && self.header.is_empty() && self.body.is_none() {
            if io::stdin().is_terminal() {
                return Err(Advice::error(
                    "no answer to read",
                    "pipe one in, as in `curl -si URL | tidegate hint`, or say it with --status, --header and --body",
                ));
            }
            return Answer::parse(&read(Path::new("-"))?);
        }
        Ok(Answer {
            status: self.status.unwrap_or(429),
            headers: self.header.clone(),
            body: self.body.as_deref().map(read).transpose()?.unwrap_or_default(),
        })
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(READ_MAX).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(READ_MAX).read_to_end(&mut bytes))
    };
    read.map_err(|error| {
        Advice::error(
            format!("cannot read `{}`: {error}", path.display()),
            "name a file that can be read, or `-` for stdin",
        )
    })?;
    Ok(bytes)
}

fn time(text: &str) -> Result<SystemTime, String> {
    let time = text.parse().ok().and_then(|time: jiff::Timestamp| SystemTime::try_from(time).ok());
    time.ok_or_else(|| "not a time in RFC 3339; write for example 2026-11-30T12:00:00Z".to_owned())
}
