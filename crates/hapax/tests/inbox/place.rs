//! Databases with an inbox and a table of effects, and a clock that a test turns.

use std::time::Duration;

use hapax::store::postgres::{ConnectOptions, schema};
use hapax_testkit::servers::Postgres;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

pub const MINUTE: i64 = 60_000_000;
pub const DAY: i64 = 24 * 60 * MINUTE;
/// Some day in 2026, in microseconds.
pub const NOW: i64 = 1_780_000_000_000_000;

pub struct Database {
    pub url: String,
    pub name: String,
    pub server: &'static Postgres,
}

impl Database {
    /// A new database. `None`, after printing why, if there is no server.
    pub async fn new() -> Option<Database> {
        let server = Postgres::shared()?;
        let url = server.database();
        let options = ConnectOptions::parse(&url).expect("a URL");
        schema::migrate(&options, &schema::migrations(), |_| {})
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let database = Database { url, name, server };
        database
            .run("CREATE TABLE effects (message text NOT NULL)")
            .await;
        Some(database)
    }

    /// A new database whose clock stands at [`NOW`] until it is turned.
    pub async fn by_hand() -> Option<Database> {
        let database = Database::new().await?;
        let sql = "CREATE TABLE hapax.hand (now int8 NOT NULL);
                   CREATE OR REPLACE FUNCTION hapax.clock() RETURNS int8 LANGUAGE sql VOLATILE AS $$ SELECT now FROM hapax.hand $$;";
        database
            .run(&format!("{sql} INSERT INTO hapax.hand VALUES ({NOW})"))
            .await;
        Some(database)
    }

    pub async fn turn_to(&self, now: i64) {
        self.run(&format!("UPDATE hapax.hand SET now = {now}"))
            .await;
    }

    pub async fn session(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls)
            .await
            .expect("a session");
        tokio::spawn(connection);
        client
    }

    pub async fn run(&self, sql: &str) {
        let session = self.session().await;
        session
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {}", said(&error)));
    }

    /// The first column of the first row, as a text.
    pub async fn ask(&self, sql: &str) -> String {
        ask(&self.session().await, sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {}", said(&error)))
    }

    /// The messages that had an effect.
    pub async fn effects(&self) -> String {
        self.ask("SELECT coalesce(string_agg(message, ' ' ORDER BY message), '') FROM effects")
            .await
    }

    /// Waits until this many sessions wait for a lock.
    pub async fn until_waiting(&self, sessions: usize) {
        let sql = "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let session = self.session().await;
        loop {
            if ask(&session, sql).await.expect("counts") == sessions.to_string() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// The first column of the first row, as a text; "null" for a null.
pub async fn ask(session: &Client, sql: &str) -> Result<String, tokio_postgres::Error> {
    let messages = session.simple_query(sql).await?;
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("null")),
        _ => None,
    });
    Ok(row.unwrap_or("no row").to_owned())
}

pub fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

pub fn said(error: &tokio_postgres::Error) -> String {
    let said = error.as_db_error().map(|said| said.message().to_owned());
    said.unwrap_or_else(|| error.to_string())
}

/// A call of `hapax.receive` with a time in microseconds.
pub fn receive(consumer: &str, id: &str, at: i64) -> String {
    format!(
        "SELECT hapax.receive('{consumer}', '{id}', to_timestamp(0) + {at} * interval '1 microsecond')"
    )
}
