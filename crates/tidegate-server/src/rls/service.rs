//! The server: a request is checked, decided in its limits, and answered.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_http::RateLimit;
use tidegate_http::layer::{CheckError, Checked, Take};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use super::incoming::{Incoming, Opened};
use super::proto::rate_limit_response::Code;
use super::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use super::proto::{RateLimitRequest, RateLimitResponse};
use super::rules::{self, Few, Rules};
use super::status::Decided;

/// The longest message, in bytes. Envoy sends some hundred.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// How many descriptors a request can have.
pub const DESCRIPTORS_MAX: usize = 64;

/// How many entries a descriptor can have.
pub const ENTRIES_MAX: usize = 16;

/// The longest domain, and the longest key of an entry, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// The longest value of an entry, in bytes: as long as a line of a header is in most servers.
pub const VALUE_BYTES_MAX: usize = 8 << 10;

/// How many connections there can be at one time. Each worker thread of an Envoy has one.
pub const CONNECTIONS_MAX: usize = 4096;

/// How many requests a connection can have at one time.
pub const STREAMS_MAX: u32 = 1024;

/// How long a connection may be silent before it is asked whether it is there, and for how long it may not answer that.
const SILENT: Duration = Duration::from_secs(60);

/// How often a request is decided anew because the limits were replaced meanwhile, and the pause before.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// A server of Envoy's rate limit service. Clones are the same server.
#[derive(Debug, Clone)]
pub struct Rls {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: RateLimit,
    rules: ArcSwap<Rules>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    allowed: AtomicU64,
    rejected: AtomicU64,
    errors: AtomicU64,
    /// Answered, or given up by the client.
    ended: AtomicU64,
    connections: Arc<Opened>,
}

/// What a server did since it was made, from [`Rls::counts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that came. What is not in flight and has none of the answers below was given up by its client.
    pub requests: u64,
    /// Answered `OK`.
    pub allowed: u64,
    /// Answered `OVER_LIMIT`.
    pub rejected: u64,
    /// Answered with an error.
    pub errors: u64,
    /// Requests that are being decided now.
    pub in_flight: u64,
    /// Connections that were taken.
    pub connections: u64,
    /// Connections that are open now.
    pub connections_open: u64,
}

impl Rls {
    /// A server that decides by these limits; the rules say by which of them.
    #[must_use]
    pub fn new(limits: RateLimit, rules: Rules) -> Self {
        let (rules, counters) = (ArcSwap::from_pointee(rules), Counters::default());
        Self { shared: Arc::new(Shared { limits, rules, counters }) }
    }

    /// The limits, to replace them.
    #[must_use]
    pub fn limits(&self) -> &RateLimit {
        &self.shared.limits
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.shared.rules.load_full()
    }

    /// Puts other rules in force, at once after the limits were replaced: a request that finds a limit gone waits some
    /// milliseconds for its rules.
    pub fn replace_rules(&self, rules: Rules) {
        self.shared.rules.store(Arc::new(rules));
    }

    /// What it did.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { requests, allowed, rejected, errors, ended, connections } = &self.shared.counters;
        // In this order, so that not more have ended than came.
        let ended = read(ended);
        let requests = read(requests);
        let (connections, connections_open) = connections.read();
        Counts {
            requests,
            allowed: read(allowed),
            rejected: read(rejected),
            errors: read(errors),
            in_flight: requests.saturating_sub(ended),
            connections,
            connections_open,
        }
    }

    /// Serves clients of `listener` until `stop` is ready, and then until those that are connected have their answers.
    ///
    /// # Errors
    ///
    /// A transport that fails; not that of a single connection.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let service = RateLimitServiceServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let opened = Arc::clone(&self.shared.counters.connections);
        let incoming = Incoming::new(listener, CONNECTIONS_MAX, opened);
        Server::builder()
            .max_concurrent_streams(STREAMS_MAX)
            .http2_keepalive_interval(Some(SILENT))
            .http2_keepalive_timeout(Some(SILENT))
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, stop)
            .await
    }

    async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        fits(request)?;
        for _ in 0..TRIES {
            let rules = self.rules();
            let plan = rules.plan(request);
            match self.decide(&plan).await {
                Ok(decided) if decided.is_unanswered() => break,
                Ok(decided) => return Ok(decided.response(&plan)),
                Err(CheckError::NoSuchLimit { .. }) => tokio::time::sleep(PAUSE).await,
                Err(_) => break,
            }
        }
        Err(Status::unavailable("the limits cannot be asked now"))
    }

    /// Looks first, as a look that finds nothing refuses the charges.
    async fn decide(&self, plan: &rules::Plan<'_>) -> Result<Decided, CheckError> {
        let looks = match &plan.looks[..] {
            [] => None,
            // Few requests look, so what is moved about for all is small.
            looks => Some(Box::new(Box::pin(self.check(looks, false)).await?)),
        };
        let is_charged = looks.as_ref().is_none_or(|looks| looks.is_allowed());
        let charges = match &plan.charges[..] {
            [] => None,
            charges => Some(self.check(charges, is_charged).await?),
        };
        let mut decided = Decided { charges, looks, is_charged };
        decided.is_charged = decided.is_allowed();
        Ok(decided)
    }

    async fn check(&self, takes: &[rules::Take<'_>], charge: bool) -> Result<Checked, CheckError> {
        let named =
            takes.iter().map(|take| Take { limit: &take.limit.name, key: take.key.clone(), cost: take.cost });
        let takes: Few<_> = named.collect();
        self.shared.limits.check(&takes, charge).await
    }
}

#[async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let counters = &self.shared.counters;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        let _ends = Ends(&counters.ended);
        let response = self.answer(request.get_ref()).await;
        let counter = match &response {
            Ok(response) if response.overall_code() == Code::OverLimit => &counters.rejected,
            Ok(_) => &counters.allowed,
            Err(_) => &counters.errors,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        response.map(Response::new)
    }
}

/// Counts the end of a request, also of one that its client gives up.
struct Ends<'a>(&'a AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a request is one, and within the bounds.
fn fits(request: &RateLimitRequest) -> Result<(), Status> {
    let wrong = |why: String| Err(Status::invalid_argument(why));
    let RateLimitRequest { domain, descriptors, .. } = request;
    if domain.is_empty() {
        return wrong("the request has no domain".to_owned());
    }
    if descriptors.is_empty() {
        return wrong("the request has no descriptor".to_owned());
    }
    if domain.len() > KEY_BYTES_MAX {
        return wrong(format!("the domain is longer than {KEY_BYTES_MAX} bytes"));
    }
    if descriptors.len() > DESCRIPTORS_MAX {
        return wrong(format!("the request has more than {DESCRIPTORS_MAX} descriptors"));
    }
    for descriptor in descriptors {
        if descriptor.entries.is_empty() || descriptor.entries.iter().any(|entry| entry.key.is_empty()) {
            return wrong("a descriptor has no entries, or one without a key".to_owned());
        }
        if descriptor.entries.len() > ENTRIES_MAX {
            return wrong(format!("a descriptor has more than {ENTRIES_MAX} entries"));
        }
        let is_long = |text: &str, most: usize| text.len() > most;
        if descriptor.entries.iter().any(|entry| is_long(&entry.key, KEY_BYTES_MAX)) {
            return wrong(format!("the key of an entry is longer than {KEY_BYTES_MAX} bytes"));
        }
        if descriptor.entries.iter().any(|entry| is_long(&entry.value, VALUE_BYTES_MAX)) {
            return wrong(format!("the value of an entry is longer than {VALUE_BYTES_MAX} bytes"));
        }
    }
    Ok(())
}
