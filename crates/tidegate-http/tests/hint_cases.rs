//! Tables of answers and the hints they give, beyond the vectors of `tests/data`.

use std::time::{Duration, UNIX_EPOCH};

use tidegate_http::hint::{
    self, BODY_MAX, CEILING, FIELDS_MAX, Hint, NoRetry, Note, Reason, Response, Scope, Source, WAIT_MAX,
};

/// 2026-11-30T12:00:00Z.
const NOW: u64 = 1_796_040_000;

fn at<'a>(status: u16, headers: &[(&'a str, &'a str)], body: &'a str) -> Hint {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    Response::new(status, now).headers(headers.iter().copied()).body(body.as_bytes()).hint()
}

fn wait_ms(status: u16, headers: &[(&str, &str)], body: &str) -> Option<u128> {
    at(status, headers, body).wait.map(|wait| wait.as_millis())
}

/// Section "Retry hints and headers" of the collected failures of other clients.
#[test]
fn the_forms_that_others_misread() {
    for (reset, expected) in [
        ("2026-11-30T12:27:29Z", Some(1_649_000)),
        ("6m0s", Some(360_000)),
        ("2m59.56s", Some(179_560)),
        ("7.66s", Some(7_660)),
        ("500ms", Some(500)),
        ("60", Some(60_000)),
        ("1796040060", Some(60_000)),
        ("1796040060000", Some(60_000)),
        ("Mon, 30 Nov 2026 12:01:00 GMT", Some(60_000)),
        ("Wed, 99 Oct 2026 07:28:00 GMT", None),
        ("NaN", None),
    ] {
        let headers = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", reset)];
        assert_eq!(wait_ms(429, &headers, ""), expected, "{reset}");
    }
    for (retry_after, expected) in [
        ("Mon, 30 Nov 2026 12:28:00 GMT", Some(1_680_000)),
        ("Monday, 30-Nov-26 12:28:00 GMT", Some(1_680_000)),
        ("Mon Nov 30 12:28:00 2026", Some(1_680_000)),
        ("Wed, 21 Oct 2015 07:28:00 GMT", Some(0)),
        ("Wed, 21 Okt 2026 07:28:00 GMT", None),
        ("1796040060", Some(60_000)),
    ] {
        assert_eq!(wait_ms(429, &[("Retry-After", retry_after)], ""), expected, "{retry_after}");
    }
    let gemini = r#"{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota. Please retry in 52.454646382s.",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "52s"}]}}"#;
    let hint = at(429, &[], gemini);
    assert_eq!(hint.wait, Some(Duration::from_nanos(52_454_646_382)));
    assert_eq!(wait_ms(429, &[], &format!("[{gemini}]")), Some(52_454), "as a stream sends it");
    let without_text = gemini.replace("Please retry in", "It comes back in");
    assert_eq!(wait_ms(429, &[], &without_text), Some(52_000));
    let without_details = gemini.replace("RetryInfo", "Help");
    assert_eq!(wait_ms(429, &[], &without_details), Some(52_454));
}

#[test]
fn an_instant_in_place_of_a_delay_is_reported() {
    let hint = at(429, &[("retry-after", "1796040060")], "");
    assert!(matches!(&hint.notes[..], [Note::Instant(signal)] if signal.name == "retry-after"), "{hint:?}");
    assert_eq!(hint.pause(CEILING).map(|pause| pause.is_cut), Some(false));
}

#[test]
fn a_wait_is_bounded_and_what_was_cut_is_said() {
    let hint = at(429, &[("retry-after", "99999999999")], "");
    assert_eq!(hint.wait, Some(WAIT_MAX));
    assert_eq!(hint.notes, [Note::Saturated]);
    let pause = hint.pause(CEILING).unwrap();
    assert_eq!((pause.wait, pause.is_cut), (CEILING, true));

    let hint = at(429, &[("retry-after", "86400")], "");
    let pause = hint.pause(CEILING).unwrap();
    assert_eq!((pause.wait, pause.is_cut), (CEILING, false));
    assert_eq!(hint.pause(Duration::from_secs(60)).unwrap().wait, Duration::from_secs(60));
    assert_eq!(at(429, &[], "").pause(CEILING), None);
}

#[test]
fn a_reset_that_was_rounded_down_gets_a_second_more() {
    let envoy =
        [("x-envoy-ratelimited", "true"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "29")];
    let hint = at(429, &envoy, "");
    assert_eq!(hint.wait, Some(Duration::from_secs(29)));
    assert_eq!(hint.pause(CEILING).unwrap().wait, Duration::from_secs(30));
    let told = [envoy[0], envoy[1], envoy[2], ("retry-after", "29")];
    assert_eq!(at(429, &told, "").pause(CEILING).unwrap().wait, Duration::from_secs(29), "an instruction");
}

#[test]
fn instructions_are_the_longest_but_for_a_ceiling() {
    for (fine, coarse, expected) in [
        ("1340", "2", 1_340),
        ("1001", "2", 1_001),
        ("1000", "2", 2_000),
        ("999", "2", 2_000),
        ("2000", "2", 2_000),
        ("2001", "2", 2_001),
        ("100", "30", 30_000),
        ("soon", "2", 2_000),
        ("-20", "2", 2_000),
        ("1340", "soon", 1_340),
        ("0", "0", 0),
    ] {
        let headers = [("retry-after-ms", fine), ("Retry-After", coarse)];
        assert_eq!(wait_ms(429, &headers, ""), Some(expected), "{fine} ms beside {coarse} s");
    }
    for name in ["x-ms-retry-after-ms", "x-amz-retry-after", "grpc-retry-pushback-ms"] {
        assert_eq!(wait_ms(429, &[(name, "1500"), ("retry-after", "9")], ""), Some(9_000), "{name}");
    }
}

#[test]
fn lines_of_the_same_name_all_count() {
    assert_eq!(wait_ms(429, &[("retry-after", "5"), ("Retry-After", "10")], ""), Some(10_000));
    assert_eq!(wait_ms(429, &[("retry-after", "5"), ("Retry-After", "soon")], ""), Some(5_000));
    let twice = [
        ("x-ratelimit-remaining", "3"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "5"),
        ("x-ratelimit-reset", "9"),
    ];
    assert_eq!(wait_ms(200, &twice, ""), Some(9_000));
    let lists = [("RateLimit", "\"a\";r=0;t=3"), ("RateLimit", "\"b\";r=0;t=7, \"c\";r=1;t=99")];
    let hint = at(429, &lists, "");
    assert_eq!(hint.wait, Some(Duration::from_secs(7)));
    assert_eq!(hint.reason, Reason::Empty { dimension: "b".to_owned() });
    assert_eq!(hint.remaining("c"), Some(1));
}

#[test]
fn counters_of_different_families_are_not_mixed() {
    // express-rate-limit sends both: one is empty without a reset, the other has quota left for ten hours.
    let headers = [("x-ratelimit-remaining", "0"), ("RateLimit", "\"default\";r=100;t=36000")];
    let hint = at(429, &headers, "");
    assert_eq!(hint.wait, None);
    assert_eq!(hint.remaining("default"), Some(0), "the one with less left is shown");
    let both = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1796040050"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "50"),
    ];
    assert_eq!(wait_ms(429, &both, ""), Some(50_000));
}

#[test]
fn the_clock_of_the_server_counts() {
    let skewed = [
        ("date", "Mon, 30 Nov 2026 11:00:00 GMT"),
        ("anthropic-ratelimit-requests-remaining", "0"),
        ("anthropic-ratelimit-requests-reset", "2026-11-30T11:00:10Z"),
    ];
    assert_eq!(wait_ms(429, &skewed, ""), Some(10_000));
    let unreadable = [("date", "today"), skewed[1], skewed[2]];
    assert_eq!(wait_ms(429, &unreadable, ""), Some(0));
    let cached = [("age", "0"), skewed[0], skewed[1], skewed[2]];
    assert_eq!(wait_ms(429, &cached, ""), Some(10_000), "an age of 0 is no cache");
}

#[test]
fn time_from_now_is_preferred_to_an_instant() {
    let discord = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1796040300"),
        ("x-ratelimit-reset-after", "1.234"),
    ];
    assert_eq!(wait_ms(200, &discord, ""), Some(1_234));
    assert_eq!(wait_ms(200, &discord[..2], ""), Some(300_000));
}

#[test]
fn what_a_cache_sends_is_no_state() {
    let cached = [("age", "7"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")];
    let hint = at(200, &cached, "");
    assert_eq!((hint.wait, hint.dimensions.len()), (None, 0));
    assert_eq!(hint.notes, [Note::Stale]);
    assert_eq!(wait_ms(503, &[("age", "7"), ("retry-after", "9")], ""), Some(9_000));
    // Its date is as old as it is.
    let dated = [("date", "Mon, 30 Nov 2026 11:50:00 GMT"), ("retry-after", "Mon, 30 Nov 2026 12:00:30 GMT")];
    assert_eq!(wait_ms(503, &[("age", "600"), dated[0], dated[1]], ""), Some(30_000));
    assert_eq!(wait_ms(503, &dated, ""), Some(630_000));
}

#[test]
fn who_must_not_retry() {
    for (status, headers, body, expected) in [
        (429, &[("x-should-retry", "false")][..], "", Some(NoRetry::ServerSaysSo)),
        (429, &[("x-should-retry", "true")], "", None),
        (429, &[("Stripe-Should-Retry", "false")], "", Some(NoRetry::ServerSaysSo)),
        (200, &[("grpc-retry-pushback-ms", "-1")], "", Some(NoRetry::Pushback)),
        (200, &[("grpc-retry-pushback-ms", "soon")], "", Some(NoRetry::Pushback)),
        (200, &[("grpc-retry-pushback-ms", "2147483648")], "", Some(NoRetry::Pushback)),
        (200, &[("grpc-retry-pushback-ms", "2147483647")], "", None),
        (429, &[], r#"{"error": {"code": "insufficient_quota"}}"#, Some(NoRetry::QuotaSpent)),
        (429, &[], r#"{"error": {"type": "insufficient_quota", "code": null}}"#, Some(NoRetry::QuotaSpent)),
        (200, &[], r#"{"error": {"code": "insufficient_quota"}}"#, None),
        (403, &[("x-ratelimit-remaining", "5")], "", Some(NoRetry::NotALimit)),
        (403, &[("x-ratelimit-remaining", "5"), ("retry-after", "1")], "", None),
        (403, &[("x-ratelimit-remaining", "0")], "", None),
        (403, &[], "", None),
        (429, &[("x-ratelimit-remaining", "5")], "", None),
    ] {
        assert_eq!(at(status, headers, body).no_retry, expected, "{status} {headers:?} {body}");
    }
}

#[test]
fn shopify_tells_points() {
    let body = |requested: &str, available: &str| {
        format!(
            r#"{{"errors": [{{"extensions": {{"code": "THROTTLED"}}}}], "extensions": {{"cost":
            {{"requestedQueryCost": {requested}, "throttleStatus": {{"maximumAvailable": 1000.0,
            "currentlyAvailable": {available}, "restoreRate": 50.0}}}}}}}}"#
        )
    };
    for (requested, available, expected) in [
        ("752", "666", Some(1_720)),
        ("752.5", "666.5", Some(1_720)),
        ("5", "10", Some(0)),
        ("1000", "0", Some(20_000)),
        ("100", "-50.0", Some(3_000)),
        ("100", "-", None),
        ("\"a\"", "0", None),
    ] {
        assert_eq!(wait_ms(200, &[], &body(requested, available)), expected, "{requested} of {available}");
    }
    let hint = at(200, &[], &body("1001", "0"));
    assert_eq!((hint.wait, hint.no_retry), (None, Some(NoRetry::CostAboveCapacity)));
    assert_eq!(hint.dimensions[0].limit, Some(1000));
    assert_eq!(wait_ms(200, &[], &body("752", "666").replace("50.0", "0")), None, "nothing is restored");
}

#[test]
fn bodies_of_every_kind() {
    for (status, body, expected) in [
        (429, r#"{"retry_after": 64.57, "global": false}"#, Some(64_570)),
        (429, r#"{"retry_after": "3"}"#, Some(3_000)),
        (429, r#"{"retry_after": 1e1}"#, Some(10_000)),
        (429, r#"{"retry_after": -1}"#, None),
        (429, r#"{"retry_after": null}"#, None),
        (200, r#"{"retry_after": 5}"#, None),
        (429, r#"{"ok": false, "error_code": 429, "parameters": {"retry_after": 14}}"#, Some(14_000)),
        (429, r#"{"error": {"message": "Please try again in 6m0s. Visit us"}}"#, Some(360_000)),
        (429, r#"{"error": {"message": "Please retry after 6 seconds."}}"#, Some(6_000)),
        (200, r#"{"error": {"message": "Please retry after 6 seconds."}}"#, None),
        (
            200,
            r#"{"jsonrpc": "2.0", "error": {"code": 429, "data": {"retryAfterMs": 6900, "retryAfterSeconds": 7}}}"#,
            Some(6_900),
        ),
        (200, r#"{"jsonrpc": "2.0", "error": {"code": -32023, "data": {"retryAfter": 7}}}"#, Some(7_000)),
        (200, r#"{"jsonrpc": "2.0", "error": {"code": -32029, "data": {"retry_after": 2.5}}}"#, Some(2_500)),
        (
            200,
            r#"{"result": {"isError": true, "_meta": {"a.b/rateLimit": {"retryAfterMs": 6900}}}}"#,
            Some(6_900),
        ),
        (200, r#"{"result": {"isError": true, "_meta": {"a.b/retryAfterMs": 2500}}}"#, Some(2_500)),
        (200, r#"{"result": {"isError": false, "_meta": {"a.b/retryAfterMs": 2500}}}"#, None),
        (429, "", None),
        (429, "<html>429 Too Many Requests</html>", None),
        (429, "{\"retry_after\": 5", None),
        (429, "[[{\"retry_after\": 5}]]", None),
        (429, " [{\"retry_after\": 5}, 7] ", Some(5_000)),
    ] {
        assert_eq!(wait_ms(status, &[], body), expected, "{status} {body}");
    }
}

#[test]
fn what_is_meant_and_what_is_in_flight() {
    let bucket = [("x-ratelimit-bucket", "abcd"), ("x-ratelimit-remaining", "1")];
    assert_eq!(at(200, &bucket, "").scope, Some(Scope::Bucket("abcd".to_owned())));
    assert_eq!(at(429, &bucket, r#"{"global": true}"#).scope, Some(Scope::Global));
    assert_eq!(at(429, &[("x-ratelimit-scope", "global")], "").scope, Some(Scope::Global));
    assert_eq!(at(429, &[], "").scope, None);
    for (reason, is_in_flight) in
        [("endpoint-concurrency", true), ("global-concurrency", true), ("global-rate", false)]
    {
        let hint = at(429, &[("stripe-rate-limited-reason", reason)], "");
        assert_eq!((hint.in_flight_refused, hint.wait), (is_in_flight, None), "{reason}");
    }
    let policies = "\"conc\";q=10;qu=\"concurrent-requests\", \"burst\";q=100;w=60";
    let hint = at(200, &[("ratelimit-policy", policies)], "");
    assert_eq!(hint.in_flight_limit, Some(10));
    assert_eq!(hint.dimensions[1].limit, Some(100));
}

#[test]
fn all_editions_of_the_draft() {
    for (headers, expected, remaining) in [
        (
            &[("ratelimit-limit", "100"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "50")][..],
            Some(50_000),
            Some(0),
        ),
        (&[("ratelimit", "limit=100, remaining=0, reset=30")], Some(30_000), Some(0)),
        (&[("ratelimit", "limit=100, remaining=50, reset=30")], None, Some(50)),
        (&[("ratelimit", "\"default\";r=0;t=30")], Some(30_000), Some(0)),
        (&[("ratelimit", "default;r=0;t=30")], Some(30_000), Some(0)),
        (&[("ratelimit", "default;t=30")], None, None),
        (&[("ratelimit", "\"default\";r=-1;t=30")], None, None),
        (&[("ratelimit", "\"default\";r=0.5;t=30")], None, None),
        (&[("ratelimit", "30;r=0;t=30")], None, None),
    ] {
        let hint = at(429, headers, "");
        assert_eq!(hint.wait.map(|wait| wait.as_millis()), expected, "{headers:?}");
        assert_eq!(hint.remaining("default"), remaining, "{headers:?}");
    }
}

#[test]
fn the_signal_is_named() {
    let hint = at(429, &[("Retry-After", "5")], "");
    let signal = hint.signal.as_ref().unwrap();
    assert_eq!((signal.source, &*signal.name, &*signal.value), (Source::Header, "retry-after", "5"));
    assert_eq!(hint.reason, Reason::Instruction);
    let hint = at(403, &[], r#"{"message": "You have exceeded a secondary rate limit"}"#);
    let signal = hint.signal.as_ref().unwrap();
    assert_eq!((signal.source, &*signal.name), (Source::Body, "message"));
    assert_eq!(hint.reason, Reason::Documented);
    let hint = at(429, &[("retry-after", "in a \u{1b}[31mwhile")], "");
    assert!(matches!(&hint.notes[..], [Note::Unreadable(signal)] if signal.value == "in a \\x1b[31mwhile"));
    assert_eq!((hint.reason, hint.signal), (Reason::Nothing, None));
}

#[test]
fn what_is_beyond_a_bound_is_not_read_and_that_is_noted() {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let mut headers = vec![("x-other", "1"); FIELDS_MAX];
    headers.push(("retry-after", "5"));
    let hint = Response::new(429, now).headers(headers.iter().copied()).hint();
    assert_eq!((hint.wait, hint.notes), (None, vec![Note::TooMuch]));

    let long = "9".repeat(hint::VALUE_MAX + 1);
    let hint = Response::new(429, now).headers([("retry-after", long.as_str())]).hint();
    assert_eq!(hint.wait, None);
    assert!(matches!(&hint.notes[..], [Note::Unreadable(signal)] if signal.value.len() == 80));

    let padded = |length: usize| format!("{{\"retry_after\": 5{}}}", " ".repeat(length - 18));
    let (fits, too_long) = (padded(BODY_MAX), padded(BODY_MAX + 1));
    assert_eq!(wait_ms(429, &[], &fits), Some(5_000));
    assert_eq!(at(429, &[], &too_long).notes, [Note::TooMuch]);

    let rest = format!("\"data\": \"{}\"", "x".repeat(200_000));
    assert_eq!(wait_ms(429, &[], &format!("{{{rest}, \"retry_after\": 5}}")), Some(5_000));
    let hint = at(429, &[], &format!("{{\"error\": {{{rest}}}, \"retry_after\": 5}}"));
    assert_eq!((hint.wait, hint.notes), (Some(Duration::from_secs(5)), vec![Note::TooMuch]));

    let names: Vec<String> = (0..40).map(|n| format!("x-ratelimit-remaining-{n}")).collect();
    let hint = Response::new(429, now).headers(names.iter().map(|name| (name.as_str(), "1"))).hint();
    assert_eq!((hint.dimensions.len(), hint.notes), (32, vec![Note::TooMuch]));

    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(at(429, &[], &deep).wait, None);
    assert_eq!(at(429, &[], &format!("{{\"error\": {deep}}}")).wait, None);
}
