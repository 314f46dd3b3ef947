//! The snippets for agents in the guide are what `tidegate mcp` takes.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::client::file;

#[test]
fn every_snippet_for_an_agent_is_a_command_that_starts() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/src/agent-hosts.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut commands = Vec::new();
    for block in page.split("```json\n").skip(1) {
        let block: Value = serde_json::from_str(block.split("```").next().unwrap()).unwrap();
        let servers = block.as_object().unwrap().values().next().unwrap();
        let server = servers.as_object().unwrap().values().next().unwrap();
        if server["command"] == "tidegate" {
            commands.push(server["args"].clone());
        }
    }
    for block in page.split("```toml\n").skip(1) {
        let block: toml::Table = block.split("```").next().unwrap().parse().unwrap();
        commands.push(serde_json::to_value(&block["mcp_servers"]["search"]["args"]).unwrap());
    }
    assert!(commands.len() >= 6, "{commands:?}");
    for args in commands {
        let args = args.as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        let server = ["npx", "-y", "some-search-server"];
        let args: Vec<&str> = args.filter(|arg| !server.contains(arg)).chain(["true"]).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let command = command.args(&args).env("XDG_STATE_HOME", file("state")).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
