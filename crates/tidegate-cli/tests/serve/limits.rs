//! Limits files: what they can say, and what happens when they change.

use std::fs;
use std::path::{Path, PathBuf};

use super::process::*;

/// A limits file, gone with the test.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}.toml", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn serve(&self, more: &[&str]) -> Server {
        let mut args = vec!["--limits", self.path()];
        args.extend(more);
        Server::start(&args)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Writes it as editors do: another file takes its place at once.
    pub(crate) fn replace(&self, text: &str) {
        let new = self.0.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.0).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn account(quota: &str) -> String {
    format!("[[limit]]\nname = \"account\"\nkey = \"header:x-account\"\nquota = \"{quota}\"\n")
}

fn policy(server: &Server, account: &str) -> String {
    let answer = server.ask("GET", &format!("x-account: {account}\r\n"));
    answer.header("ratelimit-policy").unwrap().to_owned()
}

/// What is left, of each limit.
fn left(server: &Server, account: &str) -> String {
    let answer = server.ask("GET", &format!("x-account: {account}\r\n"));
    let field = answer.header("ratelimit").unwrap().parse().unwrap();
    let state = tidegate_http::fields::parse_state([&field]).unwrap();
    state.iter().map(|item| format!("{} {}", item.name, item.remaining)).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_file_that_changes_is_read_again_and_what_was_spent_stays_spent() {
    let file = File::new("changes", &account("1/hour burst 10"));
    let server = file.serve(&[]);
    assert_eq!(server.settings, format!("limits of {}: account", file.path()));
    for _ in 0..5 {
        assert_eq!(server.ask("GET", "x-account: ann\r\n").status, 200);
    }
    file.replace(&account("1/hour burst 100"));
    assert_eq!(server.running.line(), format!("reloaded {}: account", file.path()));
    assert_eq!(policy(&server, "bob"), "\"account\";q=100;w=360000");
    assert_eq!(left(&server, "ann"), "account 49", "half of it, less this one");
    // Written in place, with another limit.
    let all = "[[limit]]\nname = \"all\"\nquota = \"1/hour burst 3\"\n";
    fs::write(&file.0, format!("{}{all}", account("1/hour burst 100"))).unwrap();
    assert_eq!(server.running.line(), format!("reloaded {}: account, all (starts anew)", file.path()));
    assert_eq!(left(&server, "ann"), "all 2, account 48");
}

#[test]
fn a_signal_reads_it_again_at_once() {
    let file = File::new("signal", &account("1/hour burst 10"));
    let server = file.serve(&[]);
    server.running.signal("-HUP");
    assert_eq!(server.running.line(), format!("reloaded {}: account", file.path()));
    assert_eq!(left(&server, "ann"), "account 9");
}

#[test]
fn a_bad_file_is_refused_with_its_line_and_the_limits_stay() {
    let file = File::new("bad", &account("1/hour burst 10"));
    let server = file.serve(&[]);
    assert_eq!(left(&server, "ann"), "account 9");
    let in_flight = "max_in_flight = 5\n";
    for (text, why) in [
        (
            account("10/fortnight"),
            ":4: `limit[0].quota`: unknown unit `fortnight` in the quota `10/fortnight`; write ".to_owned(),
        ),
        (String::new(), ": there is no limit in it".to_owned()),
        (
            account("5/s") + "mode = \"shadow\"\n" + in_flight,
            "limit `account` is a shadow, and calls in flight are not".to_owned(),
        ),
        (
            account("5/s").replace("header:x-account", "account"),
            "limit `account` has the key `account`, which no request has".to_owned(),
        ),
        (
            account("5/s").replace("account\"\nkey", "käse\"\nkey"),
            "`käse` cannot be sent in a response field; write it in printable ASCII".to_owned(),
        ),
    ] {
        file.replace(&text);
        server.running.signal("-HUP");
        let place = if why.starts_with(':') { file.path() } else { "" };
        let warning = server.running.warning();
        assert!(
            warning.starts_with(&format!("warning: the limits stay as they are: {place}{why}")),
            "{warning}"
        );
        let peek = server.ask("GET", "x-account: zoe\r\n");
        assert!(peek.header("ratelimit-policy").unwrap().contains("q=10;"), "{}", peek.head);
    }
    assert_eq!(left(&server, "ann"), "account 8");
    // It is gone, and comes back.
    fs::remove_file(&file.0).unwrap();
    server.running.signal("-HUP");
    assert!(server.running.warning().contains("cannot read the limits file"));
    file.replace(&account("1/hour burst 20"));
    while server.running.line() != format!("reloaded {}: account", file.path()) {}
    assert_eq!(policy(&server, "bob"), "\"account\";q=20;w=72000");
}

#[test]
fn requests_go_on_while_the_file_changes_and_the_bound_holds() {
    let file = File::new("load", &account("1/hour burst 50"));
    let server = file.serve(&[]);
    let url = server.url();
    std::thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            let args =
                ["hammer", &url, "--header", "x-account: ann", "--rate", "400", "--duration", "3s", "--json"];
            output(&args)
        });
        let mut reloads = 0;
        while !hammer.is_finished() {
            // Other rates, the same burst: no token comes within the time of the test.
            file.replace(&account(&format!("{} per 10h burst 50", reloads % 9 + 1)));
            server.running.signal("-HUP");
            assert!(server.running.line().starts_with("reloaded "));
            reloads += 1;
        }
        let report: serde_json::Value = serde_json::from_slice(&hammer.join().unwrap().stdout).unwrap();
        let statuses = &report["statuses"];
        assert_eq!(statuses["200"], 50, "{report}");
        assert_eq!(statuses["429"].as_u64().unwrap() + 50, report["requests"].as_u64().unwrap(), "{report}");
        assert!(reloads > 10, "{reloads}");
    });
}

#[test]
fn a_key_has_a_quota_of_its_own_and_another_after_a_change() {
    let gold = |quota: &str| {
        format!("{}[[limit.override]]\nkey = \"ann\"\nquota = \"{quota}\"\n", account("1/hour burst 2"))
    };
    let file = File::new("override", &gold("1/hour burst 20"));
    let server = file.serve(&[]);
    assert_eq!(
        (left(&server, "ann"), policy(&server, "bob")),
        ("account 19".to_owned(), "\"account\";q=2;w=7200".to_owned())
    );
    file.replace(&gold("1/hour burst 200"));
    server.running.line();
    assert_eq!(left(&server, "ann"), "account 189");
}

#[test]
fn requests_wait_in_the_queue_of_a_file() {
    let line = "[[limit]]\nname = \"line\"\nquota = \"2/s burst 1\"\nqueue = { max = 1 }\n";
    let file = File::new("queue", line);
    let server = file.serve(&[]);
    let start = std::time::Instant::now();
    let mut waiting = [server.send("GET", ""), server.send("GET", ""), server.send("GET", "")];
    let mut statuses = waiting.each_mut().map(|stream| read(stream).status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429]);
    assert!(start.elapsed() >= std::time::Duration::from_millis(500));
}

#[test]
fn a_client_behind_a_trusted_proxy_is_a_client_of_its_own() {
    let file = File::new("proxy", "[[limit]]\nname = \"client\"\nkey = \"client-ip\"\nquota = \"1/hour\"\n");
    let server = file.serve(&["--trusted-proxies", "127.0.0.0/8,10.0.0.0/8"]);
    for (forwarded, status) in [
        ("203.0.113.9", 200),
        ("1.2.3.4, 203.0.113.9, 10.1.1.1", 429),
        ("203.0.113.10", 200),
        ("203.0.113.9", 429),
    ] {
        let headers = format!("x-forwarded-for: {forwarded}\r\n");
        assert_eq!(server.ask("GET", &headers).status, status, "{forwarded}");
    }
}

#[test]
fn what_no_server_can_keep_is_said_before_it_listens() {
    let wrong = |name: &str, text: &str| {
        let file = File::new(name, text);
        let output = output(&["serve", "--listen", "127.0.0.1:0", "--limits", file.path()]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 2, "{text}");
        text.lines().next().unwrap().replace(Path::new(file.path()).to_str().unwrap(), "FILE")
    };
    let limit = |name: &str, key: &str, more: &str| {
        format!("[[limit]]\nname = \"{name}\"\n{key}quota = \"5/s\"\n{more}")
    };
    let by_ip = "key = \"client-ip\"\n";
    let with = |value: &str| format!("[[limit.override]]\nkey = {value}\nquota = \"9/s\"\n");
    for (index, (text, expected)) in [
        (limit("a", "", &with("\"ann\"")), "error: FILE: limit `a` has an override and no key"),
        (limit("a", by_ip, &with("[\"ann\", \"bob\"]")), "error: FILE: limit `a` has an override for [\"ann\", \"bob\"], and its key has 1 parts"),
        (limit("a", by_ip, &(with("\"10.0.0.1\"") + &with("\"10.0.0.1\""))), "error: FILE: limit `a` has two overrides for 10.0.0.1"),
        (limit("a", by_ip, &(with("\"::1\"") + &with("\"::2\""))), "error: limit `a` has two quotas for the key `::/64`; take one out"),
        (limit("a", by_ip, &with("\"ann\"")), "error: limit `a`: an override has a wrong key: `ann` is no client; write an IPv4 address, or an IPv6 address or its /64 network"),
        (
            limit("a", by_ip, "max_in_flight = 3\n") + &limit("b", "key = \"path\"\n", "max_in_flight = 2\n"),
            "error: limits `a` and `b` both bound calls in flight of a key",
        ),
    ].into_iter().enumerate() {
        assert_eq!(wrong(&format!("wrong-{index}"), &text), expected);
    }
}

#[test]
#[cfg(unix)]
fn what_has_no_end_is_not_read_and_files_are_read_after_it() {
    let file = File::new("endless", &account("1/hour burst 10"));
    let server = file.serve(&[]);
    let refused = |why: &str| {
        server.running.signal("-HUP");
        let warning = server.running.warning();
        assert!(warning.starts_with("warning: the limits stay as they are: cannot read"), "{warning}");
        assert!(warning.ends_with(why), "{warning}");
        fs::remove_file(&file.0).unwrap();
    };
    let of_one_gigabyte = file.0.with_extension("new");
    fs::File::create(&of_one_gigabyte).unwrap().set_len(1 << 30).unwrap();
    fs::rename(of_one_gigabyte, &file.0).unwrap();
    refused("it is longer than 8 MiB");
    // Nobody writes into it.
    assert!(std::process::Command::new("mkfifo").arg(&file.0).status().unwrap().success());
    refused("again: it is a pipe or a device");
    std::os::unix::fs::symlink("/dev/zero", &file.0).unwrap();
    refused("again: it is a pipe or a device");
    file.replace(&account("1/hour burst 20"));
    while server.running.line() != format!("reloaded {}: account", file.path()) {}

    let output = output(&["serve", "--listen", "127.0.0.1:0", "--limits", "/dev/zero"]);
    assert_eq!(output.status.code(), Some(2));
    let error = "error: cannot read the limits file `/dev/zero`: it is longer than 8 MiB\n";
    assert!(stderr(&output).starts_with(error), "{}", stderr(&output));
}

#[test]
fn keys_by_the_ten_thousand_have_quotas_of_their_own() {
    use std::fmt::Write as _;
    let mut text = account("1/hour");
    for key in 0..50_000 {
        write!(text, "[[limit.override]]\nkey = \"key {key}\"\nquota = \"{}/hour\"\n", key % 7 + 2).unwrap();
    }
    // To compare each with all others would take longer than anybody waits for it.
    let file = File::new("many", &text);
    let server = file.serve(&[]);
    assert_eq!(left(&server, "key 49999"), format!("account {}", 49_999 % 7 + 1));
}
