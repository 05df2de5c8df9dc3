//! What a repeat gets: while the first request runs, after it, and long after.

use std::time::Duration;

use hapax::core::record::State;
use hapax::{Audit, Policy};

use super::{Row, Says, deferred, rejected};
use crate::client::post;
use crate::harness::With;
use crate::upstream::MUCH_BYTES;

/// The shortest lease that works on a busy machine.
const MOMENT: Duration = Duration::from_millis(400);

/// Sets a very short retention and lease.
fn brief(policy: &mut Policy) {
    (policy.retention, policy.lease) = (MOMENT, MOMENT);
}

pub fn rows() -> Vec<Row> {
    vec![
        Row::new("first", 201, Says::First, 1)
            .by(async |world| world.send(post("k", "charge")).await),
        Row::new("repeat", 201, Says::Replay, 1).by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("k", "charge")).await
        }),
        Row::new("repeat with the key quoted", 201, Says::Replay, 1).by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("\"k\"", "charge")).await
        }),
        Row::new("repeat past the deadline", 201, Says::Replay, 1).by(async |world| {
            world.send(post("k", "charge")).await;
            world
                .send(post("k", "charge").with("idempotency-deadline", "@1700000000"))
                .await
        }),
        Row::new(
            "repeat on a route that replays cookies",
            201,
            Says::Replay,
            1,
        )
        .policy(|policy| policy.replay_cookies = true)
        .by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("k", "charge")).await
        }),
        Row::new("the same key by somebody else", 201, Says::First, 2).by(async |world| {
            world.send(post("k", "charge").bearer("ada")).await;
            world.send(post("k", "charge").bearer("bob")).await
        }),
        deferred("still running", 409, "in-flight", 1).by(async |world| {
            world.begin(post("k", "wait")).await;
            world.send(post("k", "wait")).await
        }),
        deferred("still running after a wait", 409, "in-flight", 1)
            .policy(|policy| policy.wait = Duration::from_millis(20))
            .by(async |world| {
                world.begin(post("k", "wait")).await;
                world.wait_with(post("k", "wait")).await.await.unwrap()
            }),
        deferred("just ended retryable", 409, "in-flight", 1).by(async |world| {
            world.begin(post("k", "wait, then 503")).await;
            let waiter = world
                .wait_with(post("k", "wait, then 503").with("prefer", "wait=30"))
                .await;
            assert_eq!(world.go_on().await.status, 503);
            waiter.await.unwrap()
        }),
        Row::new("waited for, as the caller prefers", 201, Says::Replay, 1).by(async |world| {
            world.begin(post("k", "wait")).await;
            let waiter = world
                .wait_with(post("k", "wait").with("prefer", "wait"))
                .await;
            assert!(!world.go_on().await.is_replay());
            waiter.await.unwrap()
        }),
        Row::new("waited for, as the route says", 201, Says::Replay, 1)
            .policy(|policy| policy.wait = Duration::from_secs(30))
            .by(async |world| {
                world.begin(post("k", "wait")).await;
                let waiter = world.wait_with(post("k", "wait")).await;
                world.go_on().await;
                waiter.await.unwrap()
            }),
        rejected("same key, other request", 422, "key-reused", 1).by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("k", "another")).await
        }),
        rejected(
            "same key, other request, still running",
            422,
            "key-reused",
            1,
        )
        .by(async |world| {
            world.begin(post("k", "wait")).await;
            world
                .send(post("k", "another").with("prefer", "wait"))
                .await
        }),
        rejected("outcome unknown", 409, "outcome-unknown", 1).by(async |world| {
            world.send(post("k", "502")).await;
            world.send(post("k", "502")).await
        }),
        rejected(
            "outcome unknown and past retention",
            409,
            "outcome-unknown",
            1,
        )
        .policy(brief)
        .by(async |world| {
            world.send(post("k", "502")).await;
            while !matches!(world.state().await, State::Expired(_)) {
                tokio::task::yield_now().await;
            }
            world.send(post("k", "502")).await
        }),
        rejected(
            "answer not kept, as the upstream wishes",
            409,
            "answer-not-kept",
            1,
        )
        .by(async |world| {
            assert_eq!(world.send(post("k", "forget it")).await.status, 201);
            world.send(post("k", "forget it")).await
        }),
        rejected("answer not kept, for its size", 409, "answer-not-kept", 1)
            .policy(|policy| policy.answer_bytes_max = MUCH_BYTES - 1)
            .by(async |world| {
                assert_eq!(world.send(post("k", "much")).await.body.len(), MUCH_BYTES);
                world.send(post("k", "much")).await
            }),
        rejected("answer not kept, by the route", 409, "answer-not-kept", 1)
            .policy(|policy| policy.keep_answers = false)
            .by(async |world| {
                assert_eq!(world.send(post("k", "404")).await.status, 404);
                world.send(post("k", "404")).await
            }),
        rejected("tried too often", 409, "attempts-exhausted", 1)
            .policy(|policy| policy.attempts_max = 1)
            .by(async |world| {
                assert_eq!(world.send(post("k", "503")).await.status, 503);
                world.send(post("k", "503")).await
            }),
        rejected("past its retention", 410, "key-expired", 1)
            .policy(brief)
            .by(async |world| {
                assert_eq!(world.send(post("k", "charge")).await.status, 201);
                world
                    .send_until(|| post("k", "charge"), |got| got.status != 201)
                    .await
            }),
        rejected("refused, and past its retention", 410, "key-expired", 1)
            .policy(brief)
            .by(async |world| {
                assert_eq!(world.send(post("k", "404")).await.status, 404);
                world
                    .send_until(|| post("k", "404"), |got| got.status != 404)
                    .await
            }),
        rejected("forgotten", 410, "key-expired", 1).by(async |world| {
            world.send(post("k", "charge")).await;
            let heads = world
                .hapax()
                .list(hapax::core::store::ListQuery {
                    state: None,
                    after: None,
                    limit: 1,
                })
                .await
                .unwrap();
            world
                .hapax()
                .forget(
                    heads[0].id,
                    Audit {
                        by: "ada",
                        reason: "it was asked for",
                    },
                )
                .await
                .unwrap();
            world.send(post("k", "another")).await
        }),
        deferred("too many operations", 429, "too-many-keys", 1)
            .config(|config| config.limits.attempts_in_flight_max = 1)
            .by(async |world| {
                world.begin(post("k", "wait")).await;
                world.send(post("another", "charge")).await
            }),
    ]
}
