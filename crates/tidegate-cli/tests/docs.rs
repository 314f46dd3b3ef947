//! Runs every command in the README and in `docs/`, and compares what it prints with what is written there.
//!
//! A fenced block marked `console` is a session: a line that begins with `$ ` is a command for `sh`, and the lines below
//! it are all that it prints, on stdout and stderr together. A line `[exit N]` says that it fails with status N; without
//! one it must succeed. A line `...` stands for any lines, and `[..]` within a line for anything.
//!
//! `cargo run --release --` and `tidegate` run the binary under test, in a folder of its own that holds `tests/data`. A
//! command that ends in `&` is a server: it gets a free port in place of 8080, as others do in place of 8081, 6379 and 6380, and it
//! is stopped at the end of its block. Of a `redis-server` nothing is shown but that it is there.
//! What a clock decides is not compared: times in the output of `hammer` and `serve`, and whether `hammer` warns that it
//! sent requests late. A block with a server is tried again when it differs, at most four times, since on a busy machine
//! the counts can differ too.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

const TRIES: usize = 5;

/// How many files are checked at one time.
const WORKERS: usize = 4;

/// How the line begins that `hammer` prints on a busy machine.
const LATE: &str = "warning: the pace was not kept";

#[test]
fn readme_and_docs_say_what_the_commands_print() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = vec![root.join("README.md")];
    collect(&root.join("docs"), &mut files);
    // Most of the time is waiting for hammers that are told to wait: some files at once.
    let next = Mutex::new(files.into_iter());
    let results: Vec<(usize, Vec<String>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let file = next.lock().unwrap().next();
                        let Some(file) = file else { return done };
                        done.push(check_file(&root, &file));
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let commands: usize = results.iter().map(|(commands, _)| commands).sum();
    let faults: Vec<String> = results.into_iter().flat_map(|(_, faults)| faults).collect();
    assert!(faults.is_empty(), "{} of {commands} commands differ:\n\n{}", faults.len(), faults.join("\n\n"));
    assert!(commands > 100, "only {commands} commands found: the blocks are marked ```console");
    println!("{commands} commands in README.md and docs/ print what is written there");
}

/// How many commands a file has, and which of its blocks differ.
fn check_file(root: &Path, file: &Path) -> (usize, Vec<String>) {
    let name = file.strip_prefix(root).unwrap().display();
    let text = fs::read_to_string(file).unwrap();
    let folder = Folder::new(root, file);
    let mut commands = 0;
    let mut faults = Vec::new();
    for block in blocks(&text) {
        commands += block.commands.len();
        if let Err(fault) = block.check(&folder) {
            faults.push(format!("{name}:{}: {fault}", block.line));
        }
    }
    (commands, faults)
}

/// All Markdown files below `folder`, in order.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            collect(&entry, files);
        } else if entry.extension().is_some_and(|extension| extension == "md") {
            files.push(entry);
        }
    }
}

/// A folder to run in: it holds the project's `tests`, a `tidegate` in its `bin`, and what the commands write.
struct Folder(PathBuf);

impl Folder {
    fn new(root: &Path, file: &Path) -> Self {
        let name = file.strip_prefix(root).unwrap().display().to_string().replace(['/', '.'], "-");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("bin")).unwrap();
        std::os::unix::fs::symlink(root.join("tests"), folder.join("tests")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tidegate"), folder.join("bin/tidegate")).unwrap();
        Self(folder)
    }

    fn shell(&self, command: &str) -> Command {
        let path = format!("{}:{}", self.0.join("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&self.0).env("PATH", path).env_remove("NO_COLOR");
        shell.stdin(Stdio::null());
        shell
    }
}

struct Block<'a> {
    line: usize,
    commands: Vec<Step<'a>>,
}

struct Step<'a> {
    command: &'a str,
    expected: Vec<&'a str>,
}

/// The sessions in a Markdown text.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut current: Option<Block<'_>> = None;
    for (index, line) in text.lines().enumerate() {
        match &mut current {
            None if line.trim() == "```console" => {
                current = Some(Block { line: index + 1, commands: Vec::new() });
            }
            None => {}
            Some(_) if line.trim() == "```" => blocks.extend(current.take()),
            Some(block) => match (line.strip_prefix("$ "), block.commands.last_mut()) {
                (Some(command), _) => block.commands.push(Step { command, expected: Vec::new() }),
                (None, Some(step)) => step.expected.push(line),
                (None, None) => panic!("line {}: a console block begins with `$ `", index + 1),
            },
        }
    }
    assert!(current.is_none(), "a console block has no end");
    blocks
}

/// A server, stopped when it goes out of scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Block<'_> {
    fn check(&self, folder: &Folder) -> Result<(), String> {
        let serves = self.commands.iter().any(|step| step.command.ends_with('&'));
        let mut result = self.run(folder);
        for _ in 1..if serves { TRIES } else { 1 } {
            if result.is_ok() {
                break;
            }
            result = self.run(folder);
        }
        result
    }

    fn run(&self, folder: &Folder) -> Result<(), String> {
        let [port, second, redis, resp] = free_ports();
        let mut servers = Vec::new();
        for step in &self.commands {
            let command = with_port(step.command, port);
            let command = command.replace(":8081", &format!(":{second}")).replace("6379", &redis.to_string());
            let command = command.replace("6380", &resp.to_string());
            let printed = match command.strip_suffix('&') {
                Some(command) if command.starts_with("redis-server") => {
                    servers.push(start_redis(folder, command, redis));
                    continue;
                }
                Some(command) => {
                    let (server, printed) = start(folder, command, step.expected.len());
                    servers.push(server);
                    printed
                }
                None => run(folder, &command),
            };
            let printed = printed.replace(&port.to_string(), "8080").replace(&second.to_string(), "8081");
            let printed = printed.replace(&redis.to_string(), "6379").replace(&resp.to_string(), "6380");
            let timed = ["hammer", "serve"].iter().any(|verb| step.command.contains(verb));
            let is_compared = |line: &&str| !(timed && line.starts_with(LATE));
            let got: Vec<String> =
                printed.lines().filter(is_compared).map(|line| comparable(line, timed)).collect();
            let want: Vec<String> = step.expected.iter().map(|line| comparable(line, timed)).collect();
            if !matches(&want, &got) {
                return Err(format!(
                    "$ {}\n--- written\n{}\n--- printed\n{printed}",
                    step.command,
                    step.expected.join("\n")
                ));
            }
        }
        Ok(())
    }
}

/// The command with the binary under test, and with `port` where 8080 is written or meant.
fn with_port(command: &str, port: u16) -> String {
    let command = command
        .replace("cargo run --release --quiet --", "tidegate")
        .replace("cargo run --release --", "tidegate");
    let address = format!("127.0.0.1:{port}");
    let names_it = command.contains("8080");
    let command = command.replace("127.0.0.1:8080", &address).replace("localhost:8080", &address);
    if names_it {
        return command;
    }
    if let Some(server) = command.strip_suffix('&')
        && server.contains("tidegate serve")
        && !server.contains("--listen")
    {
        return format!("{} --listen {address} &", server.trim_end());
    }
    command.replace("tidegate hammer", &format!("tidegate hammer http://{address}"))
}

fn run(folder: &Folder, command: &str) -> String {
    let output = folder.shell(&format!("{{ {command}\n}} 2>&1")).output().unwrap();
    let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        printed.push_str(&format!("[exit {}]\n", output.status.code().unwrap_or(-1)));
    }
    printed
}

/// Ports that nobody has, all different.
fn free_ports() -> [u16; 4] {
    let listeners = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.each_ref().map(|listener| listener.local_addr().unwrap().port())
}

/// Starts a Redis, and waits until it is there.
fn start_redis(folder: &Folder, command: &str, port: u16) -> Server {
    let mut shell = folder.shell(&format!("exec {}", command.trim()));
    let server = Server(shell.stdout(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "`{command}` does not answer");
        std::thread::sleep(Duration::from_millis(2));
    }
    server
}

/// Starts a server and reads its first lines.
fn start(folder: &Folder, command: &str, lines: usize) -> (Server, String) {
    let command = format!("exec {} 2>&1", command.trim());
    let mut child = folder.shell(&command).stdout(Stdio::piped()).spawn().unwrap();
    let reader = BufReader::new(child.stdout.take().unwrap());
    let (sender, said) = mpsc::channel();
    std::thread::spawn(move || reader.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut printed = String::new();
    for _ in 0..lines.max(1) {
        // One that says less than is written is seen by what it said.
        let Ok(line) = said.recv_timeout(Duration::from_secs(20)) else { break };
        printed.push_str(&line);
        printed.push('\n');
    }
    (Server(child), printed)
}

/// A line as it is compared: without spaces at its end, and with `#` for what a clock decided.
fn comparable(line: &str, timed: bool) -> String {
    let line = line.trim_end();
    if !timed {
        return line.to_owned();
    }
    let mut comparable = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
        let (digits, after) = number.split_at(end);
        let unit = [" ms", " us", " s", "ms", "us", "s"].into_iter().find(|unit| {
            after.strip_prefix(unit).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        });
        let is_bound = before.ends_with("at most ");
        comparable.push_str(before);
        match unit {
            Some(unit) if !before.ends_with('/') => {
                comparable.push('#');
                rest = &after[unit.len()..];
            }
            _ => {
                comparable.push_str(if is_bound { "#" } else { digits });
                rest = after;
            }
        }
    }
    comparable.push_str(rest);
    comparable
}

/// Whether `got` is what `want` says, with `...` for any lines and `[..]` for anything in a line.
fn matches(want: &[String], got: &[String]) -> bool {
    match want.split_first() {
        None => got.is_empty(),
        Some((line, rest)) if line == "..." => (0..=got.len()).any(|skip| matches(rest, &got[skip..])),
        Some((line, rest)) => {
            got.split_first().is_some_and(|(first, got)| line_matches(line, first) && matches(rest, got))
        }
    }
}

fn line_matches(want: &str, got: &str) -> bool {
    match want.split_once("[..]") {
        None => want == got,
        Some((before, after)) => got.strip_prefix(before).is_some_and(|got| {
            got.char_indices()
                .map(|(index, _)| index)
                .chain([got.len()])
                .any(|index| line_matches(after, &got[index..]))
        }),
    }
}

#[test]
fn what_differs_is_seen() {
    let same = |want: &[&str], got: &[&str], timed| {
        let lines =
            |lines: &[&str]| -> Vec<String> { lines.iter().map(|line| comparable(line, timed)).collect() };
        matches(&lines(want), &lines(got))
    };
    assert!(same(&["a", "...", "c"], &["a", "b", "b", "c"], false));
    assert!(!same(&["a", "...", "c"], &["a", "b"], false));
    assert!(same(&["a [..] c"], &["a b b c"], false));
    assert!(!same(&["200  x7"], &["200  x8"], true));
    assert!(same(&["40 requests in 0.59s"], &["40 requests in 0.61s"], true));
    assert!(!same(&["40 requests in 0.59s"], &["41 requests in 0.61s"], true));
    assert!(!same(&["40 requests in 0.59s"], &["40 requests in 0.61s"], false));
    assert!(same(
        &["7 allowed, at most 7.9 = 5 + 5/s x 0.59s"],
        &["7 allowed, at most 7.8 = 5 + 5/s x 0.58s"],
        true
    ));
    assert!(!same(
        &["7 allowed, at most 7.9 = 5 + 5/s x 0.59s"],
        &["7 allowed, at most 7.8 = 5 + 6/s x 0.58s"],
        true
    ));
}
