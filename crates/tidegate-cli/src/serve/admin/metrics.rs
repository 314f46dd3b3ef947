//! `GET /metrics`: what is counted, in the text format of Prometheus (version 0.0.4).
//!
//! Labels are the names of limits and words of this program, and never keys: there are as many series as the limits file says.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::shared::Made;
use tidegate_server::resp::Resp;
use tidegate_server::rls::Rls;

use super::board::{Board, Shown};
use super::meter::{DECISIONS, OUTCOMES, TOOK_NS};
use super::state::{mode, unix};

/// What the text is.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics. It may walk through tables, so it is nothing for a thread that others wait for.
pub(super) fn text(board: &Board) -> String {
    let mut text = Text(String::with_capacity(8 * 1024));
    let requests = board.meter.total();
    let counts = board.layer().map(tidegate_http::RateLimit::counts).unwrap_or_default();

    text.family("tidegate_build_info", "gauge", "The version that runs.");
    text.sample("tidegate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family("tidegate_start_time_seconds", "gauge", "When the server began, since 1970.");
    text.sample("tidegate_start_time_seconds", &[], seconds(unix(board.started_at)));
    text.family("tidegate_requests_total", "counter", "Requests by what became of them.");
    for (outcome, count) in OUTCOMES.iter().zip(requests.outcomes) {
        text.sample("tidegate_requests_total", &[("outcome", outcome)], count);
    }
    text.family("tidegate_in_flight", "gauge", "Requests in flight, those that wait included.");
    text.sample("tidegate_in_flight", &[], counts.in_flight);
    text.family("tidegate_waiting", "gauge", "Requests that wait for their turn in a leaky bucket.");
    text.sample("tidegate_waiting", &[], counts.waiting);
    text.family("tidegate_reloads_total", "counter", "How often the limits file was read again.");
    for (result, count) in [("ok", &board.reloads.ok), ("failed", &board.reloads.failed)] {
        text.sample("tidegate_reloads_total", &[("result", result)], count.load(Ordering::Relaxed));
    }

    if let Some(store) = &board.store {
        text.family("tidegate_decisions_made_total", "counter", "Requests by how they were decided.");
        for (made, count) in Made::ALL.iter().zip(requests.made) {
            text.sample("tidegate_decisions_made_total", &[("made", made.name())], count);
        }
        text.family(
            "tidegate_store_connected",
            "gauge",
            "1 while there is a connection to the store, else 0.",
        );
        text.sample("tidegate_store_connected", &[], u8::from(store.is_connected()));
    }

    let name = "tidegate_decision_seconds";
    text.family(name, "histogram", "How long all limits together took to decide about a request.");
    let mut so_far = 0;
    for (bound, count) in TOOK_NS.iter().zip(requests.took) {
        so_far += count;
        let bound = seconds(Duration::from_nanos(*bound));
        text.sample("tidegate_decision_seconds_bucket", &[("le", &bound)], so_far);
    }
    let all: u64 = requests.took.iter().sum();
    text.sample("tidegate_decision_seconds_bucket", &[("le", "+Inf")], all);
    text.sample("tidegate_decision_seconds_sum", &[], seconds(Duration::from_nanos(requests.took_ns)));
    text.sample("tidegate_decision_seconds_count", &[], all);

    of_limits(&mut text, &board.shown());
    of_tables(&mut text, board);
    if let Some(side) = board.resp() {
        of_resp(&mut text, &side.server);
    }
    if let Some(side) = board.grpc() {
        of_grpc(&mut text, &side.server);
    }
    text.0
}

fn of_limits(text: &mut Text, limits: &[Shown]) {
    text.family("tidegate_limit_info", "gauge", "The limits in force.");
    for shown in limits {
        let limit = &shown.limit.limit;
        let labels = [
            ("limit", &*limit.name),
            ("limiter", limit.algorithm.kind().name()),
            ("mode", mode(limit.mode)),
            ("quota", &shown.limit.quota.to_string()),
        ];
        text.sample("tidegate_limit_info", &labels, 1);
    }
    text.family("tidegate_limit_decisions_total", "counter", "What each limit said of the requests.");
    for shown in limits {
        for (outcome, count) in DECISIONS.iter().zip(shown.meter.total()) {
            let labels = [("limit", &*shown.meter.name), ("outcome", outcome)];
            text.sample("tidegate_limit_decisions_total", &labels, count);
        }
    }
}

fn of_tables(text: &mut Text, board: &Board) {
    let stats = board.stats();
    let gauge = |text: &mut Text, name: &str, help: &str, of: fn(&tidegate::Stats) -> usize| {
        text.family(name, "gauge", help);
        for (limit, stats) in &stats {
            text.sample(name, &[("limit", limit)], of(stats));
        }
    };
    gauge(text, "tidegate_table_slots", "Keys that a limit can hold.", |stats| stats.slots);
    gauge(text, "tidegate_table_slots_used", "Keys that a limit holds: those with a debt.", |stats| {
        stats.used
    });
    let counter = |text: &mut Text, name: &str, help: &str, of: fn(&tidegate::Stats) -> u64| {
        text.family(name, "counter", help);
        for (limit, stats) in &stats {
            text.sample(name, &[("limit", limit)], of(stats));
        }
    };
    let help = "Keys that were forgotten before their debt was paid, for want of a slot.";
    counter(text, "tidegate_table_evicted_total", help, |stats| stats.evicted);
    let help = "The tokens that were given back so: an upper bound on what was allowed beyond the limit.";
    counter(text, "tidegate_table_forgotten_total", help, |stats| stats.forgotten);
}

fn of_resp(text: &mut Text, resp: &Resp) {
    let counts = resp.counts();
    text.single("tidegate_resp_commands_total", "counter", "Commands of Redis clients.", counts.commands);
    let help = "What CL.THROTTLE and TG.CHECK decided.";
    let outcomes = [("allowed", counts.allowed), ("rejected", counts.rejected)];
    text.split("tidegate_resp_decisions_total", "counter", help, "outcome", &outcomes);
    let help = "Commands that were answered with an error.";
    text.single("tidegate_resp_errors_total", "counter", help, counts.errors);
    text.single(
        "tidegate_resp_connections",
        "gauge",
        "Redis clients that are connected.",
        counts.connections_open,
    );
    let results = [("taken", counts.connections), ("refused", counts.connections_refused)];
    let help = "Connections of Redis clients, and those that found no place.";
    text.split("tidegate_resp_connections_total", "counter", help, "result", &results);
    text.single("tidegate_resp_slots", "gauge", "Keys that CL.THROTTLE can hold.", resp.slots());
    let help = "Keys of CL.THROTTLE that were forgotten before their debt was paid, for want of a slot.";
    text.single("tidegate_resp_keys_evicted_total", "counter", help, counts.evicted);
}

fn of_grpc(text: &mut Text, rls: &Rls) {
    let counts = rls.counts();
    let outcomes = [("allowed", counts.allowed), ("rejected", counts.rejected), ("error", counts.errors)];
    let help = "Requests of Envoys by what they were answered.";
    text.split("tidegate_grpc_requests_total", "counter", help, "outcome", &outcomes);
    text.single(
        "tidegate_grpc_in_flight",
        "gauge",
        "Requests of Envoys that are decided now.",
        counts.in_flight,
    );
    text.single("tidegate_grpc_connections", "gauge", "Connections of Envoys.", counts.connections_open);
}

/// Exactly, as a decimal fraction.
fn seconds(time: Duration) -> String {
    let text = format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A family of one sample.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// A family of a sample for each value of a label.
    fn split(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.family(name, kind, help);
        for (text, value) in values {
            self.sample(name, &[(label, text)], value);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if index == 0 { '{' } else { ',' });
            for character in text.chars() {
                match character {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (ns, text) in [(0, "0"), (250, "0.00000025"), (1_000_000_000, "1"), (10_500_000_000, "10.5")] {
            assert_eq!(seconds(Duration::from_nanos(ns)), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = Text(String::new());
        text.sample("m", &[("a", "x\"y\\z\n"), ("b", "")], 7);
        text.sample("m", &[], 8);
        assert_eq!(text.0, "m{a=\"x\\\"y\\\\z\\n\",b=\"\"} 7\nm 8\n");
    }
}
