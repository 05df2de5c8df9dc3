//! The consumers in `examples/stock-…`, as their pages start them, on a real NATS and a real
//! Postgres. The verdict comes from their table of stock.

use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream::{self, consumer, stream};
use bytes::Bytes;
use hapax::core::time::Timestamp;
use hapax::outbox::MessageId;
use hapax_flow::publish::{Envelope, Nats, NatsOptions, Publisher, Verdict};
use hapax_testkit::servers::{Nats as Broker, Postgres};

use super::files::example;
use super::harness::install::{self, File, Installed, Language};
use super::harness::{Program, database_name, hapax, said, words};

/// The shortest that NATS allows: repeats are what is tested.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);
/// After this a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// An example: its folder, its language, the files that pin its dependencies, and the program.
struct Consumer {
    folder: &'static str,
    language: Language,
    wanted: &'static [&'static str],
    program: &'static str,
}

const PYTHON: Consumer = Consumer {
    folder: "stock-python",
    language: Language::Python,
    wanted: &["requirements.txt"],
    program: "stock.py",
};

const NODE: Consumer = Consumer {
    folder: "stock-node",
    language: Language::Node,
    wanted: &["package.json", "package-lock.json"],
    program: "stock.js",
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_consumer_applies_each_message_once() {
    applies_each_message_once(&PYTHON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_consumer_applies_each_message_once() {
    applies_each_message_once(&NODE).await;
}

async fn applies_each_message_once(example: &Consumer) {
    let Some(place) = Place::prepare(example).await else {
        return;
    };
    let mut consumer = place.start();
    // Delivered three times, and another one once.
    let hats = order("hat", 2);
    for message in [&hats, &hats, &order("shoe", 1), &hats] {
        place.publish(message).await;
    }
    place.wait_until_handled(4).await;
    assert_eq!(place.stock(), "hat|2\nshoe|1");

    // The commit is on disk, and the answer to it does not come: so the message is not acknowledged
    // when the consumer is killed.
    let postgres = &place.postgres;
    postgres.psql(
        "postgres",
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
    );
    postgres.psql("postgres", "SELECT pg_reload_conf()");
    let waits = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        postgres.psql("postgres", sql) == "1"
    };
    // The server hears of it in its own time: a commit before that goes through.
    let mut before = 0;
    let coat = loop {
        let coat = format!("coat {before}");
        place.publish(&order(&coat, 5)).await;
        wait("it commits or waits for its standby", || {
            waits() || place.stock().contains(&coat)
        })
        .await;
        if tokio::task::block_in_place(waits) {
            break coat;
        }
        before += 1;
    };
    consumer.kill();
    postgres.psql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
    postgres.psql("postgres", "SELECT pg_reload_conf()");
    wait("the effect is there", || place.stock().contains(&coat)).await;
    let open = place.consumer().await.num_ack_pending;
    assert_eq!(open, 1, "it was not acknowledged");

    let consumer = place.start();
    // What NATS does by itself when the ack wait of half a minute is over.
    place.deliver_again(5 + before).await;
    place.wait_until_handled(5 + before).await;
    let coats: String = (0..=before)
        .map(|number| format!("coat {number}|5\n"))
        .collect();
    assert_eq!(place.stock(), format!("{coats}hat|2\nshoe|1"));
    assert_eq!(place.parked(), "0");
    tokio::task::block_in_place(|| consumer.end());
}

/// A broker, a database with the tables of the example, and its dependencies.
struct Place {
    installed: Installed,
    program: &'static str,
    postgres: Postgres,
    database: String,
    broker: Broker,
    publisher: Nats,
    context: jetstream::Context,
}

impl Place {
    /// `None`, after printing why, if something is missing here.
    async fn prepare(of: &Consumer) -> Option<Place> {
        let read = |name: &&'static str| -> File {
            let file = example(of.folder).join(name);
            (name, std::fs::read_to_string(file).unwrap())
        };
        let wanted: Vec<File> = of.wanted.iter().map(read).collect();
        let folder = format!("examples-installed/{}", of.folder);
        let sources = [read(&of.program)];
        let installed = install::install(&folder, of.language, &wanted, &sources)?;
        let broker = Broker::start("")?;
        let postgres = Postgres::in_memory(&[])?;
        let url = postgres.database();
        let database = database_name(&url).to_owned();
        let schema = example(of.folder).join("schema.sql");
        let mut psql = postgres.client("psql");
        psql.args(["--no-psqlrc", "--dbname", &database]);
        psql.args(words("--quiet --set=ON_ERROR_STOP=1 --file"));
        said(psql.arg(schema)).assert_code(0);
        let migrate = ["migrate", "--store", &url, "--receiver", "stock"];
        said(hapax().args(migrate)).assert_code(0);
        let client = async_nats::connect(broker.url()).await.unwrap();
        let context = jetstream::new(client);
        let config = stream::Config {
            name: "ORDERS".to_owned(),
            subjects: vec!["orders".to_owned()],
            duplicate_window: DUPLICATE_WINDOW,
            ..stream::Config::default()
        };
        context.create_stream(config).await.unwrap();
        Some(Place {
            publisher: Nats::new(NatsOptions::new([broker.url()])).unwrap(),
            program: of.program,
            installed,
            postgres,
            database,
            broker,
            context,
        })
    }

    fn start(&self) -> Program {
        let mut command = self.installed.interpreter();
        let address = self.postgres.address();
        let url = format!("postgres://stock@{address}/{}", self.database);
        command.arg(self.program).env("DATABASE_URL", url);
        let mut program = Program::start(command.env("NATS_URL", self.broker.url()));
        program.wait_for("ready");
        program
    }

    /// Publishes a message once more.
    async fn publish(&self, message: &Envelope) {
        let batch = [message.clone()];
        loop {
            let verdicts = self.publisher.publish(&batch).await.unwrap();
            if verdicts == [Verdict::ACCEPTED] {
                return;
            }
            tokio::time::sleep(DUPLICATE_WINDOW).await;
        }
    }

    async fn consumer(&self) -> consumer::Info {
        let stream = self.context.get_stream("ORDERS").await.unwrap();
        let consumer = stream.get_consumer::<consumer::pull::Config>("stock").await;
        consumer.unwrap().info().await.unwrap().clone()
    }

    /// Has the message at this place of the stream delivered again.
    async fn deliver_again(&self, place: u64) {
        let subject = format!("$JS.ACK.ORDERS.stock.1.{place}.{place}.0.0");
        let client = self.context.client();
        client.publish(subject, "-NAK".into()).await.unwrap();
        client.flush().await.unwrap();
    }

    /// Waits until so many messages were delivered, and all are acknowledged.
    async fn wait_until_handled(&self, count: u64) {
        let ended = Instant::now() + PATIENCE;
        loop {
            let info = self.consumer().await;
            let is_empty = info.num_pending == 0 && info.num_ack_pending == 0;
            if is_empty && info.delivered.stream_sequence == count {
                return;
            }
            assert!(Instant::now() < ended, "{info:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn stock(&self) -> String {
        let sql = "SELECT item, reserved FROM stock ORDER BY item";
        self.postgres.psql(&self.database, sql)
    }

    fn parked(&self) -> String {
        let sql = "SELECT count(*) FROM hapax.parked";
        self.postgres.psql(&self.database, sql)
    }
}

fn order(item: &str, quantity: u32) -> Envelope {
    Envelope {
        sequence: 0,
        id: MessageId::from_bytes(uuid::Uuid::new_v4().into_bytes()),
        at: Timestamp::from_system_time(SystemTime::now()),
        topic: "orders".to_owned(),
        key: Some(item.to_owned()),
        ordered: true,
        version: None,
        headers: Vec::new(),
        payload: Bytes::from(format!(
            "{{\"item\": \"{item}\", \"quantity\": {quantity}}}"
        )),
    }
}

async fn wait(what: &str, is_so: impl Fn() -> bool) {
    let ended = Instant::now() + PATIENCE;
    while !tokio::task::block_in_place(&is_so) {
        assert!(Instant::now() < ended, "{what}: it does not become so");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
