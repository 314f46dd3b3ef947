//! `TG.CHECK limit key [cost]`: a call in a limit of the server's own.
//!
//! The answer is that of `CL.THROTTLE`: five integers, seconds rounded up.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tidegate::Decision;
use tidegate_http::RateLimit;
use tidegate_http::layer::{Checked, Outcome, Take};

use super::codec::reply;
use crate::http::KeyOf;

/// The limits that `TG.CHECK` asks.
#[derive(Clone)]
pub struct Checks {
    /// Who decides.
    pub limits: RateLimit,
    /// How keys are read. An empty one is that of a limit without a key.
    pub key_of: KeyOf,
}

/// A decision that is under way.
pub(super) type Checking = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// What came of it.
#[derive(Debug)]
pub(super) enum Verdict {
    Decided {
        rejected: bool,
        integers: [i64; 5],
    },
    /// The text of an error, with its kind.
    Refused(String),
}

impl Checks {
    pub(super) fn begin(&self, limit: &[u8], key: &[u8], cost: u64) -> Checking {
        let text = |bytes: &[u8], what: &str| {
            String::from_utf8(bytes.to_vec()).map_err(|_| format!("ERR the {what} is no UTF-8"))
        };
        let (limit, key) = (text(limit, "limit"), text(key, "key"));
        let Self { limits, key_of } = self.clone();
        Box::pin(async move {
            let decided = async {
                let (limit, key) = (limit?, key?);
                let parts: &[String] = if key.is_empty() { &[] } else { std::slice::from_ref(&key) };
                let key = key_of(&limit, parts).map_err(|why| format!("ERR {why}"))?;
                let take = Take { limit: &limit, key, cost };
                let checked = limits.check(&[take], true).await.map_err(|error| format!("ERR {error}"))?;
                verdict(&checked)
            };
            decided.await.unwrap_or_else(Verdict::Refused)
        })
    }
}

fn verdict(checked: &Checked) -> Result<Verdict, String> {
    if checked.outcome() == Outcome::Unanswered {
        let ms = checked.retry_after().unwrap_or_default().as_millis();
        return Err(format!("TRYAGAIN what keeps the limits does not answer; retry after {ms} ms"));
    }
    let limit = checked.limits().first();
    let left = limit.and_then(|limit| limit.left);
    let seconds = |time: std::time::Duration| {
        i64::try_from(time.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX)
    };
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let reset = match left {
        Some(Decision::Allowed { reset_after, .. } | Decision::Rejected { reset_after, .. }) => {
            seconds(reset_after)
        }
        Some(Decision::Never { .. }) | None => 0,
    };
    let rejected = !checked.is_allowed();
    let integers = [
        i64::from(rejected),
        limit.and_then(|limit| limit.capacity).map_or(i64::MAX, number),
        left.map_or(0, |left| number(left.remaining())),
        checked.retry_after().map_or(-1, seconds),
        reset,
    ];
    Ok(Verdict::Decided { rejected, integers })
}

impl Verdict {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Decided { integers, .. } => reply::integers(out, *integers),
            Self::Refused(text) => reply::error(out, text),
        }
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("limits", &self.limits).finish_non_exhaustive()
    }
}
