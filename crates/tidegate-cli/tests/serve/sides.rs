//! What the admin address says of Redis clients and Envoys, and what is said of them at the end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use tidegate_server::rls::proto::rate_limit_response::Code;

use super::grpc::{Envoy, user};
use super::limits::File;
use super::process::*;
use super::redis_server::Server as Redis;

/// A server that answers everybody, and is watched.
pub(crate) struct Sides {
    pub(crate) watched: Watched,
    resp: String,
    pub(crate) envoy: Envoy,
}

impl Sides {
    pub(crate) fn start(file: &File, args: &[&str]) -> Self {
        let mut all = vec!["--limits", file.path(), "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        all.extend(args);
        let watched = Watched::start(&all);
        let address = |name: &str| {
            let line = watched.server.running.line();
            let address = line.strip_prefix(name).unwrap_or_else(|| panic!("{line}")).to_owned();
            watched.server.running.line();
            address
        };
        let (resp, grpc) = (address("resp on "), address("grpc on "));
        Self { watched, resp, envoy: Envoy::connect(&grpc) }
    }

    /// A Redis client that has sent these lines.
    fn redis(&self, lines: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.resp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(lines.as_bytes()).unwrap();
        stream
    }

    /// What a Redis client is answered to these lines.
    pub(crate) fn ask_redis(&self, lines: &str) -> String {
        let mut answer = String::new();
        self.redis(&format!("{lines}QUIT\r\n")).read_to_string(&mut answer).unwrap();
        answer
    }

    /// The status of a decision that is asked for at `/v1`.
    pub(crate) fn check(&self, question: &Value) -> u16 {
        let (address, body) = (&self.watched.server.address, question.to_string());
        let length = body.len();
        let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
        request(address, &format!("{head}content-length: {length}\r\n\r\n{body}")).status
    }
}

pub(crate) const ACCOUNT: &str =
    "[[limit]]\nname = \"account\"\nkey = \"header:x-account\"\nquota = \"1/hour burst 4\"\n";
const ANN: &str = "[[limit.override]]\nkey = \"ann\"\nquota = \"1/hour burst 5\"\n";
const ROOT: &str = "[[limit]]\nname = \"root\"\nquota = \"1/s\"\nalgorithm = \"none\"\ndescriptors = [\"shop: user=root\"]\n";

fn named<'a>(state: &'a Value, name: &str) -> &'a Value {
    let limits = state["limits"].as_array().unwrap();
    limits.iter().find(|limit| limit["name"] == name).unwrap()
}

#[test]
fn whoever_asks_is_counted_in_the_limits_and_by_the_side_that_answered() {
    let file = File::new("sides", &[&user("1/hour burst 2"), ANN, ROOT, ACCOUNT].concat());
    let sides = Sides::start(&file, &[]);
    let code = |user| sides.envoy.ask("user", user).unwrap().0;
    assert_eq!(["bob", "bob", "bob"].map(code), [Code::Ok, Code::Ok, Code::OverLimit]);
    assert_eq!(["ann", "root"].map(code), [Code::Ok; 2]);
    assert_eq!(sides.envoy.ask("", ""), Err(tonic::Code::InvalidArgument));
    assert_eq!(sides.watched.server.ask("GET", "x-account: ann\r\n").status, 200);
    assert_eq!(sides.check(&json!({"limit": "account", "key": "ann"})), 200);
    let throttle = "CL.THROTTLE k 0 1 3600\r\n".repeat(3);
    let answers = sides.ask_redis(&format!("TG.CHECK account ann\r\n{throttle}NONSENSE\r\n"));
    assert_eq!(answers.matches("*5\r\n:0\r\n").count(), 2, "{answers}");
    assert_eq!(answers.matches("*5\r\n:1\r\n").count(), 2, "{answers}");

    let watched = &sides.watched;
    let of = |limit: &str| {
        ["allowed", "rejected"].map(|outcome| {
            let labels = format!("limit=\"{limit}\",outcome=\"{outcome}\"");
            watched.metric(&format!("tidegate_limit_decisions_total{{{labels}}}"))
        })
    };
    assert_eq!((of("user"), of("account")), ([3, 1], [3, 0]));
    let requests = |outcome| watched.metric(&format!("tidegate_requests_total{{outcome=\"{outcome}\"}}"));
    assert_eq!((requests("allowed"), requests("rejected")), (6, 1), "of CL.THROTTLE none");
    assert_eq!(watched.metric("tidegate_decision_seconds_count"), 7);
    assert_eq!(watched.metric("tidegate_table_slots_used{limit=\"user\"}"), 2);
    for (sample, expected) in [
        ("resp_commands_total", 6),
        ("resp_decisions_total{outcome=\"allowed\"}", 2),
        ("resp_decisions_total{outcome=\"rejected\"}", 2),
        ("resp_errors_total", 1),
        ("resp_keys_evicted_total", 0),
        ("resp_connections_total{result=\"taken\"}", 1),
        ("resp_connections_total{result=\"refused\"}", 0),
        ("grpc_requests_total{outcome=\"allowed\"}", 4),
        ("grpc_requests_total{outcome=\"rejected\"}", 1),
        ("grpc_requests_total{outcome=\"error\"}", 1),
        ("grpc_in_flight", 0),
        ("grpc_connections", 1),
    ] {
        assert_eq!(watched.metric(&format!("tidegate_{sample}")), expected, "{sample}");
    }

    let state = watched.state();
    assert_eq!(state["limits"].as_array().unwrap().len(), 2, "what is never asked is not shown");
    let user_limit = named(&state, "user");
    assert_eq!((&user_limit["key"], &user_limit["words"][1]), (&json!(["user"]), &json!("shop: user=*")));
    let levels: Vec<_> = user_limit["asked_most"].as_array().unwrap().iter().collect();
    let level =
        |at: usize| (&levels[at]["key"], &levels[at]["level"]["remaining"], &levels[at]["level"]["capacity"]);
    assert_eq!(level(0), (&json!("bob"), &json!(0), &json!(2)));
    assert_eq!(level(1), (&json!("ann"), &json!(4), &json!(5)));
    let (resp, grpc) = (&state["resp"], &state["grpc"]);
    assert_eq!((&resp["commands"], &resp["allowed"], &resp["errors"]), (&json!(6), &json!(2), &json!(1)));
    assert_eq!(resp["address"], sides.resp);
    assert_eq!((&grpc["requests"], &grpc["rejected"], &grpc["errors"]), (&json!(6), &json!(1), &json!(1)));
    watched.until(|state| {
        let seconds = state["grpc"]["seconds"]["allowed"].as_array().unwrap();
        seconds.iter().map(|second| second.as_u64().unwrap()).sum::<u64>() == 4
    });

    // A limit that goes on keeps its counters.
    file.replace(&[&user("1/hour burst 8"), ACCOUNT].concat());
    watched.server.running.line();
    assert_eq!(code("bob"), Code::OverLimit, "as empty as it was");
    assert_eq!(code("carl"), Code::Ok);
    assert_eq!((of("user"), of("account")), ([4, 2], [3, 0]));
    assert_eq!(named(&watched.state(), "user")["quota"], "1/hour burst 8");
}

#[test]
fn sides_that_are_off_are_not_there() {
    let watched = Watched::start(&[]);
    let metrics = watched.get("/metrics").body;
    assert!(!metrics.contains("tidegate_resp") && !metrics.contains("tidegate_grpc"), "{metrics}");
    let state = watched.state();
    assert_eq!((&state["resp"], &state["grpc"]), (&Value::Null, &Value::Null));
}

#[test]
fn what_is_cut_off_at_the_end_is_said_of_each_side() {
    let waits = "[[limit]]\nname = \"waits\"\nquota = \"1/hour burst 1\"\nalgorithm = \"leaky-bucket\"\nqueue = { max = 3 }\n";
    let file = File::new("cut-off-http", waits);
    let watched = Watched::start(&["--limits", file.path()]);
    let _waiting: Vec<TcpStream> = (0..3).map(|_| watched.server.send("GET", "")).collect();
    watched.until_waiting(2);
    cut_off(watched, "2 HTTP requests, 2 HTTP connections");

    // Nobody is answered while the store is silent.
    let redis = Redis::start(&[]);
    let file = File::new("cut-off-others", &[&user("1/hour burst 2"), ACCOUNT].concat());
    let url = format!("{}#shop", redis.url());
    let sides =
        Sides::start(&file, &["--store", &url, "--without-store", "closed", "--store-deadline", "60s"]);
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(120_000).arg("ALL").exec(&mut redis.connection()).unwrap();
    let _client = sides.redis("TG.CHECK account ann\r\n");
    sides.envoy.begin("user", "ann");
    sides.watched.until(|state| state["resp"]["commands"] == 1 && state["grpc"]["in_flight"] == 1);
    cut_off(sides.watched, "1 RESP connection, 1 gRPC request, 1 gRPC connection");
}

/// Tells a server to stop, and then at once.
fn cut_off(mut watched: Watched, what: &str) {
    watched.server.running.signal("-TERM");
    watched.until(|state| state["status"] == "draining");
    watched.server.running.signal("-TERM");
    assert_eq!(watched.server.running.warning(), format!("warning: cut off by a second signal: {what}"));
    assert_eq!(watched.server.running.exit_code(), Some(0));
}
