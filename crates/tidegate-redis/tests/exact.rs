//! Exact mode on a server of its own: the same answers as everywhere, from many callers, threads and processes.
//!
//! This program is also the other processes: it starts itself again, with what to do in the environment.
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::server::Server;
use crate::harness::{self, policy, poll_once, quota};
use tidegate::{Algorithm, Decision, Kind, Limit, Limiter, Mode, Policy};
use tidegate_redis::{Made, OnFailure, SharedLimiter, Store};

async fn store(server: &Server) -> Store {
    // A machine that is busy with other tests must not make the store look away.
    Store::builder(&server.url()).deadline(Duration::from_secs(10)).connect().await.unwrap()
}

fn value(server: &Server, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(&mut server.connection()).unwrap()
}

/// All keys but the one that says that the store is the same, with their values.
fn contents(server: &Server) -> BTreeMap<String, String> {
    let mut connection = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let mut of = |key: String| {
        let value = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
        (key, value)
    };
    keys.into_iter().filter(|key| key != "tidegate:epoch").map(&mut of).collect()
}

#[tokio::test]
async fn a_shared_limiter_follows_the_worked_example() {
    let server = Server::start(&[]);
    // It remembers for longer than a busy machine takes between two calls.
    let builder = Store::builder(&server.url()).deadline(Duration::from_secs(10));
    let store = builder.remember_rejections(Duration::from_secs(60)).connect().await.unwrap();
    // B = 3, a token an hour: three at once, the fourth needs an hour.
    let limiter = store.limiter("api", quota("1/hour burst 3"), OnFailure::Closed).unwrap();
    for left in [2, 1, 0] {
        let answer = limiter.check("ann").await;
        assert!(answer.is_allowed(), "{answer:?}");
        assert_eq!(
            (answer.decision.remaining(), &*answer.remaining, answer.made),
            (left, &[left][..], Made::Exact)
        );
    }
    let answer = limiter.check("ann").await;
    let wait = answer.decision.retry_after().unwrap();
    assert!(wait <= Duration::from_secs(3600) && wait > Duration::from_secs(3590), "{wait:?}");
    assert_eq!((answer.limit, answer.made), (Some(0), Made::Exact));
    // Again at once: the store need not be asked.
    let again = limiter.check("ann").await;
    assert_eq!(again.made, Made::Remembered);
    assert!(again.decision.retry_after().unwrap() <= wait);
    // Another key, another limiter: other buckets.
    assert!(limiter.check_n("bob", 3).await.is_allowed());
    let other = store.limiter("pages", quota("1/hour burst 3"), OnFailure::Closed).unwrap();
    assert!(other.check_n("ann", 3).await.is_allowed());
    assert_eq!(limiter.check_n("carl", 4).await.decision, Decision::Never { capacity: 3 });
    assert!(limiter.check_n("carl", 3).await.is_allowed());
}

#[tokio::test]
async fn a_trace_is_decided_as_in_memory() {
    let server = Server::start(&[]);
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(10))
        .remember_rejections(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    // Nothing comes back while the test runs, so that the two clocks make no difference.
    let limit = |name: &str, text: &str, mode| Limit {
        name: name.into(),
        algorithm: Algorithm::new(Kind::TokenBucket, quota(text)),
        mode,
    };
    let policy = Policy::new(vec![
        limit("requests", "1/day burst 80", Mode::Enforce),
        limit("bytes", "1/day burst 300", Mode::Enforce),
        limit("trial", "1/day burst 30", Mode::Shadow),
    ]);
    let memory = Limiter::new(policy.clone(), 100);
    let shared = store.limiter("api", policy, OnFailure::Closed).unwrap();
    let mut random = rand_pcg::Lcg64Xsh32::new(7, 11);
    let mut below = |bound: u32| {
        use rand_pcg::rand_core::Rng as _;
        random.next_u32() % bound
    };
    let (mut allowed, mut rejected, mut never) = (0, 0, 0);
    for _ in 0..400 {
        let key = ["ann", "bob", "carl", "dora", "eve"][below(5) as usize];
        // Now and then more than the burst.
        let bytes = if below(20) == 0 { 301 } else { below(12) };
        let costs = [below(4), bytes, below(3)].map(u64::from);
        let look = below(10) == 0;
        let (expected, answer) = if look {
            (
                memory.peek_with(key.as_bytes(), |limit| costs[limit]),
                shared.peek_with(key, |limit| costs[limit]).await,
            )
        } else {
            (
                memory.check_with(key.as_bytes(), |limit| costs[limit]),
                shared.check_with(key, |limit| costs[limit]).await,
            )
        };
        match (expected.decision, answer.decision) {
            (Decision::Allowed { remaining: a, .. }, Decision::Allowed { remaining: b, .. }) => {
                assert_eq!(a, b);
                allowed += 1;
            }
            (Decision::Rejected { remaining: a, .. }, Decision::Rejected { remaining: b, .. }) => {
                assert_eq!(a, b);
                rejected += 1;
            }
            (Decision::Never { capacity: a }, Decision::Never { capacity: b }) => {
                assert_eq!(a, b);
                never += 1;
            }
            (expected, got) => panic!("{expected:?} in memory, {got:?} on the server"),
        }
        assert_eq!(answer.limit, expected.limit, "{costs:?}");
        // `Never` is said without a look at the server, and so without the state of the limit in shadow.
        if !matches!(answer.decision, Decision::Never { .. }) {
            assert_eq!(answer.shadow, expected.shadow, "{costs:?}");
        }
    }
    assert!(allowed > 20 && rejected > 20 && never > 5, "{allowed} {rejected} {never}");
}

#[tokio::test]
async fn what_one_limit_refuses_changes_no_key() {
    let server = Server::start(&[]);
    let store = store(&server).await;
    let two = policy(&[("second", "1/hour burst 10"), ("day", "1/day burst 3")]);
    let limiter = store.limiter("api", two, OnFailure::Closed).unwrap();
    assert!(limiter.check_with("ann", |limit| [1, 3][limit]).await.is_allowed());
    let before = contents(&server);
    assert_eq!(before.len(), 2);
    for (costs, binds) in [([1, 1], 1), ([10, 0], 0), ([9, 1], 1), ([10, 2], 1)] {
        let answer = limiter.check_with("ann", |limit| costs[limit]).await;
        assert!(!answer.is_allowed(), "{costs:?}");
        assert_eq!(answer.limit, Some(binds), "{costs:?}");
    }
    // Neither does what costs nothing, what is only looked at, and what is refused on a key that is not there.
    assert!(limiter.check_n("ann", 0).await.is_allowed());
    assert!(limiter.peek_with("ann", |limit| [9, 0][limit]).await.is_allowed());
    assert_eq!(limiter.check_n("bob", 4).await.decision, Decision::Never { capacity: 3 });
    assert!(limiter.peek("bob", 3).await.is_allowed());
    assert_eq!(contents(&server), before);
}

#[tokio::test]
async fn every_bucket_has_a_time_to_live_of_its_time_to_full_and_a_second() {
    let server = Server::start(&[]);
    let store = store(&server).await;
    let limiter = store.limiter("api", quota("10/s burst 100"), OnFailure::Closed).unwrap();
    for (key, cost, full_ms) in [("ann", 1, 100), ("bob", 37, 3700), ("carl", 100, 10_000)] {
        assert!(limiter.check_n(key, cost).await.is_allowed());
        let key = format!("{{tidegate:api:{key}}}:token-bucket");
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut server.connection()).unwrap();
        // The command to look takes time too.
        assert!(ttl <= full_ms + 1000 && ttl > full_ms + 1000 - 2000, "{key}: {ttl}");
    }
    let keys = contents(&server);
    assert_eq!(keys.len(), 3);
}

#[tokio::test]
async fn keys_of_any_bytes_do_not_meet() {
    let server = Server::start(&[]);
    let store = store(&server).await;
    let limiter =
        store.limiter("api", policy(&[("a", "1/hour"), ("b", "1/hour")]), OnFailure::Closed).unwrap();
    let keys: [&[u8]; 7] = [b"", b"}", b"}:a", b"x}:a", b"x", &[0, 255], b"{tidegate:api:x}:a"];
    for key in keys {
        assert!(limiter.check(key).await.is_allowed(), "{key:?}");
    }
    for key in keys {
        assert!(!limiter.check(key).await.is_allowed(), "{key:?}");
    }
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_left_alone_and_said() {
    let server = Server::start(&[]);
    let store = store(&server).await;
    let limiter = store.limiter("api", quota("1/hour"), OnFailure::Closed).unwrap();
    let key = "{tidegate:api:ann}:token-bucket";
    let () = redis::cmd("SET").arg(key).arg("hello").query(&mut server.connection()).unwrap();
    let answer = limiter.check("ann").await;
    assert_eq!((answer.is_allowed(), answer.made), (false, Made::Closed));
    assert!(store.last_refusal().unwrap().contains("holds something else"), "{:?}", store.last_refusal());
    assert_eq!(value(&server, key).as_deref(), Some("hello"));
    let () = redis::cmd("DEL").arg(key).query(&mut server.connection()).unwrap();
    let () = redis::cmd("SADD").arg(key).arg("hello").query(&mut server.connection()).unwrap();
    assert_eq!(limiter.check("ann").await.made, Made::Closed);
    // Others are served, those as well whose calls go in one script with it, and the connection is as good as before.
    let keys = ["bob", "ann", "carl", "ann", "dora", "ann", "eve", "ann"];
    let limiter = Arc::new(limiter);
    let callers = keys.map(|key| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { (key, limiter.check(key).await) })
    });
    for caller in callers {
        let (key, answer) = caller.await.unwrap();
        assert_eq!(
            (answer.is_allowed(), answer.made == Made::Exact),
            (key != "ann", key != "ann"),
            "{key} {answer:?}"
        );
    }
    let stats = store.stats();
    assert_eq!((stats.refused, stats.opened), (6, 0));
    assert!(stats.scripts < 2 + 8, "none went together: {stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_callers_of_one_key_go_in_few_scripts_and_get_exactly_the_burst() {
    let server = Server::start(&[]);
    let store = store(&server).await;
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap());
    assert_eq!(harness::hot(&limiter).await, 1000);
    let stats = store.stats();
    assert_eq!(stats.exact + stats.remembered, 2000);
    assert!(stats.scripts * 2 < stats.exact, "{stats:?}");
}

#[tokio::test]
async fn a_caller_that_is_not_polled_holds_nobody_up() {
    let server = Server::start(&[]);
    let store = store(&server).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    // Polled once, so that its call is under way, and then never again.
    let mut stuck = Box::pin(limiter.check("ann"));
    assert!(poll_once(stuck.as_mut()).await.is_none());
    for _ in 0..10 {
        assert!(limiter.check("bob").await.is_allowed());
    }
    assert!(stuck.await.is_allowed());
}

// Processes.

/// Not a test of its own: what another process does.
#[test]
fn helper_process() {
    let Ok(url) = std::env::var("TIDEGATE_TEST_URL") else { return };
    let of = |name| std::env::var(name).unwrap();
    let (limiter, callers): (String, usize) =
        (of("TIDEGATE_TEST_LIMITER"), of("TIDEGATE_TEST_CALLERS").parse().unwrap());
    let (text, time): (String, u64) = (of("TIDEGATE_TEST_QUOTA"), of("TIDEGATE_TEST_MS").parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let allowed: u64 = runtime.block_on(async {
        let store = Store::builder(&url).deadline(Duration::from_secs(10)).connect().await.unwrap();
        let limiter = Arc::new(store.limiter(&limiter, quota(&text), OnFailure::Closed).unwrap());
        let until = Instant::now() + Duration::from_millis(time);
        let callers: Vec<_> =
            (0..callers).map(|_| tokio::spawn(spend(Arc::clone(&limiter), until))).collect();
        let mut allowed = 0;
        for caller in callers {
            allowed += caller.await.unwrap();
        }
        allowed
    });
    println!("allowed {allowed}");
}

async fn spend(limiter: Arc<SharedLimiter>, until: Instant) -> u64 {
    let mut allowed = 0;
    while Instant::now() < until {
        let answer = limiter.check("all").await;
        assert!(matches!(answer.made, Made::Exact | Made::Remembered), "{answer:?}");
        if answer.is_allowed() {
            allowed += 1;
        } else if answer.made == Made::Remembered {
            tokio::task::yield_now().await;
        }
    }
    allowed
}

/// Runs processes on limiters of these names, and says how many calls were allowed, and the seconds it took in all.
fn processes(server: &Server, limiters: &[&str], quota: &str, callers: usize, ms: u64) -> (u64, f64) {
    let start = Instant::now();
    let children: Vec<_> = limiters
        .iter()
        .map(|limiter| {
            Command::new(std::env::current_exe().unwrap())
                .args(["exact::helper_process", "--exact", "--nocapture"])
                .env("TIDEGATE_TEST_URL", server.url())
                .env("TIDEGATE_TEST_LIMITER", limiter)
                .env("TIDEGATE_TEST_QUOTA", quota)
                .env("TIDEGATE_TEST_CALLERS", callers.to_string())
                .env("TIDEGATE_TEST_MS", ms.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut allowed = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let number = text.lines().find_map(|line| line.split("allowed ").nth(1)).unwrap();
        allowed += number.trim().parse::<u64>().unwrap();
    }
    (allowed, start.elapsed().as_secs_f64())
}

/// `B + r·t`, rounded up.
fn bound(burst: f64, rate: f64, seconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    let bound = (burst + rate * seconds).ceil() as u64;
    bound
}

#[test]
fn eight_processes_of_many_callers_are_allowed_what_one_bucket_allows() {
    let server = Server::start(&[]);
    let (allowed, seconds) = processes(&server, &["api"; 8], "1/day burst 200", 32, 1000);
    assert_eq!(allowed, 200, "nothing comes back in {seconds} s");
    let (allowed, seconds) = processes(&server, &["busy"; 8], "500/s burst 200", 32, 1000);
    assert!(allowed <= bound(200.0, 500.0, seconds), "{allowed} in {seconds} s");
    // Each process asks without a pause for a second, in which the bucket is empty, but for when nobody gets to ask.
    assert!(allowed >= bound(200.0, 500.0, 1.0) * 9 / 10, "{allowed} in {seconds} s");
}

#[test]
fn four_copies_of_a_bucket_are_seen_to_allow_four_times_as_much() {
    // The same harness on a limiter that is not shared: the mistake that the test above must be able to see.
    let server = Server::start(&[]);
    let (allowed, seconds) = processes(&server, &["a", "b", "c", "d"], "1/day burst 100", 8, 2000);
    assert!(allowed > bound(100.0, 1.0 / 86_400.0, seconds), "{allowed} in {seconds} s");
    assert_eq!(allowed, 4 * 100);
}
