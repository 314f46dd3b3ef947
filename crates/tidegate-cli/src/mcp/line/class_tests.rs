//! Groups of tools, sessions, tools that ask for a pause, and budgets of several processes.

use tidegate::Budget;
use tidegate_core::Quota;

use super::*;
use crate::mcp::shared::{FileBudget, SharedBudget};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn line_of(rules: Vec<Rule>) -> Line<u32> {
    Line::new(rules, Room { calls: 9, bytes: 1000, max_wait: Duration::from_secs(20) })
}

fn line(limits: &str) -> Line<u32> {
    let limits = crate::limits::parse("f", limits).unwrap().limits;
    line_of(limits.iter().map(|limit| Rule::of_file("f", limit).unwrap()).collect())
}

/// A call of `session/tool` or `tool`.
fn join(line: &mut Line<u32>, now: u64, who: &str) -> Result<bool, Refusal> {
    let (session, tool) = who.split_once('/').unwrap_or(("", who));
    match line.join(now, &Subject { tool: tool.into(), session: session.into() }, 1, 1, 7) {
        Joined::Granted(..) => Ok(true),
        Joined::Waiting(_) => Ok(false),
        Joined::Refused(_, refusal) => Err(refusal),
    }
}

#[test]
fn a_group_of_tools_has_one_limit_together_and_others_none() {
    let mut line = line(
        "
        [[limit]]
        name = \"web\"
        quota = \"1 per 9s burst 2\"
        tools = [\"search\", \"web_*\"]
        max_in_flight = 2",
    );
    assert_eq!(
        ["search", "web_get", "web_put", "search"].map(|tool| join(&mut line, 0, tool)),
        [Ok(true), Ok(true), Ok(false), Ok(false)]
    );
    assert!((0..20).all(|_| join(&mut line, 0, "echo") == Ok(true)));
    line.end(0);
    assert!(matches!(line.poll(9 * SECOND), Some(Event::Granted(..))));
    assert_eq!(line.poll(18 * SECOND), None, "two are in flight");
}

#[test]
fn sessions_have_states_of_their_own_where_the_key_says_so() {
    let mut line = line(
        "
        [[limit]]
        name = \"each\"
        key = [\"session\", \"tool\"]
        quota = \"1 per 1h\"
        [[limit]]
        name = \"session\"
        key = \"session\"
        quota = \"2 per 1h\"
        [[limit]]
        name = \"all\"
        quota = \"5 per 1h\"",
    );
    let mut late = |who: &str| join(&mut line, 0, who).map_err(|refusal| refusal.limit);
    assert_eq!(["a/x", "a/x"].map(&mut late), [Ok(true), Err(Some(0))]);
    assert_eq!(["a/y", "a/z"].map(&mut late), [Ok(true), Err(Some(1))]);
    assert_eq!(["b/x", "b/y", "c/x", "c/y"].map(&mut late), [Ok(true), Ok(true), Ok(true), Err(Some(2))]);
}

#[test]
fn a_tool_that_asks_for_a_pause_gets_it_and_others_go_on() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1/s burst 5\"");
    assert_eq!(join(&mut line, 0, "x"), Ok(true));
    line.close(0, "x", Duration::from_secs(7));
    // A shorter one changes nothing.
    line.close(0, "x", Duration::from_secs(1));
    assert_eq!(join(&mut line, 0, "x"), Ok(false));
    assert_eq!(join(&mut line, 0, "y"), Ok(true), "the waiting call holds up nobody else");
    assert_eq!(line.poll(7 * SECOND - 1), None);
    assert_eq!(line.next_event(0), Some(7 * SECOND));
    assert!(matches!(line.poll(7 * SECOND), Some(Event::Granted(..))));
    line.close(8 * SECOND, "x", Duration::from_secs(30));
    let refused = join(&mut line, 9 * SECOND, "x").unwrap_err();
    assert_eq!((refused.limit, refused.wait, refused.why), (None, Duration::from_secs(29), Why::Closed));
}

#[test]
fn who_waits_for_a_tool_is_refused_when_its_pause_is_too_long() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1 per 10s\"");
    assert_eq!(join(&mut line, 0, "x"), Ok(true));
    assert_eq!(join(&mut line, 0, "x"), Ok(false));
    line.close(SECOND, "x", Duration::from_secs(60));
    let Some(Event::Refused(_, refusal)) = line.poll(SECOND) else { panic!("it cannot start in time") };
    assert_eq!((refusal.wait, refusal.why), (Duration::from_secs(60), Why::Closed));
    assert_eq!(line.poll(SECOND), None);
}

#[test]
fn the_longer_of_limit_and_pause_is_waited_for_and_told() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1 per 30s\"");
    assert_eq!(join(&mut line, 0, "x"), Ok(true));
    line.close(0, "x", Duration::from_secs(25));
    let refused = join(&mut line, 0, "x").unwrap_err();
    assert_eq!((refused.limit, refused.wait), (Some(0), Duration::from_secs(30)));
    line.close(0, "x", Duration::from_secs(31));
    assert_eq!(join(&mut line, 0, "x").unwrap_err().wait, Duration::from_secs(31));
}

#[test]
fn sessions_that_nobody_misses_make_room_for_others() {
    let mut line = line(
        "
        [[limit]]
        name = \"each\"
        key = \"session\"
        quota = \"1/s\"
        max_in_flight = 1",
    );
    for session in 0..classes::MAX_CLASSES {
        assert_eq!(join(&mut line, 0, &format!("{session}/x")), Ok(true));
    }
    // All are in use, so that strangers share one place.
    assert_eq!(join(&mut line, 0, "new/x"), Ok(true));
    assert!(join(&mut line, 0, "newer/x") != Ok(true));
    // All but two have ended, and of them one has been used a moment ago.
    for ticket in 2..u64::try_from(classes::MAX_CLASSES).unwrap() {
        line.end(ticket);
    }
    for session in 0..classes::MAX_CLASSES - 2 {
        assert_eq!(join(&mut line, 2 * SECOND, &format!("later{session}/x")), Ok(true));
    }
    assert!(join(&mut line, 2 * SECOND, "0/x") != Ok(true), "it still runs");
}

#[test]
fn strangers_who_share_a_class_are_under_the_limit_of_all_with_the_others() {
    let most = classes::MAX_CLASSES;
    let mut line = line(&format!(
        "
        [[limit]]
        name = \"each\"
        key = \"session\"
        quota = \"5 per 1h\"
        [[limit]]
        name = \"all\"
        quota = \"1 per 1h burst {}\"",
        most + 1
    ));
    for session in 0..most {
        assert_eq!(join(&mut line, 0, &format!("{session}/x")), Ok(true));
    }
    assert_eq!(join(&mut line, 0, "new/x"), Ok(true));
    let refused = join(&mut line, 0, "newer/x").unwrap_err();
    assert_eq!((refused.limit, refused.why), (Some(1), Why::Late));
}

fn budget(name: &str, quota: &str, places: Option<u64>) -> (Rule, Budget) {
    let path = std::env::temp_dir().join(format!("tidegate-line-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let quota: Quota = quota.parse().unwrap();
    let open = || {
        let budget = Budget::open(&path, quota).unwrap();
        match places {
            Some(places) => budget.with_max_in_flight(places.try_into().unwrap()).unwrap(),
            None => budget,
        }
    };
    (Rule::of_budget(name, quota, SharedBudget::File(FileBudget::new(open(), places))), open())
}

#[test]
fn a_shared_budget_is_charged_with_all_limits_or_not_at_all() {
    let (rule, other) = budget("shared", "3 per 1h", None);
    let file = "[[limit]]\nname = \"x\"\ntools = [\"x\"]\nquota = \"1 per 1h\"";
    let of_file = Rule::of_file("f", &crate::limits::parse("f", file).unwrap().limits[0]).unwrap();
    let mut line = line_of(vec![rule, of_file]);
    assert_eq!(join(&mut line, 0, "x"), Ok(true));
    assert_eq!(join(&mut line, 0, "x").unwrap_err().limit, Some(1));
    assert_eq!(
        other.peek(1).unwrap().remaining(),
        1,
        "the refused call took nothing of the two that are left"
    );
    assert!(other.check().unwrap().is_allowed());
    assert_eq!(join(&mut line, 0, "y"), Ok(true));
    let refused = join(&mut line, 0, "y").unwrap_err();
    assert_eq!((refused.limit, refused.why), (Some(0), Why::Late));
}

#[test]
fn a_place_of_a_shared_budget_is_waited_for_and_given_back() {
    let (rule, other) = budget("places", "100/s", Some(1));
    let mut line = line_of(vec![rule]);
    let place = other.enter().unwrap().unwrap();
    assert_eq!(join(&mut line, 0, "x"), Ok(false));
    assert_eq!(line.next_event(0), Some(20 * MS), "nobody tells when others give it back");
    drop(place);
    let Some(Event::Granted(ticket, ..)) = line.poll(20 * MS) else { panic!("it is free") };
    assert_eq!(other.running().unwrap(), 1);
    line.end(ticket);
    assert_eq!(other.running().unwrap(), 0);
}

#[test]
fn a_budget_that_is_gone_lets_nothing_start() {
    let (rule, other) = budget("gone", "100/s burst 1", None);
    let mut line = line_of(vec![rule]);
    assert_eq!(join(&mut line, 0, "x"), Ok(true));
    assert_eq!(join(&mut line, 0, "x"), Ok(false));
    std::fs::remove_file(other.path()).unwrap();
    let Some(Event::Refused(_, refusal)) = line.poll(SECOND) else { panic!("the budget is gone") };
    assert_eq!((refusal.limit, refusal.why), (Some(0), Why::Broken));
    assert_eq!(join(&mut line, SECOND, "x").unwrap_err().why, Why::Broken);
    assert!(line.rules()[0].budget.as_ref().unwrap().fault().contains("gone"));
}
