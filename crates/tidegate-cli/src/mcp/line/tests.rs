use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The limits of a file, with `calls` places in the line and 20 s to wait.
fn line(limits: &str, calls: usize) -> Line<u32> {
    let limits = crate::limits::parse("f", limits).unwrap();
    let rules = limits.iter().map(|limit| Rule::of_file("f", limit).unwrap()).collect();
    Line::new(rules, Room { calls, bytes: 1000, max_wait: Duration::from_secs(20) })
}

/// What joining gave: `Ok(true)` granted, `Ok(false)` waits.
fn join(line: &mut Line<u32>, now: u64, tool: &str, cost: u64, call: u32) -> Result<bool, Refusal> {
    match line.join(now, tool, cost, 1, call) {
        Joined::Granted(..) => Ok(true),
        Joined::Waiting(_) => Ok(false),
        Joined::Refused(_, refusal) => Err(refusal),
    }
}

/// Drives the line from event to event until `end`: who was granted when, in ms.
fn run(line: &mut Line<u32>, mut now: u64, end: u64) -> Vec<(u32, u64)> {
    let mut granted = Vec::new();
    loop {
        while let Some(event) = line.poll(now) {
            match event {
                Event::Granted(_, call, _) => granted.push((call, now / MS)),
                Event::Refused(call, refusal) => panic!("{call}: {refusal:?}"),
            }
        }
        match line.next_event(now) {
            Some(next) if next <= end => {
                assert!(next > now, "it comes back for something");
                now = next;
            }
            _ => return granted,
        }
    }
}

const EACH_AND_ALL: &str = "
    [[limit]]
    name = \"each\"
    key = \"tool\"
    quota = \"1/s\"
    override = [{ key = \"fast\", quota = \"10/s burst 1\" }]
    [[limit]]
    name = \"all\"
    quota = \"4/s burst 2\"";

#[test]
fn calls_start_in_order_at_the_exact_instant() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"2/s burst 3\"", 20);
    let joined: Vec<bool> = (0..7).map(|call| join(&mut line, 0, "a", 1, call).unwrap()).collect();
    assert_eq!(joined, [true, true, true, false, false, false, false]);
    assert_eq!(run(&mut line, 0, 9 * SECOND), [(3, 500), (4, 1000), (5, 1500), (6, 2000)]);
    assert!(line.is_empty());
}

#[test]
fn a_tool_that_waits_for_its_own_limit_holds_up_no_other() {
    let mut line = line(EACH_AND_ALL, 20);
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    assert_eq!(join(&mut line, 0, "a", 1, 1), Ok(false));
    assert_eq!(join(&mut line, 0, "b", 1, 2), Ok(true), "b and the whole have a token each");
    assert_eq!(join(&mut line, 0, "fast", 1, 3), Ok(false), "the whole has none");
    assert_eq!(join(&mut line, 0, "fast", 1, 4), Ok(false));
    // One token of the whole comes every 250 ms, one of `a` every second, one of `fast` every 100 ms.
    assert_eq!(run(&mut line, 0, 9 * SECOND), [(3, 250), (4, 500), (1, 1000)]);
}

#[test]
fn all_are_charged_or_none() {
    let mut line = line(EACH_AND_ALL, 0);
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    for call in 1..9 {
        let refusal = join(&mut line, 0, "a", 1, call).unwrap_err();
        assert_eq!((refusal.limit, refusal.wait, refusal.why), (Some(0), Duration::from_secs(1), Why::Full));
    }
    assert_eq!(join(&mut line, 0, "b", 1, 10), Ok(true), "the refused calls took nothing of the whole");
}

#[test]
fn a_call_is_refused_with_the_wait_of_its_place_in_the_line() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1 per 8s\"", 2);
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    assert_eq!(join(&mut line, 0, "a", 1, 1), Ok(false));
    assert_eq!(join(&mut line, 0, "a", 1, 2), Ok(false));
    let late = join(&mut line, 0, "a", 1, 3).unwrap_err();
    assert_eq!((late.wait, late.why), (Duration::from_secs(24), Why::Late));
    let never = join(&mut line, 0, "a", 2, 4).unwrap_err();
    assert_eq!(never.why, Why::Never { capacity: 1 });
    assert_eq!(line.cancel(1), Some(1));
    assert_eq!(join(&mut line, 0, "a", 1, 5), Ok(false), "who left took nothing along");
    assert_eq!(run(&mut line, 0, 99 * SECOND), [(2, 8000), (5, 16_000)]);
}

#[test]
fn places_are_taken_with_the_tokens_and_waited_for_to_the_deadline() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"10/s\"\nmax_in_flight = 1", 9);
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    assert_eq!(join(&mut line, 0, "a", 1, 1), Ok(false));
    assert_eq!(join(&mut line, 0, "a", 1, 2), Ok(false));
    assert_eq!(run(&mut line, 0, 19 * SECOND), []);
    line.end(0);
    assert_eq!(run(&mut line, 19 * SECOND, 19 * SECOND), [(1, 19_000)]);
    let Some(Event::Refused(2, refusal)) = line.poll(20 * SECOND) else { panic!("2 has waited for 20 s") };
    assert_eq!((refusal.limit, refusal.why), (Some(0), Why::NoPlace));
    // A cancelled call keeps its place for the grace.
    assert_eq!(join(&mut line, 20 * SECOND, "a", 1, 3), Ok(false));
    line.cancel_running(21 * SECOND, 1);
    assert_eq!(run(&mut line, 21 * SECOND, 99 * SECOND), [(3, 26_000)]);
}

#[test]
fn a_limit_in_shadow_mode_holds_nobody_up_and_is_told() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1/s\"\nmode = \"shadow\"", 0);
    for (call, shadow) in [(0, None), (1, Some(Shadow { limit: 0 })), (2, Some(Shadow { limit: 0 }))] {
        assert_eq!(line.join(0, "a", 1, 1, call), Joined::Granted(call.into(), call, shadow));
    }
}

#[test]
fn the_bytes_that_wait_have_a_bound() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1/s\"", 99);
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    assert!(matches!(line.join(0, "a", 1, 900, 1), Joined::Waiting(_)));
    assert!(matches!(line.join(0, "a", 1, 101, 2), Joined::Refused(2, Refusal { why: Why::Full, .. })));
    assert!(matches!(line.join(0, "a", 1, 100, 3), Joined::Waiting(_)));
    assert_eq!(line.drain(), [1, 3]);
    assert!(matches!(line.join(0, "a", 1, 1000, 4), Joined::Waiting(_)));
}

#[test]
fn tools_beyond_the_bound_share_a_state() {
    let mut line = line("[[limit]]\nname = \"each\"\nkey = \"tool\"\nquota = \"1/s\"", 0);
    for tool in 0..MAX_TOOLS {
        assert_eq!(join(&mut line, 0, &format!("t{tool}"), 1, 0), Ok(true));
    }
    assert_eq!(join(&mut line, 0, "x", 1, 0), Ok(true));
    assert!(join(&mut line, 0, "y", 1, 0).is_err());
}

#[test]
fn ten_thousand_wait_and_start_in_order() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1000000/s burst 1\"", 10_000);
    line.room.bytes = usize::MAX;
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    for call in 1..=10_000 {
        assert_eq!(join(&mut line, 0, ["a", "b", "c"][call as usize % 3], 1, call), Ok(false));
    }
    let order: Vec<u32> = run(&mut line, 0, SECOND).into_iter().map(|(call, _)| call).collect();
    assert_eq!(order, (1..=10_000).collect::<Vec<_>>());
}
