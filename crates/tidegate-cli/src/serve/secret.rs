//! Passwords and tokens, which are read from files: what stands on a command line can be read by everybody.

use std::fs;
use std::path::Path;

use crate::fault::Hint;

/// The longest secret.
const BYTES_MAX: usize = 4096;

/// The first line of a file, which is `what`, such as `the password`.
pub(super) fn bytes(path: &Path, what: &str) -> anyhow::Result<Box<[u8]>> {
    let shown = path.display();
    let hint = format!("write {what} on its first line, and let only the user of this server read it");
    let bytes =
        fs::read(path).map_err(|error| Hint::error(format!("cannot read {shown}: {error}"), hint.clone()))?;
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.len() {
        0 => {
            let what = what.trim_start_matches("the ");
            Err(Hint::error(format!("there is no {what} in {shown}"), hint))
        }
        len if len > BYTES_MAX => {
            Err(Hint::error(format!("the first line of {shown} is longer than {BYTES_MAX} bytes"), hint))
        }
        _ => Ok(line.into()),
    }
}

/// As [`bytes`], where it has to be text.
pub(super) fn text(path: &Path, what: &str) -> anyhow::Result<String> {
    let bytes = bytes(path, what)?;
    let wrong = |how: &str| {
        Hint::error(format!("{what} in {} {how}", path.display()), "write letters, digits and marks")
    };
    let text = String::from_utf8(bytes.into_vec()).map_err(|_| wrong("is no text"))?;
    // Fields of HTTP lose the spaces around them, and a mark of the order of bytes is not seen.
    if text.trim() != text || text.chars().any(|c| c.is_control() || c == '\u{feff}') {
        return Err(wrong(
            "has spaces around it or a sign that is not seen, so that no client could send it",
        ));
    }
    Ok(text)
}
