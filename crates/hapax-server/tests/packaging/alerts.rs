//! The alerts: promtool checks and tests them, they use existing metrics, and each has a page with
//! instructions.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use hapax::store::guest::Guest;
use hapax_flow::consume;
use hapax_server::telemetry::Metrics;
use hapax_testkit::origin::{Origin, Step};

use super::harness::{Program, exchange, hapax, words};
use super::promql::Offered;
use super::tools::{needed, ran, root, run, text, yaml};

const ALERTS: &str = "packaging/prometheus/alerts.yml";

struct Alert {
    name: String,
    expression: String,
    annotations: serde_json::Value,
    severity: String,
}

fn alerts() -> Vec<Alert> {
    let file = yaml(ALERTS);
    let rules = file["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    rules
        .map(|rule| Alert {
            name: word(&rule["alert"]),
            expression: word(&rule["expr"]),
            annotations: rule["annotations"].clone(),
            severity: word(&rule["labels"]["severity"]),
        })
        .collect()
}

#[test]
fn promtool_takes_the_rules_and_every_alert_fires_when_it_should() {
    let tests = text("packaging/prometheus/alerts_test.yml");
    for Alert { name, .. } in alerts() {
        for kind in ["fires", "stays quiet"] {
            assert!(
                tests.contains(&format!("- name: {name} {kind}\n")),
                "no case: {name} {kind}"
            );
        }
    }
    let Some(promtool) = needed("promtool") else {
        return;
    };
    run(
        &promtool,
        [
            "check".as_ref(),
            "rules".as_ref(),
            root().join(ALERTS).as_os_str(),
        ],
    );
    let said = ran(Command::new(promtool)
        .args(words("test rules alerts_test.yml"))
        .current_dir(root().join("packaging/prometheus")));
    assert!(said.contains("SUCCESS"), "{said}");
}

#[test]
fn every_alert_says_what_to_do() {
    let page = text("docs/operations.md");
    let anchors: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect();
    for alert in alerts() {
        assert!(
            ["page", "ticket"].contains(&alert.severity.as_str()),
            "{}",
            alert.name
        );
        for note in ["summary", "description"] {
            assert!(
                alert.annotations[note]
                    .as_str()
                    .is_some_and(|text| text.len() > 20),
                "{}: {note}",
                alert.name
            );
        }
        let runbook = alert.annotations["runbook_url"]
            .as_str()
            .unwrap_or_default();
        let wanted = runbook
            .strip_prefix("docs/operations.md#")
            .unwrap_or_else(|| panic!("{}: {runbook}", alert.name));
        assert!(
            anchors.contains(wanted),
            "{}: no {wanted} in docs/operations.md: {anchors:?}",
            alert.name
        );
        assert!(
            page.contains(&format!("`{}`", alert.name)),
            "docs/operations.md does not name {}",
            alert.name
        );
    }
}

/// The anchor of a heading: `## The store fails` becomes `the-store-fails`.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_alert_is_about_what_a_gateway_has() {
    let offered = offered().await;
    let checked: usize = alerts()
        .iter()
        .map(|alert| offered.check(&alert.name, &alert.expression, &used()))
        .sum();
    assert!(checked >= 20, "{checked}");
}

/// The metrics of a gateway after varied traffic.
pub async fn offered() -> Offered {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Origin::start().await;
    let config = directory.path().join("hapax.toml");
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\n[upstream]\nurl = \"http://{}\"\n\
         [[routes]]\nmethod = \"PUT\"\npath = \"/watched\"\nshadow = true\n",
        upstream.address()
    );
    std::fs::write(&config, settings).unwrap();
    let program = Program::serve(
        hapax()
            .args(words("serve --log text --config"))
            .arg(&config),
    );
    assert!(
        program
            .send("PUT /watched", "order-0", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        program
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        program
            .charge("order-1", b"amount=1")
            .contains("idempotent-replayed: true")
    );
    assert!(
        program
            .charge("order-1", b"amount=2")
            .starts_with("HTTP/1.1 422")
    );
    upstream.script([Step::Read, Step::Reset]);
    assert!(
        program
            .charge("order-2", b"amount=1")
            .starts_with("HTTP/1.1 502")
    );
    let scrape = program.ask("/metrics");
    assert!(scrape.starts_with("HTTP/1.1 200"), "{scrape}");
    // The metrics of gateways whose stores are Postgres, Redis, and Redis over Postgres.
    let other = Metrics::new();
    other.watch_postgres(|| Some(hapax::store::postgres::Stats::default()));
    other.watch_redis(|| Some(hapax::store::redis::Stats::default()));
    other.watch_cache(|| Some(hapax::store::tiered::Stats::default()));
    let relay = of_a_relay(directory.path()).await;
    let consumer = consume::metrics([("stock", &consume::Progress::default())]);
    // Only a broker tells a lag.
    let lag = "hapax_consumer_lag{consumer=\"stock\"} 3\n";
    Offered::read(&(scrape + &other.encode() + &relay + "\n" + &consumer + lag))
}

/// The metrics of a relay.
async fn of_a_relay(directory: &Path) -> String {
    let shop = directory.join("shop.db");
    drop(Guest::open(&shop).await.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let line = format!(
        "relay --log text --to null: --metrics {address} --store sqlite:{}",
        shop.display()
    );
    let mut relay = Program::start(hapax().args(words(&line)));
    relay.wait_for("the relay is active");
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    exchange(address, request.as_bytes())
}

/// The codes of rejections, from their source: a scrape has only those that occurred.
pub fn used() -> BTreeSet<String> {
    text("crates/hapax-core/src/rejection.rs")
        .split('"')
        .map(str::to_owned)
        .collect()
}
