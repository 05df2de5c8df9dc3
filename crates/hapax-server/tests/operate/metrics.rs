//! The metrics, and whether `docs/metrics.md` lists them.

use std::collections::{BTreeMap, BTreeSet};

use hapax_flow::consume;

use crate::harness::{With, get, metric};
use crate::service::{Ledger, Service};
use crate::world::{World, post};

/// For each metric: its type, its labels, and whether it is present from the start.
type Metrics = BTreeMap<String, (String, BTreeSet<String>, bool)>;

#[tokio::test]
async fn the_documentation_lists_what_there_is_and_nothing_else() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&format!(
        "[upstream]\nurl = \"{}\"\n[drain]\nnotice = \"0s\"\n[[routes]]\npath = \"/shadow\"\nshadow = true\n",
        service.url()
    ))
    .await;
    world.send(post("/shadow", "k")).await;
    world.send(post("/v1/a", "k")).await;
    // The metrics of gateways whose stores are Postgres, Redis, and Redis over Postgres.
    let other = hapax_server::telemetry::Metrics::new();
    other.watch_postgres(|| Some(hapax::store::postgres::Stats::default()));
    other.watch_redis(|| Some(hapax::store::redis::Stats::default()));
    other.watch_cache(|| Some(hapax::store::tiered::Stats::default()));
    let consumer = consume::metrics([("stock", &consume::Progress::default())]);
    // Only a broker tells a lag.
    let lag = "hapax_consumer_lag{consumer=\"stock\"} 3\n";
    let (there, documented) = (
        there(&(other.encode() + &world.metrics().await + &consumer + lag)),
        documented(),
    );
    let names = |metrics: &Metrics| metrics.keys().cloned().collect::<BTreeSet<_>>();
    let missing: Vec<_> = names(&there)
        .difference(&names(&documented))
        .cloned()
        .collect();
    assert_eq!(
        missing,
        Vec::<String>::new(),
        "these are counted and not documented"
    );
    for (name, (kind, labels, is_always)) in &documented {
        match there.get(name) {
            Some((is, has, _)) => assert_eq!((is, has), (kind, labels), "{name}"),
            None => assert!(!is_always, "{name} is documented and not there"),
        }
    }
    hapax_testkit::report!("{} metrics, all of them documented", there.len());
    world.gateway.drain().await;
}

/// The metrics in the text that Prometheus reads.
fn there(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
        {
            let kind = if kind == "info" { "gauge" } else { kind };
            let suffix = match kind {
                "counter" => "_total",
                _ if name == "hapax_build" => "_info",
                _ => "",
            };
            metrics.insert(
                format!("{name}{suffix}"),
                (kind.to_owned(), BTreeSet::new(), true),
            );
        } else if let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            let labels = rest
                .split("\",")
                .filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()));
            metrics
                .get_mut(name)
                .unwrap()
                .1
                .extend(labels.filter(|label| label != "le"));
        }
    }
    metrics
}

/// The metrics in the tables of the documentation: name, type, labels.
fn documented() -> Metrics {
    let text = include_str!("../../../../docs/metrics.md");
    let mut metrics = Metrics::new();
    for line in text.lines().filter(|line| line.starts_with("| `hapax_")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let words = |cell: &str| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        };
        let name = words(cells[0]).into_iter().next().unwrap();
        let before = metrics.insert(
            name.clone(),
            (
                cells[1].to_owned(),
                words(cells[2]),
                !cells[0].contains('†'),
            ),
        );
        assert!(before.is_none(), "{name} is there twice");
    }
    metrics
}

#[tokio::test]
async fn a_credential_that_changes_between_two_tries_is_noticed_and_nothing_is_refused() {
    let ledger = Ledger::default();
    let service = Service::start("one", &ledger);
    let world = World::start(&format!(
        "[upstream]\nurl = \"{}\"\n[drain]\nnotice = \"0s\"\n",
        service.url()
    ))
    .await;
    let by = |credential: &str| {
        let mut request = post("/v1/a", "k");
        request.headers_mut().remove("authorization");
        request.with("authorization", &format!("Bearer {credential}"))
    };
    let suspected = async || world.metric("hapax_suspected_principals_total").await;
    assert_eq!(world.send(by("ada")).await.status, 201);
    assert!(world.send(by("ada")).await.is_replay());
    assert_eq!(suspected().await, 0.0, "a replay is nobody else's");
    let rotated = world.send(by("ada-new")).await;
    assert!(rotated.status == 201 && !rotated.is_replay());
    assert_eq!(
        (suspected().await, ledger.count("k")),
        (1.0, 2),
        "it had a second effect, and somebody can be told"
    );
    // A reload keeps these values.
    world
        .reload(&format!(
            "[upstream]\nurl = \"{}\"\n[drain]\nnotice = \"1s\"\n",
            service.url()
        ))
        .await
        .unwrap();
    assert_eq!(world.send(by("ada-newest")).await.status, 201);
    assert_eq!(suspected().await, 2.0);
    world.gateway.drain().await;
}

#[tokio::test]
async fn what_takes_long_and_what_is_unknown_has_an_age() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&format!(
        "[upstream]\nurl = \"{}\"\n[drain]\nnotice = \"0s\"\n",
        service.url()
    ))
    .await;
    assert_eq!(world.send(post("/v1/a", "lost")).await.status, 502);
    let mut connection = world.connect().await;
    let slow = tokio::spawn(async move { connection.send(post("/slow", "k")).await });
    service.slow.wait_held(1).await;
    // The first scrape counts the unknown record.
    let text = world.metrics().await;
    let value = |name: &str| metric(&text, name);
    assert_eq!(
        (value("hapax_unknown"), value("hapax_attempts_in_flight")),
        (1.0, 1.0),
        "{text}"
    );
    assert!(
        value("hapax_oldest_unknown_seconds") > 0.0 && value("hapax_oldest_attempt_seconds") > 0.0,
        "{text}"
    );
    service.slow.open(1);
    assert_eq!(slow.await.unwrap().unwrap().status, 201);
    assert_eq!(world.send(get("/v1/a")).await.status, 201);
    world.gateway.drain().await;
}

#[tokio::test]
async fn what_the_next_repeat_resolves_waits_for_nobody() {
    let service = Service::start("one", &Ledger::default());
    let settings = |mode: &str| {
        format!(
            "[upstream]\nurl = \"{}\"\n[drain]\nnotice = \"0s\"\n[[routes]]\npath = \"/v1/{{id}}\"\nmode = \"{mode}\"\n",
            service.url()
        )
    };
    let world = World::start(&settings("fenced")).await;
    assert_eq!(world.send(post("/v1/a", "lost-1")).await.status, 502);
    assert_eq!(
        world
            .metric("hapax_attempts_total{state=\"unknown\"}")
            .await,
        1.0
    );
    assert_eq!(
        (
            world.metric("hapax_unknown").await,
            world.metric("hapax_oldest_unknown_seconds").await
        ),
        (0.0, 0.0)
    );
    world.gateway.drain().await;

    let world = World::start(&settings("hold")).await;
    assert_eq!(world.send(post("/v1/a", "lost-2")).await.status, 502);
    assert_eq!(world.metric("hapax_unknown").await, 1.0);
    world.gateway.drain().await;
}
