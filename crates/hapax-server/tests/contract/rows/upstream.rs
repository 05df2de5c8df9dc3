//! How the upstream treats a guarded request, and what the first caller gets.

use std::time::Duration;

use hapax::{Class, Mode, Policy};
use hapax_server::config::{Config, Route};

use super::{Row, Says, deferred, rejected};
use crate::client::{post, without_key};
use crate::world::everywhere;

/// Sets an upstream address without a listener: port 1.
pub fn nobody(config: &mut Config) {
    config.upstream.url = "http://127.0.0.1:1".parse().unwrap();
}

/// Sets a short answer timeout; only an upstream that hangs exceeds it.
pub fn impatient(config: &mut Config) {
    config.timeouts.answer = Duration::from_millis(200);
}

/// Sets mode `probe`: the gateway asks the upstream what became of a lost attempt.
fn probed(config: &mut Config) {
    let policy = Policy {
        mode: Mode::Probe,
        ..Policy::default()
    };
    config.routes = vec![Route {
        probe: Some("/probe".parse().unwrap()),
        ..everywhere(policy)
    }];
}

/// A row whose answer does not tell whether the effect is done.
fn held(name: &'static str, status: u16, effects: usize) -> Row {
    Row::new(name, status, Says::Held { again: false }, effects)
}

pub fn rows() -> Vec<Row> {
    vec![
        deferred("upstream never reached", 502, "upstream-unreachable", 0)
            .config(nobody)
            .by(async |world| world.send(post("k", "charge")).await),
        rejected("upstream broke off", 502, "outcome-unknown", 1)
            .by(async |world| world.send(post("k", "break off")).await),
        deferred("upstream broke off, rerun", 502, "outcome-unknown", 1)
            .policy(|policy| policy.mode = Mode::Rerun)
            .by(async |world| world.send(post("k", "break off")).await),
        deferred(
            "upstream broke off, rerun, repeated",
            502,
            "outcome-unknown",
            2,
        )
        .policy(|policy| policy.mode = Mode::Rerun)
        .by(async |world| {
            world.send(post("k", "break off")).await;
            world.send(post("k", "break off")).await
        }),
        rejected(
            "upstream broke off within its answer",
            502,
            "outcome-unknown",
            1,
        )
        .by(async |world| world.send(post("k", "truncate")).await),
        held("upstream says 500", 500, 1).by(async |world| world.send(post("k", "500")).await),
        held("upstream says 501", 501, 1).by(async |world| world.send(post("k", "501")).await),
        held("upstream says 502", 502, 1).by(async |world| world.send(post("k", "502")).await),
        held("upstream says 504", 504, 1).by(async |world| world.send(post("k", "504")).await),
        held("upstream says 408", 408, 1).by(async |world| world.send(post("k", "408")).await),
        held("upstream says 500 and to retry", 500, 1)
            .by(async |world| world.send(post("k", "500, retry")).await),
        Row::new(
            "upstream says 500, fenced",
            500,
            Says::Held { again: true },
            1,
        )
        .policy(|policy| policy.mode = Mode::Fenced)
        .by(async |world| world.send(post("k", "500")).await),
        rejected("upstream said 500, repeated", 409, "outcome-unknown", 1).by(async |world| {
            world.send(post("k", "500")).await;
            world.send(post("k", "500")).await
        }),
        Row::new(
            "upstream said 500, repeated, released by the route",
            500,
            Says::Passed,
            2,
        )
        .policy(|policy| policy.classes = [(500, Class::Release)].into())
        .by(async |world| {
            world.send(post("k", "500")).await;
            world.send(post("k", "500")).await
        }),
        Row::new("upstream said 500, repeated, rerun", 500, Says::Passed, 2)
            .policy(|policy| policy.mode = Mode::Rerun)
            .by(async |world| {
                world.send(post("k", "500")).await;
                world.send(post("k", "500")).await
            }),
        Row::new(
            "upstream says 500 and that nothing happened",
            500,
            Says::Passed,
            1,
        )
        .by(async |world| world.send(post("k", "500, none")).await),
        Row::new(
            "upstream said that nothing happened, repeated",
            500,
            Says::Passed,
            2,
        )
        .by(async |world| {
            world.send(post("k", "500, none")).await;
            world.send(post("k", "500, none")).await
        }),
        Row::new("upstream says 500 and that it is done", 500, Says::First, 1)
            .by(async |world| world.send(post("k", "500, done")).await),
        Row::new(
            "upstream said 500 and that it is done, repeated",
            500,
            Says::Replay,
            1,
        )
        .by(async |world| {
            world.send(post("k", "500, done")).await;
            world.send(post("k", "500, done")).await
        }),
        Row::new("upstream says 500, unguarded", 500, Says::Passed, 1)
            .by(async |world| world.send(without_key("/v1/charges", "500, none")).await),
        rejected("upstream timed out", 504, "outcome-unknown", 1)
            .config(impatient)
            .by(async |world| world.send(post("k", "hang")).await),
        deferred("upstream timed out, rerun", 504, "outcome-unknown", 1)
            .policy(|policy| policy.mode = Mode::Rerun)
            .config(impatient)
            .by(async |world| world.send(post("k", "hang")).await),
        rejected("attempt too long", 504, "outcome-unknown", 1)
            .policy(|policy| policy.longest_attempt = Duration::from_millis(200))
            .by(async |world| world.send(post("k", "hang")).await),
        rejected("upstream did not join", 502, "not-joined", 1)
            .policy(|policy| policy.mode = Mode::Transaction)
            .on_database()
            .by(async |world| world.send(post("k", "charge")).await),
        rejected("upstream did not join, repeated", 409, "outcome-unknown", 1)
            .policy(|policy| policy.mode = Mode::Transaction)
            .on_database()
            .by(async |world| {
                world.send(post("k", "charge")).await;
                world.send(post("k", "charge")).await
            }),
        deferred(
            "upstream broke off before it joined",
            502,
            "outcome-unknown",
            1,
        )
        .policy(|policy| policy.mode = Mode::Transaction)
        .on_database()
        .by(async |world| world.send(post("k", "break off")).await),
        deferred("upstream broke off, fenced", 502, "outcome-unknown", 1)
            .policy(|policy| policy.mode = Mode::Fenced)
            .by(async |world| world.send(post("k", "break off")).await),
        deferred("upstream broke off, probe", 502, "outcome-unknown", 1)
            .config(probed)
            .by(async |world| world.send(post("k", "break off")).await),
        // The upstream answers the probe like any other request, which does not tell what became of
        // the first.
        rejected(
            "upstream does not know what became of it",
            409,
            "outcome-unknown",
            2,
        )
        .config(probed)
        .by(async |world| {
            world.send(post("k", "break off")).await;
            world.send(post("k", "break off")).await
        }),
        Row::new("upstream redirects", 307, Says::First, 1)
            .by(async |world| world.send(post("k", "redirect")).await),
        Row::new("upstream refuses", 404, Says::First, 1)
            .by(async |world| world.send(post("k", "404")).await),
        Row::new("upstream refused, repeated", 404, Says::Replay, 1).by(async |world| {
            world.send(post("k", "404")).await;
            world.send(post("k", "404")).await
        }),
        Row::new("upstream releases", 503, Says::Passed, 1)
            .by(async |world| world.send(post("k", "503")).await),
        Row::new("upstream released, repeated", 401, Says::Passed, 2).by(async |world| {
            world.send(post("k", "401")).await;
            world.send(post("k", "401")).await
        }),
    ]
}
