//! The address at which Envoy asks: its rate limit service over gRPC, beside HTTP.

use std::net::SocketAddr;
use std::path::Path;

use tidegate::{Mode, Quota};
use tidegate_http::layer::{Key, RateLimitBuilder, Replaced};
use tidegate_http::{KeyBy, RateLimit};
use tidegate_server::rls::{Rls, Rule, Rules};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Limits;
use super::layer::{cannot_build, request_limit};
use super::observer::Observer;
use super::store::SharedStore;
use crate::fault::{Hint, warn};
use crate::http_server::address::{bind, listen};
use crate::limits::FileLimit;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Envoy")]
pub(super) struct GrpcArgs {
    /// Also answer Envoy's rate limit service, version 3, at this address [default: not]
    ///
    /// The limits of the file that have `descriptors` are for it, and the others for HTTP. It speaks gRPC without TLS and
    /// knows no password, so let only Envoys reach it.
    #[arg(long, value_name = "ADDRESS", value_parser = listen, requires = "limits")]
    grpc: Option<SocketAddr>,
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct Server {
    rls: Rls,
    address: SocketAddr,
    settings: String,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), String>>,
}

impl GrpcArgs {
    /// Whether it was asked for.
    pub(super) const fn is_on(&self) -> bool {
        self.grpc.is_some()
    }

    /// Starts to answer, if that was asked for.
    pub(super) async fn start(&self, rls: Option<&Rls>) -> anyhow::Result<Option<Server>> {
        let (Some(at), Some(rls)) = (self.grpc, rls) else { return Ok(None) };
        let (listener, address) = bind("--grpc", at, ", without a password").await?;
        let names: Vec<String> = rls.rules().limits().map(str::to_owned).collect();
        let settings = format!("rate limit service of Envoy, limits {}", names.join(", "));
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve_until(rls.clone(), listener, stopped));
        Ok(Some(Server { rls: rls.clone(), address, settings, stop, serving }))
    }
}

async fn serve_until(rls: Rls, listener: TcpListener, stopped: oneshot::Receiver<()>) -> Result<(), String> {
    let stopped = async {
        // Also when nobody is there any more to say it.
        let _ = stopped.await;
    };
    rls.serve(listener, stopped).await.map_err(|error| error.to_string())
}

impl Server {
    /// Where it is, and with what, in two lines.
    pub(super) fn said(&self) -> String {
        format!("grpc on {}\n{}", self.address, self.settings)
    }

    /// Where it is.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is behind it, to ask for its counts also when it is stopped.
    pub(super) fn rls(&self) -> Rls {
        self.rls.clone()
    }

    /// Takes no more connections, and answers what came on those that there are.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let ended = self.serving.await;
        if let Err(error) = ended.map_err(|error| error.to_string()).and_then(|served| served) {
            warn(&format!("the server for Envoy ended early: {error}"));
        }
    }
}

/// What a server did, in a line.
pub(super) fn said_at_the_end(rls: &Rls) -> String {
    let counts = rls.counts();
    format!(
        "stopped: {} asked by grpc, {} allowed, {} rejected",
        counts.requests, counts.allowed, counts.rejected
    )
}

/// The limits on descriptors of a file. They are kept apart from those on requests, which they have nothing to do with.
#[derive(Debug)]
pub(super) struct Descriptors {
    limits: Vec<FileLimit>,
    keys: usize,
    store: Option<SharedStore>,
    observer: Observer,
}

impl Descriptors {
    /// Those of the limits that are on descriptors. The others are left.
    pub(super) fn split(
        path: &Path,
        limits: &mut Vec<FileLimit>,
        of: &Limits,
        observer: Observer,
    ) -> anyhow::Result<Self> {
        let mine: Vec<FileLimit> = limits.extract_if(.., |limit| limit.is_on_descriptors()).collect();
        if mine.is_empty() {
            return Err(Hint::error(
                format!(
                    "{}: no limit has `descriptors`, so there is nothing to answer Envoy by",
                    path.display()
                ),
                "write `descriptors = [\"shop: path=/login, user=*\"]` in a limit, or leave --grpc out",
            ));
        }
        if of.store.as_ref().is_some_and(|store| !store.spans_keys()) {
            return Err(Hint::error(
                "descriptors of one request have different keys, and a cluster cannot decide those together",
                "use --store with one server or with sentinels, or leave --grpc out",
            ));
        }
        Ok(Self { limits: mine, keys: of.keys, store: of.store.clone(), observer })
    }

    /// A server that answers by them.
    pub(super) fn serve(&self) -> anyhow::Result<Rls> {
        let limits = self.build()?;
        Ok(Rls::new(limits, self.rules()?))
    }

    fn build(&self) -> anyhow::Result<RateLimit> {
        self.builder()?.build().map_err(|error| cannot_build(&error))
    }

    /// Whether they can take the place of others.
    pub(super) fn can_be(&self) -> anyhow::Result<()> {
        self.build()?;
        self.rules()?;
        Ok(())
    }

    /// Puts them in the place of others.
    pub(super) fn replace(&self, rls: &Rls) -> anyhow::Result<Replaced> {
        let (rules, builder) = (self.rules()?, self.builder()?);
        let replaced = rls.limits().replace(builder).map_err(|error| cannot_build(&error))?;
        rls.replace_rules(rules);
        Ok(replaced)
    }

    /// The limits, of which those that limit nothing need not be kept.
    fn builder(&self) -> anyhow::Result<RateLimitBuilder> {
        let kept: Vec<&FileLimit> = self.limits.iter().filter(|limit| limit.limits_something()).collect();
        let mut builder = RateLimit::builder();
        for limit in &kept {
            let mut request = request_limit(limit).key(KeyBy::everyone()).capacity(self.keys);
            for (key, quota) in overrides(limit) {
                request = request.quota_for(key, quota);
            }
            builder = builder.limit(request);
        }
        if kept.is_empty() {
            return Ok(builder.limit(super::layer::nothing()));
        }
        let builder = match &self.store {
            Some(store) => store.decides(builder),
            None => builder,
        };
        let observer = self.observer.clone();
        Ok(builder.observe(move |seen| observer.tell(seen)))
    }

    fn rules(&self) -> anyhow::Result<Rules> {
        let rules = self.limits.iter().map(|limit| {
            let mut rule = Rule::new(&limit.limit.name, limit.quota, limit.descriptors.clone())?;
            for (key, quota) in overrides(limit) {
                rule = rule.quota_for(key, quota);
            }
            if limit.limit.mode == Mode::Shadow {
                rule = rule.shadow();
            }
            Ok(if limit.limits_something() { rule } else { rule.unlimited() })
        });
        Ok(Rules::new(rules.collect::<anyhow::Result<_>>()?))
    }
}

/// The keys of a limit on descriptors that have a quota of their own.
pub(super) fn overrides(limit: &FileLimit) -> Vec<(Key<'static>, Quota)> {
    limit.overrides.iter().map(|other| (key(&other.key), other.quota)).collect()
}

/// The key of descriptors whose stars have these values.
fn key(values: &[String]) -> Key<'static> {
    let parts = values.iter().map(|value| Key::from(value.clone()));
    parts.reduce(Key::and).unwrap_or(Key::everyone())
}
