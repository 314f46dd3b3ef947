//! The flags that say which recorded traffic to read, and the reading of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use anyhow::Context as _;
use tidegate_sim::{TimeUnit, Trace, TraceOptions};

use crate::fault::{Hint, tell};
use crate::progress::Progress;

/// Recorded traffic in flags.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TraceArgs {
    /// Recorded traffic: an access log, JSON lines, or CSV with a header; each also gzipped; `-` for stdin
    #[arg(long, value_name = "FILE", help_heading = "Trace")]
    pub(crate) trace: Option<PathBuf>,

    /// The field with the time [default: guessed, and the guess is printed]
    #[arg(long, value_name = "FIELD", value_parser = field, requires = "trace", help_heading = "Trace")]
    time: Option<String>,

    /// The field with the key; each key has its own state [default: all share one]
    #[arg(long, value_name = "FIELD", value_parser = field, requires = "trace", help_heading = "Trace")]
    pub(crate) key: Option<String>,

    /// The field with the cost, or a sum of fields such as A+B [default: each request costs 1]
    #[arg(long, value_name = "FIELD", value_parser = sum_of_fields, requires = "trace", help_heading = "Trace")]
    cost: Option<String>,

    /// The unit of times that are bare numbers: s, ms, us or ns
    #[arg(long, value_name = "UNIT", requires = "trace", help_heading = "Trace")]
    time_unit: Option<TimeUnit>,

    /// Count lines that cannot be read instead of stopping at the first
    #[arg(long, requires = "trace", help_heading = "Trace")]
    skip_bad: bool,
}

impl TraceArgs {
    /// The name of the trace as reports show it.
    pub(crate) fn name(&self) -> String {
        match &self.trace {
            Some(path) if path.as_os_str() == "-" => "stdin".to_owned(),
            Some(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned()),
            None => String::new(),
        }
    }

    /// Reads the trace, and says on stderr what was guessed, sorted or skipped.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened or read, or a line that says no request.
    pub(crate) fn load(&self) -> anyhow::Result<Trace> {
        let Some(path) = &self.trace else {
            return Err(Hint::error(
                "no traffic to read",
                "name a trace with `--trace FILE`, or `--trace -` for stdin",
            ));
        };
        let name = path.display().to_string();
        let (input, size): (Box<dyn Read>, Option<u64>) = if path.as_os_str() == "-" {
            (Box::new(io::stdin().lock()), None)
        } else {
            let file = File::open(path).map_err(|error| {
                Hint::error(
                    format!("cannot open the trace `{name}`: {error}"),
                    "name a file that can be read, or `-` for stdin",
                )
            })?;
            let meta = file.metadata().with_context(|| format!("cannot open the trace `{name}`"))?;
            if meta.is_dir() {
                return Err(Hint::error(
                    format!("the trace `{name}` is a directory"),
                    "name a file, or `-` for stdin",
                ));
            }
            (Box::new(file), Some(meta.len()))
        };
        let options = TraceOptions {
            time: self.time.clone(),
            key: self.key.clone(),
            cost: self
                .cost
                .iter()
                .flat_map(|sum| sum.split('+'))
                .map(|field| field.trim().to_owned())
                .collect(),
            time_unit: self.time_unit,
            skip_bad: self.skip_bad,
        };
        let shown = if path.as_os_str() == "-" { "stdin" } else { name.as_str() };
        let mut progress = Progress::bytes("reading", size);
        let trace = tidegate_sim::trace::read(input, shown, &options, &mut |bytes| progress.at(bytes))?;
        progress.done();
        notes(&trace);
        Ok(trace)
    }
}

/// Reads the name of a field.
fn field(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a field has a name; write for example `client`, or leave the flag out".to_owned());
    }
    Ok(text.to_owned())
}

/// Reads the name of a field, or several joined by `+`.
fn sum_of_fields(text: &str) -> Result<String, String> {
    if text.split('+').any(|name| name.trim().is_empty()) {
        return Err("each field of a sum has a name; write for example `bytes` or `input+output`".to_owned());
    }
    Ok(text.to_owned())
}

fn notes(trace: &Trace) {
    if trace.time_guessed {
        tell(&format!(
            "note: time is read from `{}` as {}; say otherwise with `--time FIELD`",
            trace.time_field, trace.time_reading
        ));
    }
    if trace.out_of_order > 0 {
        tell(&format!("note: {} requests were out of order and were sorted by time", trace.out_of_order));
    }
    if let Some(first) = &trace.first_skipped {
        tell(&format!(
            "note: {} of {} lines could not be read and were skipped; the first is {first}",
            trace.skipped, trace.lines
        ));
    }
}
