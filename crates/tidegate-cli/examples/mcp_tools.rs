//! The smallest MCP server with a few tools, to try `tidegate mcp` with:
//! `cargo run --bin tidegate -- mcp --limit 2/s -- target/debug/examples/mcp_tools`.
//!
//! `echo` answers with its arguments, `slow` does so after 200 ms, and `silent` never. `busy` hands on that the service behind
//! it wants no call for 2 s. The notification
//! `notifications/crash` ends the server with exit code 3, and a cancellation is told on stderr.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

fn main() -> ExitCode {
    let mut slow = Vec::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "mcp_tools", "version": "1"},
            }),
            Some("tools/list") => {
                let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
                let tools = ["echo", "slow", "silent", "busy"].map(tool);
                json!({"tools": tools})
            }
            Some("tools/call") if message["params"]["name"] == "busy" => {
                let text = "Error: 429 Too Many Requests. Retry-After: 2";
                json!({"content": [{"type": "text", "text": text}], "isError": true})
            }
            Some("tools/call") => {
                let text = message["params"]["arguments"].to_string();
                json!({"content": [{"type": "text", "text": text}]})
            }
            Some("notifications/crash") => return ExitCode::from(3),
            Some("notifications/cancelled") => {
                let _ = io::stderr().write_all(b"cancelled\n");
                continue;
            }
            _ if message.get("id").is_none() => continue,
            _ => json!({}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        match message["params"]["name"].as_str() {
            Some("silent") => {}
            Some("slow") => {
                slow.push(thread::spawn(move || {
                    thread::sleep(Duration::from_millis(200));
                    say(&answer);
                }));
            }
            _ => say(&answer),
        }
    }
    // What was asked is answered before the end.
    for answer in slow {
        let _ = answer.join();
    }
    ExitCode::SUCCESS
}

fn say(answer: &Value) {
    // A client that has gone needs no answer.
    let _ = io::stdout().lock().write_all(format!("{answer}\n").as_bytes());
}
