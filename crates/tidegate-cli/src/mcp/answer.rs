//! What the proxy says itself: results for calls that did not start, and notifications of progress.

use std::time::Duration;

use serde_json::json;

use super::charges::Method;
use super::desk::Gone;
use super::frame::Asked;
use super::limits::Rule;
use super::line::{Refusal, Why};
use super::shared::SharedBudget;

/// The member of `_meta` for programs.
const META: &str = "io.github.tidegate/rateLimit";

/// The shortest wait that is told when nobody knows it: until a place in flight comes free.
const LEAST: Duration = Duration::from_secs(1);

/// JSON-RPC's code for a fault that is not the caller's.
const INTERNAL: i64 = -32603;

/// JSON-RPC's code for a request that is none.
const INVALID: i64 = -32600;

/// The code of an error that says how long to wait, as gateways use it until the protocol has one (SEP-3304).
const RATE_LIMITED: i64 = 429;

/// A call that the limits do not let start. For a tool it is a result with `isError`, the one form that all clients hand to
/// the model with its text. There is no `structuredContent`, which would have to be as the tool describes. For other
/// requests it is an error, as they have no such result.
pub(crate) fn refused(asked: &Asked, rules: &[Rule], refusal: &Refusal, waited: Duration) -> Vec<u8> {
    let rule = refusal.limit.and_then(|limit| rules.get(limit));
    let hopeless = matches!(refusal.why, Why::Never { .. } | Why::Broken);
    let retry_after = (!hopeless).then(|| match refusal.why {
        Why::NoPlace => refusal.wait.max(LEAST),
        _ => refusal.wait.max(Duration::from_millis(1)),
    });
    let text = words(asked, rule, refusal.why, waited, retry_after.map_or(0, whole_seconds));
    let mut details = json!({
        "limit": rule.map_or("", |rule| &rule.name),
        "reason": reason(refusal.why),
        "executed": false,
        "waitedMs": millis(waited),
        "retryAfterMs": retry_after.map(millis),
    });
    if let Why::Never { capacity } = refusal.why {
        details["capacity"] = json!(capacity);
    }
    let id = &asked.raw_id;
    if asked.method != Method::CallTool {
        details["retryAfterSeconds"] = json!(retry_after.map(whole_seconds));
        let error = json!({"code": RATE_LIMITED, "message": text, "data": details});
        return line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
    }
    let mut result = json!({
        "content": [{"type": "text", "text": text}],
        "isError": true,
        "_meta": {META: details},
    });
    if asked.modern {
        result["resultType"] = json!("complete");
    }
    line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

/// What the model reads.
fn words(asked: &Asked, rule: Option<&Rule>, why: Why, waited: Duration, seconds: u64) -> String {
    let tool = called(asked);
    let name = rule.map_or("", |rule| &rule.name);
    let limit = rule.map_or_else(
        || "the line".to_owned(),
        |rule| format!("{}: {}", rule.name, rule.words(&asked.subject)),
    );
    let again = format!("Retry after {seconds} s; do not call it again before then.");
    let held = if waited < Duration::from_millis(1) {
        String::new()
    } else {
        format!(" after waiting {} s", whole_seconds(waited))
    };
    match why {
        Why::Never { capacity } => format!(
            "Not executed: {tool} costs {}, and the limit ({limit}) never allows more than {capacity} at once. Waiting cannot help; do not call it again like this.",
            asked.cost
        ),
        Why::Full => {
            format!(
                "Rate limit reached for {tool} ({limit}), and the waiting line is full. Not executed. {again}"
            )
        }
        Why::Late => format!("Rate limit reached for {tool} ({limit}). Not executed{held}. {again}"),
        Why::Closed => {
            format!("The service behind {tool} has asked for a pause. Not executed{held}. {again}")
        }
        Why::NoPlace => {
            let places = rule.and_then(Rule::places);
            let places = places.map_or_else(|| limit.clone(), |max| format!("{name}: {max} in flight"));
            format!("Too many calls run at once for {tool} ({places}). Not executed{held}. {again}")
        }
        Why::Broken => {
            let fault =
                rule.and_then(|rule| rule.budget.as_ref()).map_or_else(String::new, SharedBudget::fault);
            format!(
                "Not executed: the budget {name} cannot be used: {fault}. Waiting does not help; the user has to look after it."
            )
        }
    }
}

/// What was called, for the model.
fn called(asked: &Asked) -> String {
    match asked.method {
        Method::CallTool => format!("tool {}", asked.subject.tool),
        other => other.name().to_owned(),
    }
}

/// The word for a refusal in `_meta` and in the log.
pub(crate) const fn reason(why: Why) -> &'static str {
    match why {
        Why::Never { .. } => "never",
        Why::Full => "line-full",
        Why::Late => "rate",
        Why::NoPlace => "in-flight",
        Why::Closed => "server",
        Why::Broken => "budget",
    }
}

/// A call that did not start before somebody has ended.
pub(crate) fn unserved(asked: &Asked, gone: Gone) -> Vec<u8> {
    let who = match gone {
        Gone::Server => "the MCP server",
        Gone::Proxy => "the proxy in front of the MCP server",
    };
    let error = json!({
        "code": INTERNAL,
        "message": format!("{who} ended before the call of {} started; not executed", called(asked)),
        "data": {"executed": false},
    });
    line(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, asked.raw_id))
}

/// A call that was passed on and whose answer was no message, when the client already has the head of another.
pub(crate) fn of_http(id: &str, status: u16) -> Vec<u8> {
    let error = json!({
        "code": INTERNAL,
        "message": format!("the MCP server answered with HTTP status {status}"),
        "data": {"httpStatus": status},
    });
    line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
}

/// Several messages in one line with a tool call among them, which the limits cannot decide.
pub(crate) fn batch() -> Vec<u8> {
    let error = json!({
        "code": INVALID,
        "message": "tool calls in a batch cannot be limited, so none of it was passed on; send each by itself",
    });
    line(&format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#))
}

/// A tool call that servers may read in different ways, so that nobody knows which tool it is and what it costs.
pub(crate) fn unclear(id: Option<&str>) -> Vec<u8> {
    let error = json!({
        "code": INVALID,
        "message": "not passed on: a tool call has each of its members once, an id and a name of no more than 1 KiB, and a message of its own",
        "data": {"executed": false},
    });
    line(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.unwrap_or("null")))
}

/// How a waiting call gets on. `step` rises by one each time and is told in thousandths, so that it stays below what the
/// server will tell with the same token.
pub(crate) fn progress(token: &str, step: u32, waited: Duration) -> Vec<u8> {
    let message = json!(format!("waiting for a rate limit, {} s so far", waited.as_secs()));
    line(&format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{}.{:03},"message":{message}}}}}"#,
        step / 1000,
        step % 1000,
    ))
}

fn line(message: &str) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}

/// Whole seconds, rounded up and at least 1.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// Whole milliseconds, rounded up.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::charges::Charges;
    use crate::mcp::frame::{Message, message};
    use serde_json::Value;

    fn asked(version: &str) -> Asked {
        let line = format!(
            r#"{{"id":"a\u00e9","method":"tools/call","params":{{"name":"search","_meta":{{{version}}}}}}}"#
        );
        match message(line.as_bytes(), &Charges::default()) {
            Message::Call(asked) => Asked { cost: 5, ..asked },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_says_which_limit_how_long_and_that_nothing_ran() {
        let rules: Vec<Rule> =
            Rule::of_flags(Some("10/min burst 3".parse().unwrap()), std::num::NonZeroU64::new(4))
                .into_iter()
                .collect();
        let ms = Duration::from_millis;
        let legacy = asked("");
        for (why, wait, waited, expected) in [
            (
                Why::Late,
                ms(6_900),
                ms(0),
                "Rate limit reached for tool search (all-tools: 10 per minute, burst 3). Not executed. Retry after 7 s; do not call it again before then.",
            ),
            (
                Why::Late,
                ms(1),
                ms(20_000),
                "Rate limit reached for tool search (all-tools: 10 per minute, burst 3). Not executed after waiting 20 s. Retry after 1 s; do not call it again before then.",
            ),
            (
                Why::Full,
                ms(7_000),
                ms(0),
                "Rate limit reached for tool search (all-tools: 10 per minute, burst 3), and the waiting line is full. Not executed. Retry after 7 s; do not call it again before then.",
            ),
            (
                Why::NoPlace,
                ms(0),
                ms(20_000),
                "Too many calls run at once for tool search (all-tools: 4 in flight). Not executed after waiting 20 s. Retry after 1 s; do not call it again before then.",
            ),
            (
                Why::Never { capacity: 3 },
                ms(0),
                ms(0),
                "Not executed: tool search costs 5, and the limit (all-tools: 10 per minute, burst 3) never allows more than 3 at once. Waiting cannot help; do not call it again like this.",
            ),
        ] {
            let refusal = Refusal { limit: Some(0), wait, why };
            let answer = refused(&legacy, &rules, &refusal, waited);
            assert_eq!(answer.iter().filter(|byte| **byte == b'\n').count(), 1);
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer["result"]["content"][0]["text"], expected);
            assert_eq!(answer["result"]["isError"], true);
            assert_eq!(answer["result"].get("resultType"), None);
            assert_eq!(answer["id"], "a\u{e9}");
            let meta = &answer["result"]["_meta"][META];
            assert_eq!((&meta["executed"], &meta["limit"]), (&json!(false), &json!("all-tools")));
            let told = if matches!(why, Why::Never { .. }) {
                Value::Null
            } else {
                json!(millis(wait.max(if why == Why::NoPlace { LEAST } else { wait })))
            };
            assert_eq!(meta["retryAfterMs"], told);
        }
        let modern = asked(r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#);
        let refusal = Refusal { limit: Some(0), wait: ms(5), why: Why::Late };
        let answer = refused(&modern, &rules, &refusal, ms(0));
        assert!(answer.starts_with(br#"{"jsonrpc":"2.0","id":"a\u00e9","#), "the id is as it came");
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["result"]["resultType"], "complete");
    }

    #[test]
    fn progress_rises_in_small_steps() {
        let text = |step| String::from_utf8(progress("\"t\"", step, Duration::from_millis(6_900))).unwrap();
        assert_eq!(
            text(7),
            "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"t\",\"progress\":0.007,\"message\":\"waiting for a rate limit, 6 s so far\"}}\n"
        );
        assert!(text(1001).contains("\"progress\":1.001,"));
    }
}
