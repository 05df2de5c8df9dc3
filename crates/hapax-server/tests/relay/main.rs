//! `hapax relay` and `hapax outbox` on real databases, and relays beside a gateway.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod admin;
mod beside;
mod flags;
#[path = "../harness/mod.rs"]
mod harness;
mod inbox;
mod operate;
mod publish;

use hapax_testkit::servers::Postgres;
use harness::{Said, said, words};
use serde_json::Value;

/// Runs the program to its end. The words are split at spaces.
fn hapax(line: &str) -> Said {
    said(
        harness::hapax()
            .args(words(line))
            .env("USER", "ada")
            .env("PGCONNECT_TIMEOUT", "2"),
    )
}

/// Each line of an output, as JSON.
fn lines(text: &str) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    text.lines().map(line).collect()
}

/// Emits a text.
fn emit(server: &Postgres, url: &str, key: &str, text: &str) -> String {
    let sql = format!("SELECT hapax.emit('orders', '{key}', '{text}')");
    server.psql(harness::database_name(url), &sql)
}

/// A SQLite file of a service, with an outbox.
async fn guest() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    drop(hapax::store::guest::Guest::open(&path).await.unwrap());
    (directory, path)
}

/// Emits a text in a SQLite file.
fn insert(path: &std::path::Path, key: &str, text: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', ?1, ?2)";
    connection.execute(sql, [key, text]).unwrap();
}

/// An address without a listener.
fn free_address() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
