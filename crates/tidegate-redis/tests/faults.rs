//! What goes wrong between a caller and the store. Every test has a deadline of 50 ms, and no decision may be later than
//! that and [`MARGIN`], which is what a machine that has more to do than it can may take to wake a task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_redis::{Answer, Made, OnFailure, SharedLimiter, Stats, Store, Warning};

use crate::harness::proxy::{Network, Proxy};
use crate::harness::server::Server;
use crate::harness::{at_once, poll_once, quota};

pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
const MARGIN: Duration = Duration::from_millis(450);
/// Long enough for anything that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> Store {
    Store::builder(url).remember_rejections(Duration::ZERO).connect().await.unwrap()
}

/// One decision, which must not be late.
pub(crate) async fn check(limiter: &SharedLimiter, key: &str) -> Answer {
    asked(limiter, key, DEADLINE).await
}

pub(crate) async fn asked(limiter: &SharedLimiter, key: &str, deadline: Duration) -> Answer {
    let start = Instant::now();
    let answer = limiter.check(key).await;
    let took = start.elapsed();
    assert!(took <= deadline + MARGIN, "{took:?} for {answer:?}");
    answer
}

/// Waits until the statistics say so.
pub(crate) async fn until(store: &Store, what: &str, is: impl Fn(&Stats) -> bool) {
    let start = Instant::now();
    while !is(&store.stats()) {
        assert!(start.elapsed() < PATIENCE, "not {what}: {:?}", store.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Asks until the store answers again.
pub(crate) async fn until_exact(limiter: &SharedLimiter, key: &str) -> Answer {
    let start = Instant::now();
    loop {
        let answer = check(limiter, key).await;
        if answer.made == Made::Exact {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "the store is not found again");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Calls of several callers, as long as `stop` is not dropped, each of which must be answered in time.
pub(crate) fn load(
    limiter: &Arc<SharedLimiter>,
    callers: usize,
    deadline: Duration,
) -> (tokio::sync::watch::Sender<()>, Vec<tokio::task::JoinHandle<Vec<Answer>>>) {
    let (stop, stopped) = tokio::sync::watch::channel(());
    let caller = |number: usize| {
        let (limiter, stopped) = (Arc::clone(limiter), stopped.clone());
        tokio::spawn(async move {
            let mut answers = Vec::new();
            while stopped.has_changed().is_ok() {
                answers.push(asked(&limiter, &format!("key {}", number % 4), deadline).await);
                // A caller that is refused at once would otherwise keep the processor from the server.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            answers
        })
    };
    (stop, (0..callers).map(caller).collect())
}

pub(crate) async fn answers(callers: Vec<tokio::task::JoinHandle<Vec<Answer>>>) -> Vec<Answer> {
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    all
}

/// How many of the calls of [`load`] were allowed. Whatever the store did not decide must have been refused.
pub(crate) fn allowed_by_the_store(answers: &[Answer]) -> u64 {
    assert!(answers.iter().all(|answer| answer.made == Made::Exact || !answer.is_allowed()));
    u64::try_from(answers.iter().filter(|answer| answer.is_allowed()).count()).unwrap()
}

/// What [`load`] has spent of the four keys, each of a burst of 100,000.
pub(crate) async fn spent(limiter: &SharedLimiter) -> u64 {
    let mut spent = 0;
    for key in 0..4 {
        spent += 100_000 - until_peeked(limiter, &format!("key {key}")).await;
    }
    spent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_is_flushed_under_load_is_loaded_again_and_nobody_notices() {
    let server = Server::start(&[]);
    // The deadline is not what this test is about.
    let store = Store::builder(&server.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let limiter = Arc::new(store.limiter("api", quota("1000000/s"), OnFailure::Closed).unwrap());
    let (stop, callers) = load(&limiter, 16, PATIENCE);
    let mut connection = server.connection();
    for _ in 0..10 {
        let before = store.stats().loads;
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
        until(&store, "loaded", |stats| stats.loads > before).await;
    }
    drop(stop);
    let answers = answers(callers).await;
    assert!(answers.iter().all(|answer| answer.made == Made::Exact && answer.is_allowed()));
    let stats = store.stats();
    // One more trip for each script that was under way, of which there are three at most.
    assert!(stats.retries >= 10 && stats.retries <= 30 && stats.opened == 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_with_a_file_that_is_synced_loses_no_token() {
    // With `everysec` it mostly loses none either; but while the disk is busy the server answers before it writes, for 2 s.
    kill_9(&["--appendonly", "yes", "--appendfsync", "always"], true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_without_persistence_gives_one_burst_and_says_so() {
    kill_9(&[], false).await;
}

async fn kill_9(options: &[&str], kept: bool) {
    let mut server = Server::start(options);
    let store = connect(&server.url()).await;
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 5000"), OnFailure::Closed).unwrap());
    let (stop, callers) = load(&limiter, 16, DEADLINE);
    until(&store, "busy", |stats| stats.exact > 500).await;
    server.kill();
    until(&store, "away", |_| !store.is_connected()).await;
    // While it is away calls are rejected, at once.
    for _ in 0..20 {
        let answer = check(&limiter, "key 0").await;
        assert_eq!((answer.made, answer.is_allowed()), (Made::Closed, false));
        assert!(answer.decision.retry_after().unwrap() >= DEADLINE);
    }
    let before = store.stats();
    server.start_again();
    until(&store, "found again", |stats| stats.exact > before.exact + 100).await;
    drop(stop);
    let answers = answers(callers).await;
    let stats = store.stats();
    assert_eq!(stats.lost_state, u64::from(!kept), "{stats:?}");
    assert!(answers.iter().all(|answer| answer.made == Made::Exact || !answer.is_allowed()));
    let mut left = 0;
    for key in 0..4 {
        left += until_peeked(&limiter, &format!("key {key}")).await;
    }
    // Four keys. What the server acknowledged before it was killed is either in the file, or all of it is forgotten.
    let allowed = u64::try_from(answers.iter().filter(|answer| answer.is_allowed()).count()).unwrap();
    let unknown = stats.late + stats.broken;
    let spent = 4 * 5000 - left;
    if kept {
        assert!(spent >= allowed && spent <= allowed + unknown, "{spent} of {allowed}, {stats:?}");
    } else {
        assert!(spent < allowed && allowed <= 2 * 4 * 5000, "{spent} of {allowed}, {stats:?}");
    }
}

#[tokio::test]
async fn a_store_that_swallows_everything_is_given_up_and_found_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = connect(&proxy.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    assert_eq!(check(&limiter, "ann").await.made, Made::Exact);
    proxy.set(Network::Swallows);
    let mut took = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(check(&limiter, "ann").await.made, Made::Closed);
        took.push(start.elapsed());
    }
    let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
    assert!(
        *least >= DEADLINE && *least <= DEADLINE + Duration::from_millis(10),
        "{took:?}, at most {most:?}"
    );
    // Five without a reply: the breaker is open, and nobody waits.
    let stats = store.stats();
    assert_eq!((stats.late, stats.opened, store.is_connected()), (5, 1, false), "{stats:?}");
    let start = Instant::now();
    for _ in 0..1000 {
        assert_eq!(check(&limiter, "ann").await.made, Made::Closed);
    }
    assert!(start.elapsed() < DEADLINE * 100, "{:?}", start.elapsed());
    proxy.set(Network::Works);
    // The first five never arrived, so only the first call was charged.
    assert_eq!(until_exact(&limiter, "ann").await.decision.remaining(), 998);
    assert_eq!(store.stats().lost_state, 0);
    proxy.stop();
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_never_given_back() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = connect(&proxy.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Open).unwrap();
    assert!(check(&limiter, "ann").await.is_allowed());
    proxy.set(Network::LosesReplies);
    for _ in 0..5 {
        let answer = check(&limiter, "ann").await;
        assert_eq!((answer.made, answer.is_allowed()), (Made::Open, true));
    }
    assert_eq!((store.stats().late, store.stats().open), (5, 5));
    proxy.set(Network::Works);
    // The server had executed all of them, once: six, and this is the seventh.
    assert_eq!(until_exact(&limiter, "ann").await.decision.remaining(), 993);
    proxy.stop();
}

#[tokio::test]
async fn a_reset_connection_is_made_again_at_once() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = connect(&proxy.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    assert_eq!(check(&limiter, "ann").await.made, Made::Exact);
    proxy.set(Network::Resets);
    let answer = check(&limiter, "ann").await;
    assert_eq!((answer.made, answer.is_allowed()), (Made::Closed, false));
    assert_eq!(store.stats().opened, 1);
    proxy.set(Network::Works);
    assert!(until_exact(&limiter, "ann").await.is_allowed());
    let stats = store.stats();
    assert!(stats.broken + stats.not_connected >= 1 && stats.late == 0, "{stats:?}");
    proxy.stop();
}

#[tokio::test]
async fn a_connection_that_is_dead_without_a_sign_is_replaced() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = connect(&proxy.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    assert_eq!(check(&limiter, "ann").await.made, Made::Exact);
    proxy.set(Network::ForgetsOld);
    // Waiting on the old connection would never end: it is closed after five, and the next one works.
    assert!(until_exact(&limiter, "ann").await.is_allowed());
    let stats = store.stats();
    assert!(stats.late >= 5 && stats.connected >= 2, "{stats:?}");
    proxy.stop();
}

#[tokio::test]
async fn replies_that_drip_in_or_are_late_do_not_hold_a_caller_up() {
    for network in [Network::Drips(Duration::from_millis(10)), Network::Delays(Duration::from_millis(200))] {
        let server = Server::start(&[]);
        let proxy = Proxy::start(server.address());
        let store = connect(&proxy.url()).await;
        let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
        assert_eq!(check(&limiter, "ann").await.made, Made::Exact);
        proxy.set(network);
        for _ in 0..10 {
            assert_eq!(check(&limiter, "ann").await.made, Made::Closed, "{network:?}");
        }
        assert!(store.stats().opened >= 1, "{network:?}");
        proxy.set(Network::Works);
        assert!(until_exact(&limiter, "ann").await.is_allowed());
        proxy.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_fault_is_answered_in_time_and_ends() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = connect(&proxy.url()).await;
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 100000"), OnFailure::Open).unwrap());
    let (stop, callers) = load(&limiter, 32, DEADLINE);
    for network in [
        Network::Swallows,
        Network::LosesReplies,
        Network::Resets,
        Network::ForgetsOld,
        Network::Drips(Duration::from_millis(20)),
    ] {
        let before = store.stats();
        proxy.set(network);
        until(&store, "given up", |stats| stats.opened > before.opened).await;
        proxy.set(Network::Works);
        until(&store, "found again", |stats| {
            stats.connected > before.connected && stats.exact > before.exact
        })
        .await;
    }
    drop(stop);
    let answers = answers(callers).await;
    let stats = store.stats();
    // Everyone was answered, and each answer was counted once.
    let of = |made| u64::try_from(answers.iter().filter(|answer| answer.made == made).count()).unwrap();
    assert_eq!((of(Made::Exact), of(Made::Open)), (stats.exact, stats.open), "{stats:?}");
    assert_eq!(
        stats.open,
        stats.late + stats.broken + stats.not_connected + stats.busy + stats.unready,
        "{stats:?}"
    );
    // What was answered as exact was charged, and at most what was lost besides.
    let spent = spent(&limiter).await;
    assert!(spent >= stats.exact && spent <= stats.exact + stats.late + stats.broken, "{spent} of {stats:?}");
    proxy.stop();
}

async fn until_peeked(limiter: &SharedLimiter, key: &str) -> u64 {
    loop {
        let answer = limiter.peek(key, 0).await;
        if answer.made == Made::Exact {
            return answer.decision.remaining();
        }
    }
}

#[tokio::test]
async fn without_the_store_each_machine_goes_on_with_its_share() {
    let mut server = Server::start(&[]);
    let store = connect(&server.url()).await;
    let local = OnFailure::Local { machines: 4.try_into().unwrap(), keys: 100 };
    let limiter = store.limiter("api", quota("1/day burst 40"), local).unwrap();
    assert_eq!(check(&limiter, "ann").await.made, Made::Exact);
    server.kill();
    until(&store, "away", |_| !store.is_connected()).await;
    let mut allowed = 0;
    for _ in 0..20 {
        let answer = check(&limiter, "ann").await;
        assert_eq!(answer.made, Made::Local);
        allowed += u32::from(answer.is_allowed());
    }
    assert_eq!(allowed, 10);
    // Above the share but not above the burst is not for ever.
    let answer = limiter.check_n("bob", 11).await;
    assert!(answer.decision.retry_after().is_some(), "{answer:?}");
    assert!(limiter.peek("bob", 10).await.is_allowed());
    assert!(limiter.check_n("bob", 10).await.is_allowed());
    assert_eq!(store.stats().local, 23);
}

#[tokio::test]
async fn a_program_starts_without_its_store_and_finds_it_later() {
    let mut server = Server::start(&[]);
    server.kill();
    let error = Store::builder(&server.url()).connect().await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("cannot use the store at {}: ", server.address())),
        "{error}"
    );
    let store = Store::builder(&server.url()).connect_later().unwrap();
    let limiter = store.limiter("api", quota("1/day burst 2"), OnFailure::Open).unwrap();
    assert_eq!(check(&limiter, "ann").await.made, Made::Open);
    server.start_again();
    assert_eq!(until_exact(&limiter, "ann").await.decision.remaining(), 1);
}

#[tokio::test]
async fn a_store_that_became_a_replica_is_not_asked() {
    let server = Server::start(&[]);
    let store = connect(&server.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 1000"), OnFailure::Closed).unwrap();
    assert!(check(&limiter, "ann").await.is_allowed());
    let mut connection = server.connection();
    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").query(&mut connection).unwrap();
    let answer = check(&limiter, "ann").await;
    assert_eq!((answer.made, answer.is_allowed()), (Made::Closed, false));
    let stats = store.stats();
    assert_eq!((stats.unready, stats.opened, stats.late), (1, 1, 0), "{stats:?}");
    let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut connection).unwrap();
    // Nothing was charged meanwhile, and the keys are there.
    assert_eq!(until_exact(&limiter, "ann").await.decision.remaining(), 998);
}

#[tokio::test]
async fn a_call_whose_caller_left_before_its_turn_is_not_sent() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = Store::builder(&proxy.url()).deadline(PATIENCE).connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/day burst 10"), OnFailure::Closed).unwrap();
    proxy.set(Network::Delays(Duration::from_millis(300)));
    // One by itself and two of pumps, which are then under way.
    let mut ahead: Vec<_> = ["a", "b", "c"].iter().map(|key| Box::pin(limiter.check(*key))).collect();
    for (scripts, call) in (2..).zip(&mut ahead) {
        assert!(poll_once(call.as_mut()).await.is_none());
        until(&store, "sent", |stats| stats.scripts + 1 == scripts).await;
    }
    let mut left = Box::pin(limiter.check("left"));
    assert!(poll_once(left.as_mut()).await.is_none());
    drop(left);
    let mut stayed = Box::pin(limiter.check("stayed"));
    assert!(poll_once(stayed.as_mut()).await.is_none());
    proxy.set(Network::Works);
    for call in ahead {
        assert!(call.await.is_allowed());
    }
    assert!(stayed.await.is_allowed());
    assert_eq!(until_peeked(&limiter, "left").await, 10);
    assert_eq!(until_peeked(&limiter, "stayed").await, 9);
    proxy.stop();
}

#[tokio::test]
async fn a_full_queue_answers_by_the_failure_policy_at_once() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let store = Store::builder(&proxy.url()).max_waiting(4).connect().await.unwrap();
    let limiter = Arc::new(store.limiter("api", quota("1/day burst 1000"), OnFailure::Open).unwrap());
    proxy.set(Network::Swallows);
    let caller = |_| {
        let limiter = Arc::clone(&limiter);
        async move { check(&limiter, "ann").await }
    };
    assert!(at_once(100, caller).await.iter().all(|answer| answer.made == Made::Open));
    assert!(store.stats().busy >= 80, "{:?}", store.stats());
    proxy.stop();
}

#[tokio::test]
async fn a_server_that_evicts_buckets_is_warned_of() {
    for (policy, warns) in
        [("allkeys-lru", true), ("volatile-lru", true), ("noeviction", false), ("volatile-ttl", false)]
    {
        let server = Server::start(&["--maxmemory-policy", policy]);
        let store = connect(&server.url()).await;
        let expected: Vec<Warning> =
            if warns { vec![Warning::Evicts { policy: policy.into() }] } else { Vec::new() };
        assert_eq!(store.warnings(), expected, "{policy}");
    }
}

#[tokio::test]
async fn a_full_memory_is_refused_and_said() {
    let server = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let store = connect(&server.url()).await;
    let limiter = store.limiter("api", quota("1/day burst 10"), OnFailure::Closed).unwrap();
    assert_eq!(check(&limiter, "ann").await.made, Made::Closed);
    assert!(store.last_refusal().unwrap().contains("OOM"), "{:?}", store.last_refusal());
    assert_eq!((store.stats().refused, store.stats().opened), (1, 0));
}
