//! Stripe's own SDKs, installed from their registries, through the gateway, while answers are lost
//! on both sides of it.
//!
//! The SDKs make their keys and retries themselves. Behind the gateway is a small fake of the API
//! that ignores keys and records its charges: the verdict comes from that ledger. The same run
//! without the gateway must charge twice, or the faults prove nothing.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod api;
mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod install;
mod run;
mod verdict;

use std::time::Duration;

use hapax_server::config::StoreUrl;
use hapax_server::gateway::Gateway;

use self::api::Api;
use self::faults::Link;
use self::harness::install::{Installed, Language};
use self::verdict::{Events, Verdict};

const ORDERS: usize = 60;

/// How long the gateway waits for the API: longer than an answer that is only late.
const PATIENCE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn stripes_sdk_for_python_charges_once() {
    charges_once(Language::Python, 11).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stripes_sdk_for_node_charges_once() {
    charges_once(Language::Node, 12).await;
}

async fn charges_once(sdk: Language, seed: u64) {
    let Some(installed) = install::installed(sdk) else {
        return;
    };
    tokio::join!(
        with_the_gateway(&installed, seed),
        without_the_gateway(&installed, seed)
    );
}

async fn with_the_gateway(sdk: &Installed, seed: u64) {
    let api = Api::start().await;
    let behind = Link::start(api.address, seed).await;
    let scratch = tempfile::tempdir().unwrap();
    let events = Events::default();
    let mut config = harness::config(behind.address);
    config.store = StoreUrl::Sqlite(scratch.path().join("hapax.db"));
    config.timeouts.answer = PATIENCE;
    let gateway = Gateway::start_observed(config, events.observer())
        .await
        .unwrap();
    let before = Link::start(gateway.address(), seed + 100).await;

    let reports = run::pay(sdk, before.address, ORDERS).await;
    let unknown = verdict::unknown_records(gateway.hapax()).await;
    gateway.drain().await;

    let verdict = Verdict::of(&reports, &api.ledger());
    hapax_testkit::report!(
        "{} with the gateway: {verdict}; {events}",
        install::name(sdk)
    );
    hapax_testkit::report!("  answers lost before it: {before}; behind it: {behind}");
    before.assert_every_kind_landed();
    behind.assert_every_kind_landed();
    assert_eq!(verdict.charged_again, [""; 0], "charged again");
    assert_eq!(verdict.wrong, [""; 0], "not as the ledger says");
    assert_eq!(verdict.charged + verdict.held, ORDERS);
    assert!(
        verdict.held > 0,
        "answers were lost behind the gateway, so some orders must be held"
    );
    assert_eq!(
        verdict.held, unknown,
        "an order is held iff its record says that nobody knows"
    );
    assert!(
        events.replayed() > 0,
        "answers were lost before the gateway, so some must have been replayed"
    );
}

/// The API ignores keys, so the SDK's keys do not prevent double charges.
async fn without_the_gateway(sdk: &Installed, seed: u64) {
    let api = Api::start().await;
    let link = Link::start(api.address, seed + 100).await;
    let reports = run::pay(sdk, link.address, ORDERS).await;
    let verdict = Verdict::of(&reports, &api.ledger());
    hapax_testkit::report!(
        "{} without the gateway: {verdict}\n  answers lost: {link}",
        install::name(sdk)
    );
    link.assert_every_kind_landed();
    assert!(
        !verdict.charged_again.is_empty(),
        "the faults harm nobody even without the gateway: the run shows nothing"
    );
}
