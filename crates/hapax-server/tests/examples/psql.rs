//! The example in which the reader acts as the service: this test takes the reader's part.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};

use super::client::{Order, place};
use super::files::example;
use super::harness::{Client, With, post};
use super::relay::Relaying;
use super::world::{Database, Node};

const EXAMPLE: &str = "orders-psql";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_shows_every_error_and_what_it_commits_is_the_answer() {
    let Some(database) = Database::prepare(EXAMPLE) else {
        return;
    };
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Node::gateway(EXAMPLE, &database, upstream.local_addr().unwrap(), &[]);
    let address = gateway.address();

    let order = Order::new("order-17");
    let sent = tokio::spawn({
        let order = order.clone();
        async move { place(address, &order).await }
    });
    let (connection, operation, fence) = tokio::task::block_in_place(|| accept(&upstream));
    let played = tokio::task::block_in_place(|| play(&database, "play.sql", &operation, &fence));
    let codes: Vec<_> = played
        .lines()
        .filter(|line| line.len() == 5 && (line.starts_with("HX") || line.starts_with("22")))
        .collect();
    assert_eq!(
        codes,
        ["HX006", "HX003", "22023", "22023", "HX005"],
        "{played}"
    );
    assert!(
        played.trim_end().ends_with("-- what there is\nby-hand-6"),
        "{played}"
    );
    let placing = operation;
    // The service sends no byte of an answer.
    drop(connection);
    let first = sent.await.unwrap();
    assert_eq!(
        (first.status, first.text()),
        (201, "{\"id\": \"by-hand-6\"}")
    );
    assert_eq!(
        (&first.headers["content-type"], &first.headers["location"]),
        (
            &"application/json".parse().unwrap(),
            &"/orders/by-hand-6".parse().unwrap()
        )
    );
    place(address, &order).await.assert_replays(&first);

    let held = post("/held", "hat").key("order-18");
    let sent = Client::new(address).spawn(held);
    let (connection, operation, fence) = tokio::task::block_in_place(|| accept(&upstream));
    let played = tokio::task::block_in_place(|| play(&database, "held.sql", &operation, &fence));
    assert!(played.trim_end().ends_with("HX004"), "{played}");
    drop(connection);
    assert!(sent.await.unwrap().is_problem("outcome-unknown"));
    assert_eq!(database.psql("SELECT id FROM orders"), "by-hand-6");
    let message = Relaying::start(&database).end().await;
    let [message] = message.as_slice() else {
        panic!("one order, and {message:?}");
    };
    assert_eq!(
        (&*message.topic, message.key.as_deref()),
        ("orders", Some("by-hand-6"))
    );
    let id = database.psql(&format!("SELECT hapax.message_id('{placing}', 'placed')"));
    assert_eq!(message.id.to_string(), id);
    database.assert_each_order_has_its_message();
}

/// Reads the gateway's request without answering it. Returns the connection, the operation id and
/// the fence.
fn accept(upstream: &TcpListener) -> (TcpStream, String, String) {
    loop {
        let (connection, _) = upstream.accept().unwrap();
        let head: Vec<String> = BufReader::new(&connection)
            .lines()
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty())
            .collect();
        // A starting gateway only checks that the service accepts connections, and sends nothing.
        if head.is_empty() {
            continue;
        }
        let field = |name: &str| {
            let mut fields = head.iter().filter_map(|line| line.split_once(": "));
            fields
                .find(|(found, _)| found.eq_ignore_ascii_case(name))
                .unwrap_or_else(|| panic!("{name} in {head:?}"))
                .1
                .to_owned()
        };
        let (operation, fence) = (field("hapax-operation"), field("hapax-fence"));
        return (connection, operation, fence);
    }
}

/// Runs a script in psql as the service's role. Returns its output; the errors go to the terminal.
fn play(database: &Database, script: &str, operation: &str, fence: &str) -> String {
    let mut psql = database.client();
    psql.args([
        "--username=orders",
        &format!("--set=operation={operation}"),
        &format!("--set=fence={fence}"),
        "--file",
    ]);
    let played = psql.arg(example(EXAMPLE).join(script)).output().unwrap();
    String::from_utf8(played.stdout).unwrap()
}
