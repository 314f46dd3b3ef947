//! The budget of one machine: against the pure step, under processes and threads, killed, torn, moved and rebooted.
//!
//! One file, since this program is also the other processes: it starts itself again, with what to do in the environment.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, in its helpers too")]

use std::fs;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate::budget::{BootId, Moment};
use tidegate::{Algorithm, Budget, BudgetError, Decision, Kind, Limiter, Quota, Step};

#[path = "../examples/budget.rs"]
#[expect(dead_code, reason = "its `main` is for the example alone")]
mod example;

const S: u64 = 1_000_000_000;
/// Bytes before the first slot, and in a slot.
const HEADER: usize = 64;
const SLOT: usize = 96;

/// A folder of its own for each test, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tidegate-budget-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("budget")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

/// A time in the boot 1.
fn at(since_boot_ns: u64) -> Moment {
    Moment { boot: BootId([1; 16]), since_boot_ns }
}

fn remaining(budget: &Budget, now: Moment) -> u64 {
    budget.check_at(now, 0).unwrap().remaining()
}

// Decisions.

#[test]
fn a_budget_follows_the_worked_example() {
    let folder = Folder::new();
    // B = 3, r = 2/s: three at once, the fourth needs 0.5 s.
    let budget = Budget::open(folder.path(), quota("2/s burst 3")).unwrap();
    for (ns, cost, expected) in [
        (0, 1, Ok(2)),
        (0, 1, Ok(1)),
        (0, 1, Ok(0)),
        (0, 1, Err(S / 2)),
        (S / 2 - 1, 1, Err(1)),
        (S / 2, 1, Ok(0)),
        (S / 2, 3, Err(3 * S / 2)),
        // A time that goes back: the wait is told from there.
        (S / 4, 1, Err(3 * S / 4)),
        (2 * S, 3, Ok(0)),
    ] {
        let decision = budget.check_at(at(ns), cost).unwrap();
        match expected {
            Ok(left) => assert!(decision.is_allowed() && decision.remaining() == left, "{ns} {decision:?}"),
            Err(wait) => assert_eq!(decision.retry_after(), Some(Duration::from_nanos(wait)), "{ns}"),
        }
    }
    assert_eq!(budget.check_at(at(2 * S), 4).unwrap(), Decision::Never { capacity: 3 });
}

#[test]
fn what_is_rejected_or_free_writes_nothing() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("1/hour burst 2")).unwrap();
    assert!(budget.check_n(2).unwrap().is_allowed());
    let before = fs::read(folder.path()).unwrap();
    for cost in [0, 1, 2, 3] {
        let _ = budget.check_n(cost).unwrap();
        let _ = budget.peek(cost).unwrap();
        let _ = budget.acquire_blocking(cost, Duration::from_millis(1)).unwrap();
    }
    assert_eq!(fs::read(folder.path()).unwrap(), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The same trace gives the same decisions from the pure step, the limiter in memory and the file, which is opened
    /// anew now and then.
    #[test]
    fn a_trace_gives_the_same_decisions_as_in_memory(
        (count, per, burst) in (1..20_u64, 1..3 * S, 1..30_u64),
        trace in prop::collection::vec((-S.cast_signed() / 4..S.cast_signed(), 0..8_u64, 0..10_u8), 1..60),
    ) {
        let quota = Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap();
        let algorithm = Algorithm::new(Kind::TokenBucket, quota);
        let limiter = Limiter::new(algorithm, 8);
        let mut state = algorithm.fresh();
        let folder = Folder::new();
        let mut budget = Budget::open(folder.path(), quota).unwrap();
        let (mut now, mut goes_back) = (0_u64, false);
        for (step, cost, reopen) in trace {
            now = now.saturating_add_signed(step);
            if reopen == 0 {
                budget = Budget::open(folder.path(), quota).unwrap();
            }
            let expected;
            (state, expected) = algorithm.step(state, now, cost);
            // The limiter's one number for each key does not know when it was last charged.
            goes_back |= step < 0;
            if !goes_back {
                prop_assert_eq!(limiter.check_at("one", cost, now), expected);
            }
            prop_assert_eq!(budget.check_at(at(now), cost).unwrap(), expected);
        }
    }

    /// However the quota is changed, and to and fro: the tokens never become more by it.
    #[test]
    fn a_change_of_quota_brings_no_token(
        quotas in prop::collection::vec((1..50_u64, 1..3 * S, 1..50_u64), 2..10),
        spend in 0..50_u64,
    ) {
        let quotas: Vec<Quota> = quotas.into_iter()
            .map(|(count, per, burst)| Quota::new(count, Duration::from_nanos(per)).unwrap().with_burst(burst).unwrap())
            .collect();
        let folder = Folder::new();
        let budget = Budget::open(folder.path(), quotas[0]).unwrap();
        // Slow quotas between, so that the time that the test takes brings nothing.
        let slow = |quota: Quota| Quota::new(1, Duration::from_secs(86_400 * 365)).unwrap().with_burst(quota.burst()).unwrap();
        budget.change_quota(slow(quotas[0])).unwrap();
        let first = quotas[0].burst();
        let spent = spend.min(first);
        let _ = budget.check_n(spent).unwrap();
        for quota in quotas {
            budget.change_quota(slow(quota)).unwrap();
            prop_assert_eq!(budget.quota().unwrap(), slow(quota));
            // As full in proportion as at first; what the changes rounded away is less than a token.
            let in_proportion = (first - spent) * quota.burst() / first;
            let remaining = budget.peek(0).unwrap().remaining();
            prop_assert!(remaining <= in_proportion && remaining + 1 >= in_proportion, "{} of {}", remaining, in_proportion);
        }
    }
}

#[test]
fn another_boot_starts_full() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("1/hour burst 5")).unwrap();
    assert!(budget.check_at(at(1000 * S), 5).unwrap().is_allowed());
    assert!(!budget.check_at(at(1001 * S), 1).unwrap().is_allowed());
    let rebooted = |ns| Moment { boot: BootId([2; 16]), since_boot_ns: ns };
    // Earlier or later on the new boot's clock, the same.
    assert_eq!(remaining(&budget, rebooted(S)), 5);
    assert_eq!(remaining(&budget, rebooted(2000 * S)), 5);
    assert!(budget.check_at(rebooted(S), 4).unwrap().is_allowed());
    assert_eq!(remaining(&budget, rebooted(S)), 1);
}

#[test]
fn where_no_boot_is_known_a_clock_that_restarted_is_another_boot() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("1/hour burst 5")).unwrap();
    let at = |ns| Moment { boot: BootId::UNKNOWN, since_boot_ns: ns };
    assert!(budget.check_at(at(1000 * S), 5).unwrap().is_allowed());
    assert_eq!(remaining(&budget, at(999 * S)), 5);
    // One that has been up for longer is taken for the same boot: the debt stays.
    assert_eq!(remaining(&budget, at(1001 * S)), 0);
}

#[test]
fn waiting_ends_when_the_token_is_there() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("50/s burst 1")).unwrap();
    let start = Instant::now();
    for _ in 0..6 {
        assert!(budget.acquire_blocking(1, Duration::from_secs(60)).unwrap().is_allowed());
    }
    // The first was there, five more at 20 ms each.
    assert!(start.elapsed() >= Duration::from_millis(99), "{:?}", start.elapsed());

    budget.change_quota(quota("1/hour burst 1")).unwrap();
    let decision = budget.acquire_blocking(1, Duration::from_secs(60)).unwrap();
    assert!(
        decision.retry_after() > Some(Duration::from_secs(60)),
        "an hour is refused at once: {decision:?}"
    );
    let never = budget.acquire_blocking(2, Duration::MAX).unwrap();
    assert_eq!(never, Decision::Never { capacity: 1 });
}

#[test]
fn those_who_wait_race_but_each_is_allowed_in_the_end() {
    let folder = Folder::new();
    let open = || Budget::open(folder.path(), quota("200/s burst 1")).unwrap();
    let (budgets, start) = ([open(), open()], Instant::now());
    thread::scope(|scope| {
        for number in 0..4 {
            let budget = &budgets[number % 2];
            scope.spawn(|| {
                for _ in 0..10 {
                    assert!(budget.acquire_blocking(1, Duration::from_secs(60)).unwrap().is_allowed());
                }
            });
        }
    });
    // Forty, of which one was there; 5 ms for each of the others.
    assert!(start.elapsed() >= Duration::from_millis(194), "{:?}", start.elapsed());
}

// Several at one time.

/// Not a test by itself: what the other processes of a test do. It returns at once unless one of them started it.
#[test]
fn helper_process() {
    let Ok(role) = std::env::var("TIDEGATE_BUDGET_ROLE") else { return };
    let path = PathBuf::from(std::env::var("TIDEGATE_BUDGET_PATH").unwrap());
    let budget =
        Budget::open(&path, std::env::var("TIDEGATE_BUDGET_QUOTA").unwrap().parse().unwrap()).unwrap();
    let beside = |name: &str| path.with_file_name(name);
    let end = Instant::now() + Duration::from_secs(20);
    match role.as_str() {
        // Asks as fast as it can until told to stop, then says how much it was allowed, and from when to when.
        "count" => {
            fs::write(beside(&format!("ready-{}", std::process::id())), "").unwrap();
            while !beside("go").exists() && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            let from = Moment::now().unwrap().since_boot_ns;
            let mut allowed = 0_u64;
            while !beside("stop").exists() && Instant::now() < end {
                for _ in 0..100 {
                    allowed += u64::from(budget.check().unwrap().is_allowed());
                }
            }
            // However short the time was: until there is nothing left.
            while budget.check().unwrap().is_allowed() {
                allowed += 1;
            }
            let to = Moment::now().unwrap().since_boot_ns;
            println!("allowed {allowed} {from} {to}.");
        }
        // Notes each allowed call by one byte, until it is killed.
        "note" => {
            let mut notes = fs::OpenOptions::new().append(true).create(true).open(beside("notes")).unwrap();
            while Instant::now() < end {
                if budget.check().unwrap().is_allowed() {
                    notes.write_all(b".").unwrap();
                }
            }
        }
        // Makes budgets, one after the other, until it is killed.
        "make" => {
            for number in 0.. {
                drop(
                    Budget::open(beside(&format!("{}-{number}", std::process::id())), quota("10/s")).unwrap(),
                );
            }
        }
        // Holds two places until it is killed.
        "hold" => {
            let places = [budget.enter().unwrap().unwrap(), budget.enter().unwrap().unwrap()];
            fs::write(beside("ready"), "").unwrap();
            thread::sleep(end.duration_since(Instant::now()));
            drop(places);
        }
        other => panic!("{other}"),
    }
}

fn helper(role: &str, path: &Path, quota: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_process", "--nocapture"])
        .env("TIDEGATE_BUDGET_ROLE", role)
        .env("TIDEGATE_BUDGET_PATH", path)
        .env("TIDEGATE_BUDGET_QUOTA", quota)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets 8 processes ask for `time`. Returns what each was allowed, and from when to when it asked.
fn hammer(folder: &Folder, quota: &str, time: Duration) -> Vec<[u64; 3]> {
    let path = folder.path();
    // They make the file as well, all at one time.
    let children: Vec<_> = (0..8).map(|_| helper("count", &path, quota)).collect();
    let start = Instant::now();
    while folder.names().iter().filter(|name| name.starts_with("ready-")).count() < 8 {
        assert!(start.elapsed() < Duration::from_secs(20), "the processes do not start");
        thread::sleep(Duration::from_millis(1));
    }
    fs::write(path.with_file_name("go"), "").unwrap();
    thread::sleep(time);
    fs::write(path.with_file_name("stop"), "").unwrap();
    let report = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let (_, numbers) = text.split_once("allowed ").unwrap();
        let (numbers, _) = numbers.split_once('.').unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    let reports = children.into_iter().map(report).collect();
    assert!(!folder.names().iter().any(|name| name.contains(".new")), "left from making the file");
    reports
}

#[test]
fn eight_processes_are_allowed_exactly_the_burst_when_nothing_comes_back() {
    let folder = Folder::new();
    let reports = hammer(&folder, "1 per 300d burst 5000", Duration::from_millis(500));
    assert_eq!(reports.iter().map(|[allowed, ..]| allowed).sum::<u64>(), 5000, "{reports:?}");
}

#[test]
fn eight_processes_are_allowed_what_one_bucket_allows() {
    let folder = Folder::new();
    let reports = hammer(&folder, "5000/s burst 500", Duration::from_secs(1));
    let allowed: u64 = reports.iter().map(|[allowed, ..]| allowed).sum();
    let first = reports.iter().map(|[_, from, _]| from).min().unwrap();
    let last = reports.iter().map(|[.., to]| to).max().unwrap();
    let most = 500 + 5000 * u128::from(last - first) / u128::from(S);
    assert!(u128::from(allowed) <= most, "{allowed} of at most {most}");
    // While any of them asks, the bucket never fills; only a stall of all for more than 0.1 s would lose something.
    assert!(u128::from(allowed) * 10 >= most * 9, "{allowed} of at most {most}");
}

#[test]
fn threads_and_openings_in_one_process_exclude_each_other() {
    let folder = Folder::new();
    let open = || Budget::open(folder.path(), quota("1 per 300d burst 3000")).unwrap();
    let budgets = [open(), open(), open()];
    let allowed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..9)
            .map(|number| {
                let budget = &budgets[number % 3];
                scope.spawn(|| (0..1000).filter(|_| budget.check().unwrap().is_allowed()).count())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(allowed, 3000);
}

#[test]
fn two_budgets_in_one_process_do_not_touch() {
    let folder = Folder::new();
    let one = Budget::open(folder.0.join("one"), quota("1/hour burst 2")).unwrap();
    let two = Budget::open(folder.0.join("two"), quota("1/hour burst 7")).unwrap();
    assert!(one.check_n(2).unwrap().is_allowed());
    assert_eq!(two.peek(0).unwrap().remaining(), 7);
}

#[test]
fn a_hundred_kills_leave_it_readable_unlocked_and_exact() {
    const BURST: u64 = 1_000_000_000;
    let folder = Folder::new();
    let text = "1 per 300d burst 1000000000";
    let budget = Budget::open(folder.path(), quota(text)).unwrap();
    let notes = folder.0.join("notes");
    fs::write(&notes, "").unwrap();
    let noted = || fs::metadata(&notes).unwrap().len();
    let mut random = 1_u64;
    for kill in 0..50 {
        // One alone has the lock most of the time; of two, one mostly waits for it.
        let mut children = [helper("note", &folder.path(), text), helper("note", &folder.path(), text)];
        let before = noted();
        let start = Instant::now();
        while noted() < before + 10 {
            assert!(start.elapsed() < Duration::from_secs(20), "kill {kill}: nothing is allowed any more");
            thread::yield_now();
        }
        for child in &mut children {
            // Knuth's MMIX generator; the high bits are the better ones. Up to 2 ms.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let moment = Instant::now() + Duration::from_nanos((random >> 32) % 2_000_000);
            while Instant::now() < moment {}
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // A lock left behind would hold this for ever.
        let (send, receive) = mpsc::channel();
        let path = folder.path();
        thread::spawn(move || send.send(Budget::open_existing(path).and_then(|budget| budget.peek(0))));
        let left = receive.recv_timeout(Duration::from_secs(20)).expect("no lock is left behind").unwrap();
        let charged = BURST - left.remaining();
        // Each killed process has at most one call charged that it could not note.
        assert!(
            (noted()..=noted() + 2 * (kill + 1)).contains(&charged),
            "{charged} charged, {} noted",
            noted()
        );
    }
    assert!(budget.check().unwrap().is_allowed());
}

#[test]
fn a_kill_while_it_is_made_leaves_a_whole_budget_or_none() {
    let folder = Folder::new();
    let mut made = 0;
    for kill in 0..30_u64 {
        let mut child = helper("make", &folder.path(), "10/s");
        let before = folder.names().len();
        while folder.names().len() < before + 2 {
            thread::yield_now();
        }
        thread::sleep(Duration::from_micros(kill * 97));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for name in folder.names().into_iter().filter(|name| !name.contains(".new-")) {
        assert_eq!(Budget::open_existing(folder.0.join(name)).unwrap().peek(0).unwrap().remaining(), 10);
        made += 1;
    }
    assert!(made >= 30, "{made}");
}

// Places in flight.

#[test]
fn places_come_back_when_their_holder_is_killed() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("10/s")).unwrap();
    let budget = budget.with_max_in_flight(3.try_into().unwrap()).unwrap();
    let mut child = helper("hold", &folder.path(), "10/s");
    while !folder.0.join("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the holder ended");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(budget.running().unwrap(), 2);
    let last = budget.enter().unwrap().unwrap();
    assert_eq!(last.number(), 2);
    assert!(budget.enter().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(budget.running().unwrap(), 1);
    let (one, two) = (budget.enter().unwrap().unwrap(), budget.enter().unwrap().unwrap());
    assert_eq!((one.number(), two.number()), (0, 1));
    assert!(budget.enter().unwrap().is_none());
    drop((one, two, last));
    assert_eq!(budget.running().unwrap(), 0);
    // Places do not touch the tokens.
    assert_eq!(budget.peek(0).unwrap().remaining(), 10);
    assert_eq!(fs::read_dir(folder.0.join("budget.places")).unwrap().count(), 3);
}

#[test]
fn threads_never_hold_more_places_than_there_are() {
    let folder = Folder::new();
    let open = || {
        let budget = Budget::open(folder.path(), quota("10/s")).unwrap();
        budget.with_max_in_flight(3.try_into().unwrap()).unwrap()
    };
    let (budgets, running, most) = ([open(), open()], AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..6 {
            let (budgets, running, most) = (&budgets, &running, &most);
            scope.spawn(move || {
                for _ in 0..500 {
                    if let Some(place) = budgets[number % 2].enter().unwrap() {
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        drop(place);
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&most.into_inner()));
}

#[test]
fn places_are_those_of_the_file_by_whatever_link_it_is_named() {
    let folder = Folder::new();
    let (link, second) = (folder.0.join("link"), folder.0.join("second"));
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    // A link to nothing is told as that, and nothing is made.
    let error = Budget::open(&link, quota("1/s")).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot follow the link `{}`", link.display()));
    assert_eq!(folder.names(), ["link"]);

    let two = 2.try_into().unwrap();
    let budget = Budget::open(folder.path(), quota("1/s")).unwrap().with_max_in_flight(two).unwrap();
    std::os::unix::fs::symlink("link", &second).unwrap();
    let others = [&link, &second].map(|path| Budget::open(path, quota("1/s")).unwrap());
    let held = [budget.enter(), others[0].enter()].map(|place| place.unwrap().unwrap());
    assert!(others[1].enter().unwrap().is_none());
    assert_eq!(others.map(|other| other.running().unwrap()), [2, 2]);
    drop(held);
}

#[test]
fn the_number_of_places_is_kept_and_changed_for_all() {
    let folder = Folder::new();
    let open = || Budget::open(folder.path(), quota("10/s")).unwrap();
    let [two, three] = [2, 3].map(|max| std::num::NonZeroU64::new(max).unwrap());
    let other = open();
    let budget = open().with_max_in_flight(two).unwrap();
    assert!(matches!(
        open().with_max_in_flight(three),
        Err(BudgetError::OtherMaxInFlight { stored: 2, asked: 3, .. })
    ));
    let held = [other.enter().unwrap().unwrap(), other.enter().unwrap().unwrap()];
    assert!(other.enter().unwrap().is_none());
    budget.change_max_in_flight(three).unwrap();
    let third = other.enter().unwrap().unwrap();
    budget.change_max_in_flight(two).unwrap();
    // Lowered: who holds a place keeps it.
    assert_eq!(budget.running().unwrap(), 3);
    drop(held);
    assert_eq!(budget.running().unwrap(), 1);
    drop(third);
}

// The file.

#[test]
fn a_write_cut_off_anywhere_leaves_the_old_state_or_the_new_one() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("1/hour burst 100")).unwrap();
    // Both slots are written, and the second time with more bytes that differ.
    for step in 1..6_u64 {
        let before = fs::read(folder.path()).unwrap();
        let old = remaining(&budget, at(step * 1000));
        assert!(budget.check_at(at(step * 1000), step).unwrap().is_allowed());
        let after = fs::read(folder.path()).unwrap();
        let new = old - step;
        assert_eq!(remaining(&budget, at(step * 1000)), new);
        let slots: Vec<_> = before.iter().zip(&after).enumerate().filter(|(_, (a, b))| a != b).collect();
        let slot = (slots[0].0 - HEADER) / SLOT;
        assert!(slots.iter().all(|(at, _)| (at - HEADER) / SLOT == slot), "one slot is written");
        let begin = HEADER + slot * SLOT;
        for cut in 0..=SLOT {
            for backwards in [false, true] {
                let mut torn = before.clone();
                let range = if backwards { begin + cut..begin + SLOT } else { begin..begin + cut };
                torn[range.clone()].copy_from_slice(&after[range]);
                let whole = torn == after;
                fs::write(folder.path(), &torn).unwrap();
                let left = remaining(&budget, at(step * 1000));
                assert_eq!(left, if whole { new } else { old }, "cut at {cut}");
                // And it goes on from there.
                assert!(budget.check_at(at(step * 1000), 1).unwrap().is_allowed());
                assert_eq!(remaining(&budget, at(step * 1000)), left - 1);
            }
        }
        fs::write(folder.path(), &after).unwrap();
    }
}

#[test]
fn any_byte_that_changes_is_an_error_or_the_state_before_but_never_a_reset() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("1/hour burst 100")).unwrap();
    for cost in [10, 20, 30] {
        assert!(budget.check_at(at(S), cost).unwrap().is_allowed());
    }
    let whole = fs::read(folder.path()).unwrap();
    for place in 0..whole.len() {
        for change in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[place] ^= change;
            fs::write(folder.path(), &bytes).unwrap();
            match budget.check_at(at(S), 0) {
                Ok(decision) => {
                    assert!(place >= HEADER, "the header at {place}");
                    assert!([40, 70].contains(&decision.remaining()), "at {place}: {decision:?}");
                }
                Err(_) => assert!(place < HEADER, "a slot at {place}"),
            }
            assert_eq!(fs::read(folder.path()).unwrap(), bytes, "looking changes nothing");
        }
    }
}

#[test]
fn a_file_that_is_no_budget_is_an_error_that_says_what_to_do_and_is_left_alone() {
    let folder = Folder::new();
    let path = folder.path();
    drop(Budget::open(&path, quota("10/s")).unwrap());
    let whole = fs::read(&path).unwrap();
    let with = |change: fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        bytes
    };
    for (bytes, expected) in [
        (vec![], "`PATH` is not a budget; move it away or name another path"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "`PATH` is not a budget; move it away or name another path"),
        (vec![0; 256], "`PATH` is not a budget; move it away or name another path"),
        (
            with(|bytes| bytes.truncate(255)),
            "the budget `PATH` is 255 bytes long where 256 are expected; move it away, and a full one is made, or name another path",
        ),
        (
            with(|bytes| bytes.truncate(17)),
            "the budget `PATH` is 17 bytes long where 256 are expected; move it away, and a full one is made, or name another path",
        ),
        (
            with(|bytes| bytes.resize(5000, 0)),
            "the budget `PATH` is 5000 bytes long where 256 are expected; move it away, and a full one is made, or name another path",
        ),
        (
            with(|bytes| bytes[16] = 2),
            "the budget `PATH` has format 2, and this program knows 1; use the program that made it, move it away, or name another path",
        ),
        (
            with(|bytes| bytes[30] = 2),
            "the budget `PATH` is damaged, no state in it has a valid checksum; move it away, and a full one is made, or name another path",
        ),
        (
            with(|bytes| bytes[HEADER..].fill(0)),
            "the budget `PATH` is damaged, no state in it has a valid checksum; move it away, and a full one is made, or name another path",
        ),
        (
            // Each slot where the other belongs.
            with(|bytes| bytes[HEADER..].rotate_left(SLOT)),
            "the budget `PATH` is damaged, no state in it has a valid checksum; move it away, and a full one is made, or name another path",
        ),
    ] {
        fs::write(&path, &bytes).unwrap();
        let error = Budget::open(&path, quota("10/s")).unwrap_err();
        assert_eq!(error.to_string().replace(path.to_str().unwrap(), "PATH"), expected);
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(Budget::open(&folder.0, quota("10/s")), Err(BudgetError::Io { .. })), "a folder");
    assert!(matches!(Budget::open("/dev/null", quota("10/s")), Err(BudgetError::Foreign { .. })));
    let nowhere = folder.0.join("nowhere").join("budget");
    assert!(matches!(Budget::open(nowhere, quota("10/s")), Err(BudgetError::Io { .. })));
    assert!(matches!(Budget::open_existing(&path), Err(BudgetError::Io { .. })));
    assert!(folder.names().is_empty());
}

#[test]
fn the_text_of_every_error() {
    let path = || PathBuf::from("/run/b").into_boxed_path();
    for (error, expected) in [
        (
            BudgetError::Io { action: "lock the budget", path: path(), source: ErrorKind::Other.into() },
            "cannot lock the budget `/run/b`",
        ),
        (
            BudgetError::Foreign { path: path() },
            "`/run/b` is not a budget; move it away or name another path",
        ),
        (
            BudgetError::Length { path: path(), length: 9 },
            "the budget `/run/b` is 9 bytes long where 256 are expected; move it away, and a full one is made, or name another path",
        ),
        (
            BudgetError::Version { path: path(), found: 9 },
            "the budget `/run/b` has format 9, and this program knows 1; use the program that made it, move it away, or name another path",
        ),
        (
            BudgetError::Damaged { path: path() },
            "the budget `/run/b` is damaged, no state in it has a valid checksum; move it away, and a full one is made, or name another path",
        ),
        (
            BudgetError::Replaced { path: path() },
            "the budget `/run/b` was moved or deleted while it was open; open it again",
        ),
        (
            BudgetError::OtherQuota { path: path(), stored: quota("10/s burst 20"), asked: quota("5/s") },
            "the budget `/run/b` has the quota `10/s burst 20` and not `5/s`; ask for the quota it has, change it with `change_quota`, or name another path",
        ),
        (
            BudgetError::OtherMaxInFlight { path: path(), stored: 2, asked: 3 },
            "the budget `/run/b` has 2 places in flight and not 3; ask for the number it has, change it with `change_max_in_flight`, or name another path",
        ),
        (
            BudgetError::MaxInFlight { asked: 2000, max: 1024 },
            "2000 places in flight are not possible; ask for 1 to 1024",
        ),
        (
            BudgetError::NoPlaces { path: path() },
            "the budget `/run/b` has no places in flight; set their number with `with_max_in_flight`",
        ),
        (
            BudgetError::NotLocal { path: path() },
            "`/run/b` is on a network file system, and a budget holds for one machine only; name a path on a local disk",
        ),
        (
            BudgetError::BootId { source: Error::from(ErrorKind::NotFound) },
            "cannot tell this boot of the machine from others by `/proc/sys/kernel/random/boot_id`; mount `/proc`",
        ),
    ] {
        assert_eq!(error.to_string(), expected);
    }
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("10/s")).unwrap();
    assert!(matches!(budget.enter(), Err(BudgetError::NoPlaces { .. })));
    assert!(matches!(
        budget.with_max_in_flight(1025.try_into().unwrap()),
        Err(BudgetError::MaxInFlight { asked: 1025, max: 1024 })
    ));
}

#[test]
fn a_quota_that_the_file_does_not_have_is_an_error_and_changing_it_holds_for_all() {
    let folder = Folder::new();
    let budget = Budget::open(folder.path(), quota("1/hour burst 10")).unwrap();
    assert!(budget.check_n(4).unwrap().is_allowed());
    let error = Budget::open(folder.path(), quota("1/hour burst 1000")).unwrap_err();
    assert!(matches!(error, BudgetError::OtherQuota { stored, asked, .. }
        if stored == quota("1/hour burst 10") && asked == quota("1/hour burst 1000")));
    assert_eq!(budget.peek(0).unwrap().remaining(), 6, "an error changes nothing");

    let other = Budget::open_existing(folder.path()).unwrap();
    other.change_quota(quota("1/hour burst 1000")).unwrap();
    assert_eq!(budget.quota().unwrap(), quota("1/hour burst 1000"));
    assert_eq!(budget.check_n(1001).unwrap(), Decision::Never { capacity: 1000 });
    assert_eq!(budget.peek(0).unwrap().remaining(), 600, "as full in proportion");
    other.change_quota(quota("1/day burst 3")).unwrap();
    assert_eq!(budget.peek(0).unwrap().remaining(), 1);
    assert!(Budget::open(folder.path(), quota("1/day burst 3")).is_ok());
}

#[test]
fn a_budget_that_was_moved_or_deleted_is_an_error_until_it_is_opened_again() {
    let folder = Folder::new();
    let open = || Budget::open(folder.path(), quota("1/hour burst 10")).unwrap();
    let budget = open();
    fs::rename(folder.path(), folder.0.join("away")).unwrap();
    assert!(matches!(budget.check(), Err(BudgetError::Replaced { .. })));
    let other = open();
    assert!(matches!(budget.check(), Err(BudgetError::Replaced { .. })));
    assert!(other.check().unwrap().is_allowed());
    fs::remove_file(folder.path()).unwrap();
    assert!(matches!(other.check(), Err(BudgetError::Replaced { .. })));
    // Moved back, it is what it was.
    fs::rename(folder.0.join("away"), folder.path()).unwrap();
    assert_eq!(budget.peek(0).unwrap().remaining(), 10);
}

#[test]
fn a_file_is_never_seen_half_made() {
    for _ in 0..20 {
        let folder = Folder::new();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| Budget::open(folder.path(), quota("10/s")).unwrap());
            }
            scope.spawn(|| {
                let bytes = loop {
                    if let Ok(bytes) = fs::read(folder.path()) {
                        break bytes;
                    }
                };
                assert_eq!(bytes.len(), 256);
            });
        });
        assert_eq!(folder.names(), ["budget"]);
    }
}

#[test]
fn the_example_prints_what_it_always_prints() {
    let mut out = Vec::new();
    example::unix::run(&mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "  0 ms: crawler spends 2, 1 left
100 ms: agent spends 1, 0 left
100 ms: agent has to wait 400ms
500 ms: agent spends 1, 0 left
while the crawler has the place, it is free for the agent: false
afterwards: true
the budget `./api.budget` has the quota `2/s burst 3` and not `9/s`; ask for the quota it has, change it with \
         `change_quota`, or name another path
"
    );
}
