//! Relays beside a gateway.

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Postgres;

use crate::emit;
use crate::harness::{self, Program, Signal, migrated, serve_command};

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_runs_the_relays_of_its_configuration() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (url, upstream) = (migrated(postgres), Origin::start().await);
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"{url}\"\n[upstream]\nurl = \"http://{}\"\n\
         [drain]\nnotice = \"0s\"\n[relay.orders]\nto = \"stdout:\"\n",
        upstream.address()
    );
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Program::serve(&mut serve_command(directory.path(), &settings));
    emit(postgres, &url, "o-1", "paid");
    gateway.wait_for("\"payload\":\"paid\"");
    let metrics = gateway.ask("/metrics");
    let published = "hapax_relay_published_total{reader=\"orders\"}";
    assert_eq!(harness::metric(&metrics, published), 1.0);
    assert_eq!(
        harness::metric(&metrics, "hapax_relay_active{reader=\"orders\"}"),
        1.0
    );
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().code(), Some(0));
    let owner = "SELECT owner IS NULL FROM hapax.readers WHERE name = 'orders'";
    let is_free = postgres.psql(harness::database_name(&url), owner);
    assert_eq!(is_free, "t", "the reader was given up");
}

#[test]
fn a_gateway_on_a_store_without_an_outbox_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for store in ["memory:", "sqlite:hapax.db"] {
        let settings = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"{store}\"\n[upstream]\nurl = \"http://127.0.0.1:1\"\n\n[relay.orders]\nto = \"stdout:\"\n"
        );
        let said = harness::said(&mut serve_command(directory.path(), &settings));
        said.assert_code(2);
        said.assert_told("hapax.toml:7:");
        said.assert_told("a relay reads the outbox of a Postgres");
    }
}
