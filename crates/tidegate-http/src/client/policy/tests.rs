//! Tables of what is sent again, and properties of when.

use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::hint::{NoRetry, Response};

const POLICY: Policy = Policy {
    max_attempts: NonZeroU32::new(5).unwrap(),
    backoff: Duration::from_millis(500),
    backoff_max: Duration::from_secs(30),
};

const NOW: Situation = Situation {
    attempts: 1,
    left: Duration::from_secs(60),
    is_idempotent: true,
    can_repeat: true,
    random: u64::MAX,
};

fn hint(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Hint {
    let headers = headers.iter().map(|(name, value)| (*name, *value));
    Response::new(status, SystemTime::UNIX_EPOCH).headers(headers).body(body.as_bytes()).hint()
}

fn judge(status: u16, hint: &Hint, now: Situation) -> Verdict {
    let pause = hint.pause(crate::hint::CEILING).map(|pause| pause.wait);
    POLICY.judge(Outcome::Answer { status: StatusCode::from_u16(status).unwrap(), hint, pause }, now)
}

#[test]
fn what_is_sent_again() {
    /// Whether an idempotent call is, and whether another is.
    const BOTH: [bool; 2] = [true, true];
    const IDEMPOTENT: [bool; 2] = [true, false];
    const NONE: [bool; 2] = [false, false];
    let told = ("retry-after", "1");
    let throttled = r#"{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":752,
        "throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":666,"restoreRate":50}}}}"#;
    let secondary = r#"{"message":"You have exceeded a secondary rate limit."}"#;
    type Row<'a> = (u16, &'a [(&'static str, &'static str)], &'a str, [bool; 2]);
    let rows: &[Row<'_>] = &[
        (200, &[], "", NONE),
        (200, &[told], "", NONE),
        (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "5")], "", NONE),
        (200, &[], throttled, BOTH),
        (202, &[told], "", NONE),
        (302, &[told], "", NONE),
        (400, &[], "", NONE),
        (401, &[], "", NONE),
        (403, &[], "", NONE),
        (403, &[told], "", BOTH),
        (403, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "5")], "", BOTH),
        (403, &[("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "5")], "", NONE),
        (403, &[], secondary, BOTH),
        (404, &[], "", NONE),
        (408, &[], "", IDEMPOTENT),
        (409, &[], "", NONE),
        (409, &[told], "", IDEMPOTENT),
        (425, &[], "", IDEMPOTENT),
        (429, &[], "", BOTH),
        (429, &[told], "", BOTH),
        (429, &[told, ("x-should-retry", "false")], "", NONE),
        (429, &[], r#"{"error":{"code":"insufficient_quota"}}"#, NONE),
        (500, &[], "", IDEMPOTENT),
        (501, &[told], "", NONE),
        (502, &[], "", IDEMPOTENT),
        (503, &[], "", IDEMPOTENT),
        (503, &[told], "", IDEMPOTENT),
        (505, &[], "", NONE),
        (529, &[], "", IDEMPOTENT),
    ];
    for (status, headers, body, expected) in rows {
        let hint = hint(*status, headers, body);
        let is_sent_again = [true, false].map(|is_idempotent| {
            let now = Situation { is_idempotent, left: Duration::from_secs(100), ..NOW };
            matches!(judge(*status, &hint, now), Verdict::Retry { .. })
        });
        assert_eq!(is_sent_again, *expected, "{status} {headers:?} {body}");
    }
    for (failure, expected) in
        [(Failure::Unsent, BOTH), (Failure::Unknown, IDEMPOTENT), (Failure::Final, NONE)]
    {
        let is_sent_again = [true, false].map(|is_idempotent| {
            let verdict = POLICY.judge(Outcome::Failed(failure), Situation { is_idempotent, ..NOW });
            matches!(verdict, Verdict::Retry { .. })
        });
        assert_eq!(is_sent_again, expected, "{failure:?}");
    }
}

#[test]
fn why_not() {
    let told = hint(429, &[("retry-after", "30")], "");
    let stopped = |now| match judge(429, &told, now) {
        Verdict::Stop(stopped) => Some(stopped),
        _ => None,
    };
    let seconds = Duration::from_secs;
    assert_eq!(stopped(NOW), None);
    // In time to the nanosecond.
    assert_eq!(stopped(Situation { left: seconds(30), ..NOW }), None);
    let left = seconds(30).checked_sub(Duration::from_nanos(1)).unwrap();
    let signal = told.signal.clone();
    assert_eq!(
        stopped(Situation { left, ..NOW }),
        Some(Stopped::Deadline { wait: seconds(30), left, signal })
    );
    assert_eq!(stopped(Situation { attempts: 5, ..NOW }), Some(Stopped::Attempts { max: 5 }));
    assert_eq!(stopped(Situation { can_repeat: false, ..NOW }), Some(Stopped::NotRepeatable));
    let unavailable = judge(503, &hint(503, &[], ""), Situation { is_idempotent: false, ..NOW });
    assert_eq!(unavailable, Verdict::Stop(Stopped::NotIdempotent));
    // What the server forbids is said first, and a wait beside it changes nothing.
    let forbidden = hint(429, &[("x-should-retry", "false"), ("retry-after", "30")], "");
    let verdict = judge(429, &forbidden, Situation { attempts: 5, left: Duration::ZERO, ..NOW });
    assert_eq!(verdict, Verdict::Stop(Stopped::Forbidden(NoRetry::ServerSaysSo)));
}

#[test]
fn a_told_wait_counts_alone_once_and_then_beside_a_backoff_that_grows() {
    let after =
        |headers: &[_], attempts| match judge(429, &hint(429, headers, ""), Situation { attempts, ..NOW }) {
            Verdict::Retry { after } => after.as_millis(),
            other => panic!("{other:?}"),
        };
    let zero = [("retry-after", "0")];
    let two = [("retry-after", "2")];
    // With the most that is drawn, less a nanosecond.
    assert_eq!([1, 2, 3, 4].map(|attempts| after(&[], attempts)), [499, 999, 1999, 3999]);
    assert_eq!([1, 2, 3, 4].map(|attempts| after(&zero, attempts)), [0, 999, 1999, 3999]);
    assert_eq!([1, 2, 3, 4].map(|attempts| after(&two, attempts)), [2000, 2000, 2000, 3999]);
}

#[test]
fn what_is_about_one_thing_is_not_for_all() {
    let told = [("retry-after", "5")];
    let empty = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "5")];
    for (status, headers, expected) in [
        (200, &told[..], true),
        (202, &told, false),
        (302, &told, false),
        (429, &told, true),
        (503, &told, true),
        (200, &empty, true),
        (202, &empty, true),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(is_for_all(status, &hint(status.as_u16(), headers, "")), expected, "{status} {headers:?}");
    }
}

#[test]
fn methods_and_a_key_tell_what_does_no_harm_twice() {
    let none = HeaderMap::new();
    let key = |text: &'static str| {
        HeaderMap::from_iter([("idempotency-key".parse().unwrap(), HeaderValue::from_static(text))])
    };
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE] {
        assert!(is_idempotent(&method, &none), "{method}");
    }
    for method in [Method::POST, Method::PATCH, Method::CONNECT, Method::from_bytes(b"BUY").unwrap()] {
        assert!(!is_idempotent(&method, &none) && !is_idempotent(&method, &key("")), "{method}");
        assert!(is_idempotent(&method, &key("8e03978e")), "{method}");
    }
}

proptest! {
    /// Whatever is told and drawn: not before the told wait, not after the deadline, not more often than is allowed.
    #[test]
    fn no_retry_is_early_late_or_one_too_many(
        told in proptest::option::of(0_u64..200),
        attempts in 1_u32..8,
        left_ms in 0_u64..300_000,
        random: u64,
        jitter: u64,
        is_idempotent: bool,
        can_repeat: bool,
        status in proptest::sample::select(vec![200_u16, 403, 408, 429, 500, 503]),
    ) {
        let text = told.map(|seconds| seconds.to_string());
        let headers = text.iter().map(|text| ("retry-after", text.as_str()));
        let hint = Response::new(status, SystemTime::UNIX_EPOCH).headers(headers).hint();
        let pause = hint.wait.map(|wait| with_jitter(wait, jitter));
        let left = Duration::from_millis(left_ms);
        let now = Situation { attempts, left, is_idempotent, can_repeat, random };
        let outcome = Outcome::Answer { status: StatusCode::from_u16(status).unwrap(), hint: &hint, pause };
        match POLICY.judge(outcome, now) {
            Verdict::Retry { after } => {
                prop_assert!(after >= told.map_or(Duration::ZERO, Duration::from_secs));
                prop_assert!(after <= left && attempts < 5 && can_repeat);
                prop_assert!(is_idempotent || matches!(status, 403 | 429));
                prop_assert!(told.is_some() || after <= Duration::from_secs(30));
            }
            Verdict::Stop(Stopped::Deadline { wait, left: told_left, .. }) => prop_assert!(wait > left && told_left == left),
            Verdict::Done => prop_assert!(status == 200 || (status == 403 && told.is_none())),
            Verdict::Stop(_) => {}
        }
    }

    /// Jitter is upward, at most a tenth and ten seconds.
    #[test]
    fn jitter_only_lengthens(ms in 0_u64..100_000_000, random: u64) {
        let wait = Duration::from_millis(ms);
        let more = with_jitter(wait, random).checked_sub(wait).unwrap();
        prop_assert!(more <= wait / 10 && more <= Duration::from_secs(10));
    }
}
