//! Keys that are not in a header field, and limits that refuse new keys but not old ones.

use std::time::Duration;

use hapax::{KeyRule, KeySource, Part, Policy, Velocity};

use super::{Row, Says, deferred, rejected};
use crate::client::{post, without_key};

const HOUR: Duration = Duration::from_secs(60 * 60);

pub fn rows() -> Vec<Row> {
    vec![
        Row::new("key in the body, repeated", 201, Says::Replay, 1)
            .policy(in_body)
            .by(async |world| {
                let body = r#"{"token": "k", "amount": 5}"#;
                world.send(without_key("/do", body)).await;
                world.send(without_key("/do", body)).await
            }),
        rejected("no key in the body", 400, "key-missing", 0)
            .policy(in_body)
            .by(async |world| world.send(without_key("/do", r#"{"amount": 5}"#)).await),
        rejected("two keys in the body", 400, "key-malformed", 0)
            .policy(in_body)
            .by(async |world| {
                world
                    .send(without_key("/do", r#"{"token": "a", "token": "b"}"#))
                    .await
            }),
        Row::new("derived key, repeated", 201, Says::Replay, 1)
            .policy(derived)
            .by(async |world| {
                world.send(without_key("/do", r#"{"amount": 5}"#)).await;
                world.send(without_key("/do", r#"{"amount": 5}"#)).await
            }),
        rejected("derived key, the rest another", 422, "key-reused", 1)
            .policy(derived)
            .by(async |world| {
                world.send(without_key("/do", r#"{"amount": 5}"#)).await;
                world
                    .send(without_key("/do", r#"{"amount": 5, "for": "tea"}"#))
                    .await
            }),
        rejected("key that can be guessed", 400, "key-guessable", 0)
            .policy(|policy| policy.key_bits_min = 64)
            .by(async |world| world.send(post("order-17", "charge")).await),
        deferred("too many new keys in a time", 429, "too-many-keys", 1)
            .policy(one_in_an_hour)
            .by(async |world| {
                world.send(post("k", "charge")).await;
                world.send(post("another", "charge")).await
            }),
        Row::new(
            "too many new keys in a time, and a repeat",
            201,
            Says::Replay,
            1,
        )
        .policy(one_in_an_hour)
        .by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("another", "charge")).await;
            world.send(post("k", "charge")).await
        }),
        deferred("no room for the body", 503, "buffer-full", 1)
            .config(|config| config.limits.buffered_memory_bytes_per_peer_max = Some(8))
            .by(async |world| {
                world.begin(post("k", "wait")).await;
                world.send(post("another", "charge")).await
            }),
        rejected(
            "more records than a principal may have",
            429,
            "quota-reached",
            1,
        )
        .config(|config| config.limits.records_per_principal_max = Some(1))
        .by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("another", "charge")).await
        }),
        deferred(
            "as many records as the store may have",
            429,
            "quota-reached",
            1,
        )
        .config(|config| config.limits.records_max = 1)
        .by(async |world| {
            world.send(post("k", "charge")).await;
            world.send(post("another", "charge")).await
        }),
    ]
}

fn in_body(policy: &mut Policy) {
    policy.key = KeyRule::Required;
    policy.key_source = KeySource::Body("/token".parse().unwrap());
}

fn derived(policy: &mut Policy) {
    policy.key_source = KeySource::Derived(vec![Part::Body("/amount".parse().unwrap())]);
    (policy.retention, policy.tombstone) = (HOUR, Duration::ZERO);
}

fn one_in_an_hour(policy: &mut Policy) {
    policy.velocity = vec![Velocity {
        by: Part::Principal,
        keys: 1,
        per: HOUR,
    }];
}
