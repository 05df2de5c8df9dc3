//! The dashboard: panels that Grafana can draw, with existing metrics. Grafana itself does not run
//! here.

use std::collections::BTreeSet;

use serde_json::Value;

use super::alerts::{offered, used};
use super::tools::{needed, run, text};

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&text("packaging/grafana/hapax.json")).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// The panels that draw something, each with its expressions.
fn drawn() -> Vec<(String, Value, Vec<String>)> {
    let draws = panels().into_iter().filter(|panel| panel["type"] != "row");
    let expressions = |panel: &Value| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets
            .iter()
            .map(|target| target["expr"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    draws
        .map(|panel| {
            (
                panel["title"].as_str().unwrap().to_owned(),
                panel.clone(),
                expressions(&panel),
            )
        })
        .collect()
}

#[test]
fn every_panel_has_a_place_a_query_a_unit_and_a_word_on_what_it_means() {
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "twice: {}",
            panel["id"]
        );
        let place = &panel["gridPos"];
        let [x, y, w] = ["x", "y", "w"].map(|side| place[side].as_u64().unwrap());
        assert!(x + w <= 24 && places.insert((x, y)), "{place}");
    }
    for (title, panel, expressions) in drawn() {
        assert!(!expressions.is_empty(), "{title}: no query");
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title}: no unit"
        );
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.len() > 5),
            "{title}: no description"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_is_of_what_a_gateway_has() {
    let offered = offered().await;
    let (drawn, words) = (drawn(), used());
    let checked: usize = drawn
        .iter()
        .flat_map(|(title, _, all)| {
            all.iter()
                .map(|expression| offered.check(title, expression, &words))
        })
        .sum();
    assert!(checked >= 40, "{checked}");
    // Labels can be checked only for metrics with a series in the scrape, so there must be no
    // metric without one.
    assert_eq!(offered.without_series(), [""; 0]);
    hapax_testkit::report!("{checked} uses of metrics checked");
}

/// Recording rules contain expressions too: promtool parses them as Prometheus does.
#[test]
fn promtool_reads_every_query() {
    let Some(promtool) = needed("promtool") else {
        return;
    };
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (n, expression) in drawn()
        .iter()
        .flat_map(|(_, _, expressions)| expressions)
        .enumerate()
    {
        let expression = expression
            .replace("$__rate_interval", "5m")
            .replace('$', "");
        rules += &format!(
            "  - record: panel:{n}\n    expr: {}\n",
            serde_json::to_string(&expression).unwrap()
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yml");
    std::fs::write(&file, rules).unwrap();
    run(
        &promtool,
        ["check".as_ref(), "rules".as_ref(), file.as_os_str()],
    );
}
