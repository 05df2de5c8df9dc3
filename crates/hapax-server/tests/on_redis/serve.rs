//! `hapax serve` on a Redis.

use std::thread;
use std::time::{Duration, Instant};

use hapax_testkit::origin::{Origin, Step, answer};
use hapax_testkit::servers::{Redis, RedisCluster, RedisSentinel};

use super::harness::{Program, metric, replace, said, send, serve_command};
use super::{gateway, hapax, is_first, is_replay, serving};

/// Requests with one key at the same time.
const RETRIES: usize = 100;

/// Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);

/// Of two gateways on a cluster, with keys of every master.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_serves_gateways_as_one_server_does() {
    let Some(cluster) = RedisCluster::start(false, &[]) else {
        return;
    };
    let upstream = Origin::start().await;
    let nodes = [
        gateway(&cluster.url(), &upstream),
        gateway(&cluster.url(), &upstream),
    ];
    let keys: Vec<String> = (0..20).map(|number| format!("order-{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        assert!(
            is_first(&nodes[number % 2].charge(key, b"amount=1")),
            "{key}"
        );
        for node in &nodes {
            assert!(is_replay(&node.charge(key, b"amount=1")), "{key}");
            let reused = node.charge(key, b"amount=2");
            assert!(reused.starts_with("HTTP/1.1 422"), "{reused}");
        }
    }
    for key in &keys {
        assert_eq!(upstream.ledger().count(key), 1, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_has_done_it_and_another_replay() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Origin::start().await;
    let (one, other) = (
        gateway(&redis.url(), &upstream),
        gateway(&redis.url(), &upstream),
    );
    assert!(is_first(&one.charge("order-1", b"amount=1")));
    for node in [&one, &other] {
        assert!(is_replay(&node.charge("order-1", b"amount=1")));
        let reused = node.charge("order-1", b"amount=2");
        assert!(reused.starts_with("HTTP/1.1 422"), "{reused}");
        assert!(node.ask("/readyz").starts_with("HTTP/1.1 200"));
    }
    assert_eq!(upstream.ledger().count("order-1"), 1);

    let metrics = one.ask("/metrics");
    for (name, is_expected) in [
        ("failing", (|n| n == 0.0) as fn(f64) -> bool),
        ("failovers_total", |n| n == 0.0),
        ("unreplicated_total", |n| n == 0.0),
        ("calls_total", |n| n >= 2.0),
        ("connections_made_total", |n| n >= 1.0),
        // It has neither an append-only file nor a replica.
        ("warnings", |n| n == 2.0),
    ] {
        let value = metric(&metrics, &format!("hapax_redis_{name}"));
        assert!(is_expected(value), "{name} is {value}");
    }
    assert!(!metrics.contains("hapax_sqlite"), "{metrics}");
    let said = one.end();
    for part in [
        "best effort: what Redis loses",
        "Set appendonly yes",
        "it has no replica",
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}

/// All but one wait for the answer of that one, on whichever node they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_retries_at_once_have_one_effect() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Origin::start().await;
    upstream.script([
        Step::Read,
        Step::Wait,
        Step::Write(answer(200, "", "charged")),
    ]);
    let nodes = [(); 2].map(|()| {
        let mut command = serving(&redis.url(), &upstream);
        Program::serve(command.env("HAPAX__DEFAULTS__WAIT", "30s"))
    });
    let answers: Vec<String> = thread::scope(|scope| {
        let retry = |number: usize| {
            let to = nodes[number % nodes.len()].clients;
            scope.spawn(move || send(to, "POST /charges", "order-1", b"amount=1"))
        };
        let retries: Vec<_> = (0..RETRIES).map(retry).collect();
        let waiting = || -> f64 {
            let waits = |node: &Program| metric(&node.ask("/metrics"), "hapax_waits_total");
            nodes.iter().map(waits).sum()
        };
        let until = Instant::now() + GUARD;
        while waiting() < (RETRIES - 1) as f64 {
            assert!(Instant::now() < until, "only {} wait", waiting());
        }
        upstream.go();
        { retries.into_iter() }
            .map(|retry| retry.join().unwrap())
            .collect()
    });
    let firsts = answers.iter().filter(|answer| is_first(answer)).count();
    let replays = answers.iter().filter(|answer| is_replay(answer)).count();
    assert_eq!((firsts, replays), (1, RETRIES - 1), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.ends_with("charged")));
    assert_eq!(upstream.ledger().count("order-1"), 1);
    assert_eq!(upstream.ledger().all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_replicas_a_write_counts_when_they_have_it() {
    let (Some(group), Some(alone)) = (RedisSentinel::start(&[]), Redis::start(&[])) else {
        return;
    };
    let upstream = Origin::start().await;
    let with_replicas = |url: &str| {
        let mut command = serving(url, &upstream);
        command.env("HAPAX__REPLICAS", "1");
        command
    };
    let gateway = Program::serve(&mut with_replicas(&group.url()));
    assert!(is_first(&gateway.charge("order-1", b"amount=1")));
    assert!(is_replay(&gateway.charge("order-1", b"amount=1")));
    let metrics = gateway.ask("/metrics");
    assert!(metric(&metrics, "hapax_redis_unreplicated_total") == 0.0);
    assert_eq!(upstream.ledger().count("order-1"), 1);

    let refused = said(&mut with_replicas(&alone.url()));
    refused.assert_code(3);
    refused.assert_told("0 of 1 replicas have confirmed a write in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_gets_in_and_is_never_shown() {
    let Some(redis) = Redis::start(&[("requirepass", "s3cr3t")]) else {
        return;
    };
    let upstream = Origin::start().await;
    let (right, wrong) = (redis.url(), redis.url().replace("s3cr3t", "wr0ng"));
    let refused = said(&mut serving(&wrong, &upstream));
    refused.assert_code(3);
    refused.assert_told("could not open the store redis://:***@");
    assert!(!refused.stderr.contains("wr0ng"), "{}", refused.stderr);

    let directory = tempfile::tempdir().unwrap();
    let settings = |url: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"{url}\"\n\
             durability = \"best-effort\"\n[upstream]\nurl = \"http://{}\"\n",
            upstream.address()
        )
    };
    let gateway = Program::serve(&mut serve_command(directory.path(), &settings(&right)));
    assert!(is_first(&gateway.charge("order-1", b"amount=1")));
    // A changed password counts as another store, which needs a restart.
    let config = directory.path().join("hapax.toml");
    replace(&config, &settings(&wrong));
    let reloaded = hapax(&["reload", "--admin", &format!("http://{}", gateway.admin)]);
    reloaded.assert_code(1);
    reloaded.assert_told("`store` changed");
    let mut shown = reloaded.stdout + &reloaded.stderr;
    for command in [
        &["config", "print"][..],
        &["config", "print", "--json"],
        &["config", "explain", "POST", "/"],
    ] {
        let printed = hapax(&[command, &["--config", config.to_str().unwrap()]].concat());
        printed.assert_code(0);
        shown += &(printed.stdout + &printed.stderr);
    }
    shown += &hapax(&["keys", "list", "--store", &right]).stderr;
    shown += &gateway.end();
    assert!(
        !shown.contains("s3cr3t") && !shown.contains("wr0ng"),
        "{shown}"
    );
}
