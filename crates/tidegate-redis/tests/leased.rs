//! Leases on a server of its own: chunks of one bucket, spent by many processes, some of which are killed or stopped.
//!
//! This program is also the other processes: it starts itself again, with what to do in the environment.
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::log::{Allowed, beyond};
use crate::harness::proxy::{Network, Proxy};
use crate::harness::server::Server;
use crate::harness::talk::Talk;
use crate::harness::{at_once, policy, quota};
use tidegate::{Algorithm, Decision, Kind, Limit, Mode, Policy};
use tidegate_redis::{Answer, LeasedLimiter, Leasing, Made, OnFailure, Stats, Store};

const PATIENCE: Duration = Duration::from_secs(10);

async fn store(url: &str) -> Store {
    // A machine that is busy with other tests must not make the store look away.
    Store::builder(url).deadline(PATIENCE).connect().await.unwrap()
}

async fn leased(store: &Store, name: &str, text: &str, max_overshoot: u64) -> LeasedLimiter {
    let leasing = Leasing { max_overshoot, keys: 1000 };
    store.leased_limiter(name, quota(text), leasing, OnFailure::Closed).await.unwrap()
}

/// Waits until the numbers are so.
async fn until(store: &Store, what: &str, is: impl Fn(&Stats) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is(&store.stats()) {
        assert!(Instant::now() < end, "never {what}: {:?}", store.stats());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Spends one token each millisecond, until so many calls in all were allowed from what was held.
async fn warm_up(limiter: &LeasedLimiter, calls: u32) -> Answer {
    let end = Instant::now() + PATIENCE;
    let (mut leased, mut asked) = (0, 0);
    loop {
        let answer = limiter.check("ann").await;
        assert!(answer.is_allowed(), "{answer:?}");
        asked += 1;
        leased += u32::from(answer.made == Made::Leased);
        if leased >= calls && answer.made == Made::Leased && answer.decision.remaining() > 0 {
            return answer;
        }
        assert!(Instant::now() < end, "{leased} of {asked} calls were leased");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_busy_key_is_leased_and_asks_the_store_now_and_then() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    let limiter = leased(&store, "api", "10000/s burst 100000", 5000).await;
    assert_eq!(limiter.lease_ttl(), Duration::from_millis(500));
    let start = Instant::now();
    let before = store.stats().scripts;
    let first = limiter.check("ann").await;
    assert_eq!((first.made, first.is_allowed(), &*first.remaining), (Made::Exact, true, &[99_999][..]));
    while start.elapsed() < Duration::from_secs(1) {
        assert!(limiter.check("ann").await.is_allowed());
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    let stats = store.stats();
    assert!(stats.leased > 9 * stats.exact, "{stats:?}");
    // A chunk lasts for 50 ms, and what is old is given back: see the guide.
    assert!(stats.scripts - before < 80, "{stats:?}");
}

#[tokio::test]
async fn a_bucket_that_is_near_empty_is_decided_call_by_call_and_exactly() {
    let server = Server::start(&[]);
    // It remembers for longer than a busy machine takes between two calls.
    let builder = Store::builder(&server.url()).deadline(PATIENCE);
    let store = builder.remember_rejections(Duration::from_secs(20)).connect().await.unwrap();
    // One token in 25 s: nothing comes back while this runs.
    let limiter = leased(&store, "api", "1 per 25s burst 100", 1).await;
    for left in (0..100).rev() {
        let answer = limiter.check("ann").await;
        assert_eq!((answer.is_allowed(), answer.decision.remaining()), (true, left), "{answer:?}");
    }
    let answer = limiter.check("ann").await;
    let wait = answer.decision.retry_after().unwrap();
    assert!(wait <= Duration::from_secs(25) && wait > Duration::from_secs(15), "{answer:?}");
    assert_eq!((answer.made, answer.limit), (Made::Exact, Some(0)));
    let again = limiter.check("ann").await;
    assert_eq!(again.made, Made::Remembered);
    assert!(again.decision.retry_after().unwrap() <= wait);
    assert_eq!(limiter.check_n("ann", 101).await.decision, Decision::Never { capacity: 100 });
    assert!(limiter.check_n("ann", 0).await.is_allowed());
    // Another key is another bucket, and those who ask for every call have the same one.
    assert!(limiter.check_n("bob", 60).await.is_allowed());
    let each = store.limiter("api", quota("1 per 25s burst 100"), OnFailure::Closed).unwrap();
    assert_eq!(each.peek("bob", 0).await.decision.remaining(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_are_paid_from_one_loan() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    let limiter = Arc::new(leased(&store, "api", "1 per 25s burst 150", 1).await);
    let caller = |_| {
        let limiter = Arc::clone(&limiter);
        async move { limiter.check("hot").await.is_allowed() }
    };
    assert_eq!(at_once(200, caller).await.into_iter().filter(|allowed| *allowed).count(), 150);
}

#[tokio::test]
async fn what_is_not_spent_is_given_back() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    let limiter = leased(&store, "api", "1000/s burst 100000", 400).await;
    // Not full, so that there is room.
    let each = store.limiter("api", quota("1000/s burst 100000"), OnFailure::Closed).unwrap();
    assert!(each.check_n("ann", 50_000).await.is_allowed());
    // When the limiter is idle,
    let held = warm_up(&limiter, 100).await.decision.remaining();
    assert!(held > 0);
    let before = store.stats().returned;
    until(&store, "given back when idle", |stats| stats.returned > before).await;
    // when it is told to,
    assert!(warm_up(&limiter, 100).await.is_allowed());
    limiter.give_back().await;
    let before = store.stats();
    // All but what was spent was given back, or got too old on the way of an ask.
    let lost = before.lent - before.returned - before.leased - (before.exact - 1);
    assert!(lost <= 400, "{before:?}");
    // and when it is dropped.
    assert!(warm_up(&limiter, 100).await.is_allowed());
    drop(limiter);
    until(&store, "given back when dropped", |stats| stats.returned > before.returned).await;
}

#[tokio::test]
async fn without_the_store_what_is_held_is_spent_and_then_the_policy_answers() {
    let mut server = Server::start(&[]);
    let store = store(&server.url()).await;
    // Leases live for 10 s.
    let limiter = leased(&store, "api", "1000/s burst 100000", 10_000).await;
    let held = warm_up(&limiter, 100).await.decision.remaining();
    server.kill();
    until(&store, "away", |stats| stats.opened > 0).await;
    let before = store.stats();
    let mut spent = 0;
    loop {
        let answer = limiter.check("ann").await;
        if answer.made == Made::Closed {
            assert!(!answer.is_allowed());
            break;
        }
        assert_eq!(answer.made, Made::Leased);
        spent += 1;
    }
    let stats = store.stats();
    assert!(spent >= held && spent <= 5000, "{spent} of {held}");
    assert_eq!((stats.leased - before.leased, stats.closed - before.closed), (spent, 1));
}

#[tokio::test]
async fn no_answer_comes_after_the_deadline_and_an_answer_that_comes_too_late_is_not_spent() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address());
    let deadline = Duration::from_millis(100);
    let store = Store::builder(&proxy.url()).deadline(deadline).connect().await.unwrap();
    // Leases live for 50 ms, and are never back in time.
    let limiter = leased(&store, "api", "1000/s burst 10000", 50).await;
    assert!(limiter.check("ann").await.is_allowed());
    proxy.set(Network::Delays(Duration::from_millis(70)));
    let answer = limiter.check("ann").await;
    assert_eq!((answer.is_allowed(), answer.made), (false, Made::Closed));
    proxy.set(Network::Swallows);
    // They wait together.
    let calls: Vec<_> = (0..50_u64).map(|n| Box::pin(limiter.check_n("ann", 1 + n % 3))).collect();
    for call in calls {
        let start = Instant::now();
        let answer = call.await;
        assert_eq!((answer.is_allowed(), answer.made), (false, Made::Closed));
        // The first poll of each starts its time.
        assert!(start.elapsed() < deadline * 5, "{:?}", start.elapsed());
        if !store.is_connected() {
            break;
        }
    }
    assert!(store.stats().late > 0, "{:?}", store.stats());
    // As soon as it is there again, it decides again.
    proxy.set(Network::ForgetsOld);
    let end = Instant::now() + PATIENCE;
    while limiter.check("bob").await.made != Made::Exact {
        assert!(Instant::now() < end, "{:?}", store.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.stop();
}

#[tokio::test]
async fn keys_beyond_the_room_ask_for_every_call() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    let leasing = Leasing { max_overshoot: 400, keys: 1 };
    let limiter = store.leased_limiter("api", quota("1000/s"), leasing, OnFailure::Closed).await.unwrap();
    for key in 0..500_u32 {
        let answer = limiter.check(&key.to_be_bytes()).await;
        assert_eq!((answer.is_allowed(), answer.made), (true, Made::Exact));
    }
    // None of them holds anything, so they make room for each other.
    assert_eq!((store.stats().leased, store.stats().exact), (0, 500));
}

#[tokio::test]
async fn a_lease_that_would_be_too_short_is_refused_and_told_what_to_choose() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    let refused = async |policy: Policy, max_overshoot| {
        let leasing = Leasing { max_overshoot, keys: 10 };
        let made = store.leased_limiter("short", policy, leasing, OnFailure::Closed).await;
        made.unwrap_err().to_string()
    };
    assert_eq!(
        refused(quota("1000/s burst 100").into(), 5).await,
        "an overshoot of 5 tokens of the limit `token-bucket` is 5ms of its rate, and a lease has to live for 20ms; allow 20 \
         or more, or ask the store for every call with `limiter`"
    );
    let leasing = Leasing { max_overshoot: 20, keys: 10 };
    assert!(store.leased_limiter("long", quota("1000/s"), leasing, OnFailure::Closed).await.is_ok());
    // What was refused leaves no limiter behind.
    assert!(store.limiter("short", quota("1/s"), OnFailure::Closed).is_ok());
    let text =
        "the limiter `short` leases, and needs one limit that is enforced; share several with `limiter`";
    assert_eq!(refused(policy(&[("a", "1/s"), ("b", "2/s")]), 1000).await, text);
    let algorithm = Algorithm::new(Kind::TokenBucket, quota("1/s"));
    let shadow = Policy::new(vec![Limit { name: "a".into(), algorithm, mode: Mode::Shadow }]);
    assert_eq!(refused(shadow, 1000).await, text);
}

// Processes.

fn now_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// Not a test of its own: what another process does.
#[test]
fn helper_process() {
    let Ok(url) = std::env::var("TIDEGATE_LEASED_URL") else { return };
    let of = |name: &str| std::env::var(format!("TIDEGATE_LEASED_{name}")).unwrap();
    let number = |name: &str| of(name).parse::<u64>().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = store(&url).await;
        let limiter = Arc::new(leased(&store, &of("NAME"), &of("QUOTA"), number("OVERSHOOT")).await);
        match &*of("DOES") {
            "spend" => {
                let until = Instant::now() + Duration::from_millis(number("MS"));
                let pause = Duration::from_micros(number("PAUSE_US"));
                let callers: Vec<_> = (0..number("CALLERS"))
                    .map(|_| tokio::spawn(spend(Arc::clone(&limiter), until, pause)))
                    .collect();
                let mut out = String::new();
                for caller in callers {
                    for (before, after) in caller.await.unwrap() {
                        out.push_str(&format!("allowed {before} {after}\n"));
                    }
                }
                println!("{out}leased {}", store.stats().leased);
            }
            // Spends until it is killed, and says so at once.
            "forever" => loop {
                let answer = limiter.check("ann").await;
                assert!(answer.is_allowed(), "{answer:?}");
                println!("allowed {}", answer.decision.remaining());
                tokio::time::sleep(Duration::from_millis(2)).await;
            },
            "sleeper" => {
                println!("held {}", warm_up(&limiter, 50).await.decision.remaining());
                // Stopped here, and told when it goes on.
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).unwrap();
                println!("made {}", limiter.check("ann").await.made.name());
            }
            other => panic!("{other}"),
        }
    });
}

async fn spend(limiter: Arc<LeasedLimiter>, until: Instant, pause: Duration) -> Vec<Allowed> {
    let mut allowed = Vec::new();
    while Instant::now() < until {
        let before = now_ns();
        let answer = limiter.check("all").await;
        assert!(matches!(answer.made, Made::Exact | Made::Remembered | Made::Leased), "{answer:?}");
        if answer.is_allowed() {
            allowed.push((before, now_ns()));
        }
        if pause > Duration::ZERO {
            tokio::time::sleep(pause).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    allowed
}

/// What a process does, as names and values of its environment.
type Does<'a> = &'a [(&'a str, &'a str)];

fn process(server: &Server, name: &str, does: Does<'_>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["leased::helper_process", "--exact", "--nocapture"]);
    command.env("TIDEGATE_LEASED_URL", server.url()).env("TIDEGATE_LEASED_NAME", name);
    for (name, value) in does {
        command.env(format!("TIDEGATE_LEASED_{name}"), value);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Runs processes on limiters of these names. The log of all, and how many calls were leased.
fn processes(server: &Server, names: &[&str], does: Does<'_>) -> (Vec<Allowed>, u64) {
    let children: Vec<_> = names.iter().map(|name| process(server, name, does)).collect();
    let (mut log, mut leased) = (Vec::new(), 0);
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let of = |what: &'static str| text.lines().filter_map(move |line| Some(line.split_once(what)?.1));
        log.extend(of("allowed ").map(|line| {
            let (before, after) = line.split_once(' ').unwrap();
            (before.parse::<u64>().unwrap(), after.parse::<u64>().unwrap())
        }));
        leased += of("leased ").map(|count| count.trim().parse::<u64>().unwrap()).sum::<u64>();
    }
    (log, leased)
}

#[test]
fn processes_that_lease_are_allowed_one_bucket_and_the_overshoot() {
    let server = Server::start(&[]);
    let does = |quota, callers, pause| {
        [
            ("DOES", "spend"),
            ("QUOTA", quota),
            ("OVERSHOOT", "100"),
            ("MS", "1500"),
            ("CALLERS", callers),
            ("PAUSE_US", pause),
        ]
    };
    // As much as they can get.
    let (log, _) = processes(&server, &["busy"; 6], &does("2000/s burst 500", "16", "0"));
    let allowed = log.len();
    assert!(beyond(log.clone(), 500, 2000) <= 100, "{} of {allowed}", beyond(log, 500, 2000));
    assert!(allowed >= 500 + 1500 * 2 * 8 / 10, "{allowed}");
    // Half of it, and at random times: most is leased.
    let (log, leased) = processes(&server, &["half"; 4], &does("2000/s burst 500", "2", "7000"));
    let allowed = log.len();
    assert!(beyond(log.clone(), 500, 2000) <= 100, "{} of {allowed}", beyond(log, 500, 2000));
    assert!(leased * 2 > allowed as u64, "{leased} of {allowed}");
}

#[test]
fn four_copies_of_a_leased_bucket_are_seen_to_be_beyond_it() {
    // The same harness on limiters that are not shared: the mistake that the test above must be able to see.
    let server = Server::start(&[]);
    let does = [
        ("DOES", "spend"),
        ("QUOTA", "500/s burst 300"),
        ("OVERSHOOT", "100"),
        ("MS", "1000"),
        ("CALLERS", "8"),
        ("PAUSE_US", "0"),
    ];
    let (log, _) = processes(&server, &["a", "b", "c", "d"], &does);
    assert!(beyond(log, 300, 500) > 600);
}

#[tokio::test]
async fn a_worker_that_is_killed_loses_at_most_what_one_may_hold() {
    let server = Server::start(&[]);
    let store = store(&server.url()).await;
    // Leases of at most 250, which live for 5 s.
    let (text, burst, rate, most) = ("100/s burst 10000", 10_000.0, 100.0, 250.0);
    let each = store.limiter("api", quota(text), OnFailure::Closed).unwrap();
    let does = [("DOES", "forever"), ("QUOTA", text), ("OVERSHOOT", "500")];
    let (mut spent, mut killed, mut held) = (0.0, 0.0, 0.0);
    let mut start: Option<Instant> = None;
    for _ in 0..3 {
        let mut worker = Talk::to(process(&server, "api", &does));
        let mut last = 0.0;
        for _ in 0..100 {
            last = worker.next("allowed ").unwrap().parse::<f64>().unwrap();
            spent += 1.0;
            start.get_or_insert_with(Instant::now);
        }
        worker.signal("-KILL");
        while worker.next("allowed ").is_some() {
            spent += 1.0;
        }
        killed += 1.0;
        held += last;
        // What came back since the first call, a little less than in truth, so that no loss is seen that is none.
        let level = each.peek("ann", 0).await.decision.remaining() as f64;
        let came = start.unwrap().elapsed().as_secs_f64() * rate;
        // The process is killed between a decision and its line at the most once.
        let lost = burst + came - level - spent;
        assert!(lost <= most * killed + came * 0.05 + 2.0, "{lost} lost by {killed}");
    }
    assert!(held > 0.0, "none was killed with a lease in hand");
}

#[test]
fn a_worker_that_was_stopped_past_the_end_of_its_lease_spends_none_of_it() {
    let server = Server::start(&[]);
    // Leases live for 400 ms.
    let does = [("DOES", "sleeper"), ("QUOTA", "1000/s burst 10000"), ("OVERSHOOT", "400")];
    let mut worker = Talk::to(process(&server, "api", &does));
    let held: u64 = worker.next("held ").unwrap().parse().unwrap();
    worker.signal("-STOP");
    assert!(held > 0);
    // The time that has to pass is what is tested.
    std::thread::sleep(Duration::from_millis(450));
    worker.say("go");
    worker.signal("-CONT");
    assert_eq!(worker.next("made ").as_deref(), Some("exact"));
}
