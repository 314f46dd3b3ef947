//! Recorded traffic in each format and form becomes the right arrivals.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its helpers")]

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tidegate_sim::trace::{Format, TimeReading, read};
use tidegate_sim::{Costs, TimeUnit, Trace, TraceError, TraceOptions};

const SECOND: u64 = 1_000_000_000;
/// 17 May 2015, 10:05:03 UTC.
const MAY_17: u64 = 1_431_857_103 * SECOND;

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../tests/data/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn options(key: Option<&str>, cost: &[&str]) -> TraceOptions {
    TraceOptions {
        key: key.map(str::to_owned),
        cost: cost.iter().copied().map(str::to_owned).collect(),
        ..TraceOptions::default()
    }
}

fn try_read(input: impl AsRef<[u8]>, options: &TraceOptions) -> Result<Trace, TraceError> {
    read(input.as_ref(), "trace", options, &mut |_| {})
}

fn trace(input: impl AsRef<[u8]>, options: &TraceOptions) -> Trace {
    try_read(input, options).unwrap()
}

fn key_texts(trace: &Trace) -> Vec<&str> {
    let keys = trace.arrivals.keys.as_ref().unwrap();
    keys.ids.iter().map(|id| &*keys.names[*id as usize]).collect()
}

fn costs(trace: &Trace) -> Vec<u64> {
    (0..trace.arrivals.len()).map(|index| trace.arrivals.cost(index)).collect()
}

fn gzip(input: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(input).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_apache_sample() {
    let log = sample("apache_combined_10k.log");
    let trace = trace(&log, &options(Some("client"), &["bytes"]));
    assert_eq!((trace.format, trace.gzip), (Format::AccessLog, false));
    assert_eq!((trace.arrivals.len(), trace.lines, trace.skipped), (10_000, 10_000, 0));
    assert_eq!(trace.out_of_order, 4_915);
    assert_eq!(trace.arrivals.keys.as_ref().unwrap().names.len(), 1_753);
    assert_eq!((trace.time_field.as_str(), trace.time_guessed), ("time", false));
    assert_eq!(trace.time_reading, TimeReading::LogTime);
    assert!(trace.arrivals.times.is_sorted());
    assert_eq!(trace.arrivals.times[0], 1_431_857_100 * SECOND);
    // Counted by a script of its own, with a regular expression and a date library.
    assert_eq!(costs(&trace).iter().sum::<u64>(), 2_747_282_740);
    for field in ["user", "method", "path", "status", "referer", "user_agent"] {
        assert_eq!(self::trace(&log, &options(Some(field), &[])).arrivals.len(), 10_000, "{field}");
    }
}

#[test]
fn the_azure_sample() {
    let csv = sample("azure_llm_2023_code.csv");
    let trace = trace(csv, &options(None, &["ContextTokens", "GeneratedTokens"]));
    assert_eq!((trace.format, trace.arrivals.len(), trace.lines), (Format::Csv, 8_819, 8_820));
    assert_eq!((trace.time_field.as_str(), trace.time_guessed), ("TIMESTAMP", true));
    assert_eq!(trace.time_reading.to_string(), "date and time in UTC");
    assert_eq!((trace.arrivals.times[0], trace.arrivals.cost(0)), (1_700_158_623_979_960_000, 4_818));
    assert_eq!((&trace.arrivals.keys, trace.out_of_order), (&None, 0));
}

#[test]
fn the_mooncake_sample() {
    let json = sample("mooncake_conversation.jsonl");
    let options = TraceOptions { time_unit: Some(TimeUnit::Millis), ..options(None, &["input_length"]) };
    let trace = trace(json, &options);
    assert_eq!((trace.format, trace.arrivals.len()), (Format::JsonLines, 12_031));
    assert_eq!(trace.time_reading.to_string(), "milliseconds");
    assert_eq!((trace.arrivals.times[0], trace.arrivals.cost(0)), (0, 6_758));
    assert!(trace.arrivals.span() < 3_600 * SECOND);
}

#[test]
fn gzip_in_one_and_in_several_members_reads_as_the_same() {
    let log = sample("apache_combined_10k.log");
    let options = options(Some("client"), &["bytes"]);
    let plain = trace(&log, &options);
    let (head, tail) = log.split_at(log.len() / 3);
    for packed in [gzip(&log), [gzip(head), gzip(tail), gzip(b"")].concat()] {
        let mut reported = Vec::new();
        let unpacked = read(&packed[..], "trace", &options, &mut |bytes| reported.push(bytes)).unwrap();
        assert!(unpacked.gzip);
        assert_eq!(unpacked.arrivals, plain.arrivals);
        assert!(reported.is_sorted());
        assert_eq!(reported.last(), Some(&(packed.len() as u64)));
    }
}

#[test]
fn a_reader_may_give_a_byte_at_a_time() {
    struct Trickle<'a>(&'a [u8]);
    impl std::io::Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = buffer.len().min(1);
            std::io::Read::read(&mut self.0, &mut buffer[..length])
        }
    }
    let log = &sample("apache_combined_10k.log")[..20_000];
    let log = &log[..=log.iter().rposition(|byte| *byte == b'\n').unwrap()];
    let options = options(Some("client"), &[]);
    let whole = trace(log, &options);
    for input in [log.to_vec(), gzip(log)] {
        let trickled = read(Trickle(&input), "trace", &options, &mut |_| {}).unwrap();
        assert_eq!(trickled.arrivals, whole.arrivals);
    }
}

#[test]
fn each_server_writes_its_own_json() {
    let nginx = r#"{"time_iso8601":"2015-05-17T12:05:03+02:00","remote_addr":"10.0.0.1","bytes":"512"}"#;
    let nginx_msec = r#"{"msec":"1431857103.123","remote_addr":"10.0.0.1","bytes":512}"#;
    let caddy = r#"{"level":"info","ts":1431857103.1234567,"request":{"remote_ip":"10.0.0.1","headers":{"X-Key":["k1","k2"]}},"size":512}"#;
    let envoy = r#"{"start_time":"2015-05-17T10:05:03.250Z","authority":null,"downstream":"10.0.0.1","bytes_sent":512}"#;
    for (line, key, cost, nanos, reading) in [
        (nginx, "remote_addr", "bytes", 0, "RFC 3339"),
        (nginx_msec, "remote_addr", "bytes", 123_000_000, "epoch seconds"),
        (caddy, "request.remote_ip", "size", 123_456_700, "epoch seconds"),
        (envoy, "downstream", "bytes_sent", 250_000_000, "RFC 3339"),
    ] {
        let trace = trace(line, &options(Some(key), &[cost]));
        assert_eq!(trace.arrivals.times, [MAY_17 + nanos], "{line}");
        assert_eq!(key_texts(&trace), ["10.0.0.1"], "{line}");
        assert_eq!(costs(&trace), [512], "{line}");
        assert_eq!((trace.time_reading.to_string().as_str(), trace.time_guessed), (reading, true), "{line}");
    }
    assert_eq!(key_texts(&trace(caddy, &options(Some("request.headers.X-Key.1"), &[]))), ["k2"]);
}

#[test]
fn json_values_and_names_of_all_sorts() {
    let lines = r#"
        {"time":1431857103,"k":"a\"\u00e9\n","deep":{"er":{"x":1}},"dotted.name":true,"other":[1,{"k":2}]}
        {"k":"z","k":-1.50e3,"deep":{"er":{"x":"t"}},"dotted.name":"","time":1431857103}
    "#;
    assert_eq!(key_texts(&trace(lines, &options(Some("k"), &[]))), ["a\"\u{e9}\n", "-1.50e3"]);
    assert_eq!(key_texts(&trace(lines, &options(Some("deep.er.x"), &[]))), ["1", "t"]);
    assert_eq!(key_texts(&trace(lines, &options(Some("dotted.name"), &[]))), ["true", ""]);
    // Names whose characters have several bytes do not get in each other's way.
    let line = r#"{"time":1431857103,"ab":{"x":0,"c":1,"d":2,"é":4},"éé":3,"é":{"ab":5}}"#;
    let names = ["ab.c", "éé", "é.ab", "ab.é"];
    assert_eq!(costs(&trace(line, &options(Some("ab.d"), &names))), [13]);
}

#[test]
fn each_form_of_time_in_csv() {
    for (time, unit, nanos, reading) in [
        ("2015-05-17T10:05:03Z", None, MAY_17, TimeReading::Rfc3339),
        ("2015-05-17 12:05:03.5+02:00", None, MAY_17 + SECOND / 2, TimeReading::Rfc3339),
        ("2015-05-17 10:05:03.000000001", None, MAY_17 + 1, TimeReading::DateTime),
        ("17/May/2015:05:05:03 -0500", None, MAY_17, TimeReading::LogTime),
        ("[17/May/2015:05:05:03 -0500]", None, MAY_17, TimeReading::LogTime),
        ("1431857103", None, MAY_17, TimeReading::Epoch(TimeUnit::Seconds)),
        ("1431857103.000000001", None, MAY_17 + 1, TimeReading::Epoch(TimeUnit::Seconds)),
        ("1.431857103e9", None, MAY_17, TimeReading::Epoch(TimeUnit::Seconds)),
        ("1431857103000", None, MAY_17, TimeReading::Epoch(TimeUnit::Millis)),
        ("1431857103000000", None, MAY_17, TimeReading::Epoch(TimeUnit::Micros)),
        (" 1431857103000000001 ", None, MAY_17 + 1, TimeReading::Epoch(TimeUnit::Nanos)),
        ("0", Some(TimeUnit::Seconds), 0, TimeReading::Number(TimeUnit::Seconds)),
        ("27.5", Some(TimeUnit::Micros), 27_500, TimeReading::Number(TimeUnit::Micros)),
        ("1431857103", Some(TimeUnit::Nanos), 1_431_857_103, TimeReading::Number(TimeUnit::Nanos)),
        ("2015-05-17T10:05:03Z", Some(TimeUnit::Nanos), MAY_17, TimeReading::Rfc3339),
    ] {
        let options = TraceOptions { time_unit: unit, ..TraceOptions::default() };
        let trace = trace(format!("Date,x\n{time},1\n"), &options);
        assert_eq!(trace.arrivals.times, [nanos], "{time}");
        assert_eq!(trace.time_reading, reading, "{time}");
        assert_eq!(trace.time_field, "Date");
    }
}

#[test]
fn the_time_field_is_the_first_usual_name() {
    for (header, field) in [("date,ts,time", "time"), ("Date,TS", "TS"), ("MSEC,@Timestamp", "@Timestamp")] {
        let row = header.split(',').map(|_| "1431857103").collect::<Vec<_>>().join(",");
        assert_eq!(trace(format!("{header}\n{row}"), &TraceOptions::default()).time_field, field);
    }
    let options = TraceOptions { time: Some("date".to_owned()), ..TraceOptions::default() };
    let trace = trace("time,date\n1,1431857103\n", &options);
    assert_eq!((trace.arrivals.times[0], trace.time_guessed), (MAY_17, false));
}

#[test]
fn csv_quotes_line_ends_marks_and_blanks() {
    let csv = "\u{feff}\r\n\"time\", user ,tokens\r\n\r\n1431857103,\"a, \"\"b\"\"\nc\", 5 \r\n\r\n1431857104,\"\",0\r\n\n1431857105,x,\"7\"";
    let trace = trace(csv, &options(Some("user"), &["tokens"]));
    assert_eq!(key_texts(&trace), ["a, \"b\"\nc", "", "x"]);
    assert_eq!(costs(&trace), [5, 0, 7]);
    assert_eq!((trace.lines, trace.skipped), (9, 0));
}

#[test]
fn csv_line_numbers_count_lines_not_rows() {
    let csv = "time,user\r\n\r\n1431857103,\"a\r\nb\"\r\n\r\nbad,\"x\ny\"\r\n1431857103,z\n";
    let error = try_read(csv, &TraceOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("trace:6: expected a time"), "{error}");
    let trace = trace(csv, &TraceOptions { skip_bad: true, ..TraceOptions::default() });
    assert_eq!((trace.arrivals.len(), trace.skipped, trace.lines), (2, 1, 8));
}

#[test]
fn access_logs_with_marks_blanks_and_raw_bytes() {
    let log = b"\xEF\xBB\xBF\r\n::1 - - [17/May/2015:12:05:03 +0200] \"GET /a?b HTTP/1.1\" 200 - \"-\" \"\xff\xfe\r\n\n\
        2001:db8::2 - joe [17/May/2015:10:05:03 +0000] \"\\x16\\x03\" 400 226 \"-\" \"\xe9\"\r\n";
    let by = |field| trace(log, &options(Some(field), &["bytes"]));
    assert_eq!(by("client").arrivals.times, [MAY_17, MAY_17]);
    assert_eq!(costs(&by("client")), [0, 226]);
    assert_eq!(key_texts(&by("ip")), ["::1", "2001:db8::2"]);
    assert_eq!(key_texts(&by("path")), ["/a", "-"]);
    assert_eq!(key_texts(&by("user")), ["-", "joe"]);
    assert_eq!(key_texts(&by("bytes")), ["-", "226"]);
    assert_eq!(key_texts(&by("user_agent")), ["\\xFF\\xFE", "\\xE9"]);
}

#[test]
fn ties_and_late_rows_keep_the_order_of_the_file() {
    let csv = "ts,k,c\n3,a,1\n1,b,2\n2,c,3\n1,d,4\n3,e,5\n1,f,6\n";
    let options = TraceOptions { time_unit: Some(TimeUnit::Nanos), ..options(Some("k"), &["c"]) };
    let trace = trace(csv, &options);
    assert_eq!(trace.arrivals.times, [1, 1, 1, 2, 3, 3]);
    assert_eq!(key_texts(&trace), ["b", "d", "f", "c", "a", "e"]);
    assert_eq!(costs(&trace), [2, 4, 6, 3, 1, 5]);
    assert_eq!(trace.out_of_order, 3);
    // Numbered as they appear in the file, also after sorting.
    assert_eq!(&*trace.arrivals.keys.unwrap().names[0], "a");
}

#[test]
fn without_key_and_cost_nothing_is_stored_for_them() {
    let trace = trace("ts\n1431857103\n1431857102\n", &TraceOptions::default());
    assert_eq!((trace.arrivals.keys, trace.arrivals.costs), (None, Costs::One));
}

#[test]
fn costs_are_summed_exactly() {
    let csv = format!("ts,a,b\n1431857103,{},0\n1431857103,1,2\n", u64::MAX);
    assert_eq!(costs(&trace(csv, &options(None, &["a", "b"]))), [u64::MAX, 3]);
}

#[test]
fn bad_lines_are_counted_and_leave_nothing_behind() {
    let json = "starting up\n{\"msg\":\"x\"}\n{\"ts\":1431857103,\"k\":\"a\",\"c\":1}\n\n{\"ts\":1431857103,\"k\":\"b\",\"c\":-1}\n{\"ts\":1431857103,\"k\":\"a\"\n{\"ts\":1431857104,\"k\":\"c\",\"c\":2}";
    let options = TraceOptions { skip_bad: true, ..options(Some("k"), &["c"]) };
    let trace = trace(json, &options);
    assert_eq!(key_texts(&trace), ["a", "c"]);
    assert_eq!(trace.arrivals.keys.as_ref().unwrap().names.len(), 2);
    assert_eq!((trace.skipped, trace.lines), (4, 7));
    let first = trace.first_skipped.unwrap();
    assert_eq!(
        (first.line, first.reason.to_string().as_str()),
        (1, "expected a JSON object, found `starting up`")
    );
}

#[test]
fn long_lines_are_bad_lines_in_each_format() {
    let long = "x".repeat(3 << 20);
    let line = r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
    let skip = TraceOptions { skip_bad: true, ..TraceOptions::default() };
    for (input, bad) in [
        (format!("{line}\n{line} {long}\n{line}\n"), 2),
        (format!("{{\"ts\":1431857103}}\n{{\"ts\":1431857103,\"x\":\"{long}\"}}\n{{\"ts\":1431857103}}"), 2),
    ] {
        let error = try_read(&input, &TraceOptions::default()).unwrap_err();
        assert!(error.is_bad_line());
        assert_eq!(
            error.to_string(),
            format!("trace:{bad}: expected a line of at most 1048576 bytes, found more")
        );
        let trace = trace(&input, &skip);
        assert_eq!((trace.arrivals.len(), trace.skipped), (2, 1));
    }
    let csv = |length: usize| format!("ts,x\n1431857103,\"{}\"\n1431857104,y\n", "\n".repeat(length));
    assert_eq!(trace(csv(1_000_000), &skip).arrivals.len(), 2);
    assert_eq!(trace(csv((1 << 20) + 1), &skip).skipped, 1);
    let error = try_read(format!("ts,x\n1431857103,a\n1431857103,\"{long}"), &skip).unwrap_err();
    assert_eq!(
        error.to_string(),
        "trace:3: expected a row of at most 1048576 bytes (is a quote left open?), found more"
    );
    // Any number of blank lines is no row.
    assert_eq!(trace(format!("ts\n{}1431857103", "\n".repeat(3 << 20)), &skip).arrivals.len(), 1);
}
