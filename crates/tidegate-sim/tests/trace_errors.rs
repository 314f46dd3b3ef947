//! Every error about a trace, in its words.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its helpers")]

use std::error::Error as _;
use std::io::{self, Read, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use tidegate_sim::trace::read;
use tidegate_sim::{TraceError, TraceOptions};

const LOG: &str = r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;

fn error(input: impl AsRef<[u8]>, options: &TraceOptions) -> TraceError {
    read(input.as_ref(), "trace", options, &mut |_| {}).unwrap_err()
}

/// `time`, `key` and `cost` from a short form such as `key=client cost=a cost=b skip`.
fn options(text: &str) -> TraceOptions {
    let mut options = TraceOptions::default();
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some(("time", name)) => options.time = Some(name.to_owned()),
            Some(("key", name)) => options.key = Some(name.to_owned()),
            Some(("cost", name)) => options.cost.push(name.to_owned()),
            Some(("unit", unit)) => options.time_unit = Some(unit.parse().unwrap()),
            _ => options.skip_bad = true,
        }
    }
    options
}

#[test]
fn each_error_says_where_what_was_expected_and_what_was_found() {
    let log = |rest: &str| format!("{LOG}\n{rest}");
    let rows: &[(String, &str, &str)] = &[
        // Nothing there.
        (String::new(), "", "no requests in trace: it is empty"),
        ("\n".into(), "", "no requests in trace: its one line holds none"),
        ("\r\n \n\n".into(), "", "no requests in trace: its 3 lines hold none"),
        ("time,x\n".into(), "", "no requests in trace: its one line holds none"),
        ("\n".repeat(100_000), "", "no requests in trace: its 100000 lines hold none"),
        (
            "time,x\n1,2,3\n4\n".into(),
            "skip",
            "no requests in trace: 2 lines cannot be read, the first of them line 2: \
             expected 2 fields as in the header, found 3",
        ),
        // Formats.
        (
            "\nhello world\n".into(),
            "",
            "trace:2: expected an access log line, a JSON object or a CSV header, found `hello world`",
        ),
        (
            "\u{1}\u{2},\n".into(),
            "skip",
            "trace:1: expected an access log line, a JSON object or a CSV header, found `\\u{1}\\u{2},`",
        ),
        (
            "[{\"ts\":1}]".into(),
            "",
            "trace:1: expected an access log line, a JSON object or a CSV header, found `[{\"ts\":1}]`",
        ),
        (
            format!("{}\n", "word ".repeat(100)),
            "",
            "trace:1: expected an access log line, a JSON object or a CSV header, found \
             `word word word word word word word word word word word word ...`",
        ),
        // Fields.
        (
            LOG.into(),
            "key=addr",
            "trace: no field `addr`; this file has `time`, `client`, `user`, `method`, `path`, `status`, `bytes`",
        ),
        (
            format!("{LOG} \"-\" \"x\""),
            "cost=size",
            "trace: no field `size`; this file has `time`, `client`, `user`, `method`, `path`, `status`, `bytes`, \
             `referer`, `user_agent`",
        ),
        (
            LOG.into(),
            "key=user_agent",
            "trace: no field `user_agent`; this file has `time`, `client`, `user`, `method`, `path`, `status`, `bytes`",
        ),
        (LOG.into(), "time=path", "trace: no field `path`; this file has `time`"),
        (
            r#"{"ts":1431857103,"request":{"ip":"x","h":{}},"n":[1]}"#.into(),
            "key=request.addr",
            "trace: no field `request.addr`; this file has `n`, `request.ip`, `ts`",
        ),
        (
            r#"{"a":1,"b":2}"#.into(),
            "",
            "trace: no field is named like a time; pass `--time FIELD`; this file has `a`, `b`",
        ),
        (
            "{}".into(),
            "skip",
            "trace: no field is named like a time; pass `--time FIELD`; this file has none",
        ),
        ("time,a,\n1,2,3".into(), "key=b", "trace: no field `b`; this file has `time`, `a`, ``"),
        (
            "a,b\n".into(),
            "",
            "trace: no field is named like a time; pass `--time FIELD`; this file has `a`, `b`",
        ),
        // Times.
        (
            "ts\n27\n".into(),
            "skip",
            "trace:2: time `ts` is the number `27`, which could be of several units; pass `--time-unit s|ms|us|ns`",
        ),
        (
            "{\"ts\":0.5}".into(),
            "",
            "trace:1: time `ts` is the number `0.5`, which could be of several units; pass `--time-unit s|ms|us|ns`",
        ),
        (
            "ts\nnoon\n".into(),
            "",
            "trace:2: expected a time (RFC 3339, `YYYY-MM-DD HH:MM:SS` for UTC, `17/May/2015:10:05:03 +0000` or \
             a number), found `noon`",
        ),
        (
            "ts\n2024-05-17T10:00:00Z\n2024-05-17T10:00:00\n".into(),
            "",
            "trace:3: expected a time as in RFC 3339, with a zone, found `2024-05-17T10:00:00`",
        ),
        (
            "ts\n2024-05-17 10:00:00\n2024-05-17 10:00:00Z\n".into(),
            "",
            "trace:3: expected a time as `YYYY-MM-DD HH:MM:SS`, without a zone, found `2024-05-17 10:00:00Z`",
        ),
        (
            log("1.2.3.4 - - [17/Mai/2015:10:05:03 +0000] \"GET"),
            "",
            "trace:2: expected a time such as `17/May/2015:10:05:03 +0000`, found `17/Mai/2015:10:05:03 +0000`",
        ),
        (
            "ts\n1431857103000\n1431857103\n".into(),
            "",
            "trace:3: expected a time in epoch milliseconds (13 digits), as in the first row, found `1431857103`",
        ),
        ("ts\n5\n-5\n".into(), "unit=s", "trace:3: expected a time in seconds, found `-5`"),
        (
            "ts\n99999999999\n".into(),
            "unit=s",
            "trace:2: expected a time from 1970 to July 2554, found `99999999999`",
        ),
        (
            "ts\n1969-12-31T23:59:59Z\n".into(),
            "",
            "trace:2: expected a time from 1970 to July 2554, found `1969-12-31T23:59:59Z`",
        ),
        ("{\"ts\":{}}".into(), "time=ts", "trace:1: expected text or a number in `ts`, found an object"),
        // Costs.
        (
            "ts,c\n1431857103,1.5\n".into(),
            "cost=c",
            "trace:2: expected a whole number up to 18446744073709551615 in cost `c`, found `1.5`",
        ),
        (
            "ts,c\n1431857103,-1\n".into(),
            "cost=c",
            "trace:2: expected a whole number up to 18446744073709551615 in cost `c`, found `-1`",
        ),
        (
            "ts,c\n1431857103,\n".into(),
            "cost=c",
            "trace:2: expected a whole number up to 18446744073709551615 in cost `c`, found an empty field",
        ),
        (
            "ts,c\n1431857103,18446744073709551616\n".into(),
            "cost=c",
            "trace:2: expected a whole number up to 18446744073709551615 in cost `c`, found `18446744073709551616`",
        ),
        (
            "ts,c\n1431857103,18446744073709551615\n".into(),
            "cost=c cost=c",
            "trace:2: expected costs that sum to at most 18446744073709551615, found more",
        ),
        (
            LOG.into(),
            "cost=method",
            "trace:1: expected a whole number up to 18446744073709551615 in cost `method`, found `GET`",
        ),
        (
            "{\"ts\":1431857103,\"c\":1}\n{\"ts\":1431857103}".into(),
            "cost=c",
            "trace:2: expected a field `c`, found none",
        ),
        (
            "{\"ts\":1431857103,\"c\":null}".into(),
            "cost=c",
            "trace:1: expected text or a number in `c`, found null",
        ),
        (
            "{\"ts\":1431857103,\"c\":[1]}".into(),
            "key=c",
            "trace:1: expected text or a number in `c`, found an array",
        ),
        (
            "{}".into(),
            "cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a cost=a",
            "15 cost fields exceed the bound of 14; sum them before",
        ),
        // Lines.
        (
            log("garbage"),
            "",
            "trace:2: expected an access log line such as `1.2.3.4 - - [17/May/2015:10:05:03 +0000] ...`, \
             found `garbage`",
        ),
        (
            log("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET / HT"),
            "key=path",
            "trace:2: expected a field `path`, found the end of the line",
        ),
        (
            log("1.2.3.4 - - [17/May/2015:10:05:03 +0000] nothing"),
            "key=path",
            "trace:2: expected a field `path`, found ` nothing`",
        ),
        (
            "{\"ts\":1431857103}\n{\"ts\":14".into(),
            "",
            "trace:2: expected a JSON object, found the end of the line",
        ),
        (
            "{\"ts\":1431857103}\n{\"ts\" 14}".into(),
            "",
            "trace:2: expected a JSON object, found broken JSON at byte 7",
        ),
        ("{\"ts\":1431857103}\n[1]".into(), "", "trace:2: expected a JSON object, found `[1]`"),
        ("{\"ts\":1431857103} x".into(), "", "trace:1: expected a JSON object, found broken JSON at byte 19"),
        ("{\n  \"ts\": 1\n}".into(), "", "trace:1: expected a JSON object, found the end of the line"),
        ("ts,x\n1431857103\n".into(), "", "trace:2: expected 2 fields as in the header, found 1"),
        (
            "ts,x\n1431857103,a\n1431857103,\"b\n1431857103,c\n".into(),
            "skip",
            "trace:3: expected a closing quote, found the end of the file",
        ),
    ];
    for (input, short, message) in rows {
        assert_eq!(error(input, &options(short)).to_string(), *message);
    }
}

#[test]
fn damaged_gzip_is_told_from_a_short_one() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..1_000 {
        writeln!(encoder, "{LOG}").unwrap();
    }
    let packed = encoder.finish().unwrap();
    let none = TraceOptions { skip_bad: true, ..TraceOptions::default() };
    for length in [2, 5, 11, packed.len() / 2, packed.len() - 1] {
        let error = error(&packed[..length], &none);
        assert!(matches!(error, TraceError::Truncated { .. }), "{length}: {error}");
        assert!(
            error.to_string().ends_with(": the gzip data ends early; the file is cut off, so fetch it again")
        );
    }
    let damaged = [&packed[..], b"more"].concat();
    assert!(matches!(error(damaged, &none), TraceError::Truncated { .. } | TraceError::Corrupt { .. }));
    let mut damaged = packed.clone();
    let crc = damaged.len() - 8;
    damaged[crc] ^= 1;
    let error = error(damaged, &none);
    assert_eq!(error.to_string(), "trace:1001: the gzip data is damaged");
    assert!(error.source().is_some());
}

#[test]
fn a_failing_input_keeps_its_error() {
    struct Failing(u8);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(io::ErrorKind::Interrupted.into()),
                2 => (&b"ts,x\n"[..]).read(buffer),
                _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the disk is gone")),
            }
        }
    }
    let error = read(Failing(0), "trace", &TraceOptions::default(), &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "cannot read trace beyond byte 2");
    assert_eq!(error.source().unwrap().to_string(), "the disk is gone");
    assert!(!error.is_bad_line());
}
