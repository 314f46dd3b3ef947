//! What holds for any questions over HTTP. The tests beside this ask it of questions that are made at random, and
//! `fuzz/fuzz_targets/http.rs` and `http_calls.rs` of those that libFuzzer looks for.
//!
//! Questions come as lines. The first letter of one says what it is, and the rest is its body:
//!
//! | | |
//! | --- | --- |
//! | `c` | `/v1/check`; with `C` a call that is rejected waits as it is told, and then has to be allowed |
//! | `r` | `/v1/reserve` |
//! | `s`, `x` | `/v1/settle` and `/v1/cancel`; `$0` to `$9` stand for the ids of the last reservations |
//! | `a` | `/v1/auth`: its query, and fields `name: value`, with tabs between them |
//! | `w` | so many milliseconds go by |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use serde_json::Value;
use tidegate::algorithm::LeakyBucket;
use tidegate::clock::ManualClock;
use tidegate::{Algorithm, Kind, Quota};
use tidegate_http::fields::parse_state;
use tidegate_http::identity::ClientIdentity;
use tidegate_http::layer::Key;
use tidegate_http::{KeyBy, RateLimit, RequestLimit};
use tidegate_server::http::{Api, router};
use tower::ServiceExt as _;

/// The limits, and what a request that a proxy asks about costs in them.
const LIMITS: [(&str, u64); 6] =
    [("calls", 1), ("bytes", 10), ("window", 1), ("log", 1), ("turns", 1), ("trial", 1)];

/// The keys whose levels are looked at.
const KEYS: [&str; 3] = ["ann", "bob", ""];

/// The most bytes of an answer: each limit that is named is in it, with its key.
const ANSWER_MAX: usize = 1 << 18;

type Levels = Vec<u64>;

struct Server {
    clock: ManualClock,
    limits: RateLimit,
    router: Router,
    /// What is reserved: its id, and the estimates by limit and key.
    reserved: Vec<(String, Vec<(usize, u64)>)>,
    /// What was allowed since the start, in the order of the levels.
    allowed: Levels,
    passed: Duration,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

/// Asks the questions of a script in their order.
///
/// # Panics
///
/// When something does not hold.
pub(crate) fn check(script: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut server = Server::new();
        for line in script.split(|byte| *byte == b'\n').take(64) {
            server.ask(line).await;
        }
    });
}

impl Server {
    fn new() -> Self {
        let clock = ManualClock::new();
        let quota = |text: &str| text.parse::<Quota>().expect("a quota");
        let turns = LeakyBucket::new(quota("2/s burst 2"), 5).with_max_wait(Duration::from_secs(2));
        let account = KeyBy::header("x-account");
        let limit = |name, limit: RequestLimit| {
            let (_, cost) = LIMITS.into_iter().find(|(other, _)| *other == name).expect("its cost");
            limit.key(account.clone()).cost(move |_| cost).capacity(64)
        };
        let limits = RateLimit::builder()
            .limit(limit("calls", RequestLimit::new("calls", quota("1/s burst 3"))))
            .limit(limit("bytes", RequestLimit::new("bytes", quota("10/s burst 100"))))
            .limit(limit(
                "window",
                RequestLimit::new("window", Algorithm::new(Kind::FixedWindow, quota("6/10s"))),
            ))
            .limit(limit("log", RequestLimit::new("log", Algorithm::new(Kind::SlidingLog, quota("7/10s")))))
            .limit(limit("turns", RequestLimit::new("turns", Algorithm::LeakyBucket(turns))))
            .limit(limit("trial", RequestLimit::new("trial", quota("1/h"))).shadow())
            .identity(ClientIdentity::new().trusted_proxies("10.0.0.0/8".parse().expect("networks")))
            .clock(clock.clone())
            .build()
            .expect("limits");
        let api =
            Api { limits: limits.clone(), key_of: Arc::new(key_of), words: Arc::new(Vec::new), token: None };
        let allowed = vec![0; LIMITS.len() * KEYS.len()];
        Self { clock, limits, router: router(api), reserved: Vec::new(), allowed, passed: Duration::ZERO }
    }

    async fn ask(&mut self, line: &[u8]) {
        let Some((first, rest)) = line.split_first() else { return };
        let body = unfolded(rest);
        match first {
            b'w' => {
                let ms = str::from_utf8(rest).ok().and_then(|text| text.parse::<u32>().ok());
                self.wait(ms.unwrap_or(0).into()).await;
            }
            b'c' | b'C' => {
                let answer = self.charged("/v1/check", &body).await;
                let wait = answer.json()["retry_after_ms"].as_u64();
                if let (b'C', 429, Some(ms)) = (first, answer.status, wait) {
                    self.wait(ms).await;
                    let again = self.charged("/v1/check", &body).await;
                    assert_eq!(again.status, 200, "who waits as told is allowed: {}", body.escape_ascii());
                }
            }
            b'r' => _ = self.charged("/v1/reserve", &body).await,
            b's' => self.settled("/v1/settle", &self.with_ids(&body)).await,
            b'x' => self.settled("/v1/cancel", &self.with_ids(&body)).await,
            b'a' => self.of_proxy(&body).await,
            _ => {}
        }
    }

    async fn wait(&mut self, ms: u64) {
        let time = Duration::from_millis(ms.min(1 << 32));
        self.clock.advance(time);
        tokio::time::advance(time).await;
        self.passed += time;
    }

    /// A question that charges what it names, or nothing.
    async fn charged(&mut self, path: &str, body: &[u8]) -> Answer {
        let before = self.levels();
        let answer = self.post(path, body).await;
        let after = self.levels();
        let json = answer.json();
        if matches!(answer.status, 200 | 422 | 429) {
            self.decided(&answer, &json);
        } else {
            answer.is_problem();
        }
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        if answer.status != 200 || asked["peek"] == true {
            assert_eq!(after, before, "{} {}", answer.status, body.escape_ascii());
            return answer;
        }
        let mut expected = before;
        let mut estimates = Vec::new();
        for limit in json["limits"].as_array().expect("its limits") {
            let at = place(limit["limit"].as_str(), limit["key"][0].as_str());
            let cost = limit["cost"].as_u64().expect("its cost");
            if let (Some(at), true) = (at, limit["allowed"] == true) {
                expected[at] -= cost;
                self.allowed[at] += cost;
                estimates.push((at, cost));
            }
        }
        assert_eq!(after, expected, "{}", body.escape_ascii());
        if path == "/v1/reserve" {
            self.reserved.push((json["id"].as_str().expect("an id").to_owned(), estimates));
        }
        self.is_within_quota();
        answer
    }

    /// A question about what is reserved, which gives back at most that.
    async fn settled(&mut self, path: &str, body: &[u8]) {
        let before = self.levels();
        let answer = self.post(path, body).await;
        let after = self.levels();
        if answer.status != 200 {
            answer.is_problem();
            assert_eq!(after, before, "{}", body.escape_ascii());
            return;
        }
        let asked: Value = serde_json::from_slice(body).expect("it was understood");
        let at = self.reserved.iter().position(|(id, _)| asked["id"] == **id).expect("what was reserved");
        let (_, estimates) = self.reserved.remove(at);
        let missing = whole(&answer.json()["missing"]);
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            let of_limit = estimates.iter().find(|(other, _)| *other == at);
            let Some((_, estimate)) = of_limit else {
                assert_eq!(after, before, "what was not reserved is as it was");
                continue;
            };
            assert!(*after <= before + estimate, "more is given back than was charged");
            // What it has cost in this limit at least, if all that is missing is.
            let cost = if asked["costs"].is_object() {
                &asked["costs"][LIMITS[at / KEYS.len()].0]
            } else {
                &asked["cost"]
            };
            let cost = whole(cost).saturating_sub(missing);
            self.allowed[at] = self.allowed[at] - estimate + cost;
        }
        self.is_within_quota();
    }

    /// The question of a proxy, which charges all limits or none.
    async fn of_proxy(&mut self, line: &[u8]) {
        let mut parts = line.split(|byte| *byte == b'\t');
        let uri = [b"/v1/auth?", parts.next().unwrap_or_default()].concat();
        let Ok(uri) = Uri::try_from(uri) else { return };
        let mut request = Request::get(uri).body(Body::empty()).expect("a request");
        for field in parts {
            let Some(colon) = field.iter().position(|byte| *byte == b':') else { continue };
            let name = HeaderName::from_bytes(&field[..colon]);
            let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field[colon + 1..].trim_ascii()))
            else {
                continue;
            };
            request.headers_mut().append(name, value);
        }
        request.extensions_mut().insert(axum::extract::ConnectInfo(SocketAddr::from(([10, 0, 0, 5], 4711))));
        let has = |name, value: &str| request.headers().get(name).is_some_and(|given| given == value);
        let is_head = has("x-forwarded-method", "HEAD");
        // What a browser asks before a request is no request yet.
        let is_free = has("x-forwarded-method", "OPTIONS")
            && ["origin", "access-control-request-method"]
                .iter()
                .all(|name| request.headers().contains_key(*name));
        let named = request.headers().get_all("x-account").iter().collect::<Vec<_>>();
        let key = match named[..] {
            [one] => KEYS.iter().position(|key| !key.is_empty() && one == key),
            _ => None,
        };
        let before = self.levels();
        let answer = self.send(request).await;
        let after = self.levels();
        match answer.status {
            200 => assert!(answer.bytes.is_empty()),
            // What is refused to a HEAD has no body.
            400..500 if is_head && answer.bytes.is_empty() => {}
            400..500 => answer.is_problem(),
            status => panic!("{status}: {}", line.escape_ascii()),
        }
        if answer.status != 200 {
            assert_eq!(after, before, "{}", line.escape_ascii());
        } else if let Some(key) = key {
            for (limit, (name, cost)) in LIMITS.into_iter().enumerate() {
                let at = limit * KEYS.len() + key;
                let taken = before[at] - after[at];
                let cost = if is_free { 0 } else { cost };
                assert!(taken == cost || name == "trial" && taken == 0, "{name} {taken}");
                self.allowed[at] += taken;
            }
            self.is_within_quota();
        }
    }

    async fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.send(Request::post(path).body(body.to_vec().into()).expect("a request")).await
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let Ok(response) = self.router.clone().oneshot(request).await;
        let (head, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, ANSWER_MAX).await.expect("an answer has a bound").to_vec();
        if let Some(length) = head.headers.get("content-length") {
            assert_eq!(length.to_str().ok(), Some(&*bytes.len().to_string()), "as long as it says");
        }
        Answer { status: head.status.as_u16(), headers: head.headers, bytes }
    }

    /// What the answer to a decision says fits together.
    fn decided(&self, answer: &Answer, json: &Value) {
        assert_eq!(json["allowed"] == true, answer.status == 200);
        assert_eq!(json["refused_by"].is_null(), answer.status == 200);
        assert!(answer.status == 200 || json["id"].is_null());
        let wait = json["retry_after_ms"].as_u64();
        assert_eq!(wait.is_some_and(|ms| ms > 0), answer.status == 429, "{json}");
        let field = |name: &str| answer.headers.get(name).map(|value| value.to_str().expect("text"));
        assert_eq!(field("retry-after-ms").map(str::to_owned), wait.map(|ms| ms.to_string()));
        let seconds = field("retry-after").map(|text| text.parse::<u64>().expect("seconds"));
        assert_eq!(seconds, wait.map(|ms| ms.div_ceil(1000)));
        assert!(parse_state(answer.headers.get_all("ratelimit")).is_some());
        for limit in json["limits"].as_array().expect("its limits") {
            assert!(limit["remaining"].as_u64() <= limit["capacity"].as_u64(), "{limit}");
        }
    }

    /// What is left of each limit to each key.
    fn levels(&self) -> Levels {
        let keys =
            || KEYS.into_iter().map(|key| if key.is_empty() { Key::everyone() } else { Key::from(key) });
        let of_limit = |(limit, _): (&'static str, u64)| keys().map(move |key| (limit, key));
        let level = |(limit, key)| self.limits.level(limit, &key).expect("a level").remaining();
        LIMITS.into_iter().flat_map(of_limit).map(level).collect()
    }

    /// Over all the time that has passed not more was allowed than the burst and what came since.
    fn is_within_quota(&self) {
        let ms = self.passed.as_millis();
        let bounds = [
            3 + ms / 1000,
            100 + ms / 100,
            6 * (2 + ms / 10_000),
            7 * (1 + ms / 10_000),
            7 + ms / 500,
            1 + ms / 3_600_000,
        ];
        for (at, allowed) in self.allowed.iter().enumerate() {
            let bound = bounds[at / KEYS.len()];
            assert!(u128::from(*allowed) <= bound, "{} of {:?}", allowed, LIMITS[at / KEYS.len()]);
        }
    }

    /// A body in which the ids of reservations stand where they are meant.
    fn with_ids(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = body;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let which = match (byte, after.first()) {
                (b'$', Some(digit @ b'0'..=b'9')) => usize::from(digit - b'0'),
                _ => {
                    out.push(byte);
                    continue;
                }
            };
            rest = &after[1..];
            let id = self.reserved.iter().rev().nth(which).map_or("none", |(id, _)| id);
            out.extend_from_slice(id.as_bytes());
        }
        out
    }
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|_| panic!("no JSON: {}", self.bytes.escape_ascii()))
    }

    /// It says what is wrong, as RFC 9457 has it.
    fn is_problem(&self) {
        assert!(matches!(self.status, 400..500), "{}", self.status);
        assert_eq!(
            self.headers.get("content-type").map(HeaderValue::as_bytes),
            Some(&b"application/problem+json"[..])
        );
        let json = self.json();
        assert_eq!(json["status"], self.status, "{json}");
        assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{json}");
    }
}

fn key_of(_: &str, parts: &[String]) -> Result<Key<'static>, String> {
    match parts {
        [] => Ok(Key::everyone()),
        [key] => Ok(Key::from(key.clone())),
        _ => Err("a key of this limit has one part".to_owned()),
    }
}

/// Where the level of a limit and a key is, if it is looked at.
fn place(limit: Option<&str>, key: Option<&str>) -> Option<usize> {
    let limit = LIMITS.iter().position(|(name, _)| limit == Some(name))?;
    // An empty key is another one than none.
    let key =
        KEYS.iter().position(|name| key.map_or(name.is_empty(), |key| key == *name && !key.is_empty()))?;
    Some(limit * KEYS.len() + key)
}

/// A whole number, which can be written with a point; 0 if it is none.
fn whole(number: &Value) -> u64 {
    let of_float = || format!("{:.0}", number.as_f64()?).parse().ok();
    number.as_u64().or_else(of_float).unwrap_or(0)
}

/// The body of a line: 0xff and a byte behind it stand for many letters, so that the bounds are found.
fn unfolded(line: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = match (byte, after.split_first()) {
            (0xff, Some((count, after))) => {
                body.resize(body.len() + usize::from(*count) * 300, b'a');
                after
            }
            _ => {
                body.push(byte);
                after
            }
        };
    }
    body
}
