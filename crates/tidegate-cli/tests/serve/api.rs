//! `/v1` of `serve`: decisions for services in other languages.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::limits::File;
use crate::process::{PATIENCE, Response, Server, output, read, stderr};

const LIMITS: &str = "\
[[limit]]\nname = \"per-account\"\nkey = \"header:x-account\"\nquota = \"1/h burst 3\"\n\
override = [{ key = \"ann\", quota = \"1/h burst 5\" }]\n\n\
[[limit]]\nname = \"pages\"\nkey = [\"client-ip\", \"path\"]\nquota = \"1/h burst 2\"\n\n\
[[limit]]\nname = \"all\"\nquota = \"10/h burst 100\"\n";

fn ask(server: &Server, method: &str, path: &str, fields: &str, body: &str) -> Response {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    read(&mut stream)
}

fn check(server: &Server, question: &Value) -> (u16, Value) {
    let response = ask(server, "POST", "/v1/check", "", &question.to_string());
    (response.status, serde_json::from_str(&response.body).unwrap())
}

#[test]
fn keys_are_read_as_the_limits_file_writes_them_and_are_those_of_requests() {
    let file = File::new("api-keys", LIMITS);
    let server = Server::start(&["--limits", file.path()]);
    // Ann has a quota of her own.
    let (status, body) = check(&server, &json!({"limit": "per-account", "key": "ann", "cost": 4}));
    assert_eq!((status, &body["limits"][0]["capacity"]), (200, &json!(5)));
    // A request of hers is counted by the same bucket.
    assert_eq!(server.ask("GET", "x-account: ann\r\n").status, 200);
    assert_eq!(server.ask("GET", "x-account: ann\r\n").status, 429);
    let (status, body) = check(&server, &json!({"limit": "per-account", "key": "bob", "cost": 4}));
    assert_eq!((status, &body["outcome"]), (422, &json!("never")));
    let page = |ip: &str| json!({"limit": "pages", "key": [ip, "/any/path"], "peek": true});
    assert_eq!(check(&server, &page("127.0.0.1")).1["limits"][0]["remaining"], 1);
    assert_eq!(check(&server, &page("203.0.113.9")).1["limits"][0]["remaining"], 2);
    for (question, detail) in [
        (
            json!({"limit": "per-account"}),
            "the limit `per-account` has a key (header:x-account); write it as `key`",
        ),
        (
            json!({"limit": "pages", "key": "a"}),
            "the limit `pages` has a key of 2 parts (client-ip, path); write them as a list",
        ),
        (
            json!({"limit": "pages", "key": ["a", "/"]}),
            "`a` is no client; write an IPv4 address, or an IPv6 address or its /64 network",
        ),
        (json!({"limit": "all", "key": "a"}), "the limit `all` has no key; leave `key` out"),
        (json!({"limit": "none"}), "there is no limit `none`; there are `per-account`, `pages`, `all`"),
    ] {
        let (status, body) = check(&server, &question);
        assert_eq!((status, body["detail"].as_str().unwrap()), (400, detail));
    }
    let words = ask(&server, "GET", "/v1/limits", "", "").body;
    assert!(words.contains("per-account") && words.contains("header:x-account"), "{words}");
}

#[test]
fn limits_that_are_read_again_hold_for_decisions_too() {
    let file = File::new("api-reload", LIMITS);
    let server = Server::start(&["--limits", file.path()]);
    assert_eq!(check(&server, &json!({"limit": "all", "cost": 90})).0, 200);
    file.replace("[[limit]]\nname = \"all\"\nkey = \"path\"\nquota = \"10/h burst 100\"\n");
    assert!(server.running.line().starts_with("reloaded "));
    assert_eq!(check(&server, &json!({"limit": "all", "cost": 90})).0, 400);
    assert_eq!(check(&server, &json!({"limit": "all", "key": "/a", "cost": 90})).0, 200);
}

#[test]
fn a_proxy_asks_about_the_requests_of_its_clients() {
    let server = Server::start(&["--limit", "1/h", "--burst", "2", "--trusted-proxies", "127.0.0.1"]);
    let auth = |client: &str| {
        let fields =
            format!("x-forwarded-for: {client}\r\nx-forwarded-uri: /x\r\nx-forwarded-method: GET\r\n");
        ask(&server, "GET", "/v1/auth", &fields, "")
    };
    assert_eq!([auth("203.0.113.9").status, auth("203.0.113.9").status], [200, 200]);
    let refused = auth("203.0.113.9");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("3600")));
    assert_eq!(auth("203.0.113.10").status, 200);
}

#[test]
fn a_token_is_asked_for_where_there_is_one() {
    let file = File::new("api-token", "secret\n");
    let server = Server::start(&["--limit", "1/h", "--key", "none", "--token-file", file.path()]);
    assert_eq!(ask(&server, "GET", "/v1/limits", "", "").status, 401);
    assert_eq!(ask(&server, "GET", "/v1/limits", "authorization: Bearer secret\r\n", "").status, 200);
    // Whoever is served at another path spends the same tokens.
    for path in ["/", "/V1/check", "//v1/check", "/v1", "/v1/"] {
        assert_eq!(ask(&server, "GET", path, "", "").status, 401, "{path}");
    }
    let ask_with = |path| ask(&server, "GET", path, "authorization: bearer secret\r\n", "").status;
    assert_eq!(["/", "/"].map(ask_with), [200, 429]);
}

#[test]
fn with_a_service_behind_all_paths_are_its_own() {
    let behind = Server::start(&["--limit", "100/s"]);
    let server = Server::start(&["--limit", "1/h", "--upstream", &behind.url()]);
    // The second answer is that of the limit, and no decision.
    let limits: Vec<u16> = (0..2).map(|_| ask(&server, "GET", "/v1/limits", "", "").status).collect();
    assert_eq!(limits, [200, 429]);
}

#[test]
fn who_lets_other_machines_ask_without_a_token_is_warned() {
    let running = crate::process::Running::start(&["serve", "--listen", "0.0.0.0:0", "--limit", "1/h"]);
    let warning = running.warning();
    assert!(
        warning.contains("lets other machines in, and ask at /v1 without a token; use --listen"),
        "{warning}"
    );
}

#[test]
fn wrong_use_is_one_line_that_says_what_to_do() {
    let empty = File::new("api-empty-token", "\n");
    let spaced = File::new("api-spaced-token", "secret \n");
    for (flags, said) in [
        (["--token-file", "/nowhere/token"], "error: cannot read /nowhere/token: "),
        (["--token-file", empty.path()], "error: there is no token in "),
        (["--token-file", spaced.path()], "error: the token in "),
    ] {
        let all: Vec<&str> = ["serve", "--limit", "1/s"].into_iter().chain(flags).collect();
        let failed = output(&all);
        assert_eq!(failed.status.code(), Some(2));
        assert!(stderr(&failed).starts_with(said), "{}", stderr(&failed));
    }
}
