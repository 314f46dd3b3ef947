//! As `http.rs`, with questions that are made of their parts, so that most of them are understood.

#![no_main]

#[path = "../../crates/tidegate-server/tests/any_questions/asked.rs"]
mod asked;

use std::fmt::Write as _;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Asked {
    Check { named: Vec<Named>, peek: bool, waits: bool },
    Reserve { named: Vec<Named>, expires_ms: Option<u32> },
    Settle { id: u8, cost: Cost },
    SettleEach { id: u8, costs: [Option<Cost>; 6] },
    Cancel { id: u8 },
    OfProxy { refuse: Option<u16>, method: Option<Method>, account: Option<Key>, uri: Option<bool> },
    Wait { ms: u32 },
}

#[derive(Debug, Arbitrary)]
struct Named {
    limit: u8,
    key: Option<Key>,
    cost: Option<Cost>,
}

#[derive(Debug, Arbitrary)]
enum Key {
    Ann,
    Bob,
    Other(String),
}

#[derive(Debug, Arbitrary)]
enum Method {
    Get,
    Head,
    Options,
    Other(u8),
}

#[derive(Debug, Arbitrary)]
enum Cost {
    Small(u8),
    Any(u64),
    Float(f64),
}

const LIMITS: [&str; 7] = ["calls", "bytes", "window", "log", "turns", "trial", "pages"];

impl Key {
    fn text(&self) -> &str {
        match self {
            Self::Ann => "ann",
            Self::Bob => "bob",
            Self::Other(text) => text,
        }
    }
}

impl Cost {
    fn text(&self) -> String {
        match self {
            Self::Small(cost) => cost.to_string(),
            Self::Any(cost) => cost.to_string(),
            Self::Float(cost) => format!("{cost:?}"),
        }
    }
}

impl Named {
    fn text(&self) -> String {
        let mut text = format!(r#"{{"limit":"{}""#, LIMITS[usize::from(self.limit) % LIMITS.len()]);
        if let Some(key) = &self.key {
            let key = serde_json::to_string(key.text()).unwrap_or_default();
            let _ = write!(text, r#","key":{key}"#);
        }
        if let Some(cost) = &self.cost {
            let _ = write!(text, r#","cost":{}"#, cost.text());
        }
        text + "}"
    }
}

fn checks(named: &[Named]) -> String {
    let all: Vec<String> = named.iter().map(Named::text).collect();
    format!(r#"{{"checks":[{}]"#, all.join(","))
}

impl Asked {
    /// The line of a script.
    fn line(&self) -> String {
        match self {
            Self::Check { named, peek, waits } => {
                let letter = if *waits { 'C' } else { 'c' };
                format!(r#"{letter}{},"peek":{peek}}}"#, checks(named))
            }
            Self::Reserve { named, expires_ms: None } => format!("r{}}}", checks(named)),
            Self::Reserve { named, expires_ms: Some(ms) } => {
                format!(r#"r{},"expires_ms":{ms}}}"#, checks(named))
            }
            Self::Settle { id, cost } => format!(r#"s{{"id":"${}","cost":{}}}"#, id % 10, cost.text()),
            Self::SettleEach { id, costs } => {
                let costs = LIMITS
                    .iter()
                    .zip(costs)
                    .filter_map(|(name, cost)| Some(format!(r#""{name}":{}"#, cost.as_ref()?.text())));
                format!(r#"s{{"id":"${}","costs":{{{}}}}}"#, id % 10, costs.collect::<Vec<_>>().join(","))
            }
            Self::Cancel { id } => format!(r#"x{{"id":"${}"}}"#, id % 10),
            Self::OfProxy { refuse, method, account, uri } => {
                let mut line = "a".to_owned();
                if let Some(refuse) = refuse {
                    let _ = write!(line, "refuse={refuse}");
                }
                let method = match method {
                    None => "",
                    Some(Method::Get) => "GET",
                    Some(Method::Head) => "HEAD",
                    Some(Method::Options) => "OPTIONS\torigin: x\taccess-control-request-method: GET",
                    Some(Method::Other(byte)) => &format!("A{}", char::from(*byte)),
                };
                if !method.is_empty() {
                    let _ = write!(line, "\tx-forwarded-method: {method}");
                }
                if let Some(account) = account {
                    let _ = write!(line, "\tx-account: {}", account.text());
                }
                if let Some(is_path) = uri {
                    let _ =
                        write!(line, "\tx-forwarded-uri: {}", if *is_path { "/a?b" } else { "http://a/" });
                }
                line
            }
            Self::Wait { ms } => format!("w{ms}"),
        }
    }
}

fuzz_target!(|asked: Vec<Asked>| {
    let script: Vec<String> = asked.iter().map(Asked::line).collect();
    asked::check(script.join("\n").as_bytes());
});
