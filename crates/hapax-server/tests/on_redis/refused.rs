//! What is refused, and what the program says to do.

use std::path::Path;

use hapax_server::gateway::{Gateway, StartError};
use hapax_testkit::servers::{Port, Redis};

use super::hapax;
use super::harness::{SERVE, Said, config, said, words};

const UPSTREAM: [&str; 2] = ["--upstream", "http://127.0.0.1:1"];

fn serve(url: &str, durability: &[(&str, &str)]) -> Said {
    let mut command = super::harness::hapax();
    command.args(SERVE).args(UPSTREAM).args(["--store", url]);
    said(command.envs(durability.iter().copied()))
}

const BEST_EFFORT: [(&str, &str); 1] = [("HAPAX__DURABILITY", "best-effort")];

#[test]
fn a_start_without_a_durability_says_what_redis_may_lose_and_what_to_write() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let refused = serve(&redis.url(), &[]);
    refused.assert_code(2);
    for part in [
        "may lose its latest records in a crash or a failover",
        "durability = \"best-effort\"",
        "HAPAX__DURABILITY=best-effort",
        "postgres://",
    ] {
        refused.assert_told(part);
    }
    // Whoever only looks at keys loses none.
    hapax(&["keys", "list", "--store", &redis.url()]).assert_told("there are no keys here");
}

/// A gateway inside another program has no file in which a mistake could have been found.
#[tokio::test]
async fn a_gateway_in_this_process_needs_a_durability_too() {
    let mut config = config(([127, 0, 0, 1], 1).into());
    config.store = "redis://127.0.0.1:1".parse().unwrap();
    let refused = Gateway::start(config).await.err().expect("a mistake");
    assert!(
        matches!(&refused, StartError::Setting(why) if why.starts_with("store: a Redis may lose")),
        "{refused}"
    );
}

#[test]
fn a_redis_that_evicts_is_not_used() {
    let Some(redis) = Redis::start(&[("maxmemory-policy", "allkeys-lru")]) else {
        return;
    };
    let url = redis.url();
    for refused in [
        serve(&url, &BEST_EFFORT),
        hapax(&["keys", "list", "--store", &url]),
        hapax(&["store", "check", &url]),
        hapax(&["store", "copy", &url, "sqlite:none.db"]),
    ] {
        refused.assert_code(2);
        refused.assert_told("its maxmemory-policy is allkeys-lru");
        refused.assert_told("set maxmemory-policy noeviction");
    }
    assert!(!Path::new("none.db").exists());
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    hapax(&["keys", "list", "--store", &url]).assert_told("there are no keys here");
}

#[test]
fn a_redis_that_is_not_there_is_named() {
    let port = Port::free();
    let nowhere = format!("redis://{}", port.address());
    for refused in [
        serve(&nowhere, &BEST_EFFORT),
        hapax(&["keys", "list", "--store", &nowhere]),
        hapax(&["store", "check", &nowhere]),
        hapax(&["store", "copy", &nowhere, "sqlite:none.db"]),
    ] {
        refused.assert_code(3);
        refused.assert_told("could not open the store");
        refused.assert_told(&port.address().to_string());
    }
    assert!(!Path::new("none.db").exists());
}

#[test]
fn what_a_redis_does_not_need_says_why() {
    for (command, parts) in [
        (
            "store backup copy.db --store redis://:s3cr3t@cache",
            ["Redis' own tools", "after a restore"],
        ),
        (
            "migrate --store redis://:s3cr3t@cache",
            ["needs no migration", "postgres://"],
        ),
        (
            "sweep --store redis://:s3cr3t@cache",
            ["needs no sweep", "by itself"],
        ),
    ] {
        let said = hapax(&words(command));
        said.assert_lines(2, 0);
        for part in parts {
            said.assert_told(part);
        }
        assert!(!said.stderr.contains("s3cr3t"), "{}", said.stderr);
    }
    assert!(!Path::new("copy.db").exists());
}
