//! A flood of strangers: keys that call once and never again, many more of them than the table has room for.

use tidegate::{Limiter, Quota};

const S: u64 = 1_000_000_000;

/// Room in the table, a two-hundredth of the strangers.
const ROOM: usize = 10_000;
const STRANGERS: u64 = 2_000_000;
/// Keys that keep within their limit.
const LEGITIMATE: u64 = 100;
/// Keys that call much more often than they may.
const HELD: usize = 10;
/// Time from one stranger to the next: 100,000 in a second.
const EVERY_NS: u64 = 10_000;
const RATE: u64 = 10;
const BURST: u64 = 5;

/// What a key is called: no two kinds share one.
#[derive(Hash)]
enum Key {
    Stranger(u64),
    Legitimate(u64),
    Held(usize),
}

#[test]
fn a_flood_rejects_nobody_within_a_limit_and_frees_nobody_held_at_one() {
    let limiter = Limiter::new(format!("{RATE}/s burst {BURST}").parse::<Quota>().unwrap(), ROOM);
    let bytes = limiter.bytes();
    let mut held = [0; HELD];
    for stranger in 0..STRANGERS {
        let now_ns = stranger * EVERY_NS;
        assert!(limiter.check_at(&Key::Stranger(stranger), 1, now_ns).is_allowed(), "stranger {stranger}");
        // 1,000 calls a second of 100 keys: ten each, what they may.
        if stranger % 100 == 0 {
            let key = stranger / 100 % LEGITIMATE;
            assert!(limiter.check_at(&Key::Legitimate(key), 1, now_ns).is_allowed(), "legitimate {key}");
        }
        // 100 calls a second of each held key: ten times what it may.
        if stranger % 100 == 50 {
            let key = usize::try_from(stranger / 100).unwrap() % HELD;
            held[key] += u64::from(limiter.check_at(&Key::Held(key), 1, now_ns).is_allowed());
        }
    }
    let end = STRANGERS * EVERY_NS;
    let stats = limiter.stats_at(end);
    assert!(stats.evicted > 0, "the flood did not fill the table");
    assert_eq!(limiter.bytes(), bytes);
    let may = BURST + RATE * end / S;
    let gained: u64 = held.iter().map(|&allowed| allowed.saturating_sub(may)).sum();
    assert!(gained <= stats.forgotten, "{gained} beyond the limits, {} counted", stats.forgotten);
    // The strangers are nearer to full than a held key, so they are what is forgotten.
    assert_eq!(gained, 0, "{held:?} of {may}");
}
