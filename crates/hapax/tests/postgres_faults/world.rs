//! Private servers, and databases on them that are migrated for the store.

use hapax::Postgres;
use hapax::store::postgres::schema::{self, Migration};
use hapax::store::postgres::{ConnectOptions, Options};
use hapax_testkit::servers;
use tokio_postgres::{Client, NoTls};

/// An alias that keeps the server apart from the store `Postgres`.
pub(crate) type Server = servers::Postgres;

/// A new migrated database on this server.
pub(crate) async fn prepared(server: &Server) -> String {
    let url = server.database();
    migrate(&url, &schema::migrations()).await;
    url
}

pub(crate) async fn migrate(url: &str, migrations: &[Migration]) {
    let connection = ConnectOptions::parse(url).expect("a URL");
    schema::migrate(&connection, migrations, |_| {})
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) async fn open(url: &str) -> Postgres {
    Postgres::open(url)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Opens the database through a proxy in front of its server.
pub(crate) async fn open_through(address: std::net::SocketAddr, url: &str) -> Postgres {
    let options =
        Options::new(&format!("postgres://postgres@{address}/{}", name(url))).expect("a URL");
    Postgres::open_with(options)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The name of the database in a URL.
pub(crate) fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a URL has a path")
}

/// Another user's session with all rights.
pub(crate) async fn session(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a session");
    tokio::spawn(connection);
    client
}

/// A URL with two servers for the same database, one of which accepts writes.
pub(crate) fn both(url: &str, one: &Server, other: &Server) -> String {
    format!(
        "postgres://postgres@{},{}/{}",
        one.address(),
        other.address(),
        name(url)
    )
}
