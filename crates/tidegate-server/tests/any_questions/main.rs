//! Questions over HTTP that are made at random, and those that were found.

#![expect(clippy::expect_used, reason = "a test stops at the first surprise")]

mod asked;

use asked::check;
use proptest::collection::vec;
use proptest::prelude::*;

/// One limit and what is asked of it, as JSON without its braces.
fn one() -> impl Strategy<Value = String> {
    let limit = prop::sample::select(vec!["calls", "bytes", "window", "log", "turns", "trial", "pages"]);
    let key = prop::sample::select(vec![
        "",
        r#","key":"ann""#,
        r#","key":["bob"]"#,
        r#","key":"\u00e4""#,
        r#","key":["a","b"]"#,
    ]);
    let cost = prop_oneof![
        4 => (0..12_u64).prop_map(|cost| format!(",\"cost\":{cost}")),
        2 => Just(String::new()),
        1 => any::<u64>().prop_map(|cost| format!(",\"cost\":{cost}")),
        1 => prop::sample::select(vec![",\"cost\":2.0", ",\"cost\":-1", ",\"cost\":1e3", ",\"cost\":null"]).prop_map(str::to_owned),
    ];
    (limit, key, cost).prop_map(|(limit, key, cost)| format!("\"limit\":\"{limit}\"{key}{cost}"))
}

/// A line of a script.
fn lines() -> impl Strategy<Value = String> {
    let named = prop_oneof![
        one(),
        vec(one(), 0..4).prop_map(|all| {
            let all: Vec<String> = all.iter().map(|one| format!("{{{one}}}")).collect();
            format!("\"checks\":[{}]", all.join(","))
        }),
    ];
    let more =
        prop::sample::select(vec!["", "", ",\"peek\":true", ",\"expires_ms\":500", ",\"expires_ms\":0"]);
    let proxy = prop::sample::select(vec!["", "refuse=403", "a=b&refuse=404", "refuse=200"]);
    let fields = prop::sample::select(vec![
        "x-account: ann",
        "x-account: bob",
        "x-forwarded-method: HEAD",
        "x-forwarded-method: POST",
        "x-forwarded-uri: /a?b",
        "x-forwarded-uri: a",
        "content-type: application/grpc",
        "x-forwarded-for: 192.0.2.7",
        "origin: x",
    ]);
    prop_oneof![
        6 => ("[cCr]", named, more).prop_map(|(letter, named, more)| format!("{letter}{{{named}{more}}}")),
        2 => (0..3_u8, 0..12_u64).prop_map(|(id, cost)| format!("s{{\"id\":\"${id}\",\"cost\":{cost}}}")),
        1 => (0..3_u8, one()).prop_map(|(id, _)| format!("s{{\"id\":\"${id}\",\"costs\":{{\"bytes\":50,\"calls\":1}}}}")),
        2 => (0..3_u8).prop_map(|id| format!("x{{\"id\":\"${id}\"}}")),
        3 => (proxy, vec(fields, 0..4)).prop_map(|(query, fields)| format!("a{query}\t{}", fields.join("\t"))),
        2 => (0..20_000_u32).prop_map(|ms| format!("w{ms}")),
    ]
}

/// As each case is many calls: a part of what `PROPTEST_CASES` says, 256 when it says nothing.
fn fewer() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(4), ..usual }
}

proptest! {
    #![proptest_config(fewer())]

    #[test]
    fn questions_are_answered_and_charged_as_they_are_answered(lines in vec(lines(), 0..24)) {
        check(lines.join("\n").as_bytes());
    }

    #[test]
    fn any_bytes_are_answered_and_charge_nothing(bytes in vec(any::<u8>(), 0..200), letter in "[crsxa]") {
        check(&[letter.as_bytes(), &bytes].concat());
    }
}
