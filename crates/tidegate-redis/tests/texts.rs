//! The texts of errors and warnings, and that none of them tells a password.

use std::error::Error as _;
use std::time::Duration;

use tidegate::{Algorithm, Kind, Limit, Mode, Policy};
use tidegate_redis::{OnFailure, Store, Warning};

use crate::harness::server::Server;
use crate::harness::{policy, quota};

#[tokio::test]
async fn the_text_of_every_error() {
    let server = Server::start(&[]);
    let store = Store::builder(&server.url()).connect().await.unwrap();
    let limiter = |name: &str, policy: Policy, on_failure| {
        store.limiter(name, policy, on_failure).unwrap_err().to_string()
    };
    let closed = OnFailure::Closed;
    let window = Policy::from(Algorithm::new(Kind::SlidingLog, quota("5/s")));
    assert_eq!(
        limiter("api", window, closed),
        "the limit `sliding-log` is a sliding-log; only token-bucket limits can be shared through a store"
    );
    assert_eq!(
        limiter("api", policy(&[("day", "1/day burst 104250")]), closed),
        "the limit `day` is too fine to be counted exactly by a script, which counts to 2^53 (burst times the microseconds \
         of a token, in lowest terms); lower the burst, or write a rate with a shorter time"
    );
    assert_eq!(
        limiter("api", Policy::new(Vec::new()), closed),
        "a limiter needs at least one limit; give it a quota such as `10/s burst 20`"
    );
    assert_eq!(
        limiter("api", policy(&[("a", "1/s"), ("a", "2/s")]), closed),
        "two limits are named `a`; a name is the key of its bucket, so give each its own"
    );
    for name in ["", "a:b", "{", "}"] {
        let text = format!(
            "`{name}` cannot be part of a key; write a name that is not empty and has no `:`, `{{` or `}}`"
        );
        assert_eq!(limiter(name, quota("1/s").into(), closed), text);
        assert_eq!(limiter("api", policy(&[(name, "1/s")]), closed), text);
    }
    let _known = store.limiter("api", quota("1/s"), closed).unwrap();
    assert!(store.limiter("api", quota("1/s"), OnFailure::Open).is_ok());
    assert_eq!(
        limiter("api", quota("2/s").into(), closed),
        "the store has a limiter named `api` with other limits; one name means one set of buckets, so use another"
    );
    let local = OnFailure::Local { machines: 1000.try_into().unwrap(), keys: 1 };
    let text = limiter("slow", policy(&[("a", "1 per 10000w")]), local);
    assert!(text.starts_with("the share of one machine of the limit `a` is no quota: the period"), "{text}");
    let late = Store::builder(&server.url()).deadline(Duration::from_secs(61)).connect_later();
    assert_eq!(late.unwrap_err().to_string(), "deadline of 61s is out of range; write 1ms to 60s");
    let late = Store::builder(&server.url()).wait_for_replicas(1, Duration::ZERO).connect_later();
    assert_eq!(late.unwrap_err().to_string(), "time for replicas of 0ns is out of range; write 1ms to 60s");
    for (url, why) in [
        ("redis+sentinel://one,two", "it does not name the primary after the hosts"),
        ("redis+cluster://one,two/1", "a cluster has no databases but 0"),
        ("redis.example", "Redis URL did not parse - InvalidClientConfig"),
    ] {
        assert_eq!(
            Store::builder(url).connect_later().unwrap_err().to_string(),
            format!(
                "the address of the store is not understood: {why}; write redis://HOST:PORT, \
                 redis+sentinel://HOST,HOST/NAME or redis+cluster://HOST,HOST, with rediss for TLS and USER:PASSWORD@ \
                 before hosts"
            )
        );
    }
}

#[test]
fn without_a_runtime_it_says_so() {
    let error = Store::builder("redis://127.0.0.1").connect_later().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a store needs a tokio runtime with its timer and its I/O enabled; connect within one"
    );
}

#[tokio::test]
async fn a_password_is_in_no_text() {
    let server = Server::start(&["--requirepass", "s3cret"]);
    let address = server.address();
    let tells = |text: String| text.contains("s3cret") || text.contains("wr0ng");
    // The right one works, and nothing that can be printed tells it.
    let builder = Store::builder(&format!("redis://:s3cret@{address}"));
    assert!(!tells(format!("{builder:?}")));
    let store = builder.connect().await.unwrap();
    let limiter = store.limiter("api", quota("1/s"), OnFailure::Closed).unwrap();
    assert!(limiter.check("ann").await.is_allowed());
    assert!(!tells(format!("{store:?} {limiter:?} {:?} {:?}", store.stats(), store.last_refusal())));
    // Wrong ones, and addresses that cannot be read.
    for url in [
        format!("redis://:wr0ng@{address}"),
        format!("redis://user:wr0ng@{address}"),
        format!("redis://:wr0ng@{address}/not-a-number"),
        "redis://:wr0ng@127.0.0.1:99999".to_owned(),
        "redis://:wr0ng@".to_owned(),
        "http://:wr0ng@127.0.0.1".to_owned(),
        ":wr0ng".to_owned(),
        format!("rediss://:wr0ng@{address}"),
        format!("redis+sentinel://:wr0ng@{address}/main"),
        format!("redis+sentinel://:wr0ng@{address}"),
        format!("redis+sentinel://:wr0ng@{address}/main/not-a-number"),
        format!("redis+cluster://:wr0ng@{address}"),
        format!("redis+cluster://:wr0ng@{address},127.0.0.1:99999"),
    ] {
        let builder = Store::builder(&url).sentinel_login(Some("user"), "wr0ng");
        assert!(!tells(format!("{builder:?}")));
        if let Ok(store) = builder.clone().connect_later() {
            assert!(!tells(format!("{store:?}")));
        }
        let error = builder.connect().await.unwrap_err();
        let mut texts = vec![format!("{error} {error:?}")];
        let mut source = error.source();
        while let Some(error) = source {
            texts.push(format!("{error} {error:?}"));
            source = error.source();
        }
        assert!(!texts.iter().any(|text| tells(text.clone())), "{texts:?}");
    }
}

#[test]
fn the_text_of_every_warning() {
    assert_eq!(
        Warning::Evicts { policy: "allkeys-lru".into() }.to_string(),
        "the store evicts keys by `allkeys-lru` when its memory is full, and an evicted bucket is full again; set \
         `maxmemory-policy noeviction`, or volatile-ttl"
    );
    assert_eq!(
        Warning::CannotTell.to_string(),
        "the store does not let this user read `maxmemory-policy`; make sure that it is noeviction or volatile-ttl"
    );
}

/// The command of the README that makes a user with no more rights than are needed, and `more`.
pub(crate) fn few_rights(more: &str) -> redis::Cmd {
    let readme = include_str!("../README.md");
    let line = readme.lines().find(|line| line.starts_with("ACL SETUSER tidegate ")).unwrap();
    assert!(
        more.is_empty() || readme.contains(&format!("| `{}` |", more.replace('|', "\\|"))),
        "{more} is not in the README"
    );
    let mut command = redis::Cmd::new();
    for part in line.split(' ').chain(more.split(' ')).filter(|part| !part.is_empty()) {
        command.arg(part);
    }
    command
}

#[tokio::test]
async fn a_user_with_few_rights_is_enough() {
    let server = Server::start(&[]);
    let () = few_rights("").query(&mut server.connection()).unwrap();
    let url = format!("redis://tidegate:PASSWORD@{}", server.address());
    let store = Store::builder(&url).connect().await.unwrap();
    assert_eq!(store.warnings(), [Warning::CannotTell]);
    let limiter = store.limiter("api", quota("1/day burst 2"), OnFailure::Closed).unwrap();
    assert_eq!(limiter.check("ann").await.remaining, [1]);
    // Two limits in shadow and enforced need no more.
    let limit = |name: &str, mode| Limit {
        name: name.into(),
        algorithm: Algorithm::new(Kind::TokenBucket, quota("1/day burst 2")),
        mode,
    };
    let both = Policy::new(vec![limit("one", Mode::Enforce), limit("two", Mode::Shadow)]);
    assert!(store.limiter("both", both, OnFailure::Closed).unwrap().check("ann").await.is_allowed());
}

#[tokio::test]
async fn a_user_who_may_look_is_warned_and_told_of_lost_keys() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let () = few_rights("+role +config|get ~tidegate:epoch").query(&mut server.connection()).unwrap();
    let () = few_rights("+select").query(&mut server.connection()).unwrap();
    let url = format!("redis://tidegate:PASSWORD@{}/3", server.address());
    let store = Store::builder(&url).connect().await.unwrap();
    assert_eq!(store.warnings(), [Warning::Evicts { policy: "allkeys-lru".into() }]);
    let limiter = store.limiter("api", quota("1/day burst 2"), OnFailure::Closed).unwrap();
    assert_eq!(limiter.check("ann").await.remaining, [1]);
    // In that database, and the key of the epoch is there too.
    let mut connection = server.connection();
    let () = redis::cmd("SELECT").arg(3).query(&mut connection).unwrap();
    let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(keys, 2);
}
