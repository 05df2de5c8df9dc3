//! The server of a run: one for all, private, and every commit on the disk.

use std::process::Command;

use hapax::store::postgres::{ConnectOptions, schema};
use hapax_testkit::servers::Postgres;

use crate::Error;

/// For as many clients as are measured, and no checkpoint in the middle of a short measurement.
/// Everything else is as it comes.
const SETTINGS: [(&str, &str); 3] = [
    ("max_connections", "320"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
];

/// A server that ends with this process.
pub(crate) struct Cluster(Postgres);

impl Cluster {
    /// Starts it. The reason, if that cannot be.
    pub(crate) fn start() -> Result<Cluster, Error> {
        let postgres = Postgres::with(&SETTINGS)
            .ok_or("there is no PostgreSQL here (Debian: apt-get install postgresql)")?;
        let durable = postgres.psql(
            "postgres",
            "SELECT current_setting('fsync') || current_setting('synchronous_commit')",
        );
        if durable != "onon" {
            return Err(
                format!("fsync and synchronous_commit have to be on, and are {durable}").into(),
            );
        }
        Ok(Cluster(postgres))
    }

    /// A new, empty database; its URL.
    pub(crate) fn database(&self) -> String {
        // As DBOS, which knows no shorter form, wants it.
        self.0
            .database()
            .replacen("postgres://", "postgresql://", 1)
    }

    /// A new database that is ready to be a store; its URL.
    pub(crate) async fn migrated(&self) -> Result<String, Error> {
        let url = self.0.database();
        schema::migrate(&ConnectOptions::parse(&url)?, &schema::migrations(), |_| {}).await?;
        Ok(url)
    }

    /// Runs statements in the database of this URL.
    pub(super) fn sql(&self, url: &str, sql: &str) -> Result<String, Error> {
        Ok(self.0.try_psql(name(url), sql)?)
    }

    /// A client program of PostgreSQL that goes to the database of this URL. Like the store it
    /// comes by TCP.
    pub(super) fn client(&self, program: &str, url: &str) -> Command {
        let mut command = self.0.client(program);
        command.env("PGDATABASE", name(url));
        command
    }

    pub(crate) fn version(&self) -> String {
        self.0.psql("postgres", "SHOW server_version")
    }

    pub(crate) fn settings(&self) -> String {
        SETTINGS
            .map(|(name, value)| format!("{name} = {value}"))
            .join(", ")
            + ", fsync and synchronous_commit on, the rest as it comes"
    }
}

fn name(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}
