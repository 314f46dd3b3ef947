//! `deploy/grafana/tidegate.json`, and the table of metrics in the guide: a Prometheus reads a server with all sides on, and is
//! asked what the dashboard asks.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs, process};

use serde_json::{Value, json};

use super::grpc::user;
use super::limits::File;
use super::process::*;
use super::redis_server::Server as Redis;
use super::sides::{ACCOUNT, Sides};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// A Prometheus that reads one server, each second.
struct Prometheus {
    /// Ends it.
    _running: Running,
    address: String,
    folder: PathBuf,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let folder = env::temp_dir().join(format!("tidegate-prometheus-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("prometheus.yml");
        let config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s" },
            "scrape_configs": [{ "job_name": "tidegate", "static_configs": [{ "targets": [target] }] }],
        });
        // JSON is YAML.
        fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.args(["--web.listen-address=127.0.0.1:0", "--log.level=info"]);
        let running = Running::spawn(command);
        let address = loop {
            let line = running.warning();
            if line.contains("Listening on") {
                let word = line.split(' ').find_map(|word| word.strip_prefix("address="));
                break word.unwrap_or_else(|| panic!("{line}")).to_owned();
            }
        };
        Self { _running: running, address, folder }
    }

    /// The values of an expression; `None` if it cannot be asked yet. What is no expression is an error.
    fn ask(&self, expression: &str) -> Option<Vec<String>> {
        let output = Command::new("curl")
            .args(["--silent", "--get", "--max-time", "10", "--data-urlencode"])
            .arg(format!("query={expression}"))
            .arg(format!("http://{}/api/v1/query", self.address))
            .output()
            .unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let result = answer["data"]["result"].as_array().unwrap().iter();
        Some(result.map(|sample| sample["value"][1].as_str().unwrap().to_owned()).collect())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The expressions of the panels, with the variables that Grafana puts in.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let expressions = targets.map(|target| {
        let text = target["expr"].as_str().unwrap();
        text.replace("$__rate_interval", "10s").replace("$instance", ".*")
    });
    expressions.collect()
}

/// The metrics that a text names.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    words.filter(|word| word.starts_with("tidegate_")).map(str::to_owned).collect()
}

/// Some of everything: allowed, rejected and wrong.
fn traffic(sides: &Sides) {
    for account in ["ann", "ann", "bob"] {
        sides.watched.server.ask("GET", &format!("x-account: {account}\r\n"));
        sides.envoy.ask("user", account).unwrap();
    }
    sides.envoy.ask("", "").unwrap_err();
    sides.ask_redis("CL.THROTTLE k 3 1 3600\r\nTG.CHECK account carl\r\nNONSENSE\r\n");
}

#[test]
fn prometheus_answers_all_that_the_dashboard_asks() {
    let redis = Redis::start(&[]);
    let shadow = ACCOUNT.replace("\"account\"", "\"next\"") + "mode = \"shadow\"\n";
    let file = File::new("dashboard", &[ACCOUNT, &shadow, &user("1/hour burst 6")].concat());
    let url = format!("{}#shop", redis.url());
    let sides =
        Sides::start(&file, &["--store", &url, "--without-store", "closed", "--store-deadline", "10s"]);
    let text = sides.watched.get("/metrics").body;
    let families: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    let samples: BTreeSet<String> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(['{', ' ']).next().unwrap().to_owned())
        .collect();

    let guide = read("docs/guide/src/watching-a-server.md");
    let told = guide.lines().filter_map(|line| line.strip_prefix("| `tidegate_")?.split('`').next());
    let told: BTreeSet<String> = told.map(|name| format!("tidegate_{name}")).collect();
    assert_eq!(told, families, "the table of the guide");

    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/tidegate.json")).unwrap();
    let expressions = expressions(&dashboard);
    assert!(expressions.len() > 20, "{}", expressions.len());
    for name in metrics(&dashboard.to_string()) {
        assert!(samples.contains(&name), "{name} is not in /metrics");
    }

    let prometheus = Prometheus::start(&sides.watched.admin);
    let start = Instant::now();
    let mut open = expressions;
    while !open.is_empty() {
        assert!(start.elapsed() < 3 * PATIENCE, "no numbers for {open:#?}");
        traffic(&sides);
        open.retain(|expression| {
            let values = prometheus.ask(expression).unwrap_or_default();
            values.is_empty() || values.iter().any(|value| value == "NaN")
        });
    }

    let mut promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn().unwrap();
    let text = sides.watched.get("/metrics").body;
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success());
}
