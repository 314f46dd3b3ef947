//! The address at which Redis clients ask: `CL.THROTTLE` over RESP, beside HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use tidegate_server::resp::{Checks, Connections, Resp, Settings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::secret;
use crate::fault::warn;
use crate::http_server::address::{bind, listen};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Redis clients")]
pub(super) struct RespArgs {
    /// Also answer Redis clients (RESP2 and RESP3) at this address [default: not]
    ///
    /// CL.THROTTLE key max_burst count period, and a quantity, decides as redis-cell does, with the quota that comes with the call:
    /// the limits of this server's HTTP side have no part in it. TG.CHECK limit key, and a cost, decides in one of those. Waits are in
    /// whole seconds, rounded up.
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    resp: Option<SocketAddr>,

    /// How many keys CL.THROTTLE holds at one time, in 65 bytes each; when there are more, the one nearest to a full bucket is
    /// forgotten
    #[arg(long, value_name = "N", default_value = "65536", value_parser = super::keys, requires = "resp")]
    resp_keys: u64,

    /// The file whose first line is the password that clients have to give (AUTH, HELLO) [default: none is asked for]
    #[arg(long, value_name = "FILE", requires = "resp")]
    resp_password_file: Option<PathBuf>,
}

/// A server that is not started, or that runs.
#[derive(Debug)]
pub(super) struct Server {
    resp: Resp,
    address: SocketAddr,
    settings: String,
    stop: oneshot::Sender<()>,
    listening: JoinHandle<Connections>,
}

impl RespArgs {
    /// Starts to answer, if that was asked for.
    pub(super) async fn start(&self, checks: Checks) -> anyhow::Result<Option<Server>> {
        let Some(at) = self.resp else { return Ok(None) };
        let keys = usize::try_from(self.resp_keys)?;
        let password =
            self.resp_password_file.as_deref().map(|path| secret::bytes(path, "the password")).transpose()?;
        let has_password = password.is_some();
        let what = if has_password { " who have the password" } else { ", without a password" };
        let (listener, address) = bind("--resp", at, what).await?;
        let resp = Resp::new(Settings { keys, password, checks: Some(checks), ..Settings::default() });
        let settings = format!(
            "{keys} keys in {} KiB, {}",
            resp.bytes().div_ceil(1024),
            if has_password { "with a password" } else { "no password" },
        );
        let (stop, stopped) = oneshot::channel();
        let listening = tokio::spawn(listen_until(resp.clone(), listener, stopped));
        Ok(Some(Server { resp, address, settings, stop, listening }))
    }
}

async fn listen_until(resp: Resp, listener: TcpListener, stopped: oneshot::Receiver<()>) -> Connections {
    let stopped = async {
        // Also when nobody is there any more to say it.
        let _ = stopped.await;
    };
    resp.serve(listener, stopped).await
}

impl Server {
    /// Where it is, and with what, in a line.
    pub(super) fn said(&self) -> String {
        format!("resp on {}\ncl.throttle, {}", self.address, self.settings)
    }

    /// Where it is.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is behind it, to ask for its counts also when it is stopped.
    pub(super) fn resp(&self) -> Resp {
        self.resp.clone()
    }

    /// Takes no more connections, and answers what came on those that there are.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        match self.listening.await {
            Ok(connections) => connections.shutdown().await,
            Err(error) => warn(&format!("the server for Redis clients ended early: {error}")),
        }
    }
}

/// What a server did, in a line.
pub(super) fn said_at_the_end(resp: &Resp) -> String {
    let counts = resp.counts();
    format!("stopped: {} commands, {} allowed, {} rejected", counts.commands, counts.allowed, counts.rejected)
}
