//! Databases with an outbox, and a destination that keeps what it gets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hapax::store::postgres::{ConnectOptions, schema};
use hapax_core::flow::Envelope;
use hapax_flow::outbox::PostgresOutbox;
use hapax_flow::publish::{Outage, Publisher, Reply, Verdict};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

/// A new database with an outbox, and a table of effects.
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) server: &'static Postgres,
}

impl Database {
    /// `None`, after printing why, if there is no server.
    pub(crate) async fn new() -> Option<Database> {
        let server = Postgres::shared()?;
        Some(Database::on(server, server.database()).await)
    }

    async fn on(server: &'static Postgres, url: String) -> Database {
        migrate(&url).await;
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let database = Database { url, name, server };
        let session = database.session().await;
        let sql = "CREATE TABLE effects (id uuid PRIMARY KEY, key text NOT NULL)";
        session.batch_execute(sql).await.expect("a table");
        database
    }

    pub(crate) async fn session(&self) -> Client {
        session(&self.url).await
    }

    pub(crate) fn relay(&self, inbox: &Inbox) -> Relay<PostgresOutbox> {
        self.relay_of("inbox", inbox)
    }

    pub(crate) fn relay_of(&self, reader: &str, inbox: &Inbox) -> Relay<PostgresOutbox> {
        Relay::new(outbox(&self.url), inbox.clone(), Options::new(reader))
    }
}

pub(crate) fn outbox(url: &str) -> PostgresOutbox {
    PostgresOutbox::new(ConnectOptions::parse(url).expect("a URL"))
}

pub(crate) async fn migrate(url: &str) {
    let options = ConnectOptions::parse(url).expect("a URL");
    schema::migrate(&options, &schema::migrations(), |_| {})
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) async fn session(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a session");
    tokio::spawn(connection);
    client
}

/// A destination that keeps what it gets, and says of each message what a test wants.
#[derive(Clone)]
pub(crate) struct Inbox {
    messages: Arc<Mutex<Vec<Envelope>>>,
    judge: Arc<Judge>,
}

type Judge = dyn Fn(&Envelope) -> Result<Verdict, Outage> + Send + Sync;

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox::judging(|_| Ok(Verdict::ACCEPTED))
    }

    pub(crate) fn judging(
        judge: impl Fn(&Envelope) -> Result<Verdict, Outage> + Send + Sync + 'static,
    ) -> Inbox {
        Inbox {
            messages: Arc::default(),
            judge: Arc::new(judge),
        }
    }

    /// What was accepted, in order.
    pub(crate) fn messages(&self) -> Vec<Envelope> {
        self.messages
            .lock()
            .expect("no test panics with it")
            .clone()
    }

    /// The payloads that were accepted, in order.
    pub(crate) fn texts(&self) -> Vec<String> {
        let text = |message: Envelope| String::from_utf8_lossy(&message.payload).into_owned();
        self.messages().into_iter().map(text).collect()
    }
}

impl Publisher for Inbox {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(async move {
            let mut verdicts = Vec::new();
            let mut stopped: HashMap<(String, String), ()> = HashMap::new();
            for message in batch {
                let key = message
                    .ordered_key()
                    .map(|(t, k)| (t.to_owned(), k.to_owned()));
                if key.as_ref().is_some_and(|key| stopped.contains_key(key)) {
                    verdicts.push(Verdict::NotSent);
                    continue;
                }
                let verdict = (self.judge)(message)?;
                if verdict.is_accepted() {
                    self.messages
                        .lock()
                        .expect("no test panics with it")
                        .push(message.clone());
                } else if let Some(key) = key {
                    stopped.insert(key, ());
                }
                verdicts.push(verdict);
            }
            Ok(verdicts)
        })
    }
}
