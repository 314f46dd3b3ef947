//! What is in `deploy/`: each way to run the server there starts one that answers.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use crate::process::{PATIENCE, Running, get, tidegate};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(deploy(file)).unwrap()
}

/// The arguments of `tidegate`, as they are in a file.
fn arguments(file: &str) -> Vec<String> {
    let text = read(file);
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).unwrap();
    match file {
        "tidegate.service" => {
            line("ExecStart=/usr/local/bin/tidegate ").split(' ').map(str::to_owned).collect()
        }
        "Containerfile" => serde_json::from_str(line("CMD ")).unwrap(),
        "kubernetes.yaml" => text
            .lines()
            .skip_while(|line| line.trim() != "args:")
            .skip(1)
            .map_while(|line| line.trim().strip_prefix("- "))
            .map(str::to_owned)
            .collect(),
        _ => panic!("{file}"),
    }
}

/// The same, on free ports of this machine and with the file of limits here.
fn here(argument: &str) -> String {
    let limits = deploy("limits.toml");
    let argument = argument.replace("/etc/tidegate/limits.toml", limits.to_str().unwrap());
    ["127.0.0.1:8080", "127.0.0.1:9090", "0.0.0.0:8080", "0.0.0.0:9090"]
        .iter()
        .fold(argument, |argument, address| argument.replace(address, "127.0.0.1:0"))
}

#[test]
fn each_way_to_deploy_starts_a_server_that_is_ready_and_drains() {
    for file in ["tidegate.service", "Containerfile", "kubernetes.yaml"] {
        let arguments: Vec<String> = arguments(file).iter().map(|argument| here(argument)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert!(arguments.iter().any(|argument| argument.starts_with("--limits")), "{file}: {arguments:?}");
        let mut running = Running::start(&arguments);
        let first = running.line();
        let address = first.strip_prefix("listening on http://").unwrap_or_else(|| panic!("{file}: {first}"));
        assert!(running.line().ends_with("per-client, everybody"), "{file}");
        let admin = running.line();
        let admin = admin.strip_prefix("admin on http://").unwrap_or_else(|| panic!("{file}: {admin}"));
        assert_eq!(get(address, "/").status, 200, "{file}");
        assert_eq!(get(admin, "/readyz").status, 200, "{file}");
        assert_eq!(get(admin, "/healthz").status, 200, "{file}");
        running.signal("-TERM");
        assert_eq!(running.line(), "stopped: 1 requests, 1 allowed, 0 rejected", "{file}");
        assert_eq!(running.exit_code(), Some(0), "{file}");
    }
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let folder = env::temp_dir().join(format!("tidegate-unit-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let unit = folder.join("tidegate.service");
    fs::write(
        &unit,
        read("tidegate.service").replace("/usr/local/bin/tidegate", env!("CARGO_BIN_EXE_tidegate")),
    )
    .unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&unit).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_service_manager_is_told_when_it_is_ready_and_when_it_drains() {
    let socket = env::temp_dir().join(format!("tidegate-notify-{}", process::id()));
    let _ = fs::remove_file(&socket);
    let told = UnixDatagram::bind(&socket).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 256];
    let mut next = || {
        let length = told.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    let mut command = tidegate(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &socket);
    let mut running = Running::spawn(command);
    assert_eq!(next(), "READY=1");
    running.signal("-TERM");
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(running.exit_code(), Some(0));
    fs::remove_file(&socket).unwrap();
}
