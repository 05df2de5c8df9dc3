//! The outbox in a SQLite file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hapax::Guest;
use hapax::outbox::{Message, emit, emit_all};
use hapax_core::flow::{GiveUp, RetryPolicy};
use hapax_flow::outbox::{Outbox, OutboxError, SqliteOutbox, Take};
use hapax_flow::publish::{Envelope, Outage, Publisher, Reply, Verdict};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::crash::{Child, Ledger, announce, role};
use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::place::Inbox;

struct File {
    path: PathBuf,
    _directory: TempDir,
}

impl File {
    async fn new() -> File {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("shop.db");
        drop(Guest::open(&path).await.expect("a file"));
        let file = File {
            path,
            _directory: directory,
        };
        file.run("CREATE TABLE effects (text TEXT NOT NULL)");
        file
    }

    fn connect(&self) -> Connection {
        connect(&self.path)
    }

    fn run(&self, sql: &str) {
        self.connect()
            .execute_batch(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn count(&self, sql: &str) -> i64 {
        self.connect()
            .query_row(sql, [], |row| row.get(0))
            .expect("a count")
    }

    fn relay(&self, inbox: &Inbox) -> Relay<SqliteOutbox> {
        let options = Options {
            retry: RetryPolicy {
                pause_min: Duration::ZERO,
                pause_max: Duration::ZERO,
                attempts_max: 3,
                give_up: GiveUp::Hold,
            },
            ..Options::new("inbox")
        };
        Relay::new(SqliteOutbox::new(&self.path), inbox.clone(), options)
    }
}

fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("the file");
    connection
        .busy_timeout(Duration::from_secs(30))
        .expect("a time limit");
    connection
}

#[tokio::test]
async fn any_language_may_insert_a_message_and_a_rollback_takes_it_back() {
    let file = File::new().await;
    file.run(
        "BEGIN; INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', 'a', 'one'); COMMIT;
         BEGIN; INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', 'a', 'rolled back'); ROLLBACK;
         INSERT INTO hapax_outbox (topic, payload, headers) VALUES ('t', x'00ff', '{\"b\": \"2\", \"a\": \"1\"}')",
    );
    let inbox = Inbox::new();
    let relay = file.relay(&inbox);
    relay.run_once().await.expect("a round");
    relay.run_once().await.expect("a round");
    let messages = inbox.messages();
    let [one, bytes] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!(
        (&*one.payload, one.key.as_deref()),
        (&b"one"[..], Some("a"))
    );
    assert_eq!(&*bytes.payload, [0, 255]);
    let headers = [
        ("a".to_owned(), "1".to_owned()),
        ("b".to_owned(), "2".to_owned()),
    ];
    assert_eq!(bytes.headers, headers);
    assert_ne!(one.id, bytes.id);
    let age = std::time::SystemTime::now()
        .duration_since(one.at.to_system_time())
        .unwrap_or_default();
    assert!(age < Duration::from_secs(600), "{age:?}");
    for refused in [
        "INSERT INTO hapax_outbox (topic, payload) VALUES ('', 'x')",
        "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', '', 'x')",
        "INSERT INTO hapax_outbox (topic, payload) VALUES ('t', zeroblob(1048577))",
        "INSERT INTO hapax_outbox (topic, payload, id) VALUES ('t', 'x', 'not sixteen bytes')",
    ] {
        file.connect().execute_batch(refused).expect_err(refused);
    }
}

#[tokio::test]
async fn rust_emits_in_the_transaction_of_the_effect() {
    let file = File::new().await;
    for commits in [true, false] {
        let mut connection = file.connect();
        let mut tx = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("begins");
        tx.execute("INSERT INTO effects VALUES ('x')", [])
            .expect("an effect");
        let id = emit(&mut tx, Message::new("t", "b", "first").version(3))
            .await
            .expect("emits");
        let ids = emit_all(
            &mut tx,
            [
                Message::new("t", "b", "second"),
                Message::new("t", "a", "third").header("x", "y"),
            ],
        );
        assert_eq!(ids.await.expect("emits").len(), 2);
        if commits {
            tx.commit().expect("commits");
            let inbox = Inbox::new();
            file.relay(&inbox).run_once().await.expect("a round");
            assert_eq!(inbox.messages()[0].id, id);
            let of_b: Vec<String> = inbox
                .texts()
                .into_iter()
                .filter(|text| text != "third")
                .collect();
            assert_eq!(of_b, ["first", "second"]);
        } else {
            tx.rollback().expect("rolls back");
        }
    }
    assert_eq!(file.count("SELECT count(*) FROM hapax_outbox"), 3);
}

#[tokio::test]
async fn a_message_that_fails_holds_only_its_key() {
    let file = File::new().await;
    let inbox = Inbox::judging(|message| {
        let is_bad = &*message.payload == b"a1";
        Ok(if is_bad {
            Verdict::Failed("no".into())
        } else {
            Verdict::ACCEPTED
        })
    });
    let relay = file.relay(&inbox);
    let insert = |key: &str, text: &str| {
        file.run(&format!(
            "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', '{key}', '{text}')"
        ));
    };
    for (key, text) in [("a", "a1"), ("b", "b1"), ("a", "a2")] {
        insert(key, text);
    }
    for _ in 0..4 {
        relay.run_once().await.expect("a round");
    }
    insert("a", "a3");
    insert("b", "b2");
    relay.run_once().await.expect("a round");
    assert_eq!(inbox.texts(), ["b1", "b2"]);
    assert_eq!(
        file.count("SELECT state FROM hapax_deliveries ORDER BY seq LIMIT 1"),
        2
    );
    assert_eq!(file.count("SELECT set_aside FROM hapax_readers"), 3);
    // Mended by an operator: the others follow in order.
    file.run(
        "UPDATE hapax_deliveries SET state = 1, due_at = 0, payload = 'a1 mended' WHERE state = 2",
    );
    for _ in 0..4 {
        relay.run_once().await.expect("a round");
    }
    assert_eq!(inbox.texts(), ["b1", "b2", "a1 mended", "a2", "a3"]);
    assert_eq!(file.count("SELECT set_aside FROM hapax_readers"), 0);
    let rows = "SELECT count(*) FROM hapax_outbox";
    SqliteOutbox::new(&file.path).sweep().await.expect("sweeps");
    assert_eq!(file.count(rows), 0);
}

#[tokio::test]
async fn a_relay_that_lost_its_reader_writes_nothing_more() {
    let file = File::new().await;
    let outbox = SqliteOutbox::new(&file.path);
    let lease = Duration::from_secs(60);
    let Take::Taken { held, position, .. } = outbox.take("r", "one", lease).await.expect("taken")
    else {
        panic!("free")
    };
    assert!(matches!(
        outbox.take("r", "two", lease).await.expect("asked"),
        Take::Busy
    ));
    outbox.release(&held).await.expect("released");
    assert!(matches!(
        outbox.take("r", "two", lease).await.expect("asked"),
        Take::Taken { .. }
    ));
    let late = outbox.mark(&held, &position, 1, &[]).await;
    assert!(matches!(late, Err(OutboxError::Lost)), "{late:?}");
}

#[tokio::test]
async fn a_file_without_an_outbox_says_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("other.db");
    connect(&path)
        .execute_batch("CREATE TABLE t (x)")
        .expect("a file");
    let error = SqliteOutbox::new(&path)
        .take("r", "one", Duration::from_secs(1))
        .await
        .expect_err("no outbox");
    assert!(
        error.to_string().contains("open it once as a Guest"),
        "{error}"
    );
    let gone = directory.path().join("gone.db");
    let error = SqliteOutbox::new(&gone)
        .take("r", "one", Duration::from_secs(1))
        .await
        .expect_err("no file");
    assert!(error.to_string().contains("gone.db"), "{error}");
}

/// Appends to a ledger, which outlives the process.
struct ToLedger(Ledger);

impl Publisher for ToLedger {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(async move {
            for message in batch {
                self.0.append(&String::from_utf8_lossy(&message.payload));
                announce("published");
            }
            Ok(vec![Verdict::ACCEPTED; batch.len()])
        })
    }
}

/// Relays of one file, each killed after a few messages, while a writer goes on; then the file is
/// copied in the middle, and the copy publishes what it has.
#[test]
fn what_commits_is_published_whenever_a_relay_is_killed() {
    const TEST: &str = "sqlite::what_commits_is_published_whenever_a_relay_is_killed";
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if role().is_some() {
        let at = |name: &str| std::env::var(name).expect("the parent says where");
        let options = Options {
            lease: Duration::from_millis(300),
            ..Options::new("ledger")
        };
        let relay = Relay::new(
            SqliteOutbox::new(at("OUTBOX_FILE")),
            ToLedger(Ledger::open(at("OUTBOX_LEDGER"))),
            options,
        );
        return runtime.block_on(relay.run(CancellationToken::new()));
    }
    let file = runtime.block_on(File::new());
    let ledger = file.path.with_extension("ledger");
    let envs = [
        ("OUTBOX_FILE", file.path.to_str().expect("text")),
        ("OUTBOX_LEDGER", ledger.to_str().expect("text")),
    ];
    let kills = 25;
    let mut written = 0;
    for round in 0..kills {
        let mut relay = Child::spawn(TEST, "relay", &envs);
        let connection = file.connect();
        for _ in 0..20 {
            let key = written % 3;
            let is_kept = written % 7 != 0;
            let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
            let text = if is_kept {
                format!("{key} {written}")
            } else {
                format!("lost {written}")
            };
            let sql = format!(
                "BEGIN IMMEDIATE; INSERT INTO effects VALUES ('{text}'); INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', '{key}', '{text}'); {end}"
            );
            connection.execute_batch(&sql).expect("a transaction");
            written += 1;
        }
        for _ in 0..=round % 5 {
            relay.wait_for("published");
        }
        relay.kill();
    }
    let copy = file.path.with_extension("copy");
    file.run(&format!("VACUUM INTO '{}'", copy.display()));
    let effects = |path: &Path| -> HashSet<String> {
        let connection = connect(path);
        let mut statement = connection
            .prepare("SELECT text FROM effects")
            .expect("a table");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    };
    for path in [&file.path, &copy] {
        file.run("UPDATE hapax_readers SET lease_until = 0");
        connect(path)
            .execute_batch("UPDATE hapax_readers SET lease_until = 0")
            .expect("the file");
        let relay = Relay::new(
            SqliteOutbox::new(path),
            ToLedger(Ledger::open(&ledger)),
            Options::new("ledger"),
        );
        runtime.block_on(relay.run_once()).expect("a round");
        let published = std::fs::read_to_string(&ledger).expect("the ledger");
        let mut seen = HashSet::new();
        let mut last = [-1_i64; 3];
        let mut repeats = 0;
        for line in published.lines() {
            if !seen.insert(line.to_owned()) {
                repeats += 1;
                continue;
            }
            let (key, number) = line.split_once(' ').expect("a key and a number");
            let (key, number): (usize, i64) = (
                key.parse().expect("a key"),
                number.parse().expect("a number"),
            );
            assert!(number > last[key], "{line} after {}", last[key]);
            last[key] = number;
        }
        assert_eq!(
            seen,
            effects(path),
            "what was published is what has its effect"
        );
        hapax_testkit::report!(
            "sqlite: {kills} kills, {} messages, {repeats} repeats",
            seen.len()
        );
    }
}
