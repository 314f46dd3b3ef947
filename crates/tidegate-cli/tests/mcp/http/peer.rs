//! `tidegate mcp --listen` as a process, a server for it, and a client that speaks plain HTTP.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Frame;
use serde_json::{Value, json};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server was asked: method, `Host`, and the name of the tool or the method of the message.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<(Mutex<Vec<Request>>, Condvar)>);

type Request = (String, String, String);

impl Seen {
    fn add(&self, request: Request) {
        self.0.0.lock().unwrap().push(request);
        self.0.1.notify_all();
    }

    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.0.lock().unwrap()
    }

    /// Until there were `count` requests of a tool.
    pub(super) fn wait_for(&self, tool: &str, count: usize) {
        let lacks = |seen: &mut Vec<Request>| seen.iter().filter(|request| request.2 == tool).count() < count;
        let (seen, late) = self.0.1.wait_timeout_while(self.all(), PATIENCE, lacks).unwrap();
        assert!(!late.timed_out(), "{seen:?}");
    }
}

/// An MCP server with some tools, on a free port, until the test ends.
pub(super) fn server() -> (SocketAddr, Seen) {
    let seen = Seen::default();
    let (told, address) = std::sync::mpsc::channel();
    let heard = seen.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            let router =
                Router::new().fallback(async move |method: Method, headers: HeaderMap, body: Bytes| {
                    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let name =
                        message["params"]["name"].as_str().or(message["method"].as_str()).unwrap_or_default();
                    let host = headers["host"].to_str().unwrap();
                    heard.add((method.to_string(), host.to_owned(), name.to_owned()));
                    answer(&method, &message, name).await
                });
            axum::serve(listener, router).await.unwrap();
        });
    });
    (address.recv().unwrap(), seen)
}

async fn answer(method: &Method, message: &Value, name: &str) -> Response {
    let result = |text: &str, is_error: bool| json!({"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": text}], "isError": is_error}});
    if method == Method::GET {
        return events(&[json!({"jsonrpc": "2.0", "method": "notifications/message"})], Then::Open);
    }
    match name {
        "slow" => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            json_of(&result("slow", false))
        }
        "silent" => std::future::pending().await,
        // The answer, after which the stream stays open.
        "stream" => events(
            &[json!({"jsonrpc": "2.0", "method": "notifications/progress"}), result("stream", false)],
            Then::Open,
        ),
        "cut" => events(&[json!({"jsonrpc": "2.0", "method": "notifications/cut"})], Then::Broken),
        "busy" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "2")], "slow down").into_response(),
        "busy_stream" => events(&[result("429. Retry-After: 2", true)], Then::Ended),
        "broken" => StatusCode::BAD_GATEWAY.into_response(),
        _ if message.get("id").is_none() => StatusCode::ACCEPTED.into_response(),
        _ => json_of(&result(name, false)),
    }
}

fn json_of(message: &Value) -> Response {
    ([("content-type", "application/json")], message.to_string()).into_response()
}

/// What becomes of a stream after its events.
enum Then {
    Open,
    Ended,
    Broken,
    Breaks,
}

fn events(messages: &[Value], then: Then) -> Response {
    let pieces =
        messages.iter().map(|message| format!("event: message\ndata: {message}\n\n").into()).collect();
    ([("content-type", "text/event-stream")], Body::new(Events { pieces, then })).into_response()
}

struct Events {
    pieces: VecDeque<Bytes>,
    then: Then,
}

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match (self.pieces.pop_front(), &self.then) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            (None, Then::Open) => Poll::Pending,
            (None, Then::Ended) => Poll::Ready(None),
            (None, Then::Broken) => {
                // Once what came before has gone out.
                self.then = Then::Breaks;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            (None, Then::Breaks) => Poll::Ready(Some(Err(io::Error::other("broken off")))),
        }
    }
}

pub(super) struct Proxy {
    child: Child,
    pub(super) address: SocketAddr,
    stderr: Option<JoinHandle<String>>,
}

impl Proxy {
    /// In front of `upstream`, on a free port.
    pub(super) fn start(upstream: SocketAddr, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let url = format!("http://{upstream}/mcp");
        let command = command.args(["mcp", "--listen", "127.0.0.1:0", "--upstream", &url]).args(flags);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address =
            line.split("http://").nth(1).unwrap_or_else(|| panic!("{line}")).split(' ').next().unwrap();
        let address = address.parse().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, address, stderr: Some(stderr) }
    }

    /// Ends it; its exit code and what it said.
    pub(super) fn end(mut self) -> (i32, String) {
        self.signal("TERM");
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        (code, self.stderr.take().unwrap().join().unwrap())
    }

    pub(super) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Sends a request and leaves its answer to the caller.
    pub(super) fn open(&self, method: &str, headers: &str, message: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if message.is_null() { String::new() } else { message.to_string() };
        let head = format!(
            "{method} /mcp HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n{headers}content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }

    /// Sends a message and takes the whole answer: status, head and body.
    pub(super) fn post(&self, headers: &str, message: &Value) -> (u16, String, String) {
        let mut text = Vec::new();
        self.open("POST", headers, message).read_to_end(&mut text).unwrap();
        parts(&text)
    }

    /// The result of a call that is answered with JSON.
    pub(super) fn call(&self, id: i64, tool: &str) -> Value {
        let (status, _, body) = self.post("", &crate::client::call(id, tool));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status, head and body of an answer that was read to its end.
fn parts(text: &[u8]) -> (u16, String, String) {
    let text = String::from_utf8(text.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        dechunked(body)
    } else {
        body.to_owned()
    };
    (status, head.to_ascii_lowercase(), body)
}

fn dechunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}
