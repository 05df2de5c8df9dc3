//! The Postgres server of a run: one private server for all measurements, with every commit on
//! disk.

use std::process::Command;

use hapax::store::postgres::{ConnectOptions, schema};
use hapax_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::Error;
use crate::child::{cpu_micros, cpu_micros_of_ended};
use crate::gateway::tree;

/// Enough connections for all clients, and no checkpoint during a short measurement. All other
/// settings are the defaults.
const SETTINGS: [(&str, &str); 3] = [
    ("max_connections", "320"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
];

/// A server that ends with this process.
pub(crate) struct Cluster(Postgres);

impl Cluster {
    /// Starts it, or returns why it cannot be started.
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

    /// The URL of a new, empty database.
    pub(crate) fn database(&self) -> String {
        // The form that DBOS requires.
        self.0
            .database()
            .replacen("postgres://", "postgresql://", 1)
    }

    /// The URL of a new database with the schema of a store.
    pub(crate) async fn migrated(&self) -> Result<String, Error> {
        let url = self.0.database();
        schema::migrate(&ConnectOptions::parse(&url)?, &schema::migrations(), |_| {}).await?;
        Ok(url)
    }

    /// Runs statements in the database at this URL.
    pub(super) fn sql(&self, url: &str, sql: &str) -> Result<String, Error> {
        Ok(self.0.try_psql(name(url), sql)?)
    }

    /// A PostgreSQL client program for the database at this URL. Like the store, it connects over
    /// TCP.
    pub(super) fn client(&self, program: &str, url: &str) -> Command {
        let mut command = self.0.client(program);
        command.env("PGDATABASE", name(url));
        command
    }

    /// The processor time of all its processes so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> Result<u64, Error> {
        let server = self.0.pid();
        // One that has just ended is among the ended ones.
        let living = tree(server)
            .into_iter()
            .filter_map(|pid| cpu_micros(pid).ok());
        Ok(living.sum::<u64>() + cpu_micros_of_ended(server)?)
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

/// A connection to the database at this URL.
pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
