//! What `tidegate mcp` adds to a tool call, over standard input and output and over HTTP, and what it needs for calls that
//! wait.
//!
//! A trivial tool is called, one call after the other, directly and through the proxy in turns of a few hundred, so that what
//! else the machine does meets both alike. The limits allow all calls.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse as _;
use clap::Parser;
use serde_json::{Value, json};

/// What `tidegate mcp` adds to a tool call
#[derive(Debug, Parser)]
#[command(name = "mcp", version)]
struct Cli {
    /// How often direct and proxied calls take turns; the median of the turns counts
    #[arg(long, default_value = "41")]
    rounds: usize,
    /// Calls in a turn
    #[arg(long, default_value = "500")]
    calls: usize,
    /// Calls that wait when the memory is read
    #[arg(long, default_value = "10000")]
    waiting: usize,
    /// Only serve a trivial tool over HTTP; the benchmark runs it
    #[arg(long, hide = true)]
    serve: bool,
}

/// Limits that every call meets and that hold up none.
const ALLOWS: [&str; 6] = ["--limit", "1000000/s", "--burst", "1000000", "--max-in-flight", "1000"];

/// One call runs, and the others wait for it.
const HOLDS: [&str; 6] = ["--max-in-flight", "1", "--queue", "1000000", "--max-wait", "1h"];

fn main() -> Result<()> {
    let cli = Cli::parse();
    if cli.serve {
        return tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve());
    }
    let server = program("examples/mcp_tools")?;
    let tidegate = program("tidegate")?;

    println!(
        "{:<28}{:>9}  {:<17}{:>9}  {:<17}",
        "a call, in us", "p50", "(least - most)", "p99", "(least - most)"
    );
    let proxied = |limits: &[&str]| {
        let mut command = Command::new(&tidegate);
        command.arg("mcp").args(limits).arg("--").arg(&server);
        Pipe::start(command)
    };
    compare(
        &cli,
        "standard input and output",
        vec![
            ("direct", Box::new(Pipe::start(Command::new(&server))?)),
            ("cat between", Box::new(Pipe::start(piped_through_cat(&server))?)),
            ("proxied, no limit", Box::new(proxied(&[])?)),
            ("proxied, limits", Box::new(proxied(&ALLOWS)?)),
        ],
    )?;
    let upstream = Listening::start(Command::new(std::env::current_exe()?).arg("--serve"))?;
    let before = |limits: &[&str]| {
        let url = format!("http://{}/mcp", upstream.address);
        Listening::start(
            Command::new(&tidegate).args(["mcp", "--listen", "127.0.0.1:0", "--upstream", &url]).args(limits),
        )
    };
    let (open, limited) = (before(&[])?, before(&ALLOWS)?);
    compare(
        &cli,
        "HTTP",
        vec![
            ("direct", Box::new(Connection::open(upstream.address)?)),
            ("proxied, no limit", Box::new(Connection::open(open.address)?)),
            ("proxied, limits", Box::new(Connection::open(limited.address)?)),
        ],
    )?;

    println!("\nmemory of the proxy, in MB (most so far, as the system counts)");
    let mut pipe = proxied(&HOLDS)?;
    let ping = json!({"jsonrpc": "2.0", "id": 0, "method": "ping"});
    // It runs and is never answered.
    writeln!(pipe.to_server, "{}\n{ping}", call("silent", 0))?;
    pipe.answer()?;
    let empty = memory(pipe.process.0.id())?;
    for id in 1..=cli.waiting {
        writeln!(pipe.to_server, "{}", call("echo", id))?;
    }
    // What is answered at once has come behind them.
    writeln!(pipe.to_server, "{ping}")?;
    pipe.answer()?;
    let full = memory(pipe.process.0.id())?;
    println!("stdio: {empty:.1} with none, {full:.1} with {} calls that wait", cli.waiting);

    let holds = before(&HOLDS)?;
    let mut runs = Connection::open(holds.address)?;
    runs.send(&call("silent", 0))?;
    Connection::open(holds.address)?.ask_often(&ping)?;
    let empty = memory(holds.process.0.id())?;
    // As many connections as the proxy takes, less those for others.
    let waiting = cli.waiting.min(9_990);
    let mut clients = Vec::with_capacity(waiting);
    for id in 0..waiting {
        let mut client = Connection::open(holds.address)?;
        client.send(&call("echo", id + 1))?;
        clients.push(client);
    }
    Connection::open(holds.address)?.ask_often(&ping)?;
    let full = memory(holds.process.0.id())?;
    println!("HTTP: {empty:.1} with none, {full:.1} with {waiting} calls that wait, each with a connection");
    Ok(())
}

/// A program that is built beside this one.
fn program(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    if !program.exists() {
        bail!(
            "{} is not there; run `cargo build --release -p tidegate-cli --bins --examples` first",
            program.display()
        );
    }
    Ok(program)
}

/// The least that stands between: the server's input and output each go through a program that only copies.
fn piped_through_cat(server: &std::path::Path) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg("cat | \"$0\" | cat").arg(server);
    command
}

fn call(tool: &str, id: usize) -> Value {
    json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": tool, "arguments": {"message": "high water 06:12"}},
    })
}

/// Calls a trivial tool and takes its answer.
trait Caller {
    fn call(&mut self) -> Result<()>;
}

/// Median, least and most.
fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let range = format!("({:.1} - {:.1})", values[0], values[values.len() - 1]);
    format!("{:>9.1}  {range:<17}", values[values.len() / 2])
}

/// What the turns of one caller took, in microseconds.
#[derive(Clone, Default)]
struct Turns {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Turns {
    /// What each took more than that of the same round, so that both had the same machine.
    fn more_than(&self, other: &Self) -> Self {
        let more = |own: &[f64], other: &[f64]| {
            own.iter().zip(other).map(|(with, without)| with - without).collect()
        };
        Self { p50: more(&self.p50, &other.p50), p99: more(&self.p99, &other.p99) }
    }

    fn print(mut self, name: &str) {
        println!("  {name:<26}{}{}", spread(&mut self.p50), spread(&mut self.p99));
    }
}

/// Lets the callers take turns, and prints the medians of their turns.
fn compare(cli: &Cli, title: &str, mut callers: Vec<(&str, Box<dyn Caller>)>) -> Result<()> {
    let mut turns = vec![Turns::default(); callers.len()];
    for round in 0..=cli.rounds {
        for ((_, caller), turns) in callers.iter_mut().zip(&mut turns) {
            let mut times = Vec::with_capacity(cli.calls);
            for _ in 0..cli.calls {
                let start = Instant::now();
                caller.call()?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            times.sort_by(f64::total_cmp);
            // The first round touches pages and opens connections.
            if round > 0 {
                turns.p50.push(times[times.len() / 2]);
                turns.p99.push(times[times.len() * 99 / 100]);
            }
        }
    }
    println!("{title}");
    for (index, (name, _)) in callers.iter().enumerate() {
        turns[index].clone().print(name);
        if index > 0 {
            turns[index].more_than(&turns[0]).print("  more than direct");
        }
    }
    Ok(())
}

/// The most memory that a process has had, in MB of 1,000,000 bytes.
fn memory(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0 / 1e6)
}

/// A process, ended when it goes out of scope.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server at the other end of two pipes.
struct Pipe {
    process: Process,
    to_server: ChildStdin,
    from_server: BufReader<ChildStdout>,
    line: String,
    message: String,
}

impl Pipe {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let to_server = child.stdin.take().context("no stdin")?;
        let from_server = BufReader::new(child.stdout.take().context("no stdout")?);
        let message = format!("{}\n", call("echo", 7));
        Ok(Self { process: Process(child), to_server, from_server, line: String::new(), message })
    }

    fn answer(&mut self) -> Result<()> {
        self.line.clear();
        ensure!(self.from_server.read_line(&mut self.line)? > 0, "the server has ended");
        Ok(())
    }
}

impl Caller for Pipe {
    fn call(&mut self) -> Result<()> {
        self.to_server.write_all(self.message.as_bytes())?;
        self.answer()?;
        ensure!(self.line.contains("high water 06:12"), "{}", self.line);
        Ok(())
    }
}

/// A server that says where it listens.
struct Listening {
    process: Process,
    address: SocketAddr,
}

impl Listening {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stderr.take().context("no stderr")?).read_line(&mut line)?;
        let address = line.split("http://").nth(1).with_context(|| format!("it says {line:?}"))?;
        let address = address.split_whitespace().next().unwrap_or_default().parse()?;
        Ok(Self { process: Process(child), address })
    }
}

/// A connection over which one request goes after the other.
struct Connection {
    reader: BufReader<TcpStream>,
    message: Vec<u8>,
    body: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let message = Self::request(&call("echo", 7));
        Ok(Self { reader: BufReader::with_capacity(1024, stream), message, body: Vec::new() })
    }

    fn request(message: &Value) -> Vec<u8> {
        let body = message.to_string();
        let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\nmcp-session-id: one\r\nmcp-protocol-version: 2025-11-25\r\n";
        format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        Ok(self.reader.get_mut().write_all(&Self::request(message))?)
    }

    /// Asks until what was sent before has surely been taken.
    fn ask_often(&mut self, message: &Value) -> Result<()> {
        for _ in 0..200 {
            self.send(message)?;
            self.answer()?;
        }
        Ok(())
    }

    /// Reads an answer that has a length.
    fn answer(&mut self) -> Result<()> {
        let mut length = None;
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.reader.read_line(&mut line)? > 0, "the server has closed the connection");
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = Some(value.trim().parse()?);
            }
        }
        self.body.resize(length.context("an answer without a length")?, 0);
        Ok(self.reader.read_exact(&mut self.body)?)
    }
}

impl Caller for Connection {
    fn call(&mut self) -> Result<()> {
        self.reader.get_mut().write_all(&self.message)?;
        self.answer()?;
        let body = String::from_utf8_lossy(&self.body);
        ensure!(body.contains("high water 06:12"), "{body}");
        Ok(())
    }
}

/// An MCP server whose tool says what it is told.
async fn serve() -> Result<()> {
    let router = Router::new().fallback(async |body: Bytes| {
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        if message["params"]["name"] == "silent" {
            std::future::pending::<()>().await;
        }
        let text = &message["params"]["arguments"]["message"];
        let result = json!({"content": [{"type": "text", "text": text}]});
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}
