//! The databases of these tests.

use hapax_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::harness::{database_name, in_time, migrated};
use crate::ledger::Effects;

/// The table in which both kinds of services record their effects.
const ORDERS: &str = "CREATE TABLE orders (key text NOT NULL, fence int8 NOT NULL, number serial)";

/// A migrated database with a table of orders.
pub fn joined() -> Option<String> {
    let server = Postgres::shared()?;
    let url = migrated(server);
    server.psql(database_name(&url), ORDERS);
    Some(url)
}

/// A service's own database with the fencing functions.
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

/// The effects in the table of orders.
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

/// Waits until a session there waits for a lock.
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

/// The SQL state of an error that the database raised.
pub fn code(error: &tokio_postgres::Error) -> &str {
    error
        .code()
        .map_or("", tokio_postgres::error::SqlState::code)
}
