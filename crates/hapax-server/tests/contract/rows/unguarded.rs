//! Requests that are not guarded, and those that the gateway answers itself.

use std::time::Duration;

use bytes::Bytes;
use hapax::{KeyRule, Mode, Policy};
use hapax_server::config::Route;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};

use super::upstream::{impatient, nobody};
use super::{Row, Says};
use crate::client::{post, without_key};
use crate::harness::{ClientRequest, With};
use crate::world::everywhere;

fn get(target: &str) -> ClientRequest {
    Request::get(target)
        .body(Empty::<Bytes>::new().boxed())
        .unwrap()
}

/// A route with few settings left at their defaults.
fn charges() -> Route {
    let policy = Policy {
        mode: Mode::Rerun,
        key: KeyRule::Required,
        key_field: "x-request-token".into(),
        retention: Duration::from_secs(3600),
        lease: Duration::from_millis(2500),
        wait: Duration::from_secs(5),
        ..Policy::default()
    };
    Route {
        name: "charges".into(),
        methods: vec![Method::POST],
        pattern: "/v1/charges/{id}".parse().unwrap(),
        ..Route::everywhere(policy)
    }
}

pub fn rows() -> Vec<Row> {
    let problem =
        |name, status, code, effects| Row::new(name, status, Says::Problem(code), effects);
    vec![
        Row::new("no key, and none required", 201, Says::Passed, 2).by(async |world| {
            world.send(without_key("/do", "charge")).await;
            world.send(without_key("/do", "charge")).await
        }),
        Row::new("key on a route that ignores keys", 201, Says::Passed, 2)
            .policy(|policy| policy.key = KeyRule::Off)
            .by(async |world| {
                world.send(post("k", "charge")).await;
                world.send(post("k", "charge")).await
            }),
        Row::new("method that is not guarded", 201, Says::Passed, 2).by(async |world| {
            world.send(get("/do").with("idempotency-key", "k")).await;
            world.send(get("/do").with("idempotency-key", "k")).await
        }),
        Row::new("key in a field that is not read", 201, Says::Passed, 1).by(async |world| {
            world
                .send(without_key("/do", "charge").with("x-idempotency-key", "k"))
                .await
        }),
        problem(
            "upstream never reached, unguarded",
            502,
            "upstream-unreachable",
            0,
        )
        .config(nobody)
        .by(async |world| world.send(without_key("/do", "charge")).await),
        problem("upstream broke off, unguarded", 502, "upstream-failed", 1)
            .by(async |world| world.send(without_key("/do", "break off")).await),
        problem(
            "upstream broke off, by a method that is not guarded",
            502,
            "upstream-failed",
            1,
        )
        .by(async |world| {
            let mut request = post("k", "break off");
            *request.method_mut() = Method::PUT;
            world.send(request).await
        }),
        problem("upstream timed out, unguarded", 504, "upstream-timeout", 1)
            .config(impatient)
            .by(async |world| world.send(without_key("/do", "hang")).await),
        problem(
            "path that may be read as one with other rules",
            400,
            "path-ambiguous",
            0,
        )
        .config(|config| config.routes = vec![charges()])
        .by(async |world| world.send(without_key("/v1//charges/7", "charge")).await),
        Row::new("what is published", 200, Says::Passed, 0)
            .by(async |world| world.send(get("/.well-known/idempotency")).await),
        Row::new("what is published of routes", 200, Says::Passed, 0)
            .config(|config| {
                config.routes = vec![
                    charges(),
                    everywhere(Policy {
                        key: KeyRule::Off,
                        ..Policy::default()
                    }),
                ];
            })
            .by(async |world| world.send(get("/.well-known/idempotency")).await),
        Row::new("page about a problem", 200, Says::Passed, 0).by(async |world| {
            world
                .send(get("/.well-known/idempotency/problems/key-missing"))
                .await
        }),
        Row::new("pages about all problems", 200, Says::Passed, 0)
            .by(async |world| world.send(get("/.well-known/idempotency/problems")).await),
        Row::new(
            "page about a request that cannot be read",
            200,
            Says::Passed,
            0,
        )
        .by(async |world| {
            world
                .send(get("/.well-known/idempotency/problems/method-case"))
                .await
        }),
        problem("page about no problem", 404, "no-such-problem", 0).by(async |world| {
            world
                .send(get("/.well-known/idempotency/problems/none"))
                .await
        }),
        problem(
            "what is published, by another method",
            405,
            "method-not-allowed",
            0,
        )
        .by(async |world| {
            world
                .send(without_key("/.well-known/idempotency", ""))
                .await
        }),
    ]
}
