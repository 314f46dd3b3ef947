//! What holds for every answer, whatever bytes it is made of.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_http::hint::profile::PROFILES;
use tidegate_http::hint::{CEILING, Hint, Reason, Response, WAIT_MAX};

type Field = (Vec<u8>, Vec<u8>);

fn hint(status: u16, now: SystemTime, fields: &[Field], body: &[u8]) -> Hint {
    Response::new(status, now).headers(fields.iter().map(|(name, value)| (name, value))).body(body).hint()
}

/// Any bytes as a name, or one that means something.
fn names() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<String> = PROFILES
        .iter()
        .flat_map(|profile| profile.headers.iter().map(|rule| rule.header.replace('*', "tokens")))
        .chain(["date".to_owned(), "age".to_owned()])
        .collect();
    prop_oneof![
        9 => prop::sample::select(known).prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..20),
    ]
}

/// Any bytes as a value, or what servers write, or what is made of the same characters.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let like = prop::sample::select(vec![
        "0",
        "-1",
        "1.5",
        "6m0s",
        "1h2m3s",
        "1796040030",
        "1796040030000",
        "99999999999999999999999",
        "Mon, 30 Nov 2026 12:00:30 GMT",
        "Monday, 30-Nov-26 12:00:30 GMT",
        "Wed Dec  2 12:00:00 2026",
        "2026-11-30T14:00:10.250+02:00",
        "\"a\";r=0;t=7, \"b\";r=1;t=9",
        "limit=1, remaining=0, reset=3",
        "32/40",
        "rejected",
        "CAgSAXEaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIHg",
    ]);
    prop_oneof![
        3 => like.clone().prop_map(|text| text.as_bytes().to_vec()),
        2 => "[0-9:;,.=\"a-zA-Z +/-]{0,40}".prop_map(String::into_bytes),
        2 => (0..20_000_000_000_000_u64).prop_map(|number| number.to_string().into_bytes()),
        1 => (like, 0..80_usize, any::<u8>()).prop_map(|(text, at, byte)| {
            let mut text = text.as_bytes().to_vec();
            let at = at % text.len();
            text[at] = byte;
            text
        }),
        1 => vec(any::<u8>(), 0..60),
    ]
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let like = prop::sample::select(vec![
        r#"{"error":{"code":429,"message":"Please retry in 5.5s.","details":[{"@type":"google.rpc.RetryInfo","retryDelay":"5s"}]}}"#,
        r#"{"retry_after":64.57,"global":true,"message":"secondary rate"}"#,
        r#"{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":752,"throttleStatus":{"maximumAvailable":1000.0,"currentlyAvailable":666,"restoreRate":50.0}}}}"#,
        r#"{"result":{"isError":true,"_meta":{"a/retryAfterMs":2500}},"error":{"data":{"retryAfter":1e3}}}"#,
    ]);
    prop_oneof![
        1 => Just(Vec::new()),
        2 => like.clone().prop_map(|text| text.as_bytes().to_vec()),
        2 => (like, vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)).prop_map(|(text, changes)| {
            let mut text = text.as_bytes().to_vec();
            for (at, byte) in changes {
                let at = at.index(text.len());
                text[at] = byte;
            }
            text
        }),
        1 => vec(any::<u8>(), 0..200),
    ]
}

/// From 7000 years before 1970 to 7000 after.
fn times() -> impl Strategy<Value = SystemTime> {
    let near = (0..10_000_000_000_000_000_000_u64).prop_map(|ns| UNIX_EPOCH + Duration::from_nanos(ns));
    let far = (-220_000_000_000_i64..220_000_000_000).prop_map(|seconds| {
        let distance = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    });
    prop_oneof![near, far, Just(UNIX_EPOCH + Duration::from_secs(1_796_040_000))]
}

fn instructions() -> impl Strategy<Value = Field> {
    let names = ["retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after", "x-retry-in"];
    (prop::sample::select(names.to_vec()), values()).prop_map(|(name, value)| (name.into(), value))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// No panic, every bound kept, and a signal for every wait.
    #[test]
    fn any_bytes_give_a_hint_within_its_bounds(
        status in any::<u16>(), now in times(), fields in vec((names(), values()), 0..12), body in bodies(),
    ) {
        let hint = hint(status, now, &fields, &body);
        prop_assert!(hint.wait.is_none_or(|wait| wait <= WAIT_MAX));
        prop_assert_eq!(hint.wait.is_some(), hint.signal.is_some());
        prop_assert_eq!(hint.wait.is_none(), hint.reason == Reason::Nothing);
        prop_assert!(hint.dimensions.len() <= 32 && hint.notes.len() <= 16);
        prop_assert!(hint.dimensions.iter().all(|known| known.reset.is_none_or(|reset| reset <= WAIT_MAX)));
        let pause = hint.pause(CEILING);
        prop_assert_eq!(pause.is_some(), hint.wait.is_some());
        if let Some(pause) = pause {
            prop_assert!(pause.wait <= CEILING);
            prop_assert!(pause.is_cut || Some(pause.wait) >= hint.wait, "a pause is never shorter unless it is cut");
        }
    }

    /// An instruction that is added never shortens the wait, except by less than the second that a ceiling may be off.
    #[test]
    fn more_instructions_never_shorten(
        now in times(), fields in vec(instructions(), 0..6), more in instructions(),
    ) {
        let before = hint(429, now, &fields, b"").wait;
        let mut longer = fields.clone();
        longer.push(more);
        let after = hint(429, now, &longer, b"").wait;
        let slack = Duration::from_secs(1);
        prop_assert!(before.is_none_or(|before| after.is_some_and(|after| before < after + slack)), "{:?} {:?}", before, after);
    }

    /// Without an instruction, a counter that is added never shortens the wait.
    #[test]
    fn more_counters_never_shorten(
        now in times(),
        counters in vec((0..4_u8, any::<bool>(), 0..2_u8, values()), 0..8),
        more in (0..4_u8, any::<bool>(), 0..2_u8, values()),
    ) {
        let field = |(dimension, is_reset, remaining, value): (u8, bool, u8, Vec<u8>)| -> Field {
            if is_reset {
                (format!("x-ratelimit-reset-d{dimension}").into(), value)
            } else {
                (format!("x-ratelimit-remaining-d{dimension}").into(), remaining.to_string().into())
            }
        };
        let mut fields: Vec<Field> = counters.into_iter().map(field).collect();
        let before = hint(429, now, &fields, b"").wait;
        fields.push(field(more));
        let after = hint(429, now, &fields, b"").wait;
        prop_assert!(before <= after, "{:?} {:?}", before, after);
    }

    /// A longer time in the same place never means a shorter wait.
    #[test]
    fn a_longer_time_is_a_longer_wait(seconds in 0..1_000_000_u64, more in 0..1_000_000_u64) {
        let now = UNIX_EPOCH + Duration::from_secs(1_796_040_000);
        let wait = |value: String| hint(429, now, &[(b"retry-after".to_vec(), value.into_bytes())], b"").wait;
        prop_assert!(wait(seconds.to_string()) <= wait((seconds + more).to_string()));
        let reset = |value: String| {
            let fields = [
                (b"x-ratelimit-remaining".to_vec(), b"0".to_vec()),
                (b"x-ratelimit-reset".to_vec(), value.into_bytes()),
            ];
            hint(429, now, &fields, b"").wait
        };
        prop_assert_eq!(reset(seconds.to_string()), Some(Duration::from_secs(seconds)));
        prop_assert_eq!(reset((1_796_040_000 + more).to_string()), Some(Duration::from_secs(more)));
    }
}
