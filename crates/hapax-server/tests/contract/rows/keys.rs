//! What is checked before the store is called: the key, the principal, the deadline, the body.

use std::time::Duration;

use hapax::{KeyRule, Policy, Principal};

use super::{Row, Says, rejected};
use crate::client::{Stalled, post, without_key};
use crate::harness::With;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub fn rows() -> Vec<Row> {
    let issued = |policy: &mut Policy| policy.key = KeyRule::Issued;
    let rejected = |name, status, code| rejected(name, status, code, 0);
    vec![
        rejected("required key missing", 400, "key-missing")
            .policy(|policy| policy.key = KeyRule::Required)
            .by(async |world| world.send(without_key("/do", "201")).await),
        rejected("issued key missing", 400, "key-missing")
            .policy(issued)
            .by(async |world| world.send(without_key("/do", "")).await),
        rejected("key malformed", 400, "key-malformed")
            .by(async |world| world.send(post("a b", "charge")).await),
        rejected("key empty", 400, "key-malformed")
            .by(async |world| world.send(post("", "charge")).await),
        rejected("key a list", 400, "key-malformed")
            .by(async |world| world.send(post("\"a\", \"b\"", "charge")).await),
        rejected("key with a parameter", 400, "key-malformed")
            .by(async |world| world.send(post("\"a\";v=1", "charge")).await),
        rejected("key too long", 400, "key-malformed")
            .by(async |world| world.send(post(&"k".repeat(256), "charge")).await),
        rejected("key repeated", 400, "key-malformed").by(async |world| {
            world
                .send(post("a", "charge").with("idempotency-key", "a"))
                .await
        }),
        rejected("bare key on a strict route", 400, "key-malformed")
            .policy(|policy| policy.strict_key = true)
            .by(async |world| world.send(post("a", "charge")).await),
        rejected("gRPC with a key", 415, "grpc-not-guarded").by(async |world| {
            world
                .send(post("k", "charge").with("content-type", "application/grpc+proto"))
                .await
        }),
        rejected("gRPC where a key is required", 415, "grpc-not-guarded")
            .policy(|policy| policy.key = KeyRule::Required)
            .by(async |world| {
                world
                    .send(without_key("/do", "charge").with("content-type", "application/grpc"))
                    .await
            }),
        Row::new("gRPC without a key", 201, Says::Passed, 1).by(async |world| {
            world
                .send(without_key("/do", "charge").with("content-type", "application/grpc"))
                .await
        }),
        Row::new("JSON built anew, repeated", 201, Says::Replay, 1).by(async |world| {
            let json = |body| post("k", body).with("content-type", "application/json");
            world
                .send(json("{\"amount\": 1, \"currency\": \"EUR\"}"))
                .await;
            world
                .send(json("{\"currency\":\"EUR\",\"amount\":1}"))
                .await
        }),
        super::rejected("JSON with another value", 422, "key-reused", 1).by(async |world| {
            let json = |body| post("k", body).with("content-type", "application/json");
            world.send(json("{\"amount\": 1}")).await;
            world.send(json("{\"amount\": 2}")).await
        }),
        rejected("key in the URL", 400, "key-in-url")
            .by(async |world| world.send(without_key("/do?idempotency_key=a", "")).await),
        rejected(
            "key in the URL under another name, percent-encoded",
            400,
            "key-in-url",
        )
        .by(async |world| world.send(without_key("/do?a=b&Id%65m=a", "")).await),
        rejected("token forged", 400, "token-invalid")
            .policy(issued)
            .by(async |world| world.send(post("made-up", "charge")).await),
        rejected("token of somebody else", 400, "token-invalid")
            .policy(issued)
            .by(async |world| {
                let token = world
                    .hapax()
                    .issue(&Principal::Anonymous, DAY)
                    .await
                    .unwrap();
                world
                    .send(post(token.as_str(), "charge").bearer("ada"))
                    .await
            }),
        rejected("token past its life", 410, "key-expired")
            .policy(issued)
            .by(async |world| {
                let token = world
                    .hapax()
                    .issue(&Principal::Anonymous, Duration::ZERO)
                    .await
                    .unwrap();
                world.send(post(token.as_str(), "charge")).await
            }),
        Row::new("token issued to whom it was sent by", 201, Says::First, 1)
            .policy(issued)
            .by(async |world| {
                let token = world
                    .hapax()
                    .issue(&Principal::Anonymous, DAY)
                    .await
                    .unwrap();
                world.send(post(token.as_str(), "charge")).await
            }),
        rejected(
            "credentials elsewhere than expected",
            400,
            "principal-missing",
        )
        .by(async |world| {
            world
                .send(post("k", "charge").with("x-api-key", "secret"))
                .await
        }),
        rejected(
            "credentials that change with each request",
            400,
            "principal-missing",
        )
        .by(async |world| {
            world
                .send(post("k", "charge").with("authorization", "Signature keyId=\"a\""))
                .await
        }),
        rejected("deadline malformed", 400, "deadline-malformed").by(async |world| {
            world
                .send(post("k", "charge").with("idempotency-deadline", "tomorrow"))
                .await
        }),
        rejected("deadline repeated", 400, "deadline-malformed").by(async |world| {
            let request = post("k", "charge").with("idempotency-deadline", "@1893456000");
            world
                .send(request.with("idempotency-deadline", "@1893456000"))
                .await
        }),
        rejected("deadline passed", 412, "deadline-passed").by(async |world| {
            world
                .send(post("k", "charge").with("idempotency-deadline", "@1700000000"))
                .await
        }),
        rejected("body too large", 413, "body-too-large")
            .policy(|policy| (policy.body_memory_bytes_max, policy.body_bytes_max) = (4, 8))
            .by(async |world| world.send(post("k", "123456789")).await),
        rejected("body too large and not yet over", 413, "body-too-large")
            .policy(|policy| (policy.body_memory_bytes_max, policy.body_bytes_max) = (4, 8))
            .by(async |world| {
                world
                    .send(post("k", "").map(|_| Stalled::after("123456789")))
                    .await
            }),
        rejected("body that stalls", 400, "body-unreadable")
            .config(|config| config.timeouts.stall = Duration::from_millis(100))
            .by(async |world| {
                world
                    .send(post("k", "").map(|_| Stalled::after("char")))
                    .await
            }),
        Row::new("another field for the key", 201, Says::Replay, 1)
            .policy(|policy| {
                (policy.key, policy.key_field) = (KeyRule::Required, "paypal-request-id".into());
            })
            .by(async |world| {
                let request = || without_key("/do", "charge").with("paypal-request-id", "k");
                world.send(request()).await;
                world.send(request()).await
            }),
    ]
}
