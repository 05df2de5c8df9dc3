//! What a server keeps, and what the store does when it does not.

use std::time::Duration;

use hapax::store::redis::{OpenError, Options, Redis};
use hapax_core::audit::Signed;
use hapax_core::store::{Change, Lifetime, ListQuery, Put, Renewal, StoreErrorKind, Written};
use hapax_core::{Condition, State, StateFilter, Store};
use hapax_testkit::servers;

use crate::place::{self, claimed, complete, open, repeat};

async fn try_open(url: &str) -> Result<Redis, OpenError> {
    Redis::open(Options::best_effort(url)?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_evicts_is_refused_at_the_start() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let Some(server) = servers::Redis::start(&[("maxmemory-policy", policy)]) else {
            return;
        };
        let error = try_open(&server.url()).await.err().expect("refused");
        assert!(matches!(error, OpenError::Unfit { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(policy) && text.contains("noeviction"),
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_begins_to_evict_is_refused_by_the_next_connection() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    claimed(&store, "before").await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let error = loop {
        // The first call may meet the connection that was cut.
        match store.put_if(place::claim("after", 1)).await {
            Err(error) if error.to_string().contains("maxmemory-policy") => break error,
            Err(_) => {}
            Ok(written) => panic!("an evicting server was written to: {written:?}"),
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    claimed(&store, "after it was mended").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_can_lose_is_told() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let warnings = open(&server.url()).await.stats().warnings;
    let has = |part: &str| warnings.iter().any(|warning| warning.contains(part));
    assert!(has("append-only") && has("no replica"), "{warnings:?}");
    let settings = [("appendonly", "yes"), ("appendfsync", "always")];
    let Some(server) = servers::Redis::start(&settings) else {
        return;
    };
    let warnings = open(&server.url()).await.stats().warnings;
    assert_eq!(
        warnings.len(),
        1,
        "only that it has no replica: {warnings:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_no_writes_and_says_so() {
    let Some(master) = servers::Redis::start(&[]) else {
        return;
    };
    let port = master.port().to_string();
    let Some(replica) = servers::Redis::start(&[("replicaof", &format!("127.0.0.1 {port}"))])
    else {
        return;
    };
    in_sync(&replica).await;
    let error = try_open(&replica.url()).await.err().expect("refused");
    assert!(error.to_string().contains("replica"), "{error}");
}

/// Waits until a replica has everything that its master has.
async fn in_sync(replica: &servers::Redis) {
    let is_up = || {
        replica
            .cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    };
    let wait = async {
        while !is_up() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("in sync within a minute");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_survives_a_kill_of_a_server_that_saves_always() {
    let settings = [("appendonly", "yes"), ("appendfsync", "always")];
    let Some(mut server) = servers::Redis::start(&settings) else {
        return;
    };
    let store = open(&server.url()).await;
    for number in 0..20 {
        let head = claimed(&store, &format!("key-{number}")).await;
        complete(&store, &head, &format!("answer {number}")).await;
    }
    server.kill();
    server.restart();
    for number in 0..20 {
        let record = repeat(&store, &format!("key-{number}"))
            .await
            .expect("kept");
        assert_eq!(
            record.answer.expect("kept").body,
            format!("answer {number}")
        );
    }
    assert_eq!(store.stats().failovers, 1, "a restart is an alarm");
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_go_on_above_those_that_a_server_has_forgotten() {
    let Some(mut server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let before = claimed(&store, "a").await;
    server.kill();
    server.restart();
    let after = claimed(&store, "a").await;
    assert!(
        after.fence > before.fence,
        "{} after {}",
        after.fence,
        before.fence
    );
    assert_eq!(store.stats().failovers, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_a_server_has_forgotten_are_sent_again() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let head = claimed(&store, "a").await;
    server.cli(&["SCRIPT", "FLUSH"]);
    complete(&store, &head, "done").await;
    assert!(store.stats().sent_again >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_new_keys_and_loses_none() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let head = claimed(&store, "a").await;
    complete(&store, &head, "done").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = store.put_if(place::claim("b", 1)).await.expect_err("full");
    assert!(error.to_string().contains("full"), "{error}");
    let record = repeat(&store, "a").await.expect("kept");
    assert_eq!(record.answer.expect("kept").body, "done");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    claimed(&store, "b").await;
}

/// What is under way ends, and what makes room or order is not refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_takes_ends_renewals_sweeps_and_changes_by_hand() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let ends = claimed(&store, "ends").await;
    let goes_on = claimed(&store, "goes-on").await;
    let lapsed = place::lapsed(&store, "lapsed").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);

    complete(&store, &ends, "done").await;
    let renewal = Renewal {
        id: goes_on.id,
        fence: goes_on.fence,
        lease: Duration::from_secs(60),
    };
    assert_eq!(store.renew(vec![renewal]).await.expect("renew"), [true]);
    assert_eq!(store.sweep(10).await.expect("sweep").lost, 1);
    let seen = store.get(vec![lapsed]).await.expect("get").records;
    let version = seen[0].as_ref().expect("kept").head.version;
    let signed = Signed::new("grace", "it was tried").expect("signed");
    let forget = Put {
        id: lapsed,
        condition: Condition::Version { version },
        change: Change::Forget(Lifetime::default(), signed),
    };
    assert!(matches!(store.put_if(forget).await, Ok(Written::Won(_))));
    store
        .put_if(place::claim("new", 1))
        .await
        .expect_err("full");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_records_with_a_known_end_leave_by_themselves() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let running = claimed(&store, "running").await;
    let unknown = claimed(&store, "unknown").await;
    place::end(&store, &unknown, State::Unknown, None).await;
    let done = claimed(&store, "done").await;
    complete(&store, &done, "done").await;
    let ttl = |head: &hapax_core::Head| {
        let script = "return redis.call('PTTL', string.char(unpack(cjson.decode(ARGV[1]))))";
        let key = format!("{:?}", place::head_key(&head.id));
        let reply = server.cli(&["EVAL", script, "0", &key]);
        reply.trim().parse::<i64>().expect("a number")
    };
    assert_eq!((ttl(&running), ttl(&unknown)), (-1, -1), "no end is known");
    let week = Duration::from_secs(7 * 24 * 60 * 60).as_millis() as i64;
    assert!(ttl(&done) > week, "retention and tombstone");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_records_are_capped() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let mut options = Options::best_effort(&server.url()).expect("an address");
    // One for each partition.
    options.open_records_max = 64;
    let store = Redis::open(options).await.expect("a server");
    let mut refused = 0;
    for number in 0..200 {
        match store.put_if(place::claim(&number.to_string(), 1)).await {
            Ok(_) => {}
            Err(error) => {
                assert!(error.to_string().contains("open_records_max"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 200 - 64, "{refused} were refused");
    let query = ListQuery {
        state: Some(StateFilter::Running),
        limit: 1000,
        ..ListQuery::default()
    };
    let running = store.list(query).await.expect("list").len();
    assert_eq!(running, 200 - refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_wait_for_replicas_if_asked_to() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let mut options = Options::best_effort(&server.url()).expect("an address");
    options.replicas = 1;
    options.replica_timeout = Duration::from_millis(50);
    let error = Redis::open(options.clone())
        .await
        .err()
        .expect("no replica");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    let port = server.port().to_string();
    let Some(replica) = servers::Redis::start(&[("replicaof", &format!("127.0.0.1 {port}"))])
    else {
        return;
    };
    in_sync(&replica).await;
    options.replica_timeout = Duration::from_secs(10);
    let store = Redis::open(options).await.expect("a replica confirms");
    let head = claimed(&store, "a").await;
    let copied = replica.cli(&["EVAL", "return #redis.call('KEYS', 'hapax:*:h:*')", "0"]);
    assert!(copied.contains('1'), "the replica has it already: {copied}");
    complete(&store, &head, "done").await;
}

/// Without a closed connection: the machine is gone, not only its process.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_falls_silent_is_left_for_its_successor() {
    let Some(group) = servers::RedisSentinel::start(&[]) else {
        return;
    };
    let store = open(&group.url()).await;
    claimed(&store, "before").await;
    group.redis(group.master()).pause();
    group.wait_for_failover();
    claimed(&store, "after").await;
    assert_eq!(store.stats().failovers, 1, "a failover is an alarm");
}
