//! The end: whoever is connected gets the answers to what came, for a while.

use std::time::Duration;

use tidegate_http::RateLimit;

use super::{grpc, resp};
use crate::fault::warn;
use crate::http_server::connections::Connections;
use crate::http_server::signals::Signals;

/// How long a server that was told to stop waits for the requests in flight. A leaky bucket may let calls wait for
/// longer; those are not answered then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends each connection when it has its answers. What is left after [`DRAIN_TIMEOUT`], or at another signal, is cut off, with a
/// warning that says what it was.
pub(super) async fn drain(
    (layer, connections): (&RateLimit, Connections),
    resp: Option<resp::Server>,
    grpc: Option<grpc::Server>,
    signals: &mut Signals,
) {
    let (commands, asked) = (resp.as_ref().map(resp::Server::resp), grpc.as_ref().map(grpc::Server::rls));
    let left = || {
        let resp = commands.as_ref().map(|resp| resp.counts().connections_open);
        let grpc = asked.as_ref().map(|rls| rls.counts());
        in_words([
            (layer.counts().in_flight, "HTTP request"),
            (connections.open(), "HTTP connection"),
            (resp.unwrap_or(0), "RESP connection"),
            (grpc.map_or(0, |grpc| grpc.in_flight), "gRPC request"),
            (grpc.map_or(0, |grpc| grpc.connections_open), "gRPC connection"),
        ])
    };
    let drained = async {
        let resp = async {
            if let Some(resp) = resp {
                resp.stop().await;
            }
        };
        let grpc = async {
            if let Some(grpc) = grpc {
                grpc.stop().await;
            }
        };
        tokio::join!(connections.shutdown(), resp, grpc)
    };
    tokio::select! {
        _ = drained => {}
        () = tokio::time::sleep(DRAIN_TIMEOUT) => {
            warn(&format!("cut off after {} s: {}", DRAIN_TIMEOUT.as_secs(), left()));
        }
        () = signals.next() => warn(&format!("cut off by a second signal: {}", left())),
    }
}

/// What there are any of.
fn in_words<const N: usize>(counts: [(u64, &str); N]) -> String {
    let some = counts.into_iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> =
        some.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" })).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_what_there_is() {
        assert_eq!(
            in_words([(0, "a"), (2, "HTTP request"), (1, "RESP connection")]),
            "2 HTTP requests, 1 RESP connection"
        );
        assert_eq!(in_words([(0, "a")]), "nothing");
    }
}
