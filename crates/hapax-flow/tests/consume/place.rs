//! A database with an inbox and a table of effects, and consumers on it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax::BoxError;
use hapax::store::postgres::{ConnectOptions, schema};
use hapax_core::flow::{GiveUp, RetryPolicy};
use hapax_core::time::Timestamp;
use hapax_flow::consume::{
    Consumer, Incoming, PostgresDatabase, PostgresTransaction, Progress, Received, Source,
    StartError,
};
use hapax_testkit::servers::Postgres;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

pub(crate) const CONSUMER: &str = "stock";

pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) client: Client,
}

impl Place {
    /// `None`, after printing why, if there is no server.
    pub(crate) async fn new() -> Option<Place> {
        Some(Place::on(Postgres::shared()?.database()).await)
    }

    /// In this database, which is empty.
    pub(crate) async fn on(url: String) -> Place {
        let options = ConnectOptions::parse(&url).expect("a URL");
        let migrated = schema::migrate(&options, &schema::migrations(), |_| {}).await;
        migrated.unwrap_or_else(|error| panic!("{error}"));
        let place = Place::again(url).await;
        // No constraint: a second effect is a second row.
        let sql = "CREATE TABLE effects (place bigserial, message text NOT NULL, key text)";
        place.client.batch_execute(sql).await.expect("a table");
        place
    }

    /// In this database, with a new session.
    pub(crate) async fn again(url: String) -> Place {
        let (client, connection) = tokio_postgres::connect(&url, NoTls)
            .await
            .expect("a session");
        tokio::spawn(connection);
        Place { url, client }
    }

    pub(crate) fn database(&self) -> PostgresDatabase {
        PostgresDatabase::new(ConnectOptions::parse(&self.url).expect("a URL"))
    }

    /// The messages that had an effect, in the order of their effects.
    pub(crate) async fn effects(&self) -> Vec<String> {
        let sql = "SELECT message FROM effects ORDER BY place";
        let rows = self.client.query(sql, &[]).await.expect("effects");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The ids that are parked.
    pub(crate) async fn parked(&self) -> Vec<String> {
        let sql = "SELECT id FROM hapax.parked WHERE state = 1 ORDER BY id";
        let rows = self.client.query(sql, &[]).await.expect("what is parked");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Runs a consumer that writes an effect for each message.
    pub(crate) fn run(&self, consumer: Consumer, source: impl Source) -> Running {
        let handled = consumer
            .source(source)
            .database(self.database())
            .handle(write_effects);
        let progress = handled.progress();
        Running::spawn(progress, |stop| handled.run(stop))
    }
}

/// A consumer with short pauses.
pub(crate) fn consumer() -> Consumer {
    Consumer::new(CONSUMER).retry(RetryPolicy {
        pause_min: Duration::from_millis(1),
        pause_max: Duration::from_millis(5),
        attempts_max: 3,
        give_up: GiveUp::Dead,
    })
}

/// Fails for the payload `poison`, panics for `panic`.
pub(crate) async fn write_effects(
    batch: &[Received],
    tx: &mut PostgresTransaction,
) -> Result<(), BoxError> {
    for message in batch {
        let sql = "INSERT INTO effects (message, key) VALUES ($1, $2)";
        tx.execute(sql, &[&message.id(), &message.key]).await?;
        match &message.payload[..] {
            b"poison" => return Err("this message cannot be handled".into()),
            b"panic" => panic!("a handler that panics"),
            _ => {}
        }
    }
    Ok(())
}

/// A consumer that runs.
pub(crate) struct Running {
    pub(crate) progress: Arc<Progress>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), StartError>>,
}

impl Running {
    pub(crate) fn spawn<F>(
        progress: Arc<Progress>,
        run: impl FnOnce(CancellationToken) -> F,
    ) -> Running
    where
        F: Future<Output = Result<(), StartError>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(stop.clone()));
        Running {
            progress,
            stop,
            task,
        }
    }

    pub(crate) async fn stop(self) -> Result<(), StartError> {
        self.stop.cancel();
        self.task.await.expect("a consumer does not panic")
    }

    /// What it refuses to start with.
    pub(crate) async fn refusal(self) -> StartError {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.task).await;
        let ended = ended.expect("it starts").expect("it does not panic");
        ended.expect_err("it starts and ends")
    }

    /// As if its process was killed: nothing is told to the broker.
    pub(crate) async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "so that a number will do")]
pub(crate) fn message(id: impl ToString) -> Incoming {
    Incoming {
        id: Some(id.to_string()),
        at: Some(Timestamp::from_system_time(SystemTime::now())),
        topic: "orders".to_owned(),
        ..Incoming::default()
    }
}

pub(crate) fn keyed(id: impl ToString, key: &str) -> Incoming {
    Incoming {
        key: Some(key.to_owned()),
        ..message(id)
    }
}

pub(crate) fn with_payload(message: Incoming, payload: &'static str) -> Incoming {
    Incoming {
        payload: payload.into(),
        ..message
    }
}

pub(crate) fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}
