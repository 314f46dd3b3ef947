//! A limits file over HTTP: the layer of `tidegate-http` in front of a service that answers 200.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::HeaderName;
use tidegate::Mode;
use tidegate_http::{KeyBy, RateLimit, RequestLimit};

use super::upstream::Upstream;
use crate::fault::Hint;
use crate::limits::{self, FileLimit};

/// The layer that the file describes, with `keys` slots for each limit, and its limits in a line.
pub(super) fn layer(path: &Path, keys: usize) -> anyhow::Result<(RateLimit, String)> {
    let limits = limits::read(path)?;
    let mut builder = RateLimit::builder();
    for limit in &limits {
        let key = key(limit)?;
        let mut request =
            RequestLimit::new(&limit.limit.name, limit.limit.algorithm).key(key.clone()).capacity(keys);
        if limit.limit.mode == Mode::Shadow {
            request = request.shadow();
        }
        builder = builder.limit(request);
        builder = match limit.max_in_flight {
            Some(_) if limit.limit.mode == Mode::Shadow => {
                return Err(Hint::error(
                    format!("limit `{}` is a shadow, and calls in flight are not", limit.limit.name),
                    "take out `max_in_flight`, or `mode = \"shadow\"`",
                ));
            }
            Some(max) if limit.key.is_empty() => builder.max_in_flight(max.get()),
            Some(max) => builder.max_in_flight_per_key(key, max.get()),
            None => builder,
        };
    }
    let names: Vec<&str> = limits.iter().map(|limit| limit.limit.name.as_ref()).collect();
    let line = format!("limits of {}: {}", path.display(), names.join(", "));
    let layer = builder.build().map_err(|error| {
        Hint::error(error.to_string(), "see what the file says with `tidegate check`, and change that limit")
    })?;
    Ok((layer, line))
}

/// What serves under a layer: the service behind, or else every path and method is answered.
pub(super) fn router(layer: RateLimit, upstream: Option<Arc<Upstream>>) -> Router {
    let router = match upstream {
        Some(upstream) => Router::new().fallback(
            async move |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request| {
                upstream.forward(request, peer).await
            },
        ),
        None => Router::new().fallback(async || "allowed\n"),
    };
    router.layer(layer)
}

/// Whose limit a request counts against, from the words of the file.
fn key(limit: &FileLimit) -> anyhow::Result<KeyBy> {
    let mut key: Option<KeyBy> = None;
    for part in &limit.key {
        let part = match part.as_str() {
            "client-ip" => KeyBy::client(),
            "path" => KeyBy::path(),
            "method" => KeyBy::method(),
            other => match other.strip_prefix("header:").filter(|name| name.parse::<HeaderName>().is_ok()) {
                Some(name) => KeyBy::header(name),
                None => {
                    return Err(Hint::error(
                        format!("limit `{}` has the key `{other}`, which no request has", limit.limit.name),
                        "write client-ip, header:NAME, path, method or none",
                    ));
                }
            },
        };
        key = Some(match key {
            Some(key) => key.and(part),
            None => part,
        });
    }
    Ok(key.unwrap_or_else(KeyBy::everyone))
}
