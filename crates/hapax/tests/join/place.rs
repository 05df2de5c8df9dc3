//! The databases of the tests: the store's records and a table of effects share one database.

use std::sync::Arc;

use hapax::store::postgres::{ConnectOptions, schema};
use hapax::{Guest, Postgres, RecordId, Store};
use hapax_testkit::servers;
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::script::Driver;

/// A database, read independently of Hapax.
pub enum Place {
    Server { url: String },
    File { path: String, _directory: TempDir },
}

/// A record, and the effects that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub record: Vec<u8>,
    /// The number of its state, the same in both stores, and its fence.
    pub head: Option<(i64, i64)>,
    /// How many effects there are, and their highest fence.
    pub effects: Option<(i64, i64)>,
    /// How many messages there are.
    pub messages: i64,
}

/// The number of the state `completed`, in every store.
const COMPLETED: i64 = 2;

const EFFECTS: &str = "CREATE TABLE effects (record {} NOT NULL, fence bigint NOT NULL)";

impl Place {
    /// A database for this driver. `None`, after printing why, if there is no server.
    pub async fn new<D: Driver>() -> Option<Place> {
        if D::IS_FILE {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory
                .path()
                .join("shop.db")
                .to_str()
                .expect("a path that is text")
                .to_owned();
            drop(Guest::open(&path).await.expect("a file of our own"));
            let connection = rusqlite::Connection::open(&path).expect("the file");
            connection
                .execute_batch(&EFFECTS.replace("{}", "blob"))
                .expect("a table");
            return Some(Place::File {
                path,
                _directory: directory,
            });
        }
        Place::on(server()?).await
    }

    /// A new database on this server.
    pub async fn on(server: &servers::Postgres) -> Option<Place> {
        let url = tokio::task::block_in_place(|| server.database());
        let options = ConnectOptions::parse(&url).expect("a URL");
        schema::migrate(&options, &schema::migrations(), |_| {})
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let place = Place::Server { url };
        place
            .session()
            .await
            .batch_execute(&EFFECTS.replace("{}", "bytea"))
            .await
            .expect("a table");
        Some(place)
    }

    /// Its URL or path.
    pub fn at(&self) -> &str {
        match self {
            Place::Server { url } => url,
            Place::File { path, .. } => path,
        }
    }

    pub async fn store(&self) -> Arc<dyn Store> {
        open(self.at()).await
    }

    /// Lets callers claim keys of this namespace in their own transactions. A file needs no leave.
    pub async fn give_namespace(&self, namespace: &str) {
        if let Place::Server { .. } = self {
            let sql = format!("SELECT hapax.set_namespace('{namespace}')");
            self.session()
                .await
                .batch_execute(&sql)
                .await
                .expect("given");
        }
    }

    /// Removes all effects from a file.
    pub fn forget_effects(&self) {
        let connection = rusqlite::Connection::open(self.at()).expect("the file");
        connection.execute("DELETE FROM effects", []).expect("gone");
    }

    /// All records and effects, read in one snapshot.
    pub async fn rows(&self) -> Vec<Row> {
        let sql = |heads: &str, outbox: &str, unhex: &str| {
            format!(
                "SELECT coalesce(h.id, e.record, m.record), CAST(h.state AS bigint), h.fence, e.effects, e.fence, coalesce(m.messages, 0) FROM {heads} AS h
                 FULL JOIN (SELECT record, count(*) AS effects, max(fence) AS fence FROM effects GROUP BY record) AS e ON e.record = h.id
                 FULL JOIN (SELECT {unhex} AS record, count(*) AS messages FROM {outbox} GROUP BY key) AS m ON m.record = coalesce(h.id, e.record)"
            )
        };
        let row = |record,
                   state: Option<i64>,
                   fence: Option<i64>,
                   effects: Option<i64>,
                   by: Option<i64>,
                   messages: i64| Row {
            record,
            head: state.zip(fence),
            effects: effects.zip(by),
            messages,
        };
        match self {
            Place::Server { .. } => {
                let rows = self
                    .session()
                    .await
                    .query(
                        &sql("hapax.heads", "hapax.outbox", "decode(key, 'hex')"),
                        &[],
                    )
                    .await
                    .expect("a look");
                rows.iter()
                    .map(|r| row(r.get(0), r.get(1), r.get(2), r.get(3), r.get(4), r.get(5)))
                    .collect()
            }
            Place::File { path, .. } => {
                let connection = rusqlite::Connection::open(path).expect("the file");
                let mut statement = connection
                    .prepare(&sql("hapax_heads", "hapax_outbox", "unhex(key)"))
                    .expect("a look");
                let rows = statement
                    .query_map([], |r| {
                        Ok(row(
                            r.get(0)?,
                            r.get(1)?,
                            r.get(2)?,
                            r.get(3)?,
                            r.get(4)?,
                            r.get(5)?,
                        ))
                    })
                    .expect("a look");
                rows.map(|row| row.expect("a row")).collect()
            }
        }
    }

    /// The number of effects of this record. Panics if any record and its effects disagree.
    pub async fn effects(&self, record: RecordId) -> i64 {
        let rows = self.rows().await;
        agree(&rows);
        let of_record = rows.iter().find(|row| row.record == record.as_bytes());
        of_record
            .and_then(|row| row.effects)
            .map_or(0, |(count, _)| count)
    }

    async fn session(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(self.at(), NoTls)
            .await
            .expect("a session");
        tokio::spawn(connection);
        client
    }
}

/// Opens the store in the database at this URL or path.
pub async fn open(at: &str) -> Arc<dyn Store> {
    if at.starts_with("postgres:") {
        Arc::new(
            Postgres::open(at)
                .await
                .unwrap_or_else(|error| panic!("{error}")),
        )
    } else {
        Arc::new(
            Guest::open(at)
                .await
                .unwrap_or_else(|error| panic!("{error}")),
        )
    }
}

/// Checks that a record has an effect if and only if it is complete, by the same attempt, and never
/// two.
pub fn agree(rows: &[Row]) {
    for row in rows {
        let completed_by = row
            .head
            .and_then(|(state, fence)| (state == COMPLETED).then_some(fence));
        assert_eq!(
            row.effects,
            completed_by.map(|fence| (1, fence)),
            "a record and its effects disagree: {row:?}"
        );
    }
}

/// Checks that each effect has one message, and that there is no other message: for effects of the
/// drivers, which emit.
pub fn messages_agree(rows: &[Row]) {
    for row in rows {
        let effects = row.effects.map_or(0, |(count, _)| count);
        assert_eq!(
            row.messages, effects,
            "an effect and its message disagree: {row:?}"
        );
    }
}

/// One server for all tests of this process. Its data is in memory, because no test here crashes
/// the machine.
pub fn server() -> Option<&'static servers::Postgres> {
    static SERVER: std::sync::OnceLock<Option<servers::Postgres>> = std::sync::OnceLock::new();
    tokio::task::block_in_place(|| {
        SERVER
            .get_or_init(|| servers::Postgres::in_memory(&[("max_connections", "400")]))
            .as_ref()
    })
}
