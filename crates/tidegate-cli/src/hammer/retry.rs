//! Whether a told wait is true: alone, whoever comes back after it is allowed.
//!
//! The last rejection of a run proves nothing, since a request that was decided after it may have taken the token it was
//! promised. So after the run the server is asked again, one request at a time, until it rejects one; the wait that it
//! then tells is waited, from the receipt of that answer, and one more request must be allowed.

use std::time::{Duration, Instant};

use super::target::Target;

/// Requests that are sent to be rejected. Twice as many would find more bursts empty that a run left half full.
const ASKS: u32 = 20;

/// How long it goes on asking, and the longest wait that is waited.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The request after the wait was allowed.
    Held { told: Duration, waited: Duration },
    /// The request after the wait was rejected.
    Broken { told: Duration, waited: Duration },
    /// It could not be checked, and why.
    Skipped(String),
}

/// Checks the wait that `target` tells.
pub(crate) async fn check(target: &Target) -> Retry {
    let start = Instant::now();
    for asked in 0..ASKS {
        if start.elapsed() > PATIENCE {
            return Retry::Skipped(format!(
                "none of {asked} further requests in {} s was rejected",
                PATIENCE.as_secs()
            ));
        }
        let answer = match target.ask().await {
            Ok(answer) if answer.is_allowed() => continue,
            Ok(answer) => answer,
            Err(no_answer) => return Retry::Skipped(no_answer.cause),
        };
        let received = Instant::now();
        let Some(told) = answer.told_wait() else {
            return Retry::Skipped(format!("a {} told no wait in seconds or milliseconds", answer.status));
        };
        if told > PATIENCE {
            return Retry::Skipped(format!(
                "the wait told, {told:?}, is longer than {} s",
                PATIENCE.as_secs()
            ));
        }
        tokio::time::sleep_until((received + told).into()).await;
        let waited = received.elapsed();
        return match target.ask().await {
            Ok(answer) if answer.is_allowed() => Retry::Held { told, waited },
            Ok(_) => Retry::Broken { told, waited },
            Err(no_answer) => Retry::Skipped(no_answer.cause),
        };
    }
    Retry::Skipped(format!("none of {ASKS} further requests was rejected"))
}
