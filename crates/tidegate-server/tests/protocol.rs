//! Clients over TCP, byte for byte.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::future::Future;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::shared::{Deciding, Made, OnFailure, SharedAnswer, SharedBuckets, SharedCall, Told, Unsuited};
use tidegate::{Algorithm, Step as _};
use tidegate_http::layer::{Key, RateLimitBuilder};
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tidegate_server::resp::codec::request::{REQUEST_MAX, write};
use tidegate_server::resp::throttle::KEY_MAX;
use tidegate_server::resp::{Bounds, Checks, Connections, Resp, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// How long anything may take here; it is only waited for when something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a port of its own.
struct Server {
    resp: Resp,
    address: std::net::SocketAddr,
    clock: ManualClock,
    stop: oneshot::Sender<()>,
    listening: JoinHandle<Connections>,
}

impl Server {
    async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        let clock = ManualClock::new();
        let mut settings = Settings { keys: 1000, clock: (&clock).into(), ..Settings::default() };
        change(&mut settings);
        let resp = Resp::new(settings);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let listening = tokio::spawn({
            let resp = resp.clone();
            async move { resp.serve(listener, async { _ = stopped.await }).await }
        });
        Self { resp, address, clock, stop, listening }
    }

    async fn client(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        within(self.listening).await.unwrap().shutdown().await;
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The next bytes that come are these.
    async fn expect(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        within(self.0.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    async fn ask(&mut self, line: &str, expected: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        self.send(&requests(&[&words])).await;
        self.expect(expected).await;
    }

    /// The rest, until the server closes.
    async fn rest(mut self) -> io::Result<String> {
        let mut text = Vec::new();
        within(self.0.read_to_end(&mut text)).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn requests(requests: &[&[&str]]) -> Vec<u8> {
    let mut out = Vec::new();
    requests.iter().for_each(|args| write(args, &mut out));
    out
}

/// What `HELLO` tells the first client of a server.
fn greeting(protocol: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let texts = ["server", "tidegate", "version", version, "mode", "standalone", "role", "master"];
    let texts = texts.map(|text| format!("${}\r\n{text}\r\n", text.len())).concat();
    format!("{texts}$5\r\nproto\r\n:{protocol}\r\n$2\r\nid\r\n:1\r\n$7\r\nmodules\r\n*0\r\n")
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

#[tokio::test]
async fn a_call_is_answered_by_five_integers_in_both_versions_and_any_case() {
    let server = Server::start(|_| ()).await;
    let mut client = server.client().await;
    client.ask("CL.THROTTLE user123 15 30 60", "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n").await;
    client.ask("HELLO 3", "%7\r\n$6\r\nserver\r\n$8\r\ntidegate\r\n").await;
    let mut client = server.client().await;
    client.send(b"*3\r\n$5\r\nhello\r\n$1\r\n3\r\n$1\r\nx\r\n").await;
    client.expect("-ERR syntax error in 'hello'\r\n").await;
    client.ask("cl.Throttle user123 15 30 60 2", "*5\r\n:0\r\n:16\r\n:13\r\n:-1\r\n:6\r\n").await;
    server.clock.advance(Duration::from_secs(2));
    client.send(b"cl.throttle user123 15 30 60 20\r\n").await;
    client.expect("*5\r\n:1\r\n:16\r\n:14\r\n:-1\r\n:4\r\n").await;
    // A key is bytes.
    client.send(b"*5\r\n$11\r\nCL.THROTTLE\r\n$4\r\n\0\r\n\xff\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n9\r\n").await;
    client.expect("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:9\r\n").await;
    let counts = server.resp.counts();
    assert_eq!((counts.allowed, counts.rejected, counts.errors, counts.commands), (3, 1, 1, 6));
}

#[tokio::test]
async fn what_clients_say_when_they_connect_is_answered() {
    let server = Server::start(|_| ()).await;
    let mut client = server.client().await;
    client.ask("PING", "+PONG\r\n").await;
    client.ask("PING hi", "$2\r\nhi\r\n").await;
    client.ask("ECHO hi", "$2\r\nhi\r\n").await;
    client.ask("SELECT 0", "+OK\r\n").await;
    client.ask("SELECT 1", "-ERR DB index is out of range; there is 0 only\r\n").await;
    client.ask("CLIENT SETINFO LIB-NAME some-lib(with_more)", "+OK\r\n").await;
    client.ask("CLIENT GETNAME", "$-1\r\n").await;
    client.ask("CLIENT SETNAME ann", "+OK\r\n").await;
    client.ask("client getname", "$3\r\nann\r\n").await;
    client.ask("CLIENT ID", ":1\r\n").await;
    client.ask("COMMAND", "*0\r\n").await;
    client.ask("COMMAND DOCS", "*0\r\n").await;
    client.ask("COMMAND INFO get set", "*2\r\n$-1\r\n$-1\r\n").await;
    client.ask("COMMAND COUNT", ":12\r\n").await;
    client.ask("TG.CHECK a b", "-ERR this server has no limits of its own; use CL.THROTTLE\r\n").await;
    client.ask("HELLO", &format!("*14\r\n{}", greeting(2))).await;
    client.ask("HELLO 3 SETNAME bob", &format!("%7\r\n{}", greeting(3))).await;
    client.ask("CLIENT GETNAME", "$3\r\nbob\r\n").await;
    client.ask("COMMAND DOCS", "%0\r\n").await;
    client.ask("HELLO 4", "-NOPROTO unsupported protocol version\r\n").await;
    client.ask("RESET", "+RESET\r\n").await;
    client.ask("CLIENT GETNAME", "$-1\r\n").await;
    client.ask("INFO server", "$").await;
    client.send(&requests(&[&["QUIT"], &["PING"]])).await;
    let rest = client.rest().await.unwrap();
    assert!(rest.contains("loading:0\r\n") && rest.contains("redis_version:"), "{rest}");
    assert!(rest.ends_with("+OK\r\n"), "{rest}");
}

#[tokio::test]
async fn wrong_requests_are_told_so_and_the_connection_goes_on() {
    let server = Server::start(|_| ()).await;
    let mut client = server.client().await;
    let usage = "-ERR wrong number of arguments for 'cl.throttle' command; \
                 write CL.THROTTLE key max_burst count period [quantity]\r\n";
    client.ask("CL.THROTTLE", usage).await;
    client.ask("CL.THROTTLE k 1 2", usage).await;
    client.ask("CL.THROTTLE k 1 2 3 4 5", usage).await;
    for (args, what) in [("x 1 1", "max_burst"), ("1 1.5 1", "count per period"), ("1 1 +1", "period")] {
        client
            .ask(&format!("CL.THROTTLE k {args}"), &format!("-ERR {what} is not an integer of 64 bits\r\n"))
            .await;
    }
    let too_long = "-ERR quantity is not an integer of 64 bits\r\n";
    for quantity in ["9223372036854775808", "-9223372036854775809", "-", "", "0x1", "1 "] {
        client.send(&requests(&[&["CL.THROTTLE", "k", "1", "1", "1", quantity]])).await;
        client.expect(too_long).await;
    }
    client.ask("CL.THROTTLE k 1 0 1", "-ERR count per period is below 1; write at least 1").await;
    client.expect(", and a longer period for a lower rate\r\n").await;
    client
        .ask(
            "CL.THROTTLE k 1 1 1 -9223372036854775808",
            "-ERR quantity is below 0; tokens are not given back\r\n",
        )
        .await;
    let key = "k".repeat(KEY_MAX + 1);
    client.send(&requests(&[&["CL.THROTTLE", &key, "1", "1", "1"]])).await;
    client.expect("-ERR the key is longer than 4096 bytes\r\n").await;
    client.send(&requests(&[&["a\r\n+OK\r\n\u{fc}", "b"]])).await;
    client.expect("-ERR unknown command 'a??+OK????'\r\n").await;
    client.ask("CLIENT KILL", "-ERR unknown subcommand 'KILL' of 'client'\r\n").await;
    client.ask("AUTH secret", "-ERR AUTH without a password being set; this server asks for none\r\n").await;
    client
        .ask(
            "CLIENT SETNAME \u{7}",
            "-ERR a client name has at most 128 printable characters and no spaces\r\n",
        )
        .await;
    client.ask("CL.THROTTLE k 1 1 1 0", "*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n").await;
}

#[tokio::test]
async fn what_is_no_request_ends_the_connection_after_the_answers_before_it() {
    let server = Server::start(|_| ()).await;
    for (bytes, error) in [
        (&b"*1\r\n+PING\r\n"[..], "Protocol error: expected '$'"),
        (b"*99999\r\n", "Protocol error: more than 32 arguments"),
        (b"*1\r\n$9000\r\n", "Protocol error: a request of more than 8192 bytes"),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\nPING\r\n", "Protocol error: this is HTTP, and not RESP"),
    ] {
        let mut client = server.client().await;
        client.send(b"PING\r\n").await;
        client.send(bytes).await;
        assert_eq!(client.rest().await.unwrap(), format!("+PONG\r\n-ERR {error}\r\n"));
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_however_they_come() {
    let server = Server::start(|_| ()).await;
    let mut input = Vec::new();
    let mut expected = String::new();
    for number in 0..20 {
        let text = number.to_string();
        write(&["ECHO", &text], &mut input);
        expected.push_str(&format!("${}\r\n{number}\r\n", text.len()));
        write(&["CL.THROTTLE", "k", "9", "1", "100", "0"], &mut input);
        expected.push_str("*5\r\n:0\r\n:10\r\n:10\r\n:-1\r\n:0\r\n");
    }
    let mut client = server.client().await;
    client.0.set_nodelay(true).unwrap();
    client.send(&input).await;
    client.expect(&expected).await;
    for piece in input.chunks(7) {
        client.send(piece).await;
        tokio::task::yield_now().await;
    }
    client.expect(&expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_not_read_either_and_loses_nothing() {
    const COUNT: usize = 20_000;
    let server = Server::start(|_| ()).await;
    let client = server.client().await;
    let (mut reader, mut writer) = client.0.into_split();
    let message = "m".repeat(REQUEST_MAX - 100);
    let mut input = Vec::new();
    write(&["ECHO", &message], &mut input);
    // More than all buffers of the system hold: the server has to stop.
    let sent = tokio::spawn(async move {
        for _ in 0..COUNT {
            writer.write_all(&input).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    });
    let mut commands = 0;
    within(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = server.resp.counts().commands;
            if now == commands && now > 0 {
                break;
            }
            commands = now;
        }
    })
    .await;
    assert!(!sent.is_finished(), "the server takes what it cannot answer");
    assert!(commands < COUNT as u64);
    let mut bytes = Vec::new();
    within(reader.read_to_end(&mut bytes)).await.unwrap();
    sent.await.unwrap();
    let answer = format!("${}\r\n{message}\r\n", message.len()).into_bytes();
    assert_eq!(bytes.len(), COUNT * answer.len());
    assert!(bytes.chunks(answer.len()).all(|chunk| chunk == answer));
}

#[tokio::test]
async fn a_password_is_asked_for_before_anything_else() {
    let server = Server::start(|settings| settings.password = Some(b"high water".as_slice().into())).await;
    let mut client = server.client().await;
    let refused = "-NOAUTH Authentication required.\r\n";
    for line in ["PING", "CL.THROTTLE k 1 1 1", "HELLO 3", "INFO", "COMMAND", "NONSENSE", "CL.THROTTLE"] {
        client.ask(line, refused).await;
    }
    let wrong = "-WRONGPASS invalid username-password pair\r\n";
    client.ask("AUTH low", wrong).await;
    client.send(&requests(&[&["AUTH", "ann", "high water"], &["AUTH", "high wateR"], &["AUTH", ""]])).await;
    client.expect(&wrong.repeat(3)).await;
    client.send(&requests(&[&["HELLO", "3", "AUTH", "default", "low"]])).await;
    client.expect(wrong).await;
    client.ask("PING", refused).await;
    client.send(&requests(&[&["AUTH", "high water"]])).await;
    client.expect("+OK\r\n").await;
    client.ask("CL.THROTTLE k 0 1 1", "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:1\r\n").await;
    client.ask("RESET", "+RESET\r\n").await;
    client.ask("PING", refused).await;

    let mut client = server.client().await;
    client.send(&requests(&[&["HELLO", "3", "AUTH", "default", "high water", "SETNAME", "ann"]])).await;
    client.expect("%7\r\n").await;
    let counts = server.resp.counts();
    assert_eq!((counts.allowed, counts.rejected), (1, 0), "who was refused decided nothing");
}

#[tokio::test]
async fn more_connections_than_the_bound_are_told_so_and_a_place_comes_free() {
    let server = Server::start(|settings| settings.bounds.connections = 2).await;
    let (mut one, mut two) = (server.client().await, server.client().await);
    one.ask("PING", "+PONG\r\n").await;
    two.ask("PING", "+PONG\r\n").await;
    let three = server.client().await;
    assert_eq!(three.rest().await.unwrap(), "-ERR max number of clients reached\r\n");
    assert_eq!(server.resp.counts().connections_refused, 1);
    drop(one);
    within(async {
        while server.resp.counts().connections_open > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Its place is given back right after it is counted.
    within(async {
        loop {
            let mut again = server.client().await;
            let _ = again.0.write_all(b"PING\r\n").await;
            let mut answer = [0; 7];
            if again.0.read_exact(&mut answer).await.is_ok() && &answer == b"+PONG\r\n" {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn clients_that_are_waited_for_in_vain_are_closed() {
    let bounds = |idle| Bounds {
        slow: Duration::from_millis(100),
        idle: NonZeroU32::new(idle).unwrap(),
        ..Bounds::default()
    };
    let server = Server::start(|settings| settings.bounds = bounds(1_000_000)).await;
    let mut client = server.client().await;
    client.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n").await;
    assert_eq!(client.rest().await.unwrap(), "+PONG\r\n", "half a request");

    let server = Server::start(|settings| settings.bounds = bounds(3)).await;
    assert_eq!(server.client().await.rest().await.unwrap(), "", "nothing at all");

    let server = Server::start(|settings| {
        settings.bounds = bounds(1_000_000);
        settings.password = Some(b"p".as_slice().into());
    })
    .await;
    let mut client = server.client().await;
    // Whoever is not trusted does not gain time by talking.
    let mut text = [0; 64];
    within(async {
        while client.0.write_all(b"PING\r\n").await.is_ok() {
            match client.0.read(&mut text).await {
                Ok(0) | Err(_) => break,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_answers_what_came_and_closes() {
    let server = Server::start(|_| ()).await;
    let mut idle = server.client().await;
    idle.ask("PING", "+PONG\r\n").await;
    let mut asking = server.client().await;
    asking.ask("PING", "+PONG\r\n").await;
    let address = server.address;
    // All of it is with the system when the server is told; the last request has no end.
    let input = "PING\r\n".repeat(5000);
    asking.send(input.as_bytes()).await;
    asking.send(b"*2\r\n$4\r\n").await;
    let stopped = tokio::spawn(server.stop());
    let rest = asking.rest().await.unwrap();
    assert!(rest == "+PONG\r\n".repeat(5000), "{} bytes", rest.len());
    assert_eq!(idle.rest().await.unwrap(), "");
    within(stopped).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

/// Buckets on a store that answers when it may.
#[derive(Debug)]
struct Slow(Arc<Semaphore>);

impl SharedBuckets for Slow {
    fn accepts(&self, _: &str, _: &Algorithm) -> Result<(), Unsuited> {
        Ok(())
    }

    fn spans_keys(&self) -> bool {
        true
    }

    fn decide(&self, call: SharedCall) -> Deciding {
        let may = Arc::clone(&self.0);
        Box::pin(async move {
            may.acquire().await.unwrap().forget();
            let full = call.takes[0].algorithm.fresh();
            let decision = call.takes[0].algorithm.look(&full, 0, call.takes[0].cost);
            Ok(SharedAnswer { each: vec![Some(Told { decision, left: Some(decision) })], made: Made::Exact })
        })
    }
}

/// A limit of three for each account, another without a key.
fn checks(builder: RateLimitBuilder) -> Checks {
    let account = RequestLimit::new("per-account", "1 per 10s burst 3").key(KeyBy::header("x-account"));
    let all = RequestLimit::new("all", "1/h burst 100").key(KeyBy::everyone());
    let limits = builder.limit(account).limit(all).build().unwrap();
    let key_of = |limit: &str, parts: &[String]| match (limit, parts) {
        ("per-account", [key]) => Ok(Key::from(key.clone())),
        ("per-account", _) => Err("the limit `per-account` has a key".to_owned()),
        _ => Ok(Key::everyone()),
    };
    Checks { limits, key_of: Arc::new(key_of) }
}

#[tokio::test]
async fn a_call_in_a_limit_of_the_server_is_answered_as_any_other() {
    let clock = ManualClock::new();
    let limits = checks(RateLimit::builder().clock(clock.clone()));
    let server = Server::start(|settings| settings.checks = Some(limits)).await;
    let mut client = server.client().await;
    client.ask("TG.CHECK per-account ann", "*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:10\r\n").await;
    client.ask("tg.check per-account ann 2", "*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n:30\r\n").await;
    clock.advance(Duration::from_millis(100));
    client.ask("TG.CHECK per-account ann", "*5\r\n:1\r\n:3\r\n:0\r\n:10\r\n:30\r\n").await;
    client.ask("TG.CHECK per-account ann 0", "*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n:30\r\n").await;
    client.ask("TG.CHECK per-account bob 4", "*5\r\n:1\r\n:3\r\n:3\r\n:-1\r\n:0\r\n").await;
    client.send(&requests(&[&["TG.CHECK", "all", "", "40"]])).await;
    client.expect("*5\r\n:0\r\n:100\r\n:60\r\n:-1\r\n:144000\r\n").await;
    client.ask("TG.CHECK none a", "-ERR there is no limit `none`; there are `per-account`, `all`\r\n").await;
    client.send(&requests(&[&["TG.CHECK", "per-account", ""]])).await;
    client.expect("-ERR the limit `per-account` has a key\r\n").await;
    client.ask("TG.CHECK per-account a -1", "-ERR cost is below 0\r\n").await;
    client
        .ask(
            "TG.CHECK per-account",
            "-ERR wrong number of arguments for 'tg.check' command; write TG.CHECK limit key [cost]\r\n",
        )
        .await;
    client.send(b"*3\r\n$8\r\nTG.CHECK\r\n$11\r\nper-account\r\n$1\r\n\xff\r\n").await;
    client.expect("-ERR the key is no UTF-8\r\n").await;
    let counts = server.resp.counts();
    assert_eq!((counts.allowed, counts.rejected, counts.errors), (4, 2, 5));
}

#[tokio::test]
async fn what_waits_for_a_store_holds_up_its_own_connection_only_and_the_order_stays() {
    let may = Arc::new(Semaphore::new(0));
    let limits = checks(RateLimit::builder().shared(Arc::new(Slow(Arc::clone(&may))), OnFailure::Closed));
    let server = Server::start(|settings| settings.checks = Some(limits)).await;
    let (mut client, mut other) = (server.client().await, server.client().await);
    let check: &[&str] = &["TG.CHECK", "per-account", "ann"];
    client.send(&requests(&[&["PING"], check, &["ECHO", "a"], check, &["ECHO", "b"]])).await;
    client.expect("+PONG\r\n").await;
    other.ask("PING", "+PONG\r\n").await;
    may.add_permits(1);
    client.expect("*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:10\r\n$1\r\na\r\n").await;
    other.ask("PING", "+PONG\r\n").await;
    may.add_permits(1);
    client.expect("*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:10\r\n$1\r\nb\r\n").await;
    // A server that ends waits for a decision that is under way.
    client.send(&requests(&[check])).await;
    while server.resp.counts().commands < 8 {
        tokio::task::yield_now().await;
    }
    let stopping = tokio::spawn(server.stop());
    may.add_permits(1);
    client.expect("*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:10\r\n").await;
    within(stopping).await.unwrap();
}
