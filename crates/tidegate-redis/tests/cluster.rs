//! Real clusters: keys on many nodes, slots that move, nodes that die.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_redis::{Answer, Leasing, Made, OnFailure, PlacesSettings, SharedLimiter, Store, WithoutPlaces};

use crate::faults::{DEADLINE, PATIENCE, allowed_by_the_store, answers, check, load, spent, until};
use crate::harness::cluster::{Cluster, owner};
use crate::harness::server::Server;
use crate::harness::{self, policy, quota};
use crate::texts::few_rights;

/// Where the deadline is not what a test is about.
async fn patient(cluster: &Cluster) -> Store {
    Store::builder(&cluster.url())
        .deadline(PATIENCE)
        .remember_rejections(Duration::ZERO)
        .connect()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_spread_over_the_nodes_and_each_goes_where_it_is_at_once() {
    let cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let two = policy(&[("second", "1/day burst 5"), ("day", "1/day burst 50")]);
    let limiter = Arc::new(store.limiter("api", two, OnFailure::Closed).unwrap());
    let tenant = |number: usize| {
        let limiter = Arc::clone(&limiter);
        async move {
            let mut allowed = 0;
            for _ in 0..6 {
                let answer = limiter.check(&format!("tenant {}", number % 30)).await;
                assert_eq!(answer.made, Made::Exact);
                allowed += u32::from(answer.is_allowed());
            }
            allowed
        }
    };
    let allowed: u32 = harness::at_once(90, tenant).await.into_iter().sum();
    // Thirty keys of a burst of five.
    assert_eq!(allowed, 150);
    let keys = [0, 1, 2].map(|node| cluster.keys(node));
    assert!(keys.iter().all(|keys| keys.len() >= 6), "{keys:?}");
    assert_eq!(keys.iter().map(Vec::len).sum::<usize>(), 60);
    let stats = store.stats();
    // Nobody was sent elsewhere, and no script had keys of two slots.
    assert_eq!(
        (stats.retries, stats.refused, stats.connected),
        (0, 0, 3),
        "{stats:?} {:?}",
        store.last_refusal()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_of_a_cluster_goes_in_few_scripts_and_gets_exactly_the_burst() {
    let cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap());
    assert_eq!(harness::hot(&limiter).await, 1000);
    let stats = store.stats();
    assert!(stats.scripts * 2 < stats.exact, "{stats:?}");
}

/// Callers who keep on asking for one key.
fn hot(
    limiter: &Arc<SharedLimiter>,
    callers: usize,
) -> (tokio::sync::watch::Sender<()>, Vec<tokio::task::JoinHandle<Vec<Answer>>>) {
    let (stop, stopped) = tokio::sync::watch::channel(());
    let caller = || {
        let (limiter, stopped) = (Arc::clone(limiter), stopped.clone());
        tokio::spawn(async move {
            let mut answers = Vec::new();
            while stopped.has_changed().is_ok() {
                answers.push(limiter.check("ann").await);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            answers
        })
    };
    (stop, (0..callers).map(|_| caller()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_under_load_is_not_noticed_and_brings_no_token() {
    let cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let two = policy(&[("second", "1/day burst 1000"), ("day", "1/day burst 100000")]);
    let limiter = Arc::new(store.limiter("api", two, OnFailure::Closed).unwrap());
    let keys = ["{tidegate:api:ann}:second", "{tidegate:api:ann}:day"];
    let slot = cluster.slot(keys[0]);
    assert_eq!(slot, cluster.slot(keys[1]));
    let from = usize::from(owner(slot));
    let to = (from + 1) % 3;
    let (stop, callers) = hot(&limiter, 8);
    let more = |than: u64| {
        let store = &store;
        async move { until(store, "going on", |stats| stats.exact > than + 20).await }
    };
    // There and back, with calls in every state on the way.
    for (from, to) in [(from, to), (to, from)] {
        more(store.stats().exact).await;
        cluster.set_slot(to, slot, "IMPORTING", from);
        cluster.set_slot(from, slot, "MIGRATING", to);
        more(store.stats().exact).await;
        cluster.migrate(keys[0], from, to);
        // The group is split: no node can decide, and callers wait for the second half.
        let split = store.stats();
        until(&store, "told to try again", |stats| stats.retries > split.retries + 5).await;
        cluster.migrate(keys[1], from, to);
        // Both are at the new node, and the slot is not yet: each call is sent there by the old one.
        more(store.stats().exact).await;
        cluster.set_slot(to, slot, "NODE", to);
        cluster.set_slot(from, slot, "NODE", to);
        more(store.stats().exact).await;
    }
    drop(stop);
    let answers = answers(callers).await;
    let stats = store.stats();
    assert!(answers.iter().all(|answer| answer.made == Made::Exact), "{stats:?}");
    let allowed = u64::try_from(answers.iter().filter(|answer| answer.is_allowed()).count()).unwrap();
    let left = limiter.peek_with("ann", |_| 0).await.remaining;
    assert_eq!(left, [1000 - allowed.min(1000), 100_000 - allowed], "{stats:?}");
    assert_eq!((stats.refused, stats.late, stats.broken, stats.unready), (0, 0, 0, 0), "{stats:?}");
    println!("{} calls, {} sent again", answers.len(), stats.retries);
}

#[tokio::test]
async fn a_full_bucket_in_a_slot_that_moves_is_full() {
    let cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let two = policy(&[("second", "1/day burst 5"), ("day", "1/day burst 9")]);
    let limiter = store.limiter("api", two, OnFailure::Closed).unwrap();
    let keys = ["{tidegate:api:ann}:second", "{tidegate:api:ann}:day"];
    let slot = cluster.slot(keys[0]);
    let from = usize::from(owner(slot));
    let to = (from + 1) % 3;
    // Nobody has asked for this key yet, so it is nowhere; and the slot stays between the nodes.
    cluster.set_slot(to, slot, "IMPORTING", from);
    cluster.set_slot(from, slot, "MIGRATING", to);
    assert_eq!(limiter.check("ann").await.remaining, [4, 8]);
    assert_eq!(limiter.check("ann").await.remaining, [3, 7]);
    assert_eq!((cluster.keys(from).len(), cluster.keys(to).len()), (0, 2));
    for node in [to, from] {
        cluster.set_slot(node, slot, "NODE", to);
    }
    assert_eq!(limiter.check("ann").await.remaining, [2, 6]);
    // Back again, and one bucket is full meanwhile while the other is not: as soon as that one has moved, both are known.
    let (from, to) = (to, from);
    let _: u8 = cluster.tell(from, redis::cmd("DEL").arg(keys[0])).unwrap();
    cluster.set_slot(to, slot, "IMPORTING", from);
    cluster.set_slot(from, slot, "MIGRATING", to);
    cluster.migrate(keys[1], from, to);
    assert_eq!(limiter.check("ann").await.remaining, [4, 5]);
    for node in [to, from] {
        cluster.set_slot(node, slot, "NODE", to);
    }
    assert_eq!(limiter.check("ann").await.remaining, [3, 4]);
    let stats = store.stats();
    assert_eq!((stats.exact, stats.refused, stats.unready), (5, 0, 0), "{stats:?}");
}

#[tokio::test]
async fn a_key_that_has_to_wait_for_its_slot_to_move_holds_no_other_key_up() {
    let cluster = Cluster::start(false);
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_secs(3))
        .remember_rejections(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let two = policy(&[("second", "1/day burst 50"), ("day", "1/day burst 90")]);
    let limiter = Arc::new(store.limiter("api", two, OnFailure::Closed).unwrap());
    // Two tenants of one slot, and one bucket of `ann` is full while the other is not.
    assert_eq!(limiter.check("ann").await.remaining, [49, 89]);
    let slot = cluster.slot("{tidegate:api:ann}:day");
    let bob = cluster.name_in(slot, |name| format!("{{tidegate:api:{name}}}:day"));
    let from = usize::from(owner(slot));
    let to = (from + 1) % 3;
    let _: u8 = cluster.tell(from, redis::cmd("DEL").arg("{tidegate:api:ann}:second")).unwrap();
    cluster.set_slot(to, slot, "IMPORTING", from);
    cluster.set_slot(from, slot, "MIGRATING", to);
    let asking = |key: &str| {
        let (limiter, key) = (Arc::clone(&limiter), key.to_owned());
        tokio::spawn(async move { limiter.check(&key).await })
    };
    // One by itself, two of pumps, and more behind them.
    let anns: Vec<_> = (0..10).map(|_| asking("ann")).collect();
    until(&store, "told to try again", |stats| stats.retries > 5).await;
    let mut callers = Vec::new();
    for _ in 0..5 {
        callers.push((false, asking("ann")));
        callers.push((true, asking(&bob)));
    }
    for (of_bob, caller) in callers {
        if of_bob {
            assert_eq!(caller.await.unwrap().made, Made::Exact);
        }
    }
    let waiting = anns.iter().filter(|ann| !ann.is_finished()).count();
    assert_eq!(waiting, 10, "{:?}", store.stats());
    // As soon as the rest of it has moved, it is decided too.
    cluster.migrate("{tidegate:api:ann}:day", from, to);
    for ann in anns {
        assert_eq!(ann.await.unwrap().made, Made::Exact, "{:?}", store.stats());
    }
    assert_eq!(limiter.check(&bob).await.remaining, [44, 84]);
}

#[tokio::test]
async fn a_slot_that_moves_to_a_new_node_is_followed_there() {
    let mut cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let two = policy(&[("second", "1/day burst 5"), ("day", "1/day burst 9")]);
    let limiter = store.limiter("api", two, OnFailure::Closed).unwrap();
    assert_eq!(limiter.check("ann").await.remaining, [4, 8]);
    let slot = cluster.slot("{tidegate:api:ann}:day");
    let from = usize::from(owner(slot));
    // It has no slot, so the map does not know of it.
    let new = cluster.add();
    assert_eq!(store.stats().connected, 3);
    cluster.set_slot(new, slot, "IMPORTING", from);
    cluster.set_slot(from, slot, "MIGRATING", new);
    for key in ["{tidegate:api:ann}:second", "{tidegate:api:ann}:day"] {
        cluster.migrate(key, from, new);
    }
    assert_eq!(limiter.check("ann").await.remaining, [3, 7]);
    for node in [new, from] {
        cluster.set_slot(node, slot, "NODE", new);
    }
    assert_eq!(limiter.check("ann").await.remaining, [2, 6]);
    let stats = store.stats();
    assert_eq!((stats.exact, stats.refused, stats.unready, stats.connected), (3, 0, 0, 4), "{stats:?}");
    // Once the map has it, calls go there at once.
    let retries = stats.retries;
    assert_eq!(limiter.check("ann").await.remaining, [1, 5]);
    assert_eq!(store.stats().retries, retries);
}

#[tokio::test]
async fn a_node_that_forgot_its_script_gets_it_when_a_call_is_sent_there() {
    let cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let limiter = store.limiter("api", quota("1/day burst 10"), OnFailure::Closed).unwrap();
    assert!(limiter.check("ann").await.is_allowed());
    let key = "{tidegate:api:ann}:token-bucket";
    let slot = cluster.slot(key);
    let from = usize::from(owner(slot));
    let to = (from + 1) % 3;
    cluster.set_slot(to, slot, "IMPORTING", from);
    cluster.set_slot(from, slot, "MIGRATING", to);
    cluster.migrate(key, from, to);
    for node in [from, to] {
        let () = cluster.tell(node, redis::cmd("SCRIPT").arg("FLUSH")).unwrap();
    }
    assert_eq!(limiter.check("ann").await.remaining, [8]);
    let stats = store.stats();
    // The old node sends calls away before it looks for the script, so it may have been loaded there or not.
    assert!(stats.loads >= 1 && stats.retries >= 2, "{stats:?}");
    assert_eq!((stats.exact, stats.opened), (2, 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_of_a_cluster_that_is_killed_is_followed_by_its_replica() {
    let mut cluster = Cluster::start(true);
    let store = Store::builder(&cluster.url()).remember_rejections(Duration::ZERO).connect().await.unwrap();
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 100000"), OnFailure::Closed).unwrap());
    let node_of = |key: &str| usize::from(owner(cluster.slot(&format!("{{tidegate:api:{key}}}:x"))));
    let killed_node = node_of("key 0");
    let elsewhere =
        (0..).map(|number| format!("other {number}")).find(|key| node_of(key) != killed_node).unwrap();
    let (stop, callers) = load(&limiter, 8, DEADLINE);
    until(&store, "busy", |stats| stats.exact > 300).await;
    cluster.nodes[killed_node].kill();
    let killed = Instant::now();
    until(&store, "away", |_| !store.is_connected()).await;
    // The other nodes go on, and the dead one's keys are answered at once.
    assert_eq!(check(&limiter, &elsewhere).await.made, Made::Exact);
    let answer = check(&limiter, "key 0").await;
    assert_eq!((answer.made, answer.is_allowed()), (Made::Closed, false));
    // The node counts as dead after 2 s; the replica waits up to 1 s for votes; the map is asked for every 0.5 s.
    let resumed = loop {
        if check(&limiter, "key 0").await.made == Made::Exact {
            break killed.elapsed();
        }
        assert!(killed.elapsed() < PATIENCE, "no replica took over: {:?}", store.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    drop(stop);
    let answers = answers(callers).await;
    let stats = store.stats();
    let (allowed, spent) = (allowed_by_the_store(&answers), spent(&limiter).await);
    // One more call on `key 0` than the load made, and no call twice.
    assert!(spent <= allowed + 1 + stats.late + stats.broken, "{spent} of {allowed}, {stats:?}");
    println!("resumed after {resumed:?}; {allowed} allowed, {spent} on the nodes; {stats:?}");
}

#[tokio::test]
async fn a_node_of_a_cluster_under_the_address_of_one_server_says_what_to_write() {
    let cluster = Cluster::start(false);
    // Its slots are its own, and the others are not.
    let store = Store::builder(&cluster.nodes[0].url()).connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/day burst 10"), OnFailure::Closed).unwrap();
    let mut refused = 0;
    for number in 0..20 {
        refused += u32::from(check(&limiter, &format!("key {number}")).await.made == Made::Closed);
    }
    assert!(refused > 0);
    let text = store.last_refusal().unwrap();
    assert_eq!(&*text, "the server is a node of a cluster; write redis+cluster://HOST:PORT");
}

#[tokio::test]
async fn a_user_with_few_rights_is_enough_for_a_cluster() {
    let cluster = Cluster::start(false);
    for node in 0..3 {
        let () = cluster.tell(node, &few_rights("+cluster|slots +asking")).unwrap();
    }
    let url = cluster.url().replace("://", "://tidegate:PASSWORD@");
    let store = Store::builder(&url).deadline(PATIENCE).connect().await.unwrap();
    let two = policy(&[("second", "1/day burst 5"), ("day", "1/day burst 9")]);
    let limiter = store.limiter("api", two, OnFailure::Closed).unwrap();
    for number in 0..20 {
        assert_eq!(limiter.check(&format!("key {number}")).await.remaining, [4, 8]);
    }
    let slot = cluster.slot("{tidegate:api:ann}:day");
    let from = usize::from(owner(slot));
    cluster.set_slot((from + 1) % 3, slot, "IMPORTING", from);
    cluster.set_slot(from, slot, "MIGRATING", (from + 1) % 3);
    assert_eq!(limiter.check("ann").await.remaining, [4, 8]);
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_no_cluster() {
    let server = Server::start(&[]);
    let url = format!("redis+cluster://{}", server.address());
    let error = Store::builder(&url).connect().await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot use the store at {}: ", server.address())), "{error}");
    assert!(error.contains("cluster support disabled"), "{error}");
}

#[tokio::test]
async fn leases_and_places_go_to_the_node_of_their_key() {
    let cluster = Cluster::start(false);
    let store = patient(&cluster).await;
    let leasing = Leasing { max_overshoot: 400, keys: 1000 };
    let limiter = store.leased_limiter("api", quota("1000/s"), leasing, OnFailure::Closed).await.unwrap();
    let settings = PlacesSettings {
        limit: NonZeroU64::new(1).unwrap(),
        ttl: Duration::from_secs(60),
        without_store: WithoutPlaces::Closed,
    };
    let places = store.places("jobs", settings).unwrap();
    for number in 0..30 {
        let key = format!("tenant {number}");
        assert_eq!(limiter.check(&key).await.made, Made::Exact);
        let place = places.acquire(&key).await.unwrap();
        assert!(places.acquire(&key).await.is_err());
        place.release().await;
        assert!(places.acquire(&key).await.is_ok());
    }
}
