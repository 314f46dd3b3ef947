//! An axum app under a limit: `cargo run -p tidegate-http --example axum --features axum`, then `curl -i` its address.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tidegate_http::RateLimit;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows its result")]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        // Three at once from one address, and then one every ten seconds.
        .layer(RateLimit::per_client("1 per 10s burst 3"));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    // With the address of each client: without it, all of them would share one limit.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
