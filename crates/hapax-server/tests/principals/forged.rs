//! Forged credentials through the gateway: what they leave behind, and which callers they affect.

use std::path::Path;
use std::time::Duration;

use hapax::{Part, Policy, Velocity};
use hapax_server::config::{Config, PrincipalSource, StoreUrl};
use http::header::AUTHORIZATION;

use crate::harness::{Answer, Client, ClientRequest, With, post};
use crate::world::World;

const REFUSED_MAX: u64 = 100;

fn limited(config: &mut Config, directory: &Path) {
    config.store = StoreUrl::Sqlite(directory.join("hapax.db"));
    config.limits.refused_records_max = REFUSED_MAX;
}

/// The service accepts every token except those that begin with `forged`.
fn pay(token: &str, key: usize) -> ClientRequest {
    post("/v1/charges", "")
        .bearer(token)
        .key(&format!("key-{key}"))
}

async fn attack(client: &Client, count: usize) -> Vec<Answer> {
    let mut answers = Vec::new();
    for key in 0..count {
        answers.push(client.send(pay(&format!("forged-{key}"), key)).await);
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_fill_no_store_and_hold_up_nobody_else() {
    let world = World::start(limited).await;
    let (mallory, others) = (
        world.client(false).from("127.0.0.2"),
        world.client(false).from("127.0.0.3"),
    );
    assert_eq!(mallory.send(pay("ann", 0)).await.status, 201);
    let answers = attack(&mallory, 300).await;
    let refused = answers.iter().filter(|got| got.status == 401).count() as u64;
    assert_eq!(refused, REFUSED_MAX, "{:?}", answers.last());
    assert_eq!(world.records().await, REFUSED_MAX + 1);

    assert_eq!(
        others.send(pay("bob", 0)).await.status,
        201,
        "a new caller of another client"
    );
    assert_eq!(
        mallory.send(pay("ann", 1)).await.status,
        201,
        "a known one, at the attacker's address"
    );
    let new = mallory.send(pay("carol", 0)).await;
    assert!(
        new.status == 429 && new.text().contains("too-many-keys"),
        "{new:?}"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_count_for_the_client_that_sends_them() {
    let limit = Velocity {
        by: Part::Principal,
        keys: 10,
        per: Duration::from_secs(3600),
    };
    for (source, counted) in [
        (PrincipalSource::Digest(AUTHORIZATION), 10),
        (PrincipalSource::Header(AUTHORIZATION), 50),
    ] {
        let world = World::start(|config, _| {
            config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
            config.principal = source.into();
            config.defaults = Policy {
                velocity: vec![limit.clone()],
                ..config.defaults.clone()
            };
        })
        .await;
        let (mallory, others) = (
            world.client(false).from("127.0.0.2"),
            world.client(false).from("127.0.0.3"),
        );
        let answers = attack(&mallory, 50).await;
        assert_eq!(
            answers.iter().filter(|got| got.status == 401).count(),
            counted,
            "who was checked counts for themselves"
        );
        assert_eq!(others.send(pay("bob", 0)).await.status, 201);
        world.end().await;
    }
}
