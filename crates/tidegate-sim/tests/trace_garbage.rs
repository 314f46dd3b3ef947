//! No input makes the reader panic, and none is left out in silence.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_sim::trace::read;
use tidegate_sim::{Trace, TraceOptions};

const LOG: &str = r#"10.0.0.1 - ann [17/May/2015:10:05:03 +0000] "GET /a?b=\"c\" HTTP/1.1" 200 5 "-" "Mozilla/5.0 (X11, \"q\")""#;
const JSON: &str =
    r#"{"ts":1431857103.25,"client":"10.0.0.1","bytes":5,"request":{"path":"/a\"b","list":[1,"x"]}}"#;
const CSV: &str =
    "time,client,bytes\n2015-05-17T10:05:03.5+02:00,\"10.0,\"\"0.1\",5\n2015-05-17T10:05:03Z,b,7";

fn bounded() -> ProptestConfig {
    ProptestConfig { cases: 512, ..ProptestConfig::default() }
}

fn options(skip_bad: bool) -> TraceOptions {
    TraceOptions {
        key: Some("client".to_owned()),
        cost: vec!["bytes".to_owned()],
        skip_bad,
        ..TraceOptions::default()
    }
}

fn check(trace: &Trace, rows: Option<usize>) -> Result<(), TestCaseError> {
    let arrivals = &trace.arrivals;
    prop_assert!(!arrivals.is_empty() && arrivals.times.is_sorted());
    let keys = arrivals.keys.as_ref();
    prop_assert_eq!(keys.map(|keys| keys.ids.len()), Some(arrivals.len()));
    prop_assert!(keys.is_some_and(|keys| keys.ids.iter().all(|id| (*id as usize) < keys.names.len())));
    prop_assert_eq!(trace.first_skipped.is_some(), trace.skipped > 0);
    if let Some(rows) = rows {
        prop_assert_eq!(arrivals.len() as u64 + trace.skipped, rows as u64);
    }
    Ok(())
}

/// Reads it both ways. Skipping can only turn an error into a trace, and never changes a trace.
fn read_both(input: &[u8], rows: Option<usize>) -> Result<(), TestCaseError> {
    for mut options in [options(false), TraceOptions::default()] {
        let strict = read(input, "x", &options, &mut |_| {});
        options.skip_bad = true;
        let lenient = read(input, "x", &options, &mut |_| {});
        if let Ok(trace) = &strict {
            prop_assert_eq!(trace.skipped, 0);
            prop_assert_eq!(Some(trace), lenient.as_ref().ok());
        }
        if let (Ok(trace), true) = (&lenient, options.key.is_some()) {
            check(trace, rows)?;
        }
    }
    Ok(())
}

fn changed(line: &str, changes: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = line.as_bytes().to_vec();
    for (place, kind, byte) in changes {
        let place = place.index(bytes.len());
        match kind % 3 {
            0 => bytes[place] = *byte,
            1 => bytes.insert(place, *byte),
            _ if bytes.len() > 1 => {
                bytes.remove(place);
            }
            _ => {}
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(br#" "\[]{}:,.-+e0159/"#.to_vec())];
    vec((any::<prop::sample::Index>(), any::<u8>(), byte), 0..4)
}

proptest! {
    #![proptest_config(bounded())]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        read_both(&bytes, None)?;
    }

    #[test]
    fn any_bytes_behind_a_good_start(bytes in vec(any::<u8>(), 0..300)) {
        for start in [LOG, JSON, CSV] {
            read_both(&[start.as_bytes(), b"\n", &bytes].concat(), None)?;
        }
    }

    #[test]
    fn any_bytes_behind_the_gzip_mark(bytes in vec(any::<u8>(), 0..100)) {
        read_both(&[&[0x1f, 0x8b, 8, 0][..], &bytes].concat(), None)?;
    }

    #[test]
    fn changed_lines_are_read_or_counted(lines in vec(changes(), 1..6), which in 0..3_usize) {
        let sample = [LOG, JSON, CSV][which];
        let mut input = sample.as_bytes().to_vec();
        let mut line_count = 1;
        for changes in &lines {
            let changed = changed(sample, changes);
            let blank = changed.split(|byte| *byte == b'\n').filter(|line| line.trim_ascii().is_empty()).count();
            line_count += changed.split(|byte| *byte == b'\n').count() - blank;
            input.push(b'\n');
            input.extend(changed);
        }
        // A quote may join CSV lines to one row; of the others, each line is one.
        read_both(&input, (which != 2).then_some(line_count))?;
    }

    #[test]
    fn changed_first_lines(changes in changes(), which in 0..3_usize) {
        read_both(&changed([LOG, JSON, CSV][which], &changes), None)?;
    }
}
