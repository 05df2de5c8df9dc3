//! Requests while the store is full, damaged or replaced, and while the gateway is draining.

use std::time::Duration;

use hapax::Policy;

use super::{Row, Says, deferred, rejected};
use crate::client::post;
use crate::harness::With;

fn hasty(policy: &mut Policy) {
    policy.store_timeout = Duration::from_secs(1);
}

pub fn rows() -> Vec<Row> {
    vec![
        deferred("store unreachable", 503, "store-unavailable", 0)
            .policy(hasty)
            .on_small_disk()
            .by(async |world| {
                world.fill_disk().await;
                world.send(post("k", "charge")).await
            }),
        deferred("store lost after dispatch", 503, "store-unavailable", 1)
            .policy(hasty)
            .on_small_disk()
            .by(async |world| {
                world.begin(post("k", "wait, then much")).await;
                world.fill_disk().await;
                world.go_on().await
            }),
        Row::new(
            "store lost after dispatch, repeated when it is back",
            200,
            Says::Replay,
            1,
        )
        .policy(hasty)
        .on_small_disk()
        .by(async |world| {
            world.begin(post("k", "wait, then much")).await;
            world.fill_disk().await;
            assert_eq!(world.go_on().await.status, 503);
            world.free_disk();
            world
                .send_until(
                    || post("k", "wait, then much").with("prefer", "wait"),
                    |got| got.status == 200,
                )
                .await
        }),
        Row::new("store unreachable, failing open", 201, Says::Passed, 1)
            .policy(|policy| {
                hasty(policy);
                (policy.naturally_idempotent, policy.fail_open) = (true, true);
            })
            .on_small_disk()
            .by(async |world| {
                world.fill_disk().await;
                world.send(post("k", "charge")).await
            }),
        rejected("answer damaged", 500, "answer-corrupt", 1).by_worlds(async |world| {
            assert_eq!(world.send(post("k", "charge")).await.status, 201);
            let way = world.way();
            let world = world
                .restart(way, |path| {
                    let file = rusqlite::Connection::open(path).unwrap();
                    let changed = file
                        .execute(
                            "UPDATE answers SET content = CAST(content || x'00' AS BLOB)",
                            [],
                        )
                        .unwrap();
                    assert_eq!(changed, 1);
                })
                .await;
            let got = world.send(post("k", "charge")).await;
            (world, got)
        }),
        Row::new("repeat after a restart", 201, Says::Replay, 1).by_worlds(async |world| {
            assert_eq!(world.send(post("k", "charge")).await.status, 201);
            let way = world.way();
            let world = world.restart(way, |_| ()).await;
            let got = world.send(post("k", "charge")).await;
            (world, got)
        }),
        deferred("node shutting down", 503, "draining", 0).by(async |world| {
            world.hapax().drain(Duration::ZERO).await;
            world.send(post("k", "charge")).await
        }),
    ]
}
