//! What holds for any text of a limits file. The tests below ask it of texts that are made at random, and
//! `fuzz/fuzz_targets/limits.rs` of those that libFuzzer looks for.

use std::fmt::Write as _;

use tidegate_core::{Kind, Mode, Step as _};

use super::layer::builder;
use crate::check::described;
use crate::fault::Hint;
use crate::limits::{FileLimit, LimitsFile, parse};
use crate::report::text::one_line;

/// A text is refused with its place and with advice, or it is described, printed and read again as the same limits, and made
/// a layer or refused.
///
/// # Panics
///
/// When that does not hold.
pub(crate) fn check(text: &str) {
    let file = match parse("f", text) {
        Ok(file) => file,
        Err(error) => return is_advised(&error, text),
    };
    for limit in &file.limits {
        let words = described(limit);
        let name = format!("{}: ", one_line(&limit.limit.name));
        assert!(words.starts_with(&name) && words.ends_with('\n'), "{words:?}");
        assert!(words.lines().skip(1).all(|line| line.starts_with("  ")), "{words:?}");
        let lines: Vec<_> = words.lines().map(one_line).collect();
        assert_eq!(lines.join("\n") + "\n", words, "nothing in it commands the terminal");
    }
    let written = written(&file);
    let again = parse("f", &written).unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!(shown(&again), shown(&file), "{written}");

    match builder(&file.limits, 16) {
        Ok(builder) => drop(builder.build()),
        Err(error) => assert!(error.is::<Hint>(), "{error}"),
    }
}

/// It names the file, and the line if it is about one, and says what to do.
fn is_advised(error: &anyhow::Error, text: &str) {
    assert!(error.is::<Hint>(), "{error}");
    let message = error.to_string();
    let Some(rest) = message.strip_prefix("f:") else { panic!("{message}") };
    if let Some((line, _)) = rest.split_once(':')
        && let Ok(line) = line.parse::<usize>()
    {
        assert!(line > 0 && line <= text.matches('\n').count() + 1, "{message}");
    }
}

/// All that a file says, to be compared.
fn shown(file: &LimitsFile) -> String {
    let mut text = format!("{:?}\n", file.costs);
    for limit in &file.limits {
        let FileLimit { limit: named, quota, key, max_in_flight, overrides, tools, descriptors } = limit;
        let (kind, fresh) = (named.algorithm.kind(), named.algorithm.fresh());
        let room = named.algorithm.look(&fresh, 0, 0).remaining();
        let _ = writeln!(
            text,
            "{} {:?} {kind} {room} {quota:?} {key:?} {max_in_flight:?}",
            named.name, named.mode
        );
        let _ = writeln!(text, "{overrides:?} {tools:?} {descriptors:?}");
    }
    text
}

/// The file as a text that says the same.
fn written(file: &LimitsFile) -> String {
    let mut text = String::new();
    for limit in &file.limits {
        let FileLimit { limit: named, quota, key, max_in_flight, overrides, tools, descriptors } = limit;
        let _ = writeln!(text, "[[limit]]\nname = {}\nquota = \"{quota}\"", quoted(&named.name));
        let kind = named.algorithm.kind();
        let _ = writeln!(text, "algorithm = \"{kind}\"");
        if named.mode == Mode::Shadow {
            text.push_str("mode = \"shadow\"\n");
        }
        if kind == Kind::LeakyBucket {
            let room = named.algorithm.look(&named.algorithm.fresh(), 0, 0).remaining();
            let _ = writeln!(text, "queue = {{ max = {} }}", room - quota.burst());
        }
        if let Some(max) = max_in_flight {
            let _ = writeln!(text, "max_in_flight = {max}");
        }
        let mut list = |name: &str, values: &[String]| {
            let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            if !values.is_empty() {
                let _ = writeln!(text, "{name} = [{}]", values.join(", "));
            }
        };
        // The key of a limit on descriptors is made of them.
        list("key", if descriptors.is_empty() { key } else { &[] });
        list("tools", &tools.iter().map(ToString::to_string).collect::<Vec<_>>());
        list("descriptors", &descriptors.iter().map(ToString::to_string).collect::<Vec<_>>());
        for other in overrides {
            let values: Vec<String> = other.key.iter().map(|value| quoted(value)).collect();
            let _ = writeln!(
                text,
                "[[limit.override]]\nkey = [{}]\nquota = \"{}\"",
                values.join(", "),
                other.quota
            );
        }
    }
    for tool in &file.costs {
        let (name, cost) = (quoted(&tool.name.to_string()), quoted(&tool.cost.to_string()));
        let _ = writeln!(text, "[[tool]]\nname = {name}\ncost = {cost}");
    }
    text
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if character.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(character));
            }
            _ => quoted.push(character),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests;
