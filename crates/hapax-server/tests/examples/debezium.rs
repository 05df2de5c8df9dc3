//! Debezium reads the outbox, with the settings that we ship.

use std::process::Command;

use base64::Engine;
use hapax_testkit::servers::Postgres;
use hapax_testkit::skipped;
use serde_json::Value;

use super::harness::{Program, hapax, install, said};
use super::install::Language;

const REQUIREMENTS: &str = include_str!("debezium/requirements.txt");
const PROGRAM: &str = include_str!("debezium/debezium.py");
const SETTINGS: &str = include_str!("../../../../packaging/debezium/outbox.properties");

/// Messages of two keys, rolled back ones, and a table that is emptied in between.
const EMITS: [&str; 3] = [
    r#"SELECT hapax.emit('orders', 'a', '{"n": 1}'::jsonb, '{"ce-type": "order.placed"}', version => 7);
       BEGIN; SELECT hapax.emit('orders', 'a', 'rolled back'); ROLLBACK;
       BEGIN; SELECT hapax.emit('orders', 'b', 'b1'); SAVEPOINT s; SELECT hapax.emit('orders', 'b', 'rolled back');
       ROLLBACK TO s; SELECT hapax.emit('orders', 'b', 'b2'); COMMIT;"#,
    "SELECT setval('hapax.outbox_seq', 65536); SELECT hapax.emit('orders', 'a', 'in the next table'); TRUNCATE hapax.outbox_00;",
    r"SELECT hapax.emit('parcels', NULL, '\x00ff'::bytea), hapax.emit('orders', 'a', 'last');",
];

#[test]
fn debezium_publishes_what_committed_in_the_order_of_each_key() {
    if Command::new("java").arg("-version").output().is_err() {
        return skipped("there is no java here (Debian: apt-get install default-jre-headless)");
    }
    let Some(postgres) = Postgres::with(&[("wal_level", "logical")]) else {
        return;
    };
    let files = [
        ("debezium.py", PROGRAM.to_owned()),
        ("outbox.properties", SETTINGS.to_owned()),
    ];
    let wanted = [("requirements.txt", REQUIREMENTS.to_owned())];
    let Some(installed) = install::install("debezium-installed", Language::Python, &wanted, &files)
    else {
        return;
    };
    let url = postgres.database();
    let name = url.rsplit('/').next().unwrap();
    let migrated = said(hapax().args(["migrate", "--store", &url]));
    assert_eq!(migrated.code, 0, "{}", migrated.stderr);

    let offsets = tempfile::tempdir().unwrap();
    let mut command = installed.interpreter();
    command
        .args(["debezium.py", "outbox.properties", "name=hapax"])
        .args(["topic.prefix=hapax", "database.hostname=127.0.0.1"])
        .args(["database.user=postgres", "database.password=none"])
        .arg(format!("database.port={}", postgres.port()))
        .arg(format!("database.dbname={name}"))
        .arg("offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore")
        .arg(format!(
            "offset.storage.file.filename={}",
            offsets.path().join("offsets").display()
        ));
    let mut debezium = Program::start(&mut command);
    debezium.wait_for("Processing messages");
    let emitted: Vec<String> = EMITS
        .iter()
        .flat_map(|sql| ids(&postgres.psql(name, sql)))
        .collect();

    let mut published = Vec::new();
    while published.len() < 6 {
        let line = debezium.wait_for("record {");
        let (_, json) = line.split_once("record ").unwrap();
        published.push(serde_json::from_str::<Value>(json).unwrap());
    }
    let texts: Vec<_> = published.iter().map(text).collect();
    let expected = [
        "orders a {\"n\": 1}",
        "orders b b1",
        "orders b b2",
        "orders a in the next table",
        "parcels null \u{0}\u{fffd}",
        "orders a last",
    ];
    assert_eq!(texts, expected);
    for message in &published {
        let id = message["headers"]["id"].as_str().unwrap();
        assert!(emitted.iter().any(|emitted| emitted == id), "{message}");
    }
    let headers = &published[0]["headers"];
    assert_eq!(headers["version"], "7");
    let given: Value = serde_json::from_str(headers["headers"].as_str().unwrap()).unwrap();
    assert_eq!(given["ce-type"], "order.placed");
}

/// The ids among the lines of psql.
fn ids(printed: &str) -> Vec<String> {
    let words = printed.split(['\n', '|']);
    words
        .filter(|word| word.len() == 36)
        .map(str::to_owned)
        .collect()
}

fn text(message: &Value) -> String {
    let base64 = base64::engine::general_purpose::STANDARD;
    let payload = message["payload_base64"].as_str().unwrap();
    let payload = base64.decode(payload).unwrap();
    let key = message["key"].as_str().unwrap_or("null");
    let topic = message["topic"].as_str().unwrap();
    format!("{topic} {key} {}", String::from_utf8_lossy(&payload))
}
