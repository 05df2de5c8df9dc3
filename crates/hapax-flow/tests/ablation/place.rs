//! The shop, and its broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax::outbox::{Message, MessageId, emit};
use hapax::store::postgres::{ConnectOptions, schema};
use hapax::{Answer, BoxError, Hapax, Mode, Once, Operation, Policy};
use hapax_core::time::Timestamp;
use hapax_flow::publish::{Envelope, Nats, Publisher, Verdict};
use hapax_testkit::servers;
use tokio_postgres::{Client, NoTls};

pub(crate) fn options(url: &str) -> ConnectOptions {
    ConnectOptions::parse(url).expect("a URL")
}

/// A stream of this subject that forgets the ids of messages soon.
pub(crate) async fn stream(nats: &servers::Nats, subject: &str) {
    let client = async_nats::connect(nats.url()).await.expect("a connection");
    let config = async_nats::jetstream::stream::Config {
        name: subject.to_uppercase(),
        subjects: vec![subject.to_owned()],
        duplicate_window: Duration::from_millis(100),
        ..Default::default()
    };
    let context = async_nats::jetstream::new(client);
    context.create_stream(config).await.expect("a stream");
}

pub(crate) async fn publish(nats: &Nats, message: Envelope) {
    let batch = [message];
    while !matches!(
        nats.publish(&batch).await.as_deref(),
        Ok([Verdict::Accepted { .. }])
    ) {
        tokio::task::yield_now().await;
    }
}

/// A service that takes orders.
pub(crate) struct Shop {
    url: String,
    subject: String,
    session: Client,
    once: Option<Once>,
    placed: Arc<AtomicUsize>,
    _hapax: Hapax,
}

impl Shop {
    pub(crate) async fn open(url: &str, subject: &str, has_key: bool) -> Shop {
        let migrated = schema::migrate(&options(url), &schema::migrations(), |_| {}).await;
        migrated.unwrap_or_else(|error| panic!("{error}"));
        let session = connect(url).await.expect("a session");
        let sql = "CREATE TABLE orders (id text NOT NULL); CREATE TABLE shipped (id text)";
        session.batch_execute(sql).await.expect("tables");
        let hapax = Hapax::postgres(url).await.expect("a store");
        let policy = Policy {
            mode: Mode::Transaction,
            ..Policy::default()
        };
        let once = hapax.once("place").policy(policy).expect("a policy");
        Shop {
            url: url.to_owned(),
            subject: subject.to_owned(),
            session,
            once: has_key.then_some(once),
            placed: Arc::default(),
            _hapax: hapax,
        }
    }

    /// Handles a request for this order. Without an outbox, returns what is to be published now, if
    /// the order was placed by this request.
    pub(crate) async fn place(&self, order: usize, has_outbox: bool) -> Option<Envelope> {
        let number = self.placed.fetch_add(1, Ordering::Relaxed);
        let id = format!("order-{order}/{number}");
        let (url, subject) = (self.url.clone(), self.subject.clone());
        let placing = id.clone();
        let work = async move |operation: Option<Operation>| {
            let mut client = connect(&url).await?;
            let tx = client.transaction().await?;
            tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&placing])
                .await?;
            finish(
                tx,
                operation,
                has_outbox.then(|| Message::new(subject, placing, "{}")),
            )
            .await
        };
        let replayed = match &self.once {
            Some(once) => {
                let key = format!("key-{order}");
                let work = async move |operation| {
                    work(Some(operation)).await?;
                    Ok::<_, BoxError>(Bytes::new())
                };
                once.run(key, "an order", work)
                    .await
                    .expect("placed")
                    .replayed
            }
            None => {
                work(None).await.expect("placed");
                false
            }
        };
        (!replayed).then(|| envelope(&self.subject, id))
    }

    pub(crate) async fn counts(&self, sql: &str) -> BTreeMap<String, usize> {
        let rows = self.session.query(sql, &[]).await.expect("counts");
        let count = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i64>(1));
        rows.iter()
            .map(|row| (row.get(0), count(row).expect("a count")))
            .collect()
    }
}

/// Emits, completes the record and commits, as far as there is something to emit or complete.
async fn finish(
    mut tx: tokio_postgres::Transaction<'_>,
    operation: Option<Operation>,
    message: Option<Message>,
) -> Result<(), BoxError> {
    match (operation, message) {
        (Some(operation), message) => {
            if let Some(message) = message {
                operation.emit(&mut tx, message.step("placed")).await?;
            }
            operation.finish(tx, Answer::new(200, "")).await?;
        }
        (None, message) => {
            if let Some(message) = message {
                emit(&mut tx, message).await?;
            }
            tx.commit().await?;
        }
    }
    Ok(())
}

fn envelope(subject: &str, id: String) -> Envelope {
    Envelope {
        sequence: 0,
        id: MessageId::from_bytes(uuid::Uuid::new_v4().into_bytes()),
        at: Timestamp::from_system_time(SystemTime::now()),
        topic: subject.to_owned(),
        key: Some(id),
        ordered: true,
        version: None,
        headers: Vec::new(),
        payload: Bytes::new(),
    }
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
