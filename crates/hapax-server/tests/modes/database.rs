//! Databases of these tests.

use hapax_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::harness::{database_name, in_time, migrated};
use crate::ledger::Effects;

/// The effects of both kinds of services: in a table of theirs.
const ORDERS: &str = "CREATE TABLE orders (key text NOT NULL, fence int8 NOT NULL, number serial)";

/// A database that is prepared as a store, and has a table of orders.
pub fn joined() -> Option<String> {
    let server = Postgres::shared()?;
    let url = migrated(server);
    server.psql(database_name(&url), ORDERS);
    Some(url)
}

/// A database of a service's own, with what fences it.
pub fn fenced() -> Option<String> {
    let server = Postgres::shared()?;
    let url = server.database();
    server.psql(
        database_name(&url),
        &format!(
            "{ORDERS}; {}",
            include_str!("../../../../packaging/sql/fenced.sql")
        ),
    );
    Some(url)
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// What is in the table of orders.
pub async fn effects(url: &str) -> Effects {
    let rows = connect(url)
        .await
        .query("SELECT key, fence FROM orders ORDER BY number", &[])
        .await
        .unwrap();
    let mut effects = Effects::new();
    for row in rows {
        effects
            .entry(row.get(0))
            .or_default()
            .push(row.get::<_, i64>(1).try_into().unwrap());
    }
    effects
}

/// Waits until somebody waits for a lock there.
pub async fn wait_blocked(url: &str) {
    let client = connect(url).await;
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let looking = async {
        while client
            .query_one(blocked, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::task::yield_now().await;
        }
    };
    in_time("somebody waits for a lock", looking).await;
}

/// The code of an error that the database raised.
pub fn code(error: &tokio_postgres::Error) -> &str {
    error
        .code()
        .map_or("", tokio_postgres::error::SqlState::code)
}
