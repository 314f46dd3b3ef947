//! Wrong input of every kind: one clear line that says what to do, exit code 2, and nothing on stdout.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

/// The binary, in a folder with wrong files of every kind.
fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(&*FOLDER).stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
    command
}

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("wrong-input-{}", std::process::id()));
    fs::create_dir_all(folder.join("folder.svg")).unwrap();
    let azure = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/azure_llm_2023_code.csv");
    fs::copy(azure, folder.join("azure.csv")).unwrap();
    let binary: Vec<u8> = (0..3000_u32).map(|n| u8::try_from(n * n % 251).unwrap()).collect();
    for (name, text) in [
        ("empty", &b""[..]),
        ("blank", b"\n\n\n"),
        ("binary", &binary),
        ("head.csv", b"t,c\n"),
        ("nan.csv", b"t,c\n1,NaN\n"),
        ("negative.csv", b"t,c\n1,-5\n"),
        ("large.csv", b"t,c\n1,99999999999999999999\n"),
        ("time.csv", b"t,c\nNaN,1\n"),
        ("broken.jsonl", b"{\"t\": 1e400}\n{\"t\":\n"),
        ("costs.csv", b"t,c\n1,18446744073709551615\n2,18446744073709551615\n"),
        ("free.csv", b"t,c\n1,0\n2,0\n"),
        ("latin1.toml", b"[[limit]]\nname = \"caf\xe9\"\nquota = \"1/s\"\n"),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    for (name, lines) in [
        ("queue", "queue = 5"),
        ("queue-max", "queue = { max = -1 }"),
        ("queue-half", "queue = { max = 1.5 }"),
        ("queue-wait", "queue = { max = 1, max_wait = \"5\" }"),
        ("places", "max_in_flight = 0"),
        ("places-time", "max_in_flight = 2"),
        ("key-empty", "key = \"\""),
        ("key-none", "key = []"),
        ("key-number", "key = 5"),
        ("key", "key = \"tool\""),
        ("mode", "mode = \"on\""),
        ("algorithm", "algorithm = \"bucket\""),
        ("unlimited", "algorithm = \"none\"\nqueue = { max = 1 }"),
        ("burst", "burst = 5"),
        ("twice", "[[limit]]\nname = \"a\"\nquota = \"1/s\""),
        ("duplicate", "quota = \"1/s\""),
        ("tool-cost", "[[tool]]\nname = \"render\"\ncost = \"pages\""),
        ("key-client", "key = \"client-ip\""),
    ] {
        let text = format!("[[limit]]\nname = \"a\"\nquota = \"1/s\"\n{lines}\n");
        fs::write(folder.join(format!("{name}.toml")), text).unwrap();
    }
    fs::write(folder.join("unnamed.toml"), "[[limit]]\nname = \"\"\nquota = \"1/s\"\n").unwrap();
    fs::write(folder.join("table.toml"), "[limit]\nname = \"a\"\nquota = \"1/s\"\n").unwrap();
    folder
});

/// Runs words separated by blanks; `_` stands for an empty word.
fn run(command: &str) -> Output {
    let words = command.split(' ').map(|word| if word == "_" { "" } else { word });
    tidegate().args(words).output().unwrap()
}

/// Rows of a command, and what its first line on stderr that is no note begins with, after `error: `.
const ROWS: &[(&str, &str)] = &[
    // Traces, for both verbs that read them.
    ("TRACE --trace nothing", "cannot open the trace `nothing`: No such file"),
    ("TRACE --trace folder.svg", "the trace `folder.svg` is a directory"),
    ("TRACE --trace _", "a value is required for '--trace <FILE>'"),
    ("TRACE --trace empty", "no requests in empty: it is empty"),
    ("TRACE --trace -", "no requests in stdin: it is empty"),
    ("TRACE --trace blank", "no requests in blank: its 3 lines hold none"),
    ("TRACE --trace binary", "binary:1: expected an access log line, a JSON object or a CSV header"),
    ("TRACE --trace head.csv", "head.csv: no field is named like a time; pass `--time FIELD`"),
    ("TRACE --trace head.csv --time t", "no requests in head.csv"),
    ("TRACE --trace nan.csv --time x", "nan.csv: no field `x`; this file has `t`, `c`"),
    (
        "TRACE --trace nan.csv --time t",
        "nan.csv:2: time `t` is the number `1`, which could be of several units",
    ),
    ("TRACE --trace nan.csv --time t --time-unit s --cost c", "nan.csv:2: expected a whole number up to"),
    ("TRACE --trace negative.csv --time t --time-unit s --cost c", "negative.csv:2: expected a whole number"),
    ("TRACE --trace large.csv --time t --time-unit s --cost c", "large.csv:2: expected a whole number"),
    ("TRACE --trace time.csv --time t --time-unit s", "time.csv:2: expected a time (RFC 3339"),
    ("TRACE --trace broken.jsonl --time t --time-unit s", "broken.jsonl:1: expected a JSON object"),
    ("TRACE --trace azure.csv --cost x", "azure.csv: no field `x`"),
    ("TRACE --trace azure.csv --key x", "azure.csv: no field `x`"),
    ("TRACE --trace azure.csv --key _", "invalid value '' for '--key <FIELD>': a field has a name"),
    ("TRACE --trace azure.csv --time _", "invalid value '' for '--time <FIELD>': a field has a name"),
    (
        "TRACE --trace azure.csv --cost _",
        "invalid value '' for '--cost <FIELD>': each field of a sum has a name",
    ),
    ("TRACE --trace azure.csv --cost a+", "invalid value 'a+' for '--cost <FIELD>': each field of a sum"),
    (
        "TRACE --trace azure.csv --time-unit y",
        "invalid value 'y' for '--time-unit <UNIT>': unknown time unit `y`",
    ),
    ("TRACE --time t", "the following required arguments were not provided:"),
    // Plots are refused before the trace is read: nothing of a run is lost.
    (
        "TRACE --trace azure.csv --plot none/a.svg",
        "cannot write the plot to `none/a.svg`: its folder is not there",
    ),
    (
        "TRACE --trace azure.csv --plot empty/a.svg",
        "cannot write the plot to `empty/a.svg`: what should be its folder",
    ),
    ("TRACE --trace azure.csv --plot folder.svg", "cannot write the plot to `folder.svg`: it is a folder"),
    (
        "TRACE --trace azure.csv --plot a.png",
        "invalid value 'a.png' for '--plot <FILE>': a plot is `-`, or a file",
    ),
    ("TRACE --trace azure.csv --plot _", "invalid value '' for '--plot <FILE>': a plot is `-`, or a file"),
    ("TRACE --trace azure.csv --json --plot -", "`--"),
    // simulate
    ("simulate --trace azure.csv --pattern burst", "the argument '--trace <FILE>' cannot be used with"),
    ("simulate --trace azure.csv --rate 5", "--rate is the pace of a pattern, and a trace has its own"),
    ("serve --limits nowhere.toml", "cannot read the limits file `nowhere.toml`"),
    ("serve --limits limits.toml --limit 5", "the argument '--limits <FILE>' cannot be used with"),
    (
        "serve --limits limits.toml --key none",
        "the argument '--limits <FILE>' cannot be used with '--key <KEY>'",
    ),
    ("check nowhere.toml", "cannot read the limits file `nowhere.toml`"),
    ("check algorithm.toml", "algorithm.toml:4: `limit[0].algorithm`: `bucket`: unknown limiter"),
    ("simulate --workers 0", "invalid value '0' for '--workers <N>': not a whole number from 1 to"),
    ("simulate --workers -1", "invalid value '-1' for '--workers <N>': not a whole number from 1 to"),
    ("simulate --workers 20000", "20000 workers are too many to simulate"),
    ("simulate --workers 4 --limit 3 --share split", "count 3 cannot be split among 4 workers"),
    ("simulate --workers 4 --share leased", "a lease is a part of a bucket, and none has none"),
    ("simulate --workers 4 --store-delay 1ms", "--store-delay is about leases, and no row has them"),
    (
        "simulate --workers 4 --share leased --limiter token-bucket",
        "an overshoot of 0 tokens is 0s of the rate, and a lease has to live for 20ms",
    ),
    (
        "simulate --workers 4 --share leased --limiter token-bucket --max-overshoot 1 --store-delay 50ms",
        "an overshoot of 1 tokens is 100ms of the rate, and a lease has to live for 150ms",
    ),
    (
        "simulate --workers 4 --share leased --limiter token-bucket --max-overshoot 1 --service-time 1s",
        "how long calls run is not simulated with leases",
    ),
    (
        "simulate --workers 4 --share leased --max-overshoot -1",
        "invalid value '-1' for '--max-overshoot <TOKENS>': write a whole number of tokens",
    ),
    (
        "simulate --workers 4 --share leased --store-loss 101%",
        "invalid value '101%' for '--store-loss <PERCENT>': write a part from 0% to 100%",
    ),
    ("simulate --max-overshoot 5%", "the following required arguments were not provided:"),
    (
        "simulate --workers 4 --share half",
        "invalid value 'half' for '--share <HOW>': write one of copied, split",
    ),
    ("simulate --share split", "the following required arguments were not provided:"),
    (
        "simulate --limiter bucket",
        "invalid value 'bucket' for '--limiter <NAME>': unknown limiter; write one of",
    ),
    (
        "simulate --limiter none --queue 5",
        "--queue is about calls that wait, and only in a leaky-bucket do calls wait",
    ),
    ("simulate --limiter token-bucket --max-wait 5s", "--max-wait is about calls that wait"),
    ("simulate --queue -1", "invalid value '-1' for '--queue <N>': not a whole number from 0 to"),
    ("simulate --limit 5 --quota 5/s", "the argument '--limit <N>' cannot be used with '--quota <TEXT>'"),
    ("simulate --limit 0", "invalid value '0' for '--limit <N>': 0 never allows anything"),
    ("simulate --limit -3", "invalid value '-3' for '--limit <N>': a limit is above 0"),
    ("simulate --limit NaN", "invalid value 'NaN' for '--limit <N>': not a number"),
    ("simulate --limit 1e9", "invalid value '1e9' for '--limit <N>': not a number"),
    ("simulate --limit ½", "invalid value '½' for '--limit <N>': not a number"),
    (
        "simulate --limit 99999999999999999999",
        "invalid value '99999999999999999999' for '--limit <N>': the count is",
    ),
    ("simulate --burst 0", "a burst of 0 never allows anything; write a burst of at least 1"),
    ("simulate --burst 1.5", "invalid value '1.5' for '--burst <N>': not a whole number from 0 to"),
    ("simulate --window 0s", "invalid value '0s' for '--window <TIME>': a time of 0 is too short"),
    ("simulate --window 1month", "invalid value '1month' for '--window <TIME>': unknown unit `month`"),
    ("simulate --window 1000000d", "invalid value '1000000d' for '--window <TIME>': longer than 584 years"),
    ("simulate --quota _", "invalid value '' for '--quota <TEXT>': `` is not a number"),
    (
        "simulate --rate 0",
        "invalid value '0' for '--rate <RATE>': nothing would ever come; write a rate above 0",
    ),
    ("simulate --rate -1", "invalid value '-1' for '--rate <RATE>': a rate is above 0"),
    ("simulate --rate NaN", "invalid value 'NaN' for '--rate <RATE>': not a rate"),
    ("simulate --requests 0", "the pattern has no requests"),
    ("simulate --requests -1", "invalid value '-1' for '--requests <N>': not a whole number from 0 to"),
    ("simulate --requests 99999999999", "the pattern would have more than 1000000000 requests"),
    ("simulate --duration 0s", "the pattern has no requests"),
    ("simulate --duration 3", "invalid value '3' for '--duration <TIME>': a time needs a unit"),
    ("simulate --duration 100000h --rate 1000000", "the pattern would have more than 1000000000 requests"),
    ("simulate --seed -1", "invalid value '-1' for '--seed <N>': not a whole number from 0 to"),
    (
        "simulate --pattern wave",
        "invalid value 'wave' for '--pattern <NAME>': unknown pattern; write one of steady",
    ),
    (
        "simulate --worst-window 0s",
        "invalid value '0s' for '--worst-window <TIME>': a time of 0 is too short",
    ),
    ("simulate --by-key", "the following required arguments were not provided:"),
    ("simulate --key k", "the following required arguments were not provided:"),
    ("simulate --max-in-flight 3", "the following required arguments were not provided:"),
    (
        "simulate --max-in-flight 0 --service-time 1s",
        "invalid value '0' for '--max-in-flight <N>': not a whole number",
    ),
    ("simulate --json --csv", "the argument '--json' cannot be used with '--csv'"),
    ("simulate more", "unexpected argument 'more' found"),
    ("simulate --more", "unexpected argument '--more' found"),
    ("simulator", "unrecognized subcommand 'simulator'"),
    // The limits file.
    ("simulate --limits nothing", "cannot read the limits file `nothing`: No such file"),
    ("simulate --limits folder.svg", "cannot read the limits file `folder.svg`: Is a directory"),
    (
        "simulate --limits latin1.toml",
        "cannot read the limits file `latin1.toml`: stream did not contain valid UTF-8",
    ),
    ("simulate --limits empty", "empty: there is no limit in it"),
    ("simulate --limits table.toml", "table.toml:1: `limit`: invalid type: map, expected a sequence"),
    ("simulate --limits unnamed.toml", "unnamed.toml: a limit has an empty name"),
    ("simulate --limits twice.toml", "twice.toml: two limits are named `a`"),
    ("simulate --limits duplicate.toml", "duplicate.toml:4: duplicate key"),
    (
        "simulate --limits burst.toml",
        "burst.toml:4: `limit[0].burst`: unknown field `burst`, expected one of",
    ),
    (
        "simulate --limits mode.toml",
        "mode.toml:4: `limit[0].mode`: unknown variant `on`, expected `enforce` or",
    ),
    ("simulate --limits algorithm.toml", "algorithm.toml:4: `limit[0].algorithm`: `bucket`: unknown limiter"),
    ("simulate --limits unlimited.toml", "unlimited.toml: limit `a`: the algorithm none has no queue"),
    (
        "simulate --limits queue.toml",
        "queue.toml:4: `limit[0].queue`: invalid type: integer `5`, expected a queue such",
    ),
    (
        "simulate --limits queue-max.toml",
        "queue-max.toml:4: `limit[0].queue.max`: invalid value: integer `-1`, expected a whole number of at least 0",
    ),
    (
        "simulate --limits queue-half.toml",
        "queue-half.toml:4: `limit[0].queue.max`: invalid type: floating point `1.5`, expected a whole number of at least 0",
    ),
    (
        "simulate --limits queue-wait.toml",
        "queue-wait.toml:4: `limit[0].queue.max_wait`: a time needs a unit",
    ),
    (
        "simulate --limits places.toml",
        "places.toml:4: `limit[0].max_in_flight`: invalid value: integer `0`, expected a whole number of at least 1",
    ),
    (
        "simulate --limits places-time.toml",
        "limit `a` has `max_in_flight`, and how long a call runs is not said",
    ),
    ("simulate --limits key-empty.toml", "key-empty.toml: limit `a` has an empty key"),
    ("simulate --limits key-none.toml", "key-none.toml: limit `a` has an empty key"),
    ("simulate --limits key-number.toml", "key-number.toml:4: `limit[0].key`: expected a key such as"),
    ("simulate --limits key.toml", "limit `a` has the key tool, and no field is named for it"),
    (
        "simulate --limits twice.toml --limit 5",
        "the argument '--limits <FILE>' cannot be used with '--limit <N>'",
    ),
    (
        "simulate --limits twice.toml --share split",
        "the argument '--limits <FILE>' cannot be used with '--share <HOW>'",
    ),
    // fit
    ("fit", "no traffic to read"),
    ("fit --trace azure.csv --rate 0", "invalid value '0' for '--rate <RATE>': a rate is above 0"),
    ("fit --trace azure.csv --rate -1", "invalid value '-1' for '--rate <RATE>': `-1` is not a rate"),
    ("fit --trace azure.csv --rate 1e9", "invalid value '1e9' for '--rate <RATE>': `1e9` is not a rate"),
    ("fit --trace azure.csv --reject-at-most 1%", "the following required arguments were not provided:"),
    (
        "fit --trace azure.csv --rate 5 --reject-at-most 200%",
        "invalid value '200%' for '--reject-at-most <SHARE>'",
    ),
    (
        "fit --trace azure.csv --rate 5 --reject-at-most -1",
        "invalid value '-1' for '--reject-at-most <SHARE>'",
    ),
    (
        "fit --trace azure.csv --rate 5 --wait --burst -1",
        "invalid value '-1' for '--burst <TOKENS>': not a whole",
    ),
    ("fit --trace azure.csv --wait", "the following required arguments were not provided:"),
    (
        "fit --trace costs.csv --time t --time-unit s --cost c",
        "the costs up to arrival 0 add up to more than",
    ),
    ("fit --trace free.csv --time t --time-unit s --cost c", "every arrival costs 0, so every burst fits"),
    // explain
    ("explain", "the following required arguments were not provided:"),
    ("explain _", "`` is not a number in the quota ``"),
    ("explain 10", "the quota `10` does not say per what time"),
    ("explain NaN/s", "`NaN` is not a number in the quota `NaN/s`"),
    ("explain -- -1/s", "`-1` is negative; write a number above 0"),
    ("explain 10/month", "a month has no fixed length in the quota `10/month`"),
    ("explain 10/s more", "`more` is no part of a quota in `10/s more`"),
    ("explain 10/s\u{1b}[31m", "`\\u{1b}[31m` is no part of a quota in `10/s\\u{1b}[31m`"),
    // serve; it would run until it is stopped
    ("serve --listen 8080", "invalid value '8080' for '--listen <ADDRESS>': not an address with a port"),
    (
        "serve --listen 127.0.0.1:99999",
        "invalid value '127.0.0.1:99999' for '--listen <ADDRESS>': not an address",
    ),
    ("serve --listen 192.0.2.1:8080", "cannot listen on 192.0.2.1:8080: this machine has no such address"),
    ("serve --keys -1", "invalid value '-1' for '--keys <N>': not a whole number from 1 to 16777216"),
    ("serve --key header:", "invalid value 'header:' for '--key <KEY>': `` cannot be the name of a header"),
    (
        "serve --limiter leaky-bucket --queue -1",
        "invalid value '-1' for '--queue <N>': not a whole number from 0",
    ),
    ("serve --max-wait 1s", "--max-wait is about calls that wait"),
    ("serve more", "unexpected argument 'more' found"),
    // hammer
    ("hammer _", "invalid value '' for '[URL]': empty string; write for example http://127.0.0.1:8080/"),
    ("hammer http://[::1", "invalid value 'http://[::1' for '[URL]': invalid authority; write for example"),
    (
        "hammer http://x:99999",
        "invalid value 'http://x:99999' for '[URL]': the port of the address is not a number",
    ),
    (
        "hammer http://a:b@x",
        "invalid value 'http://a:b@x' for '[URL]': a name and a password in an address are not",
    ),
    ("hammer --requests 0", "invalid value '0' for '--requests <N>': not a whole number from 1 to 10000000"),
    (
        "hammer --requests -1",
        "invalid value '-1' for '--requests <N>': not a whole number from 1 to 10000000",
    ),
    (
        "hammer --requests 10000001",
        "invalid value '10000001' for '--requests <N>': not a whole number from 1 to",
    ),
    (
        "hammer --rate 0",
        "invalid value '0' for '--rate <RATE>': nothing would ever come; write a rate above 0",
    ),
    ("hammer --rate -1", "invalid value '-1' for '--rate <RATE>': a rate is above 0"),
    ("hammer --rate 1e9", "invalid value '1e9' for '--rate <RATE>': not a rate"),
    (
        "hammer --rate 99999999999999999999",
        "invalid value '99999999999999999999' for '--rate <RATE>': the count",
    ),
    ("hammer --interval 5", "invalid value '5' for '--interval <TIME>': a time needs a unit"),
    ("hammer --interval 600000d", "invalid value '600000d' for '--interval <TIME>': longer than 584 years"),
    ("hammer --duration 0s", "invalid value '0s' for '--duration <TIME>': a time of 0 is too short"),
    (
        "hammer --concurrency 0",
        "invalid value '0' for '--concurrency <N>': not a whole number from 1 to 65535",
    ),
    (
        "hammer --concurrency 70000",
        "invalid value '70000' for '--concurrency <N>': not a whole number from 1 to 65535",
    ),
    ("hammer --cost 0", "invalid value '0' for '--cost <N>': not a whole number from 1 to 10000000"),
    ("hammer --header :x", "invalid value ':x' for '--header <HEADER>': `` cannot be the name of a header"),
    // hint; its stdin is empty
    ("hint", "no answer in stdin: it is empty"),
    ("hint --json", "no answer in stdin: it is empty"),
    ("hint --status 99", "invalid value '99' for '--status <N>': 99 is not in 100..=999"),
    ("hint --status -1", "invalid value '-1' for '--status <N>'"),
    (
        "hint --header Retry-After",
        "invalid value 'Retry-After' for '--header <HEADER>': a header is a name, a colon",
    ),
    ("hint --header :5", "invalid value ':5' for '--header <HEADER>': a header is a name, a colon"),
    (
        "hint --now today",
        "invalid value 'today' for '--now <TIME>': not a time in RFC 3339; write for example",
    ),
    ("hint --now -1", "invalid value '-1' for '--now <TIME>': not a time in RFC 3339; write for example"),
    ("hint --body nothing", "cannot read `nothing`: No such file"),
    ("hint --body folder.svg", "cannot read `folder.svg`: Is a directory"),
    ("hint more", "unexpected argument 'more' found"),
    // mcp
    ("mcp", "the following required arguments were not provided:"),
    (
        "mcp --limit 2 -- cat",
        "invalid value '2' for '--limit <QUOTA>': the quota `2` does not say per what time",
    ),
    ("mcp --burst 3 -- cat", "the following required arguments were not provided:"),
    ("mcp --listen 127.0.0.1:0", "the following required arguments were not provided:"),
    (
        "mcp --upstream http://127.0.0.1:1/mcp -- cat",
        "the argument '--upstream <URL>' cannot be used with '[COMMAND]...'",
    ),
    (
        "mcp --listen 127.0.0.1:0 --upstream ftp://127.0.0.1/mcp",
        "--upstream ftp://127.0.0.1/mcp: not an http:// or https:// address",
    ),
    ("mcp --cost render -- cat", "invalid value 'render' for '--cost <TOOL=COST>': not a tool and its cost"),
    (
        "mcp --cost render=pages -- cat",
        "invalid value 'render=pages' for '--cost <TOOL=COST>': `pages` is no",
    ),
    ("mcp --limits nowhere.toml -- cat", "cannot read the limits file `nowhere.toml`"),
    ("mcp --limits tool-cost.toml -- cat", "tool-cost.toml:6: `tool[0].cost`: `pages` is no cost"),
    (
        "mcp --limits key-client.toml -- cat",
        "key-client.toml: limit `a` has the key `client-ip`, which a tool",
    ),
    ("mcp --log no/where -- cat", "cannot write the log `no/where`"),
];

#[test]
fn what_lacks_is_named_and_not_something_else() {
    let table = |name: &str| format!("hint: {name}, ");
    for (command, tip) in [
        ("mcp cat", "  tip: write `--` before the command, as in `-- cat`".to_owned()),
        ("run --each date -u", "  tip: write `--` before the command, as in `-- date`".to_owned()),
        ("mcp --limits tool-cost.toml -- cat", table("what a tool costs is written as `[[tool]]`")),
        ("mcp --limits burst.toml -- cat", table("a limit is written as `[[limit]]`")),
    ] {
        let stderr = String::from_utf8(run(command).stderr).unwrap();
        assert!(stderr.lines().any(|line| line.starts_with(&tip)), "{command}: {stderr}");
    }
    // No command can be meant here.
    assert!(!String::from_utf8(run("serve more").stderr).unwrap().contains("tip:"));
}

#[test]
fn each_is_said_in_one_clear_line_and_nothing_is_done() {
    let mut faults = Vec::new();
    for (command, expected) in ROWS {
        let verbs = if command.starts_with("TRACE") { &["simulate", "fit"][..] } else { &[""] };
        for verb in verbs {
            let command = command.replacen("TRACE", verb, 1);
            let output = run(&command);
            let stderr = String::from_utf8_lossy(&output.stderr);
            let first = stderr.lines().find(|line| !line.starts_with("note: ")).unwrap_or_default();
            let clear = first.strip_prefix("error: ").is_some_and(|text| text.starts_with(expected));
            let lines = stderr.lines().filter(|line| line.starts_with("error: ")).count();
            if !clear || lines != 1 || output.status.code() != Some(2) || !output.stdout.is_empty() {
                let stdout = String::from_utf8_lossy(&output.stdout);
                faults.push(format!("$ tidegate {command}\n{stdout}{stderr}[{}]", output.status));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {}:\n\n{}", faults.len(), ROWS.len(), faults.join("\n\n"));
}

#[test]
fn a_name_that_is_not_text_is_a_name() {
    use std::os::unix::ffi::OsStrExt as _;
    for (name, shown) in [(&b"\xff\xfe"[..], "\u{fffd}\u{fffd}"), (b"a\nb\x1b[31m", "a\\nb\\u{1b}[31m")] {
        let name = std::ffi::OsStr::from_bytes(name);
        let output = tidegate().args(["simulate", "--trace"]).arg(name).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with(&format!("error: cannot open the trace `{shown}`: No such file")), "{text}");
        assert_eq!(output.status.code(), Some(2));
    }
}

/// Runs with a pipe that nobody reads as stderr, or as stdout.
fn unread(command: &str, stderr: bool) -> Option<i32> {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = tidegate();
    run.args(command.split(' '));
    if stderr {
        run.stderr(writer).stdout(Stdio::null());
    } else {
        run.stdout(writer).stderr(Stdio::null());
    }
    run.status().unwrap().code()
}

#[test]
fn a_pipe_that_nobody_reads_is_no_fault() {
    for (command, code) in [
        ("simulate", 0),
        ("simulate --json", 0),
        ("simulate --csv", 0),
        ("simulate --plot -", 0),
        ("simulate --trace azure.csv", 0),
        ("fit --trace azure.csv", 0),
        ("explain 10/s", 0),
        ("hint --header Retry-After:5", 0),
        ("hint --header Retry-After:soon --json", 0),
        ("--help", 0),
    ] {
        assert_eq!(unread(command, false), Some(code), "stdout of {command}");
        assert_eq!(unread(command, true), Some(code), "stderr of {command}");
    }
    for command in [
        "simulate --trace nothing",
        "simulate --limits nothing",
        "fit",
        "explain 10",
        "hammer http://127.0.0.1:1 --requests 1",
    ] {
        assert_eq!(unread(command, false), Some(2), "stdout of {command}");
        assert_eq!(unread(command, true), Some(2), "stderr of {command}");
    }
}

#[test]
fn a_plot_that_is_refused_leaves_what_was_there() {
    let plot = FOLDER.join("kept.svg");
    fs::write(&plot, "as it was").unwrap();
    assert_eq!(run("simulate --trace nothing --plot kept.svg").status.code(), Some(2));
    let mut text = String::new();
    fs::File::open(&plot).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "as it was");
}
