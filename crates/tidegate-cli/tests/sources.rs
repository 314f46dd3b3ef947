//! Looks for source files that no other names: the compiler does not see them, and says nothing of it.
//!
//! A merge can leave a test out in that way, which then passes whatever it would have found.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether a file is compiled although no module names it.
fn is_root(file: &Path, tests_are_found: bool) -> bool {
    let folder = file.parent().unwrap();
    match (folder.file_name().unwrap().to_str().unwrap(), file.file_name().unwrap().to_str().unwrap()) {
        ("src", "lib.rs" | "main.rs") | ("tests", "main.rs") => true,
        ("tests", _) => tests_are_found,
        (_, "main.rs") => {
            tests_are_found && folder.parent().and_then(Path::file_name) == Some(OsStr::new("tests"))
        }
        _ => false,
    }
}

/// The files that may be meant by the modules that a text names, if it is that of `file`.
fn named(file: &Path, is_root: bool, text: &str) -> Vec<PathBuf> {
    let folder = file.parent().unwrap();
    let inside = match file.file_stem().unwrap() {
        _ if is_root => folder.to_path_buf(),
        stem if stem == "mod" || stem == "main" => folder.to_path_buf(),
        stem => folder.join(stem),
    };
    let mut path = None;
    let mut files = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(given) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            path = Some(folder.join(given));
        }
        if let Some((_, rest)) = line.split_once("include!(\"")
            && let Some((given, _)) = rest.split_once('"')
        {
            files.push(folder.join(given));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["mod", name] | ["pub" | "pub(crate)" | "pub(super)", "mod", name] = words[..]
            && let Some(name) = name.strip_suffix(';')
        {
            let usual = [inside.join(format!("{name}.rs")), inside.join(name).join("mod.rs")];
            files.extend(path.take().map_or_else(|| usual.to_vec(), |path| vec![path]));
        }
    }
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn every_source_file_is_compiled() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let (mut all, mut compiled) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(&crates).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let tests_are_found = !manifest.contains("autotests = false");
        let mut files = Vec::new();
        collect(&folder.join("src"), &mut files);
        collect(&folder.join("tests"), &mut files);
        for file in &files {
            let is_root = is_root(file, tests_are_found);
            compiled.extend(is_root.then(|| file.clone()));
            let named = named(file, is_root, &fs::read_to_string(file).unwrap());
            compiled.extend(named.iter().filter_map(|path| path.canonicalize().ok()));
        }
        all.extend(files);
    }
    assert!(all.len() > 100, "{} found", all.len());
    let left_out: Vec<_> = all.iter().filter(|file| !compiled.contains(*file)).collect();
    assert!(left_out.is_empty(), "no module names {left_out:?}");
}

#[test]
fn modules_are_found_where_the_compiler_looks() {
    let text = "mod a;\n#[path = \"../b.rs\"]\nmod c;\npub(crate) mod d;\nmod tests {}\n// mod e;\ninclude!(\"f.rs\");\n";
    let paths = |file, is_root| named(Path::new(file), is_root, text);
    let at = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(
        paths("t/x.rs", true),
        at(&["t/a.rs", "t/a/mod.rs", "t/../b.rs", "t/d.rs", "t/d/mod.rs", "t/f.rs"])
    );
    assert_eq!(
        paths("t/x.rs", false),
        at(&["t/x/a.rs", "t/x/a/mod.rs", "t/../b.rs", "t/x/d.rs", "t/x/d/mod.rs", "t/f.rs"])
    );
    assert!(is_root(Path::new("tests/x.rs"), true));
    assert!(!is_root(Path::new("tests/x.rs"), false));
    assert!(is_root(Path::new("tests/x/main.rs"), true));
    assert!(!is_root(Path::new("tests/x/y.rs"), true));
}
