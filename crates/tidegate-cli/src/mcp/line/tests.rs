use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The limits of a file, with `calls` places in the line and 20 s to wait.
fn line(limits: &str, calls: usize) -> Line<u32> {
    let limits = crate::limits::parse("f", limits).unwrap().limits;
    let rules = limits.iter().map(|limit| Rule::of_file("f", limit).unwrap()).collect();
    Line::new(rules, Room { calls, bytes: 1000, max_wait: Duration::from_secs(20) })
}

fn by(tool: &str) -> Subject {
    Subject { tool: tool.into(), session: "".into() }
}

/// What joining gave: `Ok(true)` granted, `Ok(false)` waits.
fn join(line: &mut Line<u32>, now: u64, tool: &str, cost: u64, call: u32) -> Result<bool, Refusal> {
    match line.join(now, &by(tool), cost, 1, call) {
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
                Event::Abandoned(_) => {}
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
        assert_eq!(line.join(0, &by("a"), 1, 1, call), Joined::Granted(call.into(), call, shadow));
    }
}

#[test]
fn the_bytes_that_wait_have_a_bound() {
    let mut line = line("[[limit]]\nname = \"all\"\nquota = \"1/s\"", 99);
    assert_eq!(join(&mut line, 0, "a", 1, 0), Ok(true));
    assert!(matches!(line.join(0, &by("a"), 1, 900, 1), Joined::Waiting(_)));
    assert!(matches!(line.join(0, &by("a"), 1, 101, 2), Joined::Refused(2, Refusal { why: Why::Full, .. })));
    assert!(matches!(line.join(0, &by("a"), 1, 100, 3), Joined::Waiting(_)));
    assert_eq!(line.drain(), [1, 3]);
    assert!(matches!(line.join(0, &by("a"), 1, 1000, 4), Joined::Waiting(_)));
}

#[test]
fn tools_beyond_the_bound_share_a_state() {
    let mut line = line("[[limit]]\nname = \"each\"\nkey = \"tool\"\nquota = \"1/s\"", 0);
    for tool in 0..classes::MAX_CLASSES {
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

/// Numbers below `bound`, the same in each run (Knuth's MMIX generator).
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    }
}

/// A line that is asked every millisecond, and one that is asked when it said, do the same; nothing is granted beyond the
/// limits; and who waits is served in the end.
#[test]
fn what_is_due_is_told_in_time_and_keeps_every_limit() {
    const LIMITS: &str = "
        [[limit]]
        name = \"each\"
        key = \"tool\"
        quota = \"50/s burst 3\"
        max_in_flight = 2
        override = [{ key = \"b\", quota = \"10/s burst 4\" }]
        [[limit]]
        name = \"all\"
        quota = \"100/s burst 5\"
        max_in_flight = 4";
    for seed in 0..20 {
        let mut random = numbers(seed);
        let (mut each_ms, mut told) = (line(LIMITS, 30), line(LIMITS, 30));
        let mut next = Some(0);
        let mut granted: Vec<(u64, usize, u64)> = Vec::new();
        let mut running: Vec<(u64, Ticket, usize)> = Vec::new();
        let (mut joined, mut left) = (0, 0);
        for now in (0..12_000).map(|ms| ms * MS) {
            let mut changed = next.is_some_and(|next| next <= now);
            while let Some(&(end, ticket, _)) = running.iter().min()
                && end <= now
            {
                running.retain(|(_, other, _)| *other != ticket);
                each_ms.end(ticket);
                told.end(ticket);
                changed = true;
            }
            let mut start = |ticket: Ticket, call: u32, running: &mut Vec<(u64, Ticket, usize)>| {
                let (tool, cost) = (call as usize % 3, u64::from(call / 3 % 3) + 1);
                granted.push((now, tool, cost));
                running.push((now + (u64::from(call) % 60) * MS, ticket, tool));
                assert!(
                    running.len() <= 4 && running.iter().filter(|call| call.2 == tool).count() <= 2,
                    "{seed}"
                );
            };
            loop {
                let event = each_ms.poll(now);
                if changed {
                    assert_eq!(told.poll(now), event, "seed {seed} at {now}");
                } else {
                    assert_eq!(event, None, "seed {seed} at {now}: it was told to come back at {next:?}");
                }
                match event {
                    Some(Event::Granted(ticket, call, _)) => start(ticket, call, &mut running),
                    Some(Event::Refused(..) | Event::Abandoned(_)) => {
                        panic!("nobody waits for 20 s or cancels")
                    }
                    None => break,
                }
                left += 1;
            }
            if now < 2_000 * MS && random(8) == 0 {
                let call = u32::try_from(random(900)).unwrap();
                let (tool, cost) = (["a", "b", "c"][call as usize % 3], u64::from(call / 3 % 3) + 1);
                let outcome = each_ms.join(now, &by(tool), cost, 1, call);
                assert_eq!(told.join(now, &by(tool), cost, 1, call), outcome);
                match outcome {
                    Joined::Granted(ticket, call, _) => start(ticket, call, &mut running),
                    Joined::Waiting(ticket) if random(9) == 0 => {
                        assert_eq!((each_ms.cancel(ticket), told.cancel(ticket)), (Some(call), Some(call)));
                    }
                    Joined::Waiting(_) => joined += 1,
                    Joined::Refused(..) => {}
                }
                changed = true;
            }
            if changed {
                next = told.next_event(now);
            }
        }
        // What waited was served within the rest of the time.
        assert!(told.is_empty() && left == joined, "seed {seed}: {left} of {joined}");
        for (per_tool, count, burst) in [(Some(0), 50, 3), (Some(1), 10, 4), (Some(2), 50, 3), (None, 100, 5)]
        {
            let mine: Vec<_> =
                granted.iter().filter(|call| per_tool.is_none_or(|tool| call.1 == tool)).collect();
            for (first, (start, ..)) in mine.iter().enumerate() {
                let mut sum = 0;
                for (end, _, cost) in &mine[first..] {
                    sum += cost;
                    assert!(
                        sum * SECOND <= burst * SECOND + count * (end - start),
                        "seed {seed}, {per_tool:?}"
                    );
                }
            }
        }
        assert!(granted.len() > 50, "{}", granted.len());
    }
}
