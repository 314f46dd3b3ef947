//! `serve --grpc`, asked by a gRPC client.

use tidegate_server::rls::proto::rate_limit_descriptor::Entry;
use tidegate_server::rls::proto::rate_limit_response::Code;
use tidegate_server::rls::proto::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::proto::{RateLimitDescriptor, RateLimitRequest};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::limits::File;
use super::process::{Server, output, stderr};
use super::redis_server::Server as Redis;

/// A server that speaks gRPC too, and a client of it.
struct GrpcServer {
    server: Server,
    settings: String,
    envoy: Envoy,
}

/// A client that asks as Envoy does.
pub(crate) struct Envoy {
    runtime: Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl GrpcServer {
    fn start(file: &File, args: &[&str]) -> Self {
        let mut all = vec!["--limits", file.path(), "--grpc", "127.0.0.1:0"];
        all.extend(args);
        let server = Server::start(&all);
        let line = server.running.line();
        let address = line.strip_prefix("grpc on ").unwrap_or_else(|| panic!("{line}"));
        let settings = server.running.line();
        let envoy = Envoy::connect(address);
        Self { server, settings, envoy }
    }

    fn ask(&self, key: &str, value: &str) -> Result<(Code, String, u32), tonic::Code> {
        self.envoy.ask(key, value)
    }
}

impl Envoy {
    pub(crate) fn connect(address: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, client: RateLimitServiceClient::new(channel) }
    }

    /// Asks, and leaves the answer to itself.
    pub(crate) fn begin(&self, key: &str, value: &str) {
        let (mut client, request) = (self.client.clone(), request(key, value));
        self.runtime.spawn(async move { client.should_rate_limit(request).await });
    }

    /// The code for a descriptor of one entry, and the limit and what is left of it.
    pub(crate) fn ask(&self, key: &str, value: &str) -> Result<(Code, String, u32), tonic::Code> {
        let mut client = self.client.clone();
        let response = self.runtime.block_on(client.should_rate_limit(request(key, value)));
        let response = response.map_err(|status| status.code())?.into_inner();
        let status = &response.statuses[0];
        let name = status.current_limit.as_ref().map(|limit| limit.name.clone()).unwrap_or_default();
        Ok((response.overall_code(), name, status.limit_remaining))
    }
}

fn request(key: &str, value: &str) -> RateLimitRequest {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    let descriptors = vec![RateLimitDescriptor { entries, hits_addend: None }];
    RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 }
}

pub(crate) fn user(quota: &str) -> String {
    format!("[[limit]]\nname = \"user\"\nquota = \"{quota}\"\ndescriptors = [\"shop: user=*\"]\n")
}

const ACCOUNT: &str = "[[limit]]\nname = \"account\"\nquota = \"1/hour burst 2\"\n";

#[test]
fn descriptors_have_limits_of_their_own_beside_those_of_http() {
    let root = "[[limit]]\nname = \"root\"\nquota = \"1/s\"\nalgorithm = \"none\"\ndescriptors = [\"shop: user=root\"]\n";
    let ann = "[[limit.override]]\nkey = \"ann\"\nquota = \"1/hour burst 9\"\n";
    let file = File::new("grpc-own", &[ACCOUNT, &user("1/hour burst 2"), ann, root].concat());
    let mut server = GrpcServer::start(&file, &[]);
    assert_eq!(server.server.settings, format!("limits of {}: account", file.path()));
    assert_eq!(server.settings, "rate limit service of Envoy, limits user, root");
    let user = |code, left| Ok((code, "user".to_owned(), left));
    for (code, left) in [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
        assert_eq!(server.ask("user", "bob"), user(code, left));
        assert_eq!(server.ask("user", "root"), Ok((Code::Ok, String::new(), 0)));
    }
    assert_eq!(server.ask("user", "ann"), user(Code::Ok, 8));
    assert_eq!(server.ask("account", "bob"), Ok((Code::Ok, String::new(), 0)));
    for status in [200, 200, 429] {
        assert_eq!(server.server.ask("GET", "").status, status);
    }
    server.server.running.signal("-TERM");
    assert_eq!(server.server.running.line(), "stopped: 3 requests, 2 allowed, 1 rejected");
    assert_eq!(server.server.running.line(), "stopped: 8 asked by grpc, 7 allowed, 1 rejected");
    assert_eq!(server.server.running.exit_code(), Some(0));
}

#[test]
fn a_file_that_changes_is_in_force_for_descriptors_too_or_not_at_all() {
    let file = File::new("grpc-changes", &[ACCOUNT, &user("1/hour burst 10")].concat());
    let server = GrpcServer::start(&file, &[]);
    for left in (5..10).rev() {
        assert_eq!(server.ask("user", "ann").unwrap().2, left);
    }
    file.replace(&user("1/hour burst 100"));
    assert_eq!(server.server.running.line(), format!("reloaded {}: user", file.path()));
    assert_eq!(server.ask("user", "ann").unwrap().2, 49, "half of it, less this one");
    assert_eq!(server.server.ask("GET", "").status, 200);
    let other = user("1/hour burst 100").replace("user=*", "account=*");
    file.replace(&[ACCOUNT, &other].concat());
    assert_eq!(
        server.server.running.line(),
        format!("reloaded {}: user, account (starts anew)", file.path())
    );
    assert_eq!(server.ask("user", "ann"), Ok((Code::Ok, String::new(), 0)));
    assert_eq!(server.ask("account", "bob"), Ok((Code::Ok, "user".to_owned(), 99)));
    file.replace(ACCOUNT);
    let warning = server.server.running.warning();
    assert!(
        warning.contains("the limits stay as they are: ") && warning.contains("no limit has `descriptors`"),
        "{warning}"
    );
    assert_eq!(server.ask("account", "bob").unwrap().2, 98);
}

#[test]
fn servers_with_one_store_share_what_descriptors_take() {
    let redis = Redis::start(&[]);
    let file = File::new("grpc-store", &user("1/hour burst 2"));
    let url = format!("{}#shop", redis.url());
    let args = ["--store", &url, "--without-store", "closed", "--store-deadline", "10s"];
    let servers = [GrpcServer::start(&file, &args), GrpcServer::start(&file, &args)];
    let code = |at: usize, user| servers[at].ask("user", user).map(|answer| answer.0);
    assert_eq!([code(0, "ann"), code(1, "ann")], [Ok(Code::Ok); 2]);
    assert_eq!([code(0, "ann"), code(1, "ann")], [Ok(Code::OverLimit); 2]);
    drop(redis);
    assert_eq!(code(0, "bob"), Err(tonic::Code::Unavailable));
}

#[test]
fn what_cannot_be_served_is_said_in_a_line() {
    let with = File::new("grpc-with", &user("1/s"));
    let without = File::new("grpc-without", ACCOUNT);
    let serve = ["serve", "--listen", "127.0.0.1:0", "--limits"];
    for (args, expected) in [
        (
            [&serve[..], &[without.path(), "--grpc", "127.0.0.1:0"]].concat(),
            "no limit has `descriptors`, so there is nothing to answer Envoy by",
        ),
        ([&serve[..], &[with.path()]].concat(), "limit `user` has `descriptors`, which are for Envoy alone"),
        (
            vec!["mcp", "--limits", with.path(), "--", "true"],
            "limit `user` has `descriptors`, which are for Envoy alone",
        ),
        (
            vec![
                "simulate",
                "--pattern",
                "steady",
                "--rate",
                "2",
                "--duration",
                "1s",
                "--limits",
                with.path(),
            ],
            "limit `user` has `descriptors`, which are for Envoy alone",
        ),
        (vec!["serve", "--grpc", "127.0.0.1:0"], "--limits"),
    ] {
        let output = output(&args);
        let said = stderr(&output);
        assert!(said.starts_with("error: ") && said.contains(expected), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    }
}
