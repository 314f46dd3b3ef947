//! A client of reqwest that is paced and obeys its server: `cargo run -p tidegate-http --example client --features reqwest`.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tidegate::Gate;
use tidegate_http::client::{Pace, Report};

/// A server that refuses the first request for 200 ms, and those to `/batch` for an hour.
async fn serve() -> Result<String, std::io::Error> {
    static REQUESTS: AtomicU32 = AtomicU32::new(0);
    let refused = StatusCode::TOO_MANY_REQUESTS;
    let app = Router::new()
        .route(
            "/",
            get(async move || match REQUESTS.fetch_add(1, Ordering::Relaxed) {
                0 => Err((refused, [("retry-after-ms", "200")])),
                _ => Ok("hello"),
            }),
        )
        .route("/batch", get(async move || (refused, [("retry-after", "3600")])));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(format!("http://{address}"))
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows its result")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = serve().await?;

    // Ten calls a second and four at once, whoever makes them; none begins later than 30 s after it was asked for.
    let gate = Gate::builder("10/s".parse()?).max_in_flight(4.try_into()?).build()?;
    let pace = Pace::builder(gate).deadline(Duration::from_secs(30)).build();
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(pace).build();

    let response = client.get(&server).send().await?;
    let report = response.extensions().get::<Report>().cloned().unwrap_or_default();
    println!("{} after {} attempts", response.status(), report.attempts);
    println!("waited as told: {}", report.waited >= Duration::from_millis(200));
    println!("{}", response.text().await?);

    // An hour is past the deadline: the answer comes at once, and says why it was not asked again.
    let response = client.get(format!("{server}/batch")).send().await?;
    let report = response.extensions().get::<Report>().cloned().unwrap_or_default();
    println!(
        "{} after {} attempt, given up: {}",
        response.status(),
        report.attempts,
        report.stopped.is_some()
    );

    // The gate is closed for all now, and a call that cannot wait as long is not even sent.
    if let Err(error) = client.get(&server).send().await {
        println!("{}", error.to_string().split(';').next().unwrap_or_default());
    }
    Ok(())
}
