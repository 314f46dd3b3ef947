//! Places in flight on a server of its own: released, renewed, lost, and of processes that are killed or stopped.
//!
//! This program is also the other processes: it starts itself again, with what to do in the environment.
use std::num::NonZeroU64;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::poll_once;
use crate::harness::proxy::{Network, Proxy};
use crate::harness::server::Server;
use crate::harness::talk::Talk;
use tidegate_redis::{Made, NoPlace, Place, Places, PlacesSettings, Store, WithoutPlaces};

const PATIENCE: Duration = Duration::from_secs(10);

async fn store(url: &str) -> Store {
    // A machine that is busy with other tests must not make the store look away.
    Store::builder(url).deadline(PATIENCE).connect().await.unwrap()
}

fn places(store: &Store, limit: u64, ttl: Duration) -> Places {
    let settings =
        PlacesSettings { limit: NonZeroU64::new(limit).unwrap(), ttl, without_store: WithoutPlaces::Closed };
    store.places("jobs", settings).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// How many places the server counts.
fn held(server: &Server) -> u64 {
    redis::cmd("ZCARD").arg("{tidegate:jobs:ann}::places").query(&mut server.connection()).unwrap()
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "never {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Asks until there is a place.
async fn wait(places: &Places) -> Place {
    let end = Instant::now() + PATIENCE;
    loop {
        match places.acquire("ann").await {
            Ok(place) => return place,
            Err(none) => assert!(Instant::now() < end, "{none:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn there_are_as_many_places_as_the_limit_says() {
    let server = Server::start(&[]);
    let (one, two) = (store(&server.url()).await, store(&server.url()).await);
    let (one, two) = (places(&one, 2, MINUTE), places(&two, 2, MINUTE));
    let first = one.acquire("ann").await.unwrap();
    let second = two.acquire("ann").await.unwrap();
    assert!(first.is_held() && second.is_held() && second.fence() > first.fence());
    assert_eq!((first.made(), held(&server)), (Made::Exact, 2));
    let NoPlace { retry_after, held, made, .. } = two.acquire("ann").await.unwrap_err();
    assert_eq!((held, made), (Some(2), Made::Exact));
    assert!(retry_after <= MINUTE && retry_after > MINUTE - PATIENCE, "{retry_after:?}");
    // Another key has its own.
    assert!(one.acquire("bob").await.is_ok());
    first.release().await;
    let third = two.acquire("ann").await.unwrap();
    assert!(third.fence() > second.fence());
    assert!(one.acquire("ann").await.is_err());
}

#[tokio::test]
async fn a_place_that_is_dropped_is_released() {
    let server = Server::start(&[]);
    let places = places(&store(&server.url()).await, 1, MINUTE);
    for _ in 0..20 {
        drop(wait(&places).await);
    }
    until("released", || held(&server) == 0).await;
}

#[tokio::test]
async fn a_place_is_renewed_as_long_as_it_is_held() {
    let server = Server::start(&[]);
    let places = places(&store(&server.url()).await, 1, SECOND);
    let place = places.acquire("ann").await.unwrap();
    let start = Instant::now();
    while start.elapsed() < SECOND * 2 {
        assert!(place.is_held());
        assert!(places.acquire("ann").await.is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    place.release().await;
    assert_eq!(held(&server), 0);
}

#[tokio::test]
async fn a_holder_is_told_when_its_place_is_lost() {
    let server = Server::start(&[]);
    let places = places(&store(&server.url()).await, 1, SECOND);
    let place = places.acquire("ann").await.unwrap();
    assert!(poll_once(std::pin::pin!(place.lost())).await.is_none());
    let () = redis::cmd("DEL").arg("{tidegate:jobs:ann}::places").query(&mut server.connection()).unwrap();
    tokio::time::timeout(PATIENCE, place.lost()).await.unwrap();
    assert!(!place.is_held());
    // What is dropped then takes no other's place away.
    let other = places.acquire("ann").await.unwrap();
    place.release().await;
    assert!(other.is_held());
    assert_eq!(held(&server), 1);
}

#[tokio::test]
async fn a_place_ends_for_its_holder_before_it_does_for_others() {
    let mut server = Server::start(&[]);
    let store = Store::builder(&server.url()).connect().await.unwrap();
    let places = places(&store, 1, SECOND);
    let asked = Instant::now();
    let place = places.acquire("ann").await.unwrap();
    server.kill();
    tokio::time::timeout(PATIENCE, place.lost()).await.unwrap();
    assert!(!place.is_held());
    assert!(asked.elapsed() >= SECOND * 9 / 10);
    // Nobody waits for a server that is not there.
    let start = Instant::now();
    place.release().await;
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_place_whose_reply_is_lost_is_not_lost() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = Store::builder(&proxy.url()).deadline(Duration::from_millis(200)).connect().await.unwrap();
    let places = places(&store, 1, MINUTE);
    // The script is there, and the place is free.
    places.acquire("ann").await.unwrap().release().await;
    proxy.set(Network::LosesReplies);
    let none = places.acquire("ann").await.unwrap_err();
    assert_eq!((none.made, none.held), (Made::Closed, None));
    assert_eq!(store.stats().late, 1);
    proxy.set(Network::Works);
    until("released", || held(&server) == 0).await;
    // Neither is that of a caller who left.
    proxy.set(Network::Delays(Duration::from_millis(50)));
    let mut left = Box::pin(places.acquire("bob"));
    until("connected again", || store.is_connected()).await;
    assert!(poll_once(left.as_mut()).await.is_none());
    drop(left);
    let count = || -> u64 {
        redis::cmd("ZCARD").arg("{tidegate:jobs:bob}::places").query(&mut server.connection()).unwrap()
    };
    until("released", || count() == 0).await;
    proxy.stop();
}

#[tokio::test]
async fn a_connection_that_breaks_does_not_give_a_second_place() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = store(&proxy.url()).await;
    let places = places(&store, 1, MINUTE);
    places.acquire("ann").await.unwrap().release().await;
    // The server gives the place, and the connection breaks before the reply.
    proxy.set(Network::LosesReplies);
    let mut asking = Box::pin(places.acquire("ann"));
    assert!(poll_once(asking.as_mut()).await.is_none());
    until("given", || held(&server) == 1).await;
    proxy.set(Network::Resets);
    let both = async {
        until("broken", || store.stats().opened > 0).await;
        proxy.set(Network::Works);
    };
    let (place, ()) = tokio::join!(asking, both);
    assert!(place.unwrap().is_held());
    assert_eq!(held(&server), 1);
    proxy.stop();
}

#[tokio::test]
async fn without_the_store_the_settings_say_who_gets_a_place() {
    let mut server = Server::start(&[]);
    let store = Store::builder(&server.url()).connect().await.unwrap();
    let closed = places(&store, 1, SECOND);
    let settings = PlacesSettings { without_store: WithoutPlaces::Open, ..*closed.settings() };
    let open = store.places("others", settings).unwrap();
    server.kill();
    until("away", || !store.is_connected()).await;
    let none = closed.acquire("ann").await.unwrap_err();
    assert_eq!((none.made, none.held), (Made::Closed, None));
    assert!(none.retry_after > Duration::ZERO);
    let place = open.acquire("ann").await.unwrap();
    assert_eq!((place.made(), place.fence(), place.is_held()), (Made::Open, None, true));
    assert!(poll_once(std::pin::pin!(place.lost())).await.is_none());
    let stats = store.stats();
    assert_eq!((stats.open, stats.closed, stats.not_connected), (1, 1, 2));
    place.release().await;
}

#[tokio::test]
async fn fence_numbers_grow_though_the_server_forgets_the_last_one() {
    let server = Server::start(&[]);
    let places = places(&store(&server.url()).await, 1, MINUTE);
    let mut last = None;
    for _ in 0..5 {
        let place = places.acquire("ann").await.unwrap();
        assert!(place.fence() > last);
        last = place.fence();
        place.release().await;
        let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
    }
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    let settings = *places(&store, 1, SECOND).settings();
    let short = PlacesSettings { ttl: Duration::from_millis(999), ..settings };
    assert_eq!(
        store.places("jobs", short).unwrap_err().to_string(),
        "time to live of a place of 999ms is out of range; write 1s to 1h"
    );
    let text = store.places("a:b", settings).unwrap_err().to_string();
    assert!(text.starts_with("`a:b` cannot be part of a key"), "{text}");
}

#[tokio::test]
async fn a_user_with_few_rights_has_places_and_leases() {
    let server = Server::start(&[]);
    let mut acl = redis::cmd("ACL");
    for part in
        "SETUSER few on >pass ~{tidegate:* +evalsha +script|load +get +set +time +zadd +zcard +zrange +zrem \
                 +zremrangebyscore +zscore +pexpire"
            .split_whitespace()
    {
        acl.arg(part);
    }
    let () = acl.query(&mut server.connection()).unwrap();
    let store = store(&format!("redis://few:pass@{}", server.address())).await;
    let place = places(&store, 1, SECOND).acquire("ann").await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert!(place.is_held());
    place.release().await;
    let leasing = tidegate_redis::Leasing { max_overshoot: 100, keys: 1 };
    let quota = crate::harness::quota("1000/s");
    let leased =
        store.leased_limiter("api", quota, leasing, tidegate_redis::OnFailure::Closed).await.unwrap();
    assert_eq!(leased.check("ann").await.made, Made::Exact);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_never_has_more_than_the_limit() {
    let server = Server::start(&[]);
    let running = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)));
    let mut callers = Vec::new();
    // As long as it takes to have had so many places, on a machine that is busy with other tests.
    let (enough, end) = (300, Instant::now() + 6 * PATIENCE);
    for _ in 0..3 {
        let places = Arc::new(places(&store(&server.url()).await, 4, MINUTE));
        for _ in 0..20 {
            let (places, running) = (Arc::clone(&places), Arc::clone(&running));
            callers.push(tokio::spawn(async move {
                while running.2.load(Ordering::SeqCst) < enough && Instant::now() < end {
                    let Ok(place) = places.acquire("ann").await else { continue };
                    let (now, most, all) = &*running;
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    all.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    // Half of them wait for the release.
                    if place.fence().unwrap().is_multiple_of(2) {
                        place.release().await;
                    }
                }
            }));
        }
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let (_, most, all) = &*running;
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert!(all.load(Ordering::SeqCst) >= enough, "{all:?}");
    until("released", || held(&server) == 0).await;
}

// Processes.

/// Not a test of its own: a holder in another process.
#[test]
fn helper_process() {
    let Ok(url) = std::env::var("TIDEGATE_PLACES_URL") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let place = places(&store(&url).await, 1, SECOND).acquire("ann").await.unwrap();
        println!("fence {}", place.fence().unwrap());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        // Asked at once when it goes on, before anything in the background had a turn.
        println!("held {}", place.is_held());
        tokio::time::timeout(PATIENCE, place.lost()).await.unwrap();
        println!("told {}", place.is_held());
    });
}

fn holder(server: &Server) -> (Talk, u64) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["places::helper_process", "--exact", "--nocapture"])
        .env("TIDEGATE_PLACES_URL", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut holder = Talk::to(child);
    let fence = holder.next("fence ").unwrap().parse().unwrap();
    (holder, fence)
}

#[tokio::test]
async fn the_place_of_a_process_that_was_killed_is_free_after_its_time() {
    let server = Server::start(&[]);
    let places = places(&store(&server.url()).await, 1, SECOND);
    let (holder, fence) = holder(&server);
    // It renews meanwhile.
    tokio::time::sleep(SECOND + SECOND / 2).await;
    holder.signal("-KILL");
    let killed = Instant::now();
    let none = places.acquire("ann").await.unwrap_err();
    assert!(none.retry_after <= SECOND, "{none:?}");
    let place = wait(&places).await;
    assert!(killed.elapsed() < SECOND + SECOND / 2, "{:?}", killed.elapsed());
    assert!(place.fence() > Some(fence));
}

#[tokio::test]
async fn a_process_that_was_stopped_past_its_time_knows_that_its_place_is_lost() {
    let server = Server::start(&[]);
    let places = places(&store(&server.url()).await, 1, SECOND);
    let (mut stopped, fence) = holder(&server);
    stopped.signal("-STOP");
    let place = wait(&places).await;
    assert!(place.fence() > Some(fence));
    stopped.say("go");
    stopped.signal("-CONT");
    assert_eq!(stopped.next("held ").as_deref(), Some("false"));
    assert_eq!(stopped.next("told ").as_deref(), Some("false"));
    drop(stopped);
    // And it took nobody's place away.
    assert!(place.is_held());
    assert_eq!(held(&server), 1);
}
