//! `hammer` against servers that lie in their fields, and against `serve`, which does not.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn hammer(url: &str, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["hammer", url]).args(args.split_whitespace()).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn report(url: &str, args: &str) -> (Option<i32>, Value) {
    let output = hammer(url, &format!("{args} --json"));
    let report = serde_json::from_slice(&output.stdout);
    (output.status.code(), report.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

/// A server that answers request `n` (from 0) with what `answer` makes of it: a status and its fields.
fn server(answer: impl Fn(usize) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
            thread::spawn(move || serve(&stream, &|| answer(asked.fetch_add(1, Ordering::SeqCst))));
        }
    });
    format!("http://{address}/")
}

fn serve(stream: &TcpStream, answer: &dyn Fn() -> (u16, String)) {
    stream.set_nodelay(true).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while lines.by_ref().any(|line| line.is_empty()) {
        let (status, fields) = answer();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n{fields}\r\n");
        let mut stream = stream;
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}

const SERIAL: &str = "--requests 8 --interval 2ms --concurrency 1";

#[test]
fn each_lie_is_found_and_the_exit_code_is_1() {
    type Answer = fn(usize) -> (u16, String);
    let table: [(&str, &str, Answer); 7] = [
        ("remaining", "`a` showed 5 left, and after at most 0 others one was rejected", |n| match n {
            0..3 => (200, "ratelimit: \"a\";r=5\r\n".to_owned()),
            _ => (429, "ratelimit: \"a\";r=0;t=9\r\nretry-after: 9\r\n".to_owned()),
        }),
        ("t", "t told 0ns, and ", |_| (429, "ratelimit: \"a\";r=0;t=0\r\n".to_owned())),
        ("retry_after_ms", "retry-after-ms told 1ms, and ", |_| {
            (429, "retry-after: 1\r\nretry-after-ms: 1\r\n".to_owned())
        }),
        ("waits_agree", "Retry-After 1 is before t=5", |_| {
            (429, "ratelimit: \"a\";r=0;t=5\r\nretry-after: 1\r\n".to_owned())
        }),
        ("well_formed", "ratelimit: \\\"a\\\" ;r=1", |_| (200, "ratelimit: \"a\" ;r=1\r\n".to_owned())),
        ("rejected_with_none_left", "a 429 shows r=4 and no limit that is used up", |_| {
            (429, "ratelimit: \"a\";r=4\r\n".to_owned())
        }),
        ("remaining_within_quota", "`a` shows r=9 of q=5", |_| {
            (200, "ratelimit: \"a\";r=9\r\nratelimit-policy: \"a\";q=5;w=1\r\n".to_owned())
        }),
    ];
    for (name, first, answer) in table {
        // Only who obeys surely comes back that late.
        let args = if name == "retry_after_ms" { "--requests 8 --interval 0s --obey" } else { SERIAL };
        let (code, report) = report(&server(answer), args);
        let check = &report["fields"]["checks"][name];
        assert_eq!(code, Some(1), "{name}: {report}");
        assert_eq!(check["held"], false, "{name}: {report}");
        let words = check["first"].as_str().unwrap();
        assert!(words.starts_with(first), "{name}: {words}");
        let text = hammer(&server(answer), args);
        assert!(stdout(&text).contains(&format!("\n{name} broken: ")), "{}", stdout(&text));
    }
}

#[test]
fn without_fields_nothing_is_held_against_a_server() {
    let url = server(|n| (if n % 2 == 0 { 200 } else { 429 }, String::new()));
    let (code, report) = report(&url, SERIAL);
    assert_eq!((code, &report["fields"]["answers"]), (Some(0), &json!(0)));
    for (name, check) in report["fields"]["checks"].as_object().unwrap() {
        assert_eq!(check["held"], Value::Null, "{name}");
    }
}

/// One request in each `gap`, told by `told_ms`.
fn every(gap: Duration, told_ms: impl Fn(Duration) -> String + Send + Sync + 'static) -> String {
    let next: Mutex<Option<Instant>> = Mutex::new(None);
    server(move |_| {
        let (now, mut next) = (Instant::now(), next.lock().unwrap());
        match next.filter(|next| now < *next) {
            Some(next) => (429, told_ms(next - now)),
            None => {
                *next = Some(now + gap);
                (200, String::new())
            }
        }
    })
}

fn ms(wait: Duration) -> u128 {
    wait.as_nanos().div_ceil(1_000_000)
}

#[test]
fn who_obeys_a_true_wait_is_allowed_and_who_obeys_a_false_one_is_not() {
    let honest = every(Duration::from_millis(200), |wait| {
        format!("retry-after: 1\r\nretry-after-ms: {}\r\n", ms(wait))
    });
    let (code, true_wait) = report(&honest, "--obey --requests 9 --interval 0s");
    let (obey, rejected) = (&true_wait["obey"], &true_wait["statuses"]["429"]);
    assert_eq!((code, &obey["broken"]), (Some(0), &json!(0)), "{true_wait}");
    // A busy machine may let the time pass in which the others are rejected, and the last may have no request left.
    let kept = obey["kept"].as_u64().unwrap();
    assert_eq!(Some(kept + obey["not_tried"].as_u64().unwrap()), rejected.as_u64(), "{true_wait}");
    assert!(kept > 0, "{true_wait}");
    assert_eq!(true_wait["fields"]["checks"]["retry_after_ms"]["held"], true);

    let early = every(Duration::from_millis(400), |wait| {
        format!("retry-after: 1\r\nretry-after-ms: {}\r\n", ms(wait / 3))
    });
    let output = hammer(&early, "--obey --requests 3 --interval 0s");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("\nobey broken: 1 of 1 that came back were rejected again, first: told 1"),
        "{}",
        stdout(&output)
    );
    let (code, shared) = report(&honest, "--obey --requests 20 --interval 0s --concurrency 3");
    assert_eq!(shared["obey"]["broken"], 0, "others share the limit: {shared}");
    assert!(shared["obey"]["not_decided"].as_u64().unwrap() > 0, "{shared}");
    assert_eq!(code, Some(0), "{shared}");
}

#[test]
fn who_is_told_nothing_or_too_long_a_wait_does_not_try() {
    let silent = every(Duration::from_secs(60), |_| String::new());
    let output = hammer(&silent, "--obey --requests 3 --interval 0s");
    assert!(stdout(&output).contains("\nno wait told: by 2 rejections\n"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(0));
    for args in ["--obey --duration 1s", "--obey"] {
        let long = every(Duration::from_secs(60), |_| "retry-after: 60\r\n".to_owned());
        let (code, report) = report(&long, args);
        let obey = &report["obey"];
        assert_eq!(
            (code, &obey["not_tried"], &report["requests"]),
            (Some(0), &json!(1), &json!(2)),
            "{report}"
        );
    }
}

/// `tidegate serve` with a file of limits.
struct Honest {
    child: Child,
    /// What it says later has to go somewhere, or it ends.
    _stdout: BufReader<ChildStdout>,
    url: String,
    file: std::path::PathBuf,
}

impl Honest {
    fn start(name: &str, limits: &str) -> Self {
        let file = std::env::temp_dir().join(format!("tidegate-fields-{name}-{}.toml", std::process::id()));
        std::fs::write(&file, limits).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--limits"]).arg(&file);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut stdout, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, _stdout: stdout, url, file }
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

#[test]
fn serve_is_true_to_its_fields() {
    let two = "[[limit]]\nname = \"short\"\nquota = \"50/s burst 7\"\n[[limit]]\nname = \"long\"\nquota = \"20/s burst 20\"\n\
               [[limit]]\nname = \"tried\"\nquota = \"1/min burst 3\"\nmode = \"shadow\"\n";
    for (name, limits) in [("one", "[[limit]]\nname = \"a\"\nquota = \"5/s burst 7\"\n"), ("two", two)] {
        for args in [
            "--requests 60",
            "--requests 200 --interval 0s",
            "--requests 100 --interval 1ms --concurrency 8",
            "--requests 14 --interval 0s --obey",
            "--requests 14 --interval 0s --obey --concurrency 3",
        ] {
            let honest = Honest::start(name, limits);
            let (code, report) = report(&honest.url, args);
            assert_eq!(code, Some(0), "{name} {args}: {report}");
            assert_eq!(report["fields"]["checks"]["well_formed"]["held"], true, "{name} {args}");
            let with_fields = report["fields"]["answers"].as_u64();
            assert_eq!(with_fields, report["requests"].as_u64(), "{name} {args}");
        }
    }
    let honest = Honest::start("text", "[[limit]]\nname = \"a\"\nquota = \"5/s burst 7\"\n");
    let text = stdout(&hammer(&honest.url, "--requests 14 --interval 0s --obey"));
    assert!(text.contains("\nobey held: "), "{text}");
    assert!(text.contains("\nfields held: on 14 answers; "), "{text}");
}
