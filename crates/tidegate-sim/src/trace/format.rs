//! Which format a file has, by how it begins.

use std::fmt;

use memchr::memchr_iter;

use super::combined::LogLine;

/// The format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// The common or combined access log of Apache, nginx and others.
    AccessLog,
    /// One JSON object per line.
    JsonLines,
    /// Comma-separated values with a header.
    Csv,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AccessLog => "access log",
            Self::JsonLines => "JSON lines",
            Self::Csv => "CSV",
        })
    }
}

/// How many lines may come before the first good one of an access log or of JSON lines. A log is often cut out of a longer
/// one, so its first line may be half a line; servers also write a line or two of their own before the first object.
const LOOK_AT: usize = 16;

impl Format {
    /// The format of a file that begins with `head`: an access log or JSON lines when one of the first lines is of that
    /// kind beyond doubt, else CSV when the first line that is not blank can be a header. `None` is none of these.
    pub(super) fn detect(head: &[u8]) -> Option<Self> {
        for line in lines(head).take(LOOK_AT) {
            if LogLine::is_certain(line) {
                return Some(Self::AccessLog);
            }
            if let [b'{', rest @ ..] = line
                && let [] | [b'"' | b'}', ..] = rest.trim_ascii_start()
            {
                return Some(Self::JsonLines);
            }
        }
        let first = lines(head).next()?;
        let one_name = first
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.@\"".contains(byte) || !byte.is_ascii());
        let printable = !first.iter().any(u8::is_ascii_control) && std::str::from_utf8(first).is_ok();
        let header = first.contains(&b',') || one_name && !first.iter().all(u8::is_ascii_digit);
        // A JSON array over several lines, and a log of another kind with a comma in it, are better named than misread.
        let other = first.starts_with(b"[") || first.starts_with(b"{");
        (printable && header && !other).then_some(Self::Csv)
    }
}

/// The number of the first line that is not blank, from 1, and its text; `None` when all are.
pub(super) fn first_line(head: &[u8]) -> Option<(u64, &[u8])> {
    (1_u64..).zip(all_lines(head)).find(|(_, line)| !line.is_empty())
}

/// Lines that are not blank, without blanks around them. The last one may be cut off.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    all_lines(head).filter(|line| !line.is_empty())
}

fn all_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr_iter(b'\n', head).chain([head.len()]);
    let mut start = 0;
    ends.map(move |end| head[std::mem::replace(&mut start, end + 1)..end].trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_their_beginning() {
        for (head, format) in [
            (r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 200 5"#, Some(Format::AccessLog)),
            (
                "half, a line\n::1 - me [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.0\" 200 5",
                Some(Format::AccessLog),
            ),
            ("{\"ts\":1}", Some(Format::JsonLines)),
            ("\r\n  { \"ts\": 1}", Some(Format::JsonLines)),
            ("{}", Some(Format::JsonLines)),
            ("server starting\n{\"ts\":1}", Some(Format::JsonLines)),
            ("time,client\n1,2", Some(Format::Csv)),
            ("\"time\",\"client\"\n1,2", Some(Format::Csv)),
            ("timestamp\n1\n2", Some(Format::Csv)),
            ("17\n18", None),
            ("a;b;c\n1;2;3", None),
            ("[\n  {\"ts\":1},\n{\"ts\":2}]", Some(Format::JsonLines)),
            ("[{\"ts\":1},{\"ts\":2}]", None),
            ("{\n  \"ts\": 1,\n", Some(Format::JsonLines)),
            ("hello world", None),
            ("\u{0}\u{1},\u{2}", None),
            ("", None),
        ] {
            let found = Format::detect(head.as_bytes());
            assert_eq!(found, format, "{head}");
        }
    }
}
