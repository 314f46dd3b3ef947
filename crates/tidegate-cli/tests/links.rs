//! Follows every relative link in the Markdown that readers open, and compares the guide's chapters with its summary.
//!
//! A link is relative unless it names a scheme. Its target must be a file or a folder of the project, and a `#heading`
//! behind the name of a Markdown file must be a heading of that file. Text in code is not looked at.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The links of a text: what stands between `](` and `)`.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        let mut rest = line.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((link, tail)) = after.split_once(')') else { break };
            links.push(link.to_owned());
            rest = tail;
        }
    }
    links
}

/// The lines outside of fenced blocks, without what is between backticks.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut prose = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push(line.split('`').step_by(2).collect());
        }
    }
    prose
}

/// The names under which the headings of a text can be linked to, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) else { continue };
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let name: String = heading.trim_start_matches('#').trim().chars().filter(kept).collect();
        anchors.insert(name.to_lowercase().replace(' ', "-"));
    }
    anchors
}

/// Why a link does not lead anywhere, if it does not.
fn fault(file: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { file.to_path_buf() } else { file.parent().unwrap().join(path) };
    if !target.exists() {
        return Some(format!("`{link}` names no file"));
    }
    let anchor = anchor.filter(|_| target.extension().is_some_and(|extension| extension == "md"))?;
    let known = anchors(&fs::read_to_string(&target).unwrap());
    (!known.contains(anchor)).then(|| format!("`{link}` names no heading"))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn every_relative_link_leads_to_a_file() {
    let root = root();
    let mut files: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)).into();
    collect(&root.join("docs"), &mut files);
    files.sort();
    let mut faults = Vec::new();
    for file in &files {
        for link in links(&fs::read_to_string(file).unwrap()) {
            if let Some(fault) = fault(file, &link) {
                faults.push(format!("{}: {fault}", file.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_summary_lists_every_chapter_once() {
    let folder = root().join("docs/guide/src");
    let mut listed = links(&fs::read_to_string(folder.join("SUMMARY.md")).unwrap());
    listed.sort();
    let mut chapters: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md") && name != "SUMMARY.md")
        .collect();
    chapters.sort();
    assert_eq!(listed, chapters);
}

#[test]
fn links_are_found_and_followed() {
    let text = "# A heading: `x`!\n[a](b.md) and [c](d.md#e), `[no](code.md)`\n```\n[no](fenced.md)\n```\n";
    assert_eq!(links(text), ["b.md", "d.md#e"]);
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a-heading-x"]);
    let here = root().join("README.md");
    assert_eq!(fault(&here, "https://example.com/x"), None);
    assert_eq!(fault(&here, "LICENSE-MIT"), None);
    assert_eq!(fault(&here, "LICENSE-NONE"), Some("`LICENSE-NONE` names no file".to_owned()));
    assert_eq!(fault(&here, "#no-such"), Some("`#no-such` names no heading".to_owned()));
}

#[test]
fn code_in_the_guide_is_part_of_an_example() {
    let root = root();
    let examples = ["crates/tidegate/examples", "crates/tidegate-http/examples"];
    let sources: Vec<String> = examples
        .iter()
        .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap())
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let mut blocks = 0;
    let mut files = Vec::new();
    collect(&root.join("docs"), &mut files);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for block in text.split("```rust\n").skip(1) {
            let code = block.split("```").next().unwrap();
            blocks += 1;
            assert!(
                sources.iter().any(|source| source.contains(code)),
                "{}: no example has\n{code}",
                file.display()
            );
        }
    }
    assert!(blocks > 0);
}
