//! Real sentinels, and failovers that they make.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_redis::{OnFailure, SharedLimiter, Store};

use crate::faults::{
    DEADLINE, PATIENCE, allowed_by_the_store, answers, check, load, spent, until, until_exact,
};
use crate::harness::proxy::{Network, Proxy};
use crate::harness::quota;
use crate::harness::sentinels::Sentinels;
use crate::harness::server::Server;
use crate::texts::few_rights;

/// In which a failover has to be over: the time until the primary counts as dead, two elections of at most 5 s, should one
/// have no winner, and the look for the new one every 2 s.
const FAILOVER: Duration = Duration::from_secs(15);

async fn connect(url: &str) -> Store {
    Store::builder(url).remember_rejections(Duration::ZERO).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_is_followed_by_another_and_nothing_is_charged_twice() {
    let mut servers = Sentinels::start(|primary| primary);
    let store = connect(&servers.url()).await;
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 100000"), OnFailure::Closed).unwrap());
    let (stop, callers) = load(&limiter, 8, DEADLINE);
    until(&store, "busy", |stats| stats.exact > 300).await;
    servers.primary.kill();
    let killed = Instant::now();
    let before = store.stats();
    until(&store, "found again", |stats| stats.connected > 1 && stats.exact > before.exact + 100).await;
    let away = killed.elapsed();
    assert!(away < FAILOVER, "{away:?}");
    drop(stop);
    let answers = answers(callers).await;
    let stats = store.stats();
    let (allowed, spent) = (allowed_by_the_store(&answers), spent(&limiter).await);
    // Charged twice would be more than what is known or unknown to be charged.
    assert!(spent <= allowed + stats.late + stats.broken, "{spent} of {allowed}, {stats:?}");
    assert_eq!(stats.lost_state, 0, "the replica had the keys");
    println!("resumed after {away:?}; {allowed} allowed, {spent} on the new primary");
}

#[tokio::test]
async fn a_failover_that_somebody_orders_is_followed() {
    let servers = Sentinels::start(|primary| primary);
    let store = connect(&servers.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    assert!(check(&limiter, "ann").await.is_allowed());
    let order = || -> redis::RedisResult<()> {
        let mut connection = servers.sentinels[0].connection();
        redis::cmd("SENTINEL").arg("FAILOVER").arg("main").query(&mut connection)
    };
    // It refuses until it has looked at the replica.
    let start = Instant::now();
    while let Err(error) = order() {
        assert!(start.elapsed() < FAILOVER, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&store, "at the new primary", |stats| stats.connected > 1).await;
    let answer = until_exact(&limiter, "ann").await;
    assert!(answer.decision.remaining() <= 998, "{answer:?}");
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut servers.replica.connection()).unwrap();
    assert_eq!(role.first(), Some(&redis::Value::BulkString(b"master".to_vec())));
}

#[tokio::test]
async fn a_primary_that_the_sentinels_have_left_is_left_though_it_still_answers() {
    let servers = Sentinels::start(|primary| primary);
    let store = connect(&servers.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    assert_eq!(check(&limiter, "ann").await.remaining, [999]);
    assert_eq!(check(&limiter, "ann").await.remaining, [998]);
    // As a primary that was cut off from the sentinels would: it goes on, and does not know of the other one.
    let other = Server::start(&[]);
    for sentinel in &servers.sentinels {
        let mut connection = sentinel.connection();
        let () = redis::cmd("SENTINEL").arg("REMOVE").arg("main").query(&mut connection).unwrap();
        let mut monitor = redis::cmd("SENTINEL");
        monitor.arg("MONITOR").arg("main").arg("127.0.0.1").arg(other.address().port()).arg(2);
        let () = monitor.query(&mut connection).unwrap();
    }
    until(&store, "at the other one", |stats| stats.connected > 1).await;
    assert_eq!(until_exact(&limiter, "ann").await.remaining, [999]);
    assert_eq!(store.stats().lost_state, 1);
}

#[tokio::test]
async fn sentinels_have_a_login_of_their_own() {
    let servers = Sentinels::start(|primary| primary);
    for sentinel in &servers.sentinels {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg("asker").arg("on").arg(">secret").arg("+sentinel|master");
        let () = user.query(&mut sentinel.connection()).unwrap();
        // The user that needs no login may do nothing.
        let () = redis::cmd("ACL")
            .arg(&["SETUSER", "default", "-@all", "+acl"])
            .query(&mut sentinel.connection())
            .unwrap();
    }
    let () = few_rights("").query(&mut servers.primary.connection()).unwrap();
    let url = servers.url().replace("://", "://tidegate:PASSWORD@");
    let error = Store::builder(&url).connect().await.unwrap_err().to_string();
    assert!(error.contains("NoPerm") && error.contains("main of 127.0.0.1:"), "{error}");
    let store = Store::builder(&url).sentinel_login(Some("asker"), "secret").connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/day burst 2"), OnFailure::Closed).unwrap();
    assert_eq!(limiter.check("ann").await.remaining, [1]);
    let unknown = Store::builder(&url.replace("/main", "/other")).sentinel_login(Some("asker"), "secret");
    let error = unknown.connect().await.unwrap_err().to_string();
    assert!(error.contains("No such master"), "{error}");
}

/// A replica that gets nothing for a while, and is then made the primary. What is spent meanwhile is lost, and may be
/// allowed again. Returns how many calls were allowed on a bucket of 500: before, while it lagged, after.
async fn lagging(
    calls: [u32; 3],
    store: impl FnOnce(&str) -> tidegate_redis::StoreBuilder,
) -> (u64, u64, u64, Store) {
    let mut proxy = None;
    let mut servers = Sentinels::start(|primary| proxy.insert(Proxy::start(primary)).address());
    let proxy = proxy.unwrap();
    let store = store(&servers.url()).remember_rejections(Duration::ZERO).connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/day burst 500"), OnFailure::Closed).unwrap();
    let before = spend(&limiter, calls[0]).await;
    let start = Instant::now();
    while keys(&servers.replica) != keys(&servers.primary) {
        assert!(start.elapsed() < FAILOVER, "the replica is not in sync");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    proxy.set(Network::Swallows);
    let meanwhile = spend(&limiter, calls[1]).await;
    servers.primary.kill();
    let away = Instant::now();
    until(&store, "at the replica", |stats| stats.connected > 1).await;
    assert!(away.elapsed() < FAILOVER, "{:?}", away.elapsed());
    let after = spend(&limiter, calls[2]).await;
    proxy.stop();
    (before, meanwhile, after, store)
}

async fn spend(limiter: &SharedLimiter, calls: u32) -> u64 {
    let mut allowed = 0;
    for _ in 0..calls {
        allowed += u64::from(limiter.check("ann").await.is_allowed());
    }
    allowed
}

/// What the bucket holds, as it is stored.
fn keys(server: &Server) -> Option<String> {
    redis::cmd("GET").arg("{tidegate:api:ann}:token-bucket").query(&mut server.connection()).unwrap()
}

#[tokio::test]
async fn a_lagging_replica_brings_at_most_what_was_spent_in_the_lost_time() {
    let (before, lost, after, store) = lagging([200, 300, 600], Store::builder).await;
    assert!(lost > 0 && before > 0, "{:?}", store.stats());
    let (burst, over) = (500, (before + lost + after).saturating_sub(500));
    println!("{before} + {lost} (lost) + {after}: {over} above the burst of {burst}");
    // min(what was spent in the lost time, B + r·L), and r·L is nothing here.
    assert!(over <= lost.min(burst), "{over} above, {lost} lost");
    // The lost spend was really forgotten: this test can see it.
    assert!(over > 0, "{before} {lost} {after}");
}

#[tokio::test]
async fn calls_that_wait_for_the_replica_are_not_forgotten_by_a_failover() {
    // The server looks only every 100 ms whether the time is over, and sentinels mend the replica's way after 8 s.
    let store =
        |url: &str| Store::builder(url).deadline(PATIENCE).wait_for_replicas(1, Duration::from_millis(20));
    let (before, lost, after, store) = lagging([200, 20, 20], store).await;
    let stats = store.stats();
    // Nothing was answered as allowed that the replica did not have.
    assert_eq!((lost, store.stats().late), (0, 0), "{stats:?}");
    assert!(before >= 150, "{before} {stats:?}");
    // No replica is left, so nothing is allowed by the new primary either, and it says why.
    assert_eq!(after, 0, "{stats:?}");
    assert_eq!(stats.unreplicated, (200 - before) + 20 + 20, "{stats:?}");
}
