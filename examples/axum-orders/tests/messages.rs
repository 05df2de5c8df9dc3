//! Each order has one message, and a relay publishes it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hapax_flow::outbox::SqliteOutbox;
use hapax_flow::publish::Stdout;
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::harness::{Answer, Client, Program, With, post};
use serde_json::Value;

#[tokio::test]
async fn each_order_has_one_message_and_a_refused_one_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let (_service, address) = start(directory.path());
    let first = place(address, "order-17", 1).await;
    assert_eq!(first.status, 201, "{first:?}");
    place(address, "order-17", 1).await.assert_replays(&first);
    assert_eq!(place(address, "order-18", 0).await.status, 422);
    let second = place(address, "order-19", 2).await;

    let published = relay(directory.path()).await;
    let orders: Vec<_> = published
        .iter()
        .map(|message| &message["payload"])
        .collect();
    assert_eq!(orders, [&first.json(), &second.json()]);
    for message in &published {
        assert_eq!(message["topic"], "orders");
        assert_eq!(message["key"], message["payload"]["id"]);
        assert_eq!(message["headers"]["ce-type"], "order.placed");
    }
}

fn start(directory: &Path) -> (Program, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_axum-orders"));
    command.arg("127.0.0.1:0").current_dir(directory);
    let mut service = Program::start(&mut command);
    let line = service.wait_for("listening on");
    let address = line.rsplit(' ').next().unwrap().parse().unwrap();
    (service, address)
}

async fn place(address: SocketAddr, key: &str, quantity: u32) -> Answer {
    let order = format!(r#"{{"item": "hat", "quantity": {quantity}}}"#);
    let request = post("/orders", order)
        .key(key)
        .with("content-type", "application/json");
    Client::new(address).send(request).await
}

/// What a relay writes to a file, line by line.
async fn relay(directory: &Path) -> Vec<Value> {
    let lines = directory.join("published");
    let destination = Stdout::to(std::fs::File::create(&lines).unwrap());
    let outbox = SqliteOutbox::new(directory.join("orders.db"));
    let relay = Relay::new(outbox, destination, Options::new("file"));
    relay.run_once().await.unwrap();
    let lines = std::fs::read_to_string(lines).unwrap();
    let line = |line: &str| serde_json::from_str(line).unwrap();
    lines.lines().map(line).collect()
}
